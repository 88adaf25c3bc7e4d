"""The columns and the key by which the rows of a table are read, and whether a step still finds them as planned."""

from __future__ import annotations

from cdc.errors import SchemaMismatch
from cdc.model.schema import Column, Kind, TableSchema
from cdc.mysql.catalog import table_schemas
from cdc.mysql.key_order import KeyOrder, key_order_of
from cdc.mysql.server import Server
from cdc.mysql.table_changes import same_labels
from channels.channel import Channel

NOT_VISIBLE = "The source does not show the table."


def is_unchanged(server: Server, schema: TableSchema, order: KeyOrder | None) -> bool:
    """Return whether a table is as it was planned: its columns and, if rows were read, their order.

    ``order``: by which rows were read; None if no rows were read. Raises: SourceUnavailable.
    """
    name = (schema.database, schema.table)
    today = table_schemas(server, [name]).get(name)
    if today is None or not same_columns(today, schema):
        return False
    # the last key that was read of a chunk is a position in this order
    return order is None or key_order_of(server, schema, order.names).text == order.text


def order_columns(channel: Channel, schema: TableSchema) -> tuple[str, ...]:
    """Return the source columns of the key, by which rows are read in order."""
    return schema.key or tuple(channel.mapping.reads(schema).key)


def same_columns(today: TableSchema, known: TableSchema) -> bool:
    """Return whether rows of the table ``today`` have the columns and the key that are ``known``.

    Rows of a table with another key could replace each other in the target. The order of the key's columns is not
    compared: it does not change which rows are the same. A column with NULLs does not fit into a target that was made
    for the column before it, which had the same name and type.
    """
    shapes = [_shape(column) for column in today.columns], [_shape(column) for column in known.columns]
    if shapes[0] != shapes[1] or set(today.key) != set(known.key):
        return False
    return all(
        same_labels(before, now) and (before.nullable or not now.nullable)
        for now, before in zip(today.columns, known.columns, strict=True)
    )


def _shape(column: Column) -> tuple[object, ...]:
    length = column.length
    if column.kind is Kind.TEXT:  # TEXT of utf16: 32767 characters in the catalog, 65535 bytes in row metadata
        length = -(-length.bit_length() // 8)  # in both cases, a length of 2 bytes
    return (column.name, column.kind, column.arrow, column.charset, length, column.fsp)


def schema_not_reached(name: str) -> SchemaMismatch:
    """Return the error for a table that has other columns than at the position of the stream."""
    return SchemaMismatch(
        "The table's columns or its key differ from those at the position of the stream.",
        hint="The job reads the table after the stream has passed the DDL statement, or pauses there.",
        table=name,
    )


def not_visible(name: str) -> SchemaMismatch:
    """Return the error for a table that information_schema does not have: dropped, or hidden from the account."""
    return SchemaMismatch(
        NOT_VISIBLE,
        hint="If the table exists, run GRANT SELECT on it for the user of the job, then `cdc resume NAME`. If it was "
        "dropped without a statement in the binlog, remove it from the job file with `exclude`.",
        table=name,
    )
