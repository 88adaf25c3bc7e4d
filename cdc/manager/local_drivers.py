"""The drivers of this host: each job that the host runs has a supervisor, as after ``cdc start``.

Supervisors and drivers do not end with ``cdc serve``, so it may be killed and upgraded. The next one finds them again
by the process ids in the record of the job.
"""

from __future__ import annotations

import http.client
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from cdc.config.models import load_config
from cdc.errors import CdcError, CheckpointError, LeaseLost
from cdc.job.compatibility import check_identity, check_name
from cdc.job.registry import has_supervisor, is_here, set_offline_state, stopped_by_user
from cdc.job.supervisor import driver_command, launch, supervisor_command
from cdc.manager.fork_server import ForkedSupervisor, ForkServer
from cdc.paths import state_folder
from cdc.retry import Backoff
from cdc.state.base import JobRecord, JobState
from cdc.state.deployments import Deployment
from cdc.state.events import EventKind, JobEvent
from cdc.state.job_directory import JobDirectory
from cdc.state.processes import is_driver_alive
from cdc.state.sql import SqlStore
from spark.settings import available_cores

SILENT_S = 15.0  # a busy machine delays an answer by seconds; the driver is killed after this time
LIVE_S = 2.0  # time for an answer
STOP_S = 10.0  # for a driver that has a request to stop
STARTING_S = 10.0  # after this time a driver waits for something, such as its source, and the next one may start
# between two starts of a job that does not start, for example because its source is down
FIRST_RETRY_S, LONGEST_RETRY_S = 5.0, 60.0
SPEC_FILE = "job.yaml"  # in the folder of the job
ADOPT = "adopt"  # verb of a request: the next start continues from the newest commit in the sink
START_FAILED = "start_failed"  # detail of an event: the generation whose start failed, for the command that waits

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Local:
    """What this process knows of a job of its host."""

    # None: it was started by an earlier process
    supervisor: subprocess.Popen[bytes] | ForkedSupervisor | None = None
    record: JobRecord | None = None
    refused: int = -1  # generation of a specification that is not valid for the running job
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_RETRY_S, LONGEST_RETRY_S, spread=0.0))
    started_at: float = 0.0  # monotonic time of the last start
    not_before: float = 0.0  # of the next start
    generation: int = -1  # of the last start
    is_ending: bool = False  # SIGTERM was sent
    cancelled_at: float | None = None  # monotonic time at which the stop of a user was seen


