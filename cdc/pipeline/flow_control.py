"""Flow control: when a cycle closes and a Task starts, and all backpressure rules of the pipeline.

::

    The sink is overloaded                     the commit limits double, for fewer and larger commits
    A checkpoint has many loads                its next Tasks are larger, to limit the number of loads
    A commit takes longer than the interval    the next cycle stays open for the difference
    A cycle is due but may not close yet       reading stops at ``OVERFILL_FACTOR`` times ``max_bytes``
    The read-ahead window is full              large channels start their Tasks, or the cycle closes
    A run continues a job                      its first cycle closes early: the rows have waited while no run read
    A backlog ends                             its last cycle closes at once, even if it is small
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cdc.state.base import CloseReason

if TYPE_CHECKING:
    from cdc.pipeline.commit_cycle import OpenCycle
    from cdc.pipeline.dispatcher import Dispatcher
    from cdc.sources.base import ReceiverStatus

OVERFILL_FACTOR = 4  # a cycle that may not close yet reads up to this many times max_bytes
POLL_S = 0.1  # longest wait for a Batch; requests and the end of a commit are checked between waits
BUSY_POLL_S = 0.02  # the same during a commit
FIRST_CYCLE_S = 0.5  # the first cycle of a run that continues a job closes after this time
_GROWS_EVERY = 24  # the size of Tasks doubles after this many loads: sinks limit prepared, uncommitted loads
_FACTOR_MOST = 16  # largest factor: an interval of 5 s becomes 80 s
_RELAXES_AFTER_S = 120.0  # clusters compact versions and clean up transactions within one or two minutes
_LARGEST = 3  # largest number of doublings of task_bytes
_LARGEST_BYTES = 128 << 20  # it grows up to half of the default window
_SMALL = 4  # a channel is small below 1/4 of the bytes of the largest channel
_FULL = frozenset({CloseReason.MAX_ROWS, CloseReason.MAX_BYTES, CloseReason.WINDOW})
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """When a cycle closes and a Task starts; ``commit`` and ``tasks`` of the job file."""

    interval_s: float = 5.0
    min_rows: int = 10_000  # from here on the cycle closes when the source is idle
    min_bytes: int = 15 << 20
    max_bytes: int = 64 << 20
    max_rows: int = 20_000_000
    task_bytes: int = 32 << 20  # from here on a channel starts a Task at once


class FlowControl:
    """Decides when a cycle closes. All runs of a job use one object, because an overload continues across runs.

    Calls: the Consumer's thread; ``note_overload`` from any thread.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._requested = CommitLimits()
        self._factor, self._overloaded_at = 1, 0.0
        self._next_close_at = 0.0
        self._rows_have_waited = False
        self._last_was_full = False

    def begin_run(self, limits: CommitLimits) -> None:
        """Use ``limits`` from now on. The factor of an earlier overload still applies."""
        self._requested, self._next_close_at, self._rows_have_waited = limits, 0.0, False
        self._last_was_full = False

    def note_waiting_rows(self) -> None:
        """Close the next cycle early. Calls: after the recovery of a run that continues a job."""
        self._rows_have_waited = True

    @property
    def factor(self) -> int:
        """Return the factor by which overload increases the limits. 1: the sink was not overloaded recently."""
        return max(1, self._factor >> int((self._now() - self._overloaded_at) / _RELAXES_AFTER_S))

    def note_overload(self) -> None:
        """Double the limits, because the sink is overloaded. They halve after every 120 s without an overload."""
        self._factor, self._overloaded_at = min(2 * self.factor, _FACTOR_MOST), self._now()
        _log.warning("the sink is overloaded: the commit limits are %d times as large until it recovers", self._factor)

    def note_close(self, reason: CloseReason) -> None:
        """Close the next cycle as soon as the source is idle if this one was full: its rows end a backlog."""
        self._last_was_full = reason in _FULL

    def note_commit(self, merge_s: float) -> None:
        """Keep the next cycle open for the time by which the sink's commit exceeded the interval."""
        self._next_close_at = self._now() + max(0.0, merge_s - self.limits.interval_s)
        self._rows_have_waited = False

    @property
    def limits(self) -> CommitLimits:
        """Return the current limits: those of the job file times ``factor``, except ``max_rows``."""
        n, limits = self.factor, self._requested
        if n == 1:
            return limits
        return replace(
            limits,
            interval_s=n * limits.interval_s,
            min_rows=n * limits.min_rows,
            min_bytes=n * limits.min_bytes,
            max_bytes=n * limits.max_bytes,
            task_bytes=n * limits.task_bytes,
        )

    # cycles

    def close_reason(self, cycle: OpenCycle, *, idle: bool, window_full: bool) -> CloseReason | None:
        """Return why ``cycle`` should close now; None if it should continue to read."""
        limits = self.limits
        if not cycle.may_close or cycle.began is None:
            return None
        if cycle.rows >= limits.max_rows:
            return CloseReason.MAX_ROWS
        if cycle.bytes >= limits.max_bytes:
            return CloseReason.MAX_BYTES
        if window_full:
            return CloseReason.WINDOW
        if self._now() - cycle.began >= self._interval_s:
            return CloseReason.INTERVAL
        is_enough = cycle.rows >= limits.min_rows or cycle.bytes >= limits.min_bytes or self._ends_backlog
        if idle and cycle.rows and is_enough:
            return CloseReason.IDLE
        return None

    @property
    def may_close(self) -> bool:
        """Whether the extra time after a long commit is over. If the window is full, the caller ignores it."""
        return self._now() >= self._next_close_at

    def is_full(self, cycle: OpenCycle) -> bool:
        """Whether ``cycle`` has reached the limit beyond which it may not read before it closes."""
        limits = self.limits
        return cycle.may_close and (cycle.rows >= limits.max_rows or cycle.bytes >= OVERFILL_FACTOR * limits.max_bytes)

    def poll_s(self, cycle: OpenCycle, *, committing: bool) -> float:
        """Return how long to wait for a Batch: at most until the interval of ``cycle`` ends."""
        if committing:
            return BUSY_POLL_S
        if cycle.began is None:
            return POLL_S
        return min(POLL_S, max(BUSY_POLL_S, cycle.began + self._interval_s - self._now()))

    @property
    def _interval_s(self) -> float:
        interval_s = self.limits.interval_s
        return min(interval_s, FIRST_CYCLE_S) if self._rows_have_waited and self.factor == 1 else interval_s

    @property
    def _ends_backlog(self) -> bool:
        return self._last_was_full and self.factor == 1

    # Tasks

    def task_bytes(self, loads: int) -> int:
        """Return the bytes from which a channel starts a Task, for a checkpoint that has ``loads`` loads."""
        first = self.limits.task_bytes
        return max(first, min(first << min(loads // _GROWS_EVERY, _LARGEST), _LARGEST_BYTES))

    def relieve_window(self, dispatcher: Dispatcher, status: ReceiverStatus) -> bool:
        """Start Tasks if the read-ahead window is full. Return True if only an ack can free bytes of it."""
        if status.needs_ack:
            return True  # the close starts the Tasks: one Task per channel costs less than several small ones
        if not status.is_window_full:
            return False
        loading = dispatcher.cycle.loading
        if not all(one.is_released for one in loading):
            return False  # submitted Tasks free bytes as soon as they start, so do not add small ones
        # small channels keep their rows: each would add a load to the sink and free few bytes
        largest = max((channel.buffered_bytes for channel in dispatcher.channels.values()), default=0)
        dispatcher.start_tasks(largest // _SMALL)
        return all(one.is_released for one in loading)
