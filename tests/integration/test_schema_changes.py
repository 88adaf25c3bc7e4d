"""Jobs that follow schema changes of a real server into Delta, with rows before, between and after the statements."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cdc.demo import proof
from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess, is_caught_up

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
        assert status["state"] != "PAUSED" or status["resume"] == "AUTOMATIC", status
        loaded = all(channel["snapshot"]["consistent"] for channel in status["channels"])
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
        job.wait_for("loaded", _is_done(server), 120)
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
                job.wait_for(f"change {number}", _is_done(server), 120)
                _compare(server, database, tmp_path)
        _rows(server, database, 900_000)
        status = job.wait_for("all changes", _is_done(server), 120)
        print(f"{len(CHANGES)} changes in {time.monotonic() - began:.1f} s")
        _compare(server, database, tmp_path)
        assert status["state"] == "RUNNING"
        job.stop()
