"""The size of the range that executors read next."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from cdc.sources.kafka.range_planner import TEXT_FACTOR, RangePlans

MAX_BYTES = 64 << 20
ANYTHING: Any = None


@pytest.mark.parametrize(
    ("loaded", "bytes_each"),
    [
        (None, 800),  # a range that the driver has read: the size of its rows is not known
        (13_000, 130),
        (90_000, 900),  # rows can be larger than their text
        (0, 800 // TEXT_FACTOR),  # messages of other tables
    ],
)
def test_range_is_limited_by_the_size_of_its_rows(loaded: int | None, bytes_each: int) -> None:
    plans = RangePlans(ANYTHING, ANYTHING, ANYTHING, ANYTHING, Counter())
    plans.note_size(80_000, 100, loaded)
    plans.plan(MAX_BYTES, 10**9)
    assert plans.request.messages == MAX_BYTES // bytes_each
    plans.plan(MAX_BYTES, 1000)
    assert plans.request.messages == 1000


def test_range_without_messages_does_not_change_the_size() -> None:
    plans = RangePlans(ANYTHING, ANYTHING, ANYTHING, ANYTHING, Counter())
    plans.note_size(80_000, 100)
    plans.note_size(0, 0, 0)
    plans.plan(MAX_BYTES, 10**9)
    assert plans.request.messages == MAX_BYTES // 800
