"""Changes of source tables: what a statement does to columns and rows, as the reader of statements describes it.

Source: docs/reference/schema-changes.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

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
    BY_ROW = "by row"  # generated, AUTO_INCREMENT, an expression: only a new load of the table has the values


@dataclass(frozen=True, slots=True)
class Fill:
    """The value of existing rows in an added column.

    ``text``: of LITERAL, as SELECT returns it in a session in UTC: text in UTF-8, binaries as they are. BIT is a
    decimal number, and ZEROFILL is without its zeros.
    """

    kind: FillKind = FillKind.NULL
    text: bytes | None = None


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
    old one of RENAME TABLE, and the one before CREATE TABLE.
    """

    before: TableSchema
    after: TableSchema
    columns: tuple[ColumnChange, ...] = ()  # in the order in which they apply
    rows: ChangeKind | None = None  # a kind that removes or replaces rows without row events
    key_changed: bool = False  # another key; a key whose columns were only renamed is the same
    key_is_certain: bool = True  # False: the key of ``after`` depends on indexes that a TableSchema does not have
