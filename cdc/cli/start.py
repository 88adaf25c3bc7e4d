"""Start a job: the checks before, the driver in this process, or a driver with a supervisor.

Each function imports the modules that take long to import, so that other commands start fast.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.cli.terminal import POLL_S, console
from cdc.errors import CdcError, ConfigError, LeaseLost, PrerequisiteError, with_job

if TYPE_CHECKING:
    from cdc.api.models import JobStatus
    from cdc.config.models import Config
    from cdc.state.base import Checkpoint, JobRecord
    from cdc.state.sql import SqlStore
    from spark.session import SessionHolder

START_S = 300.0  # the first start compiles kernels and starts a JVM, which takes minutes on a busy machine


def check_prerequisites(
    config: Config, incarnation: str, checkpoint: Checkpoint | None, sessions: SessionHolder | None = None
) -> None:
    """Print all warnings about servers and tables. ``sessions``: see ``check_job``.

    Raises: PrerequisiteError - with all findings that stop the job.
    """
    from cdc.checks.job import check_job
    from cdc.cli.views import finding_view

    findings = check_job(config, incarnation, checkpoint, sessions=sessions)
    fatal = [finding for finding in findings if finding.fatal]
    finding_view([finding for finding in findings if not finding.fatal], console(stderr=True))
    if fatal:
        problems = "\n".join(f"  {finding.problem} {with_job(finding.hint, config.name)}" for finding in fatal)
        raise PrerequisiteError(f"The job {config.name} cannot start:\n{problems}\n", hint="Nothing was started.")


def check_first_start(
    config: Config, record: JobRecord | None, sessions: SessionHolder | None, *, is_supervised: bool
) -> None:
    """Check servers and tables before the first start. Raises: PrerequisiteError.

    ``sessions``: the Spark session that is starting for the job. ``is_supervised``: save the error, because the
    terminal of a supervised driver has no reader.
    """
    from cdc.paths import state_folder
    from cdc.state.job_directory import JobDirectory

    try:
        check_prerequisites(config, record.incarnation if record else "", None, sessions)
    except PrerequisiteError as error:
        if is_supervised:
            JobDirectory(state_folder(), config.name).set_failure(error)
        raise


def check_startable(store: SqlStore, config: Config, job_file: Path) -> None:
    """Check that the job may start. Raises: ConfigError, LeaseLost - it is RUNNING, PAUSED, CANCELLED or DONE."""
    from cdc.job.registry import driver_of, has_driver, has_supervisor, is_here
    from cdc.state.base import ENDED, JobState, forgetting

    record = store.job(config.name)
    if record is None:
        return
    if record.state in ENDED:
        raise ConfigError(f"The job {record.name} {ENDED[record.state]}.", hint=forgetting(record.name))
    live = driver_of(store, record).status()
    paused = live.state == JobState.PAUSED if live else record.state is JobState.PAUSED
    if paused and (live is not None or record.resume != "automatic"):
        raise ConfigError(
            f"The job {record.name} is paused: {(live.reason if live else record.reason) or 'by its user'}",
            hint=f"Run `cdc resume {record.name}` to continue.",
        )
    if live is not None or has_driver(store, record) or has_supervisor(store, record):
        if not is_here(store, record):
            raise LeaseLost(
                f"The job {record.name} runs on host {record.host}.",
                hint=f"`cdc status {record.name}`, `cdc pause` and `cdc stop` work from this host too. If that host "
                "has failed, repeat the command when its lease has ended.",
                host=record.host,
            )
        hint = f"See `cdc status {record.name}`."
        if record.job_file != str(job_file):
            hint += " It has another job file: if this one is another job, give it another `name:`."
        raise LeaseLost(
            f"The job {record.name} runs already.",
            hint=hint,
            pid=record.driver_pid,
            job_file=record.job_file,
        )


def run_driver(
    job_file: Path,
    config: Config,
    *,
    adopt: bool,
    resume_flags: str,
    debug: bool,
    sessions: SessionHolder | None,
) -> int:
    """Run the job in this process and return the exit code. Save the error if it fails.

    ``sessions``: the Spark session, if it is starting already.
    """
    import logging
    from dataclasses import fields

    from cdc.api.models import Resume
    from cdc.job.supervisor import SUPERVISOR_PID
    from cdc.logging_setup import set_up_logs
    from cdc.paths import state_folder
    from cdc.state.job_directory import JobDirectory

    set_up_logs(config.name, secrets=config.secrets(), debug=debug)
    folder = JobDirectory(state_folder(), config.name)
    supervisor = os.environ.get(SUPERVISOR_PID)
    names = {field.name for field in fields(Resume)} & set(resume_flags.split(","))  # "plain" is none of them
    flags: dict[str, Any] = dict.fromkeys(names, True)
    resume = Resume(**flags) if resume_flags else None
    try:
        from cdc.job.job import run_job
        from cdc.mysql.values.kernels import refuse_untrusted_caches

        refuse_untrusted_caches()
        gc.freeze()
        gc.enable()  # see ``started_early``
        pid = int(supervisor) if supervisor else None
        return run_job(job_file, adopt=adopt, resume=resume, supervisor_pid=pid, sessions=sessions)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except CdcError as error:
        error.hint = with_job(error.hint, config.name)
        folder.set_failure(error)
        logging.getLogger(__name__).error(str(error))
        if supervisor is None:
            raise
        return error.exit_code
    except Exception as error:
        folder.set_failure(error)
        logging.getLogger(__name__).exception("The driver ends with an unexpected error.")
        return 1


def config_of(name: str, job_file: Path) -> Config:
    """Return the job file of the job ``name``. An error is also saved, for the command that started the driver.

    Raises: ConfigError - the file is not valid, or has the name of another job now.
    """
    from cdc.config.models import load_config
    from cdc.job.compatibility import check_name
    from cdc.paths import state_folder
    from cdc.state.job_directory import JobDirectory

    try:
        config = load_config(job_file)
        check_name(name, config)
    except ConfigError as error:
        JobDirectory(state_folder(), name).set_failure(error)
        raise
    return config


def start_detached(store: SqlStore, name: str, job_file: Path, once: list[str], *, debug: bool) -> str:
    """Start a supervisor, which starts the driver. Return the state of the job when it runs.

    ``once``: options of the first driver only. Raises: CdcError - the reason why the job does not run.
    """
    from cdc.job.supervisor import driver_command, launch
    from cdc.paths import state_folder
    from cdc.state.job_directory import JobDirectory

    folder = JobDirectory(state_folder(), name)
    fence = record.fence if (record := store.job(name)) else 0
    supervisor = launch(folder, driver_command(name, job_file, ["--debug"] if debug else []), once, debug=debug)
    terminal = console(stderr=True)
    try:
        with terminal.status(f"Starting {name}"):
            status = _wait_until_running(store, name, fence, supervisor)
    except KeyboardInterrupt:
        terminal.print(
            f"{name} continues to start in the background. See `cdc status {name}`; `cdc pause {name}` pauses it.",
            highlight=False,
            soft_wrap=True,
        )
        raise
    if status is not None and status.state in {"RUNNING", "DONE"}:
        terminal.print(f"[green]{name} is {status.state}.[/] See `cdc status {name}`.", highlight=False)
        if any(channel.snapshot and not channel.snapshot.consistent for channel in status.channels):
            from cdc.cli.views import snapshots_view

            terminal.print("The job loads the existing rows:")
            terminal.print(snapshots_view(status))
        return status.state
    if status is not None:
        raise not_running(status)
    failure = folder.failure()
    if failure is not None:
        raise failure.error
    if supervisor.poll() is None:
        raise CdcError(
            f"The job is not RUNNING after {START_S:.0f} s; it continues to start.", hint=f"See `cdc logs {name}`."
        )
    raise CdcError(
        "The driver exited and reported no error.", hint=f"See `cdc logs {name}`.", exit=supervisor.returncode
    )


def not_running(status: JobStatus) -> CdcError:
    """Return an error with the reason why the job does not run, from its status."""
    error = CdcError(f"The job {status.job} is {status.state}: {status.reason}", hint=status.hint or "")
    error.exit_code = PrerequisiteError.exit_code if status.resume == "automatic" else CdcError.exit_code
    return error


def _wait_until_running(
    store: SqlStore, name: str, fence: int, supervisor: subprocess.Popen[bytes]
) -> JobStatus | None:
    """Return the first status of the new run that is not PENDING; None if the driver ended or the time is over."""
    from cdc.job.registry import driver_of, offline_status

    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        ended = supervisor.poll() is not None
        record = store.job(name)
        if record is not None and record.fence > fence:
            status = driver_of(store, record).status()
            if status is not None and status.state != "PENDING":
                return status
            if ended and record.state in {"DONE", "CANCELLED"}:
                return offline_status(store, record)
        if ended:
            return None
        time.sleep(POLL_S)
    return None
