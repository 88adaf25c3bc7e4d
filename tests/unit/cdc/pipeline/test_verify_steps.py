"""When a verification begins: requests in order, and the schedule across restarts. Errors of its steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.errors import CheckpointError, LeaseLost
from cdc.model.position import BinlogPosition
from cdc.model.verify import TableVerification, Verification, VerifyRequest, VerifyState
from cdc.pipeline.commit_cycle import Cancelled
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


class FailingSession(Session):
    """A session whose step raises ``error`` in one of its parts."""

    def __init__(self, part: str, error: Exception) -> None:
        super().__init__()
        self.part, self.error, self.calls, self.ended = part, error, 0, list[str]()

    def _raise_in(self, part: str) -> None:
        if part == self.part:
            self.calls += 1
            raise self.error

    def plan(self, *_: object, at_end: bool) -> object:
        self._raise_in("plan")
        return SimpleNamespace(kind="search", repair=None, compare=None, recheck=None, search=self.search)

    def search(self) -> None:
        self._raise_in("search")

    def complete(self, *_: object) -> None:
        self._raise_in("complete")

    def end(self, error: str) -> None:
        self.ended.append(error)
        self.run = None


def take_steps(store: SqliteStore, session: FailingSession, times: int) -> int:
    """Take at most ``times`` steps, until the session ends. Return how often the state was saved."""
    clock, saved = Clock(), list[None]()
    steps, _ = steps_of(store, VerifySettings(), clock)
    steps._session = cast(Any, session)
    submitted = ThreadPoolExecutor(1)
    steps._submit = submitted.submit  # type: ignore[assignment]
    cycle = SimpleNamespace(first=HERE, checkpoint=None)
    cycles = SimpleNamespace(
        dispatcher=SimpleNamespace(cycle=cycle, sequence=0), is_committing=False, save_state=lambda: saved.append(None)
    )
    store.add_verification("shop", VerifyRequest())
    for _ in range(times):
        clock.now += 100
        if steps.is_due(HERE):
            steps.take(cast(Any, cycles))
    submitted.shutdown()
    return len(saved)


@pytest.mark.parametrize(("part", "failures"), [("plan", 8), ("search", 8), ("complete", 1)])
def test_unexpected_error_of_a_step_ends_the_verification_only(store: SqliteStore, part: str, failures: int) -> None:
    """An error at a certain row would end each run of the job there. A result that is recorded in part is not used."""
    session = FailingSession(part, ValueError("year 0 is out of range"))
    assert take_steps(store, session, failures) == failures
    assert session.calls == failures
    assert len(session.ended) == 1 and "ValueError: year 0 is out of range" in session.ended[0]


@pytest.mark.parametrize(
    "error", [LeaseLost("lost", hint=""), CheckpointError("disk full", hint=""), Cancelled("while comparing")]
)
def test_error_of_the_run_is_not_an_error_of_the_step(store: SqliteStore, error: Exception) -> None:
    session = FailingSession("plan", error)
    with pytest.raises(type(error)):
        take_steps(store, session, 1)
    assert session.ended == []
