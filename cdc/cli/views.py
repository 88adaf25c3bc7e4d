"""Jobs as text on a terminal: tables, colours, rounded numbers and ages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cdc.api.models import BadRowsStatus, JobStatus, SnapshotTotal
from cdc.api.schema_change_models import SchemaChangeStatus
from cdc.api.verify_models import VerifySummary

if TYPE_CHECKING:
    from cdc.checks.ddl_preview import Preview
    from cdc.checks.kafka import Sample
    from cdc.checks.state_store import StoreCheck
    from cdc.model.change_record import ChangeRecord, RecordedTable
    from cdc.state.hosts import Host
    from channels.sinks.base import Finding

_COLOURS = {"RUNNING": "green", "PENDING": "yellow", "PAUSED": "red", "CANCELLED": "dim", "DONE": "cyan"}
# shown instead of the row count
_SNAPSHOT_STATES = {
    "waiting": "waiting to start",
    "deleting_orphans": "finding rows that the source no longer has",
    "catching_up": "catching up",
}
BAR_WIDTH = 24
STATEMENT_CHARACTERS = 100  # migrations can fill screens; --output json has 4 KiB of them
GTID_CHARACTERS = 60  # the set of many servers fills screens; --output json has the whole set


def status_view(status: JobStatus, now: datetime | None = None) -> RenderableType:
    """Return one job: some lines about the job, then a line per channel."""
    now = now or datetime.now(UTC)
    head = Table.grid(padding=(0, 2))
    head.add_column(style="dim", no_wrap=True)
    head.add_column(overflow="fold")
    head.add_row("job", Text.assemble((status.job, "bold"), "  ", _state(status)))
    for name, value in (("reason", status.reason), ("hint", status.hint)):
        if value:
            head.add_row(name, Text(printable_lines(value), style="bold" if name == "hint" else ""))
    source = " ".join(filter(None, (status.source.type, status.source.server, status.source.destination)))
    head.add_row("flow", Text(f"{source} -> {status.sink.type} {status.sink.target}"))
    if status.position is not None:
        head.add_row("position", Text(_position(status)))
    if status.lag_seconds is not None or status.state == "RUNNING":
        head.add_row("lag", Text(_lag(status)))
    if status.checkpoint is not None:
        head.add_row("checkpoint", Text(_checkpoint(status, now)))
    if status.window_limit_bytes:
        head.add_row("window", Text(f"{size(status.window_bytes)} of {size(status.window_limit_bytes)} in memory"))
    if status.bad_rows is not None and (status.bad_rows.kept or status.bad_rows.loaded):
        head.add_row("bad rows", Text(_bad_rows(status.bad_rows)))
    if status.split_transactions:
        head.add_row("split", Text(f"{status.split_transactions:,} transactions were divided between cycles"))
    if status.schema_changes.applied or status.schema_changes.current is not None:
        head.add_row("schema", Text(_schema_changes(status.schema_changes, now)))
    parts: list[RenderableType] = [head]
    if status.verify.current is not None or status.verify.last is not None:
        head.add_row("verify", Text(_verify(status.verify, now)))
    if status.snapshot.tables:
        head.add_row("snapshot", Text(_snapshot(status.snapshot)))
    if status.snapshot.tables > status.snapshot.tables_done:
        parts += [Text(""), snapshots_view(status)]
    if status.channels:
        parts += [Text(""), _channels(status, now)]
    if any(channel.differences for channel in status.channels):
        parts += [Text(""), _differences(status)]
    if status.left_out:
        parts += [Text(""), _left_out(status)]
    return Group(*parts) if len(parts) > 1 else head


def _bad_rows(bad: BadRowsStatus) -> str:
    window = f"{bad.window_bad:,} of the last {bad.window_messages:,} messages are bad"
    return f"{bad.kept:,} messages are kept as files, {bad.loaded:,} were loaded later; {window}"


def _left_out(status: JobStatus) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("LEFT OUT", "REASON AND HINT"):
        table.add_column(name, overflow="fold")
    for one in status.left_out:
        reason = printable_lines(f"{one.reason} {one.hint}")
        table.add_row(Text(printable(one.table), style="bold yellow"), Text(reason))
    return table


def _differences(status: JobStatus) -> Table:
    """Return the columns and rows in which targets differ, because schema changes were not applied."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("NOT APPLIED", "CHANGE", "COLUMN", "TARGET COLUMN", "SINCE"):
        table.add_column(name, overflow="fold")
    for channel in status.channels:
        for one in channel.differences:
            names = (one.column, one.target or "none") if one.column else ("", "keeps its rows")
            since = one.since.time if one.since else ""
            table.add_row(
                Text(printable(channel.source), style="bold yellow"),
                one.kind.value,
                *(Text(printable(name)) for name in (*names, since)),
            )
    return table


