"""Post the events of all jobs of this host to the webhook of ``serve.yaml``.

A thread compares the jobs of this host with what was posted, which is in the store too: after a restart or a move to
another host, an event is not posted again, but its end is. While the webhook does not answer, nothing accumulates: the
newest state of each job is posted when it answers again.
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
from cdc.state.base import JobState, ResumeKind
from cdc.state.deployments import Deployment
from cdc.state.sql import SqlStore

POLL_S = 2.0
AWAY_S = 30.0  # after a webhook that does not answer

_log = logging.getLogger(__name__)


class HostWebhook:
    """Posts the events of the jobs of this host. Calls: ``start`` and ``close`` on one thread. Raises: nothing."""

    def __init__(self, store: SqlStore, alerts: HostAlerts, sampler: Sampler) -> None:
        """``sampler``: has the lag of the jobs of this host."""
        self._store = store
        self._alerts = alerts
        self._sampler = sampler
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        """Begin to watch. Without a URL, do nothing."""
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
        return all(self._post_changes(job) for job in self._store.deployments.all() if self._is_own(job))

    def _post_changes(self, job: Deployment) -> bool:
        host, before = self._store.host.name, job.alerts.get("host")
        record, lag_s = replace(job.record, host=host), _lag_of(self._sampler.status(job.job))
        paused = job.alerts.get("paused")
        watch = AlertWatch(ResumeKind(paused) if paused else None, job.alerts.get("lags", False))
        messages = [
            message_of(event, record, lag_s, is_resolved=is_resolved)
            for event, is_resolved in watch.changes(self._alerts, record, lag_s)
        ]
        if before not in (None, host) and AlertEvent.MOVED in self._alerts.events:
            messages.insert(0, message_of(AlertEvent.MOVED, record, lag_s, moved_from=before))
        if not all(post(self._alerts, message, self._over) for message in messages):
            return False
        # saved afterwards: a process that ends in between posts twice, but never omits a message
        posted = {"paused": watch.paused, "lags": watch.lags, "host": host}
        if posted != job.alerts:
            self._store.deployments.save_alerts(job.job, posted)
        return True

    def _is_own(self, job: Deployment) -> bool:
        return (job.host or job.holder or job.record.host) == self._store.host.name


def _lag_of(status: JobStatus | None) -> float | None:
    return status.lag_seconds if status is not None and status.state is JobState.RUNNING else None
