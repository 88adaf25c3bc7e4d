"""When a stream asks for metadata, with a clock that the test moves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cdc.errors import PositionLost, SourceUnavailable
from cdc.sources.kafka.broker_contact import BrokerContact

AWAY = SourceUnavailable("No broker answers.", hint="Start one.")


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("cdc.sources.kafka.broker_contact.time", SimpleNamespace(monotonic=lambda: self.now))

    def first_due(self, contact: BrokerContact, *, is_alarmed: bool = False) -> float:
        """Return after how many seconds metadata is due."""
        began = self.now
        while not contact.is_due(is_alarmed=is_alarmed):
            self.now += 0.5
        return self.now - began


def test_metadata_is_due_after_the_usual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, contact = Clock(monkeypatch), BrokerContact(30.0)
    contact.begin()
    assert clock.first_due(contact) == 30.0
    contact.begin_refresh()
    contact.end_refresh(is_soon=False)
    assert clock.first_due(contact) == 30.0
    contact.begin_refresh()
    contact.end_refresh(is_soon=True)
    assert clock.first_due(contact) == 2.0


def test_metadata_is_due_early_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, contact = Clock(monkeypatch), BrokerContact(30.0)
    contact.begin_refresh()
    contact.end_refresh(is_soon=False)
    assert clock.first_due(contact, is_alarmed=True) == 2.0
    contact.begin_refresh()
    contact.end_refresh(is_soon=False)
    contact.note_error(AWAY)
    assert contact.away == (clock.now, AWAY) and clock.first_due(contact) == 2.0


def test_brokers_are_away_until_they_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, contact = Clock(monkeypatch), BrokerContact(30.0)
    contact.begin_refresh()
    contact.fail_refresh(AWAY)
    since = clock.now
    assert clock.first_due(contact) == 2.0
    contact.fail_refresh(SourceUnavailable("Again.", hint=""))
    assert contact.away == (since, AWAY), "the first error, and its time"
    contact.end_refresh(is_soon=False)
    assert contact.away is None


def test_error_that_needs_a_person_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    contact = BrokerContact(30.0)
    with pytest.raises(PositionLost):
        contact.fail_refresh(PositionLost("Messages are gone.", hint=""))
    assert contact.away is None
