"""When a verification begins: requests in order, and the schedule across restarts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.position import BinlogPosition
from cdc.model.verify import TableVerification, Verification, VerifyRequest, VerifyState
from cdc.pipeline.verify_steps import VerifySteps
from cdc.run_context import VerifySettings
from cdc.state.base import Checkpoint, CheckpointState
from cdc.state.sqlite import SqliteStore
from cdc.state.verifications import KEPT

HERE = BinlogPosition("bin.000001", 4, "server")


class Session:
    """A session that is always ready."""

    def __init__(self) -> None:
        self.run: Verification | None = None

    def begin(self, saved: Verification) -> None:
        self.run = saved

    def is_ready(self, position: object, *, at_end: bool) -> bool:
        return self.run is not None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path)
    store.acquire("shop", "shop.yaml")
    yield store
    store.close()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def steps_of(store: SqliteStore, settings: VerifySettings, clock: Clock) -> tuple[VerifySteps, Session]:
    context = SimpleNamespace(
        store=store, run=SimpleNamespace(job="shop"), verify=settings, runner=SimpleNamespace(is_warming=False),
        receiver=SimpleNamespace(status=lambda: SimpleNamespace(is_at_end=True)),
    )  # fmt: skip
    session = Session()
    steps = VerifySteps(
        cast(Any, context), cast(Any, session), 5.0, cast(Any, None), threading.Event(), on_poll=lambda: None, now=clock
    )
    return steps, session


def end(store: SqliteStore, found: Verification, *, requested_at: str | None = None) -> None:
    """Save the result of ``found`` with a checkpoint."""
    ended = replace(found, ended_at="2026-01-01T00:00:09Z", requested_at=requested_at or found.requested_at)
    tables = {"shop.orders": TableVerification(VerifyState.DONE, rows=7)}
    number = store.next_id()
    store.save(
        Checkpoint(
            number, 1, CheckpointState.COMMITTED, HERE, HERE, verify=replace(ended, tables=tables, position=HERE)
        )
    )


def test_requests_are_carried_out_in_order_and_once(store: SqliteStore) -> None:
    clock = Clock()
    steps, session = steps_of(store, VerifySettings(), clock)
    assert not steps.is_due(HERE)
    store.add_verification("shop", VerifyRequest(("shop.orders",), token="one"))
    store.add_verification("shop", VerifyRequest(token="two"))
    store.add_verification("other", VerifyRequest(token="three"))
    assert not steps.is_due(HERE), "the store is asked once a second"
    for token in ("one", "two"):
        clock.now += 1
        assert steps.is_due(HERE)
        assert session.run is not None and session.run.request.token == token
        end(store, session.run)
        session.run = None
    clock.now += 1
    assert not steps.is_due(HERE)
    one, two = store.verifications("shop", 9)[::-1]
    assert (one.tables["shop.orders"].rows, two.tables["shop.orders"].rows) == (7, 7) and one.position == HERE
    assert [each.request.token for each in store.verifications("other", 9)] == ["three"]
    assert store.verifications("shop", 1) == (two,)


def test_schedule_counts_from_the_last_scheduled_verification(store: SqliteStore) -> None:
    clock, settings = Clock(), VerifySettings(every_s=3600, sample=0.01, repair=True)
    steps, session = steps_of(store, settings, clock)
    assert steps.is_due(HERE), "the first one begins with the job"
    assert session.run is not None and session.run.request == VerifyRequest(sample=0.01, repair=True, scheduled=True)
    half_an_hour_ago = datetime.now(UTC) - timedelta(minutes=30)
    end(store, session.run, requested_at=half_an_hour_ago.isoformat())

    steps, session = steps_of(store, settings, clock)  # after a restart
    assert not steps.is_due(HERE)
    clock.now += 1700
    assert not steps.is_due(HERE)
    clock.now += 110
    assert steps.is_due(HERE)
    assert len(store.verifications("shop", 9)) == 2


def test_store_keeps_the_newest_verifications_until_the_job_is_forgotten(store: SqliteStore) -> None:
    for number in range(KEPT + 5):
        store.add_verification("shop", VerifyRequest(token=str(number)))
    found = store.verifications("shop", 1000)
    assert [one.request.token for one in found] == [str(number) for number in range(KEPT + 4, 4, -1)]
    store.release()
    store.forget("shop")
    assert store.verifications("shop", 1000) == ()
