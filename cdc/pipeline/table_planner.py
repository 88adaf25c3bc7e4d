"""Find the steps of one target table for a change of its source table.

Nothing here asks a sink: the result depends on the change, the mapping and what earlier changes have left.

Source: docs/explanation/schema-changes.md.
"""

from __future__ import annotations

from dataclasses import replace

from cdc.model.arrow_types import widens
from cdc.model.position import Position
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import (
    ChangeAction,
    ChangeKind,
    ColumnChange,
    FillKind,
    PlannedStep,
    PlannedTable,
    TableChange,
)
from cdc.mysql.table_contents import TABLE_KINDS
from channels.mapping import Mapping as TableMapping
from channels.mapping import can_be_null
from channels.number_comparison import compares_with_numbers
from channels.sinks.base import AlterAction

_INTEGERS = frozenset((Kind.TINYINT, Kind.SMALLINT, Kind.MEDIUMINT, Kind.INT, Kind.BIGINT))
_LOADED = frozenset((FillKind.BY_ROW, FillKind.STATEMENT_TIME, FillKind.NULL_OR_TIME))


class PlanRefused(Exception):
    """A change cannot be followed. The text says why, and ``hint`` what to do.

    ``loads_again``: no change of the target table fits it, only a new one that is loaded from the source.
    """

    def __init__(self, why: str, hint: str = "", *, loads_again: bool = False) -> None:
        super().__init__(why)
        self.hint = hint
        self.loads_again = loads_again


class TablePlanner:
    """Finds the steps of one table, change by change."""

    def __init__(self, mapping: TableMapping, change: TableChange, checkpoint_id: int, last: Position) -> None:
        self.column_map = mapping.column_map
        self.steps: list[PlannedStep] = []
        self.actions: list[tuple[ChangeKind, str, ChangeAction]] = []
        self.is_reloaded = self.deletes_orphans = False
        self.refiltered = ""  # a column whose new type or values can change which rows the filter accepts
        self._mapping = mapping
        self._change = change
        self._checkpoint_id = checkpoint_id
        self._last = last
        self._keys = {name.casefold() for name in (*change.before.key, *mapping.key)}
        self._pending = set(change.columns)
        self._parked: list[PlannedStep] = []  # columns with a name that is free, until their own name is
        self._renamed: set[str] = set()  # new names; an exchange gives the old name of a column to another one

    def plan(self) -> None:
        """Find all steps. Raises: PlanRefused."""
        change = self._change
        if change.after.is_dropped:
            self._plan_end(change.rows)
            return
        if change.key_changed:  # in every mode: rows that were one row can become two, and the reverse
            raise PlanRefused("it changes the key", loads_again=True)
        if change.rows in TABLE_KINDS:
            self._plan_table(change.rows)
        elif change.rows is not None:
            self._plan_rows(change.rows)
        self.is_reloaded |= change.values_differ
        if change.before.is_dropped or self.deletes_orphans:
            self.column_map = replace(self.column_map, kept_rows={})
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
            hint = "`cdc resume NAME --apply-ddl` applies the statement to the target."
            if kind in _ROW_KINDS:
                hint = f"{_ROW_ACTIONS.format(kind=kind.value)} {hint}"
            raise PlanRefused(f"`schema_changes` has the action pause for {kind.value}", hint)
        self.actions.append((kind, column, action))
        return action

    def _plan_end(self, kind: ChangeKind | None) -> None:
        """The table does not exist any more, or has another name. Its rows stay in the target."""
        kind = kind or ChangeKind.DROP_TABLE
        self._action(kind, "")
        self.actions[-1] = (kind, "", ChangeAction.IGNORE)
        self._note_kept_rows(kind)

    def _plan_table(self, kind: ChangeKind | None) -> None:
        """The name means another table, of which no row is loaded. CREATE OR REPLACE has the kind DROP_TABLE."""
        kind = kind or ChangeKind.CREATE_TABLE
        self._action(kind, "")
        if kind is ChangeKind.DROP_TABLE:
            self.actions[-1] = (ChangeKind.CREATE_TABLE, "", ChangeAction.APPLY)
        self.is_reloaded = self.deletes_orphans = True

    def _plan_rows(self, kind: ChangeKind) -> None:
        if self._action(kind, "") is ChangeAction.IGNORE:
            self._note_kept_rows(kind)
            return
        self.column_map = replace(self.column_map, kept_rows={})
        if kind is ChangeKind.TRUNCATE_TABLE:
            self._step(AlterAction.TRUNCATE)
        else:
            self.is_reloaded = self.deletes_orphans = True

    def _note_kept_rows(self, kind: ChangeKind) -> None:
        self.column_map = replace(self.column_map, kept_rows={**self.column_map.kept_rows, kind.value: self._last})

    def _plan_add(self, change: ColumnChange) -> None:
        column = _known(change.new)
        action = self._action(change.kind, column.name)
        if self._is_explicit(column):
            return
        # the user can have passed the statement that dropped an earlier column of this name
        names = {name: one for name, one in self.column_map.names.items() if name != column.name}
        self.column_map = replace(self.column_map, names=names)
        if action is ChangeAction.IGNORE:
            self._map(column.name, None)
            return
        self._move_away(column.name)
        if change.fill.kind in _LOADED:
            self.is_reloaded = True
        target = column.name
        if self._is_taken(target):
            target = self._free(target)
            self._map(column.name, target)
        self._step(AlterAction.ADD, new=(target, column), fill=change.fill.text)

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
        elif action is ChangeAction.IGNORE or target != old.name or self._is_taken(new.name):
            self._map(new.name, target)
        elif any(_frees(one, new.name) for one in self._pending - {change}):
            # names are exchanged: this one is free only after a later rename
            parked = self._free(new.name)
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
        if self._filters_otherwise(change):
            self.is_reloaded, self.refiltered = True, old.name
        if target is None:
            return
        is_same = old.arrow == new.arrow and can_be_null(new) <= can_be_null(old)
        if is_same:
            self._step(AlterAction.WIDEN, old=(target, old), new=(target, new))  # see ``_with_lengths``
            if not change.changes_values:
                return
        if self._action(change.kind, old.name) is ChangeAction.IGNORE:
            raise PlanRefused(f"{change.kind.value} cannot be ignored: rows of the new type need not match the target")
        if {old.name.casefold(), target.casefold()} & self._keys:
            self._check_key(change)
        if widens(old.arrow, new.arrow):
            self._step(AlterAction.WIDEN, old=(target, old), new=(target, new))
        elif old.arrow != new.arrow and not widens(new.arrow, old.arrow):
            raise PlanRefused(f"the target cannot convert {old.name} from {old.type} to {new.type}", loads_again=True)
        elif not can_be_null(old) and can_be_null(new):
            wide = new if old.arrow == new.arrow else replace(old, nullable=True)
            self._step(AlterAction.MAKE_NULLABLE, old=(target, old), new=(target, wide))
        self.is_reloaded |= change.changes_values

    def _check_key(self, change: ColumnChange) -> None:
        """Raise PlanRefused for a key column that does not become a wider integer with the same values."""
        old, new = _known(change.old), _known(change.new)
        if change.changes_values:
            raise PlanRefused(f"values of the key column {old.name} can have changed", loads_again=True)
        if old.arrow != new.arrow and not {old.kind, new.kind} <= _INTEGERS:
            raise PlanRefused(f"the key column {old.name} changes its type", loads_again=True)

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

    def _free(self, name: str) -> str:
        return f"{name}__{self._checkpoint_id}"

    def _is_taken(self, name: str) -> bool:
        """Return whether a target column of this name has the values of a source column of another name.

        An ignored rename has left it. Readers of the target continue to use it, so it keeps its name.
        """
        return any(
            target is not None and target.casefold() == name.casefold() != source.casefold()
            for source, target in self.column_map.names.items()
        )

    def _move_away(self, name: str) -> None:
        """Rename a target column that an ignored change has left, so that a new column can have its name."""
        target = {one.casefold(): one for one in self.column_map.kept}.get(name.casefold())
        if target is None:
            return
        column = self.column_map.kept[target]
        free = self._free(target)
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
        return self._mapping.names(self._with(column), column.name)

    def _filters_otherwise(self, change: ColumnChange) -> bool:
        """Return whether the filter of the mapping, which has no columns of its own, can accept other rows then.

        A value that stays the same can fail a condition with its new type: 0.1 is another DOUBLE than FLOAT.
        """
        old, new, mapping = _known(change.old), _known(change.new), replace(self._mapping, key=())
        if mapping.filter is None or not mapping.names(self._with(old), old.name):
            return False
        if change.changes_values or old.arrow == new.arrow:
            return change.changes_values
        return not (_is_wider_number(old, new) and compares_with_numbers(mapping.filter, old))

    def _with(self, column: Column) -> TableSchema:
        before = self._change.before
        return before if _has(before, column) else replace(before, columns=(*before.columns, column))


