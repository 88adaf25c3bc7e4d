"""The events of jobs that are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.state import events as module
from cdc.state.events import EventKind
from cdc.state.sqlite import SqliteStore


def test_events_of_a_job_that_does_not_start_keep_those_of_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KEPT_EVENTS", 5)
    store = SqliteStore(tmp_path)
    for kind, message in ((EventKind.SPEC, "new specification"), (EventKind.SCHEMA_CHANGE, "ADD COLUMN")):
        store.events.add("shop", kind, message)
    for _ in range(20):
        store.events.add("shop", EventKind.STATE, "the job does not start")
    found = [event.message for event in store.events.newest("shop")]
    assert found == ["the job does not start"] * 5 + ["ADD COLUMN", "new specification"]
    store.close()
