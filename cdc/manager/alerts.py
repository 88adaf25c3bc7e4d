"""Post the events of all jobs of this host to the webhook of ``serve.yaml``.

A thread compares the jobs of this host with what was posted, which is in the store too: after a restart or a move to
another host, an event is not posted again, but its end is. While the webhook does not answer, nothing accumulates: the
newest state of each job is posted when it answers again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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
        # of each job: what the store had, and what was posted and could not be saved
        self._unsaved: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
        self._can_save = True  # since the last look began
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
        own = [job for job in self._store.deployments.all() if self._is_own(job)]
        self._unsaved = {job.job: self._unsaved[job.job] for job in own if job.job in self._unsaved}
        self._can_save = True
        return all(self._post_changes(job) for job in own)

    def _post_changes(self, job: Deployment) -> bool:
        if self._compare(job)[0]:
            # the messages about other jobs may have needed minutes, in which this job can have moved
            found = self._store.deployments.get(job.job)
            if found is None or not self._is_own(found):
                return True
            job = found
        messages, posted = self._compare(job)
        if not all(post(self._alerts, message, self._over) for message in messages):
            return False
        # saved afterwards: a process that ends in between posts twice, but never omits a message
        if posted != job.alerts:
            self._save(job, posted)
        else:
            self._unsaved.pop(job.job, None)  # what was not saved is over
        return True

    def _compare(self, job: Deployment) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the messages about what has changed, and what is posted with them."""
        last = job.alerts
        if job.job in self._unsaved and self._unsaved[job.job][0] == last:
            last = self._unsaved[job.job][1]
        host, before, paused = self._store.host.name, last.get("host"), last.get("paused")
        record, lag_s = replace(job.record, host=host), _lag_of(self._sampler.status(job.job))
        watch = AlertWatch(ResumeKind(paused) if paused else None, last.get("lags", False))
        messages = [
            message_of(event, record, lag_s, is_resolved=is_resolved)
            for event, is_resolved in watch.changes(self._alerts, record, lag_s)
        ]
        if before not in (None, host) and AlertEvent.MOVED in self._alerts.events:
            messages.insert(0, message_of(AlertEvent.MOVED, record, lag_s, moved_from=before))
        return messages, {"paused": watch.paused, "lags": watch.lags, "host": host}

    def _save(self, job: Deployment, posted: Mapping[str, Any]) -> None:
        """Save what was posted, at a later look if the store cannot be written."""
        self._unsaved[job.job] = job.alerts, posted
        if not self._can_save:
            return  # each attempt may last for seconds
        try:
            self._store.deployments.save_alerts(job.job, posted, job.alerts)
            del self._unsaved[job.job]
        except CheckpointError:  # `cdc serve` logs it
            self._can_save = False

    def _is_own(self, job: Deployment) -> bool:
        return (job.host or job.holder or job.record.host) == self._store.host.name


def _lag_of(status: JobStatus | None) -> float | None:
    return status.lag_seconds if status is not None and status.state is JobState.RUNNING else None
