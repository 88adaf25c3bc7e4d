"""When a receiver at the end of its source has returned everything up to a position that no Batch reaches."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.model.position import BinlogPosition, CanalPosition
from cdc.sources.base import SILENCE_S, ReceiverStatus
from cdc.sources.canal.fetcher import Fetcher, Ring

END, EARLIER = BinlogPosition("b.000002", 200, "u"), BinlogPosition("b.000002", 199, "u")


@pytest.mark.parametrize(
    ("is_at_end", "read_to", "expected"), [(True, END, True), (True, EARLIER, False), (False, END, False)]
)
def test_status_with_a_position_compares_it_and_ignores_the_time(
    is_at_end: bool, read_to: BinlogPosition, expected: bool
) -> None:
    status = ReceiverStatus(is_at_end, read_to=read_to, heard_at=1e9)
    assert status.has_returned(END, asked_at=0.0) is expected


def test_status_after_a_failover_cannot_be_compared() -> None:
    status = ReceiverStatus(is_at_end=True, read_to=BinlogPosition("b.000009", 4, "another server"))
    with pytest.raises(ValueError, match="in common"):
        status.has_returned(END, asked_at=0.0)


def test_status_without_a_position_needs_an_answer_after_the_query() -> None:
    end = CanalPosition("b.000002", 200)
    assert not ReceiverStatus(is_at_end=True).has_returned(end, asked_at=100.0)
    for heard_at, expected in ((100.0, False), (100.0 + SILENCE_S, False), (100.1 + SILENCE_S, True)):
        assert ReceiverStatus(is_at_end=True, heard_at=heard_at).has_returned(end, asked_at=100.0) is expected
    assert not ReceiverStatus(is_at_end=False, heard_at=200.0).has_returned(end, asked_at=100.0)


def test_fetcher_of_canal_reports_when_the_server_had_nothing() -> None:
    client = cast(Any, SimpleNamespace(session=1, rollback=lambda: None))
    fetcher = Fetcher(client, Ring(), batch_size=100, window_bytes=1 << 20)

    def get(*_: object) -> None:
        time.sleep(0.02)

    client.get, began = get, time.monotonic()
    fetcher._step()
    heard_at = fetcher.heard_at
    assert began <= heard_at <= time.monotonic() - 0.02, "a change during the request is not in its answer"
    client.get = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        fetcher._step()
    assert fetcher.heard_at == heard_at
