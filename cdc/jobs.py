"""Jobs seen from outside: what the state file says of them, what their drivers answer, what those are asked to do."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cdc.checkpoint import JobRecord, JobState
from cdc.checkpoint_sqlite import SqliteStore, state_folder
from cdc.errors import CdcError, ConfigError, SurroundingsError, with_job
from cdc.folder import JobFolder
from cdc.names import parsed_table
from cdc.status import (
    CheckpointStatus,
    JobStatus,
    LeftOutStatus,
    Resume,
    SinkStatus,
    SourceStatus,
    position_status,
    saved_channels,
    split_transactions,
)

ANSWER_S = 5.0  # a driver answers within milliseconds, unless the machine swaps


@contextmanager
def opened_store() -> Iterator[SqliteStore]:
    """The state file of this user. Raises: CheckpointError."""
    store = SqliteStore(state_folder())
    try:
        yield store
    finally:
        store.close()


def known(store: SqliteStore, name: str) -> JobRecord:
    """The record of a job. Raises: ConfigError - there is no such job."""
    record = store.job(name)
    if record is None:
        names = ", ".join(record.name for record in store.jobs())
        raise ConfigError(
            f"There is no job {name}.",
            mend=f"Known jobs: {names}." if names else "Start one with `cdc start JOB.yaml`.",
            state=store.path,
        )
    return record


class Driver:
    """The status endpoint of a job's driver, if one answers."""

    def __init__(self, record: JobRecord) -> None:
        self._record = record
        self._token = JobFolder(state_folder(), record.name).known_token()

    def status(self) -> JobStatus | None:
        """What it answers; None if nobody does, or another job at the same address."""
        try:
            code, body = self._ask("GET", "/status")
            status = JobStatus.from_json(body) if code == 200 else None
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            return None
        return status if status is not None and status.job == self._record.name else None

    def pause(self) -> None:
        """Ask it to pause. Raises: CdcError - it refused."""
        self._request("/pause")

    def resume(self, resume: Resume) -> None:
        """Ask it to go on. Raises: CdcError - it refused."""
        self._request("/resume", asdict(resume))

    def snapshot(self, table: str, where: str | None) -> None:
        """Ask it to load a table again. Raises: CdcError - it refused."""
        self._request("/snapshot", {"table": table, "where": where})

    def stop(self) -> None:
        """Ask it to cancel the job. Raises: CdcError - it refused."""
        self._request("/stop")

    def _request(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        try:
            code, answer = self._ask("POST", path, body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise SurroundingsError(
                "The driver does not answer.",
                mend=f"See `cdc logs {self._record.name}`.",
                url=self._record.status_url,
            ) from error
        if code == 409:
            refusal = CdcError(str(answer.get("error")), mend=with_job(str(answer.get("mend", "")), self._record.name))
            refusal.exit_code = int(answer.get("exit_code", CdcError.exit_code))
            raise refusal
        if code == 401:
            raise SurroundingsError(
                "The driver does not accept our token.",
                mend="Run the command as the user that started the job, with the same CDC_HOME.",
                url=self._record.status_url,
            )
        if code != 202:
            raise CdcError(f"The driver answered {code}: {answer.get('error')}.", mend="See the job's log.")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        address = urlsplit(self._record.status_url or "")
        if address.hostname is None:
            raise ConnectionRefusedError("no driver has ever listened")
        if not driver_lives(self._record):
            raise ConnectionRefusedError("its port may be anybody's now, and the token is for the driver alone")
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=ANSWER_S)
        try:
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = connection.getresponse()
            return answer.status, dict(json.loads(answer.read()))
        finally:
            connection.close()


def status_of(store: SqliteStore, record: JobRecord) -> JobStatus:
    """What the driver says; without one, what the state file holds."""
    return Driver(record).status() or offline_status(store, record)


def offline_status(store: SqliteStore, record: JobRecord) -> JobStatus:
    """The status of a job whose driver does not answer, of state file and job file."""
    state, reason, mend = record.state.value, record.reason, record.mend
    if record.state in (JobState.RUNNING, JobState.PENDING) or (
        record.state is JobState.PAUSED and record.resume == "automatic"
    ):
        reason, mend = _without_driver(record)
        state = JobState.PENDING.value
    checkpoint = store.last_committed(record.name)
    source, sink, targets = _from_job_file(Path(record.job_file))
    return JobStatus(
        job=record.name,
        state=state,
        reason=reason,
        mend=mend,
        resume=record.resume if state == JobState.PAUSED.value else None,
        started_at=record.started_at,
        source=source,
        sink=sink,
        position=position_status(checkpoint.last) if checkpoint is not None and checkpoint.last is not None else None,
        split_transactions=split_transactions(checkpoint.last) if checkpoint is not None else 0,
        checkpoint=CheckpointStatus.of(checkpoint) if checkpoint is not None else None,
        channels=saved_channels(checkpoint, state, targets),
        left_out=LeftOutStatus.of(checkpoint.left_out, record.name) if checkpoint is not None else (),
    )


def driver_lives(record: JobRecord) -> bool:
    """Whether the process of that id drives this job; ids are given again after a while."""
    return _is(record.driver_pid, lambda words, folder: _drives(words, folder, record))


def supervisor_lives(record: JobRecord) -> bool:
    """Whether the process of that id supervises this job."""
    return _is(record.supervisor_pid, lambda words, _: ("cdc.supervisor", record.name) in pairwise(words))


def _drives(words: Sequence[str], folder: Path, record: JobRecord) -> bool:
    """Whether it is ``cdc start JOB.yaml --foreground``, by whatever name ``cdc`` goes there."""
    files = (folder / Path(word).expanduser() for word in words)
    return {"start", "--foreground"} <= set(words) and Path(record.job_file) in files


def _is(pid: int | None, fits: Callable[[Sequence[str], Path], bool]) -> bool:
    """Whether there is such a process, and its arguments and working folder are the wanted ones."""
    if pid is None:
        return False
    if not Path("/proc/self").exists():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, 0)
            return True
        return False
    process = Path(f"/proc/{pid}")
    try:  # what this user may not read is not this user's job
        return fits(os.fsdecode((process / "cmdline").read_bytes()).split("\0"), (process / "cwd").readlink())
    except (OSError, RuntimeError):  # no such process; a ~ of nobody
        return False


