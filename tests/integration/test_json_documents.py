"""JSON documents of every kind, compared with the text that a real MySQL prints."""

from __future__ import annotations

import json
import math
import random
import struct

import pytest

from tests.support.answers import (
    Everything,
    NoTables,
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


def _check_documents(server, database, expressions, arguments=None):
    """Insert every expression as a document and compare the decoder's text with the server's."""
    server.execute(f"CREATE TABLE `{database}`.docs (id INT PRIMARY KEY, j JSON)")

    def write():
        with server.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = ''")
            for i, expression in enumerate(expressions):
                cursor.execute(f"INSERT INTO docs VALUES ({i}, {expression})", arguments and arguments[i])

    data = recorded(server, write)
    rows = decode_bytes(data, tables=NoTables(), table_filter=Everything(database)).rows("docs")
    schema = schema_now(server, database, "docs")
    assert differing(comparable(rows, schema), expected(server, schema)) == []


def _random_double(generator: random.Random) -> float:
    while True:
        kind = generator.randrange(4)
        if kind == 0:
            value = struct.unpack("<d", generator.randbytes(8))[0]
        elif kind == 1:
            value = generator.uniform(-1, 1) * 10 ** generator.randint(-20, 20)
        elif kind == 2:
            value = round(generator.uniform(-1000, 1000), generator.randint(0, 6))
        else:
            value = float(generator.randint(-(10**17), 10**17)) * 10 ** generator.randint(-30, 3)
        if math.isfinite(value):
            return value


def test_json_random_doubles_equal_the_text_of_the_server(mysql, database):
    # given
    generator = random.Random(SEED)
    doubles = [_random_double(generator) for _ in range(20_000)]
    doubles += [generator.uniform(-(2**53), 2**53) for _ in range(2_000)]  # a fraction after 16 digits
    edges = [0.0, -0.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, 1e23, 9007199254740993.0]
    edges += [10.0**power for power in range(-20, 24)] + [1.2345678901234567 * 10.0**power for power in range(-20, 24)]
    documents = [edges, *(doubles[i : i + 100] for i in range(0, len(doubles), 100))]

    # then
    _check_documents(mysql, database, ["%s"] * len(documents), [(json.dumps(d),) for d in documents])


@pytest.mark.parametrize("part", range(4))
def test_json_random_documents_equal_the_text_of_the_server(mysql, database, part):
    # given
    generator = random.Random(SEED + part)

    def text() -> str:
        alphabet = ['"', "\\", "/", "\n", "\t", "\0", "\x1f", "\x7f", "é", "漢", "😀", "a", "b", "Z", " "]
        return "".join(generator.choice(alphabet) for _ in range(generator.choice((0, 1, 3, 7, 8, 9, 30, 130, 300))))

    def document(depth: int):
        kind = generator.randrange(9 if depth else 7)
        if kind == 0:
            return generator.choice((None, True, False))
        if kind == 1:
            edge = generator.choice((0, 2**7, 2**15, 2**16, 2**31, 2**32, 2**63, 2**64 - 1))
            return max(min(edge + generator.randint(-2, 2), 2**64 - 1), -(2**63)) * (
                1 if edge > 2**62 else generator.choice((1, -1))
            )
        if kind == 2:
            return generator.randint(-(2**40), 2**40)
        if kind in (3, 4):
            return _random_double(generator)
        if kind in (5, 6):
            return text()
        if kind == 7:
            return [document(depth - 1) for _ in range(generator.randrange(6))]
        return {text()[:60]: document(depth - 1) for _ in range(generator.randrange(6))}

    documents = [document(4) for _ in range(300)]

    # then
    _check_documents(mysql, database, ["%s"] * len(documents), [(json.dumps(d),) for d in documents])


def test_json_values_that_only_sql_can_create_equal_the_server(mysql, database):
    _check_documents(
        mysql,
        database,
        [
            "JSON_ARRAY(DATE'2024-01-02', DATE'0000-01-01', DATE'9999-12-31')",
            "JSON_ARRAY(TIME'-00:00:00.000001', TIME'838:59:59', TIME'-838:59:59', TIME'99:00:00.5', TIME'00:00:00')",
            "JSON_ARRAY(TIMESTAMP'2024-01-02 03:04:05', TIMESTAMP'9999-12-31 23:59:59.999999', NOW(3))",
            "JSON_ARRAY(FROM_UNIXTIME(1.5), CAST('2024-02-29' AS DATETIME(6)))",
            "JSON_ARRAY(1.10, -0.5, 0.0, 100, -12345678901234567890.123456789, CAST(0 AS DECIMAL(65,30)))",
            "JSON_ARRAY(CAST(REPEAT('9', 65) AS DECIMAL(65)), CAST(-1 AS DECIMAL(30,30)), CAST('0.000000001' AS DECIMAL(9,9)))",
            "JSON_ARRAY(CAST('000000010.000000020' AS DECIMAL(18,9)), CAST('1000000000' AS DECIMAL(20,0)))",
            "JSON_ARRAY(CAST('abc' AS BINARY), UNHEX(''), b'1010', X'00ff', UNHEX(REPEAT('ff00', 100)))",
            *(f"JSON_ARRAY(UNHEX(REPEAT('a5', {n})))" for n in (1, 2, 3, 56, 57, 58, 113, 114, 115)),
            "JSON_ARRAY(ST_GEOMFROMTEXT('POINT(1 2)'), 18446744073709551615, -9223372036854775808)",
            "JSON_OBJECT('', 1, 'b', 2, 'aa', 3, 'a\\\"', 4, 'é', 5)",
            "'null'", "'true'", "'[]'", "'{}'", "NULL", "'\"\"'", "'-0.0'", "'3'",
        ],
    )  # fmt: skip


def test_json_large_and_deep_documents_equal_the_server(mysql, database):
    _check_documents(
        mysql,
        database,
        [
            "JSON_ARRAY(REPEAT('x', 70000), 1, JSON_ARRAY(2, 70000, -70000, 3.5, JSON_OBJECT('k', REPEAT('y', 300))))",
            "JSON_OBJECT(REPEAT('k', 65535), REPEAT('v', 66000), 'i', 32768, 'u', 4294967295, 's', -5, 't', true)",
            f"'{'[' * 99}1{']' * 99}'",
            f"'{'{' + chr(34) + 'a' + chr(34) + ':'}{'[' * 90}{']' * 90}}}'",
            f"'[{', '.join(map(str, range(-40000, 40000, 3)))}]'",
            f"'{json.dumps({f'key{i}': i for i in range(9000)})}'",
            f"'{json.dumps([{'n': None}] * 30000)}'",
        ],
    )


def test_json_null_in_a_not_null_column_is_json_null(mysql, database):
    # given
    mysql.execute(f"CREATE TABLE `{database}`.docs (id INT PRIMARY KEY, j JSON NOT NULL)")

    # when
    def write():
        with mysql.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = ''")
            cursor.execute("INSERT IGNORE INTO docs VALUES (1, NULL), (2, '1')")

    data = recorded(mysql, write)

    # then
    rows = decode_bytes(data, tables=NoTables(), table_filter=Everything(database)).rows("docs")
    assert rows.column("j").to_pylist() == ["null", "1"]


PARTIAL = [
    "JSON_SET(j, '$.a', 2)",
    "JSON_SET(j, '$.new', JSON_ARRAY(1, 'x'))",
    "JSON_SET(j, '$.\"key with space\"', 7)",
    "JSON_SET(j, '$.\"q\\\\\"uote\"', 'v')",
    "JSON_SET(j, '$.\"é漢\"', 'v')",
    "JSON_SET(j, '$.list[1]', 'one')",
    "JSON_SET(j, '$.list[100]', 'beyond')",
    "JSON_SET(j, '$.list[last]', 'the last')",
    "JSON_SET(j, '$.list[last-1]', 'before the last')",
    "JSON_SET(j, '$.a[0]', 'self')",
    "JSON_SET(j, '$.a[1]', 'wrapped')",
    "JSON_REMOVE(j, '$.a')",
    "JSON_REMOVE(j, '$.list[0]')",
    "JSON_REMOVE(j, '$.list[last]')",
    "JSON_REPLACE(j, '$.deep.x[1].y', REPEAT('long', 100))",
    "JSON_SET(j, '$.deep.x[1].z', NULL, '$.a', 3, '$.list[0]', 4)",
    "JSON_REMOVE(JSON_SET(j, '$.deep.x[0]', 'first', '$.b', 1.10), '$.list[0]', '$.\"key with space\"')",
    "JSON_REPLACE(j, '$.a', CAST('2024-01-02' AS DATE))",
    "JSON_SET(j, '$.nothing.there', 1)",
    "JSON_SET(j, '$', JSON_ARRAY(1))",
]


def test_json_partial_updates_give_the_documents_of_the_server(mysql, database):
    # given
    document = {
        "a": 1, "key with space": [1], 'q"uote': None, "list": [10, 20, {"k": "v"}], "deep": {"x": [0, {"y": "s"}]},
        "é漢": True, "big": "x" * 500,
    }  # fmt: skip
    mysql.execute(f"CREATE TABLE `{database}`.docs (id INT PRIMARY KEY, j JSON, k JSON, n INT)")

    # when
    def write():
        with mysql.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute("SET binlog_row_value_options = 'PARTIAL_JSON'")
            for i in range(len(PARTIAL)):
                cursor.execute(
                    "INSERT INTO docs VALUES (%s, %s, %s, 0)", (i, json.dumps(document), json.dumps(document))
                )
            for i, change in enumerate(PARTIAL):
                cursor.execute(f"UPDATE docs SET j = {change}, n = n + 1 WHERE id = {i}")
            cursor.execute("UPDATE docs SET k = JSON_SET(k, '$.a', id), j = NULL WHERE id = 3")
            cursor.execute(
                "UPDATE docs SET j = JSON_OBJECT('w', id), k = JSON_REMOVE(k, '$.list[1]') WHERE id IN (4, 5)"
            )
            cursor.execute("UPDATE docs SET j = JSON_SET(j, '$.a', id), k = JSON_SET(k, '$.list[1]', id), n = 9")

    data = recorded(mysql, write)

    # then
    rows = upserts(decode_bytes(data, tables=NoTables(), table_filter=Everything(database)).rows("docs"))
    schema = schema_now(mysql, database, "docs")
    newest = comparable(rows.slice(rows.num_rows - len(PARTIAL)), schema)
    assert data.count(b"$.deep.x[1].y") == 1, "the server logged whole documents"
    assert differing(newest, expected(mysql, schema)) == []
