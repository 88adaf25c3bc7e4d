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
from cdc.model.arrow_types import widens
from cdc.model.fill_values import fill_scalar
from cdc.model.schema import Column, TableSchema
from cdc.model.schema_change import (
    ChangeAction,
    ChangeKind,
    ChangePlan,
    ColumnChange,
    FillKind,
    PlannedStep,
    PlannedTable,
    SchemaChange,
    TableChange,
)
from cdc.run_context import RunContext
from channels.mapping import Mapping as TableMapping
from channels.mapping import can_be_null
from channels.sinks.base import AlterAction, AlterStep, TargetColumn, TargetTable, can_alter, can_list_keys

_LOADED = frozenset((FillKind.BY_ROW, FillKind.STATEMENT_TIME))


class PlanRefused(Exception):
    """A change cannot be followed. The text says why, and ``hint`` what to do."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.hint = hint


def plan_change(context: RunContext, change: SchemaChange, checkpoint_id: int, stop: DdlStop) -> ChangePlan:
    """Return the steps of ``change``. ``checkpoint_id``: of the checkpoint that will have the plan.

    Raises: DdlStop - ``stop``, with the reason why the job cannot follow the change; SinkUnavailable.
    """
    try:
        tables = [_planned(context, one, checkpoint_id) for one in change.tables]
        tables = [_checked(context, one) for one in tables if one is not None]
    except PlanRefused as refused:
        stop.message = f"{stop.message.removesuffix('.')}: {refused}."
        if refused.hint:
            stop.hint = f"{refused.hint} {stop.hint}"
        raise stop from refused
    return ChangePlan(change.statement, tuple(one for one in tables if one is not None))


def _planned(context: RunContext, change: TableChange, checkpoint_id: int) -> PlannedTable | None:
    """Return the plan of one table; None if no channel reads it."""
    mapping = context.routes.mapping_for(change.before.database, change.before.table)
    if mapping is None:
        return None
    planner = _TablePlanner(mapping, change, checkpoint_id)
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
    after = replace(mapping, column_map=planner.column_map)
    try:
        after.reads(change.after)
    except (SchemaMismatch, TargetMismatch) as error:
        raise PlanRefused(f"{error.message.removesuffix('.')} after it", error.hint) from error
    return table


def _checked(context: RunContext, table: PlannedTable) -> PlannedTable:
    """Return ``table`` after the sink was asked whether its steps can be done. A new load can replace a fill."""
    run = context.run
    if table.steps and not context.sink.target_states(run.job, run.incarnation, [table.target]):
        return replace(table, steps=())  # the target is created with the new columns when its first rows arrive
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
        raise PlanRefused(f"this sink cannot find the rows of {table.target} that the source no longer has")
    if table.is_reloaded and context.snapshot is None:
        raise PlanRefused(
            "existing rows get values that only the source has, and this source has no tables to load them from"
        )
    return table


class _TablePlanner:
    """Finds the steps of one table, change by change."""

    def __init__(self, mapping: TableMapping, change: TableChange, checkpoint_id: int) -> None:
        self.column_map = mapping.column_map
        self.steps: list[PlannedStep] = []
        self.actions: list[tuple[ChangeKind, str, ChangeAction]] = []
        self.is_reloaded = self.deletes_orphans = False
        self._mapping = mapping
        self._change = change
        self._checkpoint_id = checkpoint_id
        self._keys = {name.casefold() for name in change.before.key}
        self._pending = set(change.columns)
        self._parked: list[PlannedStep] = []  # columns with a name that is free, until their own name is
        self._renamed: set[str] = set()  # new names; an exchange gives the old name of a column to another one

    def plan(self) -> None:
        """Find all steps. Raises: PlanRefused."""
        change = self._change
        if change.key_changed:  # in every mode: rows that were one row can become two, and the reverse
            raise PlanRefused("it changes the key", _LOAD_AGAIN)
        if change.rows is not None:
            self._plan_rows(change.rows)
        handlers = {
            ChangeKind.ADD_COLUMN: self._plan_add,
            ChangeKind.DROP_COLUMN: self._plan_drop,
            ChangeKind.RENAME_COLUMN: self._plan_rename,
            ChangeKind.ALTER_TYPE: self._plan_type,
        }
        for column_change in change.columns:
            handlers[column_change.kind](column_change)
            self._pending.discard(column_change)
            if not any(one.kind is ChangeKind.RENAME_COLUMN for one in self._pending):
                self._end_exchange()

    def _action(self, kind: ChangeKind, column: str) -> ChangeAction:
        action = self._mapping.changes.action(kind)
        if action is ChangeAction.PAUSE:
            raise PlanRefused(f"`schema_changes` has the action pause for {kind.value}")
        self.actions.append((kind, column, action))
        return action

    def _plan_rows(self, kind: ChangeKind) -> None:
        if kind not in (ChangeKind.TRUNCATE_TABLE, ChangeKind.DROP_PARTITION):
            raise PlanRefused(f"the job cannot follow {kind.value} yet")
        if self._action(kind, "") is ChangeAction.APPLY:
            self.is_reloaded = self.deletes_orphans = True

    def _plan_add(self, change: ColumnChange) -> None:
        column = _known(change.new)
        action = self._action(change.kind, column.name)
        if self._is_explicit(column):
            return
        if action is ChangeAction.IGNORE:
            self._map(column.name, None)
            return
        self._move_away(column.name)
        if change.fill.kind in _LOADED:
            self.is_reloaded = True
        self._step(AlterAction.ADD, new=(column.name, column), fill=change.fill.text)

    def _plan_drop(self, change: ColumnChange) -> None:
        column = _known(change.old)
        self._refuse_explicit(column)
        action, target = self._action(change.kind, column.name), self.column_map.target_of(column.name)
        names = {name: one for name, one in self.column_map.names.items() if name != column.name}
        self.column_map = replace(self.column_map, names=names)
        if target is None or self._mapping.columns is not None:
            return
        if action is ChangeAction.APPLY:
            self._step(AlterAction.DROP, old=(target, column))
            return
        if not can_be_null(column):
            nullable = replace(column, nullable=True)
            self._step(AlterAction.MAKE_NULLABLE, old=(target, column), new=(target, nullable))
            column = nullable
        self.column_map = replace(self.column_map, kept={**self.column_map.kept, target: column})

    def _plan_rename(self, change: ColumnChange) -> None:
        old, new = _known(change.old), _known(change.new)
        self._refuse_explicit(old)
        if self._is_explicit(new):
            return
        action = self._action(change.kind, f"{old.name} -> {new.name}")
        target = self._mapping.column_map.target_of(old.name)  # a rename means the names before the statement
        gone = {old.name, new.name} - self._renamed
        names = {name: one for name, one in self.column_map.names.items() if name not in gone}
        self.column_map = replace(self.column_map, names=names)
        self._renamed.add(new.name)
        if target is None:
            self._map(new.name, None)
        elif action is ChangeAction.IGNORE or target != old.name:
            self._map(new.name, target)
        elif any(_frees(one, new.name) for one in self._pending - {change}):
            # names are exchanged: this one is free only after a later rename
            parked = f"{new.name}__{self._checkpoint_id}"
            self._step(AlterAction.RENAME, old=(target, old), new=(parked, new))
            self._parked.append(PlannedStep(AlterAction.RENAME.value, parked, new, new.name, new))
        else:
            self._move_away(new.name)
            self._step(AlterAction.RENAME, old=(target, old), new=(new.name, new))

    def _end_exchange(self) -> None:
        self.steps += self._parked
        self._parked = []

    def _plan_type(self, change: ColumnChange) -> None:
        old, new = _known(change.old), _known(change.new)
        target = self.column_map.target_of(old.name)
        if self._mapping.columns is not None:
            if self._names(old) and (old.arrow != new.arrow or change.changes_values):
                raise PlanRefused(f"the mapping reads the column {old.name}, which changes its type")
            return
        if target is None:
            return
        is_same = old.arrow == new.arrow and can_be_null(new) <= can_be_null(old)
        if is_same and not change.changes_values:
            return
        self._action(change.kind, old.name)
        if old.arrow != new.arrow:
            if not widens(old.arrow, new.arrow):
                if widens(new.arrow, old.arrow):
                    raise PlanRefused(f"{old.name} becomes narrower: {old.type} to {new.type}", _LOAD_AGAIN)
                raise PlanRefused(f"the target cannot convert {old.name} from {old.type} to {new.type}", _LOAD_AGAIN)
            if old.name.casefold() in self._keys:
                raise PlanRefused(f"the key column {old.name} changes its type", _LOAD_AGAIN)
            self._step(AlterAction.WIDEN, old=(target, old), new=(target, new))
        elif not can_be_null(old) and can_be_null(new):
            self._step(AlterAction.MAKE_NULLABLE, old=(target, old), new=(target, new))
        self.is_reloaded |= change.changes_values

    # parts

    def _step(
        self,
        action: AlterAction,
        *,
        old: tuple[str, Column] | None = None,
        new: tuple[str, Column] | None = None,
        fill: bytes | None = None,
    ) -> None:
        old_name, old_column = old or (None, None)
        new_name, new_column = new or (None, None)
        digits = fill.hex() if fill is not None else None
        self.steps.append(PlannedStep(action.value, old_name, old_column, new_name, new_column, digits))

    def _map(self, source: str, target: str | None) -> None:
        names = {**self.column_map.names, source: target}
        self.column_map = replace(self.column_map, names=names)

    def _move_away(self, name: str) -> None:
        """Rename a target column that an ignored change has left, so that a new column can have its name."""
        target = {one.casefold(): one for one in self.column_map.kept}.get(name.casefold())
        if target is None:
            return
        column = self.column_map.kept[target]
        free = f"{target}__{self._checkpoint_id}"
        self._step(AlterAction.RENAME, old=(target, column), new=(free, column))
        kept = {name: one for name, one in self.column_map.kept.items() if name != target}
        self.column_map = replace(self.column_map, kept={**kept, free: column})

    def _is_explicit(self, column: Column) -> bool:
        """Return whether the mapping has columns of its own, which a new column does not change."""
        if self._mapping.columns is None:
            return False
        if self._names(column):
            raise PlanRefused(f"the mapping names the column {column.name}")
        return True

    def _refuse_explicit(self, column: Column) -> None:
        if self._names(column):
            raise PlanRefused(
                f"`columns`, `filter` or `key` of the channel {self._mapping.source} reads the column {column.name}",
                "Change the channel in the job file.",
            )

    def _names(self, column: Column) -> bool:
        before = self._change.before
        schema = before if _has(before, column) else replace(before, columns=(*before.columns, column))
        return self._mapping.names(schema, column.name)


_LOAD_AGAIN = "Load the table into a new target, or drop the target and run `cdc resume NAME --reload-missing`."


def _frees(change: ColumnChange, name: str) -> bool:
    """Return whether ``change`` renames the column ``name``."""
    is_rename = change.kind is ChangeKind.RENAME_COLUMN and change.old is not None
    return is_rename and _known(change.old).name.casefold() == name.casefold()


def _has(schema: TableSchema, column: Column) -> bool:
    return any(one.name.casefold() == column.name.casefold() for one in schema.columns)


def _known(column: Column | None) -> Column:
    if column is None:
        raise RuntimeError("a change lacks its column")
    return column


# from a saved plan to steps of the sink


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
