"""Ranges of a source without a server, read by Spark's executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc.model.batch import LoadName, PreparedLoad
from channels.partition_read import (
    PartitionLoad,
    PartitionTarget,
    ReadBudget,
    ReadResult,
    TypedMapping,
    read_partitions,
)
from channels.spark_runner import SparkTaskRunner
from spark.session import SessionHolder
from tests.support.partition_readers import SCHEMA, NumberReader

NAME = LoadName("shop", "0a1b2c3d", 1, 1, "ods.numbers", task=0)
UNLIMITED = ReadBudget(60.0, 1 << 30, 1 << 40)


def _write(folder: Path, name: LoadName, rows: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
    table = pa.Table.from_batches(list(rows))
    pq.write_table(table, folder / f"{name.task}-{name.part}.parquet")
    return PreparedLoad(name, "ods.numbers", table.num_rows, table.nbytes)


@dataclass(frozen=True)
class Request:
    """Two ranges of numbers, as a source other than MySQL chunks."""

    folder: Path
    budget: ReadBudget = UNLIMITED
    mapping: TypedMapping | None = None
    channels = ("ods.numbers",)
    work = "read"
    usual_s = 60.0

    def run(self, spark_session: Any, core_count: int) -> ReadResult:
        writer = partial(_write, self.folder)
        ranges = [(0, 10), (10, 20)]
        partitions = [
            PartitionLoad(NumberReader(first, last), (PartitionTarget(replace(NAME, task=task), writer),))
            for task, (first, last) in enumerate(ranges)
        ]
        return read_partitions(spark_session, partitions, min(2, core_count), self.budget, self.mapping)


@pytest.fixture
def runner(sessions: SessionHolder) -> Iterator[SparkTaskRunner]:
    yield SparkTaskRunner(sessions, SimpleNamespace())  # type: ignore[arg-type]


def _written(folder: Path) -> list[int]:
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    return [number for table in tables for number in table.column("id").to_pylist()]


def test_runner_reads_any_partition_reader(runner: SparkTaskRunner, tmp_path: Path) -> None:
    result = runner.submit_reading(Request(tmp_path)).result(120)
    assert _written(tmp_path) == list(range(1, 21))
    assert sorted(load.rows for load in result.loads) == [10, 10]
    found = sorted((one.number, one.position, one.is_complete, one.rows, one.bytes) for one in result.partitions)
    assert found == [(0, 10, True, 10, 100), (1, 20, True, 10, 100)]


def test_read_partitions_with_mapping_computes_rows(runner: SparkTaskRunner, tmp_path: Path) -> None:
    mapping = TypedMapping(SCHEMA, pa.schema([pa.field("id", pa.int32())]), {"id": "id * 2"}, frozenset({"id"}), None)
    result = runner.submit_reading(Request(tmp_path, mapping=mapping)).result(120)
    assert sorted(_written(tmp_path)) == [2 * number for number in range(1, 21)]
    assert sum(one.rows for one in result.partitions) == 20


def test_read_partitions_pace_ends_range_with_position(runner: SparkTaskRunner, tmp_path: Path) -> None:
    result = runner.submit_reading(Request(tmp_path, ReadBudget(60.0, 8, 1 << 40))).result(120)
    found = sorted((one.number, one.position, one.is_complete) for one in result.partitions)
    assert found == [(0, 6, False), (1, 16, False)]
    assert _written(tmp_path) == [*range(1, 7), *range(11, 17)]
