"""Post the events of a job to the webhook of its job file: it is PAUSED, or its lag is high, and when that is over.

A thread compares the job with what it has posted, once a second. So it needs no queue: while a webhook is slow or does
not answer, nothing accumulates, and the next message has the newest state. An event that begins and ends in between is
not posted. A webhook never changes what the job does.
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from cdc.config.alert_models import AlertEvent, HostAlerts
from cdc.config.models import Config
from cdc.logging_setup import masked
from cdc.model.timing import utc_now
from cdc.state.base import ENDED, JobRecord, JobState, ResumeKind

POLL_S = 1.0
TRIES = 3
TRY_S = 10.0  # of one try, from the connection to the headers of the reply
WAIT_S = 2.0  # between two tries
BY_USER = "paused by its user"  # ``reason`` of such a pause
CLOSE_S = 2.0  # how long the end of the job waits for a message

_log = logging.getLogger(__name__)


class WatchedJob(Protocol):
    """The job, as the webhook sees it. Calls: the thread of the webhook."""

    @property
    def config(self) -> Config:
        """The job file, as it was read most recently."""

    def watched(self) -> tuple[JobRecord, float | None]:
        """Return the newest record of the job, and its lag in seconds; None: unknown, or no run continues."""

    def save_lag_posted(self, *, is_posted: bool) -> None:
        """Save in the record whether the event ``lag`` was posted and is not over, for the next process."""


@dataclass(slots=True)
class AlertWatch:
    """What was posted about a job."""

    paused: ResumeKind | None = None
    lags: bool = False

    @classmethod
    def of(cls, record: JobRecord) -> AlertWatch:
        """Return what the process of before has posted about its job, if it had the time to post a pause."""
        return cls(_pause_of(record), record.is_lag_posted)

    def changes(self, alerts: HostAlerts, record: JobRecord, lag_s: float | None) -> list[tuple[AlertEvent, bool]]:
        """Return the events that have begun or ended since the last call, and whether they have ended."""
        events = alerts.events if alerts.webhook is not None else ()
        found, pause, lags = [], _pause_of(record), self.lags
        if AlertEvent.PAUSED in events and pause is not self.paused:
            # a pause that now waits for a person, and did not before, is posted again
            self.paused = pause
            found.append((AlertEvent.PAUSED, pause is None))
        if record.state in ENDED:
            lags = False
        elif lag_s is not None:
            lags = lag_s > alerts.lag_threshold / (2 if lags else 1)
        if AlertEvent.LAG in events and lags is not self.lags:
            self.lags = lags
            found.append((AlertEvent.LAG, not lags))
        return found


class Webhook:
    """Posts the events of ``job``. Calls: ``start`` and ``close`` on one thread. Raises: nothing."""

    def __init__(self, job: WatchedJob) -> None:
        self._job = job
        # a pause that another process has posted is over when this one runs
        self._watch = AlertWatch.of(job.watched()[0])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)

    def start(self) -> None:
        """Begin to watch the job."""
        self._thread.start()

    def close(self) -> None:
        """Stop after one more look at the job. A message that is slow is lost."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(POLL_S)
            try:
                self._look()
            except Exception:  # noqa: BLE001 - logged; nothing about a message may end the job
                _log.exception("the webhook failed")

    def _look(self) -> None:
        alerts, (record, lag_s) = self._job.config.alerts, self._job.watched()
        lagged = self._watch.lags
        for event, is_resolved in self._watch.changes(alerts, record, lag_s):
            post(alerts, message_of(event, record, lag_s, is_resolved=is_resolved), self._over)
        if self._watch.lags is not lagged:
            self._job.save_lag_posted(is_posted=self._watch.lags)


def post(alerts: HostAlerts, message: Mapping[str, Any], over: threading.Event) -> bool:
    """Post a message, in three tries until ``over``. Return False if the receiver can accept it later."""
    assert alerts.webhook is not None
    url, body = alerts.webhook.get_secret_value(), json.dumps(message).encode()
    for number in range(1, TRIES + 1):
        try:
            status = _send(url, body)
            why, is_final = f"it replied {status}", 300 <= status < 500  # a redirect is not followed
            if 200 <= status < 300:
                return True
        except (OSError, http.client.HTTPException) as error:
            why, is_final = type(error).__name__, False  # its text may contain the URL
        # the URL is a secret, its host helps
        _log.warning(
            "the webhook did not accept a message: %s",
            why,
            extra={"host": urlsplit(url).hostname, "event": str(message["event"]), "attempt": number},
        )
        if is_final:
            return True
        if over.wait(WAIT_S if number < TRIES else 0):
            break
    return False


def _pause_of(record: JobRecord) -> ResumeKind | None:
    return record.resume if record.state is JobState.PAUSED else None


def message_of(
    event: AlertEvent,
    record: JobRecord,
    lag_s: float | None,
    *,
    is_resolved: bool = False,
    moved_from: str | None = None,
) -> dict[str, Any]:
    """Return the JSON form of an event. ``moved_from``: the host that has run the job before."""
    is_paused, reason = record.state is JobState.PAUSED, record.alert_reason
    if record.is_paused_by_user:
        reason = BY_USER
    return {
        "job": record.name,
        "event": event,
        "resolved": is_resolved,
        "state": record.state,
        "reason": masked(reason) if is_paused and reason else None,
        "hint": record.hint and masked(record.hint),
        "resume": record.resume,
        "lag_seconds": lag_s,
        "host": record.host,
        "moved_from": moved_from,
        "at": utc_now(),
    }


def _send(url: str, body: bytes) -> int:
    """Post ``body``, and return the status of the reply. Raises: OSError, http.client.HTTPException."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    connection = (
        http.client.HTTPSConnection(host, port, timeout=TRY_S, context=ssl.create_default_context())
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, port, timeout=TRY_S)
    )
    # the timeout of a socket is per call: a server that sends a byte now and then would hold the thread for hours
    limit = threading.Timer(TRY_S, _cut, (connection,))
    limit.daemon = True
    limit.start()
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", target, body, {"Content-Type": "application/json", "User-Agent": "cdc"})
        return connection.getresponse().status
    finally:
        limit.cancel()
        connection.close()


def _cut(connection: http.client.HTTPConnection) -> None:
    with suppress(OSError):
        if (found := connection.sock) is not None:
            socket.socket.shutdown(
                found, socket.SHUT_RDWR
            )  # that of an SSLSocket also takes the session from its reader
