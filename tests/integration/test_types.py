"""Every column type with its limit values: the rows from the binlog equal the rows of SELECT.

Each type has a column and each value a row, with NULL. Every row is inserted, updated to the values of its neighbour
and deleted, under every logging configuration of a server.
"""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from tests.support.answers import (
    CatalogTables,
    Everything,
    NoTables,
    comparable,
    decode_bytes,
    deletes,
    differing,
    expected,
    recorded,
    schema_now,
    upserts,
)

INTEGERS = {
    f"{name}{sign}": [0, 1, low if not sign else 0, 2**bits - 1 if sign else 2 ** (bits - 1) - 1, 2 ** (bits - 1) - 2]
    for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64))
    for sign in ("", " UNSIGNED")
    for low in (-(2 ** (bits - 1)),)
}
NUMBERS = {
    **INTEGERS,
    "TINYINT(1)": [0, 1, 2, 127, -128],
    "INT(5) UNSIGNED ZEROFILL": [0, 1, 4294967295],
    "BOOL": ["TRUE", "FALSE", 5],
    "FLOAT": [0, "-0e0", 1.5, "1.17549e-38", "3.40282e38", 0.1, 16777217, "-1e-45"],
    "FLOAT UNSIGNED": [0, 0.1, 3],
    "DOUBLE": [0, "-0e0", 0.1, "5e-324", "1.7976931348623157e308", "-2.2250738585072014e-308"],
    "BIT(1)": ["b'0'", "b'1'"],
    "BIT(12)": ["0", "0xabc", "4095"],
    "BIT(63)": ["0", "9223372036854775807"],
    "BIT(64)": ["0", "18446744073709551615", "1"],
    "YEAR": [0, 1901, 2155, 2024],
}
DECIMALS = {
    f"DECIMAL({p},{s})": ["0", "1", "-1", f"{'9' * (p - s) or '0'}.{'9' * s or '0'}", f"-{'9' * (p - s) or '0'}.{'9' * s or '0'}"]
    for p, s in ((1, 0), (5, 0), (10, 4), (9, 9), (12, 2), (18, 0), (18, 9), (19, 0), (20, 10), (27, 18), (37, 30), (38, 0), (38, 30), (39, 0), (65, 0), (65, 30), (30, 30))
}  # fmt: skip
DECIMALS["DECIMAL(10,2) UNSIGNED"] = ["0", "0.05", "99999999.99"]
DECIMALS["DECIMAL(30,10)"] = ["0.0000000001", "-0.0000000001", "1234567890.0987654321", "-10000000000", "1e19"]
TIMES = {
    "DATE": ["'2024-02-29'", "'0000-00-00'", "'0001-01-01'", "'0000-01-01'", "'1582-10-10'", "'9999-12-31'", "'2024-00-00'", "'1969-12-31'"],
    **{f"DATETIME({f})": ["'2024-02-29 13:14:15.123456'", "'0000-00-00'", "'0000-01-01 00:00:00'", "'9999-12-31 23:59:59.4'", "'1969-12-31 23:59:59.999'", "'2024-01-00 10:00:00'", "'1582-10-10 01:02:03'"] for f in range(7)},
    **{f"TIMESTAMP({f}) NULL": ["'2024-02-29 13:14:15.123456'", "'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'0000-00-00'", "'2000-01-01 00:00:00.9'"] for f in range(7)},
    **{f"TIME({f})": ["'-838:59:59'", "'838:59:59'", "'00:00:00'", "'-00:00:00.123456'", "'-01:02:03.999999'", "'23:59:59.5'", "'100:00:00.000001'"] for f in range(7)},
}  # fmt: skip
TEXTS = [
    "''",
    "'a'",
    "'ab  '",
    "'é漢😀'",
    "REPEAT('x', 7)",
    "REPEAT('é', 8)",
    "CONCAT('z', CHAR(0), '\\\\')",
    "'  lead'",
]
STRINGS = {
    "CHAR(0)": ["''"],
    "CHAR(10)": TEXTS,
    "CHAR(255)": [*TEXTS, "REPEAT('漢', 255)"],
    "VARCHAR(63)": [*TEXTS, "REPEAT('😀', 63)"],
    "VARCHAR(64)": [*TEXTS, "REPEAT('😀', 64)"],
    "VARCHAR(1000)": [*TEXTS, "REPEAT('é', 1000)"],
    "TINYTEXT": [*TEXTS, "REPEAT('x', 255)"],
    "TEXT": [*TEXTS, "REPEAT('x', 65535)"],
    "MEDIUMTEXT": [*TEXTS, "REPEAT('漢', 70000)"],
    "LONGTEXT": TEXTS,
    "BINARY(1)": ["''", "'a'", "0x00", "0xff"],
    "BINARY(10)": ["''", "'ab '", "0x610000", "0xff00ff", "REPEAT(0x01, 10)"],
    "BINARY(255)": ["''", "0x00ff", "REPEAT(0xff, 255)"],
    "VARBINARY(10)": ["''", "0x6100", "0xff00"],
    "VARBINARY(300)": ["''", "0x6100", "REPEAT(0x00, 300)"],
    "TINYBLOB": ["''", "0x00ff"],
    "BLOB": ["''", "REPEAT(0x80, 65535)"],
    "MEDIUMBLOB": ["0x01"],
    "LONGBLOB": ["0x01", "REPEAT(0xfe, 100000)"],
    "ENUM('a','b,c','it''s','é漢','')": ["1", "2", "3", "4", "5", "'nothing'"],
    "ENUM(" + ",".join(f"'m{i}'" for i in range(300)) + ")": ["1", "255", "256", "300"],
    "SET('a','b','it''s','é')": ["0", "1", "15", "'b,é'", "10"],
    "SET(" + ",".join(f"'s{i}'" for i in range(64)) + ")": ["0", "1", "18446744073709551615", "9223372036854775809"],
    "SET(" + ",".join(f"'s{i}'" for i in range(20)) + ")": ["0", "1048575", "524288"],
}
GEOMETRY = {
    "GEOMETRY": ["ST_GEOMFROMTEXT('POINT(1 2)')", "ST_GEOMFROMTEXT('GEOMETRYCOLLECTION EMPTY')"],
    "POINT": ["ST_GEOMFROMTEXT('POINT(-1 2.5)', 4326)"],
    "POLYGON": ["ST_GEOMFROMTEXT('POLYGON((0 0,0 1,1 1,0 0))')"],
}
CHARSETS = [
    "big5",
    "latin2",
    "dec8",
    "cp850",
    "latin1",
    "hp8",
    "koi8r",
    "swe7",
    "ascii",
    "ujis",
    "sjis",
    "cp1251",
    "hebrew",
    "tis620",
    "euckr",
    "latin7",
    "koi8u",
    "gb2312",
    "greek",
    "cp1250",
    "gbk",
    "cp1257",
    "latin5",
    "armscii8",
    "utf8mb3",
    "ucs2",
    "cp866",
    "keybcs2",
    "macce",
    "macroman",
    "cp852",
    "utf8mb4",
    "utf16",
    "utf16le",
    "cp1256",
    "utf32",
    "geostd8",
    "cp932",
    "eucjpms",
]
WORDS = {
    "cp1251": "'Привет'", "koi8r": "'Привет'", "koi8u": "'їґ'", "cp866": "'Привет'", "gbk": "'漢字テ'", "gb2312": "'汉字'",
    "big5": "'漢字'", "sjis": "'漢字ｶﾅ'", "cp932": "'漢字ｶﾅ①'", "ujis": "'漢字ｶﾅ'", "eucjpms": "'漢字①丂'", "euckr": "'한글'", "greek": "'αβγ'",
    "hebrew": "'אבג'", "tis620": "'กขค'", "latin1": "'é€ÿ'", "latin2": "'łóž'", "armscii8": "'Բար'", "ucs2": "'aé漢'",
    "utf16": "'aé漢😀'", "utf16le": "'aé漢😀'", "utf32": "'aé漢😀'", "utf8mb4": "'aé漢😀'", "utf8mb3": "'aé漢'", "gb18030": "'漢字😀ḿ'",
    "geostd8": "'აბგ'", "cp1256": "'ابپ'", "swe7": "'åäö'", "cp1257": "'ąčę'", "latin7": "'ąčę'",
}  # fmt: skip


