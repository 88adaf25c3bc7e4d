"""Tasks and snapshot steps without progress: reported in the status, then cancelled, so that the job retries them."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from cdc.errors import CdcError, SinkUnavailable

STALL_S = 900.0  # a Task takes seconds; the longest default timeout of a sink is ten minutes
_TIMES_SLOWEST = 10.0  # if Tasks take minutes, the limit is ten times the slowest one
_SHOWN_AFTER = 15.0  # the status reports the Task after a fifteenth of the limit: one of 15 minutes
_GRACE_S = 30.0  # Spark kills a Python worker 2 s after its task was cancelled
_POLL_S = 5.0

logger = logging.getLogger(__name__)


class SparkJobs(Protocol):
    """The Spark jobs of Tasks, by group. Any call may hang."""

    def progress(self, group: str) -> tuple[object, bool] | None:
        """Return a value that changes with each Spark task that ends, and whether tasks run now; None: not known."""

    def cancel(self, group: str) -> None:
        """Cancel the jobs of ``group``."""

    def kill(self) -> None:
        """Kill Spark's JVM: every call that waits for it returns with an error."""


class Watched:
    """The Tasks, or the snapshot step, of one Spark job while they are written."""

    def __init__(self, group: str, targets: Iterable[str], now: float, what: str, usual_s: float) -> None:
        self.group, self.what, self.usual_s = group, what, usual_s
        self.targets = ", ".join(sorted(set(targets)))
        self.began = now
        self.changed_at = now + usual_s
        self.seen: object = None
        self.is_active = False  # its Spark tasks run, so it does not wait for cores
        self.error: CdcError | None = None  # set before it is cancelled
        self.ended = threading.Event()


class TaskStallWatch:
    """Watches running Tasks and cancels one without progress for ``limit_s``, or ten times the slowest Task so far.

    Progress is the end of one of its Spark tasks. While none of them runs, the end of other Tasks counts too, because
    it may wait for their cores.
    """

    def __init__(
        self,
        jobs: SparkJobs,
        limit_s: float = STALL_S,
        *,
        now: Callable[[], float] = time.monotonic,
        poll_s: float = _POLL_S,
        grace_s: float = _GRACE_S,
    ) -> None:
        self._jobs, self._limit_s, self._now, self._poll_s, self._grace_s = jobs, limit_s, now, poll_s, grace_s
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._open: dict[str, Watched] = {}
        self._any_change = now()
        self._slowest_s = 0.0
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    @contextmanager
    def watching(self, targets: Iterable[str], what: str = "Task", usual_s: float = 0.0) -> Iterator[Watched]:
        """Watch the Spark jobs that the body starts in the group of the yielded value.

        ``usual_s``: expected time until its first Spark task ends. Only the time after it counts.
        """
        watched = Watched(f"cdc-task-{next(self._numbers)}", targets, self._now(), what, usual_s)
        with self._lock:
            self._open[watched.group] = watched
            if not self._threads:
                # ``read`` hangs if the JVM hangs; ``check`` must continue then
                for work in (self.read, self.check):
                    self._threads.append(threading.Thread(target=self._repeat, args=(work,), daemon=True))
                    self._threads[-1].start()
        try:
            yield watched
        finally:
            with self._lock:
                del self._open[watched.group]
                self._any_change = self._now()
                if watched.error is None and not watched.usual_s:
                    self._slowest_s = max(self._slowest_s, self._any_change - watched.began)
            watched.ended.set()

    def close(self) -> None:
        """Stop watching. A repeated call does nothing."""
        self._closed.set()

    def warning(self) -> CdcError | None:
        """Return an error about the Task with the longest time without progress; None if all make progress."""
        limit_s = self.limit_s
        idle_s, watched = max(((self._idle_s(one), one) for one in self._watched()), default=(0.0, None), key=_first)
        if watched is None or idle_s < limit_s / _SHOWN_AFTER:
            return None
        return SinkUnavailable(
            f"A {watched.what} has made no progress for {idle_s:.0f} s.",
            hint=f"Check Spark and the sink. After {limit_s:.0f} s the job cancels and retries it.",
            tables=watched.targets,
        )

    @property
    def limit_s(self) -> float:
        """Seconds without progress after which a Task is cancelled."""
        return max(self._limit_s, _TIMES_SLOWEST * self._slowest_s)

    def read(self) -> None:
        """Read the progress of each Task from Spark. May hang."""
        for watched in self._watched():
            if self._now() - watched.began < self._poll_s:
                continue  # most Tasks end within this time
            found = self._jobs.progress(watched.group)
            if found is None:
                continue
            seen, watched.is_active = found
            if seen != watched.seen:
                watched.seen, self._any_change = seen, self._now()
                watched.changed_at = max(watched.changed_at, self._any_change)

    def check(self) -> None:
        """Cancel Tasks without progress. Kill the JVM if a Task cannot be cancelled."""
        for watched in self._watched():
            idle_s = self._idle_s(watched)
            if watched.error is not None or idle_s < self.limit_s:
                continue
            watched.error = SinkUnavailable(
                f"A {watched.what} made no progress for {idle_s:.0f} s and was cancelled.",
                hint="Check Spark and the sink; the job retries. `cdc logs NAME` has their messages.",
                tables=watched.targets,
            )
            logger.error("%s", watched.error)
            threading.Thread(target=self._cancel, args=(watched.group,), daemon=True).start()
            if not watched.ended.wait(self._grace_s):
                logger.error("the %s cannot be cancelled, so Spark's JVM is killed", watched.what)
                self._jobs.kill()

    def _cancel(self, group: str) -> None:
        with suppress(Exception):  # the JVM is killed then
            self._jobs.cancel(group)

    def _watched(self) -> list[Watched]:
        with self._lock:
            return list(self._open.values())

    def _idle_s(self, watched: Watched) -> float:
        since = watched.changed_at if watched.is_active else max(watched.changed_at, self._any_change)
        return self._now() - since

    def _repeat(self, work: Callable[[], None]) -> None:
        while not self._closed.wait(self._poll_s):
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the JVM is dead or dying, which a Task reports
                logger.debug("the progress of Tasks is not known: %s", error)


def _first(pair: tuple[float, Watched | None]) -> float:
    return pair[0]
