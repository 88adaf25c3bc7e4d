"""Compare a schema from another source with the TABLE_MAP of rows, and merge the two into one schema.

``mismatch`` returns why a schema cannot describe the rows. ``merge_metadata`` takes names from the TABLE_MAP and
details, such as UUID types, from the other schema.

Source: the column types and metadata of ``cdc.sources.binlog.decoder.table_map``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from cdc.errors import DecodeError, SchemaMismatch
from cdc.model.schema import Column, Kind, TableSchema
from cdc.mysql.charsets import charset_of
from cdc.sources.binlog.decoder.events import Malformed
from cdc.sources.binlog.decoder.table_map import MappedColumn, TableMap, schema_of, text_of

# Type codes of a TABLE_MAP by kind. MariaDB has separate codes for compressed columns, and none for its special types.
_STRING, _VARCHAR, _VAR_STRING, _BLOB = 254, 15, 253, 252
_CODES: dict[Kind, frozenset[int]] = {
    Kind.TINYINT: frozenset({1}),
    Kind.SMALLINT: frozenset({2}),
    Kind.MEDIUMINT: frozenset({9}),
    Kind.INT: frozenset({3}),
    Kind.BIGINT: frozenset({8}),
    Kind.FLOAT: frozenset({4}),
    Kind.DOUBLE: frozenset({5}),
    Kind.DECIMAL: frozenset({246}),
    Kind.BIT: frozenset({16}),
    Kind.YEAR: frozenset({13}),
    Kind.DATE: frozenset({10, 14}),
    Kind.DATETIME: frozenset({18, 12}),
    Kind.TIMESTAMP: frozenset({17, 7}),
    Kind.TIME: frozenset({19, 11}),
    Kind.CHAR: frozenset({_STRING}),
    Kind.VARCHAR: frozenset({_VARCHAR, _VAR_STRING, 141}),
    Kind.TEXT: frozenset({_BLOB, 140}),
    Kind.BINARY: frozenset({_STRING}),
    Kind.VARBINARY: frozenset({_VARCHAR, _VAR_STRING, 141}),
    Kind.BLOB: frozenset({_BLOB, 140}),
    Kind.ENUM: frozenset({247}),
    Kind.SET: frozenset({248}),
    Kind.JSON: frozenset({245}),
    Kind.GEOMETRY: frozenset({255}),
    Kind.VECTOR: frozenset({242, _VARCHAR}),
    Kind.UUID: frozenset({_STRING}),
    Kind.INET4: frozenset({_STRING}),
    Kind.INET6: frozenset({_STRING}),
}
_TEXTS = (Kind.CHAR, Kind.VARCHAR, Kind.TEXT)
_LABELLED = (Kind.ENUM, Kind.SET)
_FRACTIONS = (17, 18, 19)
_BINARY_COLLATION = 63
_WIDE_CHARSETS = ("utf8mb4", "utf16", "utf16le", "utf32", "gb18030")  # charsets with characters outside utf8mb3


def refuse_lost_labels(schema: TableSchema, columns: Collection[str]) -> None:
    """Raise SchemaMismatch if the server cannot show all labels of these ENUM and SET ``columns``.

    ``information_schema`` and SHOW CREATE TABLE use utf8mb3 and show ? for each other character. Only row metadata has
    complete labels. Source: observed with MySQL 9.7 and MariaDB 10.11.
    """
    for column in schema.columns:
        if column.name in columns and column.charset in _WIDE_CHARSETS and any("?" in label for label in column.labels):
            raise SchemaMismatch(
                "The server does not show all labels of the column: it shows ? for characters outside utf8mb3.",
                hint="Set binlog_row_metadata=FULL on the server (MySQL 8.0, MariaDB 10.5 and later), then run `cdc "
                "snapshot` for the table; or remove the column from `columns:`.",
                table=schema.name,
                column=column.name,
                labels=", ".join(column.labels),
            )


def mismatch(schema: TableSchema, table_map: TableMap) -> str | None:
    """Return why ``schema`` cannot describe the rows of ``table_map``; None if no difference is found."""
    if len(schema.columns) != len(table_map.columns):
        return f"the known schema has {len(schema.columns)} columns, the rows have {len(table_map.columns)}"
    for column, mapped in zip(schema.columns, table_map.columns, strict=True):
        problem = column_mismatch(column, mapped, mariadb=table_map.mariadb)
        if problem is not None:
            return f"column {column.name} {problem}"
    if table_map.key and [schema.columns[index].name for index in table_map.key] != list(schema.key):
        return "the rows have another primary key"
    return None


def column_mismatch(column: Column, mapped: MappedColumn, *, mariadb: bool) -> str | None:
    """Return why ``column`` cannot describe the values of ``mapped``; None if no difference is found."""
    low, high = mapped.meta & 0xFF, mapped.meta >> 8
    if mapped.name is not None and mapped.name != column.name:
        return f"has the name {mapped.name} in the rows"
    if mapped.type not in _CODES[column.kind]:
        return f"has another type in the rows (code {mapped.type})"
    if mapped.unsigned is not None and column.kind is not Kind.YEAR and mapped.unsigned != column.unsigned:
        return "differs from the rows in UNSIGNED"
    if column.kind is Kind.DECIMAL and (low, high) != (column.precision, column.scale):
        return f"is decimal({low},{high}) in the rows"
    if mapped.type in _FRACTIONS and low != column.fsp:
        return f"has {low} fractional digits of a second in the rows"
    if column.kind is Kind.BIT and high * 8 + low != column.length:
        return f"has {high * 8 + low} bits in the rows"
    return _charset_mismatch(column, mapped, "mariadb" if mariadb else "mysql")


def _charset_mismatch(column: Column, mapped: MappedColumn, flavor: str) -> str | None:
    if mapped.collation is not None and mapped.type in (_STRING, _VARCHAR, _VAR_STRING, _BLOB, 140, 141):
        if (mapped.collation == _BINARY_COLLATION) == (column.kind in _TEXTS):
            return "is text in the schema and binary in the rows, or the reverse"
        if column.kind in _TEXTS and charset_of(mapped.collation, flavor) != column.charset:
            return f"has the charset {charset_of(mapped.collation, flavor)} in the rows"
    if mapped.labels is not None and column.kind in _LABELLED:
        try:
            labels = tuple(text_of(label, column.charset or "utf8mb4") for label in mapped.labels)
        except DecodeError:
            return "has another charset in the rows"
        if labels != column.labels:
            return "has other labels in the rows"
    return None


def merge_metadata(table_map: TableMap, known: TableSchema | None) -> TableSchema | None:
    """Return the schema of ``table_map``, with those columns of ``known`` that match it.

    None: the map has no names, or a column needs the server's description and ``known`` does not have it.
    """
    if any(column.name is None for column in table_map.columns):
        return None
    others = {column.name: column for column in known.columns} if known is not None else {}
    columns = []
    for mapped in table_map.columns:
        other = others.get(mapped.name or "")
        if other is not None and column_mismatch(other, mapped, mariadb=table_map.mariadb) is None:
            columns.append(other)
            continue
        try:
            columns += schema_of(replace(table_map, columns=(mapped,), key=None), None).columns
        except Malformed:
            return None
    key = tuple(columns[index].name for index in table_map.key or ())
    comment, charset = (known.comment, known.charset) if known is not None else ("", "")
    found = TableSchema(table_map.database, table_map.table, tuple(columns), key, comment, charset=charset)
    return with_nulls(found, table_map)


def with_nulls(schema: TableSchema, table_map: TableMap) -> TableSchema:
    """Return ``schema`` with the nullability of the rows. A statement may not define it, and a catalog may be newer."""
    columns = tuple(
        column if column.nullable == mapped.nullable else replace(column, nullable=mapped.nullable)
        for column, mapped in zip(schema.columns, table_map.columns, strict=True)
    )
    return schema if columns == schema.columns else replace(schema, columns=columns)
