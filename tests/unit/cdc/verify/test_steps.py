"""A stop ends the reads of a verification step, which can take minutes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from cdc.model.batch import LoadName
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.snapshot import Chunk
from cdc.mysql.connection import Endpoint
from cdc.mysql.key_order import KeyColumn, KeyOrder
from cdc.mysql.query_stream import ReadCancelled
from cdc.verify.planner import ComparedTable
from cdc.verify.steps import StepFactory
from channels.chunk_compare import KeyDifferences
from channels.chunk_reader import TableRead
from channels.table_compare import TableCompare
from channels.task import RunIdentity
from tests.support.limits import HANG_S

WAYS = ["all keys", "keys that are looked up", "a part"]


class SlowSelect:
    """A query whose first row arrives after the test has ended."""

    ended = False
    began = threading.Event()

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> SlowSelect:
        return self

    def __exit__(self, *_: object) -> None: ...

    def rows(self, is_over: Callable[[], bool] = lambda: False, **_: object) -> Iterator[Any]:
        self.began.set()
        end = time.monotonic() + HANG_S
        while not is_over():
            assert time.monotonic() < end, "the stop does not end the query"
            time.sleep(0.01)
        yield from ()


@pytest.fixture
def began(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    SlowSelect.began = threading.Event()
    for module in ("cdc.snapshot.orphan_rows", "cdc.mysql.key_lookup", "channels.chunk_reader"):
        monkeypatch.setattr(f"{module}.Select", SlowSelect)
    return SlowSelect.began


def setting(way: str) -> tuple[StepFactory, ComparedTable, KeyDifferences]:
    kind, value = (Kind.INT, 7) if way == "keys that are looked up" else (Kind.BINARY, b"\7")
    column = Column("id", kind, "int", nullable=False, length=1)
    order = KeyOrder("`shop`.`t`", "`PRIMARY`", (KeyColumn(column),))
    read = TableRead(
        name=LoadName("job", "0badcafe", 1, 7, "ods.t", task=0), columns=(column,), key=frozenset({"id"}), order=order,
        copies={"id": "id"}, sequence=1, where=None, writer=cast(Any, None),
    )  # fmt: skip
    compare = TableCompare(
        read, ("id",), (column,), ("id",), frozenset(), frozenset(), None, lambda: cast(Any, SimpleNamespace())
    )
    channel = SimpleNamespace(target=SimpleNamespace(name="ods.t", key=("id",)), mapping=None)
    planned = ComparedTable("shop.t", TableSchema("shop", "t", (column,), ("id",)), cast(Any, channel), order, compare)
    context = SimpleNamespace(run=RunIdentity("job", "0badcafe", 1), sink=None)
    settings = SimpleNamespace(endpoint=Endpoint("db.example"), step_s=HANG_S)
    keys = pa.table({"id": pa.array([value], column.arrow)})
    part = Chunk(0, None, None) if way == "a part" else None
    differences = KeyDifferences(part, keys, np.zeros(1, np.int8))
    return StepFactory(cast(Any, context), cast(Any, settings)), planned, differences


def stopped(began: threading.Event, work: Callable[[], Any], cancel: Callable[[], None]) -> Future[Any]:
    """Return ``work`` after it has ended because of ``cancel``, which is called while it reads."""
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(work)
        assert began.wait(HANG_S)
        cancel()
        future.exception(HANG_S)
    return future


@pytest.mark.parametrize("way", WAYS)
def test_stop_ends_a_recheck(began: threading.Event, way: str) -> None:
    steps, planned, differences = setting(way)
    step = steps.recheck([planned], [("shop.t", differences)], 10)
    request = step.recheck
    assert request is not None
    future = stopped(began, lambda: request.run(cast(Any, None), 1), step.cancel)
    assert future.result() == (), "keys that were not read are not compared"


@pytest.mark.parametrize("way", WAYS)
def test_stop_ends_a_repair_without_tasks(began: threading.Event, way: str) -> None:
    """A key that was not read would be deleted from the target."""
    steps, planned, differences = setting(way)
    step = steps.repair([planned], [("shop.t", differences)], 7)
    assert step.repair is not None
    assert isinstance(stopped(began, step.repair, step.cancel).exception(), ReadCancelled)