def _charset_columns(names):
    return {
        f"{kind} CHARACTER SET {name}": ["''", "'plain'", WORDS.get(name, "'x'"), f"REPEAT({WORDS.get(name, chr(39) + 'y' + chr(39))}, 9)"]
        for name in names
        for kind in ("VARCHAR(40)", "CHAR(40)", "TEXT")
    }  # fmt: skip


def _labels(names):
    return {
        f"{kind}({WORDS[name]},'x') CHARACTER SET {name}": ["1", "2"]
        for name in names
        if name in WORDS
        for kind in ("ENUM", "SET")
    }


MYSQL = {
    "numbers": NUMBERS,
    "decimals": DECIMALS,
    "times": TIMES,
    "strings": STRINGS,
    "charsets": _charset_columns([*CHARSETS, "gb18030"]),
    "labels": _labels([*CHARSETS, "gb18030"]),
    "special": {
        **GEOMETRY,
        "JSON": ["'null'", "'[1, 2.5, \"x\"]'", "'{}'", "JSON_OBJECT('a', 1.10)"],
        "VECTOR(3)": ["STRING_TO_VECTOR('[1,2,3]')", "STRING_TO_VECTOR('[-0.5,1e-30]')"],
        "VECTOR(2048)": ["STRING_TO_VECTOR('[1]')"],
        "INT INVISIBLE": ["1", "2"],
    },
}
MARIADB = {
    "numbers": {kind: values for kind, values in NUMBERS.items() if kind != "FLOAT"} | {"FLOAT": [0, 1.5, 0.25]},
    "decimals": {kind: values for kind, values in DECIMALS.items() if kind != "DECIMAL(65,30)"},
    "times": TIMES,
    "strings": STRINGS,
    "charsets": _charset_columns(CHARSETS),
    "labels": _labels(CHARSETS),
    "special": {
        **{kind: [v.replace(", 4326", "") for v in values] for kind, values in GEOMETRY.items()},
        "JSON": ["'null'", "'[1, 2.5, \"x\"]'", "'{\"b\":  1}'"],
        "UUID": ["'123e4567-e89b-12d3-a456-426655440000'", "'ffffffff-ffff-7fff-bfff-fffffffffff0'", "'00000000-0000-0000-0000-000000000000'"],
        "INET6": ["'::'", "'::1'", "'1::'", "'::ffff:1.2.3.4'", "'::1.2.3.4'", "'::1:2'", "'1:0:2:3:4:5:6:7'", "'2001:db8::f'", "'1:0:0:2:0:0:0:3'"],
        "INET4": ["'0.0.0.0'", "'1.2.3.0'", "'255.255.255.255'"],
        "VARCHAR(100) COMPRESSED": [*TEXTS, "REPEAT('é', 100)"],
        "TEXT COMPRESSED": [*TEXTS, "REPEAT('abc', 5000)"],
        "LONGBLOB COMPRESSED": ["''", "REPEAT(0x00, 200000)"],
        "VARBINARY(1000) COMPRESSED": ["''", "REPEAT(0x41, 1000)", "0x00"],
        "INT INVISIBLE": ["1", "2"],
    },
}  # fmt: skip

