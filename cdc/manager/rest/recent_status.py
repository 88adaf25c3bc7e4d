"""The status of jobs that do not run on this host, read only as often as its cost allows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cdc.api.models import JobStatus
from cdc.job.registry import is_here, offline_status, status_of
from cdc.state.base import JobRecord
from cdc.state.sql import SqlStore

SAVED_S = 10.0  # a status from the store takes five queries, and the list of jobs needs it for every job
LEAST_S = 1.0
TABLES_PER_S = 100  # each answer of another host is written to the store and deleted: 400 bytes for each table


@dataclass(frozen=True, slots=True)
class _Kept:
    record: JobRecord  # a changed one has another status
    until: float
    status: JobStatus


class RecentStatus:
    """Statuses of jobs, kept for seconds. Calls: any thread. Raises: CheckpointError from every call."""

    def __init__(self, store: SqlStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._saved: dict[str, _Kept] = {}
        self._live: dict[str, _Kept] = {}

    def live(self, record: JobRecord) -> JobStatus:
        """Return the status from the driver. If no driver answers, return it from the store."""
        if is_here(self._store, record):
            return status_of(self._store, record)
        return self._get(self._live, record, status_of, lambda found: max(LEAST_S, len(found.channels) / TABLES_PER_S))

    def saved(self, record: JobRecord) -> JobStatus:
        """Return the status from the store."""
        return self._get(self._saved, record, offline_status, lambda _: SAVED_S)

    def _get(
        self,
        kept: dict[str, _Kept],
        record: JobRecord,
        read: Callable[[SqlStore, JobRecord], JobStatus],
        seconds: Callable[[JobStatus], float],
    ) -> JobStatus:
        known = kept.get(record.name)
        if known is not None and known.record == record and self._clock() < known.until:
            return known.status
        found = read(self._store, record)
        for name, one in list(kept.items()):
            if one.until <= self._clock():
                kept.pop(name, None)
        kept[record.name] = _Kept(record, self._clock() + seconds(found), found)
        return found
