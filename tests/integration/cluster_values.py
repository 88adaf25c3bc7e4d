"""Tables with every MySQL type: compare the rows of Doris or StarRocks with the rows of MySQL."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from cdc.demo.local_servers import LocalServer
from cdc.model.schema import Column, Kind
from tests.integration.test_types import MYSQL, _statements
from tests.support.answers import expected, schema_now

_JSON_NULL = ("JSON", "'null'")
# The other groups are text in all charsets. The decoder tests cover them; in a cluster all text is UTF-8.
TABLES = {
    f"all_{group}": {
        # The emulators store rows in DuckDB, which cannot convert dates of the year 0 to Python. StarRocks refuses the
        # JSON document null.
        kind: [value for value in values if not str(value).startswith("'0000-01-01") and (kind, value) != _JSON_NULL]
        for kind, values in MYSQL[group].items()
    }
    for group in ("numbers", "decimals", "times", "strings", "special")
}
BYTES = {Kind.BINARY, Kind.VARBINARY, Kind.BLOB, Kind.GEOMETRY}


def create(server: LocalServer, database: str) -> None:
    """Create the tables and insert rows."""
    _execute(server, database, [each for name in TABLES for each in _statements_for(name)[:-1]])


def change(server: LocalServer, database: str) -> None:
    """Give each row the values of its neighbour."""
    _execute(server, database, [each for name in TABLES for each in _statements_for(name)[-1:]])


def differences(server: LocalServer, database: str, cluster: Any) -> list[tuple[str, str, Any, Any]]:
    """Return (table, column, MySQL value, cluster value) for each difference."""
    found = []
    for name in TABLES:
        schema = schema_now(server, database, name)
        names, rows = cluster.execute(f"SELECT * FROM ods.{name} ORDER BY id")
        there = [dict(zip(names, row, strict=True)) for row in rows]
        here = expected(server, schema)
        assert len(there) == len(here) > 2, name
        for row, other in zip(here, there, strict=True):
            for column in schema.columns:
                values = source_value(column, row[column.name]), target_value(column, other[column.name])
                if repr(values[0]) != repr(values[1]):
                    found.append((name, f"{column.name} {column.type}", *values))
    return found


def _statements_for(name: str) -> list[list[str]]:
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


def source_value(column: Column, value: Any) -> Any:
    """Return the MySQL value as plain Python."""
    if value is None:
        return None
    if column.kind is Kind.DECIMAL:
        return Decimal(value)
    return json.loads(value) if column.kind is Kind.JSON else value


def target_value(column: Column, value: Any) -> Any:
    """Return the cluster value in the same form. Bytes may be hex digits; documents and long decimals may be text."""
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
            return value + 0.0  # MySQL is queried with + 0.0 too, which turns -0 into 0
    return value
