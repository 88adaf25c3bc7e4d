"""The saved values of the status, while the store answers, is slow or fails."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from cdc.errors import CheckpointError
from cdc.job import stored_status
from cdc.job.stored_status import StoredStatusReader
from cdc.model.change_record import ChangeSummary
from cdc.model.snapshot import SnapshotRequest
from cdc.state.base import CheckpointStore
from tests.support.limits import HANG_S


class Store:
    """A store whose reads can wait or fail."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.is_down = False
        self.saved: tuple[SnapshotRequest, ...] = ()

    def last_committed(self, job: str) -> None:
        assert self.answers.wait(HANG_S)
        if self.is_down:
            raise CheckpointError("The state store cannot be reached.", hint="")

    def requests(self, job: str) -> tuple[SnapshotRequest, ...]:
        return self.saved

    def change_summary(self, job: str) -> ChangeSummary:
        return ChangeSummary()

    def verifications(self, job: str, limit: int) -> tuple[Any, ...]:
        return ()


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def reader(store: Store) -> StoredStatusReader:
    return StoredStatusReader(cast(CheckpointStore, store), "shop")


def test_status_shows_what_was_saved_before_the_call(store: Store, reader: StoredStatusReader) -> None:
    for number in range(200):
        store.saved = (SnapshotRequest(f"shop.t{number}"),)
        assert reader.read().requests == store.saved


def test_read_that_began_before_the_call_is_not_its_answer(store: Store, reader: StoredStatusReader) -> None:
    store.answers.clear()
    first = threading.Thread(target=reader.read)
    first.start()
    while not reader._begun:
        time.sleep(0.001)
    answers: list[tuple[SnapshotRequest, ...]] = []
    second = threading.Thread(target=lambda: answers.append(reader.read().requests))
    second.start()
    while reader._requested < 2:
        time.sleep(0.001)
    store.answers.set()
    first.join()
    second.join()
    assert reader._ended == 2 and answers == [()]


def test_status_does_not_wait_for_a_store_that_is_down(
    store: Store, reader: StoredStatusReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.saved = known = (SnapshotRequest("shop.orders"),)
    assert reader.read().requests == known
    monkeypatch.setattr(stored_status, "WAIT_S", 0.1)
    store.answers.clear()
    store.saved = ()
    reader.read()
    began = time.monotonic()
    assert all(reader.read().requests == known for _ in range(100)), "the newest known values"
    assert time.monotonic() - began < HANG_S / 10, "not 100 waits"
    assert reader._begun == 2, "one read at a time"
    store.is_down = True
    store.answers.set()
    deadline = time.monotonic() + HANG_S
    while reader._is_reading and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reader.read().requests == known
    store.is_down = False
    monkeypatch.setattr(stored_status, "WAIT_S", HANG_S)
    while reader.read().requests and time.monotonic() < deadline:
        time.sleep(0.01)
    store.saved = known
    assert reader.read().requests == known, "it waits again"


def test_unexpected_error_of_the_store_is_logged_and_does_not_end_the_reads(
    store: Store, reader: StoredStatusReader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store, "requests", lambda job: 1 // 0)
    reader.read()
    monkeypatch.undo()
    store.saved = (SnapshotRequest("shop.orders"),)
    assert reader.read().requests == store.saved
    assert "ZeroDivisionError" in caplog.text
    reader.close()
    store.saved = ()
    assert reader.read().requests != (), "a closed one reads no more"


def test_call_that_waits_at_the_close_gets_its_values(
    store: Store, reader: StoredStatusReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to `cdc stop` is read while the job ends."""
    monkeypatch.setattr(stored_status, "WAIT_S", 10 * HANG_S)
    store.answers.clear()
    calls = [threading.Thread(target=reader.read, daemon=True) for _ in range(2)]
    deadline = time.monotonic() + HANG_S
    for number, call in enumerate(calls, 1):
        call.start()
        while (reader._begun, reader._requested) != (1, number):  # the second call waits for a second read
            assert time.monotonic() < deadline
            time.sleep(0.01)
    reader.close()
    store.answers.set()
    for call in calls:
        call.join(HANG_S)
        assert not call.is_alive()
