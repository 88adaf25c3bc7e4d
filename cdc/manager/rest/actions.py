"""What the API changes: specifications, desired states, and requests to drivers."""

from __future__ import annotations

import logging
import secrets
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cdc.api.client import Driver
from cdc.api.models import PauseJob, RequestBody, Resume, StopJob, request_to_json
from cdc.config.loader import parse_job
from cdc.config.models import Config, load_config
from cdc.errors import CdcError, CheckpointError, ConfigError, error_to_json, with_job
from cdc.job.registry import (
    end_offline_pause,
    has_driver,
    has_supervisor,
    not_run_yet,
    set_offline_state,
    stopped_by_user,
)
from cdc.job.resume_policy import check_resume
from cdc.logging_setup import HIDDEN, masked
from cdc.manager.spec import read_spec
from cdc.paths import state_folder
from cdc.state.base import JobRecord, JobState, ResumeKind, forgetting
from cdc.state.deployments import Deployment, DesiredState
from cdc.state.job_directory import JobDirectory
from cdc.state.sql import SqlStore

_DESIRED: dict[type[Any], DesiredState] = {
    PauseJob: DesiredState.PAUSED, Resume: DesiredState.RUNNING, StopJob: DesiredState.CANCELLED,
}  # fmt: skip

_CHECKING = threading.Lock()  # expressions need a Spark session, and a process must not start two

_log = logging.getLogger(__name__)


