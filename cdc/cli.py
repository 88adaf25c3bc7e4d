"""The command ``cdc``: its verbs and their exit codes.

0 done, 1 a fault in running, 2 configuration, 3 surroundings, 130 and 143 on signals. What takes long to import is
imported by the verb that needs it: looking at a job is quick.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from cdc.errors import CdcError, ConfigError, SurroundingsError, with_job
from cdc.permissions import restrict_umask
from cdc.starting import POLL_S, config_of, console, drive, not_running, refuse_start, refuse_unready, start_detached

if TYPE_CHECKING:
    from rich.console import Console

    from cdc.checkpoint import JobRecord
    from cdc.jobs import Driver
    from cdc.status import JobStatus, Resume

PAUSE_S = 120.0  # a merge under way is finished first
REFRESH_S = 1.0

job_file_argument = click.argument("job_file", metavar="JOB.yaml", type=click.Path(path_type=Path))
name_argument = click.argument("name", metavar="NAME")
debug_option = click.option("--debug", is_flag=True, help="Log every batch, redacted; show where errors arise.")
output_option = click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For people, or for programs.",
)


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            click.echo(f"cdc {version('spark-binlog-load')}")
        except PackageNotFoundError:
            click.echo("cdc, from a checkout that is not installed")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@debug_option
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Say which.")
@click.pass_context
def app(context: click.Context, debug: bool) -> None:
    """Change data capture from MySQL into Unique-key tables, on Spark: nothing lost, nothing doubled."""
    context.obj = debug


@app.command()
@job_file_argument
@output_option
def check(job_file: Path, output: str) -> None:
    """Validate the job file and the world around it."""
    from cdc.config import load_config

    config = load_config(job_file)
    from cdc.inspection import check_job
    from cdc.jobs import opened_store
    from cdc.render import finding_view

    with console(stderr=True).status("Looking at source, sink and tables"), opened_store() as store:
        record = store.job(config.name)
        findings = check_job(config, record.incarnation if record else "", store.last_committed(config.name))
    findings = tuple(replace(one, mend=with_job(one.mend, config.name)) for one in findings)
    is_refused, terminal = any(finding.fatal for finding in findings), console()
    if output == "json":
        body = {"job": config.name, "can_start": not is_refused, "findings": [asdict(one) for one in findings]}
        click.echo(json.dumps(body, indent=2))
    else:
        finding_view(findings, terminal)
    if is_refused:
        sys.exit(SurroundingsError.exit_code)
    if output == "json":
        return
    terminal.print(f"[green]The job {config.name} can start.[/]")


@app.command()
@job_file_argument
@click.option("--foreground", is_flag=True, help="Stay, log here, and leave restarts to systemd or Kubernetes.")
@click.option("--adopt", is_flag=True, help="Go on above what the sink holds, though our state is not of it.")
@click.option("--resume", "agreed", hidden=True, default="", help="How `cdc resume` starts a driver.")
@click.option("--name", hidden=True, default="", help="The job that a supervisor starts the driver of.")
@debug_option
@click.pass_context
def start(
    context: click.Context, job_file: Path, foreground: bool, adopt: bool, agreed: str, name: str, debug: bool
) -> None:
    """Start a job; return when it runs, or say why not."""
    from cdc.config import load_config
    from cdc.jobs import opened_store

    debug = debug or context.obj
    config = config_of(name, job_file) if name else load_config(job_file)
    job_file = job_file.expanduser().absolute()
    with opened_store() as store:
        record = store.job(config.name)
        if foreground:
            if record is None:
                refuse_unready(config, "", None)
            sys.exit(drive(job_file, config, adopt=adopt, agreed=agreed, debug=debug))
        refuse_start(store, config)
        refuse_unready(config, record.incarnation if record else "", store.last_committed(config.name))
        start_detached(store, config.name, job_file, ["--adopt"] if adopt else [], debug=debug)


@app.command()
@name_argument
def pause(name: str) -> None:
    """Pause a job; its position is kept."""
    from cdc.checkpoint import JobState
    from cdc.jobs import Driver, known, mark, opened_store, status_of

    with opened_store() as store:
        record = known(store, name)
        _refuse_ended(record)
        driver = Driver(record)
        if driver.status() is not None:
            driver.pause()
            # asked of the record anew: a driver that cannot get on with it makes way for another one
            _poll(f"Pausing {name}", lambda: _is_paused_by_hand(status_of(store, known(store, name))), PAUSE_S)
        else:
            _end_supervisor(record)
            mark(store, record, JobState.PAUSED, "paused by its user", f"Run `cdc resume {name}`.")
    _say(f"{name} is PAUSED.")


@app.command()
@name_argument
@click.option("--past-ddl", is_flag=True, help="Go on behind a row-changing statement.")
@click.option("--accept-server", is_flag=True, help="Go on from the other server that answers.")
@click.option("--accept-gap", is_flag=True, help="Go on without changes that are gone or cannot be read.")
@click.option("--reload-missing", is_flag=True, help="Load targets again that are missing, replaced or too old.")
@click.pass_context
def resume(
    context: click.Context, name: str, past_ddl: bool, accept_server: bool, accept_gap: bool, reload_missing: bool
) -> None:
    """Go on after a pause."""
    from cdc.config import load_config
    from cdc.identity import check_identity
    from cdc.jobs import Driver, known, opened_store
    from cdc.status import Resume

    agreed = Resume(past_ddl, accept_server, accept_gap, reload_missing)
    with opened_store() as store:
        record = known(store, name)
        _refuse_ended(record)
        driver = Driver(record)
        if (before := driver.status()) is not None:
            _resume_running(driver, agreed, before)
        else:
            check_identity(record, load_config(Path(record.job_file)), accept_server=accept_server)
            _end_supervisor(record)
            flags = ",".join(key for key in Resume.__dataclass_fields__ if getattr(agreed, key))
            start_detached(store, name, Path(record.job_file), ["--resume", flags or "plain"], debug=context.obj)
            return
    _say(f"{name} is RUNNING.")


def _resume_running(driver: Driver, agreed: Resume, before: JobStatus) -> None:
    driver.resume(agreed)
    last = before

    def settled() -> bool:
        nonlocal last
        last = driver.status() or last
        return last.state == "RUNNING"

    with console(stderr=True).status(f"Resuming {before.job}"):
        deadline = time.monotonic() + PAUSE_S
        while not settled() and time.monotonic() < deadline:
            # a pause that was there before shows until the driver has taken the resume up
            if last.state == "PAUSED" and (last.resumes > before.resumes or before.state != "PAUSED"):
                break
            time.sleep(POLL_S)
    if last.state != "RUNNING":
        raise not_running(last)


@app.command()
@name_argument
@click.option("--forget", is_flag=True, help="Also drop the job's state: its position is gone, its rows stay.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask on a terminal.")
def stop(name: str, forget: bool, yes: bool) -> None:
    """Stop a job for good. To halt it and keep it, use `cdc pause`; to end its process only, `cdc restart`."""
    from cdc.checkpoint import FORGOTTEN, JobState, forgetting
    from cdc.checkpoint_sqlite import state_folder
    from cdc.folder import JobFolder
    from cdc.jobs import Driver, driver_lives, known, mark, opened_store, supervisor_lives

    with opened_store() as store:
        record = known(store, name)
        driver = Driver(record)
        _ask_before_stop(record, forget=forget, yes=yes)
        if driver.status() is not None:
            driver.stop()
            _poll(
                f"Stopping {name}",
                lambda: driver.status() is None and not driver_lives(record) and not supervisor_lives(record),
                PAUSE_S,
            )
        elif record.state not in (JobState.CANCELLED, JobState.DONE):
            _end_supervisor(record)
            mark(
                store, record, JobState.CANCELLED, "stopped by its user", f"`cdc stop {name} --forget` drops its state."
            )
        state = known(store, name).state.value  # a source of files may have come to its end
        if forget:
            store.forget(name)
            JobFolder(state_folder(), name).remove()
    _say(f"{name} is forgotten. {FORGOTTEN}" if forget else f"{name} is {state}. {forgetting(name)}")


@app.command()
@name_argument
@click.pass_context
def restart(context: click.Context, name: str) -> None:
    """End a job's process and start it again, with the job file and the program as they are now; its state is kept."""
    from cdc.config import load_config
    from cdc.identity import check_identity
    from cdc.jobs import Driver, driver_lives, known, opened_store, supervisor_lives

    with opened_store() as store:
        record = known(store, name)
        _refuse_ended(record)
        if _is_paused_by_hand(Driver(record).status() or record):
            raise ConfigError(
                f"The job {name} is paused: {record.reason or 'by its user'}",
                mend=f"`cdc resume {name}` goes on with the job file as it is now.",
            )
        job_file = Path(record.job_file)
        check_identity(record, load_config(job_file))  # the process runs on if the file is not usable
        if supervisor_lives(record):
            _end_supervisor(record)
        elif driver_lives(record) and record.driver_pid is not None:
            raise ConfigError(
                f"The job {name} runs without a supervisor (process {record.driver_pid}), which was started with "
                "--foreground.",
                mend="Restart it with what started it: systemd, Kubernetes or your terminal.",
            )
        _poll(f"Ending {name}", lambda: not driver_lives(record), PAUSE_S)
        start_detached(store, name, job_file, [], debug=context.obj)


