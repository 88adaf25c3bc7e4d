"""Changes of source tables: what a statement does to columns and rows, as the reader of statements describes it.

Source: docs/explanation/schema-changes.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum

from cdc.model.position import Position
from cdc.model.saved_bytes import SavedBytes
from cdc.model.schema import Column, TableSchema


class ChangeKind(Enum):
    """The kinds of changes. The names are those of Flink CDC where it has one."""

    ADD_COLUMN = "add.column"
    DROP_COLUMN = "drop.column"
    RENAME_COLUMN = "rename.column"
    ALTER_TYPE = "alter.column.type"
    ALTER_KEY = "alter.key"
    CREATE_TABLE = "create.table"
    RENAME_TABLE = "rename.table"
    DROP_TABLE = "drop.table"
    DROP_DATABASE = "drop.database"
    TRUNCATE_TABLE = "truncate.table"
    DROP_PARTITION = "drop.partition"


class FillKind(Enum):
    """The values that existing rows have in an added column."""

    NULL = "null"
    LITERAL = "literal"  # the same value in every row
    STATEMENT_TIME = "statement time"  # CURRENT_TIMESTAMP and its relatives: the time of the statement
    NULL_OR_TIME = "null or time"  # the server may have stored a time for each NULL: the catalog shows it
    BY_ROW = "by row"  # generated, AUTO_INCREMENT, an expression: only a new load of the table has the values


@dataclass(frozen=True, slots=True)
class Fill:
    """The value of existing rows in an added column.

    ``text``: of LITERAL, as SELECT returns it in a session in UTC: text in UTF-8, binaries as they are. BIT is a
    decimal number, and ZEROFILL is without its zeros.
    """

    kind: FillKind = FillKind.NULL
    text: SavedBytes | None = None


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """One change of one column. ``old`` is None for an added column, ``new`` for a dropped one.

    A rename that also changes the type is two changes: RENAME_COLUMN (``new`` has the old type), then ALTER_TYPE.
    """

    kind: ChangeKind
    old: Column | None = None
    new: Column | None = None
    fill: Fill = Fill()
    changes_values: bool = False  # of ALTER_TYPE: values of existing rows can have changed without row events


@dataclass(frozen=True, slots=True)
class TableChange:
    """What one statement does to one table.

    ``after``: without ``since``. A text column whose charset the statement does not name has the charset "" if the
    table's default is not known; ``confirmed`` takes it from the catalog. A table that is not known has no columns: the
    old one of RENAME TABLE, and the one before CREATE TABLE. After ``changes_by_name`` both have the same name: a table
    that does not exist after the statement has an ``after`` with ``is_dropped``.
    """

    before: TableSchema
    after: TableSchema
    columns: tuple[ColumnChange, ...] = ()  # in the order in which they apply
    rows: ChangeKind | None = None  # a kind that removes or replaces rows without row events
    key_changed: bool = False  # another key; a key whose columns were only renamed is the same
    key_is_certain: bool = True  # False: the key of ``after`` depends on indexes that a TableSchema does not have
    values_differ: bool = False  # rows that do not follow from ``columns``: other values, or rows of another table


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A statement that changes mapped tables."""

    statement: str
    first: Position  # before the statement
    last: Position  # after it: reading can continue there
    tables: tuple[TableChange, ...]
    forgets: tuple[str, ...] = ()  # recorded tables without a channel that have another name after it
    renamed: tuple[TableSchema, ...] = ()  # mapped tables, under their new names, which no channel reads


class ChangeAction(StrEnum):
    """What the job does with a kind of change."""

    APPLY = "apply"  # make the same change in the target
    IGNORE = "ignore"  # leave the target as it is, continue, and report the difference
    PAUSE = "pause"  # pause before the statement


class ChangeMode(StrEnum):
    """How a job follows changes of its source. The names are those of Flink CDC."""

    EVOLVE = "evolve"  # do what the source does
    LENIENT = "lenient"  # add, rename and widen columns; drop and empty nothing
    IGNORE = "ignore"  # leave the target as it is, if the job can continue
    PAUSE = "pause"  # pause at every change


