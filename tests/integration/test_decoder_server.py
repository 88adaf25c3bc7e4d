"""The decoder on binlogs of real servers: rows as SELECT returns them, for every kind of transaction."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pymysql
import pytest

from cdc.errors import DecodeError, UnsupportedRowFormat
from cdc.model.schema import DELETED, SEQUENCE
from cdc.mysql.catalog import table_schemas
from cdc.mysql.server import Server
from tests.support.decoding import Everything, Outcome, binlog_of, decode, decode_into, framed
from tests.support.receiving import endpoint

COLUMNS = """
    id BIGINT PRIMARY KEY, ti TINYINT, tu TINYINT UNSIGNED, si SMALLINT, su SMALLINT UNSIGNED, mi MEDIUMINT,
    mu MEDIUMINT UNSIGNED, i INT, iu INT UNSIGNED, b BIGINT, bu BIGINT UNSIGNED, f FLOAT, d DOUBLE, de DECIMAL(12,2),
    dw DECIMAL(38,10), dn DECIMAL(9,9), dx DECIMAL(65,30), bi BIT(12), bw BIT(64), y YEAR, da DATE, dt DATETIME(3),
    t0 TIME, t6 TIME(6), ts TIMESTAMP(6) NULL, c CHAR(10), v VARCHAR(300), tx MEDIUMTEXT, bn BINARY(4),
    vb VARBINARY(20), bl BLOB, e ENUM('a','b','c'), s SET('x','y','z')
