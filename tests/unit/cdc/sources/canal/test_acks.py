"""Acks of a Canal server's batches: which ones are acked, and which one is kept."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cdc.model.position import CanalPosition
from cdc.sources.canal.acks import AckTracker
from cdc.sources.canal.lost_end import has_lost_end
from cdc.sources.canal.transactions import OpenTransaction


def at(offset, entry=0, held=False):
    return CanalPosition("b.000001", offset, entry, marker_batch=held)


class EntryPositions(SimpleNamespace):
    def __getitem__(self, number):
        return self.first


@pytest.fixture
def fetcher():
    acked = []
    return SimpleNamespace(ack=acked.append, acked=acked)


def add(acks, name, first, last, part=0.1, read_to=None):
    acks.add(name, EntryPositions(first=at(first, 1), last=at(last, 1)), part, read_to or at(last))


def test_tracker_acks_only_wholly_committed_batches(fetcher):
    acks = AckTracker(at(0))
    add(acks, "one", 10, 20)
    add(acks, "two", 21, 40)
    acks.committed = at(30)
    acks.release(fetcher)
    assert fetcher.acked == ["one"]


def test_tracker_keeps_the_newest_batch_for_the_next_session(fetcher):
    acks = AckTracker(at(0))
    add(acks, "one", 10, 20)
    acks.committed = at(30, held=True)
    acks.release(fetcher)
    assert fetcher.acked == []
    add(acks, "two", 25, 40)
    acks.release(fetcher)
    assert fetcher.acked == ["one"]


def test_tracker_keeps_no_batch_before_the_first_ack_of_a_new_server():
    acks, start = AckTracker(at(0)), at(0)
    acks.begin_session(SimpleNamespace(server_is_new=True), start)
    add(acks, "one", 10, 20, read_to=start)
    assert not acks.keeps_marker
    add(acks, "two", 21, 40, read_to=at(20))
    assert acks.keeps_marker
    add(acks, "huge", 41, 60, part=0.5, read_to=at(40))
    assert not acks.keeps_marker


@pytest.mark.parametrize(
    ("length", "waited_s", "is_lost"), [(2048, 1.0, False), (2048, 3.0, True), (7, 3.0, False), (7, 11.0, True)]
)
def test_end_is_lost_sooner_after_a_full_buffer(monkeypatch, length, waited_s, is_lost):
    monkeypatch.setattr("cdc.sources.canal.lost_end.time.monotonic", lambda: waited_s)
    transaction = OpenTransaction(changes=["rows"], length=length)
    assert has_lost_end(transaction) is is_lost
    transaction.xid = "xa"
    assert not has_lost_end(transaction)
