"""Random tables and rows through a real server: compare the decoder with SELECT and with mysql-replication."""

from __future__ import annotations

import datetime
import os
import random
from decimal import Decimal

import pytest

from cdc.model.schema import Kind
from tests.support.answers import (
    CatalogTables,
    Everything,
    binlog_end,
    comparable,
    decode_bytes,
    differing,
    expected,
    recorded,
    schema_now,
    upserts,
)
from tests.support.seeds import seed_of

SEED = seed_of()
ROUNDS = int(os.environ.get("ROUNDS", "4"))

# types that mysql-replication returns differently, and why they are not compared
FAULTS_OF_MYSQL_REPLICATION = {
    Kind.TIME: "negative times with a fraction are split before they are read as one number; the type is timedelta",
    Kind.BIT: "a text of 0 and 1, not a number",
    Kind.JSON: "Python objects: key order and number forms are lost",
    Kind.GEOMETRY: "not decoded",
    Kind.VECTOR: "not supported",
    Kind.YEAR: "0000 is returned as 1900",
    Kind.FLOAT: "the same bits, read as double: compared as float only",
    Kind.SET: "a set of labels without order",
    Kind.ENUM: "the error value '' and labels of other charsets are not distinguished",
    Kind.BINARY: "trailing zeros are not returned",
    Kind.UUID: "not supported: bytes without their trailing zeros",
    Kind.INET4: "not supported: bytes without their trailing zeros",
    Kind.INET6: "not supported: bytes without their trailing zeros",
    Kind.TIMESTAMP: "shifted to the local time zone of the reader",
}

CHARSETS_OF_MYSQL_REPLICATION = ("", "utf8mb4", "gbk")  # it reads utf16, for example, in the byte order of this machine


