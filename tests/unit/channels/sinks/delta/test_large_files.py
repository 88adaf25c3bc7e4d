"""Data files of other writers that are too large to be sorted: they are divided as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake.transaction import AddAction

from cdc.model.schema import DELETED
from channels.sinks.delta import compaction, merge
from channels.sinks.delta.entries import RemovedFile
from channels.sinks.delta.files import write_parquet
from channels.sinks.delta.merge import Merge, MergeLoad
from channels.sinks.delta.table_files import TableFile
from channels.sinks.delta.vectors import write_vectors

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
FILE_ROWS, GROUP_ROWS, ROWS = 10, 5, 100


@pytest.fixture
def row_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the rows of each table that is written to data files."""
    found = list[int]()
    write_files = merge.write_files

    def count(tables: Iterator[pa.Table], *args: Any, **options: Any) -> list[AddAction]:
        def counted() -> Iterator[pa.Table]:
            for table in tables:
                found.append(table.num_rows)
                yield table

        return write_files(counted(), *args, **options)

    for module in (merge, compaction):
        monkeypatch.setattr(module, "FILE_ROWS", FILE_ROWS)
        monkeypatch.setattr(module, "write_files", count)
    return found


def large_file(folder: Path) -> TableFile:
    """Write the ids 99 to 0: no order of the rows is lost."""
    rows = pa.table({"id": range(ROWS - 1, -1, -1), "n": [0] * ROWS}, SCHEMA)
    pq.write_table(rows, folder / "large.parquet", row_group_size=GROUP_ROWS)
    size = (folder / "large.parquet").stat().st_size
    return TableFile("large.parquet", size, ROWS, (pa.scalar(0),), (pa.scalar(ROWS - 1),))


def read(folder: Path, actions: list[Any]) -> dict[int, int]:
    tables = [pq.read_table(folder / one.path, schema=SCHEMA) for one in actions if isinstance(one, AddAction)]
    rows = [(row["id"], row["n"]) for table in tables for row in table.to_pylist()]
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def test_merge_into_a_large_file_does_not_sort_it(tmp_path: Path, row_counts: list[int]) -> None:
    file, staged = large_file(tmp_path), tmp_path / "staged.parquet"
    changes = pa.table(
        {"id": [3, 50], "n": [1, 1], DELETED: [False, True]}, SCHEMA.append(pa.field(DELETED, pa.bool_()))
    )
    write_parquet(staged, changes.schema, iter([changes]))
    with ThreadPoolExecutor(1) as threads:
        actions = Merge(tmp_path, SCHEMA, MergeLoad([staged], ["id"]), [file], "part-1").actions(threads)
    assert [one.path for one in actions if isinstance(one, RemovedFile)] == [file.path]
    assert read(tmp_path, actions) == {id: int(id == 3) for id in range(ROWS) if id != 50}
    assert max(row_counts) <= GROUP_ROWS


def test_compaction_of_a_large_file_does_not_sort_it(tmp_path: Path, row_counts: list[int]) -> None:
    file = large_file(tmp_path)
    vector = write_vectors(tmp_path, {file.path: np.array([0, 1, 7], np.uint64)})[file.path]
    file = TableFile(file.path, file.size, file.rows, file.low, file.high, vector)
    compacted = compaction.compact(tmp_path, SCHEMA, ["id"], [file], "part-2")
    ids = [id for one in compacted.new for id in pq.read_table(tmp_path / one.path).column("id").to_pylist()]
    assert ids == [ROWS - 1 - number for number in compacted.rows]
    assert sorted(ids) == [id for id in range(ROWS) if id not in (99, 98, 92)]
    assert max(row_counts) <= GROUP_ROWS
