"""Layouts: tables as Canal's rows describe them, with column name, type text and key flag next to every value.

The type texts are those of the table's DDL, with its synonyms and letter case. They have no charsets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cdc.errors import SchemaMismatch
from cdc.model.schema import Column, Kind, TableSchema
from cdc.mysql.catalog import KINDS, labels_of
from cdc.sources.canal.protocol_pb2 import RowData

_TYPE = re.compile(r"\s*([a-z0-9]+(?:\s+(?:precision|varying))?)\s*(?:\((.*)\))?(.*)", re.I | re.S)
_SYNONYMS = {
    **dict.fromkeys(("bool", "boolean", "int1"), Kind.TINYINT),
    "int2": Kind.SMALLINT,
    **dict.fromkeys(("int3", "middleint"), Kind.MEDIUMINT),
    "int4": Kind.INT,
    **dict.fromkeys(("int8", "serial"), Kind.BIGINT),
    **dict.fromkeys(("numeric", "dec", "fixed"), Kind.DECIMAL),
    **dict.fromkeys(("double precision", "real", "float8"), Kind.DOUBLE),
    "float4": Kind.FLOAT,
    **dict.fromkeys(("character", "nchar"), Kind.CHAR),
    **dict.fromkeys(("nvarchar", "character varying"), Kind.VARCHAR),
    "long": Kind.TEXT,
}
NO_SERVER_CHARSET = "utf8mb4"  # of text columns whose charset only the server knows: Canal sends all text in UTF-8
_DIGITS = 11  # of a number in brackets that are read: more than the largest one, 4294967295, has
_MOST_DIGITS, _MOST_BITS, _MOST_FSP = 65, 64, 6  # of DECIMAL, BIT, and fractional seconds
_BARE_TEXTS = ("text", "tinytext", "mediumtext", "longtext")


@dataclass(frozen=True, slots=True)
class LayoutColumn:
    """A column as a row describes it."""

    index: int  # its number in the table, from 0
    name: str
    type: str
    is_key: bool

    @property
    def as_bytes(self) -> bool:
        """Return whether Canal sends this text as bytes: it recognises TEXT only by its name without a length."""
        return self.type.lower() not in _BARE_TEXTS


Layout = tuple[LayoutColumn, ...]


def layout_of(row: RowData) -> Layout:
    """Return the columns of a row, from its before image or else its after image."""
    columns = row.before_columns or row.after_columns
    return tuple(LayoutColumn(column.index, column.name, column.mysql_type, column.is_key) for column in columns)


def schema_of(database: str, table: str, layout: Layout) -> TableSchema:
    """Return the schema of a layout: without charsets, comments and NOT NULL, and with the key in the table's order."""
    columns = tuple(column_of(database, table, column) for column in layout)
    return TableSchema(database, table, columns, tuple(column.name for column in layout if column.is_key))


def column_of(database: str, table: str, received: LayoutColumn) -> Column:
    """Return one column. Raises: SchemaMismatch - its type is unknown."""
    match = _TYPE.match(received.type)
    base = " ".join(match[1].lower().split()) if match else ""
    kind = _SYNONYMS.get(base) or KINDS.get(base)
    inside = (match[2] if match else None) or ""
    sizes = re.findall(r"\d+", inside) if kind not in (Kind.ENUM, Kind.SET) else []
    numbers = [int(size[:_DIGITS]) for size in sizes]
    is_labelled = kind not in (Kind.ENUM, Kind.SET) or (match is not None and match[2] is not None)
    if match is None or kind is None or not is_labelled or not _can_exist(kind, numbers):
        raise SchemaMismatch(
            f"Canal sends a column with the type {received.type!r}, which is not known.",
            hint="Remove the column from the mapping, or set `source.mysql` to read types from the server.",
            table=f"{database}.{table}",
            column=received.name,
        )
    first = numbers[0] if numbers else 0
    temporal = kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME)
    decimal = kind is Kind.DECIMAL
    sized = kind in (Kind.CHAR, Kind.BINARY, Kind.VARCHAR, Kind.VARBINARY, Kind.BIT, Kind.VECTOR)
    texts = (Kind.CHAR, Kind.VARCHAR, Kind.TEXT, Kind.ENUM, Kind.SET)
    return Column(
        name=received.name,
        kind=kind,
        type=received.type.strip(),
        unsigned="unsigned" in match[3].lower() or "zerofill" in match[3].lower() or base == "serial",
        nullable=not received.is_key,
        length=(first or (1 if kind in (Kind.CHAR, Kind.BINARY, Kind.BIT) else 0)) if sized else 0,
        precision=(first or 10) if decimal else 0,
        scale=numbers[1] if decimal and len(numbers) > 1 else 0,
        fsp=first if temporal else 0,
        charset=NO_SERVER_CHARSET if kind in texts else "",
        labels=labels_of(received.type) if kind in (Kind.ENUM, Kind.SET) else (),
    )


def _can_exist(kind: Kind, numbers: Sequence[int]) -> bool:
    """Return whether MySQL accepts a type with these numbers in brackets. Larger ones would exceed Arrow's types."""
    first, second = (*numbers, 0, 0)[:2]
    if kind is Kind.DECIMAL:
        return first <= _MOST_DIGITS and second <= (first or 10)
    if kind is Kind.BIT:
        return first <= _MOST_BITS
    if kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME):
        return first <= _MOST_FSP
    return first < 1 << 32


def mismatches(schema: TableSchema, layout: Layout, read: Sequence[str]) -> str | None:
    """Return why rows of ``layout`` do not match ``schema`` in the columns ``read``; None if they match."""
    received = {column.name.casefold(): column for column in layout}
    for name in read:
        column = schema.column(name)
        other = received.get(name.casefold())
        if other is None:
            return f"the rows lack column {name}"
        seen = column_of(schema.database, schema.table, other)
        if column.kind is Kind.TEXT and seen.kind in (Kind.TEXT, Kind.JSON):  # MariaDB's JSON is a LONGTEXT
            continue
        if seen.kind is not column.kind or seen.arrow != column.arrow or seen.labels != column.labels:
            return f"column {name} is {other.type} in the rows and {column.type} in the known schema"
    return None


def has_order(schema: TableSchema, layout: Layout) -> bool:
    """Return whether ``layout`` has only columns of ``schema``, in its order. Filters of Canal can remove some."""
    received = [column.name.casefold() for column in layout]
    names = [column.name.casefold() for column in schema.columns]
    return received == [name for name in names if name in {*received}]