class JobActions:
    """Changes jobs in the store. Calls: any thread. Raises: CdcError from every call."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._offline = threading.Lock()  # a store object holds one job at a time

    def declare(self, name: str, spec: str, generation: int | None, actor: str) -> int:
        """Save a specification with the desired state RUNNING, and return the new generation.

        ``spec``: as ``check_spec`` accepts it. Raises: ConfigError - the job has ended, or has another generation.
        """
        found = self._store.job(name)
        if found is not None:
            _refuse_ended(found)
        new = JobRecord(name, secrets.token_hex(4), 0, JobState.PENDING, "") if found is None else None
        desired = DesiredState.RUNNING
        return self._store.deployments.declare(
            name, spec=spec, desired=desired, generation=generation, actor=actor, new=new
        )

    def request(self, deployment: Deployment, verb: str, body: RequestBody, actor: str) -> int:
        """Save a request and the desired state that follows from it, and return the id of the event.

        Raises: ConfigError - the job is CANCELLED or DONE, or the resume needs an option.
        """
        record = deployment.record
        _refuse_ended(record)
        if isinstance(body, Resume):
            check_resume(record, body, pause_requested=deployment.desired is DesiredState.PAUSED)
        if (desired := _DESIRED.get(type(body))) is not None:
            self._store.deployments.declare(record.name, desired=desired, actor=actor)
        return self._store.events.request(record.name, verb, request_to_json(body), actor=actor)

    def deliver(self, deployment: Deployment, number: int, body: RequestBody) -> None:
        """Carry out a request here, if this process must: the driver of a store in a file does not read its events.

        Never raises; the event gets the result.
        """
        with suppress(CheckpointError):
            if self._store.is_shared and self._is_for_driver(deployment, body):
                return  # the driver reads the events of a shared store
            if self._store.events.take(number, f"{self._store.host.name}:api"):
                self._store.events.answer(number, self._carry_out(deployment, body))

    def _is_for_driver(self, deployment: Deployment, body: RequestBody) -> bool:
        """Return whether a driver carries out the request: one that runs, or one that a host starts within a minute."""
        record = deployment.record
        if has_driver(self._store, record):
            return True
        # no driver may start for hours if the job has never run, and the request ends after a minute
        ends_here = isinstance(body, PauseJob | StopJob) or (isinstance(body, Resume) and not record.job_file)
        return deployment.spec is not None and not ends_here

    def _carry_out(self, deployment: Deployment, body: RequestBody) -> dict[str, Any]:
        record = deployment.record
        try:
            if has_driver(self._store, record) or has_supervisor(self._store, record):
                Driver(record).request(body)
            else:
                self._change_offline(deployment, body)
        except CdcError as error:
            error.hint = with_job(error.hint, record.name)
            return {"ok": False, "error": error_to_json(error, masked)}
        except Exception as error:  # noqa: BLE001 - logged, and returned to the user
            _log.exception("a request failed")
            return {"ok": False, "error": error_to_json(error, masked)}
        return {"ok": True}

    def _change_offline(self, deployment: Deployment, body: RequestBody) -> None:
        record = deployment.record
        with self._offline:
            if isinstance(body, PauseJob):
                hint = f"Run `cdc resume {record.name}`."
                _refuse_ended(set_offline_state(self._store, record, JobState.PAUSED, "paused by its user", hint))
            elif isinstance(body, StopJob):
                set_offline_state(self._store, record, JobState.CANCELLED, *stopped_by_user(record.name))
            elif isinstance(body, Resume) and _is_resumed_by_host(deployment, body):
                end_offline_pause(self._store, record)
            elif not record.job_file:
                raise not_run_yet(record)
            else:
                command = "resume" if record.resume is ResumeKind.MANUAL else "start"
                what = record.name if command == "resume" or not record.job_file else record.job_file
                host = record.host or self._store.host.name
                raise ConfigError(
                    f"No driver of the job {record.name} runs.",
                    hint=f"Run `cdc {command} {what}` on host {host}, and repeat this.",
                )

    def forget(self, deployment: Deployment) -> None:
        """Delete the state of a job that has ended. Raises: ConfigError - it has not; LeaseLost - a driver runs."""
        record = deployment.record
        is_over = record.state in (JobState.CANCELLED, JobState.DONE) or record.started_at is None
        if not is_over or deployment.is_held or has_driver(self._store, record):
            raise ConfigError(
                f"The job {record.name} is {record.state}.", hint="Stop it first, and repeat this when it is CANCELLED."
            )
        self._store.forget(record.name, record.incarnation)
        JobDirectory(state_folder(), record.name).remove()


def _is_resumed_by_host(deployment: Deployment, body: Resume) -> bool:
    """Return whether a host continues the job without an option of the resume, because it is to be RUNNING."""
    record = deployment.record
    has_stopped = record.state is JobState.PAUSED and not record.is_paused_by_user
    has_options = replace(body, pause=None) != Resume()
    return deployment.spec is not None and (not record.job_file or not (has_options or has_stopped))


def _refuse_ended(record: JobRecord) -> None:
    if record.state in (JobState.CANCELLED, JobState.DONE):
        raise ConfigError(f"The job {record.name} is {record.state}.", hint=forgetting(record.name), job=record.name)


def check_spec(name: str, text: str) -> None:
    """Raise ConfigError if a specification is not valid, has another name, a relative path or a secret."""
    spec = read_spec(text, "The specification")
    if spec.name != name:
        raise ConfigError(f"The specification has the name {spec.name}.", hint="Use one name.", address=name)
    _, issues = parse_job(text.encode(), Path("/job.yaml"))
    if not issues:  # otherwise a variable may be set only on the host that runs the job, which checks the other keys
        _load(text)


def _load(text: str) -> Config:
    with tempfile.TemporaryDirectory(prefix="cdc-spec-") as folder:
        file = Path(folder) / "job.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            return load_config(file)
        except ConfigError as error:
            lines = error.message.replace(f"{folder}/", "").strip().splitlines()
            message = "\n".join(line.strip() for line in lines)
            raise ConfigError(message, hint="Nothing was changed. Correct the specification.") from None


def findings_of(store: SqlStore, spec: str) -> dict[str, Any]:
    """Return what ``cdc check`` finds for a specification. Raises: ConfigError - it is not valid."""
    from cdc.checks.job import check_job

    read_spec(spec, "The specification")
    config = _load(spec)
    record = store.job(config.name)
    with _CHECKING:
        findings = check_job(config, record.incarnation if record else "", store.last_committed(config.name))
    hidden = config.secrets()
    shown = [
        replace(one, problem=_without(one.problem, hidden), hint=_without(with_job(one.hint, config.name), hidden))
        for one in findings
    ]
    return {
        "job": config.name,
        "can_start": not any(one.fatal for one in findings),
        "findings": [asdict(one) for one in shown],
    }


def _without(text: str, hidden: tuple[str, ...]) -> str:
    for secret in sorted(hidden, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return masked(text)