"""
ROWS = [
    (
        "(1, -128, 255, -32768, 65535, -8388608, 16777215, -2147483648, 4294967295, -9223372036854775808, "
        "18446744073709551615, 1.5, -2.25e100, -9999999999.99, -1234567890123456789012345678.0123456789, -0.000000001, "
        "-12345678901234567890123456789012345.123456789012345678901234567890, b'101010101010', ~0, 1901, '2024-02-29', "
        "'9999-12-31 23:59:59.999', '-838:59:59', '-00:00:00.000001', '2038-01-19 03:14:07.499999', 'ä', REPEAT('ü', 200), "
        "REPEAT('long', 5000), 'ab', 'q\\0', '\\0\\xff', 'c', 'x,z')"
    ),
    "(2" + ", NULL" * 32 + ")",
    (
        "(3, 127, 0, 32767, 0, 8388607, 0, 2147483647, 0, 9223372036854775807, 0, -0.0, 0.1, 0.05, 0, 0.999999999, 0.5, 0, "
        "1, 2155, '0001-01-01', '0001-01-01 00:00:00', '12:34:56', '838:59:59', '1970-01-01 00:00:01', '', '', '', '', '', "
        "'', 'a', '')"
    ),
]
CHANGES = [
    "UPDATE t SET ti = ti - 1, v = CONCAT(v, 'x') WHERE id <> 2 AND ti > 0",
    "UPDATE t SET i = 7 WHERE id = 2",
    "UPDATE t SET id = 30 WHERE id = 3",
    "INSERT INTO t (id) VALUES (4), (5)",
    "DELETE FROM t WHERE id = 4",
]


def prepare(server, database, columns=COLUMNS):
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(f"CREATE TABLE t ({columns}) CHARACTER SET utf8mb4")


def selected(server, database, key=1):
    """Return the rows of SELECT with the values of the Arrow types of this project."""
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute(
            "SELECT id, ti, tu, si, su, mi, mu, i, iu, b, bu, f, d, de, dw, dn, CAST(dx AS CHAR), bi + 0, bw + 0, y, da, "
            "dt, CAST(t0 AS CHAR), CAST(t6 AS CHAR), ts, c, v, tx, bn, vb, bl, e, s FROM t"
        )
        return {row[:key]: row for row in cursor.fetchall()}


def plain(row):
    """Return a decoded row as the tuple of SELECT."""
    values = dict(row)
    if values["ts"] is not None:
        values["ts"] = values["ts"].replace(tzinfo=None)
    for name in ("bu", "bw"):
        if isinstance(values[name], Decimal):
            values[name] = int(values[name])
    return tuple(values.values())


def assert_same(outcome, server, database):
    left = outcome.replay("t", ["id"])
    assert {key: plain(row) for key, row in left.items()} == selected(server, database)


def with_checked_sequences(outcome):
    sequences = [row[SEQUENCE] for row in outcome.rows()]
    assert sequences == list(range(1, len(sequences) + 1))
    return outcome


@pytest.mark.parametrize("checksum", ["CRC32", "NONE"])
@pytest.mark.parametrize("compressed", ["ON", "OFF"])
def test_decoder_mysql_rows_equal_select(mysql, database, checksum, compressed):
    prepare(mysql, database)
    mysql.execute(f"SET GLOBAL binlog_checksum = '{checksum}'")
    try:
        data = binlog_of(
            mysql, f"SET SESSION binlog_transaction_compression = {compressed}", "SET time_zone = '+00:00'",
            f"INSERT INTO t VALUES {', '.join(ROWS)}", *CHANGES, database=database,
        )  # fmt: skip
    finally:
        mysql.execute("SET GLOBAL binlog_checksum = 'CRC32'")

    outcome = with_checked_sequences(decode(data, Everything(database)))
    assert_same(outcome, mysql, database)
    moved = [(row["id"], row[DELETED]) for row in outcome.rows() if row["id"] in (3, 30)]
    assert moved[-2:] == [(3, True), (30, False)]

    # the same with packets, small pieces and small Batches
    again = with_checked_sequences(
        decode(framed(data), Everything(database), framed=True, piece=1000, batch_bytes=1 << 16)
    )
    assert again.rows() == outcome.rows()


@pytest.mark.parametrize("compressed", ["ON", "OFF"])
def test_decoder_mariadb_rows_equal_select(mariadb, mariadb_database, compressed):
    prepare(mariadb, mariadb_database)
    mariadb.execute(f"SET GLOBAL log_bin_compress = {compressed}", "SET GLOBAL log_bin_compress_min_len = 10")
    try:
        data = binlog_of(
            mariadb, "SET time_zone = '+00:00'", f"INSERT INTO t VALUES {', '.join(ROWS)}", *CHANGES,
            database=mariadb_database,
        )  # fmt: skip
    finally:
        mariadb.execute("SET GLOBAL log_bin_compress = OFF")
    with Server(endpoint(mariadb)) as asked:
        schemas = table_schemas(asked, [(mariadb_database, "t")]).values()

    outcome = with_checked_sequences(decode(data, Everything(mariadb_database), schemas=schemas))
    assert_same(outcome, mariadb, mariadb_database)
    assert "-" in outcome.decoder.position.gtid_set


def test_decoder_minimal_metadata_uses_known_schemas(mysql, database):
    prepare(mysql, database)
    mysql.execute("SET GLOBAL binlog_row_metadata = MINIMAL")
    try:
        insert = f"INSERT INTO t VALUES {', '.join(ROWS)}"
        data = binlog_of(mysql, "SET time_zone = '+00:00'", insert, database=database)
    finally:
        mysql.execute("SET GLOBAL binlog_row_metadata = FULL")
    with Server(endpoint(mysql)) as asked:
        schemas = table_schemas(asked, [(database, "t")]).values()
    assert_same(with_checked_sequences(decode(data, Everything(database), schemas=schemas)), mysql, database)


def test_decoder_full_metadata_gives_the_catalog_schema(mysql, database):
    prepare(mysql, database)
    data = binlog_of(mysql, "INSERT INTO t (id) VALUES (1)", database=database)
    with Server(endpoint(mysql)) as asked:
        expected = table_schemas(asked, [(database, "t")])[(database, "t")]
    (changes,) = [changes for batch in decode(data, Everything(database)).batches for changes in batch.changes]
    for ours, theirs in zip(changes.schema.columns, expected.columns, strict=True):
        assert (ours.name, ours.kind, ours.unsigned, ours.arrow, ours.type) == (
            theirs.name, theirs.kind, theirs.unsigned, theirs.arrow, theirs.type,
        )  # fmt: skip
    assert changes.schema.key == expected.key


def test_decoder_partial_json_updates_give_whole_documents(mysql, database):
    mysql.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, a JSON, n INT, b JSON)")
    data = binlog_of(
        mysql,
        "SET SESSION binlog_row_value_options = 'PARTIAL_JSON'",
        """INSERT INTO t VALUES (1, '{"a": 1, "b": [1, 2, 3]}', 1, '[1]'), (2, '{"a": "x"}', 2, NULL)""",
        "UPDATE t SET a = JSON_SET(a, '$.a', 5), n = n + 1",
        "UPDATE t SET a = JSON_REMOVE(a, '$.a'), b = JSON_ARRAY_APPEND(b, '$', 2)",
        "UPDATE t SET id = 20, a = JSON_SET(a, '$.z', 'new') WHERE id = 2",
        database=database,
    )
    left = decode(data, Everything(database)).replay("t", ["id"])
    with mysql.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id, CAST(a AS CHAR), n, CAST(b AS CHAR) FROM t")
        assert {key: tuple(row.values()) for key, row in left.items()} == {row[:1]: row for row in cursor.fetchall()}


def test_decoder_xa_rows_follow_xa_commit(mysql, database):
    mysql.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    data = binlog_of(
        mysql,
        "INSERT INTO t VALUES (1)",
        "COMMIT",
        "XA START 'a'", "INSERT INTO t VALUES (10), (11)", "XA END 'a'", "XA PREPARE 'a'",
        "XA COMMIT 'a'",
        "XA START 'b'", "INSERT INTO t VALUES (20)", "XA END 'b'", "XA PREPARE 'b'",
        "XA ROLLBACK 'b'",
        "XA START 'c'", "INSERT INTO t VALUES (30)", "XA END 'c'", "XA COMMIT 'c' ONE PHASE",
        database=database,
    )  # fmt: skip
    outcome = with_checked_sequences(decode(data, Everything(database), piece=64))
    assert [row["id"] for row in outcome.rows()] == [1, 10, 11, 30]
    assert outcome.decoder.open_xa == ()
    assert outcome.batches[-1].ends_transaction


def test_decoder_prepared_xa_transaction_holds_the_position(mysql, database):
    mysql.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    with mysql.connect(database) as other, other.cursor() as cursor:
        try:
            prepared = ("XA START 'h'", "INSERT INTO t VALUES (1)", "XA END 'h'", "XA PREPARE 'h'")
            with mysql.connect(database) as connection, connection.cursor() as plain_cursor:
                plain_cursor.execute("FLUSH BINARY LOGS")
                plain_cursor.execute("SHOW BINARY LOGS")
                name = plain_cursor.fetchall()[-1][0]
                for statement in prepared:
                    cursor.execute(statement)
                plain_cursor.execute("INSERT INTO t VALUES (2)")
                connection.commit()
                plain_cursor.execute("FLUSH BINARY LOGS")
            outcome = decode((mysql.data / name).read_bytes(), Everything(database), piece=64)
        finally:
            cursor.execute("XA ROLLBACK 'h'")
    (waiting,) = outcome.decoder.open_xa
    assert waiting.rows == 1
    holding = [batch for batch in outcome.batches if batch.rows]
    assert [row["id"] for row in outcome.rows()] == [2]
    assert not holding[0].ends_transaction
    assert holding[0].last == waiting.since


def test_decoder_splits_large_transactions_and_skips_rows(mysql, database):
    mysql.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(100))")
    rows = ", ".join(f"({n}, REPEAT('x', 90))" for n in range(5000))
    data = binlog_of(mysql, f"INSERT INTO t VALUES {rows}", database=database)
    outcome = with_checked_sequences(decode(data, Everything(database), batch_bytes=1 << 16))
    pieces = [batch for batch in outcome.batches if batch.rows]
    assert len(pieces) > 4
    assert [batch.ends_transaction for batch in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(batch.last == batch.first for batch in pieces[:-1])

    skipped = sum(batch.rows for batch in pieces[:2])
    again = decode(data, Everything(database), batch_bytes=1 << 16, skip_rows=skipped, sequence=skipped)
    assert again.rows() == outcome.rows()[skipped:]


def test_decoder_reads_events_larger_than_packet_and_buffer(mysql, database):
    mysql.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v LONGBLOB)")
    data = binlog_of(
        mysql, "INSERT INTO t VALUES (1, REPEAT('y', 35000000))", "INSERT INTO t VALUES (2, 'z')", database=database
    )
    for bytes_, is_framed in ((data, False), (framed(data), True)):
        outcome = decode(bytes_, Everything(database), framed=is_framed, piece=1 << 20)
        assert [(row["id"], len(row["v"])) for row in outcome.rows()] == [(1, 35000000), (2, 1)]


def test_decoder_counts_tagged_gtids(mysql, database):
    mysql.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    data = binlog_of(
        mysql,
        "SET SESSION gtid_next = 'AUTOMATIC:abc_tag'",
        *(f"INSERT INTO t VALUES ({n})" for n in range(5)),
        "COMMIT",
        "SET SESSION gtid_next = 'AUTOMATIC'",
        "INSERT INTO t VALUES (100)",
        database=database,
    )
    outcome = decode(data, Everything(database))
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@gtid_executed, @@gtid_mode")
        executed, mode = cursor.fetchone()
    if mode == "ON":
        assert outcome.decoder.position.gtid_set == executed.replace("\n", "")


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_decoder_incomplete_row_images_raise_and_name_column(mysql, database, image):
    mysql.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v INT, b BLOB)")
    data = binlog_of(
        mysql,
        "INSERT INTO t VALUES (1, 1, 'x')",
        "COMMIT",
        f"SET SESSION binlog_row_image = {image}",
        "UPDATE t SET v = 2 WHERE id = 1",
        database=database,
    )
    outcome = Outcome()
    with pytest.raises(UnsupportedRowFormat) as caught:
        decode_into(outcome, data, Everything(database))
    assert [row["v"] for row in outcome.rows()] == [1]  # earlier rows were delivered
    assert caught.value.context["table"] == f"{database}.t"
    assert caught.value.context["column"] in ("id", "v", "b")


def test_decoder_invalid_dates_are_null_but_not_in_a_key(mysql, database):
    mysql.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, d DATE, t DATETIME, s TIMESTAMP NULL)")
    data = binlog_of(
        mysql,
        "SET SESSION sql_mode = ''",
        "INSERT INTO t VALUES (1, '0000-00-00', '2024-00-00 00:00:00', 0), (2, '2024-01-01', '2024-01-01', NULL)",
        database=database,
    )
    outcome = decode(data, Everything(database))
    first, second = outcome.rows()
    assert (first["d"], first["t"], first["s"]) == (None, None, None)
    assert second["d"] == datetime.date(2024, 1, 1)
    table = f"{database}.t"
    assert outcome.decoder.invalid_dates == {(table, "d"): 1, (table, "t"): 1, (table, "s"): 1}
    with pytest.raises(DecodeError) as caught:
        decode(data, Everything(database, key=["d"]))
    assert caught.value.context["column"] == "d"


def test_decoder_statements_are_reported_between_batches(mysql, database):
    data = binlog_of(
        mysql,
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "ALTER TABLE t ADD COLUMN v INT",
        "INSERT INTO t VALUES (2, 3)",
        "CREATE TABLE u SELECT * FROM t",
        "SET SESSION binlog_format = STATEMENT",
        "INSERT INTO t VALUES (4, 4)",
        database=database,
    )
    outcome = decode(data, Everything(database))
    assert [row.get("v") for row in outcome.rows("t")] == [None, 3]
    assert [row["id"] for row in outcome.rows("u")] == [1, 2]
    assert [statement.dml for statement in outcome.statements] == [False, False, False, True]
    assert outcome.statements[1].sql.startswith("ALTER TABLE")
    assert outcome.statements[1].database == database
    assert outcome.statements[1].before.offset < outcome.statements[1].after.offset


def test_decoder_two_phase_alter_is_reported_once_at_commit(mariadb, mariadb_database):
    with mariadb.connect(mariadb_database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        cursor.execute("SET SESSION binlog_alter_two_phase = ON")
        cursor.execute("FLUSH BINARY LOGS")
        cursor.execute("SHOW BINARY LOGS")
        name = cursor.fetchall()[-1][0]
        cursor.execute("INSERT INTO t VALUES (1, 7), (2, 7)")
        with pytest.raises(pymysql.err.IntegrityError):
            cursor.execute("ALTER TABLE t ADD UNIQUE (v), ALGORITHM=COPY")
        cursor.execute("ALTER TABLE t ADD COLUMN w INT")
        cursor.execute(f"SHOW BINLOG EVENTS IN '{name}'")
        logged = [row[5] for row in cursor.fetchall() if "ALTER TABLE t" in row[5]]
        cursor.execute("FLUSH BINARY LOGS")
    assert len(logged) == 4  # both in two phases
    outcome = decode((mariadb.data / name).read_bytes(), Everything("no rows"))
    assert [statement.sql for statement in outcome.statements] == ["ALTER TABLE t ADD COLUMN w INT"]
