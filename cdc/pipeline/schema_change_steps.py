"""From the saved plan of a schema change to the steps of a sink, and the target before and after them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cdc.errors import SchemaMismatch
from cdc.model.fill_values import fill_scalar
from cdc.model.schema import Column
from cdc.model.schema_change import PlannedStep, PlannedTable
from cdc.run_context import RunContext
from channels.mapping import can_be_null
from channels.sinks.base import AlterAction, AlterStep, TargetColumn, TargetTable


def alter_steps(steps: Iterable[PlannedStep], table: PlannedTable) -> list[AlterStep]:
    """Return what the sink does for ``steps`` of ``table``."""
    keys = {name.casefold() for name in table.before.key}
    return [_alter_step(step, keys) for step in steps]


def _alter_step(step: PlannedStep, keys: set[str]) -> AlterStep:
    action = AlterAction(step.action)
    before = _target_column(step.old_name, step.old, keys)
    after = _target_column(step.new_name, step.new, keys, added=action is AlterAction.ADD)
    fill = None
    if step.new is not None and step.fill is not None:
        fill = fill_scalar(step.new, bytes.fromhex(step.fill))
    return AlterStep(action, before, after, fill)


def _target_column(
    name: str | None, column: Column | None, keys: set[str], *, added: bool = False
) -> TargetColumn | None:
    if name is None or column is None:
        return None
    nullable = added or (can_be_null(column) and column.name.casefold() not in keys)
    return TargetColumn(name, column.arrow, nullable, column.type, column.comment)


def target_before(context: RunContext, table: PlannedTable) -> TargetTable:
    """Return the target of ``table`` as it is before the change. Raises: SchemaMismatch, TargetMismatch."""
    mapping = context.routes.mapping_for(table.before.database, table.before.table)
    if mapping is None:
        raise SchemaMismatch(
            f"No channel reads {table.source} any more, but a change of it is not finished.",
            hint="Restore the channel in the job file, and resume the job.",
            table=table.source,
        )
    return replace(mapping, column_map=table.columns_before).target_table(table.before, context.types)


def target_after(target: TargetTable, steps: Iterable[AlterStep]) -> TargetTable:
    """Return ``target`` after ``steps``."""
    columns = list(target.columns)
    for step in steps:
        names = [column.name for column in columns]
        at = names.index(step.before.name) if step.before is not None and step.before.name in names else None
        if step.after is None and at is not None:
            del columns[at]
        elif step.after is not None and at is not None:
            columns[at] = step.after
        elif step.after is not None and step.action is AlterAction.ADD:
            columns.append(step.after)
    return replace(target, columns=tuple(columns))