def changes_view(records: Iterable[ChangeRecord]) -> RenderableType:
    """Return schema changes, one row per table."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("CHECKPOINT", "COMMITTED", "SECONDS", "TABLE", "CHANGES", "STATEMENT"):
        is_number = name in {"CHECKPOINT", "SECONDS"}
        table.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for record in records:
        first = (str(record.checkpoint), record.committed_at or "", f"{record.seconds:.1f}")
        statement = one_line(record.statement)
        if not record.tables:
            table.add_row(*first, "", "", Text(statement))
        for one in record.tables:
            table.add_row(*first, Text(printable(one.source)), Text(_table_changes(one)), Text(statement))
            first, statement = ("", "", ""), ""
    return table


def preview_view(preview: Preview, console: Console) -> None:
    """Print what a job would do with a statement, without markup."""
    lines = [f"The job would pause. {preview.reason}", f"hint: {preview.hint}"] if preview.reason is not None else []
    for one in preview.tables:
        change = one.change
        lines += [f"{change.source} -> {change.target}"]
        lines += [f"  {line}" for line in _table_changes(change).splitlines()]
        steps = [(" -> ".join(dict.fromkeys(filter(None, (step.old, step.new)))), step.action) for step in change.steps]
        lines += [f"  step {number}: {action} {names}".rstrip() for number, (names, action) in enumerate(steps, 1)]
        lines += [f"  cost: {cost}" for cost in one.costs]
        lines += [f"  note: {note}" for note in one.notes]
    lines = lines or ["The statement changes no column and no row that the job reads. The job would continue."]
    for line in lines:
        console.print(printable(line), markup=False, soft_wrap=True)


def _table_changes(table: RecordedTable) -> str:
    lines = [printable(f"{one.kind.value} {one.column}".strip() + f": {one.action}") for one in table.actions]
    return "\n".join([*lines, *["loaded again"] * table.is_reloaded])


def printable(text: str) -> str:
    """Return ``text`` without control characters: a name or statement of the source must not control the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


def printable_lines(text: str) -> str:
    """Return ``text`` as ``printable`` does, with its line breaks. A tab becomes spaces."""
    return "\n".join(map(printable, text.expandtabs().split("\n")))


def one_line(statement: str) -> str:
    """Return the beginning of a statement, without control characters."""
    text = printable(" ".join(statement.split()))
    return text if len(text) <= STATEMENT_CHARACTERS else text[:STATEMENT_CHARACTERS] + "..."


def _verify(summary: VerifySummary, now: datetime) -> str:
    if (current := summary.current) is not None:
        share = f"{current.rows / current.estimated_rows:.0%} of " if current.estimated_rows else ""
        return f"{current.state}: {share}{count(current.estimated_rows)} rows compared, {current.differs:,} differ"
    last = summary.last
    assert last is not None
    found = last.error if last.error is not None else f"{last.differs:,} of {count(last.rows)} rows differ"
    repaired = f", {last.repaired:,} repaired" if last.repaired else ""
    return f"{last.state} {age(last.ended_at, now)}: {printable(found)}{repaired}"


def _schema_changes(changes: SchemaChangeStatus, now: datetime) -> str:
    if (current := changes.current) is not None:
        part = f", {current.progress:.0%} of the next one" if current.progress is not None else ""
        return f"{current.step} of {current.steps} steps done{part}: {one_line(current.statement)}"
    last = changes.last
    assert last is not None
    followed = f"{changes.applied:,} change{'s' if changes.applied != 1 else ''}"
    return f"{followed}, last {age(last.committed_at, now)}: {one_line(last.statement)}"


