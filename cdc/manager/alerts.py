"""Post the events of all jobs of this host to the webhook of ``serve.yaml``.

A thread compares the jobs of this host in the store with what it has posted. While the webhook does not answer, nothing
accumulates: the newest state of each job is posted when it answers again.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from cdc.api.models import JobStatus
from cdc.config.alert_models import AlertEvent, HostAlerts
from cdc.errors import CheckpointError
from cdc.job.webhook import CLOSE_S, AlertWatch, message_of, post
from cdc.manager.rest.history import Sampler
from cdc.state.base import JobRecord, JobState
from cdc.state.deployments import Deployment
from cdc.state.events import EventKind
from cdc.state.sql import SqlStore

POLL_S = 2.0
AWAY_S = 30.0  # after a webhook that does not answer
_ASSIGNMENTS = 20  # of the newest events of a job: an assignment is seen within seconds

_log = logging.getLogger(__name__)


class HostWebhook:
    """Posts the events of the jobs of this host. Calls: ``start`` and ``close`` on one thread. Raises: nothing."""

    def __init__(self, store: SqlStore, alerts: HostAlerts, sampler: Sampler) -> None:
        """``sampler``: has the lag of the jobs of this host."""
        self._store = store
        self._alerts = alerts
        self._sampler = sampler
        self._watches: dict[str, AlertWatch] | None = None  # None: before the first look at the jobs
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        """Begin to watch. A pause before this call was posted by the earlier process. Without a URL, do nothing."""
        if self._alerts.webhook is not None:
            self._thread.start()

    def close(self) -> None:
        """Stop to watch. A message that is slow is lost."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        wait_s = 0.0
        while not self._over.wait(wait_s):
            wait_s = POLL_S
            try:
                wait_s = POLL_S if self._look() else AWAY_S
            except CheckpointError:
                continue  # the store cannot be reached: `cdc serve` logs it
            except Exception:  # noqa: BLE001 - logged; the thread must continue to watch
                _log.exception("the webhook failed")

    def _look(self) -> bool:
        """Post what has changed. Return False if the webhook does not answer: the rest is posted later."""
        own = {one.job: one for one in self._store.deployments.all() if self._is_own(one)}
        if self._watches is None:
            self._watches = {name: AlertWatch.of(one.record) for name, one in own.items()}
            return True
        for name in self._watches.keys() - own.keys():
            del self._watches[name]
        return all(self._post_changes(name, one, self._watches) for name, one in own.items())

    def _post_changes(self, name: str, job: Deployment, watches: dict[str, AlertWatch]) -> bool:
        status, record = self._sampler.status(name), replace(job.record, host=self._store.host.name)
        lag_s = _lag_of(status)
        # the host of before has posted a pause, but it may have died before that
        watch = replace(watches[name]) if name in watches else AlertWatch()
        messages = [
            message_of(event, record, lag_s, is_resolved=is_resolved)
            for event, is_resolved in watch.changes(self._alerts, record, lag_s)
        ]
        if name not in watches and AlertEvent.MOVED in self._alerts.events:
            messages = [*self._moved(record, lag_s), *messages]
        if not all(post(self._alerts, message, self._over) for message in messages):
            return False
        watches[name] = watch
        return True

    def _moved(self, record: JobRecord, lag_s: float | None) -> list[dict[str, object]]:
        """Return the message of a job that this host runs and another one has run before."""
        this = self._store.host.name
        for event in self._store.events.newest(record.name, limit=_ASSIGNMENTS):
            if event.kind is EventKind.ASSIGNED and event.detail.get("host") == this:
                before = event.detail.get("before")
                is_moved = before not in (None, this)
                return [message_of(AlertEvent.MOVED, record, lag_s, moved_from=str(before))] if is_moved else []
        return []

    def _is_own(self, job: Deployment) -> bool:
        return (job.host or job.holder or job.record.host) == self._store.host.name


def _lag_of(status: JobStatus | None) -> float | None:
    return status.lag_seconds if status is not None and status.state is JobState.RUNNING else None
