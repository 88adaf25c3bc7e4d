"""Jobs that start with full tables: mappings with expressions, tables loaded again, and tables that are added later."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.demo import proof
from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess
from tests.support.limits import HANG_S

JOB = """\
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: root, tls: {{mode: off}}, start: snapshot}}
sink: {{type: delta, path: ./warehouse, create_tables: true}}
channels:
  - {{source: {database}.orders, target: ods.orders}}
  - {{source: {database}.renamed, target: ods.renamed, columns: {{text: note, number: id}}}}
  - {{source: {database}.people, target: ods.people, columns: {{id: id, mail: lower(mail)}}, filter: "country = 'DE'"}}
  - {{source: {database}.unused, target: ods.unused}}
{more}
commit: {{interval: 500ms}}
snapshot: {{step: 5s}}
status: {{port: {status}}}
"""


def _fill(server: LocalServer, database: str) -> None:
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION cte_max_recursion_depth = 100000")
        numbers = "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 20000)"
        cursor.execute("CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, note VARCHAR(50), total DECIMAL(12,2))")
        cursor.execute(f"INSERT INTO orders {numbers} SELECT i, CONCAT('order ', i), i / 7 FROM r")
        cursor.execute("CREATE TABLE renamed (id INT NOT NULL PRIMARY KEY, note VARCHAR(9), other INT)")
        cursor.execute("INSERT INTO renamed VALUES (1, 'one', 1), (2, 'two', 2), (3, 'three', 3)")
        cursor.execute("CREATE TABLE people (id INT NOT NULL PRIMARY KEY, mail VARCHAR(50), country CHAR(2))")
        cursor.execute(f"INSERT INTO people {numbers} SELECT i, CONCAT('P', i, '@X'), IF(i % 4, 'DE', 'FR') FROM r")
        cursor.execute("CREATE TABLE unused (id INT NOT NULL PRIMARY KEY)")
        cursor.execute("CREATE TABLE later (a INT NOT NULL, b VARCHAR(9) NOT NULL, n INT, PRIMARY KEY (a, b))")
        cursor.execute(f"INSERT INTO later {numbers} SELECT i % 9, i, i FROM r")
        connection.commit()


def _consistent(*names: str):
    def holds(status) -> bool:
        found = {channel["source"].partition(".")[2]: channel["snapshot"] for channel in status["channels"]}
        return all(found.get(name) and found[name]["consistent"] for name in names)

    return holds


def _command(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cdc.cli.main", *words],
        env={**os.environ, "CDC_HOME": str(home)}, capture_output=True, text=True, check=False, timeout=HANG_S,
    )  # fmt: skip


def _differences(server: LocalServer, database: str, folder: Path, name: str, key: list[str]) -> tuple[str, ...]:
    return proof.compare(server, f"{database}.{name}", folder / "warehouse" / "ods" / name, key).differences


def _target(folder: Path, table: str) -> pa.Table:
    return proof.read_delta(folder / "warehouse" / "ods" / table)


def test_snapshot_requests_and_later_channels_load_tables(mysql, database, tmp_path):
    _fill(mysql, database)
    port, home, file = free_port(), tmp_path / "state", tmp_path / "job.yaml"
    file.write_text(JOB.format(port=mysql.port, database=database, status=port, more=""))
    with JobProcess(file, home=home, port=port) as job:
        job.start()
        status = job.wait_for("loaded", _consistent("orders", "people", "unused", "renamed"), HANG_S)
        snapshots = {channel["target"]: channel["snapshot"] for channel in status["channels"]}
        assert snapshots["ods.orders"]["rows"] == 20000
        assert snapshots["ods.orders"]["done"] == snapshots["ods.orders"]["chunks"] >= 1
        assert snapshots["ods.unused"]["chunks"] == 0
        assert _differences(mysql, database, tmp_path, "orders", ["id"]) == ()
        people = _target(tmp_path, "people").sort_by("id").to_pylist()
        assert people == [{"id": i, "mail": f"p{i}@x"} for i in range(1, 20001) if i % 4]

        assert _target(tmp_path, "renamed").sort_by("number").to_pylist() == [
            {"text": text, "number": number} for number, text in enumerate(("one", "two", "three"), 1)
        ]

        # given changes that are not in the binlog
        with mysql.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_log_bin = 0")
            cursor.execute("DELETE FROM orders WHERE id % 10 = 0")
            cursor.execute("UPDATE orders SET note = 'unseen' WHERE id % 10 = 1")
            cursor.execute("DELETE FROM renamed WHERE id = 2")
            connection.commit()
        assert _command(home, "snapshot", "shop", f"{database}.renamed").returncode == 0
        answer = _command(home, "snapshot", "shop", f"{database}.orders", "--where", "id <= 1000")
        assert answer.returncode == 0, answer.stderr

        def some_again(status) -> bool:
            one = {channel["target"]: channel["snapshot"] for channel in status["channels"]}["ods.orders"]
            return one["where"] == "id <= 1000" and one["consistent"] and one["rows"] == 900

        job.wait_for("some rows again", some_again, HANG_S)
        found = _target(tmp_path, "orders")
        assert found.num_rows == 20000, "a snapshot with a condition deletes no rows"
        assert found.column("note").to_pylist().count("unseen") == 100
        assert _command(home, "snapshot", "shop", f"{database}.orders").returncode == 0
        job.wait_for(
            "all rows again",
            lambda status: (
                _consistent("orders")(status)
                and any(c["snapshot"]["where"] is None and c["snapshot"]["rows"] == 18000 for c in status["channels"])
            ),
            HANG_S,
        )
        assert _differences(mysql, database, tmp_path, "orders", ["id"]) == ()

        job.wait_for("renamed rows again", _consistent("renamed"), HANG_S)
        assert sorted(_target(tmp_path, "renamed").column("number").to_pylist()) == [1, 3]

        refused = _command(home, "snapshot", "shop", f"{database}.nothing")
        assert refused.returncode and "reads no table" in refused.stderr
        refused = _command(home, "snapshot", "shop", f"{database}.orders", "--where", "id in (select 1)")
        assert refused.returncode and "condition" in refused.stderr
        for condition in ("nothing > 1", "id = ?", "no_such_function(id) = 1"):
            refused = _command(home, "snapshot", "shop", f"{database}.orders", "--where", condition)
            assert refused.returncode and "The server refuses the condition" in refused.stderr, condition

        # a stop directly after a request, and a channel that is added later
        with mysql.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_log_bin = 0")
            cursor.execute("UPDATE orders SET note = 'unseen too' WHERE id % 10 = 2")
            connection.commit()
        assert _command(home, "snapshot", "shop", f"{database}.orders").returncode == 0
        job.stop()
        more = f"  - {{source: {database}.later, target: ods.later}}"
        file.write_text(JOB.format(port=mysql.port, database=database, status=port, more=more))
        job.start()
        status = job.wait_for("the later table", _consistent("later", "orders"), HANG_S)
        assert _differences(mysql, database, tmp_path, "later", ["a", "b"]) == ()
        assert _differences(mysql, database, tmp_path, "orders", ["id"]) == (), "the request is kept"
        people = next(channel["snapshot"] for channel in status["channels"] if channel["target"] == "ods.people")
        assert people == snapshots["ods.people"], "a loaded table is not loaded again"
        job.stop()

        # a table without any row in the binlog is dropped while the job is stopped
        mysql.execute(f"DROP TABLE IF EXISTS {database}.later")
        job.start()
        status = job.wait_for(
            "the difference", lambda status: any(c["differences"] for c in status["channels"]), HANG_S
        )
        (later,) = [channel for channel in status["channels"] if channel["target"] == "ods.later"]
        (difference,) = later["differences"]
        assert difference.pop("since")["position"]["file"].startswith("mysql-bin.")
        assert difference == {"kind": "drop.table", "column": "", "target": None}
        assert later["snapshot"] is None and _target(tmp_path, "later").num_rows > 0, "its rows stay"
        job.stop()


def test_accepted_gap_skips_unreadable_rows_and_loads_table_again(mysql, database, tmp_path):
    _fill(mysql, database)
    port, home, file = free_port(), tmp_path / "state", tmp_path / "job.yaml"
    file.write_text(JOB.format(port=mysql.port, database=database, status=port, more=""))

    def is_paused(status) -> bool:
        return status["state"] == "PAUSED" and status["resume"] == "manual"

    with JobProcess(file, home=home, port=port) as job:
        job.start()
        job.wait_for("loaded", _consistent("orders", "people", "unused", "renamed"), HANG_S)
        with mysql.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO unused VALUES (1)")
            cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
            cursor.execute("UPDATE orders SET note = 'less than whole' WHERE id % 10 = 1")
            cursor.execute("SET SESSION binlog_row_image = 'FULL', binlog_format = 'STATEMENT'")
            cursor.execute("UPDATE orders SET total = total + 1 WHERE id % 10 = 2")
            cursor.execute("DELETE FROM orders WHERE id % 10 = 3")
            cursor.execute("SET SESSION binlog_format = 'ROW'")
            cursor.execute("INSERT INTO unused VALUES (2)")
            connection.commit()
        status = job.wait_for("the pause", is_paused, HANG_S)
        assert "image" in status["reason"] and "--accept-gap" in status["hint"]
        assert _command(home, "resume", "shop", "--accept-gap").returncode == 0
        job.wait_for("the last row", lambda _: _target(tmp_path, "unused").num_rows == 2, HANG_S)
        status = job.wait_for(
            "loaded again", lambda status: status["state"] == "RUNNING" and _consistent("orders")(status), HANG_S
        )
        assert _differences(mysql, database, tmp_path, "orders", ["id"]) == ()
        assert _differences(mysql, database, tmp_path, "unused", ["id"]) == ()
        snapshots = {channel["target"]: channel["snapshot"] for channel in status["channels"]}
        assert snapshots["ods.orders"]["rows"] == 18000 and snapshots["ods.people"]["rows"] == 20000

        with mysql.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
            cursor.execute("DELETE FROM orders WHERE id % 10 = 4")
            connection.commit()
        job.wait_for("another pause, because this gap was not accepted", is_paused, HANG_S)
        job.stop()


def _waits_for_lock(server: LocalServer) -> bool:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM performance_schema.processlist WHERE state LIKE 'Waiting for table%lock'")
        return cursor.fetchone()[0] > 0


@contextmanager
def _changed_while_read(mysql, database, folder, changes, statement):
    """Yield a job whose query for rows of `orders` was sent before ``statement``, and is answered after it."""
    port, file = free_port(), folder / "job.yaml"
    more = f"schema_changes: {changes}"
    file.write_text(JOB.format(port=mysql.port, database=database, status=port, more=more))
    with (
        JobProcess(file, home=folder / "state", port=port) as job,
        mysql.connect(database) as other,
        other.cursor() as cursor,
    ):
        cursor.execute("LOCK TABLES orders WRITE")
        job.start()
        job.wait_for("reading", lambda status: _waits_for_lock(mysql), HANG_S)
        cursor.execute(statement)
        cursor.execute("UNLOCK TABLES")
        yield job


@pytest.mark.parametrize("changes", ["pause", "lenient"])
def test_snapshot_of_a_table_with_concurrent_ddl_waits(mysql, database, tmp_path, changes):
    _fill(mysql, database)
    with _changed_while_read(mysql, database, tmp_path, changes, "ALTER TABLE orders DROP COLUMN total") as job:
        if changes == "pause":
            status = job.wait_for("its pause", lambda status: status["state"] == "PAUSED", HANG_S)
            assert "ALTER TABLE orders DROP COLUMN total" in status["reason"] and status["resume"] == "manual"
            answer = _command(tmp_path / "state", "resume", "shop", "--past-ddl")
            assert answer.returncode == 0, answer.stderr
        job.wait_for("loaded", _consistent("orders", "people", "unused", "renamed"), HANG_S)
        messages = job.log.read_text()
        assert "the snapshot waits for the stream" in messages
        assert "the Spark session has ended" not in messages  # the check at the start used the session of the job
    found = _target(tmp_path, "orders").sort_by("id").to_pylist()
    assert found == [{"id": i, "note": f"order {i}", "total": None} for i in range(1, 20001)]


def test_snapshot_of_a_replaced_column_waits(mysql, database, tmp_path):
    """The new column has the name and the type of the one before, but NULLs."""
    _fill(mysql, database)
    mysql.execute(f"ALTER TABLE {database}.orders MODIFY total DECIMAL(12,2) NOT NULL")
    replaced = "ALTER TABLE orders DROP COLUMN total, ADD COLUMN total DECIMAL(12,2)"
    with _changed_while_read(mysql, database, tmp_path, "evolve", replaced) as job:
        job.wait_for("loaded", _consistent("orders", "people", "unused", "renamed"), HANG_S)
        assert "the snapshot waits for the stream" in job.log.read_text()
    found = _target(tmp_path, "orders").sort_by("id").to_pylist()
    assert found == [{"id": i, "note": f"order {i}", "total": None} for i in range(1, 20001)]


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("change", "undo"),
    [
        ("RENAME COLUMN total TO sum", "RENAME COLUMN sum TO total"),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (id, note)", "DROP PRIMARY KEY, ADD PRIMARY KEY (id)"),
    ],
    ids=["column", "key"],
)
def test_snapshot_ddl_missing_in_the_binlog_pauses(mysql, database, tmp_path, change, undo):
    _fill(mysql, database)
    port, home, file = free_port(), tmp_path / "state", tmp_path / "job.yaml"
    file.write_text(JOB.format(port=mysql.port, database=database, status=port, more=""))
    with JobProcess(file, home=home, port=port) as job, mysql.connect(database) as other, other.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute("LOCK TABLES orders WRITE")
        job.start()
        job.wait_for("reading", lambda status: _waits_for_lock(mysql), HANG_S)
        cursor.execute(f"ALTER TABLE orders {change}")
        cursor.execute("UNLOCK TABLES")
        status = job.wait_for("its pause", lambda status: status["state"] == "PAUSED", HANG_S)
        assert "The binlog has no statement of it" in status["reason"] and "orders" in status["reason"]
        cursor.execute(f"ALTER TABLE orders {undo}")
        assert _command(home, "resume", "shop").returncode == 0
        job.wait_for("loaded", _consistent("orders", "people", "unused", "renamed"), HANG_S)
        assert _differences(mysql, database, tmp_path, "orders", ["id"]) == ()
