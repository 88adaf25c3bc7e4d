"""Commands that change nothing: check, status, list, changes, ddl."""

from __future__ import annotations

import json
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc.cli.options import job_file_argument, name_argument, output_option
from cdc.cli.terminal import console, print_result
from cdc.errors import CheckpointError, PrerequisiteError, with_job

if TYPE_CHECKING:
    from rich.console import Console

    from cdc.api.models import JobStatus
    from cdc.checks.ddl_preview import Preview
    from cdc.checks.kafka import Sample
    from cdc.checks.state_store import StoreCheck
    from cdc.config.models import Config
    from cdc.model.change_record import ChangeRecord
    from cdc.state.base import Checkpoint, JobRecord
    from channels.sinks.base import Finding

REFRESH_S = 1.0


@click.command()
@job_file_argument
@output_option
def check(job_file: Path, output: str) -> None:
    """Check the job file, the state store, the source, the sink and the tables."""
    from cdc.config.models import load_config

    config = load_config(job_file)
    from cdc.checks.job import check_job
    from cdc.checks.saved_job import committed_job_findings, saved_job_findings
    from cdc.cli.views import sample_view, store_view

    with console(stderr=True).status("Checking state store, source, sink and tables"):
        stored, record, committed = _checked_store(config.name)
        incarnation = record.incarnation if record else ""
        found: list[Sample] = []
        of_job: tuple[Finding, ...] = ()
        if record is not None:
            of_job = saved_job_findings(record, config)
        elif not any(one.fatal for one in stored.findings):
            of_job = committed_job_findings(config)
        findings = (*stored.findings, *of_job, *check_job(config, incarnation, committed, on_sample=found.append))
        findings = tuple(replace(one, hint=with_job(one.hint, config.name)) for one in findings)
        is_refused = any(finding.fatal for finding in findings)
        samples = [] if is_refused else found
    body = {
        "job": config.name,
        "can_start": not is_refused,
        "findings": [asdict(one) for one in findings],
        "samples": [asdict(one) for one in samples],
        "store": {"location": stored.location, "format": stored.format, "clock_ahead_s": stored.clock_ahead_s},
    }

    def show_more(terminal: Console) -> None:
        sample_view(samples, terminal)
        store_view(stored, terminal)

    show_check(body, output, show_more)
    if is_refused:
        sys.exit(PrerequisiteError.exit_code)


def show_check(
    body: Mapping[str, Any], output: str, show_more: Callable[[Console], object] = lambda terminal: None
) -> None:
    """Print the answer of a check. ``show_more``: prints what only a terminal shows, below the findings."""
    from cdc.cli.views import finding_view
    from channels.sinks.base import Finding

    if output == "json":
        click.echo(json.dumps(body, indent=2))
        return
    terminal = console()
    finding_view([Finding(**one) for one in body["findings"]], terminal)
    show_more(terminal)
    if body["can_start"]:
        terminal.print(f"[green]The job {body['job']} can start.[/]")


def _checked_store(job: str) -> tuple[StoreCheck, JobRecord | None, Checkpoint | None]:
    """Return the check of the state store, and what it has of a job: its record and its newest checkpoint."""
    from cdc.checks.state_store import check_store, refused_store
    from cdc.job.registry import open_store

    try:
        with open_store() as store:
            checked = check_store(store)
            if any(finding.fatal for finding in checked.findings):
                return checked, None, None
            return checked, store.job(job), store.last_committed(job)
    except CheckpointError as error:
        return refused_store(error), None, None


@click.command()
@click.argument("name", metavar="[NAME]", default="")
@click.option("--watch", "-w", is_flag=True, help="Refresh every second until Ctrl-C.")
@output_option
def status(name: str, watch: bool, output: str) -> None:
    """Show state, reason, position and lag of a job, and a line per channel."""
    from cdc.job.registry import get_job, open_store, status_of

    with open_store() as store:

        def read_statuses() -> list[JobStatus]:
            records = (get_job(store, name),) if name else store.jobs()
            return [status_of(store, record) for record in records]

        show_statuses(read_statuses, output, watch=watch, is_one=bool(name))


def show_statuses(read_statuses: Callable[[], list[JobStatus]], output: str, *, watch: bool, is_one: bool) -> None:
    """Print statuses. ``watch``: every second until Ctrl-C. ``is_one``: of one job, which JSON has without a list."""
    if watch:
        _watch(read_statuses, output, alone=is_one)
        return
    statuses = read_statuses()
    if output == "json":
        bodies = [one.to_json() for one in statuses]
        click.echo(json.dumps(bodies[0] if is_one else bodies, indent=2))
    else:
        _show(statuses, console())


@click.command(name="list")
@output_option
def list_jobs(output: str) -> None:
    """Show all jobs, one line each."""
    from cdc.job.registry import open_store, status_of

    with open_store() as store:
        statuses = [status_of(store, record) for record in store.jobs()]
    show_list(statuses, output)


def show_list(statuses: list[JobStatus], output: str) -> None:
    """Print jobs, one line each."""
    from cdc.cli.views import list_view

    if output == "json":
        click.echo(json.dumps([one.to_json() for one in statuses], indent=2))
    elif statuses:
        console().print(list_view(statuses))
    else:
        print_result("There are no jobs. Start one with `cdc start JOB.yaml`.")


