"""The lease of a run in a shared store: a thread renews it, and ends the run when another host has taken the job.

The fence protects the rows: a run that lost it saves nothing. The lease only says when another host may try. So a run
that cannot reach the store continues with what it has, and is PAUSED at its next save.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cdc.errors import CheckpointError, LeaseLost
from cdc.job.record import SavedRecord
from cdc.job.runner import JobRunner
from cdc.state.base import CheckpointStore

CHECK_S = 1.0  # a run that was frozen and has lost its lease ends this soon
RENEWALS = 5  # in one lease, so that some may fail

_log = logging.getLogger(__name__)


class RunSummary:
    """The values from which other hosts show and plot the job without a question to this process. Calls: one thread."""

    def __init__(self, runner: JobRunner, saved: SavedRecord) -> None:
        self._runner = runner
        self._saved = saved
        self._before: tuple[float, int, int] | None = None  # time, rows, bytes

    def __call__(self) -> Mapping[str, Any]:
        """Return state, lag_s, rows_per_s, bytes_per_s, window_bytes, last_committed_at; rows: since the first start;
        seconds: of the newest checkpoint, by part.
        """
        progress, is_running = self._runner.progress(), self._runner.is_running
        counts = [channel.counts for channel in progress.channels] if progress is not None else []
        rows, volume = sum(one.upserts + one.deletes for one in counts), sum(one.bytes for one in counts)
        rows_per_s, bytes_per_s = self._rates(rows, volume)
        return {
            "state": self._saved.now.state,
            "lag_s": progress.lag_s if progress is not None and is_running else None,
            "rows": rows,
            "rows_per_s": rows_per_s,
            "bytes_per_s": bytes_per_s,
            "window_bytes": progress.window_bytes if progress is not None and is_running else 0,
            "seconds": dict(progress.checkpoint.seconds) if progress is not None else {},
            "last_committed_at": max((one.last_committed_at or "" for one in counts), default="") or None,
        }

    def _rates(self, rows: int, volume: int) -> tuple[float | None, float | None]:
        """Return rows and bytes per second since the last call; None at the first."""
        now, before = time.monotonic(), self._before
        self._before = now, rows, volume
        if before is None or now <= before[0] or rows < before[1] or volume < before[2]:
            return None, None
        passed = now - before[0]
        return round((rows - before[1]) / passed, 1), round((volume - before[2]) / passed, 1)


class LeaseKeeper:
    """Renews the lease of the run that the store holds. Calls: ``start`` and ``close`` on one thread."""

    def __init__(
        self,
        store: CheckpointStore,
        *,
        summary: Callable[[], Mapping[str, Any]],
        lost: Callable[[LeaseLost], None],
        cut_off: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Call ``lost`` once when another run has the job, and ``cut_off`` when the lease ends without an answer.

        Both are called on the thread that renews. ``summary`` returns the values that are saved with each renewal.
        """
        self._store = store
        self._summary = summary
        self._lost = lost
        self._cut_off = cut_off
        self._now = now
        self._ends_at = 0.0  # by the clock of this process
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, acquired_at: float) -> None:
        """Begin to renew. ``acquired_at``: before ``acquire`` was sent, so the lease ends here before it ends there."""
        if not self._store.lease_s:
            return
        self._ends_at = acquired_at + self._store.lease_s
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop to renew."""
        self._over.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        every_s = self._store.lease_s / RENEWALS
        renew_at, is_cut_off = 0.0, False
        while not self._over.wait(min(CHECK_S, every_s)):
            before = self._now()
            try:
                if before >= renew_at:
                    self._store.renew(self._summary())
                    self._ends_at, renew_at = before + self._store.lease_s, before + every_s
                    is_cut_off = False
                else:
                    self._store.check_fence()
            except CheckpointError as error:
                if self._now() >= self._ends_at and not is_cut_off:
                    is_cut_off = True
                    _log.warning("the lease ended without an answer of the state store: %s", error)
                    self._cut_off()
            except LeaseLost as error:
                if self._over.is_set():  # the run has released the job
                    return
                _log.error("the run ends: %s", error)
                self._lost(error)
                return
            except Exception:  # noqa: BLE001 - logged; the thread must continue to renew
                _log.exception("the renewal of the lease failed")
