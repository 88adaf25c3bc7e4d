"""Requests of other hosts, when the answers of the store are lost, and when the store refuses an answer."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.api.models import PauseJob, RequestBody
from cdc.errors import CheckpointError, ConfigError
from cdc.job import remote_calls
from cdc.job.remote_calls import RemoteCalls, read_log
from cdc.state.hosts import HostIdentity
from cdc.state.job_directory import JobDirectory
from cdc.state.sqlite import SqliteStore
from tests.support.limits import HANG_S


class Controls:
    def __init__(self) -> None:
        self.carried_out: list[RequestBody] = []

    def request(self, request: RequestBody) -> None:
        self.carried_out.append(request)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path)) as store:
        store.acquire("shop", "shop.yaml")
        yield store


@pytest.mark.parametrize("lost", ["take", "answer"])
@pytest.mark.parametrize("is_saved", [True, False])
def test_request_is_carried_out_once_if_the_store_loses_an_answer(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str, is_saved: bool
) -> None:
    """The store cannot be reached for longer than a transaction is repeated. Its last COMMIT may have been carried out."""
    monkeypatch.setattr(remote_calls, "POLL_S", 0.01)
    real, answer, left = getattr(store.events, lost), store.events.answer, [3]
    answered = threading.Event()

    def lose(*words: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            return real(*words)
        if is_saved:
            real(*words)
        raise CheckpointError("The state store cannot be reached.", hint="Check its server.")

    def note(*words: Any) -> None:
        (lose if lost == "answer" else answer)(*words)
        answered.set()

    monkeypatch.setattr(store.events, lost, lose)
    monkeypatch.setattr(store.events, "answer", note)
    number, controls = store.events.request("shop", "pause", {}, valid_s=HANG_S), Controls()
    calls = RemoteCalls(store, "shop", cast(Any, controls), JobDirectory(tmp_path, "shop"))
    calls.start()
    is_answered = answered.wait(HANG_S)
    calls.close()
    event = store.events.get(number)
    assert is_answered and event is not None and event.result == {"ok": True}
    assert controls.carried_out == [PauseJob()] and left[0] < 0
    assert store.events.open_requests("shop", "another") == ()


def test_refusal_of_a_request_arrives_after_an_outage_of_the_store(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = store.events.answer, [1]

    def answer(number: int, result: Mapping[str, Any]) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise CheckpointError("The state store cannot be reached.", hint="Check its server.")
        real(number, result)

    class Refusing(Controls):
        def request(self, request: RequestBody) -> None:
            raise ConfigError("The job is paused for another reason now.", hint="See `cdc status shop`.")

    monkeypatch.setattr(store.events, "answer", answer)
    number = store.events.request("shop", "pause", {}, valid_s=HANG_S)
    calls = RemoteCalls(store, "shop", cast(Any, Refusing()), JobDirectory(tmp_path, "shop"))
    calls._answer_all()
    calls._answer_all()
    event = store.events.get(number)
    assert event is not None and event.result is not None and not event.result["ok"]
    assert "paused for another reason" in event.result["error"]["error"]


def test_answer_that_the_store_refuses_delays_no_other_request(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value is larger than `max_allowed_packet` of the server."""
    monkeypatch.setattr(remote_calls, "POLL_S", 0.01)
    real, paused = store.events.answer, threading.Event()

    def answer(number: int, result: Mapping[str, Any]) -> None:
        if len(json.dumps(dict(result))) > 1000:
            raise CheckpointError("A value is too large for the state store.", hint="", code=1153)
        real(number, result)

    class Large(Controls):
        def status(self) -> Any:
            return SimpleNamespace(to_json=lambda: {"x": "y" * 2000})

        def request(self, request: RequestBody) -> None:
            paused.set()

    monkeypatch.setattr(store.events, "answer", answer)
    question = store.events.request("shop", "status", {}, valid_s=HANG_S)
    store.events.request("shop", "pause", {}, valid_s=HANG_S)
    calls = RemoteCalls(store, "shop", cast(Any, Large()), JobDirectory(tmp_path, "shop"))
    calls.start()
    assert paused.wait(HANG_S)
    until(lambda: not calls._results)
    calls.close()
    event = store.events.get(question)
    assert event is not None and event.result is not None and not event.result["ok"]
    assert "too large" in event.result["error"]["error"]


def test_result_that_cannot_be_saved_is_not_kept_for_ever(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(number: int, result: Mapping[str, Any]) -> None:
        raise CheckpointError("The state store is read-only.", hint="")

    monkeypatch.setattr(store.events, "answer", answer)
    store.events.request("shop", "pause", {}, valid_s=HANG_S)
    controls = Controls()
    calls = RemoteCalls(store, "shop", cast(Any, controls), JobDirectory(tmp_path, "shop"))
    calls._answer_all()
    calls._answer_all()
    assert len(calls._results) == 1 and controls.carried_out == [PauseJob()]
    monkeypatch.setattr(remote_calls, "FORGOTTEN_S", 0.0)
    calls._answer(next(iter(calls._results)))
    assert not calls._results


def test_log_answer_has_a_limit_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_calls, "LOG_BYTES_MOST", 100)
    folder = JobDirectory(tmp_path, "shop")
    folder.make()
    folder.log.write_text("".join(f"{number:03} {'x' * 20}\n" for number in range(20)))
    answer = read_log(folder, {"lines": 5000}, HostIdentity("a1", "home"))
    assert [line[:3] for line in answer["lines"]] == ["016", "017", "018", "019"]
    assert answer["offset"] == folder.log.stat().st_size


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
