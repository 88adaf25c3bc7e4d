"""Back-off: the delays between attempts. All code that retries uses it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

FIRST_DELAY_S = 0.5
LONGEST_DELAY_S = 30.0  # after a person has fixed the cause, the job continues within this time
SPREAD = 0.25  # jobs that failed at the same moment do not retry at the same moment


class Backoff(Iterator[float]):
    """Delays in seconds, without end: ``first_s``, doubling up to ``longest_s``, each varied by ``spread``.

    Iterate over the delays, or call ``wait`` to sleep. Calls: one thread.
    """

    def __init__(
        self,
        first_s: float | None = None,
        longest_s: float | None = None,
        *,
        spread: float = SPREAD,
        sleep: Callable[[float], object] | None = None,
    ) -> None:
        """Use ``sleep`` in ``wait``: ``time.sleep``, or ``Event.wait`` of an event that ends the wait early."""
        self._first_s = FIRST_DELAY_S if first_s is None else first_s
        self._longest_s = LONGEST_DELAY_S if longest_s is None else longest_s
        self._spread = spread
        self._sleep = sleep or time.sleep
        self._next_s = self._first_s

    def __next__(self) -> float:
        delay_s, self._next_s = self._next_s, min(2 * self._next_s, self._longest_s)
        return delay_s * random.uniform(1 - self._spread, 1 + self._spread)  # noqa: S311 - no secret

    def reset(self) -> None:
        """Begin with ``first_s`` again. Calls: after an attempt that succeeded."""
        self._next_s = self._first_s

    def wait(self, at_least_s: float = 0.0) -> bool:
        """Sleep for the next delay, at least ``at_least_s``. Return True if an event ended the wait."""
        return bool(self._sleep(max(next(self), at_least_s)))
