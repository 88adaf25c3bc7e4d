"""Requests between hosts through the store: the command line on one host, the driver of the job on another one.

A request is an event of the job. Its driver takes it within about a second, carries it out and saves the result.
"""

from __future__ import annotations

import getpass
import logging
import os
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cdc.api.log_page import LogPage
from cdc.api.models import REQUESTS, Controls, JobStatus, PauseJob, RequestBody, StopJob, request_to_json
from cdc.errors import CdcError, CheckpointError, PrerequisiteError, error_from_json, error_to_json, with_job
from cdc.logging_setup import masked
from cdc.state.base import JobRecord
from cdc.state.deployments import DesiredState
from cdc.state.events import JobEvent
from cdc.state.hosts import HostIdentity
from cdc.state.job_directory import JobDirectory
from cdc.state.sql import SqlStore

POLL_S = 1.0  # of the driver
ANSWER_POLL_S = 0.2
STATUS_S, REQUEST_S = 6.0, 60.0  # the checks of a request may wait for a server
LOG_BYTES_MOST = 1 << 20  # of one answer

FORGOTTEN_S = 2 * REQUEST_S  # the request has expired, and its sender does not wait any more

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Result:
    body: Mapping[str, Any]
    since: float  # monotonic time


class RemoteCalls:
    """Answers the requests of other hosts, in the driver. Calls: ``start`` and ``close`` on one thread."""

    def __init__(self, store: SqlStore, job: str, controls: Controls, folder: JobDirectory) -> None:
        self._store = store
        self._job = job
        self._controls = controls
        self._folder = folder
        # the random part: a later process can have the same id, and must not carry out what this one has taken
        self._name = f"{store.host.name}:{os.getpid()}:{secrets.token_hex(4)}"
        self._results: dict[int, _Result] = {}  # of requests that were carried out and are not answered yet
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to answer."""
        self._thread = threading.Thread(target=self._run, name="remote calls", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop to answer."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(POLL_S)

    def _run(self) -> None:
        while not self._over.wait(POLL_S):
            with suppress(CheckpointError):  # the store cannot be reached: requests and answers wait
                self._answer_all()

    def _answer_all(self) -> None:
        """Carry out each open request once, and answer it. Raises: CheckpointError."""
        for number in tuple(self._results):
            self._answer(number)
        events = self._store.events
        for event in events.open_requests(self._job, self._name):
            if event.id not in self._results and events.take(event.id, self._name):
                self._results[event.id] = _Result(self._carry_out(event), time.monotonic())
                self._answer(event.id)

    def _answer(self, number: int) -> None:
        """Save the result of a request. One that cannot be saved is repeated, and must not delay other requests."""
        result = self._results[number]
        try:
            self._store.events.answer(number, result.body)
        except CheckpointError as error:
            if result.body["ok"] and len(result.body) > 1:  # of a question, which may be too large for the store
                result.body = {"ok": False, "error": error_to_json(error, masked)}
            if time.monotonic() - result.since < FORGOTTEN_S:
                return
        del self._results[number]

    def _carry_out(self, event: JobEvent) -> Mapping[str, Any]:
        try:
            return {"ok": True, **self._result(str(event.detail.get("verb")), event.detail.get("body") or {})}
        except CdcError as error:
            return {"ok": False, "error": error_to_json(error, masked)}
        except Exception as error:  # noqa: BLE001 - logged, and returned to the command
            _log.exception("a request of another host failed")
            return {"ok": False, "error": error_to_json(error, masked)}

    def _result(self, verb: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if verb == "status":
            return {"status": self._controls.status().to_json()}
        if verb == "logs":
            return read_log(self._folder, body, self._store.host)
        kind = REQUESTS.get(verb)
        if kind is None:
            raise CdcError(f"The driver does not know the request {verb}.", hint="Use one version of cdc on all hosts.")
        self._controls.request(kind(**body))
        return {}


def desired_request(store: SqlStore, job: str) -> RequestBody | None:
    """Return the request that gives a job the state that a user of the REST API wants; None if it is to run.

    The API saves this state before it sends its request. A driver keeps the request in memory, so one that dies before
    it has saved its effect loses it. Raises: CheckpointError.
    """
    found = store.deployments.get(job)
    desired = found.desired if found is not None else None
    if desired is DesiredState.PAUSED:
        return PauseJob()
    return StopJob() if desired is DesiredState.CANCELLED else None


class RemoteDriver:
    """The driver of a job on another host, as ``cdc.api.client.Driver`` is one on this host."""

    def __init__(self, store: SqlStore, record: JobRecord) -> None:
        self._store = store
        self._record = record

    def is_alive(self) -> bool:
        """Return whether a run of the job has a lease that has not expired."""
        found = self._store.deployments.get(self._record.name)
        return found is not None and found.is_held

    def status(self) -> JobStatus | None:
        """Return the status of the job; None if no driver replies."""
        if not self.is_alive():
            return None
        try:
            return JobStatus.from_json(self._call("status", {}, STATUS_S, keep=False)["status"])
        except (PrerequisiteError, CheckpointError, ValueError, KeyError):
            return None

    def request(self, requested: RequestBody) -> None:
        """Send a request. Raises: CdcError - the driver refused it; PrerequisiteError - it does not reply."""
        verb = next(path for path, kind in REQUESTS.items() if isinstance(requested, kind))
        self._call(verb, request_to_json(requested), REQUEST_S, keep=True)

    def log(self, *, lines: int = 0, offset: int | None = None) -> LogPage:
        """Return the last ``lines`` of the log, or those after ``offset``.

        Raises: CdcError - there is no log; PrerequisiteError - the driver does not reply.
        """
        return LogPage.from_json(self._call("logs", {"lines": lines, "offset": offset}, STATUS_S, keep=False))

    def _call(self, verb: str, body: Mapping[str, Any], timeout_s: float, *, keep: bool) -> Mapping[str, Any]:
        """Return the answer. ``keep``: as an event of the job; a question that changes nothing is deleted."""
        events, name = self._store.events, self._record.name
        number = events.request(name, verb, body, actor=f"{_user()}@{self._store.host.name}", valid_s=timeout_s)
        try:
            answer = self._wait(number, timeout_s)
        finally:
            if not keep:
                with suppress(CheckpointError):
                    events.delete(number)
        if not answer.get("ok"):
            refusal = error_from_json(answer["error"])
            refusal.hint = with_job(refusal.hint, name)
            raise refusal
        return answer

    def _wait(self, number: int, timeout_s: float) -> Mapping[str, Any]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            event = self._store.events.get(number)
            if event is not None and event.result is not None:
                return event.result
            time.sleep(ANSWER_POLL_S)
        is_taken = not self._store.events.withdraw(number)
        raise PrerequisiteError(
            f"The driver on host {self._record.host} does not reply.",
            hint=f"See `cdc status {self._record.name}`."
            + (" It has received the request, so do not repeat it at once." if is_taken else " Nothing was changed."),
            host=self._record.host,
        )


def read_log(folder: JobDirectory, body: Mapping[str, Any], host: HostIdentity) -> dict[str, Any]:
    """Return the last ``lines`` of the log of a job, or the lines after ``offset``, and the offset after them.

    An answer has at most ``LOG_BYTES_MOST`` of lines, because a store refuses large values.
    ``host``: this host. The answer names it, because an offset is valid in its log only.
    Raises: CdcError - there is no log file.
    """
    from cdc.logging_setup import last_lines

    if not folder.log.is_file():
        raise CdcError(
            f"The job {folder.job} has no log file on its host.",
            hint="It was started with --foreground: read the log of the terminal or service that started it.",
        )
    found = {"host": host.name, "log_id": host.home}
    offset, size = body.get("offset"), folder.log.stat().st_size
    if offset is None:
        # up to `size`: a line that is written now is the first one after the offset
        lines = last_lines(folder.log, min(int(body.get("lines") or 0), 5000), size)
        return {"lines": _newest(lines), "offset": size, **found}
    with folder.log.open("rb") as file:
        file.seek(int(offset) if int(offset) <= size else 0)  # a truncated log is read from its start
        start = file.tell()
        whole, newline, _ = file.read(LOG_BYTES_MOST).rpartition(b"\n")
    text = whole.decode("utf-8", "replace")
    return {"lines": text.split("\n") if newline else [], "offset": start + len(whole) + len(newline), **found}


def _newest(lines: list[str]) -> list[str]:
    """Return the last ones of ``lines``, with at most ``LOG_BYTES_MOST``."""
    left = LOG_BYTES_MOST
    for number, line in enumerate(reversed(lines)):
        left -= len(line.encode()) + 1
        if left < 0:
            return lines[len(lines) - number :]
    return lines


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