@app.command()
@click.argument("name", metavar="[NAME]", default="")
@click.option("--watch", "-w", is_flag=True, help="Refresh until Ctrl-C.")
@output_option
def status(name: str, watch: bool, output: str) -> None:
    """State, reason, position, lag, and a line per channel."""
    from cdc.jobs import known, opened_store, status_of

    with opened_store() as store:

        def look() -> list[JobStatus]:
            records = (known(store, name),) if name else store.jobs()
            return [status_of(store, record) for record in records]

        if watch:
            _watch(look, output, alone=bool(name))
            return
        statuses = look()
    if output == "json":
        bodies = [one.to_json() for one in statuses]
        click.echo(json.dumps(bodies[0] if name else bodies, indent=2))
    else:
        _show(statuses, console())


@app.command(name="list")
@output_option
def list_jobs(output: str) -> None:
    """All jobs, a line each."""
    from cdc.jobs import opened_store, status_of
    from cdc.render import list_view

    with opened_store() as store:
        statuses = [status_of(store, record) for record in store.jobs()]
    if output == "json":
        click.echo(json.dumps([one.to_json() for one in statuses], indent=2))
    elif statuses:
        console().print(list_view(statuses))
    else:
        _say("There are no jobs. Start one with `cdc start JOB.yaml`.")


