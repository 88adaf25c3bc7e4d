"""How long a snapshot waits for a statement that the stream may deliver."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.errors import SchemaMismatch
from cdc.model.position import BinlogPosition, Position
from cdc.run_context import SnapshotSettings
from cdc.snapshot.step import MISMATCH_S, StepRunner
from cdc.snapshot.table_shape import NOT_VISIBLE
from cdc.sources.base import ReceiverStatus


class World:
    """A source that is written all the time, and a table whose columns differ from those of the stream."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_at_end: bool, server: str = "server") -> None:
        self.now, self.end, self.table, self.server = 0.0, 1000, "shop.orders", server
        self.read_to = 0
        monkeypatch.setattr("cdc.snapshot.step.Server", lambda _: nullcontext())
        receiver = SimpleNamespace(status=lambda: ReceiverStatus(is_at_end, read_to=at(self.read_to)))
        context = SimpleNamespace(receiver=receiver, store=SimpleNamespace(next_id=lambda: 7))
        settings = SnapshotSettings(cast(Any, None), lambda _: at(self.end, self.server))
        steps = StepRunner(
            cast(Any, context), settings, cast(Any, self), cast(Any, None), threading.Event(),
            on_poll=lambda: None, now=lambda: self.now,
        )  # fmt: skip
        self.steps = steps

    def plan(self, *_: object) -> None:
        raise SchemaMismatch("The table's columns differ.", hint="", table=self.table)

    def step(self, offset: int, seconds: float = 10.0) -> None:
        """Plan a step when the stream has reached ``offset``."""
        self.now, self.end = self.now + seconds, self.end + 100
        assert self.steps.plan(at(offset), 0) is None


def at(offset: int, server: str = "server") -> Position:
    return BinlogPosition("bin.000001", offset, server)


def test_stop_while_spark_starts_ends_the_step_before_it_reads() -> None:
    """A step that reads after the stop would write loads of a checkpoint that is aborted already."""
    stopping, polls = threading.Event(), list[int]()

    def poll() -> None:
        polls.append(1)
        stopping.set()

    runner = SimpleNamespace(is_warming=True)  # it has no call that reads
    steps = StepRunner(
        cast(Any, SimpleNamespace(runner=runner)), SnapshotSettings(cast(Any, None), cast(Any, None)), cast(Any, None),
        cast(Any, None), stopping, on_poll=poll,
    )  # fmt: skip
    assert steps.read(cast(Any, SimpleNamespace(read_request="chunks")), at(500)) is None
    assert polls == [1]


def test_earlier_steps_count_as_committed_before_a_step_is_completed() -> None:
    """Otherwise its checkpoint would save that tables of the steps before it are not consistent yet."""
    calls: list[str] = []
    coordinator = SimpleNamespace(
        note_committed=lambda position: calls.append(f"committed {position.offset}"),
        complete=lambda *_: calls.append("complete") or {},
    )
    steps = StepRunner(
        cast(Any, None), SnapshotSettings(cast(Any, None), cast(Any, None)), cast(Any, coordinator), cast(Any, None),
        threading.Event(), on_poll=lambda: None,
    )  # fmt: skip
    outcome = SimpleNamespace(loads=(), chunks=())
    assert steps.complete(cast(Any, SimpleNamespace(tables=())), cast(Any, outcome), at(500), {}) is not None
    assert calls == ["committed 500", "complete"]


def test_snapshot_of_a_busy_source_does_not_wait_for_ever_for_a_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after ALTER TABLE with sql_log_bin = 0: the position of each step is another one."""
    world = World(monkeypatch, is_at_end=False)
    for offset in (500, 600, 1050, 1150, 1250):
        world.step(offset)
    with pytest.raises(SchemaMismatch, match="no statement of it"):
        for offset in range(1350, 3000, 100):
            world.step(offset)


def test_snapshot_waits_for_a_stream_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, is_at_end=False)
    for offset in range(100, 1100, 10):
        world.step(offset, 60.0)
    world.table = "shop.items"  # the statement on the first table has arrived, and another one is ahead
    world.step(1100)
    for offset in range(1110, 2000, 10):
        world.step(offset)


def test_snapshot_of_an_idle_source_waits_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, is_at_end=True)
    world.step(500)
    world.read_to = world.end
    world.step(500, MISMATCH_S / 2)
    with pytest.raises(SchemaMismatch, match="no statement of it"):
        world.step(500, MISMATCH_S)


def test_snapshot_of_a_silent_connection_waits_until_the_end_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """No byte arrives, so the stream seems to be at its end. The statement follows when the job has reconnected."""
    world = World(monkeypatch, is_at_end=True)
    world.step(500)
    end, world.read_to = world.end, world.end - 1
    for _ in range(5):
        world.step(500, MISMATCH_S)
    world.read_to = end
    with pytest.raises(SchemaMismatch, match="no statement of it"):
        world.step(500, MISMATCH_S)


def test_snapshot_after_a_failover_waits_for_the_end_of_the_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, is_at_end=True, server="earlier one")
    world.step(500)
    world.server = "server"
    world.step(500, 2 * MISMATCH_S)
    world.read_to = world.end - 1
    world.step(500)
    world.read_to += 1
    with pytest.raises(SchemaMismatch, match="no statement of it"):
        world.step(500)


def test_snapshot_of_a_hidden_table_pauses_with_the_grant_as_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, is_at_end=True)
    monkeypatch.setattr(world, "plan", lambda *_: refuse())

    def refuse() -> None:
        raise SchemaMismatch(NOT_VISIBLE, hint="GRANT SELECT", table="shop.orders")

    world.step(500)
    world.read_to = world.end
    with pytest.raises(SchemaMismatch, match="does not show the table") as caught:
        world.step(500, MISMATCH_S + 1)
    assert caught.value.hint == "GRANT SELECT"
