"""Chunks and other ranges on a real Spark whose executors are lost during a read."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext

from cdc.errors import CdcError, ErrorAction, action_for
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.schema import Column, Kind
from cdc.model.snapshot import Chunk
from cdc.mysql.connection import Endpoint
from cdc.mysql.key_order import KeyColumn, KeyOrder
from cdc.sources.partition_reader import PartitionBatch
from channels.chunk_reader import ChunkRead, TableRead, read_chunks
from channels.partition_read import PartitionLoad, PartitionTarget, ReadBudget, TypedMapping, read_partitions
from spark.session import SessionHolder
from tests.support.partition_readers import SCHEMA, NumberReader

ID = Column("id", Kind.INT, "int", nullable=False)
NOWHERE = Endpoint("127.0.0.1", 1, "nobody", "")


class _Deadly:
    """An endpoint that ends the first Python worker that unpickles it."""

    def __reduce__(self) -> tuple[Callable[[], Endpoint], tuple[()]]:
        return _endpoint, ()


def _writer(name: LoadName, rows: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
    raise AssertionError("no rows must be written")


def _endpoint() -> Endpoint:
    context = TaskContext.get()
    assert context is not None
    if not context.attemptNumber():
        os._exit(1)
    return NOWHERE


@cache
def _sessions() -> SessionHolder:
    return SessionHolder("chunks-test", "local[1,2]")


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    """PySpark has one session per process, and these tests need one with two tries per task."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield process
        process.submit(_close).result()


def _close() -> None:
    _sessions().close()


def test_read_chunks_after_lost_executor_raises_retry(process: ProcessPoolExecutor) -> None:
    plain, typed = process.submit(_errors).result()
    for said, answer in (plain, typed):
        assert "executor was lost" in said
        assert answer is ErrorAction.RETRY


def _errors() -> list[tuple[str, ErrorAction]]:
    """Return message and answer of a plain and of a typed read."""
    sessions, found = _sessions(), []
    name = LoadName("shop", "0a1b2c3d", 1, 1, "ods.orders", task=0)
    order = KeyOrder("`shop`.`orders`", "`PRIMARY`", (KeyColumn(ID),))
    plain = TableRead(name, order, (ID,), frozenset({"id"}), 1, None, _writer)
    target = pa.schema([pa.field("id", pa.int32())])
    typed = replace(plain, expressions={"id": "id + 1"}, target=target, kept=frozenset({"id"}))
    for table in (plain, typed):
        chunks, budget = [ChunkRead(0, Chunk(0, None, None))], ReadBudget(5.0, 1000, 1 << 20)
        try:
            read_chunks(sessions.get(), cast(Endpoint, _Deadly()), [table], chunks, 1, budget)
        except CdcError as error:
            found.append((str(error), action_for(error)))
    return found


@dataclass(frozen=True)
class _DiesOnce:
    """A reader whose first Python worker ends in the middle of the range."""

    start: int
    end: int

    def batches(self, is_over: Callable[[], bool]) -> Iterator[PartitionBatch]:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(NumberReader(self.start, self.end).batches(is_over)):
            if number and not context.attemptNumber():
                os._exit(1)
            yield batch


def _write(folder: Path, name: LoadName, rows: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
    table = pa.Table.from_batches(list(rows))
    pq.write_table(table, folder / f"{name.attempt}-{name.task}.parquet")
    return PreparedLoad(name, "ods.numbers", table.num_rows, table.nbytes)


def _repeated(folder: Path, is_typed: bool) -> list[LoadName]:
    """Return the loads of two ranges whose first tries fail."""
    fields = pa.schema([pa.field("id", pa.int32())])
    mapping = TypedMapping(SCHEMA, fields, {"id": "id"}, frozenset({"id"}), None) if is_typed else None
    target = PartitionTarget(
        LoadName("shop", "0a1b2c3d", 1, 1, "ods.numbers", task=0), partial(_write, folder), ("id",)
    )
    ranges = [
        PartitionLoad(_DiesOnce(first, first + 10), (replace(target, name=replace(target.name, task=task)),), True)
        for task, first in enumerate((0, 10))
    ]
    budget = ReadBudget(float("inf"), sys.maxsize, sys.maxsize)
    return [load.name for load in read_partitions(_sessions().get(), ranges, 2, budget, mapping).loads]


@pytest.mark.parametrize("is_typed", [False, True])
def test_repeated_task_reads_its_range_again_with_labels_of_its_own(
    process: ProcessPoolExecutor, tmp_path: Path, is_typed: bool
) -> None:
    names = process.submit(_repeated, tmp_path, is_typed).result()
    assert sorted((name.task, name.attempt) for name in names) == [(0, 1), (1, 1)]
    found = [pq.read_table(tmp_path / f"1-{task}.parquet").column("id").to_pylist() for task in (0, 1)]
    assert found == [list(range(1, 11)), list(range(11, 21))]
