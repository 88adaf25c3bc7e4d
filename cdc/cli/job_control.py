"""Commands that change the state of a job: start, pause, resume, stop, restart."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cdc.cli.options import debug_option, job_file_argument, name_argument, output_option
from cdc.cli.sending import PAUSE_S, end_supervisor, send_until
from cdc.cli.start import (
    check_first_start,
    check_prerequisites,
    check_startable,
    config_of,
    not_running,
    run_driver,
    start_detached,
)
from cdc.cli.terminal import POLL_S, console, poll_until, print_state
from cdc.errors import ConfigError

if TYPE_CHECKING:
    from cdc.api.models import JobStatus, Resume
    from cdc.state.base import JobRecord
    from cdc.state.sql import SqlStore


@click.command()
@job_file_argument
@click.option(
    "--foreground",
    is_flag=True,
    help="Run in this process and log to the terminal, for systemd or Kubernetes, which restart it.",
)
@click.option(
    "--adopt", is_flag=True, help="Continue from the newest commit in the sink if the saved state does not match it."
)
@click.option(
    "--resume", "resume_flags", hidden=True, default="", help="Flags with which `cdc resume` starts a driver."
)
@click.option("--name", hidden=True, default="", help="Name of the job whose driver the supervisor starts.")
@debug_option
@output_option
@click.pass_context
def start(
    context: click.Context,
    job_file: Path,
    foreground: bool,
    adopt: bool,
    resume_flags: str,
    name: str,
    debug: bool,
    output: str,
) -> None:
    """Start a job. Return when it runs, or report why it does not."""
    from cdc.config.models import load_config
    from cdc.job.registry import open_store
    from cdc.job.spark_start import started_early

    debug = debug or context.obj
    if not foreground and (started := _start_on_hosts(job_file, adopt=adopt)) is not None:
        _print_started(output, started.job, started.state)
        return
    config = config_of(name, job_file) if name else load_config(job_file)
    job_file = job_file.expanduser().absolute()
    with open_store() as store:
        record = store.job(config.name)
        if foreground:
            with started_early(config, record, resumes=bool(resume_flags)) as sessions:
                if record is None or not record.job_file:  # declared, and never run
                    check_first_start(config, record, sessions, is_supervised=bool(name))
                options = {"adopt": adopt, "debug": debug}
                sys.exit(run_driver(job_file, config, resume_flags=resume_flags, sessions=sessions, **options))
        check_startable(store, config, job_file)
        check_prerequisites(config, record.incarnation if record else "", store.last_committed(config.name))
        state = start_detached(store, config.name, job_file, ["--adopt"] if adopt else [], debug=debug)
    _print_started(output, config.name, state)


def _print_started(output: str, name: str, state: str) -> None:
    if output == "json":  # the text is on stderr, with the progress of the start
        print_state("", output, name, state)


def _start_on_hosts(job_file: Path, *, adopt: bool) -> JobStatus | None:
    """Give the job to the hosts of ``cdc serve``, and return its status when it runs; None if there are no hosts."""
    from cdc.cli.serving import has_hosts, start_on_hosts
    from cdc.job.registry import open_store

    with open_store() as store:
        return start_on_hosts(store, job_file, adopt=adopt) if has_hosts(store) else None


@click.command()
@name_argument
@output_option
def pause(name: str, output: str) -> None:
    """Pause a job; its position is kept."""
    from cdc.api.models import PauseJob
    from cdc.job.registry import get_job, open_store, set_offline_state, status_of
    from cdc.state.base import JobState

    with open_store() as store:

        def is_paused(record: JobRecord) -> bool:
            refuse_ended(record.name, record.state)
            return is_paused_by_hand(status_of(store, record))

        def save_pause(record: JobRecord) -> None:
            set_offline_state(store, record, JobState.PAUSED, "paused by its user", f"Run `cdc resume {name}`.")

        record = get_job(store, name)
        refuse_ended(record.name, record.state)
        send_until(store, record, PauseJob(), f"Pausing {name}", is_reached=is_paused, change=save_pause)
    print_state(f"{name} is PAUSED.", output, name, "PAUSED")


@click.command()
@name_argument
@click.option("--past-ddl", is_flag=True, help="Continue after a DDL statement that changes rows.")
@click.option(
    "--apply-ddl", is_flag=True, help="Apply the DDL statement at which the job is paused, whatever the mode says."
)
@click.option("--accept-server", is_flag=True, help="Continue from another server at the same address.")
@click.option(
    "--accept-gap", is_flag=True, help="Continue without changes that the source no longer has, or that cannot be read."
)
@click.option(
    "--reload-missing",
    is_flag=True,
    help="Load targets again that are missing, were replaced or are older than the state.",
)
@output_option
@click.pass_context
def resume(
    context: click.Context,
    name: str,
    past_ddl: bool,
    apply_ddl: bool,
    accept_server: bool,
    accept_gap: bool,
    reload_missing: bool,
    output: str,
) -> None:
    """Continue after a pause."""
    from cdc.api.models import Resume
    from cdc.cli.serving import resume_on_hosts
    from cdc.config.models import load_config
    from cdc.job.compatibility import check_identity
    from cdc.job.registry import driver_of, get_job, job_file_of, open_store
    from cdc.job.resume_policy import check_resume

    request = Resume(past_ddl, apply_ddl, accept_server, accept_gap, reload_missing)
    with open_store() as store:
        record = get_job(store, name)
        refuse_ended(record.name, record.state)
        check_resume(record, request)
        if not record.job_file:  # declared, and never run
            _print_started(output, name, resume_on_hosts(store, record).state)
            return
        driver = driver_of(store, record)
        if (before := driver.status()) is not None:
            _resume_running(store, record, replace(request, pause=before.pause), before)
        else:
            check_identity(record, load_config(job_file_of(store, record)), accept_server=accept_server)
            _print_started(output, name, resume_without_driver(store, record, request, debug=context.obj))
            return
    print_state(f"{name} is RUNNING.", output, name, "RUNNING")


def resume_without_driver(store: SqlStore, record: JobRecord, request: Resume, *, debug: bool) -> str:
    """Start a driver that applies a resume. Return the state of the job when it runs.

    Raises: CdcError - the reason why it does not.
    """
    from cdc.job.registry import job_file_of

    end_supervisor(store, record)
    flags = ",".join(name for name, value in asdict(request).items() if value is True)
    once = ["--resume", flags or "plain"]
    return start_detached(store, record.name, job_file_of(store, record), once, debug=debug)


def _resume_running(store: SqlStore, record: JobRecord, request: Resume, before: JobStatus) -> None:
    from cdc.job.registry import driver_of, get_job

    driver_of(store, record).request(request)
    last = before
    with console(stderr=True).status(f"Resuming {before.job}"):
        deadline = time.monotonic() + PAUSE_S
        while time.monotonic() < deadline:
            found = get_job(store, before.job)  # a driver that dies meanwhile is replaced by another one
            status = driver_of(store, found).status()
            if status is not None:
                last = status
                # the status shows the earlier pause until the driver has applied the resume
                is_applied = last.resumes > before.resumes or before.state != "PAUSED" or found.fence != record.fence
                if last.state == "RUNNING" or (last.state == "PAUSED" and is_applied):
                    break
            time.sleep(POLL_S)
    if last.state != "RUNNING":
        raise not_running(last)


@click.command()
@name_argument
@click.option(
    "--forget", is_flag=True, help="Also delete the state of the job with its position. The rows in the targets stay."
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@output_option
def stop(name: str, forget: bool, yes: bool, output: str) -> None:
    """Cancel a job permanently. `cdc pause` pauses it; `cdc restart` only restarts its process."""
    from cdc.api.models import StopJob
    from cdc.job.registry import (
        get_job,
        has_driver,
        has_supervisor,
        open_store,
        set_offline_state,
        stopped_by_user,
    )
    from cdc.paths import state_folder
    from cdc.state.base import ENDED, FORGOTTEN, JobState, forgetting
    from cdc.state.job_directory import JobDirectory

    with open_store() as store:

        def is_over(record: JobRecord) -> bool:
            return record.state in ENDED and not has_driver(store, record) and not has_supervisor(store, record)

        def save_stop(record: JobRecord) -> None:
            if record.state not in ENDED:
                set_offline_state(store, record, JobState.CANCELLED, *stopped_by_user(name))

        record = get_job(store, name)
        ask_before_stop(name, record.state, forget=forget, yes=yes)
        send_until(store, record, StopJob(), f"Stopping {name}", is_reached=is_over, change=save_stop)
        state = get_job(store, name).state  # DONE if a source of files has ended meanwhile
        if forget:
            store.forget(name, record.incarnation)
            JobDirectory(state_folder(), name).remove()
    text = f"{name} is forgotten. {FORGOTTEN}" if forget else f"{name} is {state}. {forgetting(name)}"
    print_state(text, output, name, state, is_forgotten=forget)


@click.command()
@name_argument
@output_option
@click.pass_context
def restart(context: click.Context, name: str, output: str) -> None:
    """Restart the process of a job, with the current job file and program. Its state is kept."""
    from cdc.cli.serving import await_start, is_on_hosts
    from cdc.config.models import load_config
    from cdc.job.compatibility import check_identity
    from cdc.job.registry import driver_of, get_job, has_driver, has_supervisor, is_here, job_file_of, open_store
    from cdc.manager.waiting import before_start

    with open_store() as store:
        record = get_job(store, name)
        refuse_ended(record.name, record.state)
        if not is_here(store, record) and has_driver(store, record):
            raise ConfigError(f"The job {name} runs on host {record.host}.", hint="Restart it there.", host=record.host)
        if is_paused_by_hand(driver_of(store, record).status() or record):
            raise ConfigError(
                f"The job {name} is paused: {record.reason or 'by its user'}",
                hint=f"Run `cdc resume {name}`, which reads the job file again.",
            )
        job_file = job_file_of(store, record)
        # before the process ends, so that it continues if the file is not valid
        check_identity(record, load_config(job_file))
        hosts_start_it = is_on_hosts(store, name)
        before = before_start(store, name)
        if has_supervisor(store, record):
            end_supervisor(store, record)
        elif has_driver(store, record) and record.driver_pid is not None:
            raise ConfigError(
                f"The job {name} was started with --foreground and has no supervisor (process {record.driver_pid}).",
                hint="Restart it where it was started: systemd, Kubernetes or your terminal.",
            )
        poll_until(f"Ending {name}", lambda: not has_driver(store, record), PAUSE_S)
        if hosts_start_it:
            state = str(await_start(store, name, before).state)
        else:
            state = start_detached(store, name, job_file, [], debug=context.obj)
    _print_started(output, name, state)


def is_paused_by_hand(job: JobStatus | JobRecord) -> bool:
    """Return whether only `cdc resume` ends the pause. A job whose server is down is also PAUSED, but retries."""
    return (job.state, job.resume) == ("PAUSED", "manual")


def ask_before_stop(name: str, state: str, *, forget: bool, yes: bool) -> None:
    """Ask on a terminal before a job is cancelled permanently. Without a terminal, a script runs the command."""
    is_over = state in {"CANCELLED", "DONE"}
    if yes or (is_over and not forget) or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    kept = f"`cdc pause {name}` pauses it and keeps its position."
    if not is_over:
        click.echo(f"This cancels {name} permanently: it cannot be started again. {kept}", err=True)
    if forget:
        click.echo("Its state and its position are deleted; the rows in its targets stay.", err=True)
    if not click.confirm(f"{'Forget' if is_over else 'Stop'} {name}?", default=False, err=True):
        raise ConfigError(f"Nothing was changed: {name} is {state}.", hint=f"See `cdc status {name}`.")


def refuse_ended(name: str, state: str) -> None:
    """Raise ConfigError if the job is CANCELLED or DONE."""
    from cdc.state.base import forgetting

    if state in {"CANCELLED", "DONE"}:
        raise ConfigError(f"The job {name} is {state}.", hint=forgetting(name))
