"""A row read by a snapshot equals the same row from the binlog, for every type and value."""

from __future__ import annotations

import pytest

from cdc.model.snapshot import Chunk
from cdc.mysql.connection import Endpoint, Tls
from cdc.mysql.key_order import KeyColumn, KeyOrder
from cdc.mysql.query_stream import Select
from cdc.mysql.result_rows import selected
from tests.integration.test_types import MARIADB, MYSQL, _statements
from tests.support.answers import CatalogTables, Everything, NoTables, decode_bytes, recorded, schema_now


def _check(server, database, columns):
    full = "mariadb" not in str(server.data)
    if not full:  # information_schema shows labels in utf8mb3, with ? for other characters
        columns = {kind.replace("😀", ""): values for kind, values in columns.items()}
    create, inserts, _ = _statements(columns)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET NAMES utf8mb4, sql_mode = '', time_zone = '+00:00', explicit_defaults_for_timestamp = 1")
        cursor.execute(create)

        def write():
            for statement in inserts:
                cursor.execute(statement)

        data = recorded(server, write)
    tables = NoTables() if full else CatalogTables(server)
    streamed = decode_bytes(data, tables=tables, table_filter=Everything(database)).rows("t")
    read = _read(server, database)
    assert read.num_rows == streamed.num_rows == len(inserts)
    for name in read.schema.names:
        column, other = read.column(name), streamed.column(name).combine_chunks()
        column.validate(full=True)
        assert column.type == other.type, name
        assert column.equals(other), (name, column.diff(other))
        assert column.null_count == other.null_count, name


def _read(server, database):
    schema = schema_now(server, database, "t")
    order = KeyOrder(f"`{database}`.`t`", "`PRIMARY`", (KeyColumn(schema.column("id")),))
    tail, bounds = order.tail(Chunk(0, None, None))
    sql = "SELECT " + ", ".join(selected(column) for column in schema.columns) + tail
    endpoint = Endpoint("127.0.0.1", server.port, "root", tls=Tls("off"))
    with Select(endpoint, sql, bounds, schema.columns) as select:
        (rows,) = [rows.batch for rows in select.rows()]
    return rows


@pytest.mark.parametrize("group", MYSQL)
def test_snapshot_mysql_rows_equal_those_of_the_binlog(mysql, database, group):
    _check(mysql, database, MYSQL[group])


@pytest.mark.parametrize("group", MARIADB)
def test_snapshot_mariadb_rows_equal_those_of_the_binlog(mariadb, mariadb_database, group):
    _check(mariadb, mariadb_database, MARIADB[group])