_APPLY, _IGNORE, _PAUSE = ChangeAction.APPLY, ChangeAction.IGNORE, ChangeAction.PAUSE
_ACTIONS = {
    ChangeKind.ADD_COLUMN: (_APPLY, _APPLY, _IGNORE),
    ChangeKind.DROP_COLUMN: (_APPLY, _IGNORE, _IGNORE),
    ChangeKind.RENAME_COLUMN: (_APPLY, _APPLY, _IGNORE),
    ChangeKind.ALTER_TYPE: (_APPLY, _APPLY, _PAUSE),
    ChangeKind.ALTER_KEY: (_PAUSE, _PAUSE, _PAUSE),
    ChangeKind.CREATE_TABLE: (_APPLY, _APPLY, _APPLY),
    ChangeKind.RENAME_TABLE: (_APPLY, _APPLY, _PAUSE),
    ChangeKind.DROP_TABLE: (_IGNORE, _IGNORE, _IGNORE),
    ChangeKind.DROP_DATABASE: (_IGNORE, _IGNORE, _IGNORE),
    ChangeKind.TRUNCATE_TABLE: (_APPLY, _PAUSE, _IGNORE),
    ChangeKind.DROP_PARTITION: (_APPLY, _PAUSE, _IGNORE),
}
# what cannot be done, with what a group such as "drop" means instead
REFUSED_ACTIONS = {
    (ChangeKind.DROP_TABLE, _APPLY): _IGNORE,
    (ChangeKind.DROP_DATABASE, _APPLY): _IGNORE,
    (ChangeKind.RENAME_TABLE, _IGNORE): _PAUSE,
    (ChangeKind.CREATE_TABLE, _IGNORE): _PAUSE,
}
_MODES = (ChangeMode.EVOLVE, ChangeMode.LENIENT, ChangeMode.IGNORE)


@dataclass(frozen=True, slots=True)
class ChangePolicy:
    """What a channel does with each kind of change. ``kinds`` override the mode; "drop" means every drop.*."""

    mode: ChangeMode = ChangeMode.LENIENT
    kinds: Mapping[str, ChangeAction] = field(default_factory=dict)

    def action(self, kind: ChangeKind) -> ChangeAction:
        """Return the action for ``kind``."""
        group = kind.value.split(".")[0]
        if (given := self.kinds.get(kind.value, self.kinds.get(group))) is not None:
            return REFUSED_ACTIONS.get((kind, given), given)
        return _PAUSE if self.mode is ChangeMode.PAUSE else _ACTIONS[kind][_MODES.index(self.mode)]


@dataclass(frozen=True, slots=True)
class DifferenceStart:
    """Since when a target differs from its source table."""

    position: Position  # after the statement
    time: str  # when the job planned the change, ISO 8601, UTC


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """How the columns of a target differ from those of its source table, because changes were ignored."""

    names: Mapping[str, str | None] = field(default_factory=dict)  # source column -> target column; None: it has none
    kept: Mapping[str, Column] = field(default_factory=dict)  # target columns that the source dropped, as they were
    kept_rows: Mapping[str, Position] = field(default_factory=dict)  # kind of change -> after its newest statement
    names_since: Mapping[str, DifferenceStart] = field(default_factory=dict, compare=False)  # for each one of ``names``
    kept_since: Mapping[str, DifferenceStart] = field(default_factory=dict, compare=False)  # for each one of ``kept``
    rows_since: Mapping[str, DifferenceStart] = field(default_factory=dict, compare=False)  # of ``kept_rows``

    def dated(self, before: ColumnMap, start: DifferenceStart) -> ColumnMap:
        """Return this map with ``start`` for each difference that ``before`` does not have."""
        old = before.names
        names = {
            name: before.names_since.get(name, start) if name in old and old[name] == target else start
            for name, target in self.names.items()
        }
        kept = {one: before.kept_since.get(one, start) for one in self.kept}
        rows = {one: before.rows_since.get(one, start) for one in self.kept_rows}
        return replace(self, names_since=names, kept_since=kept, rows_since=rows)

    def target_of(self, column: str) -> str | None:
        """Return the target column of a source column; None if it has none."""
        return self.names.get(column, column)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One change of one column of a target. Without ``old`` the column is added, without ``new`` it is dropped.

    Without both, the step is about all rows of the target.
    """

    action: str  # a value of ``channels.sinks.base.AlterAction``
    old_name: str | None = None  # target column before the step
    old: Column | None = None  # source column that it copies
    new_name: str | None = None
    new: Column | None = None
    fill: str | None = None  # value of existing rows in an added column, as hexadecimal digits of ``Fill.text``


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """What a change does to the target of one source table."""

    source: str
    target: str
    before: TableSchema
    columns_before: ColumnMap = ColumnMap()
    columns_after: ColumnMap = ColumnMap()
    steps: tuple[PlannedStep, ...] = ()
    is_reloaded: bool = False  # a snapshot loads the table again after the change
    deletes_orphans: bool = False  # it also deletes rows from the target that the source no longer has
    actions: tuple[tuple[ChangeKind, str, ChangeAction], ...] = ()  # kind, column, what the job does


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """A schema change with all its steps. It is saved before the first target is changed, and never made again."""

    statement: str
    tables: tuple[PlannedTable, ...]
    done: int = 0  # steps that are done, over all tables; the next one may be done too
