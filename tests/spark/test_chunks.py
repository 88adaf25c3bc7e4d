"""Chunks on a real Spark whose executors are lost while they read."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import cast

import pyarrow as pa
from pyspark import TaskContext

from cdc.batch import LoadName, PreparedLoad
from cdc.binlog.connection import Endpoint
from cdc.errors import Answer, CdcError, decide
from cdc.schema import Column, Kind
from cdc.snapshot.chunks import Chunk
from cdc.snapshot.keys import KeyColumn, Order
from spark.chunks import ChunkRead, Pace, TableRead, read_chunks
from spark.session import SessionHolder

ID = Column("id", Kind.INT, "int", nullable=False)
NOWHERE = Endpoint("127.0.0.1", 1, "nobody", "")


class _Deadly:
    """An endpoint that ends the first Python worker which it comes to."""

    def __reduce__(self) -> tuple[Callable[[], Endpoint], tuple[()]]:
        return _endpoint, ()


def _writer(name: LoadName, rows: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
    raise AssertionError("nothing is to be written")


def _endpoint() -> Endpoint:
    context = TaskContext.get()
    assert context is not None
    if not context.attemptNumber():
        os._exit(1)
    return NOWHERE


def test_chunks_of_a_lost_executor_are_not_read_under_the_same_labels() -> None:
    # PySpark has one session for a process, and this one gives a task two tries
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        plain, typed = process.submit(_told).result()
    for said, answer in (plain, typed):
        assert "executor was lost" in said
        assert answer is Answer.RETRY


def _told() -> list[tuple[str, Answer]]:
    """What comes of a plain and of a typed reading."""
    sessions, found = SessionHolder("chunks-test", "local[1,2]"), []
    name = LoadName("shop", "0a1b2c3d", 1, 1, "ods.orders", task=0)
    order = Order("`shop`.`orders`", "`PRIMARY`", (KeyColumn(ID),))
    plain = TableRead(name, order, (ID,), frozenset({"id"}), 1, None, _writer)
    target = pa.schema([pa.field("id", pa.int32())])
    typed = replace(plain, expressions={"id": "id + 1"}, target=target, kept=frozenset({"id"}))
    for table in (plain, typed):
        chunks, pace = [ChunkRead(0, Chunk(0, None, None))], Pace(5.0, 1000, 1 << 20)
        try:
            read_chunks(sessions.get(), cast(Endpoint, _Deadly()), [table], chunks, 1, pace)
        except CdcError as error:
            found.append((str(error), decide(error)))
    sessions.close()
    return found