_ROW_KINDS = (ChangeKind.TRUNCATE_TABLE, ChangeKind.DROP_PARTITION)
_ROW_ACTIONS = (
    "Set `schema_changes.kinds: {{{kind}: apply}}` to remove the rows from the target too, or `{{{kind}: ignore}}` to "
    "keep them there, and resume."
)


def keep_rows_hint(table: PlannedTable) -> str:
    """Return the hint for rows that cannot be deleted; "" if the change cannot be ignored."""
    kinds = [kind.value for kind, *_ in table.actions if kind in _ROW_KINDS]
    return f"Set `schema_changes.kinds: {{{kinds[0]}: ignore}}` to keep these rows, and resume." if kinds else ""


def _frees(change: ColumnChange, name: str) -> bool:
    """Return whether ``change`` renames the column ``name``."""
    return change.kind is ChangeKind.RENAME_COLUMN and _known(change.old).name.casefold() == name.casefold()


def _is_wider_number(old: Column, new: Column) -> bool:
    """Return whether an integer or a decimal only gets more digits before the point."""
    is_integer = {old.kind, new.kind} <= _INTEGERS
    is_decimal = old.kind == new.kind == Kind.DECIMAL and old.scale == new.scale
    return (is_integer or is_decimal) and old.unsigned == new.unsigned and widens(old.arrow, new.arrow)


def _has(schema: TableSchema, column: Column) -> bool:
    return any(one.name.casefold() == column.name.casefold() for one in schema.columns)


def _known(column: Column | None) -> Column:
    if column is None:
        raise RuntimeError("a change lacks its column")
    return column
