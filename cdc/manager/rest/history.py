"""The newest hour of each job in memory: lag, rows and bytes per second, memory window, parts of a checkpoint.

It is lost with the process. Prometheus keeps longer histories.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isnan, nan
from typing import Any

from cdc.api.client import Driver
from cdc.api.models import JobStatus
from cdc.errors import CheckpointError
from cdc.job.registry import is_here
from cdc.state.deployments import Deployment
from cdc.state.hosts import Host
from cdc.state.sql import SqlStore

EVERY_S = 2.0
KEPT = 1800  # samples: one hour
PARTS = ("buffer", "prepare", "commit", "save")  # of the newest checkpoint, in seconds
SERIES = ("lag_seconds", "rows_per_second", "bytes_per_second", "window_bytes", *PARTS)

_log = logging.getLogger(__name__)


class JobHistory:
    """Samples of one job: a ring of fixed size, 64 bytes a sample. A missing value is NaN."""

    def __init__(self) -> None:
        self._times = array("d", [nan]) * KEPT
        self._values = {name: array("d", [nan]) * KEPT for name in SERIES}
        self._next = 0
        self._totals: tuple[float, int, int] | None = None  # time, rows, bytes

    def add(self, now: float, values: Mapping[str, float | None]) -> None:
        """Add a sample. ``now``: seconds since 1970."""
        slot = self._next % KEPT
        self._times[slot] = now
        for name, ring in self._values.items():
            value = values.get(name)
            ring[slot] = nan if value is None else value
        self._next += 1

    def add_status(self, now: float, status: JobStatus) -> None:
        """Add a sample of a running driver."""
        rows = sum(one.upserts + one.deletes for one in status.channels)
        volume = sum(one.bytes for one in status.channels)
        before, self._totals = self._totals, (now, rows, volume)
        values: dict[str, float | None] = {
            "lag_seconds": status.lag_seconds, "window_bytes": status.window_bytes,
            **(status.checkpoint.seconds if status.checkpoint else {}),
        }  # fmt: skip
        if before is not None and now > before[0] and rows >= before[1] and volume >= before[2]:
            values["rows_per_second"] = (rows - before[1]) / (now - before[0])
            values["bytes_per_second"] = (volume - before[2]) / (now - before[0])
        self.add(now, values)

    def add_summary(self, now: float, summary: Mapping[str, Any]) -> None:
        """Add a sample of a driver on another host, from what it has saved (``cdc.job.lease.RunSummary``)."""
        names = {
            "lag_seconds": "lag_s", "rows_per_second": "rows_per_s", "bytes_per_second": "bytes_per_s",
            "window_bytes": "window_bytes",
        }  # fmt: skip
        values = {name: summary.get(key) for name, key in names.items()}
        self.add(now, {**values, **{part: (summary.get("seconds") or {}).get(part) for part in PARTS}})

    def newest(self, name: str) -> float | None:
        """Return the newest value of a series; None if it is missing."""
        value = self._values[name][(self._next - 1) % KEPT] if self._next else nan
        return None if isnan(value) else round(value, 3)

    def recent(self, name: str, number: int) -> list[float | None]:
        """Return the newest ``number`` values of a series, oldest first."""
        return [self._value(name, slot) for slot in self._slots(number)]

    def since(self, start: float) -> tuple[list[float], dict[str, list[float | None]]]:
        """Return the times (seconds since 1970) from ``start`` on, and the values of each series at these times."""
        slots = [slot for slot in self._slots(KEPT) if self._times[slot] >= start]
        times = [round(self._times[slot], 3) for slot in slots]
        return times, {name: [self._value(name, slot) for slot in slots] for name in SERIES}

    def _slots(self, number: int) -> list[int]:
        return [one % KEPT for one in range(max(0, self._next - min(number, KEPT)), self._next)]

    def _value(self, name: str, slot: int) -> float | None:
        value = self._values[name][slot]
        return None if isnan(value) else round(value, 3)


@dataclass(frozen=True, slots=True)
class StoreView:
    """The rows of the store, as the newest sample found them."""

    jobs: tuple[Deployment, ...] = ()
    hosts: tuple[Host, ...] = ()
    is_up: bool = True  # False: the store did not answer, and nothing is known


@dataclass(slots=True)
class _Sampled:
    history: JobHistory
    status: JobStatus | None = None  # None: no driver on this host answers


class Sampler:
    """Samples all jobs of the store every 2 s: from the drivers of this host, and from the summaries of other hosts.

    Calls: any thread.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self.view: StoreView | None = None  # None: no sample was taken yet
        self._jobs: dict[str, _Sampled] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to sample. A repeated call does nothing."""
        with self._lock:
            if self._thread is None and not self._over.is_set():
                self._thread = threading.Thread(target=self._run, name="history", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Stop to sample."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(EVERY_S)

    def history(self, job: str) -> JobHistory:
        """Return the history of a job; an empty one if it was not sampled yet."""
        found = self._jobs.get(job)
        return found.history if found is not None else JobHistory()

    def status(self, job: str) -> JobStatus | None:
        """Return the newest status of the driver of a job, if it is on this host and answers."""
        found = self._jobs.get(job)
        return found.status if found is not None else None

    def statuses(self) -> list[JobStatus]:
        """Return the newest status of every driver on this host that answers; none while the store does not answer."""
        return [one.status for one in list(self._jobs.values()) if one.status is not None]

    def is_here(self, job: Deployment) -> bool:
        """Return whether the newest run of the job is, or was, of this host."""
        return is_here(self._store, job.record)

    def sample(self) -> None:
        """Take one sample of every job. Raises: CheckpointError."""
        try:
            deployments, hosts = self._store.deployments.all(), self._store.hosts.all()
        except CheckpointError:
            self.view = StoreView(is_up=False)
            for job in list(self._jobs.values()):
                job.status = None  # it would be shown for the whole outage
            raise
        self.view = StoreView(deployments, hosts)
        for deployment in deployments:
            self._sample(self._jobs.setdefault(deployment.job, _Sampled(JobHistory())), deployment)
        for name in set(self._jobs) - {one.job for one in deployments}:
            del self._jobs[name]

    def _sample(self, job: _Sampled, deployment: Deployment) -> None:
        record, now = deployment.record, time.time()
        if is_here(self._store, record):
            job.status = Driver(record).status() if record.driver_pid is not None else None
            if job.status is not None:
                job.history.add_status(now, job.status)
        else:
            job.status = None
            if deployment.is_held:
                job.history.add_summary(now, deployment.summary)

    def _run(self) -> None:
        while True:
            try:
                with suppress(CheckpointError):  # the store cannot be reached: a gap in the history
                    self.sample()
            except Exception:  # noqa: BLE001 - logged; the thread must continue to sample
                _log.exception("a sample of the jobs failed")
            if self._over.wait(EVERY_S):
                return