@app.command()
@name_argument
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C.")
@click.option("--lines", "-n", type=click.IntRange(min=0), default=50, show_default=True, help="Of the log's end.")
def logs(name: str, follow: bool, lines: int) -> None:
    """The log of a job started without --foreground."""
    from cdc.checkpoint_sqlite import state_folder
    from cdc.folder import JobFolder
    from cdc.jobs import known, opened_store
    from cdc.logs import follow_log, last_lines

    with opened_store() as store:
        known(store, name)
    log = JobFolder(state_folder(), name).log
    if not log.is_file():
        raise ConfigError(
            f"The job {name} has no log here.",
            mend="It was started with --foreground; its log went to where it was started.",
            path=log,
        )
    for line in last_lines(log, lines):
        click.echo(line)
    for line in follow_log(log) if follow else ():
        click.echo(line)


@app.command()
@name_argument
@click.argument("table", metavar="TABLE")
@click.option("--where", metavar="SQL", help="Only these rows.")
def snapshot(name: str, table: str, where: str | None) -> None:
    """Load a table of a running job again, or some of its rows."""
    from cdc.jobs import Driver, known, opened_store

    with opened_store() as store:
        record = known(store, name)
        _refuse_ended(record)
        driver = Driver(record)
        if driver.status() is None:
            raise ConfigError(
                f"The job {name} does not run: tables are loaded while it does.",
                mend=f"`cdc start {record.job_file}`, then ask again.",
            )
        driver.snapshot(table, where)
    rows = "the rows that you named" if where else "all its rows"
    _say(f"{table} is loaded again, {rows}. Look at it with `cdc status {name}`.")


@app.command()
@job_file_argument
@output_option
def ddl(job_file: Path, output: str) -> None:
    """Print the target's CREATE TABLE statements."""
    from cdc.config import load_config

    config = load_config(job_file)
    from cdc.inspection import ddl_of_job

    if output == "json":
        body = {"job": config.name, "statements": [one.rstrip().rstrip(";") for one in ddl_of_job(config)]}
        click.echo(json.dumps(body, indent=2))
        return
    for statement in ddl_of_job(config):
        click.echo(statement.rstrip().rstrip(";") + ";\n")