SHAPES = {
    "mysql": {
        "full": {},
        "minimal": {"global": {"binlog_row_metadata": "MINIMAL"}},
        "no_checksum": {"global": {"binlog_checksum": "NONE"}},
        "compressed": {"session": {"binlog_transaction_compression": "ON"}},
        "partial_json": {"session": {"binlog_row_value_options": "'PARTIAL_JSON'"}},
        "no_checksum_compressed_minimal": {
            "global": {"binlog_checksum": "NONE", "binlog_row_metadata": "MINIMAL"},
            "session": {"binlog_transaction_compression": "ON"},
        },
    },
    "mariadb": {
        "full": {},
        "minimal": {"global": {"binlog_row_metadata": "MINIMAL"}},
        "no_log": {"global": {"binlog_row_metadata": "NO_LOG"}},
        "no_checksum": {"global": {"binlog_checksum": "NONE"}},
        "compressed": {"global": {"log_bin_compress": "ON", "log_bin_compress_min_len": "10"}},
    },
}


@contextmanager
def _globals(server, settings):
    with server.connect() as connection, connection.cursor() as cursor:
        before = {}
        for name, value in settings.items():
            cursor.execute(f"SELECT @@GLOBAL.{name}")
            before[name] = cursor.fetchone()[0]
            cursor.execute(f"SET GLOBAL {name} = {value}")
        yield
        for name, value in before.items():
            cursor.execute(f"SET GLOBAL {name} = %s", (value,))


