"""Limits for undecided XA transactions."""

from __future__ import annotations

import time

import pytest

import cdc.sources.binlog.xa_watch
from cdc.errors import SourceActionRequired
from cdc.model.position import BinlogPosition
from cdc.sources.binlog.decoder.xa import OpenXa
from cdc.sources.binlog.xa_watch import XaWatch, refuse_undecided

START = BinlogPosition("b.000001", 4, "u")


def transaction(byte_count=10):
    found = OpenXa(START, int((time.time() - 3600) * 1e6))
    found.bytes = byte_count
    return found


def test_watch_counts_time_only_since_the_transaction_was_read():
    watch = XaWatch(0.05, 100)
    watch.check([transaction()])  # prepared an hour ago, but read now
    time.sleep(0.1)
    with pytest.raises(SourceActionRequired, match="XA COMMIT"):
        watch.check([transaction()])


def test_watch_raises_for_a_transaction_larger_than_the_window():
    with pytest.raises(SourceActionRequired, match=r"memory\.window"):
        XaWatch(600.0, 5).check([transaction()])


def test_watch_warns_while_commits_are_blocked(monkeypatch):
    monkeypatch.setattr(cdc.sources.binlog.xa_watch, "HELD_S", 0.0)
    watch = XaWatch(600.0, 100)
    assert watch.warning(START) is None
    watch.check([transaction()])
    time.sleep(0.01)
    assert watch.warning(START) is not None
    watch.note_released()
    assert watch.warning(START) is None


def test_refuse_undecided_at_the_end_of_files_raises():
    refuse_undecided([])
    with pytest.raises(SourceActionRequired, match="files end"):
        refuse_undecided([transaction()])
