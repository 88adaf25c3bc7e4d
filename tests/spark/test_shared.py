"""Rows in shared memory: read by other processes, and deleted at close."""

from __future__ import annotations

import os
import subprocess
import sys

import pyarrow as pa
import pytest

from spark.frames import packed_frame, shared_frame, unpacked
from spark.session import SessionHolder
from spark.shared_memory import SharedRows, is_shared, shared_rows

FIRST = pa.RecordBatch.from_pydict({"id": [1, 2], "name": ["a", None]})
OTHER = pa.RecordBatch.from_pydict({"price": [1.5]})


def test_shared_rows_are_readable_in_another_process() -> None:
    with SharedRows() as memory:
        memory.put([OTHER])
        offset, size = memory.put([FIRST, FIRST.slice(1)])
        code = f"from spark.shared_memory import shared_rows; print(shared_rows({memory.path!r}, {offset}, {size}).to_pydict())"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "{'id': [1, 2, 2], 'name': ['a', None, None]}"


def test_shared_rows_stay_readable_after_close() -> None:
    with SharedRows() as memory:
        rows = shared_rows(memory.path, *memory.put([FIRST]))
        assert is_shared(memory.path)
    assert rows.to_batches()[0].equals(FIRST)
    assert not os.path.exists(memory.path)


@pytest.mark.parametrize("shared", [True, False])
def test_executors_read_rows_in_order(sessions: SessionHolder, shared: bool) -> None:
    assert sessions.shares_memory()  # otherwise shared memory is not tested
    partitions = [[(0, [FIRST]), (2, [OTHER, OTHER])], [(1, [FIRST.slice(1)])]]

    def seen(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            for load, rows in unpacked(batch):
                yield pa.RecordBatch.from_pydict({"load": [load], "rows": [str(rows.to_pydict())]})

    with SharedRows() as memory:
        session = sessions.get()
        frame = shared_frame(session, partitions, memory) if shared else packed_frame(session, partitions)
        assert frame.rdd.getNumPartitions() == 2
        found = [tuple(row) for row in frame.mapInArrow(seen, "load long, rows string").collect()]
    assert found == [
        (0, "{'id': [1, 2], 'name': ['a', None]}"),
        (2, "{'price': [1.5, 1.5]}"),
        (1, "{'id': [2], 'name': [None]}"),
    ]