@app.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("demo"),
    help="Empty, or an earlier demonstration's, which goes. The tables stay in it.",
)
@click.option("--seconds", type=click.FloatRange(min=4), default=40.0, help="How long the shop is open.")
def demo(folder: Path, seconds: float) -> None:
    """Show it all at work, on a private MySQL."""
    from cdc.demo.run import run_demo

    sys.exit(run_demo(folder.absolute(), seconds=seconds))


def _is_paused_by_hand(job: JobStatus | JobRecord) -> bool:
    """Whether it waits for its user; a job whose server is away is PAUSED as well, and goes on by itself."""
    return (getattr(job.state, "value", job.state), job.resume) == ("PAUSED", "manual")


def _ask_before_stop(record: JobRecord, *, forget: bool, yes: bool) -> None:
    """Ask on a terminal before a job is cancelled for good. Without one, a script has decided already."""
    is_over = record.state.value in {"CANCELLED", "DONE"}
    if yes or (is_over and not forget) or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    name, kept = record.name, f"`cdc pause {record.name}` halts it and keeps it."
    if not is_over:
        click.echo(f"This cancels {name} for good: it cannot be started again. {kept}", err=True)
    if forget:
        click.echo("Its position and its state are deleted; the rows in its targets stay.", err=True)
    if not click.confirm(f"{'Forget' if is_over else 'Stop'} {name}?", default=False, err=True):
        raise ConfigError(f"Nothing was done: {name} is {record.state.value}.", mend=f"`cdc status {name}` shows it.")


def _refuse_ended(record: JobRecord) -> None:
    from cdc.checkpoint import forgetting

    if record.state.value in {"CANCELLED", "DONE"}:
        raise ConfigError(f"The job {record.name} is {record.state.value}.", mend=forgetting(record.name))


def _end_supervisor(record: JobRecord) -> None:
    """End a supervisor that waits to start the next driver, so that it does not while we change the state."""
    from cdc.jobs import supervisor_lives

    if record.supervisor_pid is None or not supervisor_lives(record):
        return
    os.kill(record.supervisor_pid, signal.SIGTERM)
    _poll(f"Ending the supervisor of {record.name}", lambda: not supervisor_lives(record), PAUSE_S)


def _poll(what: str, condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    with console(stderr=True).status(what):
        while not condition():
            if time.monotonic() > deadline:
                raise CdcError(f"{what} takes longer than {timeout_s:.0f} s; it goes on.", mend="See `cdc status`.")
            time.sleep(POLL_S)


def _show(statuses: list[JobStatus], terminal: Console) -> None:
    from cdc.render import status_view

    for number, one in enumerate(statuses):
        if number:
            terminal.rule(style="dim")
        terminal.print(status_view(one))
    if not statuses:
        terminal.print("There are no jobs. Start one with `cdc start JOB.yaml`.", highlight=False)


def _watch(look: Callable[[], list[JobStatus]], output: str, *, alone: bool) -> None:
    from rich.console import Group
    from rich.live import Live

    from cdc.render import status_view

    if output == "json":  # one object a line, for programs that follow
        while True:
            bodies = [one.to_json() for one in look()]
            click.echo(json.dumps(bodies[0] if alone else bodies))
            time.sleep(REFRESH_S)
    with Live(console=console(), auto_refresh=False, screen=False) as live:
        while True:
            live.update(Group(*(status_view(one) for one in look())), refresh=True)
            time.sleep(REFRESH_S)


def _say(text: str) -> None:
    console().print(text, markup=False, soft_wrap=True)


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does, with its own exit code."""

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main() -> NoReturn:
    """Run the command line; every error of ours ends in three lines and its exit code."""
    debug = "--debug" in sys.argv
    try:
        restrict_umask()
        with _signals():
            # not standalone: click would make an exit code 1 of Ctrl-C
            app(prog_name="cdc", standalone_mode=False)
        sys.exit(0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:
        # the reader has gone (`cdc logs shop | head`); nothing is to be flushed to it at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except CdcError as error:
        from cdc.render import error_view

        if debug:
            traceback.print_exc()
        error_view(error.message, error.place, error.mend, console(stderr=True))
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
