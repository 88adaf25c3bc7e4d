"""Starting a job: what is refused beforehand, the driver in this process, or one behind a supervisor.

Imported by each verb for itself: what takes long to import is imported by the function that needs it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.errors import CdcError, ConfigError, LeaseLost, SurroundingsError, with_job

if TYPE_CHECKING:
    from rich.console import Console

    from cdc.checkpoint import Checkpoint
    from cdc.checkpoint_sqlite import SqliteStore
    from cdc.config import Config
    from cdc.folder import Failure
    from cdc.status import JobStatus

START_S = 300.0  # a first start compiles kernels and starts a JVM; on a busy machine that takes minutes
POLL_S = 0.15  # a person sees no difference, and a driver none in its load


def console(*, stderr: bool = False) -> Console:
    """Where people read: nothing is coloured but what we colour."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def refuse_unready(config: Config, incarnation: str, begun: Checkpoint | None) -> None:
    """What servers and tables are like cannot mend itself: say all of it before anything starts; warnings too.

    Raises: SurroundingsError.
    """
    from cdc.inspection import check_job
    from cdc.render import finding_view

    findings = check_job(config, incarnation, begun)
    fatal = [finding for finding in findings if finding.fatal]
    finding_view([finding for finding in findings if not finding.fatal], console(stderr=True))
    if fatal:
        told = "\n".join(f"  {finding.problem} {with_job(finding.mend, config.name)}" for finding in fatal)
        raise SurroundingsError(f"The job {config.name} cannot start:\n{told}\n", mend="Nothing was started.")


def refuse_start(store: SqliteStore, config: Config) -> None:
    """Raises: ConfigError, LeaseLost - the job runs, is paused, was cancelled or is done."""
    from cdc.checkpoint import JobState, forgetting
    from cdc.jobs import Driver, driver_lives, supervisor_lives

    record = store.job(config.name)
    if record is None:
        return
    if record.state in (JobState.CANCELLED, JobState.DONE):
        how = "was stopped for good" if record.state is JobState.CANCELLED else "has read its source to the end"
        raise ConfigError(f"The job {record.name} {how}.", mend=forgetting(record.name))
    live = Driver(record).status()
    paused = live.state == JobState.PAUSED.value if live else record.state is JobState.PAUSED
    if paused and (live is not None or record.resume != "automatic"):
        raise ConfigError(
            f"The job {record.name} is paused: {(live.reason if live else record.reason) or 'by its user'}",
            mend=f"`cdc resume {record.name}` goes on where it stands.",
        )
    if live is not None or driver_lives(record) or supervisor_lives(record):
        raise LeaseLost(
            f"The job {record.name} runs already.",
            mend=f"Look at it with `cdc status {record.name}`.",
            pid=record.driver_pid,
            job_file=record.job_file,
        )


def drive(job_file: Path, config: Config, *, adopt: bool, agreed: str, debug: bool) -> int:
    """Be the driver: run the job in this process, and keep the reason if it ends by an error."""
    import logging

    from cdc.checkpoint_sqlite import state_folder
    from cdc.folder import JobFolder
    from cdc.logs import set_up_logs
    from cdc.status import Resume
    from cdc.supervisor import SUPERVISOR_PID

    set_up_logs(config.name, secrets=config.secrets(), debug=debug)
    folder = JobFolder(state_folder(), config.name)
    supervisor = os.environ.get(SUPERVISOR_PID)
    flags = set(filter(None, agreed.split(",")))
    resume = Resume(**{name: name in flags for name in Resume.__dataclass_fields__}) if agreed else None
    try:
        from cdc.binlog.kernels import refuse_untrusted_caches
        from cdc.job import run_job

        refuse_untrusted_caches()
        return run_job(job_file, adopt=adopt, resume=resume, supervisor_pid=int(supervisor) if supervisor else None)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except CdcError as error:
        error.mend = with_job(error.mend, config.name)
        folder.set_failure(error)
        logging.getLogger(__name__).error(str(error))
        if supervisor is None:
            raise
        return error.exit_code
    except Exception as error:
        folder.set_failure(error)
        logging.getLogger(__name__).exception("The driver ends by an error that it does not know.")
        return 1


