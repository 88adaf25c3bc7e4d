"""What a job would do with a DDL statement, for ``cdc ddl``. Nothing changes, in source or targets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from cdc.errors import DdlStop
from cdc.job.wiring import Components
from cdc.model.change_record import RecordedTable
from cdc.model.position import BinlogPosition
from cdc.model.schema import Kind, TableSchema
from cdc.model.schema_change import ChangeKind, FillKind, PlannedTable, SchemaChange, TableChange
from cdc.mysql.column_definition import Dialect
from cdc.mysql.ddl_tokens import Unreadable
from cdc.mysql.ddl_words import StoredName, as_written
from cdc.mysql.statement_time import StatementTime, with_time
from cdc.mysql.table_changes import read_changes
from cdc.mysql.table_contents import TABLE_KINDS, Content, changes_by_name, contents_of
from cdc.pipeline.schema_change_plan import plan_change
from cdc.pipeline.schema_change_steps import alter_steps, target_before
from cdc.run_context import RunContext, SnapshotSettings
from cdc.state.base import Checkpoint
from channels.mapping import ExpressionTypes
from channels.routes import Routes
from channels.sinks.base import Sink, can_alter
from channels.task import RunIdentity

_NOWHERE = BinlogPosition("", 0)


@dataclass(frozen=True, slots=True)
class PreviewedTable:
    """What the job would do to the target of one source table."""

    change: RecordedTable
    costs: tuple[str, ...]  # of steps that write all rows again
    notes: tuple[str, ...] = ()  # what only the statement in the binlog says


@dataclass(frozen=True, slots=True)
class Preview:
    """What the job would do with a statement."""

    statement: str
    reason: str | None  # why it would pause; None: it would not
    hint: str | None
    tables: tuple[PreviewedTable, ...]  # () if the statement changes no mapped column or row, or if it would pause


@dataclass(frozen=True, slots=True)
class _PlanContext:
    """The part of ``RunContext`` that plans a change. A preview has no receiver, no store and no Tasks."""

    run: RunIdentity
    routes: Routes
    sink: Sink
    types: ExpressionTypes | None
    snapshot: SnapshotSettings | None


def preview_statement(
    statement: str,
    schemas: Mapping[tuple[str, str], TableSchema],
    components: Components,
    run: RunIdentity,
    checkpoint: Checkpoint | None,
    *,
    mariadb: bool,
    ansi_quotes: bool | None = False,
    stored: StoredName = as_written,
) -> Preview:
    """Return what the job would do with ``statement``. A name without a database is in the only one that the job reads.

    ``schemas``: the mapped tables as they are now. ``checkpoint``: the last one of the job, if it has run.
    ``ansi_quotes``: None if the job reads statements without their sql_mode.
    Raises: SinkUnavailable.
    """
    databases = {database for database, _ in schemas}
    try:
        changes = read_changes(
            statement,
            database=databases.pop() if len(databases) == 1 else "",
            schema_of=lambda database, table: schemas.get((database, table)),
            tables_of=lambda database: [table for owner, table in schemas if owner == database],
            dialect=Dialect(mariadb=mariadb, ansi_quotes=ansi_quotes),  # as the job reads it
            stored=stored,
        )
    except Unreadable as error:
        reason = f"The statement cannot be followed: {str(error) or 'it has an unknown form'}."
        return Preview(statement, reason, "Change the target yourself, then run `cdc resume NAME`.", ())
    maps = components.routes.may_map
    # a new table joins without a change
    new = ChangeKind.CREATE_TABLE
    contents = [(name, one) for name, one in contents_of(changes).items() if maps(*name) and one.kind is not new]
    mapped = (
        *(one for one in changes if one.rows not in TABLE_KINDS and (one.before.database, one.before.table) in schemas),
        *changes_by_name(contents, lambda *name: schemas.get(name), lambda name, content, _: _known(content)),
    )
    # the event of the statement will have its time, so plan with any time
    timed = with_time(list(mapped), StatementTime(0, 0, "+00:00"), None)
    notes = {one.before.name: tuple(_notes(one)) for one in mapped}
    change = SchemaChange(statement, _NOWHERE, _NOWHERE, tuple(timed))
    return preview_change(change, components, run, checkpoint, notes=notes)


def preview_change(
    change: SchemaChange,
    components: Components,
    run: RunIdentity,
    checkpoint: Checkpoint | None,
    *,
    applies_all: bool = False,
    notes: Mapping[str, tuple[str, ...]] | None = None,
) -> Preview:
    """Return what the job would do with a statement that was read. Raises: SinkUnavailable.

    ``applies_all``: the user applies it, whatever `schema_changes` says. ``notes``: what else to show of a table, by
    its name before the statement.
    """
    components.routes.use_column_maps(checkpoint.column_maps if checkpoint else {})
    parts = _PlanContext(run, components.routes, components.sink, components.types, components.snapshot)
    context = cast(RunContext, parts)
    names = ", ".join(dict.fromkeys(one.before.name for one in change.tables))
    stop = DdlStop(f"The statement changes {names}.", hint="Change the target yourself, then run `cdc resume NAME`.")
    try:
        number = checkpoint.id + 1 if checkpoint else 1
        plan = plan_change(context, change, number, stop, applies_all=applies_all)
    except DdlStop as refused:
        return Preview(change.statement, refused.message, refused.hint, ())
    # a comment or an index changes a table, but nothing that the job reads
    changed = [one for one in plan.tables if one.actions or one.steps or one.is_reloaded]
    found = notes or {}
    previewed = (_previewed(context, one, found.get(one.source, ())) for one in changed)
    return Preview(change.statement, None, None, tuple(previewed))


def _known(content: Content) -> TableSchema:
    """Return the table that a name will mean; it has no columns if no channel reads it now."""
    assert content.schema is not None
    return content.schema


def _notes(change: TableChange) -> Iterator[str]:
    for one in change.columns:
        if one.fill.kind is FillKind.STATEMENT_TIME and one.new is not None:
            zone = "" if one.new.kind is Kind.TIMESTAMP else " in the time zone of its session"
            yield (
                f"existing rows of {one.new.name} get the time of the statement{zone}, which the preview does not "
                "know. If binlog and server do not give its exact value, the job loads the table again."
            )


def _previewed(context: RunContext, table: PlannedTable, notes: tuple[str, ...]) -> PreviewedTable:
    steps, sink = alter_steps(table.steps, table), context.sink
    findings = sink.check_steps(target_before(context, table), steps) if steps and can_alter(sink) else ()
    return PreviewedTable(RecordedTable.of(table), tuple(one.problem for one in findings), notes)
