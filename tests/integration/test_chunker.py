"""Chunks of real tables: for each key type they contain every row once, and no chunk is much too large."""

from __future__ import annotations

import pytest

from cdc.model.snapshot import Chunk
from cdc.mysql.catalog import table_schemas
from cdc.mysql.connection import Endpoint, Tls
from cdc.mysql.key_order import key_order_of
from cdc.mysql.query_stream import Select, configure_session
from cdc.mysql.result_rows import selected
from cdc.mysql.server import Server
from cdc.snapshot.planner import Chunker

ROWS = 6000
NUMBER = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 6000)"
KEYS = {
    "dense": ("id INT PRIMARY KEY", "i"),
    "sparse": ("id BIGINT PRIMARY KEY", "i * 1000003 - 3000000000"),
    "skewed": ("id BIGINT PRIMARY KEY", "IF(i < 5990, i, i * 1000000000000)"),
    "unsigned": ("id BIGINT UNSIGNED PRIMARY KEY", "CAST(18446744073709551615 AS UNSIGNED) - i * 3"),
    "decimal": ("id DECIMAL(20,4) PRIMARY KEY", "i * 12.3456 - 9000"),
    "float": ("id DOUBLE PRIMARY KEY", "i / 7e0"),
    "real": ("id FLOAT PRIMARY KEY", "i / 8e0"),
    "bit": ("id BIT(40) PRIMARY KEY", "i * 77"),
    "date": ("id DATE PRIMARY KEY", "'1990-01-01' + INTERVAL i DAY"),
    "datetime": ("id DATETIME(6) PRIMARY KEY", "'2024-02-28 23:00:00.000001' + INTERVAL i * i SECOND"),
    "timestamp": ("id TIMESTAMP(3) PRIMARY KEY", "'2000-01-01 00:00:00' + INTERVAL i HOUR"),
    "time": ("id TIME(1) PRIMARY KEY", "SEC_TO_TIME(i * 10 - 30000)"),
    "ascii": ("id VARCHAR(36) CHARACTER SET ascii COLLATE ascii_bin PRIMARY KEY", "LEFT(SHA2(i, 256), 32)"),
    "ignoring case": ("id VARCHAR(40) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci PRIMARY KEY", "CONCAT(IF(i % 2, 'Ä', 'b'), LEFT(SHA2(i, 256), 32))"),
    "latin1": ("id VARCHAR(40) CHARACTER SET latin1 COLLATE latin1_german2_ci PRIMARY KEY", "CONCAT(ELT(1 + i % 4, 'ä', 'Z', 'ß', 'o'), i)"),
    "greek": ("id CHAR(40) CHARACTER SET greek PRIMARY KEY", "CONCAT(ELT(1 + i % 3, 'α', 'Ω', 'k'), LEFT(SHA2(i, 256), 39))"),
    "sjis": ("id VARCHAR(40) CHARACTER SET sjis PRIMARY KEY", "CONCAT(ELT(1 + i % 3, '漢', 'ｶ', 'k'), i)"),
    "binary": ("id BINARY(16) PRIMARY KEY", "UNHEX(LEFT(SHA2(i, 256), 32))"),
    "varbinary": ("id VARBINARY(30) PRIMARY KEY", "CONCAT(UNHEX('ff00'), UNHEX(HEX(i)))"),
    "composite": ("a INT, id INT, PRIMARY KEY (a, id)", "i % 3, i"),
    "mixed": ("a VARCHAR(10), b DATE, id INT, PRIMARY KEY (a, b, id)", "CONCAT('t', i % 2), '2024-01-01' + INTERVAL i % 50 DAY, i"),
    "unique only": ("id INT NOT NULL, other INT, UNIQUE (id)", "i * 2, 1"),
    "enum first": ("a ENUM('z','y','x'), id INT, PRIMARY KEY (a, id)", "ELT(1 + i % 3, 'z', 'y', 'x'), i"),
}  # fmt: skip
MARIADB = {
    "uuid": (
        "id UUID PRIMARY KEY",
        "CONCAT(LEFT(SHA2(i, 256), 12), 4, SUBSTR(SHA2(i, 256), 14, 3), 8, SUBSTR(SHA2(i, 256), 18, 15))",
    ),
    "inet6": ("id INET6 PRIMARY KEY", "CONCAT('2001:db8::', HEX(i))"),
}


def _endpoint(server):
    return Endpoint("127.0.0.1", server.port, "root", tls=Tls("off"))


def _create_table(server, database, columns, values, rows=ROWS):
    setting = "max_recursive_iterations" if "mariadb" in str(server.data) else "cte_max_recursion_depth"
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+00:00'")
        cursor.execute(f"SET SESSION {setting} = 10000")
        cursor.execute(f"CREATE TABLE t ({columns})")
        if rows:
            cursor.execute(f"INSERT INTO t {NUMBER} SELECT {values} FROM n WHERE i <= {rows}")
        connection.commit()
        cursor.execute("ANALYZE TABLE t")


def _plan(server, database, **options):
    endpoint = _endpoint(server)
    with Server(endpoint) as asked:
        configure_session(asked)
        schema = table_schemas(asked, [(database, "t")])[database, "t"]
        order = key_order_of(asked, schema, schema.key)
        plan = Chunker(asked, order, chunk_rows=500, **options.pop("chunker", {})).plan(**options)
    return schema, order, plan


