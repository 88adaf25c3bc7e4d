"""Tasks that make no progress: reported in the status, then cancelled, so that the job can retry them."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from cdc.errors import CdcError, SinkUnavailable

STALL_S = 900.0  # a Task takes seconds; the longest wait of a sink that it writes to is ten minutes by default
_TIMES_SLOWEST = 10.0  # a job whose Tasks take minutes gets a limit in proportion
_SHOWN_AFTER = 15.0  # part of the limit after which the status names the Task: a minute of 15
_GRACE_S = 30.0  # Spark kills a Python worker 2 s after its task was cancelled
_POLL_S = 5.0

logger = logging.getLogger(__name__)


class Jobs(Protocol):
    """The Spark jobs of Tasks, by group. Any call may hang."""

    def progress(self, group: str) -> tuple[object, bool] | None:
        """Return a value that changes with each Spark task that ends, and whether tasks run now; None: not known."""

    def cancel(self, group: str) -> None:
        """Cancel the jobs of ``group``."""

    def kill(self) -> None:
        """End whatever runs them: every call that waits for them returns with an error."""


class Watched:
    """The Tasks of one Spark job while they are written."""

    def __init__(self, group: str, targets: Iterable[str], now: float) -> None:
        self.group = group
        self.targets = ", ".join(sorted(set(targets)))
        self.began = self.changed_at = now
        self.seen: object = None
        self.is_active = False  # Spark tasks of it run: it does not wait for cores that others use
        self.error: CdcError | None = None  # set before it is cancelled
        self.ended = threading.Event()


class StallWatch:
    """Watches Tasks under way and cancels one that makes no progress for ``limit_s``, or ten times the slowest so far.

    Progress: a Spark task of its job ends. While none of them runs, Tasks that end before it count too, since it may
    wait for their cores.
    """

    def __init__(
        self,
        jobs: Jobs,
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
    def watching(self, targets: Iterable[str]) -> Iterator[Watched]:
        """Watch the jobs that the body starts in the group of the value."""
        watched = Watched(f"cdc-task-{next(self._numbers)}", targets, self._now())
        with self._lock:
            self._open[watched.group] = watched
            if not self._threads:
                # reading may hang with the JVM, and then the check has to go on
                for work in (self.read, self.check):
                    self._threads.append(threading.Thread(target=self._repeat, args=(work,), daemon=True))
                    self._threads[-1].start()
        try:
            yield watched
        finally:
            with self._lock:
                del self._open[watched.group]
                self._any_change = self._now()
                if watched.error is None:
                    self._slowest_s = max(self._slowest_s, self._any_change - watched.began)
            watched.ended.set()

    def close(self) -> None:
        """Watch no more. Harmless when repeated."""
        self._closed.set()

    def trouble(self) -> CdcError | None:
        """The Task that makes no progress for the longest time; None if all do."""
        limit_s = self.limit_s
        idle_s, watched = max(((self._idle_s(one), one) for one in self._watched()), default=(0.0, None), key=_first)
        if watched is None or idle_s < limit_s / _SHOWN_AFTER:
            return None
        return SinkUnavailable(
            f"A Task makes no progress for {idle_s:.0f} s.",
            mend=f"Check Spark and the sink. After {limit_s:.0f} s the Task is cancelled and the job retries.",
            tables=watched.targets,
        )

    @property
    def limit_s(self) -> float:
        """Seconds without progress after which a Task is cancelled."""
        return max(self._limit_s, _TIMES_SLOWEST * self._slowest_s)

    def read(self) -> None:
        """Ask Spark how far each Task is. May hang."""
        for watched in self._watched():
            if self._now() - watched.began < self._poll_s:
                continue  # most are done by then
            found = self._jobs.progress(watched.group)
            if found is None:
                continue
            seen, watched.is_active = found
            if seen != watched.seen:
                watched.seen, watched.changed_at = seen, self._now()
                self._any_change = watched.changed_at

    def check(self) -> None:
        """Cancel what makes no progress; kill what cannot be cancelled."""
        for watched in self._watched():
            idle_s = self._idle_s(watched)
            if watched.error is not None or idle_s < self.limit_s:
                continue
            watched.error = SinkUnavailable(
                f"A Task made no progress for {idle_s:.0f} s and was cancelled.",
                mend="Check Spark and the sink; the job retries. `cdc logs NAME` has their messages.",
                tables=watched.targets,
            )
            logger.error("%s", watched.error)
            threading.Thread(target=self._cancel, args=(watched.group,), daemon=True).start()
            if not watched.ended.wait(self._grace_s):
                logger.error("the Task cannot be cancelled: Spark's JVM is killed")
                self._jobs.kill()

    def _cancel(self, group: str) -> None:
        with suppress(Exception):  # it is killed then
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
