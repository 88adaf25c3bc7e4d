"""Record the golden binlogs: ``python -m tests.data.record``. Starts both servers, writes NAME.binlog and NAME.json.

The JSON holds the tables' schemas and what SELECT answers at the end; the test replays the decoded rows and compares.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from cdc.demo.local_servers import LocalServer, obtain
from cdc.state.codec import to_json
from tests.support.answers import expected, recorded, schema_now

FOLDER = Path(__file__).parent

_COMMON = [
    ("CREATE TABLE numbers (id INT PRIMARY KEY, t TINYINT, tu TINYINT UNSIGNED, s SMALLINT, m MEDIUMINT, mu MEDIUMINT UNSIGNED, "
    "b BIGINT, bu BIGINT UNSIGNED, f FLOAT, d DOUBLE, dec1 DECIMAL(12,2), dec2 DECIMAL(38,10), dec3 DECIMAL(65,0), bit1 BIT(12), "
    "bit2 BIT(64), y YEAR)"),
    ("INSERT INTO numbers VALUES (1, -128, 255, -32768, -8388608, 16777215, -9223372036854775808, 18446744073709551615, 1.5, 0.1, "
    "-1234567890.12, 1.0000000001, REPEAT('9', 65), 0xabc, 18446744073709551615, 2155)"),
    "INSERT INTO numbers (id) VALUES (2)",
    "INSERT INTO numbers VALUES (3, 127, 0, 32767, 8388607, 0, 9223372036854775807, 0, -0.25, -1e300, 0.05, -0.0000000001, 0, 0, 0, 0)",
    "UPDATE numbers SET t = 5, dec1 = dec1 + 1, y = 1901 WHERE id IN (1, 3)",
    "CREATE TABLE times (id INT PRIMARY KEY, d DATE, dt DATETIME(6), dt0 DATETIME, ts TIMESTAMP(3) NULL, ti TIME(6), ti0 TIME)",
    ("INSERT INTO times VALUES (1, '2024-02-29', '2024-02-29 13:14:15.123456', '1000-01-01', '2038-01-19 03:14:07.499', "
    "'-838:59:59', '838:59:59'), (2, NULL, NULL, NULL, NULL, NULL, NULL), "
    "(3, '0000-00-00', '0000-00-00', '2024-00-10', '0000-00-00', '-00:00:00.000001', '-01:02:03')"),
    "UPDATE times SET id = 30, ti0 = '00:00:01' WHERE id = 3",
    ("CREATE TABLE words (id INT PRIMARY KEY, c CHAR(10), v VARCHAR(300), l1 VARCHAR(20) CHARACTER SET latin1, "
    "g VARCHAR(20) CHARACTER SET gbk, u VARCHAR(20) CHARACTER SET utf16, t TEXT, bi BINARY(5), vb VARBINARY(5), bl BLOB, "
    "e ENUM('a','é','c'), s SET('x','y','é'))"),
    "INSERT INTO words VALUES (1, 'ab  ', 'é漢😀', 'é€', '漢字', 'aé漢😀', REPEAT('x', 300), 'a', 0x6100, 0xff00, 'é', 'x,é')",
    ("INSERT INTO words VALUES (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL), "
    "(3, '', '', '', '', '', '', '', '', '', 'nothing', '')"),
    "UPDATE words SET v = CONCAT(v, '!'), e = 'c' WHERE id < 3",
    "DELETE FROM words WHERE id = 3",
    "CREATE TABLE moved (a INT, b VARCHAR(10), n INT, PRIMARY KEY (b, a))",
    "INSERT INTO moved VALUES (1, 'x', 1), (2, 'y', 2), (3, 'z', 3)",
    "UPDATE moved SET b = CONCAT(b, b) WHERE a > 1",
    "BEGIN", "INSERT INTO moved VALUES (9, 'gone', 1)", "SAVEPOINT one", "DELETE FROM moved WHERE a = 1", "ROLLBACK TO one", "COMMIT",
    "XA START 'x1'", "INSERT INTO moved VALUES (10, 'xa', 1)", "XA END 'x1'", "XA PREPARE 'x1'", "XA COMMIT 'x1'",
    "XA START 'x2'", "INSERT INTO moved VALUES (11, 'no', 1)", "XA END 'x2'", "XA PREPARE 'x2'", "XA ROLLBACK 'x2'",
]  # fmt: skip
_SCRIPTS = {
    "mysql": [
        *_COMMON,
        "CREATE TABLE special (id INT PRIMARY KEY, j JSON, g GEOMETRY, v VECTOR(3), hidden INT INVISIBLE DEFAULT 7)",
        ("INSERT INTO special VALUES (1, '{\"a\": 1, \"b\": [1, 2.5, \"x\", null, true], \"big\": \"0123456789012345678901234567890123456789\"}', "
        "ST_GEOMFROMTEXT('POINT(1 2)'), STRING_TO_VECTOR('[1,2,3]')), (2, NULL, NULL, NULL), (3, 'null', NULL, NULL)"),
        "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",
        "UPDATE special SET j = JSON_SET(j, '$.a', 2, '$.b[1]', 'two') WHERE id = 1",
        "SET SESSION binlog_row_value_options = ''",
        "SET SESSION binlog_transaction_compression = ON",
        "UPDATE special SET j = JSON_ARRAY(1.10, DATE'2024-01-02', TIME'-01:02:03.5', X'616263', 1e20) WHERE id = 2",
        "SET SESSION binlog_transaction_compression = OFF",
        "SET gtid_next = '11111111-2222-3333-4444-555555555555:abc_tag:7'",
        "INSERT INTO special (id, j) VALUES (4, '[]')",
        "SET gtid_next = 'AUTOMATIC'",
    ],
    "mariadb": [
        *_COMMON,
        "CREATE TABLE special (id INT PRIMARY KEY, j JSON, u UUID, i4 INET4, i6 INET6, c TEXT COMPRESSED, vc VARBINARY(500) COMPRESSED)",
        ("INSERT INTO special VALUES (1, '{\"a\":  1}', '123e4567-e89b-12d3-a456-426655440000', '1.2.3.0', '::ffff:1.2.3.4', "
        "REPEAT('abc', 500), 0x00), (2, NULL, NULL, NULL, NULL, NULL, NULL), (3, '[]', '00000000-0000-0000-0000-000000000000', "
        "'0.0.0.0', '::', '', '')"),
        "SET GLOBAL log_bin_compress = ON",
        "INSERT INTO special (id, c) SELECT id + 10, REPEAT('0123456789', 100) FROM special",
        "SET GLOBAL log_bin_compress = OFF",
    ],
}  # fmt: skip
_TABLES = ("numbers", "times", "words", "moved", "special")


def _record(kind: str, folder: Path) -> None:
    options = ("--binlog-row-metadata=FULL",)
    with LocalServer.start(obtain(kind, print), folder / kind, options=options) as server:  # type: ignore[arg-type]
        server.execute("CREATE DATABASE golden")

        def work() -> None:
            with server.connect("golden") as connection, connection.cursor() as cursor:
                cursor.execute("SET NAMES utf8mb4, sql_mode = '', time_zone = '+00:00'")
                for statement in _SCRIPTS[kind]:
                    cursor.execute(statement)

        data = recorded(server, work)
        answer = {}
        for table in _TABLES:
            schema = schema_now(server, "golden", table)
            rows = expected(server, schema, ", ".join(schema.key))
            answer[table] = {"schema": json.loads(to_json(schema)), "rows": [_jsonable(row) for row in rows]}
    (FOLDER / f"{kind}.binlog").write_bytes(data)
    (FOLDER / f"{kind}.json").write_text(json.dumps(answer, indent=1, ensure_ascii=False) + "\n")
    print(f"{kind}: {len(data)} bytes")


def _jsonable(row: dict[str, object]) -> dict[str, object]:
    return {name: {"hex": value.hex()} if isinstance(value, bytes) else value for name, value in row.items()}


def main() -> None:
    """Record both servers."""
    with tempfile.TemporaryDirectory() as name:
        for kind in _SCRIPTS:
            _record(kind, Path(name))


if __name__ == "__main__":
    main()
