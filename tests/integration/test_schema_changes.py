"""Jobs that follow schema changes of a real server into Delta, with rows before, between and after the statements."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from cdc.cli.main import app
from cdc.demo import proof
from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess, is_caught_up
from cdc.errors import CdcError
from cdc.state.sqlite import SqliteStore
from tests.support.limits import HANG_S

JOB = """\
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: root, tls: {{mode: off}}, start: snapshot}}
sink: {{type: delta, path: ./warehouse, create_tables: true}}
channels:
  - {{source: "{database}.*", target: "ods.*"}}
schema_changes: {changes}
commit: {{interval: 300ms}}
snapshot: {{step: 1s}}
status: {{port: {status}}}
"""
NUMBERS = "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 500)"
CREATE = """CREATE TABLE orders (id INT NOT NULL PRIMARY KEY, note VARCHAR(20) NOT NULL, price DECIMAL(6,2),
  small TINYINT, ratio FLOAT, a INT, b INT, old VARCHAR(9) NOT NULL DEFAULT 'x')"""
# each one with the columns that rows written after it fill
CHANGES = (
    "ALTER TABLE orders ADD COLUMN plain INT",
    "ALTER TABLE orders ADD COLUMN five INT NOT NULL DEFAULT '005', ADD COLUMN text VARCHAR(9) DEFAULT 'it''s' FIRST",
    "ALTER TABLE orders ADD COLUMN required INT NOT NULL, ADD blank VARCHAR(5) NOT NULL, ADD cost DECIMAL(5,2) DEFAULT 1.005",
    "ALTER TABLE orders ADD COLUMN kind ENUM('new', 'paid') NOT NULL, ADD mask SMALLINT UNSIGNED NOT NULL DEFAULT 0x10",
    "ALTER TABLE orders ADD COLUMN day DATE DEFAULT '2024-02-29', ADD at DATETIME(3) DEFAULT '2024-02-29 10:20:30.456'",
    "ALTER TABLE orders ADD COLUMN made TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP",
    "ALTER TABLE orders RENAME COLUMN note TO remark",
    "ALTER TABLE orders CHANGE a b INT, CHANGE b a INT",
    "ALTER TABLE orders MODIFY small BIGINT, MODIFY ratio DOUBLE, MODIFY price DECIMAL(12,2)",
    "ALTER TABLE orders DROP COLUMN old",
    "ALTER TABLE orders ADD COLUMN old INT NOT NULL DEFAULT 7",
    "ALTER TABLE orders DROP COLUMN plain, ADD COLUMN plain VARCHAR(3) DEFAULT 'abc'",
    "ALTER TABLE orders ADD COLUMN twice INT AS (id * 2) STORED",
    "ALTER TABLE orders MODIFY remark VARCHAR(200), ADD INDEX (remark), COMMENT 'the orders'",
)


def _rows(server: LocalServer, database: str, start: int, count: int = 20) -> None:
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = ''")
        cursor.execute("SELECT GROUP_CONCAT(COLUMN_NAME) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s "
                       "AND TABLE_NAME = 'orders' AND COLUMN_NAME IN ('note', 'remark')", (database,))  # fmt: skip
        (text,) = cursor.fetchone()
        for number in range(start, start + count):
            cursor.execute(f"INSERT INTO orders (id, {text}, a, b) VALUES ({number}, 'n{number}', {number}, -{number})")
        cursor.execute(f"UPDATE orders SET a = a + 1 WHERE id % 50 = {start % 50}")
        cursor.execute(f"DELETE FROM orders WHERE id = {start}")
        connection.commit()


def _end(server: LocalServer) -> tuple[str, int]:
    with server.connect() as connection, connection.cursor() as cursor:
        try:
            cursor.execute("SHOW BINARY LOG STATUS")
        except Exception:
            cursor.execute("SHOW MASTER STATUS")
        file, offset = cursor.fetchone()[:2]
        return str(file), int(offset)


def _is_done(server: LocalServer) -> Any:
    end = _end(server)

    def holds(status: dict[str, Any]) -> bool:
        assert status["state"] != "PAUSED" or status["resume"] == "automatic", status
        loaded = all((channel["snapshot"] or {}).get("consistent") for channel in status["channels"])
        return loaded and is_caught_up(status, end)

    return holds


def _columns(server: LocalServer, database: str, table: str) -> list[str]:
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table} LIMIT 0")
        return [column[0] for column in cursor.description]


def _compare(server: LocalServer, database: str, folder: Path, table: str = "orders", but: Sequence[str] = ()) -> None:
    target = folder / "warehouse" / "ods" / table
    found = [field.name for field in DeltaTable(str(target)).schema().fields]
    assert sorted(found) == sorted([*_columns(server, database, table), *but])
    if not but:
        assert proof.compare(server, f"{database}.{table}", target, ["id"]).differences == ()


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_job_evolving_follows_each_change_of_columns(kind, request, tmp_path):
    server: LocalServer = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(CREATE)
        cursor.execute(f"INSERT INTO orders (id, note, price, small, ratio, a, b) {NUMBERS} "
                       "SELECT i, CONCAT('n', i), i / 3, i % 100, i / 8, i, -i FROM r")  # fmt: skip
        connection.commit()
    port, file = free_port(), tmp_path / "job.yaml"
    file.write_text(JOB.format(port=server.port, database=database, status=port, changes="evolve"))
    with JobProcess(file, home=tmp_path / "state", port=port) as job:
        job.start()
        job.wait_for("loaded", _is_done(server), HANG_S)
        began = time.monotonic()
        for number, statement in enumerate(CHANGES):
            server_statement = statement.replace(
                "AS (id * 2) STORED", "AS (id * 2) PERSISTENT" if kind == "mariadb" else "AS (id * 2) STORED"
            )
            _rows(server, database, 1000 * (number + 1))
            with server.connect(database) as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION sql_mode = ''")
                cursor.execute(server_statement)
            if number % 4 == 3:  # the others follow each other without a wait
                job.wait_for(f"change {number}", _is_done(server), HANG_S)
                _compare(server, database, tmp_path)
        _rows(server, database, 900_000)
        status = job.wait_for("all changes", _is_done(server), HANG_S)
        print(f"{len(CHANGES)} changes in {time.monotonic() - began:.1f} s")
        _compare(server, database, tmp_path)
        assert status["state"] == "RUNNING"
        job.stop()


TYPES = """CREATE TABLE orders (id INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, n BIGINT NOT NULL,
  price DECIMAL(12,4), ratio DOUBLE, large BIGINT UNSIGNED, count INT, at DATETIME(6), text VARCHAR(20), kind ENUM('a', 'b'))"""
# each one changes values without row events, or the key
TYPE_CHANGES = (
    "MODIFY id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT",
    "MODIFY n SMALLINT, MODIFY price DECIMAL(6,2), MODIFY ratio FLOAT",
    "MODIFY large INT, MODIFY count INT UNSIGNED, MODIFY at DATETIME(2), MODIFY text VARCHAR(3)",
    "RENAME COLUMN n TO m, MODIFY price DECIMAL(5,1), MODIFY kind ENUM('b', 'x')",
    "MODIFY m BIGINT, MODIFY price DECIMAL(14,4), MODIFY ratio DOUBLE NOT NULL",
    "DROP COLUMN large, ADD COLUMN seen DATETIME(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3)",
)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_job_follows_changes_of_types_that_change_values(kind, request, tmp_path):
    server: LocalServer = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    columns, row = (
        "price, ratio, count, at, text, kind",
        "{n} / 7, {n} / 8, {n} % 90, NOW(6), CONCAT('text ', {n}), 'b'",
    )
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = '', time_zone = '+02:00'")
        cursor.execute(TYPES)
        cursor.execute(f"INSERT INTO orders (n, large, {columns}) {NUMBERS} SELECT -i * 200, POW(2, i % 60), "
                       f"{row.format(n='i')} FROM r")  # fmt: skip
        connection.commit()
        port, file = free_port(), tmp_path / "job.yaml"
        file.write_text(JOB.format(port=server.port, database=database, status=port, changes="lenient"))
        with JobProcess(file, home=tmp_path / "state", port=port) as job:
            job.start()
            job.wait_for("loaded", _is_done(server), HANG_S)
            for number, clauses in enumerate(TYPE_CHANGES):
                cursor.execute(f"UPDATE orders SET count = count + 1 WHERE id % 50 = {number}")
                cursor.execute(f"ALTER TABLE orders {clauses}")
                integer = "n" if number < 3 else "m"
                key = 10_000_000_000 + number if number else 4_000_000_000
                for n in range(3):
                    values = row.format(n=n)
                    cursor.execute(
                        f"INSERT INTO orders (id, {integer}, {columns}) VALUES ({key + 9 * n}, {n}, {values})"
                    )
                cursor.execute(f"DELETE FROM orders WHERE id % 50 = {number + 20}")
                connection.commit()
                if number != 2:
                    status = job.wait_for(f"change {number}", _is_done(server), HANG_S)
                    but = ["large"] if number == 5 else []
                    _compare(server, database, tmp_path, but=but)
            assert status["schema_changes"]["applied"] == len(TYPE_CHANGES)
            found = proof.read_delta(tmp_path / "warehouse" / "ods" / "orders").sort_by("id").drop_columns(["large"])
            assert found == proof.read_mysql(server, f"{database}.orders", found.schema).sort_by("id")
            kinds = {field.name: str(field.type) for field in found.schema}
            assert (kinds["id"], kinds["m"], kinds["count"]) == ("decimal128(20, 0)", "int64", "int64")
            job.stop()


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_job_loads_times_with_which_the_server_replaces_null(kind, request, tmp_path):
    """TIMESTAMP without NULL is NOT NULL if explicit_defaults_for_timestamp is off."""
    server: LocalServer = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    statements = (
        ("ADD COLUMN e TIMESTAMP DEFAULT NULL FIRST", "", kind == "mysql", kind == "mariadb"),
        ("MODIFY a TIMESTAMP COMMENT 'x'", "", False, True),
        ("MODIFY b TIMESTAMP(3)", "STRICT_ALL_TABLES", False, True),
        ("ADD COLUMN d TIMESTAMP NULL", "", False, False),
        ("MODIFY d TIMESTAMP COMMENT 'x'", "", True, False),
        ("ADD COLUMN f TIMESTAMP DEFAULT NULL, ADD COLUMN g TIMESTAMP", "", True, False),
        ("MODIFY c TIMESTAMP DEFAULT NULL", "", kind == "mysql", kind == "mariadb"),
    )
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+02:00'")
        columns = ", ".join(f"{name} TIMESTAMP NULL" for name in "abc")
        cursor.execute(f"CREATE TABLE orders (id INT PRIMARY KEY, {columns})")
        cursor.execute("INSERT INTO orders (id, a) VALUES (1, NULL), (2, '2020-01-01 10:00:00')")
        port, file = free_port(), tmp_path / "job.yaml"
        file.write_text(JOB.format(port=server.port, database=database, status=port, changes="evolve"))
        with JobProcess(file, home=tmp_path / "state", port=port) as job:
            job.start()
            job.wait_for("loaded", _is_done(server), HANG_S)
            for clause, mode, is_explicit, is_loaded in statements:
                cursor.execute(f"SET sql_mode = '{mode}', explicit_defaults_for_timestamp = {int(is_explicit)}")
                cursor.execute(f"ALTER TABLE orders {clause}")
                job.wait_for(clause, _is_done(server), HANG_S)
                _compare(server, database, tmp_path)
                store = SqliteStore(tmp_path / "state")
                (change,) = store.changes("shop", 1)
                store.close()
                assert [table.is_reloaded for table in change.tables] == [is_loaded], clause
            job.stop()


def test_job_lenient_keeps_dropped_columns_and_shows_the_difference(mysql, database, tmp_path):
    with mysql.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id INT NOT NULL PRIMARY KEY, note VARCHAR(20) NOT NULL, a INT, b INT)")
        cursor.execute("INSERT INTO orders VALUES (1, 'one', 1, 1), (2, 'two', 2, 2)")
        connection.commit()
    port, file = free_port(), tmp_path / "job.yaml"
    file.write_text(JOB.format(port=mysql.port, database=database, status=port, changes="lenient"))
    with JobProcess(file, home=tmp_path / "state", port=port) as job:
        job.start()
        job.wait_for("loaded", _is_done(mysql), HANG_S)
        mysql.execute(
            f"ALTER TABLE {database}.orders DROP COLUMN note",
            f"INSERT INTO {database}.orders VALUES (3, 3, 3)",
            f"UPDATE {database}.orders SET a = 20 WHERE id = 2",
        )
        status = job.wait_for("the drop", _is_done(mysql), HANG_S)
        (difference,) = status["channels"][0]["differences"]
        since = difference.pop("since")
        assert difference == {"kind": "drop.column", "column": "note", "target": "note"}
        assert since["position"]["file"] == _end(mysql)[0] and since["time"].startswith("20")
        found = proof.read_delta(tmp_path / "warehouse" / "ods" / "orders").sort_by("id").to_pylist()
        assert [(row["id"], row["note"], row["a"]) for row in found] == [(1, "one", 1), (2, None, 20), (3, None, 3)]

        job.kill()  # while the job is away, statements follow each other
        mysql.execute(
            f"ALTER TABLE {database}.orders ADD COLUMN note INT NOT NULL DEFAULT 5",
            f"INSERT INTO {database}.orders VALUES (4, 4, 4, 4)",
            f"ALTER TABLE {database}.orders RENAME COLUMN a TO c",
            f"INSERT INTO {database}.orders VALUES (5, 5, 5, 5)",
            f"ALTER TABLE {database}.orders ADD COLUMN a VARCHAR(3) DEFAULT 'abc'",
            f"INSERT INTO {database}.orders (id, c) VALUES (6, 6)",
        )
        job.start()
        status = job.wait_for("all changes", _is_done(mysql), HANG_S)
        assert status["schema_changes"]["applied"] == 4
        (kept,) = [one["column"] for one in status["channels"][0]["differences"]]
        assert kept.startswith("note__")
        _compare(mysql, database, tmp_path, but=[kept])
        found = proof.read_delta(tmp_path / "warehouse" / "ods" / "orders").sort_by("id").drop_columns([kept])
        expected = proof.read_mysql(mysql, f"{database}.orders", found.schema).sort_by("id")
        assert found == expected
        job.stop()


def test_job_lenient_pauses_before_a_new_load_erases_kept_columns(mysql, database, tmp_path, monkeypatch):
    mysql.execute(
        f"CREATE TABLE {database}.orders (id INT NOT NULL PRIMARY KEY, note VARCHAR(20), price DECIMAL(10,4))",
        f"INSERT INTO {database}.orders VALUES (1, 'one', 1.2345)",
    )
    port, file = free_port(), tmp_path / "job.yaml"
    file.write_text(JOB.format(port=mysql.port, database=database, status=port, changes="lenient"))
    monkeypatch.setenv("CDC_HOME", str(tmp_path / "state"))

    def rows():
        found = proof.read_delta(tmp_path / "warehouse" / "ods" / "orders").to_pylist()
        return [(row["id"], row["note"], str(row["price"])) for row in found]

    with JobProcess(file, home=tmp_path / "state", port=port) as job:
        job.start()
        job.wait_for("loaded", _is_done(mysql), HANG_S)
        mysql.execute(f"ALTER TABLE {database}.orders DROP COLUMN note")
        job.wait_for("the drop", _is_done(mysql), HANG_S)
        mysql.execute(f"ALTER TABLE {database}.orders MODIFY price DECIMAL(8,2)")
        status = job.wait_for("the pause", lambda status: status["state"] == "PAUSED", HANG_S)
        assert "columns that the source no longer has: note" in status["reason"]
        assert rows() == [(1, "one", "1.2345")]
        done = CliRunner().invoke(app, ["resume", "shop", "--apply-ddl"])
        assert done.exit_code == 0, f"{done.output} {done.exception}"
        job.wait_for("the new load", _is_done(mysql), HANG_S)
        assert rows() == [(1, None, "1.2300")]
        job.stop()


@pytest.mark.parametrize("table", ["*", "orders"])
def test_change_during_a_stop_before_the_first_commit_is_followed(table, mysql, database, tmp_path):
    """The target was created with the columns of the start, so the next run must begin with them too."""
    mysql.execute(f"CREATE TABLE {database}.orders (id INT NOT NULL PRIMARY KEY, a INT NOT NULL)")
    port, file, orders = free_port(), tmp_path / "job.yaml", tmp_path / "warehouse" / "ods" / "orders"
    text = JOB.format(port=mysql.port, database=database, status=port, changes="evolve")
    file.write_text(text.replace("start: snapshot", "start: latest").replace(".*", f".{table}"))
    with JobProcess(file, home=tmp_path / "state", port=port) as job:
        job.start()
        job.wait_for("its target", lambda _: (orders / "_delta_log").is_dir(), HANG_S)
        job.kill()
        mysql.execute(
            f"ALTER TABLE {database}.orders RENAME COLUMN a TO b, ADD COLUMN note VARCHAR(9) DEFAULT 'n'",
            f"INSERT INTO {database}.orders (id, b) VALUES (1, 7)",
        )
        job.start()
        status = job.wait_for("the row", lambda status: is_caught_up(status, _end(mysql)), HANG_S)
        assert status["schema_changes"]["applied"] == 1 and not status["left_out"]
        assert proof.read_delta(orders).to_pylist() == [{"id": 1, "b": 7, "note": "n"}]
        job.stop()


def test_job_of_explicit_columns_pauses_and_says_what_to_change(mysql, database, tmp_path):
    mysql.execute(f"CREATE TABLE {database}.orders (id INT NOT NULL PRIMARY KEY, a INT)")
    port, file = free_port(), tmp_path / "job.yaml"
    text = JOB.format(port=mysql.port, database=database, status=port, changes="evolve")
    file.write_text(
        text.replace(
            f'source: "{database}.*", target: "ods.*"',
            f"source: {database}.orders, target: ods.orders, columns: {{id: id, double: a}}",
        )
    )
    with JobProcess(file, home=tmp_path / "state", port=port) as job:
        job.start()
        job.wait_for("loaded", _is_done(mysql), HANG_S)
        mysql.execute(
            f"ALTER TABLE {database}.orders ADD COLUMN b INT", f"INSERT INTO {database}.orders VALUES (1, 1, 1)"
        )
        job.wait_for("a column that nobody reads", _is_done(mysql), HANG_S)
        mysql.execute(f"ALTER TABLE {database}.orders RENAME COLUMN a TO c")
        status = job.wait_for("the pause", lambda status: status["state"] == "PAUSED", HANG_S)
        assert "reads the column a" in status["reason"]
        assert "Change the channel in the job file" in status["hint"]
        job.stop()


def test_job_in_mode_pause_applies_one_statement_of_its_user(mysql, database, tmp_path, monkeypatch):
    mysql.execute(
        f"CREATE TABLE {database}.orders (id INT NOT NULL PRIMARY KEY, a INT)",
        f"INSERT INTO {database}.orders VALUES (1, 1)",
    )
    port, file = free_port(), tmp_path / "job.yaml"
    file.write_text(JOB.format(port=mysql.port, database=database, status=port, changes="pause"))
    monkeypatch.setenv("CDC_HOME", str(tmp_path / "state"))

    def cdc(*words, code=0):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == code, f"{done.output} {done.exception}"
        return done

    def is_paused(status):
        return status["state"] == "PAUSED" and status["resume"] == "manual"

    with JobProcess(file, home=tmp_path / "state", port=port) as job:
        job.start()
        job.wait_for("loaded", _is_done(mysql), HANG_S)
        assert "not paused at a DDL statement" in str(cdc("resume", "shop", "--apply-ddl", code=1).exception)
        mysql.execute(
            f"ALTER TABLE {database}.orders ADD COLUMN b INT NOT NULL DEFAULT 5, DROP COLUMN a",
            f"INSERT INTO {database}.orders VALUES (2, 2)",
            f"ALTER TABLE {database}.orders ADD COLUMN c INT",
        )
        status = job.wait_for("the pause", is_paused, HANG_S)
        assert "--apply-ddl" in status["hint"]
        pending = cdc("ddl", "shop", "--pending").output
        assert "ADD COLUMN b" in pending and "add.column b: apply" in pending and "drop.column a: apply" in pending
        cdc("resume", "shop", "--apply-ddl")
        second = job.wait_for(
            "the second pause", lambda status: is_paused(status) and "COLUMN c" in status["reason"], HANG_S
        )
        assert second["schema_changes"]["applied"] == 1, "only the statement at which the job was paused"
        found = proof.read_delta(tmp_path / "warehouse" / "ods" / "orders").sort_by("id").to_pylist()
        assert [{name: row[name] for name in row} for row in found] == [{"id": 1, "b": 5}, {"id": 2, "b": 2}]
        cdc("resume", "shop", "--apply-ddl")
        job.wait_for("the second change", _is_done(mysql), HANG_S)
        _compare(mysql, database, tmp_path)
        job.stop()


def run_files(server: LocalServer, database: str, tmp_path: Path, first: str, schema: str = "") -> int:
    """Run a job of the binlog files from ``first`` on to their end. Return the number of changes that it has made."""
    folder, last = tmp_path / "files", _end(server)[0]
    folder.mkdir()
    stem = first.partition(".")[0]
    for each in Path(server.data).glob(f"{stem}.[0-9]*"):
        if first <= each.name < last:
            shutil.copy(each, folder)
    port, file = free_port(), tmp_path / "job.yaml"
    text = JOB.format(port=server.port, database=database, status=port, changes="evolve")
    source = f"source: {{type: binlog_files, path: ./files/{stem}.*{schema}}}\n"
    file.write_text(re.sub(r"source: \{type: binlog,.*\n", source, text))
    with JobProcess(file, home=tmp_path / "state", port=port) as job:
        job.start()
        job.wait_for("a status", lambda status: True, HANG_S)
        with suppress(CdcError):  # the driver has ended
            job.wait_for("the end of the files", lambda status: status["state"] in ("DONE", "PAUSED"), HANG_S)
        if job.status() is not None:
            job.stop()
    with closing(SqliteStore(tmp_path / "state")) as store:
        record, committed = store.job("shop"), store.last_committed("shop")
        assert record.state == "DONE", f"{record} {job.log.read_text()[-3000:]}"
        assert committed.last.file == sorted(each.name for each in folder.iterdir())[-1]
        changes = store.change_summary("shop").applied
        store.acquire("shop", str(file))
        assert store.unfinished() == (), "no change is PREPARED"
    return changes


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_job_of_binlog_files_follows_changes_to_their_end(metadata, mysql, database, tmp_path):
    """With MINIMAL, the columns of orders follow from its statements, and those of items from `source.schema`."""
    mysql.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        create = CREATE.replace("TABLE orders", f"TABLE {database}.orders") + " DEFAULT CHARSET=utf8mb4"
        mysql.execute(
            *([create] if metadata == "FULL" else []),
            f"CREATE TABLE {database}.items (id INT PRIMARY KEY, name VARCHAR(9))",
            "FLUSH BINARY LOGS",
        )
        first, _ = _end(mysql)
        if metadata == "MINIMAL":
            mysql.execute(create)
        followed = [each for each in CHANGES if "CURRENT_TIMESTAMP" not in each and "STORED" not in each]
        if metadata == "FULL":  # row metadata does not have the table's default, which a CREATE TABLE in the files has
            text = re.compile(r"(VARCHAR\(\d+\)|ENUM\([^)]*\))")
            followed = [text.sub(r"\1 CHARACTER SET utf8mb4", each) for each in followed]
        for number, statement in enumerate(followed):
            if number % 3 != 2:  # some follow each other without rows
                _rows(mysql, database, 1000 * (number + 1))
            with mysql.connect(database) as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION sql_mode = ''")
                cursor.execute(statement)
                cursor.execute(f"INSERT INTO items VALUES ({number}, 'i{number}')")
                connection.commit()
        _rows(mysql, database, 900_000)
        mysql.execute("FLUSH BINARY LOGS")
    finally:
        mysql.execute("SET GLOBAL binlog_row_metadata = FULL")
    login = f"{{host: 127.0.0.1, port: {mysql.port}, username: root, tls: {{mode: off}}}}"
    schema = "" if metadata == "FULL" else f", schema: {{mysql: {login}}}"
    assert run_files(mysql, database, tmp_path, first, schema) == len(followed)
    for table in ("orders", "items"):
        _compare(mysql, database, tmp_path, table)