def snapshots_view(status: JobStatus) -> RenderableType:
    """Return a progress bar for each table whose snapshot is not finished."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(width=BAR_WIDTH)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    for channel in status.channels:
        snapshot = channel.snapshot
        if snapshot is None or snapshot.consistent:
            continue
        total = max(snapshot.estimated_rows, snapshot.rows, 1)
        is_read = snapshot.state in ("deleting_orphans", "catching_up")
        part = 1.0 if is_read else min(0.99, snapshot.rows / total)
        text = f"{count(snapshot.rows)} of about {count(total)} rows, {size(snapshot.bytes)}"
        if snapshot.rows_per_second:
            text += f", {count(round(snapshot.rows_per_second))} rows/s"
        text += f", {snapshot.done} of {snapshot.chunks} chunks"
        if snapshot.seconds_left is not None:
            text += f", {seconds(snapshot.seconds_left)} left"
        text = _SNAPSHOT_STATES.get(snapshot.state, text)
        bar = ProgressBar(total=1.0, completed=part, width=BAR_WIDTH)
        table.add_row(Text(printable(channel.source)), bar, f"{part:.0%}", Text(text))
    return table


def list_view(statuses: Sequence[JobStatus], now: datetime | None = None) -> RenderableType:
    """Return all jobs, one line each."""
    now = now or datetime.now(UTC)
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("JOB", "STATE", "LAG", "CHANNELS", "CHANGES", "COMMITTED", "REASON"):
        table.add_column(name, justify="right" if name in {"LAG", "CHANNELS", "CHANGES"} else "left")
    for status in statuses:
        changes = sum(channel.upserts + channel.deletes for channel in status.channels)
        committed = status.checkpoint.committed_at if status.checkpoint is not None else None
        row = (f"{len(status.channels):,}", count(changes), age(committed, now), status.reason or "")
        table.add_row(
            Text(status.job, style="bold"), _state(status), _lag(status), *(escape(printable_lines(one)) for one in row)
        )
    return table


def hosts_view(hosts: Sequence[Host], jobs: Mapping[str, Sequence[str]]) -> RenderableType:
    """Return the hosts, one line each. ``jobs``: the names of the jobs of each host."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("HOST", "STATE", "SEEN", "MEMORY", "LABELS", "JOBS", "ADDRESS"):
        table.add_column(name, justify="right" if name in {"SEEN", "MEMORY"} else "left")
    for host in hosts:
        style, state = ("red", "DEAD") if not host.is_alive else ("green", "READY")
        if host.is_alive and not host.schedulable:
            style, state = "yellow", "DRAINED" if host.drained else "NO SPACE"
        elif host.is_alive and host.is_starting:
            style, state = "yellow", "STARTING"
        labels = ", ".join(f"{name}={value}" for name, value in sorted(host.labels.items()))
        row = (f"{host.seen_ago_s:.0f} s", size(host.memory), labels, " ".join(jobs[host.name]), host.address or "")
        table.add_row(Text(host.name, style="bold"), Text(state, style=style), *(escape(one) for one in row))
    return table


def error_view(message: str, where: str, hint: str, console: Console) -> None:
    """Print message, location and hint of an error on three lines, without markup."""
    message, where, hint = map(printable_lines, (message, where, hint))
    console.print(Text.assemble(("error: ", "bold red"), message.rstrip()), soft_wrap=True)
    if where:
        console.print(Text.assemble(("where: ", "dim"), where), soft_wrap=True)
    if hint:
        console.print(Text.assemble(("hint:  ", "bold green"), hint), soft_wrap=True)


def finding_view(findings: Iterable[Finding], console: Console) -> None:
    """Print findings, each with its hint below it, without markup."""
    for finding in findings:
        kind = Text("refused ", style="bold red") if finding.fatal else Text("warning ", style="yellow")
        console.print(kind.append(printable_lines(finding.problem), style="default not bold"), soft_wrap=True)
        console.print(Text(f"  hint: {printable_lines(finding.hint)}"), soft_wrap=True)


def store_view(stored: StoreCheck, console: Console) -> None:
    """Print a line about the state store, if it could be opened."""
    if stored.format is None:
        return
    ahead_s = stored.clock_ahead_s
    clock = f", its clock differs by {abs(ahead_s):.1f} s" if ahead_s is not None else ""
    console.print(Text(f"State store {stored.location}: format {stored.format}{clock}", style="dim"), soft_wrap=True)


def sample_view(samples: Iterable[Sample], console: Console) -> None:
    """Print rows of messages beside their target columns, without markup."""
    for sample in samples:
        row = "a delete" if sample.deleted else "a row"
        where = f"{sample.topic}[{sample.partition}]:{sample.offset}"
        names = printable(f"{where} has {row} of {sample.table} for {sample.target}:")
        console.print(Text(names), soft_wrap=True)
        for column in sample.columns:
            name = column.name if column.source == column.name else f"{column.name} = {column.source}"
            value = "(computed)" if column.is_computed else "NULL" if column.value is None else column.value
            line = Text(f"  {printable(name)}: ", style="dim").append(printable_lines(value), style="default not dim")
            console.print(line, soft_wrap=True)


