"""Rows in shared memory: read by other processes, and deleted at close."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

from spark.frames import packed_frame, unpacked
from spark.session import SessionHolder
from spark.shared_memory import SharedReader, SharedRows, StaleMemory

FIRST = pa.RecordBatch.from_pydict({"id": [1, 2], "name": ["a", None]})
OTHER = pa.RecordBatch.from_pydict({"price": [1.5]})


def test_shared_rows_are_readable_in_another_process() -> None:
    with SharedRows() as memory:
        memory.put([OTHER])
        offset, size = memory.put([FIRST, FIRST.slice(1)])
        code = f"from spark.shared_memory import SharedReader; print(SharedReader({memory.path!r}).rows_at(({offset}, {size})).to_pydict())"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "{'id': [1, 2, 2], 'name': ['a', None, None]}"


def test_shared_rows_stay_readable_after_close() -> None:
    with SharedRows() as memory:
        at = memory.put([FIRST])
        reader = SharedReader(memory.path)
        rows = reader.rows_at(at)
        reader.close()
    assert rows.to_batches()[0].equals(FIRST)
    assert not os.path.exists(memory.path)


def test_reader_of_reused_path_is_refused() -> None:
    """The number of a closed file is reused, so a late task finds the memory of a later job at its path."""
    with SharedRows() as memory:
        path, inode = memory.path, memory.inode
        at = memory.put([FIRST])
        assert SharedReader(path, inode).rows_at(at).num_rows == 2
    with SharedRows() as later:
        later.put([FIRST])
        assert later.path == path
        with pytest.raises(StaleMemory, match="memory of a later job"):
            SharedReader(path, inode)
        SharedReader(later.path, later.inode)


def test_shared_bytes_leave_later_rows_aligned() -> None:
    with SharedRows() as memory:
        data, rows = memory.put_bytes(b"abc"), memory.put([FIRST])
        reader = SharedReader(memory.path)
        assert reader.bytes_at(data).to_pybytes() == b"abc" and rows[0] % 64 == 0
        assert reader.rows_at(rows).to_batches()[0].equals(FIRST)


def test_executors_read_packed_rows_in_order(sessions: SessionHolder) -> None:
    partitions = [[(0, [FIRST]), (2, [OTHER, OTHER])], [(1, [FIRST.slice(1)])]]

    def seen(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            for load, rows in unpacked(batch):
                yield pa.RecordBatch.from_pydict({"load": [load], "rows": [str(rows.to_pydict())]})

    frame = packed_frame(sessions.get(), partitions)
    assert frame.rdd.getNumPartitions() == 2
    found = [tuple(row) for row in frame.mapInArrow(seen, "load long, rows string").collect()]
    assert found == [
        (0, "{'id': [1, 2], 'name': ['a', None]}"),
        (2, "{'price': [1.5, 1.5]}"),
        (1, "{'id': [2], 'name': [None]}"),
    ]
