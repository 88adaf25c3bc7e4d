"""Tables of the source: columns, key and charsets, and the Arrow type that each column becomes.

Source: MySQL manual, "Data Types"; the table of types in the decoder's documentation (docs/types.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

import pyarrow as pa

from cdc.names import table_text
from cdc.position import Position, position_from_json

DELETED = "__deleted"  # bool: the row is gone
SEQUENCE = "__sequence"  # int64: larger is newer, for ever


class Kind(Enum):
    """What a column is, as far as its values' form goes."""

    TINYINT = "tinyint"
    SMALLINT = "smallint"
    MEDIUMINT = "mediumint"
    INT = "int"
    BIGINT = "bigint"
    FLOAT = "float"
    DOUBLE = "double"
    DECIMAL = "decimal"
    BIT = "bit"
    YEAR = "year"
    DATE = "date"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    TIME = "time"
    CHAR = "char"
    VARCHAR = "varchar"
    TEXT = "text"  # all sizes
    BINARY = "binary"
    VARBINARY = "varbinary"
    BLOB = "blob"  # all sizes
    ENUM = "enum"
    SET = "set"
    JSON = "json"  # MySQL's binary documents; MariaDB's JSON is TEXT
    GEOMETRY = "geometry"
    VECTOR = "vector"
    UUID = "uuid"  # MariaDB
    INET4 = "inet4"  # MariaDB
    INET6 = "inet6"  # MariaDB


_INTEGERS = {
    Kind.TINYINT: (pa.int8(), pa.int16()),
    Kind.SMALLINT: (pa.int16(), pa.int32()),
    Kind.MEDIUMINT: (pa.int32(), pa.int32()),
    Kind.INT: (pa.int32(), pa.int64()),
    Kind.BIGINT: (pa.int64(), pa.decimal128(20, 0)),
}
_PLAIN = {
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.YEAR: pa.int16(),
    Kind.DATE: pa.date32(),
    Kind.DATETIME: pa.timestamp("us"),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
    Kind.BINARY: pa.binary(),
    Kind.VARBINARY: pa.binary(),
    Kind.BLOB: pa.binary(),
    Kind.GEOMETRY: pa.binary(),
    Kind.VECTOR: pa.list_(pa.float32()),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a source table."""

    name: str
    kind: Kind
    type: str  # as SHOW COLUMNS gives it, "decimal(12,2) unsigned"; composed where only row metadata is known
    unsigned: bool = False
    nullable: bool = True
    length: int = 0  # characters of CHAR, VARCHAR, TEXT; bytes of binaries; bits of BIT; dimensions of VECTOR; else 0
    precision: int = 0  # of DECIMAL
    scale: int = 0  # of DECIMAL
    fsp: int = 0  # digits of a second's fraction
    charset: str = ""  # of text, ENUM and SET: MySQL's name ("utf8mb4"); "" elsewhere
    labels: tuple[str, ...] = ()  # of ENUM and SET, in order
    comment: str = ""
    generated: bool = False
    visible: bool = True

    @property
    def arrow(self) -> pa.DataType:
        """The type that this column's values have in Arrow, from the receiver to the channel."""
        if self.kind in _INTEGERS:
            return _INTEGERS[self.kind][self.unsigned]
        if self.kind is Kind.DECIMAL:
            # decimal128 ends at 38 digits; beyond it the server's exact text is kept
            return pa.decimal128(self.precision, self.scale) if self.precision <= 38 else pa.string()
        if self.kind is Kind.BIT:
            return pa.int64() if self.length < 64 else pa.decimal128(20, 0)
        return _PLAIN.get(self.kind, pa.string())


@dataclass(frozen=True, slots=True)
class TableSchema:
    """A source table as it is from one Position on. A changed table is a new value."""

    database: str
    table: str
    columns: tuple[Column, ...]  # all, in the table's order, invisible ones included
    key: tuple[str, ...]  # primary key in key order, or a NOT NULL unique key; () when the table has none
    comment: str = ""
    since: Position | None = None  # None: from before our first Position on

    @property
    def name(self) -> str:
        """``database.table``, see ``cdc.names``."""
        return table_text(self.database, self.table)

    def column(self, name: str) -> Column:
        """The column called ``name``, whatever its case (MySQL's column names ignore it). Raises: KeyError."""
        for column in self.columns:
            if column.name.casefold() == name.casefold():
                return column
        raise KeyError(name)

    def same_shape(self, other: TableSchema) -> bool:
        """Whether both describe the same columns and key, whenever they hold."""
        return replace(self, since=None) == replace(other, since=None)

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form."""
        data = asdict(replace(self, since=None))
        for column in data["columns"]:
            column["kind"] = column["kind"].value
        data["since"] = self.since.to_json() if self.since else None
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableSchema:
        """The schema that ``to_json`` wrote."""
        columns = tuple(
            Column(**{**column, "kind": Kind(column["kind"]), "labels": tuple(column["labels"])})
            for column in data["columns"]
        )
        since = position_from_json(data["since"]) if data["since"] else None
        return cls(data["database"], data["table"], columns, tuple(data["key"]), data["comment"], since)
