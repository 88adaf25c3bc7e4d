"""The time limits of a check of a cluster: for one answer, and for all answers together."""

from __future__ import annotations

import time

ANSWER_S = 15.0  # a query of the catalog takes far less, even on a busy cluster
TOTAL_S = 300.0  # a check sends some queries for each of thousands of tables


class TimeLimit:
    """The time limit for the answers of one cluster. It starts with the first query.

    Calls: any thread. Picklable.
    """

    def __init__(self, answer_s: float = ANSWER_S, total_s: float = TOTAL_S) -> None:
        self.answer_s, self._total_s = answer_s, total_s
        self._until: float | None = None

    @property
    def until(self) -> float:
        """Return the time (``time.monotonic``) at which the limit ends."""
        if self._until is None:
            self._until = time.monotonic() + self._total_s
        return self._until

    def seconds(self, requested_s: float) -> float:
        """Return how long the next answer may take: ``requested_s`` or less. Raises: TimeoutError - no time is left."""
        left_s = self.until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("a check waits no longer for this cluster")
        return min(requested_s, self.answer_s, left_s)
