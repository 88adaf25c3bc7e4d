"""CURRENT_TIMESTAMP of added columns on real servers: the value that the job fills in equals the rows of the server."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from cdc.model.fill_values import fill_scalar
from cdc.model.schema import Kind
from cdc.model.schema_change import Fill, FillKind
from tests.integration.test_receiver_ddl import pause
from tests.support.receiving import Mapped, position, receiver_of, until

DIGITS = range(7)
ZONE = "Test/Autumn"
ZONE_ID = 99_999


@pytest.fixture(params=["mysql", "mariadb"], scope="module")
def server(request):
    """Yield a server that has run for some seconds, with a zone whose clock was set back half an hour ago."""
    found = request.getfixturevalue(request.param)
    until(lambda: _uptime(found) > 3, what="the server's time")
    found.execute(
        f"DELETE FROM mysql.time_zone_name WHERE Time_zone_id = {ZONE_ID}",
        f"REPLACE INTO mysql.time_zone VALUES ({ZONE_ID}, 'N')",
        f"REPLACE INTO mysql.time_zone_name VALUES ('{ZONE}', {ZONE_ID})",
        f"REPLACE INTO mysql.time_zone_transition_type VALUES ({ZONE_ID}, 0, 7200, 1, 'S'), ({ZONE_ID}, 1, 3600, 0, 'W')",
        f"REPLACE INTO mysql.time_zone_transition VALUES ({ZONE_ID}, 0, 0), ({ZONE_ID}, {int(time.time()) - 1800}, 1)",
    )
    return found


@pytest.fixture
def database(server, request):
    name = f"d{abs(hash(request.node.name)) % 10**8}"
    server.execute(
        f"CREATE DATABASE {name}",
        f"CREATE TABLE {name}.orders (id INT PRIMARY KEY)",
        f"INSERT INTO {name}.orders VALUES (1), (2)",
    )
    yield name
    server.execute(f"DROP DATABASE {name}")


def _uptime(server):
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Uptime'")
        return int(cursor.fetchone()[1])


def _changes(server, database, *statements):
    """Run the statements in one session, the last one of which is ALTER; return the column changes that the job reads."""
    receiver = receiver_of(server, Mapped(database))
    receiver.open(position(server), (), 0)
    with server.connect(database) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    stop, _ = pause(receiver)
    receiver.close()
    assert stop.change is not None, stop.message
    return stop.change.tables[0].columns


def _stored(server, database, column):
    """Return the values of all rows in UTC, as the job reads them."""
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"SELECT CAST({column} AS CHAR) FROM orders")
        return {row[0] if isinstance(row[0], str) else row[0].decode() for row in cursor.fetchall()}


@pytest.mark.parametrize("zone", ["+05:30", "SYSTEM", ZONE])
def test_fill_of_current_timestamp_equals_the_rows(server, database, zone):
    added = [
        f"{kind[0]}{digits} {kind}({digits}) NOT NULL DEFAULT {word}({digits})"
        for kind, word in (("DATETIME", "CURRENT_TIMESTAMP"), ("TIMESTAMP", "NOW"))
        for digits in DIGITS
    ]
    added += ["plain DATETIME DEFAULT LOCALTIME", "day DATE DEFAULT (CURRENT_DATE)"]
    changes = _changes(
        server, database, f"SET time_zone = '{zone}'", "ALTER TABLE orders " + ", ".join(f"ADD {one}" for one in added)
    )
    assert len(changes) == len(added)
    for change in changes:
        assert change.fill.kind is FillKind.LITERAL, change
        assert {change.fill.text.decode()} == _stored(server, database, change.new.name), change
        scalar = fill_scalar(change.new, change.fill.text).as_py()
        if change.new.kind is not Kind.DATE:
            assert scalar.replace(tzinfo=None) == datetime.fromisoformat(change.fill.text.decode())
    local, utc = (next(one.fill.text for one in changes if one.new.name == name)[:19].decode() for name in ("D0", "T0"))
    hours = (datetime.fromisoformat(local) - datetime.fromisoformat(utc)).total_seconds() / 3600
    assert hours == {"+05:30": 5.5, "SYSTEM": hours, ZONE: 1.0}[zone]


def test_fill_of_statement_before_the_start_of_the_server_is_not_certain(server, database):
    """The zone of the server may have been another one then. An offset and UTC do not depend on the server."""
    statement = "ALTER TABLE orders ADD a DATETIME(3) DEFAULT NOW(3), ADD b TIMESTAMP(3) NULL DEFAULT NOW(3)"
    early = "SET timestamp = 1700000000.123456"
    zoned = _changes(server, database, "SET time_zone = 'SYSTEM'", early, statement)
    assert [one.fill.kind for one in zoned] == [FillKind.STATEMENT_TIME, FillKind.LITERAL]
    server.execute(f"ALTER TABLE {database}.orders DROP a, DROP b")
    fixed = _changes(server, database, "SET time_zone = '-03:00'", early, statement)
    assert [one.fill.text for one in fixed] == [b"2023-11-14 19:13:20.123", b"2023-11-14 22:13:20.123"]
    for one in fixed:
        assert {one.fill.text.decode()} == _stored(server, database, one.new.name)


def test_fill_of_timestamp_literal_is_converted_from_the_zone_of_the_session(server, database):
    statement = "ALTER TABLE orders ADD a TIMESTAMP NULL DEFAULT '2024-05-06 07:08:09'"
    (change,) = _changes(server, database, "SET time_zone = '+05:30'", statement)
    assert _stored(server, database, "a") == {"2024-05-06 01:38:09"}
    assert change.fill == Fill(FillKind.LITERAL, b"2024-05-06 01:38:09")