def _statements(columns: dict[str, list]) -> tuple[str, list[str], list[str]]:
    """Return CREATE TABLE, INSERTs, and UPDATEs that give every row the values of its neighbour."""
    names = [f"c{i}" for i in range(len(columns))]
    create = "CREATE TABLE t (id INT PRIMARY KEY, " + ", ".join(
        f"{name} {kind}" for name, kind in zip(names, columns, strict=True)
    )
    count = max(map(len, columns.values())) + 1  # the last value of each column is NULL

    def value(values, i):
        return "NULL" if i % count >= len(values) else str(values[i % count])

    inserts = [
        f"INSERT INTO t (id, {', '.join(names)}) VALUES ({i}, {', '.join(value(v, i) for v in columns.values())})"
        for i in range(count)
    ]
    updates = [
        "UPDATE t SET "
        + ", ".join(f"{name} = {value(v, i + 1)}" for name, v in zip(names, columns.values(), strict=True))
        + f" WHERE id = {i}"
        for i in range(count)
    ]
    return create + ") ROW_FORMAT=DYNAMIC", inserts, updates


def _check(server, database, columns, shape):
    full = not shape.get("global", {}).get("binlog_row_metadata") and "mariadb" not in str(server.data)
    if not full:  # information_schema shows labels in utf8mb3, with ? for other characters
        columns = {kind.replace("😀", ""): values for kind, values in columns.items()}
    create, inserts, updates = _statements(columns)
    seen = {}
    with (
        _globals(server, shape.get("global", {})),
        server.connect(database) as connection,
        connection.cursor() as cursor,
    ):
        for name, value in shape.get("session", {}).items():
            cursor.execute(f"SET SESSION {name} = {value}")
        cursor.execute("SET NAMES utf8mb4, sql_mode = '', time_zone = '+00:00', explicit_defaults_for_timestamp = 1")
        cursor.execute(create)
        schema = schema_now(server, database, "t")

        def write():
            for statement in inserts:
                cursor.execute(statement)
            seen["inserted"] = expected(server, schema)
            for statement in updates:
                cursor.execute(statement)
            seen["updated"] = expected(server, schema)
            cursor.execute("UPDATE t SET id = id + 1000 ORDER BY id DESC")
            seen["moved"] = expected(server, schema)
            cursor.execute("DELETE FROM t ORDER BY id")

        data = recorded(server, write)
    tables = NoTables() if full else CatalogTables(server)
    rows = decode_bytes(data, tables=tables, table_filter=Everything(database)).rows("t")
    count = len(inserts)
    added, gone = upserts(rows), deletes(rows)
    assert differing(comparable(added.slice(0, count), schema), seen["inserted"]) == []
    changed = comparable(added.slice(count, added.num_rows - 2 * count), schema)
    newest = {row["id"]: row for row in [*seen["inserted"], *changed]}
    assert differing([newest[key] for key in sorted(newest)], seen["updated"]) == []
    assert differing(comparable(added.slice(added.num_rows - count), schema)[::-1], seen["moved"]) == []
    assert differing(comparable(gone.slice(0, count), schema)[::-1], seen["updated"]) == []
    assert differing(comparable(gone.slice(count), schema), seen["moved"]) == []


@pytest.mark.parametrize("shape", SHAPES["mysql"])
@pytest.mark.parametrize("group", MYSQL)
def test_binlog_mysql_values_equal_select(mysql, database, group, shape):
    _check(mysql, database, MYSQL[group], SHAPES["mysql"][shape])


@pytest.mark.parametrize("shape", SHAPES["mariadb"])
@pytest.mark.parametrize("group", MARIADB)
def test_binlog_mariadb_values_equal_select(mariadb, mariadb_database, group, shape):
    _check(mariadb, mariadb_database, MARIADB[group], SHAPES["mariadb"][shape])
