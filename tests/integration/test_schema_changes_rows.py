"""Jobs that follow statements which remove rows without row events: TRUNCATE, and the work on partitions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cdc.demo import proof
from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess
from tests.emulators.cases import USER
from tests.emulators.doris import cases as doris
from tests.emulators.starrocks import cases as starrocks
from tests.integration.test_schema_changes import JOB, _is_done
from tests.support.limits import HANG_S

NUMBERS = "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 900)"
PARTITIONS = """PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (300), PARTITION p1 VALUES LESS THAN (600),
  PARTITION p2 VALUES LESS THAN (800), PARTITION p3 VALUES LESS THAN (100000))"""
# name, key of the other table, statement; each one removes or replaces rows of ``parts``
PARTITION_WORK = (
    "ALTER TABLE parts TRUNCATE PARTITION p0",
    "ALTER TABLE parts EXCHANGE PARTITION p1 WITH TABLE other",
    "ALTER TABLE parts DROP PARTITION p2, p3",
)


class Target:
    """A sink and its rows."""

    def __init__(self, kind: str, folder: Path, stack: ExitStack) -> None:
        self.kind, self.folder, self.cluster = kind, folder, None
        if kind != "delta":
            cases: Any = doris if kind == "doris" else starrocks
            self.cluster = stack.enter_context(cases.emulator())

    def job(self, port: int, database: str, status: int, changes: str) -> str:
        text = JOB.format(port=port, database=database, status=status, changes=changes)
        if self.cluster is None:
            return text
        sink = (
            f'{{type: {self.kind}, fe: ["{self.cluster.fe[0]}"], sql_port: {self.cluster.sql_port}, '
            f'username: {USER[0]}, password: "{USER[1]}", create_tables: true}}'
        )
        return text.replace("{type: delta, path: ./warehouse, create_tables: true}", sink)

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        if self.cluster is not None:
            return sorted(tuple(row) for row in self.cluster.rows(f"SELECT id, note FROM ods.{table}"))
        found = proof.read_delta(self.folder / "warehouse" / "ods" / table)
        return sorted((row["id"], row["note"]) for row in found.select(["id", "note"]).to_pylist())


def source_rows(server: LocalServer, database: str, table: str) -> list[tuple[Any, ...]]:
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT id, note FROM {table} ORDER BY id")
        return [tuple(row) for row in cursor.fetchall()]


def run(server: LocalServer, database: str, *statements: str) -> None:
    with server.connect(database) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def started(target: Target, server: LocalServer, database: str, tmp_path: Path, changes: str) -> JobProcess:
    port, file = free_port(), tmp_path / "job.yaml"
    file.write_text(target.job(server.port, database, port, changes))
    return JobProcess(file, home=tmp_path / "state", port=port)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("kind", "sink"), [("mysql", "delta"), ("mariadb", "delta"), ("mysql", "doris"), ("mysql", "starrocks")]
)
def test_job_killed_after_removed_rows_equals_source(
    kind: str, sink: str, request: pytest.FixtureRequest, tmp_path: Path, stack: ExitStack
) -> None:
    server: LocalServer = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    run(
        server, database,
        f"CREATE TABLE parts (id INT NOT NULL PRIMARY KEY, note VARCHAR(20)) {PARTITIONS}",
        "CREATE TABLE other (id INT NOT NULL PRIMARY KEY, note VARCHAR(20))",
        "CREATE TABLE orders (id INT NOT NULL PRIMARY KEY, note VARCHAR(20) NOT NULL)",
        *(f"INSERT INTO {table} (id, note) {NUMBERS} SELECT i, CONCAT('n', i) FROM r" for table in ("parts", "orders")),
        "INSERT INTO other VALUES (301, 'exchanged'), (599, 'exchanged')",
    )  # fmt: skip
    target = Target(sink, tmp_path, stack)
    with started(target, server, database, tmp_path, "evolve") as job:
        job.start()
        job.wait_for("loaded", _is_done(server), HANG_S)
        assert len(target.rows("orders")) == 900
        run(
            server, database,
            "INSERT INTO orders VALUES (5000, 'before')",
            "TRUNCATE TABLE orders",
            "INSERT INTO orders VALUES (5, 'after'), (5001, 'after')",
        )  # fmt: skip
        job.wait_for("the truncate", _is_done(server), HANG_S)
        assert target.rows("orders") == [(5, "after"), (5001, "after")]
        run(server, database, PARTITION_WORK[0], "INSERT INTO parts VALUES (7, 'after')")
        job.kill()  # in the change or in the snapshot that follows it
        run(
            server, database, "TRUNCATE orders", "INSERT INTO orders VALUES (6, 'later')", *PARTITION_WORK[1:],
            "INSERT INTO parts VALUES (8, 'after')",
        )  # fmt: skip
        job.start()
        status = job.wait_for("all changes", _is_done(server), HANG_S)
        for table in ("orders", "parts", "other"):
            assert target.rows(table) == source_rows(server, database, table), table
        assert not any(channel["differences"] for channel in status["channels"])
        assert status["schema_changes"]["applied"] == 5
        job.stop()


def test_truncate_while_the_table_is_loaded_brings_no_row_back(
    mysql: LocalServer, database: str, tmp_path: Path, stack: ExitStack
) -> None:
    """Chunks are read before and after the statement, by a stream that is at it later."""
    numbers = "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 60000)"
    run(
        mysql, database, "SET SESSION cte_max_recursion_depth = 100000",
        "CREATE TABLE orders (id INT NOT NULL PRIMARY KEY, note VARCHAR(20) NOT NULL)",
        f"INSERT INTO orders {numbers} SELECT i, CONCAT('n', i) FROM r",
    )  # fmt: skip
    target = Target("delta", tmp_path, stack)
    with started(target, mysql, database, tmp_path, "evolve") as job:
        text = job.job_file.read_text()
        limits = "snapshot: {step: 200ms, readers: 1, rows_per_second: 10000}"
        job.job_file.write_text(text.replace("snapshot: {step: 1s}", limits))
        job.start()
        status = job.wait_for("some chunks", _has_rows, HANG_S)
        assert not status["channels"][0]["snapshot"]["consistent"], "the table is loaded too fast for this test"
        run(mysql, database, "TRUNCATE TABLE orders", "INSERT INTO orders VALUES (1, 'new'), (70000, 'new')")
        status = job.wait_for("the truncate", _is_done(mysql), HANG_S)
        assert target.rows("orders") == [(1, "new"), (70000, "new")]
        assert status["schema_changes"]["applied"] == 1
        job.stop()


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_snapshot_of_an_enum_key_with_other_labels_begins_again(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, stack: ExitStack
) -> None:
    """Bounds of chunks are numbers of labels: a row whose label gets a smaller number is in no chunk that is left."""
    server: LocalServer = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    seven = "(SELECT 0 d UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6)"
    run(
        server, database,
        "CREATE TABLE orders (note ENUM('a', 'b', 'c') NOT NULL, id INT NOT NULL, PRIMARY KEY (note, id))",
        f"INSERT INTO orders SELECT 1 + n.d % 3, @i := @i + 1 FROM {seven} n, "
        + ", ".join(f"{seven} n{number}" for number in range(5)) + ", (SELECT @i := 0) i",
    )  # fmt: skip
    with started(Target("delta", tmp_path, stack), server, database, tmp_path, "evolve") as job:
        _start_in_a_snapshot(job)
        run(server, database, "ALTER TABLE orders MODIFY note ENUM('c', 'b', 'a') NOT NULL")
        job.wait_for("the change", _is_done(server), HANG_S)
        target = tmp_path / "warehouse" / "ods" / "orders"
        assert not proof.compare(server, f"{database}.orders", target, ["note", "id"]).differences
        job.stop()


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_snapshot_continues_with_the_columns_that_rows_show(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, stack: ExitStack
) -> None:
    """The catalog shows ? for an emoji in a label, and counts the length of TEXT in characters of two bytes."""
    server: LocalServer = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    numbers = " CROSS JOIN ".join(
        f"(SELECT 0 d UNION SELECT {n} UNION SELECT {2 * n}) n{n}" for n in (3**i for i in range(10))
    )
    run(
        server, database,
        "CREATE TABLE orders (id INT NOT NULL PRIMARY KEY, mood ENUM('a😀', 'é', 'b') CHARSET utf8mb4, "
        "wide TEXT CHARSET utf16)",
        f"INSERT INTO orders SELECT {' + '.join(f'n{3**i}.d' for i in range(10))} id, 1, 'w' FROM {numbers}",
    )  # fmt: skip
    with started(Target("delta", tmp_path, stack), server, database, tmp_path, "evolve") as job:
        _start_in_a_snapshot(job)
        run(server, database, "INSERT INTO orders VALUES (-1, 'a😀', 'w😀')")
        job.wait_for("the rows", _is_done(server), HANG_S)
        target = tmp_path / "warehouse" / "ods" / "orders"
        assert not proof.compare(server, f"{database}.orders", target, ["id"]).differences
        job.stop()


def _start_in_a_snapshot(job: JobProcess) -> None:
    """Start a job that loads slowly, and return when it has loaded some chunks."""
    limits = "snapshot: {step: 200ms, readers: 1, rows_per_second: 20000}"
    job.job_file.write_text(job.job_file.read_text().replace("snapshot: {step: 1s}", limits))
    job.start()
    status = job.wait_for("some chunks", _has_rows, HANG_S)
    assert not status["channels"][0]["snapshot"]["consistent"], "the table is loaded too fast for this test"


def _has_rows(status: dict[str, Any]) -> bool:
    return any((channel["snapshot"] or {}).get("rows", 0) > 5000 for channel in status["channels"])


def test_kept_rows_are_reported_until_a_snapshot_deletes_them(
    mysql: LocalServer, database: str, tmp_path: Path, stack: ExitStack
) -> None:
    run(
        mysql, database, "CREATE TABLE orders (id INT NOT NULL PRIMARY KEY, note VARCHAR(20) NOT NULL)",
        "INSERT INTO orders VALUES (1, 'one'), (2, 'two')",
    )  # fmt: skip
    target = Target("doris", tmp_path, stack)
    with started(target, mysql, database, tmp_path, "{kinds: {truncate.table: ignore}}") as job:
        job.start()
        job.wait_for("loaded", _is_done(mysql), HANG_S)
        run(mysql, database, "TRUNCATE TABLE orders", "INSERT INTO orders VALUES (3, 'three')")
        status = job.wait_for("the truncate", _is_done(mysql), HANG_S)
        assert target.rows("orders") == [(1, "one"), (2, "two"), (3, "three")]
        (difference,) = status["channels"][0]["differences"]
        assert difference.pop("since")["position"]["file"].startswith("mysql-bin.")
        assert difference == {"kind": "truncate.table", "column": "", "target": None}
        command = [sys.executable, "-m", "cdc.cli.main", "snapshot", "shop", f"{database}.orders"]
        subprocess.run(command, env=job.environment, check=True, timeout=HANG_S)
        job.wait_for("no differences", lambda status: not status["channels"][0]["differences"], HANG_S)
        assert target.rows("orders") == [(3, "three")]
        job.stop()


def test_truncate_in_lenient_pauses_and_names_the_options(
    mysql: LocalServer, database: str, tmp_path: Path, stack: ExitStack
) -> None:
    run(
        mysql, database, "CREATE TABLE orders (id INT NOT NULL PRIMARY KEY, note VARCHAR(20) NOT NULL)",
        "INSERT INTO orders VALUES (1, 'one')",
    )  # fmt: skip
    target = Target("delta", tmp_path, stack)
    with started(target, mysql, database, tmp_path, "lenient") as job:
        job.start()
        job.wait_for("loaded", _is_done(mysql), HANG_S)
        run(mysql, database, "TRUNCATE TABLE orders")
        status = job.wait_for("the pause", lambda status: status["state"] == "PAUSED", HANG_S)
        assert "{truncate.table: apply}" in status["hint"] and "{truncate.table: ignore}" in status["hint"]
        assert target.rows("orders") == [(1, "one")]
        job.stop()