@click.command()
@name_argument
@output_option
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Number of changes, from the newest one."
)
def changes(name: str, output: str, limit: int) -> None:
    """Show the schema changes that a job has followed, newest first."""
    from cdc.job.registry import get_job, open_store

    with open_store() as store:
        get_job(store, name)
        records = store.changes(name, limit)
    show_changes(name, records, output)


def show_changes(name: str, records: Sequence[ChangeRecord], output: str) -> None:
    """Print the schema changes of the job ``name``."""
    if output == "json":
        from cdc.state.codec import to_json

        click.echo(json.dumps([json.loads(to_json(one)) for one in records], indent=2))
    elif records:
        from cdc.cli.views import changes_view

        console().print(changes_view(records))
    else:
        print_result(f"The job {name} has followed no schema change.")


@click.command()
@click.argument("job_file", metavar="JOB.yaml|NAME", type=click.Path(path_type=Path))
@click.option("--statement", metavar="SQL", help="Show what the job would do with this DDL statement. Nothing changes.")
@click.option(
    "--pending",
    is_flag=True,
    help="Show what `cdc resume --apply-ddl` would do with the statement at which the job NAME is paused.",
)
@output_option
def ddl(job_file: Path, statement: str | None, pending: bool, output: str) -> None:
    """Print the CREATE TABLE statements of the targets, or what the job would do with a DDL statement."""
    from cdc.config.models import load_config

    if pending:
        _preview_pending(str(job_file), output)
        return
    config = load_config(_file_of(job_file))
    if statement is not None:
        _preview(config, statement, output)
        return
    from cdc.checks.job import ddl_of_job

    if output == "json":
        body = {"job": config.name, "statements": [one.rstrip().rstrip(";") for one in ddl_of_job(config)]}
        click.echo(json.dumps(body, indent=2))
        return
    for text in ddl_of_job(config):
        click.echo(text.rstrip().rstrip(";") + ";\n")


def _file_of(file_or_name: Path) -> Path:
    """Return the path of a job file. A name of a job means its file, unless a file has this path."""
    from cdc.job.registry import job_file_of, open_store

    try:
        if not stat.S_ISDIR(file_or_name.stat().st_mode):  # a folder may have the name of a job
            return file_or_name
    except FileNotFoundError:
        pass
    except OSError:  # such as a folder of another user, which ``load_config`` reports
        return file_or_name
    with open_store() as store:
        record = store.job(str(file_or_name))
        return job_file_of(store, record) if record is not None else file_or_name


def _preview(config: Config, statement: str, output: str) -> None:
    from cdc.checks.job import preview_of_job
    from cdc.job.registry import open_store

    with open_store() as store:
        record, checkpoint = store.job(config.name), store.last_committed(config.name)
    _show_preview(
        preview_of_job(config, statement, record.incarnation if record else "", checkpoint), config.name, output
    )


def _preview_pending(name: str, output: str) -> None:
    from cdc.checks.job import preview_of_pause
    from cdc.cli.views import one_line
    from cdc.config.models import load_config
    from cdc.job.registry import get_job, job_file_of, open_store

    with open_store() as store:
        record, checkpoint = get_job(store, name), store.last_committed(name)
        job_file = job_file_of(store, record)
    found = preview_of_pause(load_config(job_file), record, checkpoint)
    if output != "json" and found.statement:
        click.echo(f"{name} is paused at: {one_line(found.statement)}")
    _show_preview(found, name, output)


def _show_preview(found: Preview, name: str, output: str) -> None:
    from cdc.cli.views import preview_view
    from cdc.state.codec import to_json

    if found.hint is not None:
        found = replace(found, hint=with_job(found.hint, name))
    if output == "json":
        click.echo(json.dumps({"job": name, **json.loads(to_json(found))}, indent=2))
    else:
        preview_view(found, console())


def _show(statuses: list[JobStatus], terminal: Console) -> None:
    from cdc.cli.views import status_view

    for number, one in enumerate(statuses):
        if number:
            terminal.rule(style="dim")
        terminal.print(status_view(one))
    if not statuses:
        terminal.print("There are no jobs. Start one with `cdc start JOB.yaml`.", highlight=False)


def _watch(read_statuses: Callable[[], list[JobStatus]], output: str, *, alone: bool) -> None:
    from rich.console import Group
    from rich.live import Live

    from cdc.cli.views import status_view

    if output == "json":  # one object per line
        while True:
            bodies = [one.to_json() for one in read_statuses()]
            click.echo(json.dumps(bodies[0] if alone else bodies))
            time.sleep(REFRESH_S)
    terminal = console()
    if not terminal.is_terminal:  # a pipe or a file, in which Live prints nothing until it ends
        while True:
            _show(read_statuses(), terminal)
            terminal.print()
            time.sleep(REFRESH_S)
    with Live(console=terminal, auto_refresh=False, screen=False) as live:
        while True:
            live.update(Group(*(status_view(one) for one in read_statuses())), refresh=True)
            time.sleep(REFRESH_S)
