"""Chunks on a real Spark whose executors are lost during a read."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import cast

import pyarrow as pa
from pyspark import TaskContext

from cdc.errors import CdcError, ErrorAction, action_for
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.schema import Column, Kind
from cdc.model.snapshot import Chunk
from cdc.mysql.connection import Endpoint
from cdc.mysql.key_order import KeyColumn, KeyOrder
from channels.chunk_reader import ChunkRead, TableRead, read_chunks
from channels.partition_read import ReadBudget
from spark.session import SessionHolder

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


def test_read_chunks_after_lost_executor_raises_retry() -> None:
    # PySpark has one session per process, and this test needs one with two tries per task
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        plain, typed = process.submit(_errors).result()
    for said, answer in (plain, typed):
        assert "executor was lost" in said
        assert answer is ErrorAction.RETRY


def _errors() -> list[tuple[str, ErrorAction]]:
    """Return message and answer of a plain and of a typed read."""
    sessions, found = SessionHolder("chunks-test", "local[1,2]"), []
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
    sessions.close()
    return found
