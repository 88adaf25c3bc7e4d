"""Schemas of tables from the columns that Canal's rows describe."""

from __future__ import annotations

from collections.abc import Sequence

from cdc.errors import DecodeError, SchemaMismatch
from cdc.model.schema import TableSchema
from cdc.sources.canal.layout import Layout, mismatches, schema_of
from cdc.sources.kafka.formats.base import KafkaTables
from cdc.sources.kafka.formats.rows import PRODUCER_HINT, lacks_column, needed_columns

LOGGED_AS_STATEMENT = "it has a change as a statement, without rows: binlog_format is not ROW"
_FILTER_HINT = "Remove the column from the messages with a field filter of Canal."


def canal_schema(tables: KafkaTables, database: str, table: str, layout: Layout) -> TableSchema:
    """Return the schema of the rows: the known one, with charsets and NOT NULL, if the rows match it.

    Raises: SchemaMismatch - a type is not known; DecodeError - the rows lack a column.
    """
    known = tables.schema(database, table)
    if known is None:
        if not layout:
            raise SchemaMismatch(
                "The messages have no types in `mysqlType`, and the table's types are not known.",
                hint="Let the producer send `mysqlType` in every message, as Canal does.",
            )
        return _described(database, table, layout)
    names = {column.name.casefold() for column in layout}
    read = sorted(column.name for column in needed_columns(known, tables.reads(known)))
    missing = [name for name in read if name.casefold() not in names]
    if missing and names < {column.name.casefold() for column in known.columns}:
        raise not_full(missing[0])
    # rows with other types are a change of the table, which the receiver sees by their schema
    return known if _matches(known, layout, read) else _described(database, table, layout)


def _matches(known: TableSchema, layout: Layout, read: Sequence[str]) -> bool:
    try:
        return mismatches(known, layout, read) is None
    except SchemaMismatch as error:
        error.hint = _FILTER_HINT
        raise


def _described(database: str, table: str, layout: Layout) -> TableSchema:
    try:
        return schema_of(database, table, layout)
    except SchemaMismatch as error:
        error.hint = _FILTER_HINT
        raise


def not_full(column: str) -> DecodeError:
    """Return the error for messages whose rows lack a column that the mapping reads. The messages become faults."""
    return DecodeError(lacks_column(column), hint=PRODUCER_HINT)
