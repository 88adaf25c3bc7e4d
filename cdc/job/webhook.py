"""Deliver alerts to a webhook: one POST of JSON per alert, from a thread of its own.

A receiver that is slow, fails or redirects never delays the job: the queue has a limit, each try has time limits, and
what is not delivered is logged and dropped.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from dataclasses import asdict, replace
from urllib.parse import urlsplit

from cdc.logging_setup import masked
from cdc.model.alert import Alert

TRIES = 3
CONNECT_S, READ_S = 3.0, 5.0
DELAYS_S = (1.0, 5.0)  # between two tries
QUEUE_MOST = 100  # alerts that wait; a job has a few in an hour
CLOSE_S = 2.0  # how long a process that ends waits for the last alert
MESSAGE_CHARS_MOST = 4096

_BUSY = 429  # Too Many Requests

_log = logging.getLogger(__name__)


class Webhook:
    """Sends alerts. Calls: any thread."""

    def __init__(
        self,
        *,
        connect_s: float = CONNECT_S,
        read_s: float = READ_S,
        delays_s: tuple[float, ...] = DELAYS_S,
        queue_most: int = QUEUE_MOST,
    ) -> None:
        """``delays_s``: before the second and later tries."""
        self._limits_s = (connect_s, read_s)
        self._delays_s = delays_s
        self._queue: queue.Queue[tuple[str, Alert]] = queue.Queue(queue_most)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def send(self, url: str, alert: Alert) -> None:
        """Queue ``alert`` for ``url``. Returns at once. If the queue is full, the alert is logged and dropped."""
        try:
            self._queue.put_nowait((url, alert))
        except queue.Full:
            _note_lost(url, alert, "too many alerts wait for the receiver", 0)
            return
        with self._lock:
            if self._thread is None and not self._closing.is_set():
                self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
                self._thread.start()

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Wait at most ``wait_s`` for alerts that are queued, and stop. May be repeated."""
        deadline = time.monotonic() + wait_s
        with self._queue.all_tasks_done:
            while self._queue.unfinished_tasks and (left_s := deadline - time.monotonic()) > 0:
                self._queue.all_tasks_done.wait(left_s)
        with self._lock:
            self._closing.set()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                url, alert = self._queue.get(timeout=0.2)
            except queue.Empty:
                continue
            try:
                self._deliver(url, alert)
            except Exception as error:  # noqa: BLE001 - an alert must never end the thread or the job
                _note_lost(url, alert, type(error).__name__, 1)
            finally:
                self._queue.task_done()

    def _deliver(self, url: str, alert: Alert) -> None:
        body, cause, tries = body_of(alert), "", 0
        for tries in range(1, TRIES + 1):
            if tries > 1 and self._closing.wait(self._delays_s[min(tries - 2, len(self._delays_s) - 1)]):
                break
            cause, is_final = self._post(url, body)
            if not cause:
                return
            if is_final:
                break
        _note_lost(url, alert, cause, tries)

    def _post(self, url: str, body: bytes) -> tuple[str, bool]:
        """Return why the receiver has not accepted ``body``, "" if it has, and whether another try cannot help."""
        import requests  # importing it costs 0.1 s, which a job without alerts does not need

        try:
            with requests.post(
                url,
                data=body,
                headers={"Content-Type": "application/json", "User-Agent": "cdc"},
                timeout=self._limits_s,
                allow_redirects=False,  # it could name any host
                stream=True,  # the answer is not read, whatever its size
                auth=lambda request: request,  # without it, credentials for the host in ~/.netrc would be sent
            ) as answer:
                code = answer.status_code
        except requests.RequestException as error:  # its text has the URL
            return type(error).__name__, False
        if answer.ok and not 300 <= code < 400:
            return "", True
        if 300 <= code < 400:
            return f"it answered {code}: redirects are not followed, so set the final URL", True
        return f"it answered {code}", code < 500 and code != _BUSY


def body_of(alert: Alert) -> bytes:
    """Return the JSON of ``alert``, without secrets of the job file."""
    message = masked(alert.message)[:MESSAGE_CHARS_MOST]
    hint = masked(alert.hint)[:MESSAGE_CHARS_MOST] if alert.hint is not None else None
    return json.dumps(asdict(replace(alert, message=message, hint=hint))).encode()


def _note_lost(url: str, alert: Alert, cause: str, tries: int) -> None:
    receiver = urlsplit(url).hostname  # the rest of the URL is secret
    _log.warning(
        "An alert was not delivered to the webhook.",
        extra={"alert": str(alert.event), "receiver": receiver, "cause": cause, "tries": tries},
    )
