"""Requests of other hosts, when the answers of the store are lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from cdc.api.models import PauseJob, RequestBody
from cdc.errors import CheckpointError
from cdc.job import remote_calls
from cdc.job.remote_calls import RemoteCalls
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