def config_of(name: str, job_file: Path) -> Config:
    """The job file that a driver of the job ``name`` is to run; why it cannot is kept for who started the driver.

    Raises: ConfigError - it is broken, or another job's by now.
    """
    from cdc.checkpoint_sqlite import state_folder
    from cdc.config import load_config
    from cdc.folder import JobFolder
    from cdc.identity import check_name

    try:
        config = load_config(job_file)
        check_name(name, config)
    except ConfigError as error:
        JobFolder(state_folder(), name).set_failure(error)
        raise
    return config


def driver_command(name: str, job_file: Path, options: list[str]) -> list[str]:
    """How a supervisor starts the driver: of this job, even if the file has another name in it one day."""
    return [sys.executable, "-m", "cdc.cli", "start", str(job_file), "--foreground", "--name", name, *options]


def start_detached(store: SqliteStore, name: str, job_file: Path, once: list[str], *, debug: bool) -> None:
    """Leave a supervisor behind that starts the driver; return when the job runs.

    ``once``: options of the first driver alone. Raises: CdcError - why it does not.
    """
    from cdc.checkpoint_sqlite import state_folder
    from cdc.folder import JobFolder
    from cdc.supervisor import launch

    folder = JobFolder(state_folder(), name)
    fence = record.fence if (record := store.job(name)) else 0
    supervisor = launch(folder, driver_command(name, job_file, ["--debug"] if debug else []), once, debug=debug)
    terminal = console(stderr=True)
    try:
        with terminal.status(f"Starting {name}"):
            status = _wait_until_running(store, name, fence, supervisor)
    except KeyboardInterrupt:
        terminal.print(
            f"{name} goes on starting without this command. See `cdc status {name}`; `cdc pause {name}` halts it.",
            highlight=False,
            soft_wrap=True,
        )
        raise
    if status is not None and status.state in {"RUNNING", "DONE"}:
        terminal.print(f"[green]{name} is {status.state}.[/] Look at it with `cdc status {name}`.", highlight=False)
        if any(channel.snapshot and not channel.snapshot.consistent for channel in status.channels):
            from cdc.render import snapshots_view

            terminal.print("The rows that are already there are being loaded:")
            terminal.print(snapshots_view(status))
        return
    if status is not None:
        raise not_running(status)
    failure = folder.failure()
    if failure is not None:
        raise _Told(failure)
    if supervisor.poll() is None:
        raise CdcError(
            f"The job is not RUNNING after {START_S:.0f} s; it goes on starting.", mend=f"See `cdc logs {name}`."
        )
    raise CdcError("The driver ended without a word.", mend=f"See `cdc logs {name}`.", exit=supervisor.returncode)


class _Told(CdcError):
    """An error that another process put into words already."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, mend=failure.mend)
        self.told_place = failure.place
        self.exit_code = failure.exit_code

    @property
    def place(self) -> str:
        """As it was told."""
        return self.told_place


def not_running(status: JobStatus) -> CdcError:
    """Why a job does not run, as its driver says."""
    error = CdcError(f"The job {status.job} is {status.state}: {status.reason}", mend=status.mend or "")
    error.exit_code = SurroundingsError.exit_code if status.resume == "automatic" else CdcError.exit_code
    return error


def _wait_until_running(
    store: SqliteStore, name: str, fence: int, supervisor: subprocess.Popen[bytes]
) -> JobStatus | None:
    """The first status of the new run that is not PENDING; None if there is none to come."""
    from cdc.jobs import Driver, offline_status

    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        ended = supervisor.poll() is not None
        record = store.job(name)
        if record is not None and record.fence > fence:
            status = Driver(record).status()
            if status is not None and status.state != "PENDING":
                return status
            if ended and record.state.value in {"DONE", "CANCELLED"}:
                return offline_status(store, record)
        if ended:
            return None
        time.sleep(POLL_S)
    return None
