"""The window of bad rows, compared with a list of the last messages."""

import random

import pytest

from cdc.sources.kafka.bad_window import BadLimits, BadWindow
from tests.support.seeds import seed_of


@pytest.mark.parametrize("size", [1, 3, 10])
def test_small_window_is_exactly_the_last_messages(size):
    draw, window, last = random.Random(seed_of()), BadWindow(BadLimits(10**6, size)), []
    for _ in range(300):
        if bad := draw.random() < 0.4:
            window.add_bad()
        else:
            window.skip(1)
        last = [*last, bad][-size:]
        assert [sum(part[n] for part in window.parts) for n in (0, 1)] == [len(last), sum(last)]


def test_large_window_forgets_a_tenth_at_a_time_and_can_be_continued():
    window = BadWindow(BadLimits(10**6, 1000))
    for _ in range(5):
        window.add_bad()
    window.skip(995)
    assert sum(bad for _, bad in window.parts) == 5
    window = BadWindow(BadLimits(10**6, 1000), window.parts)
    window.skip(1)
    assert len(window.parts) == 10 and sum(bad for _, bad in window.parts) == 0
    window.skip(10**9)
    assert len(window.parts) == 10 and sum(messages for messages, _ in window.parts) == 901


def test_limits_name_their_key():
    window = BadWindow(BadLimits(1, 1000))
    assert not window.add_bad() and "max_rows" in window.add_bad()
    window = BadWindow(BadLimits(10**6, 2000, max_ratio=0.5))
    window.skip(499)
    reasons = [window.add_bad() for _ in range(501)]
    assert not any(reasons[:500]) and "max_ratio" in reasons[500]
    window = BadWindow(BadLimits(10**6, 5))
    reasons = [window.add_bad() for _ in range(5)]
    assert not any(reasons[:4]) and "all of the last 5 messages" in reasons[4]
