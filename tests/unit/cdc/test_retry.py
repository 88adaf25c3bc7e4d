"""Back-off: doubling delays, spread, a wait that an event ends early."""

from __future__ import annotations

from itertools import islice

import cdc.retry
from cdc.retry import Backoff


def test_backoff_delays_double_up_to_the_longest():
    backoff = Backoff(0.5, 3.0, spread=0.0)
    assert list(islice(backoff, 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert next(backoff) == 0.5


def test_backoff_spread_stays_in_bounds():
    delays = [next(Backoff(8.0, 8.0)) for _ in range(200)]
    assert 6.0 <= min(delays) < max(delays) <= 10.0


def test_backoff_reads_defaults_when_created(monkeypatch):
    monkeypatch.setattr(cdc.retry, "FIRST_DELAY_S", 0.0)
    assert next(Backoff()) == 0.0


def test_backoff_wait_returns_true_after_an_early_end():
    slept = []
    backoff = Backoff(1.0, 4.0, spread=0.0, sleep=lambda seconds: slept.append(seconds) or seconds >= 5.0)
    assert [backoff.wait(), backoff.wait(at_least_s=5.0), backoff.wait()] == [False, True, False]
    assert slept == [1.0, 5.0, 4.0]