def _without_driver(record: JobRecord) -> tuple[str | None, str | None]:
    if driver_lives(record):
        return f"its driver (process {record.driver_pid}) does not answer", f"See `cdc logs {record.name}`."
    if supervisor_lives(record):
        return "its driver died; the supervisor starts it again", f"See `cdc logs {record.name}`."
    if record.state is JobState.PENDING:
        return record.reason, record.mend or f"Start it with `cdc start {record.job_file}`."
    failure = JobFolder(state_folder(), record.name).failure()
    if failure is not None and failure.error == ConfigError.__name__:  # to start that file again may run another job
        return " ".join(failure.message.split()), failure.mend
    return "died", f"Start it again with `cdc start {record.job_file}`; `cdc logs {record.name}` says more."


def _from_job_file(file: Path) -> tuple[SourceStatus, SinkStatus, dict[str, str]]:
    """Source, sink and targets as the file names them; it may be gone, and its secrets need not be set."""
    from cdc.jobfile import Node, read_job_file

    root: Node | None = None
    with suppress(ConfigError):
        root, _ = read_job_file(file)

    def text(section: str, *keys: str) -> str | None:
        node = root and root.get(section)
        found = [node.get(key) for key in keys] if node else []
        plain = [one.plain() for one in found if one is not None]
        return (
            ", ".join(map(str, plain[0])) if plain and isinstance(plain[0], list) else str(plain[0]) if plain else None
        )

    kind = text("source", "type") or "unknown"
    server = text("source", "host", "servers", "zookeeper", "path")
    if server is not None and kind == "binlog":
        server = f"{server}:{text('source', 'port') or 3306}"
    source = SourceStatus(kind, server, text("source", "destination"))
    sink = SinkStatus(text("sink", "type") or "unknown", text("sink", "path", "fe") or "unknown")
    pairs = [(one.get("source"), one.get("target")) for one in (root.items("channels") if root else ())]
    names = ((parsed_table(a.value), parsed_table(b.value)) for a, b in pairs if a is not None and b is not None)
    return source, sink, {str(a): b.plain for a, b in names if a is not None and b is not None}


def mark(store: SqliteStore, record: JobRecord, state: JobState, reason: str, mend: str) -> None:
    """Change the state of a job that has no driver. Raises: LeaseLost - it has one after all."""
    held = store.acquire(record.name, record.job_file)
    try:
        resume = "manual" if state is JobState.PAUSED else None
        store.save_job(
            replace(held, state=state, reason=reason, mend=mend, resume=resume, driver_pid=None, supervisor_pid=None)
        )
    finally:
        store.release()