def _types(generator):
    precision = generator.randint(1, 65)
    scale = generator.randint(0, min(30, precision))
    size = generator.choice((1, 10, 63, 64, 85, 86, 255))
    sign = generator.choice(("", " UNSIGNED"))
    number = generator.choice(("TINYINT", "SMALLINT", "MEDIUMINT", "INT", "BIGINT")) + sign
    bits = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}[number.split()[0]]
    low, high = (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    fsp = generator.randint(0, 6)

    def moment():
        day = datetime.datetime(1000, 1, 1) + datetime.timedelta(
            seconds=generator.randrange(9000 * 31_556_952 - 86_400)
        )
        return f"'{day.isoformat(' ')}.{generator.randrange(10**fsp) if fsp else 0:0{max(fsp, 1)}d}'"

    def text(most):
        return (
            "'"
            + "".join(
                generator.choice("abcé漢😀 '\\xyz0").replace("\\", "\\\\").replace("'", "''")
                for _ in range(generator.randint(0, most))
            )
            + "'"
        )

    def raw(most):
        return f"X'{generator.randbytes(generator.randint(0, most)).hex()}'"

    def time():
        return f"'{generator.choice(('', '-'))}{generator.randint(0, 838)}:{generator.randint(0, 59):02}:{generator.randint(0, 58):02}.{generator.randrange(10**6):06}'"

    def decimal():
        digits = generator.randrange(10 ** generator.randint(1, precision))
        return f"{generator.choice(('', '-'))}{Decimal(digits).scaleb(-scale):f}"

    return generator.choice(
        [
            (number, lambda: str(generator.choice((low, high, 0, generator.randint(low, high))))),
            (f"DECIMAL({precision},{scale})", decimal),
            ("DOUBLE", lambda: repr(generator.uniform(-1, 1) * 10 ** generator.randint(-300, 300))),
            ("FLOAT", lambda: repr(generator.uniform(-1, 1) * 10 ** generator.randint(-30, 30))),
            (f"BIT({size % 64 + 1})", lambda: str(generator.randrange(2 ** (size % 64 + 1)))),
            ("YEAR", lambda: str(generator.choice((0, generator.randint(1901, 2155))))),
            ("DATE", lambda: moment()[:11] + "'"),
            (f"DATETIME({fsp})", moment),
            (f"TIMESTAMP({fsp}) NULL", lambda: f"FROM_UNIXTIME({generator.randint(1, 2**31 - 2)}.{generator.randrange(10**6):06})"),
            (f"TIME({fsp})", time),
            (f"CHAR({size})", lambda: text(size)),
            (f"VARCHAR({size})", lambda: text(size)),
            (f"VARCHAR({size}) CHARACTER SET utf16", lambda: text(size)),
            (f"VARCHAR({size}) CHARACTER SET gbk", lambda: text(size).replace("😀", "").replace("é", "")),
            ("TEXT", lambda: text(400)),
            (f"BINARY({size})", lambda: raw(size)),
            (f"VARBINARY({size})", lambda: raw(size)),
            ("BLOB", lambda: raw(600)),
            ("ENUM('a','b','é')", lambda: str(generator.randint(1, 3))),
            ("SET('a','b','漢','d','e','f','g','h','i')", lambda: str(generator.randrange(512))),
            ("JSON", lambda: f"JSON_OBJECT('k', {text(9)}, 'n', {generator.uniform(-9, 9)!r}, 'a', JSON_ARRAY({generator.randint(-9, 9)}, NULL))"),
        ]
    )  # fmt: skip


def _write_random_table(server, database, generator, table):
    """Create and fill a random table. Return its schema and the bytes of the binlog."""
    columns = [_types(generator) for _ in range(generator.choice((1, 5, 9, 17)))]
    server.execute(
        f"CREATE TABLE `{database}`.{table} (id INT PRIMARY KEY, "
        + ", ".join(f"c{i} {kind}" for i, (kind, _) in enumerate(columns))
        + ") ROW_FORMAT=DYNAMIC"
    )

    def write():
        with server.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute("SET NAMES utf8mb4, sql_mode = '', time_zone = '+00:00'")
            for start in range(0, 60, 20):
                rows = [
                    f"({i}, " + ", ".join("NULL" if generator.random() < 0.15 else make() for _, make in columns) + ")"
                    for i in range(start, start + 20)
                ]
                cursor.execute(f"INSERT INTO {table} VALUES {', '.join(rows)}")

    return schema_now(server, database, table), recorded(server, write)


@pytest.mark.filterwarnings("ignore:.*is deprecated, use:DeprecationWarning")  # calls of PyMySQL by mysql-replication
@pytest.mark.parametrize("number", range(ROUNDS))
def test_random_mysql_rows_equal_select_and_mysql_replication(mysql, database, number):
    generator = random.Random(SEED + number)
    schema, data = _write_random_table(mysql, database, generator, "t")
    file, _ = binlog_end(mysql)
    found = comparable(
        upserts(decode_bytes(data, tables=CatalogTables(mysql), table_filter=Everything(database)).rows("t")), schema
    )
    assert differing(found, expected(mysql, schema)) == []
    theirs = _mysql_replication(mysql, database, file)
    for column in schema.columns:
        if column.kind not in FAULTS_OF_MYSQL_REPLICATION and column.charset in CHARSETS_OF_MYSQL_REPLICATION:
            assert [_normalized(row[column.name]) for row in found] == [
                _normalized(row[column.name]) for row in theirs
            ], column


@pytest.mark.parametrize("number", range(ROUNDS))
def test_random_mariadb_rows_equal_select(mariadb, mariadb_database, number):
    generator = random.Random(SEED + number)
    schema, data = _write_random_table(mariadb, mariadb_database, generator, "t")
    decoded = decode_bytes(data, tables=CatalogTables(mariadb), table_filter=Everything(mariadb_database))
    assert differing(comparable(upserts(decoded.rows("t")), schema), expected(mariadb, schema)) == []


def _mysql_replication(server, database, file):
    from pymysqlreplication import BinLogStreamReader
    from pymysqlreplication.row_event import WriteRowsEvent

    stream = BinLogStreamReader(
        connection_settings={"unix_socket": str(server.socket), "user": "root", "password": "", "host": "localhost"},
        server_id=4_000_002,
        log_file=file,
        log_pos=4,
        resume_stream=True,
        only_schemas=[database],
        only_events=[WriteRowsEvent],
    )
    try:
        return [row["values"] for event in stream for row in event.rows]
    finally:
        stream.close()


def _normalized(value):
    """Return the value in the form in which both are compared."""
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ", "microseconds")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Decimal | int):
        return f"{value:f}" if isinstance(value, Decimal) else str(value)
    return "" if value == b"" else value  # mysql-replication returns empty bytes as an empty text