class LocalDrivers:
    """Starts and ends the supervisors of this host. Calls: one thread, but for ``watch``."""

    def __init__(
        self,
        store: SqlStore,
        *,
        forks: ForkServer | None = None,
        debug: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``forks``: starts supervisors and drivers fast. Another caller starts it."""
        self._store = store
        self._forks = forks
        self._starts_most = available_cores()
        self.is_waiting = False  # a job waits for the fork server or for the start of others
        self.waiting: set[str] = set()  # the jobs that wait for the start of others
        self._debug = debug
        self._clock = clock
        self._jobs: dict[str, _Local] = {}
        self._has_looked = False

    @property
    def may_run(self) -> bool:
        """Whether a driver of this host may be alive: before the first look at the jobs it is not known."""
        return not self._has_looked or any(map(is_driver_alive, self.records.values()))

    @property
    def records(self) -> Mapping[str, JobRecord]:
        """The newest known records of the jobs of this host."""
        return {name: local.record for name, local in list(self._jobs.items()) if local.record is not None}

    def ensure(self, job: Deployment) -> None:
        """Start the job if it does not run. Restart it if its specification has changed."""
        local = self._jobs.setdefault(job.job, _Local())
        local.record, local.cancelled_at = job.record, None
        if self.is_running(job):
            self._follow_spec(job, local)
            return
        if local.supervisor is not None:
            self._report(job, local)
        if local.generation != job.generation:  # a user has changed the job: try at once
            local.backoff.reset()
            local.not_before = 0.0
        is_forking = self._forks is not None and self._forks.is_starting
        if is_forking or self._is_full():
            if self._clock() >= local.not_before:
                self.is_waiting = True
                if not is_forking:
                    self.waiting.add(job.job)
            return
        adoption = self._take_adoption(job.job)
        if adoption is not None or self._clock() >= local.not_before:
            self._launch(job, local, adoption)

    def _is_full(self) -> bool:
        """Return whether as many drivers are starting as this host has cores.

        A start takes seconds of a core. A host that takes over many jobs would do all of them slowly at once, and
        lose leases meanwhile.
        """
        return sum(map(self._is_starting, self._jobs.values())) >= self._starts_most

    def _is_starting(self, local: _Local) -> bool:
        supervisor, record = local.supervisor, local.record
        if supervisor is None or self._clock() > local.started_at + STARTING_S or supervisor.poll() is not None:
            return False
        return record is None or record.supervisor_pid != supervisor.pid or record.state is JobState.PENDING

    def begin_tick(self) -> None:
        """Forget which jobs wait. The calls of ``ensure`` find it out again."""
        self.is_waiting = False
        self.waiting.clear()

    def started_at(self, job: str) -> float:
        """Return the monotonic time of the last start; 0.0 if this process has not started it."""
        local = self._jobs.get(job)
        return local.started_at if local is not None else 0.0

    def is_running(self, job: Deployment) -> bool:
        """Return whether a supervisor or a driver of the job is alive on this host."""
        local = self._jobs.get(job.job)
        if local is not None and local.supervisor is not None and local.supervisor.poll() is None:
            return True
        is_local = is_here(self._store, job.record)
        return is_local and (has_supervisor(self._store, job.record) or is_driver_alive(job.record))

    def end(self, job: Deployment) -> bool:
        """Ask supervisor and driver to end; the driver keeps its position. Return whether both have ended."""
        if not self.is_running(job):
            self._jobs.pop(job.job, None)
            return True
        local = self._jobs.setdefault(job.job, _Local())
        if local.is_ending:
            return False  # a second signal would end the driver at once, without its commit
        local.is_ending = True
        if local.supervisor is not None and local.supervisor.poll() is None:
            local.supervisor.terminate()
        elif has_supervisor(self._store, job.record):
            _send(job.record.supervisor_pid, signal.SIGTERM)
        else:
            _send(job.record.driver_pid, signal.SIGTERM)
        return False

    def cancel(self, job: Deployment) -> None:
        """Let a job end that its user has stopped; when no run of it is alive, save that it is CANCELLED.

        Its driver gets the request of the user and ends by itself. One that does not, for example because the request
        was lost with an earlier driver, gets SIGTERM.
        """
        local = self._jobs.setdefault(job.job, _Local())
        if local.cancelled_at is None:
            local.cancelled_at = self._clock()
        if self.is_running(job):
            if self._clock() - local.cancelled_at > STOP_S:
                self.end(job)
            return
        with suppress(LeaseLost, CheckpointError):  # a later call repeats it
            set_offline_state(self._store, job.record, JobState.CANCELLED, *stopped_by_user(job.job))

    def keep_only(self, names: set[str]) -> None:
        """End the supervisors of jobs that this host does not run any more. Their drivers have lost their lease."""
        self._has_looked = True
        for name in self._jobs.keys() - names:
            local = self._jobs[name]
            if local.supervisor is None or local.supervisor.poll() is not None:
                del self._jobs[name]
            elif not local.is_ending:
                local.is_ending = True
                local.supervisor.terminate()

    def _take_adoption(self, job: str) -> JobEvent | None:
        requests = [one for one in self._store.events.open_requests(job) if one.detail.get("verb") == ADOPT]
        taken = [one for one in requests if self._store.events.take(one.id, self._store.host.name)]
        return taken[-1] if taken else None

    def _launch(self, job: Deployment, local: _Local, adoption: JobEvent | None) -> None:
        folder = JobDirectory(state_folder(), job.job)
        local.started_at = self._clock()
        try:
            file = _save_spec(folder, job.spec or "")
            options = ["--debug"] if self._debug else []
            once = ["--adopt"] if adoption is not None else []
            after = self._store.events.newest(job.job, limit=1)
            local.supervisor = self._start(folder, driver_command(job.job, file, options), once)
            if adoption is not None:
                self._store.events.answer(adoption.id, {"ok": True, "after": after[0].id})
        except (CdcError, OSError) as error:
            local.not_before = local.started_at + next(local.backoff)
            _log.error("The job cannot be started: %s", error, extra={"job": job.job})
            return
        local.generation, local.is_ending = job.generation, False
        _log.info("The job starts.", extra={"job": job.job, "supervisor": local.supervisor.pid})

    def _start(
        self, folder: JobDirectory, command: Sequence[str], once: Sequence[str]
    ) -> subprocess.Popen[bytes] | ForkedSupervisor:
        """Start a supervisor. Raises: CheckpointError, OSError."""
        if self._forks is None or not self._forks.is_ready:
            if self._forks is not None:
                self._forks.revive()
            return launch(folder, command, once, debug=self._debug)
        folder.set_failure(None)
        folder.open_log().close()
        return self._forks.launch(supervisor_command(folder, command, once, debug=self._debug), folder.log)

    def _follow_spec(self, job: Deployment, local: _Local) -> None:
        folder = JobDirectory(state_folder(), job.job)
        file = folder.path / SPEC_FILE
        if job.generation in (local.generation, local.refused):
            return
        with suppress(OSError):
            # also after a restart of this process; bytes, because reading text changes the ends of lines
            if file.read_bytes() == (job.spec or "").encode():
                local.generation = job.generation
                return
        try:
            new = _save_spec(folder, job.spec or "", name=f"{SPEC_FILE}.new")
            config = load_config(new)
            check_name(job.job, config)
            check_identity(job.record, config, accept_server=False)
        except (CdcError, OSError) as error:  # the running job continues with its specification
            local.refused = job.generation
            self._add_failure(job.job, job.generation, f"the new specification is refused: {_short(error)}", error)
            return
        _log.info("The job restarts with its new specification.", extra={"job": job.job})
        self.end(job)

    def _report(self, job: Deployment, local: _Local) -> None:
        """Save why a supervisor has ended, for ``cdc status`` and for the command that waits for the start."""
        assert local.supervisor is not None
        code, local.supervisor = local.supervisor.returncode, None
        failure = JobDirectory(state_folder(), job.job).failure()
        if code == 128 + signal.SIGTERM:  # on request: `cdc restart`, a new specification
            return
        local.not_before = local.started_at + next(local.backoff)
        if code == 0 or failure is None or isinstance(failure.error, LeaseLost):
            return
        error = failure.error
        with suppress(LeaseLost, CheckpointError):
            if job.record.state in (JobState.PENDING, JobState.RUNNING):
                set_offline_state(self._store, job.record, JobState.PENDING, _short(error), error.hint)
        self._add_failure(job.job, local.generation, f"the job does not start: {_short(error)}", error)

    def _add_failure(self, name: str, generation: int, text: str, error: Exception) -> None:
        _log.error("%s", text, extra={"job": name})
        hint = error.hint if isinstance(error, CdcError) else ""
        code = error.exit_code if isinstance(error, CdcError) else 1
        detail = {START_FAILED: generation, "hint": hint, "exit_code": code, "message": _message(error)}
        with suppress(CheckpointError):
            self._store.events.add(name, EventKind.STATE, text, actor=self._store.host.name, detail=detail)

    def watch(self, over: threading.Event) -> None:
        """Kill drivers that are silent; their supervisors start them again. Run on its own thread until ``over``."""
        silent_since: dict[int, float] = {}  # by process id
        while not over.wait(LIVE_S):
            for name, record in self.records.items():
                pid, url = record.driver_pid, record.status_url  # saved when the endpoint answers
                if pid is None or url is None or not is_driver_alive(record) or _answers(url):
                    silent_since.pop(pid or 0, None)
                elif self._clock() - silent_since.setdefault(pid, self._clock()) > SILENT_S:
                    _log.error("The driver does not answer; it is killed.", extra={"job": name, "pid": pid})
                    _send(pid, signal.SIGKILL)
                    del silent_since[pid]


def _save_spec(folder: JobDirectory, text: str, name: str = SPEC_FILE) -> Path:
    folder.make()
    new, file = folder.path / f".{name}.{os.getpid()}", folder.path / name
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
        stream.write(text.encode())
    new.replace(file)
    return file


def _message(error: Exception) -> str:
    return error.message.rstrip() if isinstance(error, CdcError) else str(error)


def _short(error: Exception) -> str:
    return " ".join(_message(error).split())


def _send(pid: int | None, number: int) -> None:
    if pid is not None:
        with suppress(OSError):
            os.kill(pid, number)


def _answers(url: str) -> bool:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=LIVE_S)
    try:
        connection.request("GET", "/live")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True
