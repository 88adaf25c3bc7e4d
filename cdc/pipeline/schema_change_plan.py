"""Plan a schema change: which steps each target needs, and whether the job may take them.

::

    statement -> receiver: SchemaChange -> plan_change: ChangePlan -> saved PREPARED -> ``schema_changes``: the steps

The plan is made before the first target is changed, and a step that cannot be done refuses the whole change. Nothing of
a plan depends on anything but its arguments and the targets' columns, and it is saved: a restart never makes it again.

Source: docs/explanation/schema-changes.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cdc.errors import DdlStop, SchemaMismatch, TargetMismatch
from cdc.model.position import Position
from cdc.model.schema_change import (
    ChangeAction,
    ChangeKind,
    ChangePlan,
    ChangePolicy,
    DifferenceStart,
    PlannedStep,
    PlannedTable,
    SchemaChange,
    TableChange,
)
from cdc.model.timing import utc_now
from cdc.pipeline.schema_change_steps import alter_steps, target_before
from cdc.pipeline.table_planner import PlanRefused, TablePlanner, keep_rows_hint
from cdc.run_context import RunContext
from channels.sinks.base import AlterAction, can_alter, can_list_keys

_APPLY_ALL = ChangePolicy(kinds={kind.value: ChangeAction.APPLY for kind in ChangeKind})
_CREATIONS = (ChangeKind.CREATE_TABLE, ChangeKind.DROP_TABLE)  # CREATE OR REPLACE drops a table first


def plan_change(
    context: RunContext, change: SchemaChange, checkpoint_id: int, stop: DdlStop, *, applies_all: bool = False
) -> ChangePlan:
    """Return the steps of ``change``. ``checkpoint_id``: of the checkpoint that will have the plan.

    ``applies_all``: the user applies this statement, whatever `schema_changes` says.
    Raises: DdlStop - ``stop``, with the reason why the job cannot follow the change; SinkUnavailable.
    """
    try:
        tables = [_planned(context, one, checkpoint_id, change.last, applies_all=applies_all) for one in change.tables]
        tables = [_checked(context, one) for one in tables if one is not None]
        if not applies_all:
            _refuse_lost_values(table for table in tables if table is not None)
    except PlanRefused as refused:
        stop.message = f"{stop.message.removesuffix('.')}: {refused}."
        if refused.loads_again:
            stop.hint = _LOAD_AGAIN if context.snapshot is not None else _OTHER_JOB
        elif refused.hint:
            stop.hint = f"{refused.hint} {stop.hint}"
        raise stop from refused
    start = DifferenceStart(change.last, utc_now())
    return ChangePlan(change.statement, tuple(_dated(one, start) for one in tables if one is not None))


_LOAD_AGAIN = (
    "Drop the target table, or move it away, and run `cdc resume NAME --past-ddl --reload-missing`: a snapshot loads "
    "the table into a new target table."
)
_OTHER_JOB = (
    "Load the table into a new target with another job (`start: snapshot`), remove it from the channels of this job, "
    "and run `cdc resume NAME`."
)


def _dated(table: PlannedTable, start: DifferenceStart) -> PlannedTable:
    return replace(table, columns_after=table.columns_after.dated(table.columns_before, start))


def _planned(
    context: RunContext, change: TableChange, checkpoint_id: int, last: Position, *, applies_all: bool
) -> PlannedTable | None:
    """Return the plan of one table; None if no channel reads it."""
    mapping = context.routes.mapping_for(change.before.database, change.before.table)
    if mapping is None:
        return None
    if applies_all:
        mapping = replace(mapping, changes=_APPLY_ALL)
    planner = TablePlanner(mapping, change, checkpoint_id, last)
    planner.plan()
    table = PlannedTable(
        change.before.name,
        mapping.target,
        change.before,
        mapping.column_map,
        planner.column_map,
        tuple(planner.steps),
        planner.is_reloaded,
        planner.deletes_orphans,
        tuple(planner.actions),
    )
    is_created = change.rows in _CREATIONS and not change.after.is_dropped
    if is_created and (context.snapshot is None or not can_list_keys(context.sink)):
        table = _emptied(table)
    if planner.refiltered and table.is_reloaded and context.snapshot is None:
        raise PlanRefused(
            f"the filter of the channel {mapping.source}, {mapping.filter}, can accept other rows after the change of "
            f"the column {planner.refiltered}, and this source has no tables to load them from"
        )
    after = replace(mapping, column_map=planner.column_map)
    try:
        if change.after.columns and not change.after.is_dropped:
            after.reads(change.after)
            if table.deletes_orphans and not after.copies(change.after).keys() >= set(after.key_of(change.after)):
                raise PlanRefused(
                    f"a key column of {table.target} is an expression, so rows that the source no longer has cannot be "
                    "found",
                    keep_rows_hint(table),
                )
    except (SchemaMismatch, TargetMismatch) as error:
        is_new = not change.before.columns
        if is_new and context.routes.leave_out(change.after.database, change.after.table, error):
            return None
        raise PlanRefused(f"{error.message.removesuffix('.')} after it", error.hint) from error
    return table


def _checked(context: RunContext, table: PlannedTable) -> PlannedTable:
    """Return ``table`` after the sink was asked whether its steps can be done. A new load can replace a fill."""
    run = context.run
    may_differ = table.steps or table.deletes_orphans
    if may_differ and not context.sink.target_states(run.job, run.incarnation, [table.target]):
        # the target is created with the new columns when its first rows arrive
        if not table.deletes_orphans:
            return replace(table, steps=())
        table = replace(table, steps=(), deletes_orphans=False)
    table = _with_lengths(context, table)
    steps = alter_steps(table.steps, table)
    if steps:
        sink = context.sink
        if not can_alter(sink):
            raise PlanRefused(f"this sink cannot change the columns of {table.target}")
        findings = [one for one in sink.check_steps(target_before(context, table), steps) if one.fatal]
        if findings and any(step.fill is not None for step in steps) and context.snapshot is not None:
            # the new load brings the values that the sink cannot fill in
            without = tuple(replace(step, fill=None) for step in table.steps)
            table, steps = replace(table, steps=without, is_reloaded=True), alter_steps(without, table)
            findings = [one for one in sink.check_steps(target_before(context, table), steps) if one.fatal]
        if findings:
            raise PlanRefused(findings[0].problem.removesuffix("."), findings[0].hint)
    if table.deletes_orphans and not can_list_keys(context.sink):
        raise PlanRefused(
            f"this sink cannot find the rows of {table.target} that the source no longer has", keep_rows_hint(table)
        )
    if table.is_reloaded and context.snapshot is None:
        raise PlanRefused("rows get values that only the source has, and this source has no tables to load them from")
    return table


def _refuse_lost_values(tables: Iterable[PlannedTable]) -> None:
    """Raise PlanRefused if a new load would write NULL into columns that earlier or these changes keep."""
    for table in tables:
        # a created table, or another one that got the name: all its rows are new rows
        is_other = any(kind in (ChangeKind.CREATE_TABLE, ChangeKind.RENAME_TABLE) for kind, *_ in table.actions)
        if table.is_reloaded and table.columns_after.kept and not is_other:
            raise PlanRefused(
                f"the table must be loaded again, and {table.target} would then have NULL instead of its old values in "
                f"columns that the source no longer has: {', '.join(table.columns_after.kept)}",
                "Copy these columns of the target if you need their values. Then `cdc resume NAME --apply-ddl` applies "
                "the statement and loads the table.",
            )


def _emptied(table: PlannedTable) -> PlannedTable:
    """Return ``table`` with its target emptied: the source table was created empty, so the stream has all its rows."""
    columns = tuple(replace(step, fill=None) for step in table.steps)
    steps = (PlannedStep(AlterAction.TRUNCATE.value), *columns)
    return replace(table, steps=steps, is_reloaded=False, deletes_orphans=False)


def _with_lengths(context: RunContext, table: PlannedTable) -> PlannedTable:
    """Return ``table`` with those changes of a length, such as that of VARCHAR, that the sink has in its own type."""
    lengths = [step for step in table.steps if _is_length(step)]
    if not lengths:
        return table
    sink, before = context.sink, target_before(context, table)
    renamed = {step.new_name for step in table.steps if step.action == AlterAction.RENAME.value}
    needed = [
        step
        for step in lengths
        if can_alter(sink) and (step.old_name in renamed or sink.check_steps(before, alter_steps([step], table)))
    ]
    mapping = context.routes.mapping_for(table.before.database, table.before.table)
    if needed and mapping is not None and mapping.changes.action(ChangeKind.ALTER_TYPE) is not ChangeAction.APPLY:
        raise PlanRefused(f"{needed[0].old_name} becomes longer, and `schema_changes` does not apply changes of types")
    return replace(table, steps=tuple(step for step in table.steps if step in needed or step not in lengths))


def _is_length(step: PlannedStep) -> bool:
    """Return whether ``step`` changes a column without its Arrow type."""
    is_widen = step.action == AlterAction.WIDEN.value
    return is_widen and step.old is not None and step.new is not None and step.old.arrow == step.new.arrow