def count(number: int) -> str:
    """Return a number with three significant digits: ``1,234``, ``12.3k``, ``4.56M``."""
    if number < 10_000:
        return f"{number:,}"
    for unit, size in (("k", 10**3), ("M", 10**6), ("G", 10**9)):
        if number < 999.5 * size or unit == "G":
            value = number / size
            return (
                f"{value:.0f}{unit}" if value >= 100 else f"{value:.1f}{unit}" if value >= 10 else f"{value:.2f}{unit}"
            )
    raise AssertionError(number)


def size(number: int) -> str:
    """Return a size in binary units: ``512 B``, ``1.5 KiB``, ``64 MiB``."""
    value, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def seconds(value: float) -> str:
    """Return a duration in its two largest units: ``0.4 s``, ``42 s``, ``3 min 5 s``, ``2 h 10 min``, ``3 d 4 h``."""
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 120:
        return f"{whole} s"
    steps = ((7200, 60, "min", 1, "s"), (172_800, 3600, "h", 60, "min"), (inf, 86400, "d", 3600, "h"))
    _, size_s, unit, below_s, below = next(step for step in steps if whole < step[0])
    rest = whole % size_s // below_s
    return f"{whole // size_s} {unit}" + (f" {rest} {below}" if rest else "")


def age(moment: str | None, now: datetime) -> str:
    """Return how long ago ``moment`` was; "never" for None."""
    if moment is None:
        return "never"
    ago = (now - datetime.fromisoformat(moment)).total_seconds()
    return f"{seconds(max(0.0, ago))} ago"


def _state(status: JobStatus) -> Text:
    resume = f" ({status.resume})" if status.resume and status.state == "PAUSED" else ""
    return Text(status.state + resume, style=f"bold {_COLOURS.get(status.state, 'white')}")


def _lag(status: JobStatus) -> str:
    return "unknown" if status.lag_seconds is None else seconds(status.lag_seconds)


def _position(status: JobStatus) -> str:
    position = dict(status.position or {})
    position.pop("created", None)  # a time in seconds, with which the job recognizes a replaced file
    gtids = str(position.pop("gtid_set", "") or "")
    short = gtids if len(gtids) <= GTID_CHARACTERS else gtids[:GTID_CHARACTERS] + "..."
    location = f"{position.pop('file', '')}:{position.pop('offset', '')}".strip(":")
    others = (f"{name} {value}" for name, value in position.items() if value not in (None, ""))
    return "  ".join(filter(None, (location, *others, f"gtids {short}" if short else "")))


def _checkpoint(status: JobStatus, now: datetime) -> str:
    checkpoint = status.checkpoint
    assert checkpoint is not None
    parts = [f"{checkpoint.id} {checkpoint.state}"]
    if checkpoint.committed_at is not None:
        parts.append(age(checkpoint.committed_at, now))
    parts.append(f"{count(checkpoint.rows)} rows, {size(checkpoint.bytes)}")
    if checkpoint.closed_by:
        parts.append(f"closed by {checkpoint.closed_by}")
    if checkpoint.seconds:
        parts.append(", ".join(f"{name} {value:.2f} s" for name, value in checkpoint.seconds.items()))
    return "  ".join(parts)


def _snapshot(total: SnapshotTotal) -> str:
    tables = f"{total.tables} table{'s' if total.tables != 1 else ''}"
    if total.tables_done == total.tables:
        return f"{tables}, {count(total.rows)} rows loaded"
    state = "waiting to start, " if total.waiting == total.tables - total.tables_done else ""
    chunks = f", {total.chunks_done} of {total.chunks} chunks" if total.chunks else ""
    return f"{state}{total.tables_done} of {tables} done{chunks}, {count(total.rows)} rows loaded"


def _channels(status: JobStatus, now: datetime) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("SOURCE", "TARGET", "LOADED", "UPSERTS", "DELETES", "BYTES", "WAITING", "COMMITTED", ""):
        is_number = name in {"LOADED", "UPSERTS", "DELETES", "BYTES", "WAITING"}
        table.add_column(name, justify="right" if is_number else "left")
    for channel in status.channels:
        odd = channel.state if channel.state != status.state else ""
        loaded = count(channel.snapshot.rows) if channel.snapshot else ""
        counts = (
            loaded,
            count(channel.upserts),
            count(channel.deletes),
            size(channel.bytes),
            count(channel.buffered_rows),
        )
        names = (Text(printable(channel.source)), Text(printable(channel.target)))
        table.add_row(*names, *counts, age(channel.last_committed_at, now), Text(odd, style="bold yellow"))
    return table
