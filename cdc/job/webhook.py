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
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import urlsplit

from cdc.config.alert_models import AlertEvent, Alerts
from cdc.config.models import Config
from cdc.logging_setup import masked
from cdc.model.timing import utc_now
from cdc.state.base import JobRecord, JobState, ResumeKind

POLL_S = 1.0
TRIES = 3
TRY_S = 10.0  # of one try, from the connection to the headers of the reply
WAIT_S = 2.0  # between two tries
CLOSE_S = 2.0  # how long the end of the job waits for a message

_log = logging.getLogger(__name__)


class WatchedJob(Protocol):
    """The job, as the webhook sees it. Calls: the thread of the webhook."""

    @property
    def config(self) -> Config:
        """The job file, as it was read most recently."""

    def watched(self) -> tuple[JobRecord, float | None]:
        """Return the newest record of the job, and its lag in seconds; None: unknown, or no run continues."""


class Webhook:
    """Posts the events of ``job``. Calls: ``start`` and ``close`` on one thread. Raises: nothing."""

    def __init__(self, job: WatchedJob) -> None:
        self._job = job
        # a pause that another process has posted is over when this one runs
        self._paused = _pause_of(job.watched()[0])
        self._lags = False
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
        for event, is_resolved in self._changes(alerts, record, lag_s):
            if alerts.webhook is not None and event in alerts.events:
                self._post(alerts.webhook.get_secret_value(), _message(event, is_resolved, record, lag_s))

    def _changes(self, alerts: Alerts, record: JobRecord, lag_s: float | None) -> list[tuple[AlertEvent, bool]]:
        """Return the events that have begun or ended since the last call, and whether they have ended."""
        before, self._paused = self._paused, _pause_of(record)
        lagged = self._lags
        if lag_s is not None:
            self._lags = lag_s > alerts.lag_threshold / (2 if lagged else 1)
        # a pause that now waits for a person, and did not before, is posted again
        paused = [(AlertEvent.PAUSED, self._paused is None)] if self._paused is not before else []
        return paused + ([(AlertEvent.LAG, not self._lags)] if self._lags is not lagged else [])

    def _post(self, url: str, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        for number in range(1, TRIES + 1):
            try:
                status = _send(url, body)
                why, is_final = f"it replied {status}", 300 <= status < 500  # a redirect is not followed
                if 200 <= status < 300:
                    return
            except (OSError, http.client.HTTPException) as error:
                why, is_final = type(error).__name__, False  # its text may contain the URL
            # the URL is a secret, its host helps
            _log.warning(
                "the webhook did not accept a message: %s",
                why,
                extra={"host": urlsplit(url).hostname, "event": str(message["event"]), "attempt": number},
            )
            if is_final or self._over.wait(WAIT_S if number < TRIES else 0):
                return


def _pause_of(record: JobRecord) -> ResumeKind | None:
    return record.resume if record.state is JobState.PAUSED else None


def _message(event: AlertEvent, is_resolved: bool, record: JobRecord, lag_s: float | None) -> dict[str, Any]:
    return {
        "job": record.name,
        "event": event,
        "resolved": is_resolved,
        "state": record.state,
        "reason": record.reason and masked(record.reason),
        "hint": record.hint and masked(record.hint),
        "resume": record.resume,
        "lag_seconds": lag_s,
        "host": record.host,
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
