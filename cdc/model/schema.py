"""Tables of the source: columns, key and character sets.

Source: MySQL manual, "Data Types"; docs/reference/types.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cdc.model.kind import Kind as Kind  # exported: a column and its kind are used together
from cdc.model.position import Position
from cdc.model.table_names import table_text

if TYPE_CHECKING:
    import pyarrow as pa

DELETED = "__deleted"  # bool: the row was deleted
SEQUENCE = "__sequence"  # int64: the row with the larger sequence is newer, also across runs


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a source table."""

    name: str
    kind: Kind
    type: str  # as in SHOW COLUMNS, "decimal(12,2) unsigned"; composed if only row metadata is known
    unsigned: bool = False
    nullable: bool = True
    length: int = 0  # characters of CHAR, VARCHAR, TEXT; bytes of binaries; bits of BIT; dimensions of VECTOR; else 0
    precision: int = 0  # of DECIMAL
    scale: int = 0  # of DECIMAL
    fsp: int = 0  # fractional seconds precision: number of digits
    charset: str = ""  # of text, ENUM and SET: MySQL's name ("utf8mb4"); "" for other kinds
    labels: tuple[str, ...] = ()  # of ENUM and SET, in order
    comment: str = ""
    generated: bool = False
    visible: bool = True
    auto_increment: bool = field(default=False, compare=False)  # False: also if only row metadata is known

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of this column's values, from the receiver to the channel."""
        from cdc.model.arrow_types import arrow_type  # needs pyarrow; saved schemas are read without it

        return arrow_type(self.kind, self.unsigned, self.length, self.precision, self.scale)


@dataclass(frozen=True, slots=True)
class CopyStatement:
    """A statement about shadow tables, with what its meaning depends on."""

    sql: str
    database: str  # the session's default database
    ansi_quotes: bool | None  # None: not known
    mariadb: bool | None  # None: the server is not known
    sql_mode: int | None = None  # None: not known
    time_zone: str = ""  # the session's; "": not known
    explicit_timestamps: bool | None = None  # explicit_defaults_for_timestamp; None: not known


@dataclass(frozen=True, slots=True)
class ShadowCopy:
    """How a shadow table differs from the table that it copies. gh-ost and pt-online-schema-change create it."""

    statements: tuple[CopyStatement, ...] = ()  # in order, since it had the columns of its original
    has_triggers: bool = False  # pt-online-schema-change has created the triggers that fill it


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A source table as it is from a position on. A changed table is a new value."""

    database: str
    table: str
    columns: tuple[Column, ...]  # all, in the table's order, invisible ones included
    key: tuple[str, ...]  # primary key in key order, or a NOT NULL unique key; () if the table has none
    comment: str = ""
    since: Position | None = None  # None: already before the first position of the job
    charset: str = ""  # the default of new text columns, MySQL's name; "" if it is not known
    copy: ShadowCopy | None = None  # of a shadow table, which no channel reads
    is_dropped: bool = False  # the table does not exist any more; these were its columns
    is_renamed: bool = False  # a mapped table, under a name that no channel reads

    @property
    def name(self) -> str:
        """The name as ``database.table``, see ``cdc.model.table_names``."""
        return table_text(self.database, self.table)

    def column(self, name: str) -> Column:
        """Return the column ``name``. Like MySQL, ignore the case. Raises: KeyError."""
        for column in self.columns:
            if column.name.casefold() == name.casefold():
                return column
        raise KeyError(name)

    def same_shape(self, other: TableSchema) -> bool:
        """Return whether both are equal except for ``since`` and for the default of new columns."""
        return replace(self, since=None, charset="") == replace(other, since=None, charset="")
