"""Schemas of tables from the columns that Canal's rows describe."""

from __future__ import annotations

from cdc.errors import GAP_HINT, SchemaMismatch, UnsupportedRowFormat
from cdc.model.schema import TableSchema
from cdc.sources.canal.layout import Layout, mismatches, schema_of
from cdc.sources.kafka.formats.base import KafkaTables
from cdc.sources.kafka.formats.rows import needed_columns


def canal_schema(tables: KafkaTables, database: str, table: str, layout: Layout) -> TableSchema:
    """Return the schema of the rows: the known one, with charsets and NOT NULL, if the rows match it."""
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
    return known if mismatches(known, layout, read) is None else _described(database, table, layout)


def _described(database: str, table: str, layout: Layout) -> TableSchema:
    try:
        return schema_of(database, table, layout)
    except SchemaMismatch as error:
        error.hint = "Remove the column from the messages with a field filter of Canal."
        raise


def not_full(column: str) -> UnsupportedRowFormat:
    """Return the error for rows without a column that the mapping reads."""
    return UnsupportedRowFormat(
        f"The rows do not have column {column}, which the mapping reads.",
        hint=f"Set binlog_row_image=FULL on the server, and remove field filters from Canal. {GAP_HINT}",
        column=column,
    )
