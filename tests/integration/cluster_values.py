"""Tables with every type of MySQL, and what a reader of Doris or StarRocks finds in them, beside what MySQL answers."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from cdc.local_servers import LocalServer
from cdc.schema import Column, Kind
from tests.answers import expected, schema_now
from tests.integration.test_types import MYSQL, _statements

# the other groups are text in all charsets, which the decoder's tests look at: here they are UTF-8 like all text
TABLES = {
    f"all_{group}": {
        # DuckDB, where the stand-ins keep rows, gives no Python date of the year 0
        kind: [value for value in values if not str(value).startswith("'0000-01-01")]
        for kind, values in MYSQL[group].items()
    }
    for group in ("numbers", "decimals", "times", "strings", "special")
}
BYTES = {Kind.BINARY, Kind.VARBINARY, Kind.BLOB, Kind.GEOMETRY}


def create(server: LocalServer, database: str) -> None:
    """The tables, with rows."""
    _execute(server, database, [each for name in TABLES for each in _of(name)[:-1]])


def change(server: LocalServer, database: str) -> None:
    """Each row gets its neighbour's values."""
    _execute(server, database, [each for name in TABLES for each in _of(name)[-1:]])


def differences(server: LocalServer, database: str, cluster: Any) -> list[tuple[str, str, Any, Any]]:
    """Table, column, MySQL's value and the cluster's, wherever they are not the same."""
    found = []
    for name in TABLES:
        schema = schema_now(server, database, name)
        names, rows = cluster.execute(f"SELECT * FROM ods.{name} ORDER BY id")
        there = [dict(zip(names, row, strict=True)) for row in rows]
        here = expected(server, schema)
        assert len(there) == len(here) > 2, name
        for row, other in zip(here, there, strict=True):
            for column in schema.columns:
                values = _source(column, row[column.name]), _target(column, other[column.name])
                if repr(values[0]) != repr(values[1]):
                    found.append((name, f"{column.name} {column.type}", *values))
    return found


def _of(name: str) -> list[list[str]]:
    create, inserts, updates = _statements(TABLES[name])
    return [[text.replace("TABLE t ", f"TABLE {name} ").replace("INTO t ", f"INTO {name} ").replace("UPDATE t ", f"UPDATE {name} ")
             for text in statements] for statements in ([create], inserts, updates)]  # fmt: skip


def _execute(server: LocalServer, database: str, groups: list[list[str]]) -> None:
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET NAMES utf8mb4, sql_mode = '', time_zone = '+00:00', explicit_defaults_for_timestamp = 1")
        for statements in groups:
            for statement in statements:
                cursor.execute(statement)
        connection.commit()


def _source(column: Column, value: Any) -> Any:
    """What MySQL says, in plain Python."""
    if value is None:
        return None
    if column.kind is Kind.DECIMAL:
        return Decimal(value)
    return json.loads(value) if column.kind is Kind.JSON else value


def _target(column: Column, value: Any) -> Any:
    """What the cluster says, in the same terms: bytes may be digits, documents and long decimals text."""
    if value is None:
        return None
    if column.kind in BYTES:
        return bytes.fromhex(value) if isinstance(value, str) else bytes(value)
    match column.kind:
        case Kind.DECIMAL:
            return Decimal(value)
        case Kind.JSON:
            return json.loads(value)
        case Kind.DATE:
            return value.isoformat()
        case Kind.DATETIME | Kind.TIMESTAMP:
            return value.isoformat(" ", "microseconds")
        case Kind.VECTOR:
            return json.loads(value) if isinstance(value, str) else value
        case Kind.BIT:
            return int(value)
        case Kind.FLOAT:
            return value + 0.0  # as MySQL is asked, which makes 0 of -0
    return value
