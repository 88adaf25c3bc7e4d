"""The command logs, for a log on this host or on another one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import click

from cdc.cli.options import name_argument, output_option
from cdc.errors import CdcError, CheckpointError, ConfigError, PrerequisiteError

if TYPE_CHECKING:
    from cdc.api.log_page import LogPage

REFRESH_S = 1.0
AWAY_S = 60.0  # `cdc logs --follow` retries so long
LOG_LINES_MOST = 5000  # of one answer of another host


@click.command()
@name_argument
@click.option("--follow", "-f", is_flag=True, help="Show new lines until Ctrl-C.")
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Number of lines from the end of the log.",
)
@output_option
def logs(name: str, follow: bool, lines: int, output: str) -> None:
    """Show the log of a job that was started without --foreground. As JSON, each line is an object."""
    from cdc.job.registry import get_job, is_here, not_run_yet, open_store
    from cdc.job.remote_calls import RemoteDriver
    from cdc.logging_setup import follow_log, last_lines
    from cdc.paths import state_folder
    from cdc.state.base import ENDED
    from cdc.state.job_directory import JobDirectory

    with open_store() as store:
        record = get_job(store, name)
        if not is_here(store, record):

            def is_over() -> bool:
                found = store.job(name)
                return found is None or found.state in ENDED

            show_log(RemoteDriver(store, record).log, lines, output, follow=follow, is_over=is_over)
            return
    log = JobDirectory(state_folder(), name).log
    if not log.is_file() and not record.job_file:
        raise not_run_yet(record)
    if not log.is_file():
        raise ConfigError(
            f"The job {name} has no log file.",
            hint="It was started with --foreground: read the log of the terminal or service that started it.",
            path=log,
        )
    for line in last_lines(log, lines):
        _print_line(line, output)
    for line in follow_log(log) if follow else ():
        _print_line(line, output)


def _print_line(line: str, output: str) -> None:
    from cdc.cli.views import printable_lines

    click.echo(json.dumps({"line": line}) if output == "json" else printable_lines(line))


def show_log(
    read: Callable[..., LogPage], lines: int, output: str = "table", *, follow: bool, is_over: Callable[[], bool]
) -> None:
    """Print the log of a job on another host. ``read``: returns the last ``lines``, or those after ``offset``.

    With ``follow``, return when there is no more log of a job that has ended or was forgotten (``is_over``).
    """
    found: LogPage | None = read(lines=min(lines, LOG_LINES_MOST))
    offsets: dict[str, int] = {}  # of each log that was shown
    while found is not None:
        for line in found.lines:
            _print_line(line, output)
        if not follow:
            return
        offsets[found.log_id] = found.offset
        time.sleep(REFRESH_S)
        found = _read_next(read, found, offsets, is_over)


def _read_next(
    read: Callable[..., LogPage], shown: LogPage, offsets: dict[str, int], is_over: Callable[[], bool]
) -> LogPage | None:
    """Return the lines after ``shown``; None if the job is over.

    After a move they are of another log, in which the offset of ``shown`` would omit lines: read that log after its
    last shown line. If no line of it was shown, read it from its start, because only this omits no line.
    """
    while True:
        found = _read_again(partial(read, offset=offsets.get(shown.log_id, 0)), is_over)
        if found is None or found.log_id == shown.log_id:
            return found
        begin = "again, after its last shown line" if found.log_id in offsets else "now, from its start"
        click.echo(
            f"The log is of host {found.host} {begin}. The last lines of host {shown.host} can be missing.", err=True
        )
        shown = found  # its lines are those after an offset of another log


def _read_again(read: Callable[[], LogPage], is_over: Callable[[], bool]) -> LogPage | None:
    """Return the answer of ``read``; None if it fails because the job is over.

    Hosts and drivers start again within a minute: retry for 60 s while none answers. Raises: CdcError - none does.
    """
    began, is_reported = time.monotonic(), False
    while True:
        try:
            try:
                return read()
            except CdcError:
                if is_over():
                    return None
                raise
        except (PrerequisiteError, CheckpointError) as error:
            if time.monotonic() - began >= AWAY_S:
                raise
            if not is_reported:
                from cdc.cli.views import printable_lines

                click.echo(f"{printable_lines(error.message)} The command retries for {AWAY_S:.0f} s.", err=True)
            is_reported = True
            time.sleep(REFRESH_S)
