"""Jobs as other processes see them: their records in the store, and the status that their drivers return."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from pathlib import Path

from cdc.api.client import Driver
from cdc.api.models import JobStatus
from cdc.errors import ConfigError
from cdc.job.remote_calls import RemoteDriver
from cdc.job.status_builder import build_status
from cdc.job.stored_status import SHOWN_VERIFICATIONS
from cdc.paths import state_folder
from cdc.state import opening
from cdc.state.base import ENDED, JobRecord, JobState, ResumeKind, new_pause
from cdc.state.identity import JobIdentity
from cdc.state.job_directory import JobDirectory
from cdc.state.job_lock import replaced_job
from cdc.state.processes import is_driver_alive, is_supervisor_alive
from cdc.state.sql import SqlStore

WAITS_FOR_HOST = "waits for a host"


def open_store() -> AbstractContextManager[SqlStore]:
    """Open the store of this user for a ``with`` block. Raises: CheckpointError."""
    return closing(opening.open_store(bridge_s=0.0))


def get_job(store: SqlStore, name: str) -> JobRecord:
    """Return the record of a job. Raises: ConfigError - there is no such job."""
    record = store.job(name) if name.isprintable() else None  # a store refuses text with NUL or without UTF-8
    if record is None:
        names = ", ".join(record.name for record in store.jobs())
        raise ConfigError(
            f"There is no job {name}.",
            hint=f"Known jobs: {names}." if names else "Start one with `cdc start JOB.yaml`.",
            state=store.location,
        )
    return record


def is_here(store: SqlStore, record: JobRecord) -> bool:
    """Return whether the newest run of the job is, or was, of this host: its process ids mean something here."""
    return record.home in (None, store.host.home)


def driver_of(store: SqlStore, record: JobRecord) -> Driver | RemoteDriver:
    """Return the driver of the job, on this host or on another one."""
    return Driver(record) if is_here(store, record) else RemoteDriver(store, record)


def has_driver(store: SqlStore, record: JobRecord) -> bool:
    """Return whether a driver of the job is alive."""
    return is_driver_alive(record) if is_here(store, record) else RemoteDriver(store, record).is_alive()


def has_supervisor(store: SqlStore, record: JobRecord) -> bool:
    """Return whether the supervisor of the job is alive on this host."""
    return is_here(store, record) and is_supervisor_alive(record)


def job_file_of(store: SqlStore, record: JobRecord) -> Path:
    """Return the job file. Raises: ConfigError - it is on another host, or the job has not run yet."""
    if not record.job_file:
        raise not_run_yet(record)
    file = Path(record.job_file)
    if not is_here(store, record) and not file.is_file():
        raise ConfigError(
            f"The job file of {record.name} is on host {record.host}.",
            hint="Run this command there, or copy the file to the same path of this host.",
            job_file=record.job_file,
        )
    return file


def not_run_yet(record: JobRecord) -> ConfigError:
    """Return the error for a job that was declared to the hosts of ``cdc serve``, and that none of them has run."""
    reason = (record.reason or f"it {WAITS_FOR_HOST}").rstrip(".")
    return ConfigError(f"The job {record.name} has not run yet: {reason}.", hint=record.hint or "See `cdc hosts`.")


def status_of(store: SqlStore, record: JobRecord) -> JobStatus:
    """Return the status from the driver. If no driver answers, return it from the store."""
    return driver_of(store, record).status() or offline_status(store, record)


def offline_status(store: SqlStore, record: JobRecord) -> JobStatus:
    """Return the status of a job whose driver does not answer, from its saved state."""
    if record.state in (JobState.RUNNING, JobState.PENDING) or (
        record.state is JobState.PAUSED and record.resume is ResumeKind.AUTOMATIC
    ):
        reason, hint = _without_driver(store, record)
        record = replace(record, state=JobState.PENDING, reason=reason, hint=hint, resume=None)
    if record.identity is None and record.job_file:  # its first start failed early
        record = replace(record, identity=_identity_from(Path(record.job_file)))
    name = record.name
    return build_status(
        record,
        store.last_committed(name),
        store.requests(name),
        store.change_summary(name),
        verifications=store.verifications(name, SHOWN_VERIFICATIONS),
    )


def _without_driver(store: SqlStore, record: JobRecord) -> tuple[str | None, str | None]:
    if not is_here(store, record):
        if RemoteDriver(store, record).is_alive():
            return f"the driver on host {record.host} does not answer", f"See `cdc logs {record.name}` on that host."
        if record.state is JobState.PENDING:
            return record.reason, record.hint or f"Start it on host {record.host}."
        return (
            f"its host {record.host} does not renew the lease",
            "Start it with `cdc start JOB.yaml` on any host.",
        )
    if is_driver_alive(record):
        return f"the driver (process {record.driver_pid}) does not answer", f"See `cdc logs {record.name}`."
    if is_supervisor_alive(record):
        return "the driver died; the supervisor starts it again", f"See `cdc logs {record.name}`."
    if record.state is JobState.PENDING and not record.job_file:  # declared, and never run
        return record.reason or WAITS_FOR_HOST, record.hint or "See `cdc hosts`."
    if record.state is JobState.PENDING:
        return record.reason, record.hint or f"Start it with `cdc start {record.job_file}`."
    failure = JobDirectory(state_folder(), record.name).failure()
    if failure is not None and isinstance(failure.error, ConfigError):  # `cdc start` of that file may be another job
        return " ".join(failure.error.message.split()), failure.error.hint
    return "died", f"Start it again with `cdc start {record.job_file}`. See `cdc logs {record.name}` for the cause."


def _identity_from(file: Path) -> JobIdentity | None:
    """Return the identity of a job file; None if it is not valid, for example because a secret is not set here."""
    from cdc.config.models import load_config
    from cdc.job.compatibility import build_identity

    with suppress(ConfigError):
        return build_identity(load_config(file))
    return None


def set_offline_state(store: SqlStore, record: JobRecord, state: JobState, reason: str, hint: str) -> JobRecord:
    """Save a new state for a job without a driver, also for one that is assigned to another host.

    Return the saved record. A job that is CANCELLED or DONE meanwhile keeps its state, and one that only `cdc resume`
    continues stays PAUSED for its reason, unless it is CANCELLED.
    Raises: LeaseLost - it has a driver, or another job has its name now; CheckpointError.
    """

    def end(held: JobRecord) -> JobRecord:
        # a report of a failed start must not end a pause, and a second pause must not hide the statement of the first
        is_paused = (held.state, held.resume) == (JobState.PAUSED, ResumeKind.MANUAL)
        if held.state in ENDED or (is_paused and state is not JobState.CANCELLED):
            return held
        resume = ResumeKind.MANUAL if state is JobState.PAUSED else None
        return replace(
            held, state=state, reason=reason, hint=hint, resume=resume, is_paused_by_user=resume is not None,
            driver_pid=None, supervisor_pid=None, pause=new_pause() if resume is not None else None,
        )  # fmt: skip

    return _change_offline(store, record, end)


def end_offline_pause(store: SqlStore, record: JobRecord) -> JobRecord:
    """Save that a job without a driver waits for a host, if its user has paused it. Return its record.

    The host that starts it would otherwise keep the pause. Raises: see ``set_offline_state``.
    """

    def is_paused(one: JobRecord) -> bool:
        return one.state is JobState.PAUSED and one.is_paused_by_user

    def end(held: JobRecord) -> JobRecord:
        if not is_paused(held):
            return held
        return replace(
            held, state=JobState.PENDING, reason=None, hint=None, resume=None, is_paused_by_user=False, pause=None
        )

    return _change_offline(store, record, end) if is_paused(record) else record


def _change_offline(store: SqlStore, record: JobRecord, change: Callable[[JobRecord], JobRecord]) -> JobRecord:
    before, this = store.deployments.get(record.name) if store.is_shared else None, store.host.name
    if before is not None and before.record.incarnation != record.incarnation:
        raise replaced_job(record.name)  # before the assignment, which ends a run of the other job
    if before is None or before.is_held or before.host in (None, this):
        held = store.acquire(record.name, record.job_file, record.incarnation)
        return _save_changed(store, held, record, change)
    fence = before.fence
    is_moved = store.deployments.assign(record.name, this, fence, actor=this)  # only the host of the job may save
    try:
        fence += 1
        held = store.acquire(record.name, record.job_file, record.incarnation)
        fence = held.fence
        return _save_changed(store, held, record, change)
    finally:
        if is_moved:
            store.deployments.assign(record.name, before.host, fence, actor=this)


def _save_changed(
    store: SqlStore, held: JobRecord, known: JobRecord, change: Callable[[JobRecord], JobRecord]
) -> JobRecord:
    try:
        changed = replace(change(held), host=known.host, home=known.home)  # that host has the job file
        store.save_job(changed)
        return changed
    finally:
        store.release()


def stopped_by_user(job: str) -> tuple[str, str]:
    """Return reason and hint of a job that its user has stopped."""
    return "stopped by its user", f"`cdc stop {job} --forget` deletes its state."
