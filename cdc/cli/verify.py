"""The command ``cdc verify``, which compares source and target of a running job."""

from __future__ import annotations

import json
import secrets
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from cdc.cli.options import name_argument, output_option
from cdc.cli.terminal import POLL_S, console, print_result
from cdc.errors import ConfigError, PrerequisiteError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from cdc.api.models import JobStatus
    from cdc.api.verify_models import VerifyStatus
    from cdc.model.verify import Verification
    from cdc.state.base import JobRecord
    from cdc.state.sql import SqlStore

NO_DRIVER_S = 120.0  # a supervisor starts a driver that died again, within seconds
HISTORY = 20
_DIFFERS = 1  # exit code


def _share(_: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    from cdc.config.verify_models import share

    if value is None:
        return None
    try:
        found = share(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from error
    return found if found < 1 else None


@click.command()
@name_argument
@click.argument("tables", metavar="[TABLE...]", nargs=-1)
@click.option("--sample", metavar="P", callback=_share, help="Share of the rows to compare, such as 1%.")
@click.option("--columns", metavar="A,B", default="", help="Target columns to compare besides the key. Default: all.")
@click.option("--repair", is_flag=True, help="Load rows that differ again, and delete rows that only the target has.")
@click.option("--history", is_flag=True, help="Show earlier verifications instead, newest first.")
@output_option
def verify(
    name: str, tables: tuple[str, ...], sample: float | None, columns: str, repair: bool, history: bool, output: str
) -> None:
    """Compare the rows of source and target of a running job.

    Exit code 0: all rows are equal. 1: some differ, or a table could not be compared.
    """
    from cdc.api.verify_models import StartVerify
    from cdc.job.registry import driver_of, get_job, open_store
    from cdc.model.table_names import table_of, table_text

    with open_store() as store:
        record = get_job(store, name)
        if history:
            show(store.verifications(name, HISTORY), output, is_list=True)
            return
        status = driver_of(store, record).status()
        if status is None or status.state != "RUNNING":
            raise ConfigError(
                f"The job {name} is {status.state if status else 'not running'}; only a running job can be verified.",
                hint=f"See `cdc status {name}`.",
            )
        token = secrets.token_hex(8)
        plain = tuple(table_text(*table_of(table)) for table in tables)
        chosen = tuple(part.strip() for part in columns.split(",") if part.strip())
        driver_of(store, record).request(StartVerify(plain, sample, chosen, repair, token))
        found = _wait(store, record, token)
    show([found], output, is_list=False)
    if not found.is_equal:
        sys.exit(_DIFFERS)


def _wait(store: SqlStore, record: JobRecord, token: str) -> Verification:
    """Return the verification with ``token`` when it has ended, with a progress bar until then."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from cdc.job.registry import driver_of

    deadline = time.monotonic() + NO_DRIVER_S
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.fields[found]}"))
    with Progress(*columns, TimeElapsedColumn(), console=console(stderr=True), transient=True) as bar:
        line = bar.add_task("waiting to start", total=None, found="")
        while True:
            known = [one for one in store.verifications(record.name, HISTORY) if one.request.token == token]
            if known and known[0].ended_at is not None:
                return known[0]
            record = store.job(record.name) or record  # after a restart, the driver has another address
            status = driver_of(store, record).status()
            if status is not None and status.state in ("RUNNING", "PENDING"):
                deadline = time.monotonic() + NO_DRIVER_S
            elif time.monotonic() > deadline or (status is not None and status.resume == "manual"):
                state = status.state if status is not None else "not running"
                raise PrerequisiteError(
                    f"The job {record.name} is {state}. The verification continues when it runs.",
                    hint=f"See `cdc status {record.name}`, then `cdc verify {record.name} --history`.",
                )
            bar.update(line, **_progress(status, token))
            time.sleep(POLL_S)


def _progress(status: JobStatus | None, token: str) -> dict[str, Any]:
    current: VerifyStatus | None = status.verify.current if status is not None else None
    if current is None or current.token != token:
        return {}
    left = [one for one in current.tables if one.state not in ("done", "skipped")]
    what = f"comparing {left[0].source}" if left else current.state
    found = f"{current.rows:,} rows" + (f", {current.differs:,} differ" if current.differs else "")
    known = current.estimated_rows if all(one.chunks or one.state != "waiting" for one in current.tables) else None
    return {"description": what, "completed": current.rows, "total": known or None, "found": found}


def show(found: Sequence[Verification], output: str, *, is_list: bool) -> None:
    """Print verifications. As JSON, the history is a list whatever its length, and one verification is an object."""
    if output == "json":
        from cdc.state.codec import to_json

        bodies = [{**json.loads(to_json(one)), "equal": one.is_equal} for one in found]
        click.echo(json.dumps(bodies if is_list else bodies[0], indent=2))
        return
    if not found:
        print_result("There is no verification of this job.")
    for one in found:
        console().print(verification_view(one))


def verification_view(found: Verification) -> RenderableType:
    """Return a verification: a line about it, one per table, and one per row that differs."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from cdc.cli.views import printable, seconds

    began = f"of {found.began_at}" if found.began_at else "is waiting"
    size = f", sample of {found.request.sample:.2%}" if found.request.sample is not None else ""
    head = Text(f"Verification {found.number} {began}{size}: ")
    if found.error is not None:
        head.append(f"ended early. {printable(found.error)}", "red")
    elif found.ended_at is None:
        head.append("not complete", "yellow")
    elif found.is_equal:
        head.append("source and target are equal", "green")
    elif found.differs:
        head.append(f"{found.differs:,} rows differ", "red")
    else:
        head.append("some tables were not compared", "red")
    head.append(f" ({found.rows:,} rows compared, {seconds(found.seconds)}")
    head.append(f", position {found.position})" if found.position is not None else ")")
    tables = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("TABLE", "ROWS", "MISSING", "EXTRA", "DIFFERENT", "CHANGING", "REPAIRED", "STATE"):
        tables.add_column(name, justify="left" if name in ("TABLE", "STATE") else "right", overflow="fold")
    for name, one in sorted(found.tables.items()):
        numbers = (one.rows, one.missing, one.extra, one.different, one.changing, one.repaired)
        state = f"{one.state}: {one.note}" if one.note else one.state.value
        tables.add_row(Text(printable(name)), *(f"{number:,}" for number in numbers), Text(printable(state)))
    rows = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("ROW", "KEY", "COLUMN", "SOURCE", "TARGET"):
        rows.add_column(name, overflow="fold")
    for difference in found.differences:
        key = ", ".join(f"{column}={value}" for column, value in difference.key.items())
        first = (f"{difference.table} {difference.kind}", key)
        for value in difference.values or (None,):
            shown = ("", "", "") if value is None else (value.column, _text(value.source), _text(value.target))
            rows.add_row(*(Text(printable(part)) for part in (*first, *shown)))
            first = ("", "")
    return Group(head, *([tables] if found.tables else []), *([rows] if found.differences else []))


def _text(value: str | None) -> str:
    return "NULL" if value is None else value