def _read(server, schema, order, chunk, where=None):
    tail, bounds = order.tail(chunk, where)
    sql = "SELECT " + ", ".join(selected(column) for column in schema.columns) + tail
    with Select(_endpoint(server), sql, bounds, schema.columns) as select:
        return [row for rows in select.rows() for row in rows.batch.to_pylist()]


def _check(server, database, columns, values, *, splits=True):
    _create_table(server, database, columns, values)
    schema, order, plan = _plan(server, database)
    assert order.columns, "the key orders the rows"
    parts = [_read(server, schema, order, chunk) for chunk in plan.chunks]
    keys = [tuple(row[name] for name in schema.key) for part in parts for row in part]
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM t")
        count = cursor.fetchone()[0]
    assert len(keys) == len(set(keys)) == count > ROWS // 2
    if splits:
        assert len(plan.chunks) >= 5
        assert max(map(len, parts)) <= 2500
    assert sum(chunk.estimated_rows for chunk in plan.chunks) == plan.estimated_rows > count / 4
    _check_split(server, schema, order, plan, splits=splits)


def _check_split(server, schema, order, plan, *, splits):
    """Check that the parts of a slow chunk have its rows once."""
    chunk = Chunk(7, None, plan.chunks[-1].upto, ROWS)
    with Server(_endpoint(server)) as asked:
        configure_session(asked)
        parts = Chunker(asked, order).split(chunk, 1000)
    assert len(parts) > (3 if splits else 0)
    assert [part.number for part in parts] == [chunk.number, *range(1000, 999 + len(parts))]
    rows = [row for part in parts for row in _read(server, schema, order, part)]
    assert rows == _read(server, schema, order, chunk)


@pytest.mark.parametrize("kind", KEYS)
def test_chunks_of_mysql_contain_every_row_once(mysql, database, kind):
    _check(mysql, database, *KEYS[kind], splits=kind != "time")


@pytest.mark.parametrize("kind", [*KEYS, *MARIADB])
def test_chunks_of_mariadb_contain_every_row_once(mariadb, mariadb_database, kind):
    _check(mariadb, mariadb_database, *{**KEYS, **MARIADB}[kind], splits=kind not in ("time", *MARIADB))


def test_slow_chunk_is_read_up_to_its_first_row(mysql, database):
    """One that cannot be split, and whose WHERE has few matches: its step is over, and the next one would repeat it."""
    _create_table(mysql, database, "id INT PRIMARY KEY", "i", rows=60)
    schema, order, plan = _plan(mysql, database)
    tail, bounds = order.tail(plan.chunks[0], "SLEEP(0.05) = 1 OR id IN (40, 60)")
    sql = "SELECT " + ", ".join(selected(column) for column in schema.columns) + tail
    for needs_row, expected in ((False, []), (True, [{"id": 40}, {"id": 60}])):
        with Select(_endpoint(mysql), sql, bounds, schema.columns) as select:
            found = [row for rows in select.rows(lambda: True, needs_row=needs_row) for row in rows.batch.to_pylist()]
        assert found == expected
        assert select.ended == needs_row


def test_chunks_empty_table_has_none_and_tiny_table_has_one(mysql, database):
    _create_table(mysql, database, "id INT PRIMARY KEY", "i", rows=0)
    assert _plan(mysql, database)[2].chunks == ()
    mysql.execute(f"INSERT INTO `{database}`.t VALUES (1), (2)")
    assert len(_plan(mysql, database)[2].chunks) == 1


@pytest.mark.parametrize(
    "columns", ["id VARCHAR(50) NOT NULL, UNIQUE (id(10))", "id INT NOT NULL, b INT NOT NULL, UNIQUE (id DESC, b)"]
)
def test_chunks_table_without_ordering_index_is_one_chunk(mysql, database, columns):
    _create_table(mysql, database, columns, "i" if columns.count(",") == 1 else "i, i")
    schema, order, plan = _plan(mysql, database)
    assert order.columns == () and len(plan.chunks) == 1
    assert len(_read(mysql, schema, order, plan.chunks[0])) == ROWS


def test_chunks_exclude_rows_inserted_after_the_last_key(mysql, database):
    _create_table(mysql, database, "id INT PRIMARY KEY", "i")
    schema, order, plan = _plan(mysql, database)
    whole = _plan(mysql, database, whole=True)[2]
    mysql.execute(f"INSERT INTO `{database}`.t VALUES (100000)")
    assert {"id": 100000} not in _read(mysql, schema, order, plan.chunks[-1])
    assert {"id": 100000} in _read(mysql, schema, order, whole.chunks[-1])


def test_chunks_large_rows_make_more_chunks(mysql, database):
    _create_table(mysql, database, "id INT PRIMARY KEY", "i")
    few = _plan(mysql, database, chunker={})[2]
    many = _plan(mysql, database, row_bytes=1 << 20, chunker={"chunk_bytes": 100 << 20})[2]
    assert len(many.chunks) > len(few.chunks)


def test_chunks_with_a_condition_select_only_its_rows(mysql, database):
    _create_table(mysql, database, "id INT PRIMARY KEY", "i")
    schema, order, plan = _plan(mysql, database)
    rows = [row for chunk in plan.chunks for row in _read(mysql, schema, order, chunk, "id % 10 = 0 OR id = 1")]
    assert len(rows) == ROWS // 10 + 1
