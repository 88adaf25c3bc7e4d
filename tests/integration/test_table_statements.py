"""Jobs that follow statements on whole tables into Delta: gh-ost, pt-online-schema-change, RENAME, DROP, CREATE."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from cdc.demo import proof
from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess, is_caught_up
from cdc.state.sqlite import SqliteStore
from tests.integration.test_schema_changes import JOB, _compare, _end, run_files
from tests.integration.test_schema_changes_rows import Target, source_rows
from tests.support.limits import HANG_S
from tests.support.online_changes import Writers, gh_ost, pt_osc_begin, pt_osc_end

CREATE = "CREATE TABLE orders (id INT NOT NULL PRIMARY KEY AUTO_INCREMENT, note VARCHAR(20) NOT NULL, a INT)"


@contextmanager
def writers(server: LocalServer, database: str) -> Iterator[Writers]:
    """Write rows with two sessions until the end of the block."""
    stop, found = threading.Event(), Writers()

    def write(number: int, lock: threading.Lock) -> None:
        with server.connect(database) as connection, connection.cursor() as cursor:
            count = 0
            while not stop.wait(0.005):
                count += 1
                with lock, suppress(pymysql.err.ProgrammingError, pymysql.err.OperationalError):
                    cursor.execute(f"INSERT INTO orders (note, a) VALUES ('w{number}', {count})")
                    cursor.execute(f"UPDATE orders SET a = a + 1 WHERE id % 40 = {count % 40}")
                    cursor.execute(f"DELETE FROM orders WHERE a = {count} AND id % 7 = {number}")
                    connection.commit()

    threads = [threading.Thread(target=write, args=(number, found.join())) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@contextmanager
def started(
    server: LocalServer, database: str, folder: Path, changes: str = "evolve", source: str = "*"
) -> Iterator[JobProcess]:
    """Start a job whose table orders is loaded."""
    port, file = free_port(), folder / "job.yaml"
    text = JOB.format(port=server.port, database=database, status=port, changes=changes)
    if source != "*":
        text = text.replace(f'"{database}.*", target: "ods.*"', f"{database}.{source}, target: ods.{source}")
    file.write_text(text)
    with JobProcess(file, home=folder / "state", port=port) as job:
        job.start()
        job.wait_for("loaded", _is_done(server), HANG_S)
        yield job
        job.stop()


def _create(server: LocalServer, database: str) -> None:
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(CREATE)
        cursor.execute("INSERT INTO orders (note, a) WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r "
                       "WHERE i < 200) SELECT CONCAT('n', i), i FROM r")  # fmt: skip
        connection.commit()


def _is_done(server: LocalServer) -> Any:
    """Everything up to now is committed, and every table that exists is consistent."""
    end = _end(server)

    def holds(status: dict[str, Any]) -> bool:
        assert status["state"] != "PAUSED" or status["resume"] == "automatic", status
        existing = [one for one in status["channels"] if all(each["column"] for each in one["differences"])]
        return all((one["snapshot"] or {}).get("consistent") for one in existing) and is_caught_up(status, end)

    return holds


def _has_read(server: LocalServer) -> Any:
    """Everything up to now is committed. Under writers the lag is never 0."""
    end = _end(server)

    def holds(status: dict[str, Any]) -> bool:
        assert status["state"] != "PAUSED" or status["resume"] == "automatic", status
        position = status["position"]
        return position is not None and (position["file"], position["offset"]) >= end

    return holds


def _reloaded(folder: Path) -> list[bool]:
    """Return whether the newest change loaded its tables again."""
    store = SqliteStore(folder / "state")
    (change,) = store.changes("shop", 1)
    store.close()
    return [table.is_reloaded for table in change.tables]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_job_follows_gh_ost_and_pt_osc_as_one_alter(kind, request, tmp_path):
    server: LocalServer = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    _create(server, database)
    with started(server, database, tmp_path, source="*" if kind == "mysql" else "orders") as job:
        with writers(server, database) as found:
            gh_ost(
                server,
                database,
                "ADD COLUMN five INT NOT NULL DEFAULT 5, ADD COLUMN text VARCHAR(9) DEFAULT 'x'",
                found,
            )
            gh_ost(server, database, "ADD COLUMN never INT", found, end=False)  # interrupted
            gh_ost(
                server,
                database,
                "ADD COLUMN blank VARCHAR(3) NOT NULL DEFAULT '', DROP COLUMN text, MODIFY a BIGINT",
                found,
            )
        job.wait_for("gh-ost", _is_done(server), HANG_S)
        assert _reloaded(tmp_path) == [False]
        _compare(server, database, tmp_path)
        with writers(server, database):
            pt_osc_begin(server, database, "ADD COLUMN six INT DEFAULT 6")
            job.wait_for("the triggers", _has_read(server), HANG_S)
            job.kill()  # the statements of the copy are part of the saved state
            job.start()
            pt_osc_end(server, database)
            pt_osc_begin(server, database, "ADD COLUMN seven DECIMAL(5,2) DEFAULT 7.005, DROP COLUMN six")
            pt_osc_end(server, database, drop_swap=True)
        job.wait_for("pt-osc", _is_done(server), HANG_S)
        assert _reloaded(tmp_path) == [False]
        _compare(server, database, tmp_path)
        gh_ost(server, database, "ADD COLUMN at DATETIME DEFAULT CURRENT_TIMESTAMP", Writers())
        server.execute(f"INSERT INTO `{database}`.orders (note, a) VALUES ('last', 1)")
        status = job.wait_for("values that differ by row", _is_done(server), HANG_S)
        assert _reloaded(tmp_path) == [True]
        _compare(server, database, tmp_path)
        added = "ADD COLUMN changed DATETIME NULL ON UPDATE CURRENT_TIMESTAMP"  # set in the updated row only
        gh_ost(server, database, added, Writers(), update="SET a = 77 ORDER BY id LIMIT 1")
        status = job.wait_for("the time of an update", _is_done(server), HANG_S)
        assert _reloaded(tmp_path) == [True]
        _compare(server, database, tmp_path)
        assert sorted(one.name for one in (tmp_path / "warehouse" / "ods").iterdir()) == ["orders"]
        assert [one["differences"] for one in status["channels"]] == [[]]
        history = job.log.read_text()
        assert history.count("snapshot of") <= 6, history


@pytest.mark.parametrize("kind", ["mysql", pytest.param("mariadb", marks=pytest.mark.stress)])
def test_job_of_binlog_files_follows_the_tools_and_created_tables(kind, request, tmp_path):
    server: LocalServer = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    d = f"`{database}`"
    server.execute("FLUSH BINARY LOGS")
    first, _ = _end(server)
    server.execute(
        f"{CREATE.replace('TABLE orders', f'TABLE {d}.orders')} CHARSET=utf8mb4",
        f"CREATE TABLE {d}.spare (id INT NOT NULL PRIMARY KEY, note VARCHAR(20), z INT) CHARSET=utf8mb4",
        f"INSERT INTO {d}.spare VALUES (1, 'one', 1), (2, 'two', 2)",
        f"INSERT INTO {d}.orders (note, a) VALUES ('first', 1)",
    )
    with writers(server, database) as found:
        gh_ost(server, database, "ADD COLUMN five INT NOT NULL DEFAULT 5, ADD COLUMN t VARCHAR(9) DEFAULT 'x'", found)
        gh_ost(server, database, "ADD COLUMN never INT", found, end=False)  # interrupted
        gh_ost(server, database, "DROP COLUMN t, MODIFY a BIGINT", found)
        pt_osc_begin(server, database, "ADD COLUMN six INT DEFAULT 6")
        pt_osc_end(server, database)
        pt_osc_begin(server, database, "ADD COLUMN seven DECIMAL(5,2) DEFAULT 7.005, DROP COLUMN six")
        pt_osc_end(server, database, drop_swap=True)
    server.execute(
        f"DROP TABLE {d}.spare",
        f"CREATE TABLE {d}.spare (id INT NOT NULL PRIMARY KEY, note VARCHAR(20), y INT NOT NULL) CHARSET=utf8mb4",
        f"INSERT INTO {d}.spare VALUES (2, 'again', 7)",
        "FLUSH BINARY LOGS",
    )
    # 4 RENAMEs, the DROP of drop_swap, and the DROP and CREATE of spare
    assert run_files(server, database, tmp_path, first) == 7
    for table in ("orders", "spare"):
        _compare(server, database, tmp_path, table)
    assert proof.read_delta(tmp_path / "warehouse" / "ods" / "spare").num_rows == 1
    assert sorted(one.name for one in (tmp_path / "warehouse" / "ods").iterdir()) == ["orders", "spare"]


def test_job_loads_again_after_gh_ost_that_began_before_it(mysql, database, tmp_path):
    _create(mysql, database)
    pt_osc_begin(mysql, database, "ADD COLUMN six INT DEFAULT 6, DROP COLUMN a")
    with started(mysql, database, tmp_path) as job:
        pt_osc_end(mysql, database)
        mysql.execute(f"INSERT INTO {database}.orders (note) VALUES ('last')")
        job.wait_for("the swap", _is_done(mysql), HANG_S)
        assert _reloaded(tmp_path) == [True]
        _compare(mysql, database, tmp_path)


def test_job_deletes_rows_that_a_copy_lost_by_its_collation(mysql, database, tmp_path):
    """MODIFY without a collation sets that of the table, so two codes are equal in the copy of gh-ost."""
    _create(mysql, database)
    mysql.execute(
        f"CREATE TABLE {database}.codes (id INT PRIMARY KEY, code VARCHAR(20) COLLATE utf8mb4_bin NOT NULL UNIQUE) "
        "CHARSET utf8mb4 COLLATE utf8mb4_0900_ai_ci",
        f"INSERT INTO {database}.codes VALUES (1, 'a'), (2, 'A'), (3, 'b')",
    )
    with started(mysql, database, tmp_path) as job:
        gh_ost(mysql, database, "MODIFY code VARCHAR(50) NOT NULL", Writers(), table="codes")
        job.wait_for("gh-ost", _is_done(mysql), HANG_S)
        assert proof.read_delta(tmp_path / "warehouse" / "ods" / "codes").num_rows == 2
        _compare(mysql, database, tmp_path, "codes")


def test_job_follows_a_staging_table_that_becomes_a_partition(mariadb, mariadb_database, tmp_path):
    """The staging table is created again: its target keeps no row of the table that is a partition now."""
    d = f"`{mariadb_database}`"
    _create(mariadb, mariadb_database)
    staged = f"CREATE TABLE {d}.staged (id INT NOT NULL PRIMARY KEY, a INT)"
    mariadb.execute(
        f"CREATE TABLE {d}.parts (id INT NOT NULL PRIMARY KEY, a INT) "
        "PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10))",
        staged,
        f"INSERT INTO {d}.parts VALUES (1, 1)",
        f"INSERT INTO {d}.staged VALUES (11, 1), (12, 2)",
    )
    with started(mariadb, mariadb_database, tmp_path) as job:
        mariadb.execute(
            f"ALTER TABLE {d}.parts CONVERT TABLE {d}.staged TO PARTITION p1 VALUES LESS THAN (20)",
            f"UPDATE {d}.parts SET a = 5 WHERE id = 12",
        )
        status = job.wait_for("the partition", _is_done(mariadb), HANG_S)
        _compare(mariadb, mariadb_database, tmp_path, "parts")
        found = {
            one["source"].split(".")[1]: [each["kind"] for each in one["differences"]] for one in status["channels"]
        }
        assert found == {"orders": [], "parts": [], "staged": ["drop.table"]}
        mariadb.execute(staged, f"INSERT INTO {d}.staged VALUES (21, 3), (12, 4)")
        status = job.wait_for("the created table", _is_done(mariadb), HANG_S)
        for table in ("parts", "staged"):
            _compare(mariadb, mariadb_database, tmp_path, table)
        assert all(one["differences"] == [] for one in status["channels"])


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_job_follows_renamed_dropped_and_created_tables(kind, request, tmp_path):
    server: LocalServer = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    d = f"`{database}`"
    _create(server, database)
    server.execute(
        f"CREATE TABLE {d}.fresh (id INT NOT NULL PRIMARY KEY, note VARCHAR(40), b INT)",
        f"INSERT INTO {d}.fresh VALUES (1, 'one', 1), (1000, 'thousand', 2)",
    )
    with started(server, database, tmp_path) as job:
        # a swap: orders means another table, fresh has no table any more, spare is a new name
        server.execute(
            f"RENAME TABLE {d}.orders TO {d}.spare, {d}.fresh TO {d}.orders",
            f"INSERT INTO {d}.orders VALUES (2, 'two', 2)",
            f"UPDATE {d}.spare SET a = -1 WHERE id < 10",
            f"DELETE FROM {d}.orders WHERE id = 1",
        )
        status = job.wait_for("the swap", _is_done(server), HANG_S)
        for table in ("orders", "spare"):
            _compare(server, database, tmp_path, table)
        found = {one["source"].split(".")[1]: one["differences"] for one in status["channels"]}
        assert [(one["kind"], one["column"], one["target"]) for one in found["fresh"]] == [("rename.table", "", None)]
        assert all(one["since"]["time"] for one in found["fresh"])
        assert proof.read_delta(tmp_path / "warehouse" / "ods" / "fresh").num_rows == 2, "no row is lost"
        assert found["orders"] == found["spare"] == []

        # an exchange of two names, with a row between
        server.execute(
            f"RENAME TABLE {d}.orders TO {d}._tmp_, {d}.spare TO {d}.orders, {d}._tmp_ TO {d}.spare",
            f"INSERT INTO {d}.spare VALUES (3, 'three', 3)",
        )
        job.wait_for("the exchange", _is_done(server), HANG_S)
        for table in ("orders", "spare"):
            _compare(server, database, tmp_path, table)

        if kind == "mariadb":
            server.execute(
                f"CREATE OR REPLACE TABLE {d}.spare (id INT NOT NULL PRIMARY KEY, z INT) CHARSET=utf8mb4",
                f"INSERT INTO {d}.spare VALUES (3, 33), (4, 44)",
            )
            job.wait_for("the replaced table", _is_done(server), HANG_S)
            _compare(server, database, tmp_path, "spare")

        job.kill()  # and while the job is away: a dump is restored, with other columns, and a name is free again
        server.execute(
            f"DROP TABLE IF EXISTS {d}.orders",
            f"CREATE TABLE {d}.orders (id INT NOT NULL PRIMARY KEY, note VARCHAR(20) NOT NULL, c INT) CHARSET=utf8mb4",
            f"INSERT INTO {d}.orders VALUES (7, 'seven', 7), (5000, 'new', 8)",
            f"ALTER TABLE {d}.orders RENAME TO {d}.fresh",
        )
        if kind == "mariadb":  # it drops the tables that exist, and logs both
            with pytest.raises(pymysql.err.OperationalError, match="nope"):
                server.execute(f"DROP TABLE {d}.spare, {d}.nope")
        else:
            server.execute(f"DROP TABLE {d}.spare")
        job.start()
        status = job.wait_for("all statements", _is_done(server), HANG_S)
        _compare(server, database, tmp_path, "fresh")
        found = {one["source"].split(".")[1]: one["differences"] for one in status["channels"]}
        assert found["fresh"] == []
        assert [one["kind"] for one in found["spare"]] == ["drop.table"]
        assert [one["kind"] for one in found["orders"]] == ["rename.table"]
        assert status["state"] == "RUNNING"


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_job_follows_table_renamed_away_back_and_then_changed(kind, request, tmp_path):
    """The job reads the RENAME TABLE back when the server already has other columns."""
    server: LocalServer = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    d, away = f"`{database}`", f"`{database[:50]}_away`"
    _create(server, database)
    server.execute(f"CREATE DATABASE {away}")
    try:
        with started(server, database, tmp_path) as job:
            server.execute(
                f"RENAME TABLE {d}.orders TO {away}.orders_1",
                f"UPDATE {away}.orders_1 SET a = -5 WHERE id < 10",
            )
            job.wait_for("the rename", _is_done(server), HANG_S)
            job.kill()
            server.execute(
                f"RENAME TABLE {away}.orders_1 TO {d}.orders",
                f"INSERT INTO {d}.orders (note, a) VALUES ('back', 1)",
                f"ALTER TABLE {d}.orders ADD COLUMN b INT NOT NULL DEFAULT 7, DROP COLUMN a",
                f"INSERT INTO {d}.orders (note, b) VALUES ('last', 2)",
            )
            job.start()
            job.wait_for("the changed table", _is_done(server), HANG_S)
            _compare(server, database, tmp_path)

            # changed under the other name: what the job knows is not certain any more, so it asks the server
            server.execute(
                f"RENAME TABLE {d}.orders TO {away}.orders_1",
                f"ALTER TABLE {away}.orders_1 ADD COLUMN c INT NOT NULL DEFAULT 8",
                f"RENAME TABLE {away}.orders_1 TO {d}.orders",
            )
            job.wait_for("the second change", _is_done(server), HANG_S)
            _compare(server, database, tmp_path)
    finally:
        server.execute(f"DROP DATABASE {away}")


@pytest.mark.drawn(1)
@pytest.mark.parametrize("sink", ["doris", "starrocks"])
def test_job_into_a_cluster_follows_renamed_dropped_and_created_tables(sink, mysql, database, tmp_path):
    _create(mysql, database)
    d, port, file = f"`{database}`", free_port(), tmp_path / "job.yaml"
    mysql.execute(
        f"CREATE TABLE {d}.fresh (id INT NOT NULL PRIMARY KEY, note VARCHAR(40), b INT)",
        f"INSERT INTO {d}.fresh VALUES (1, 'one', 1), (1000, 'thousand', 2)",
    )
    with ExitStack() as stack:
        target = Target(sink, tmp_path, stack)
        file.write_text(target.job(mysql.port, database, port, "lenient"))
        job = stack.enter_context(JobProcess(file, home=tmp_path / "state", port=port))
        job.start()
        job.wait_for("loaded", _is_done(mysql), HANG_S)
        mysql.execute(
            f"RENAME TABLE {d}.orders TO {d}.spare, {d}.fresh TO {d}.orders",
            f"INSERT INTO {d}.orders VALUES (2, 'two', 2)",
            f"DELETE FROM {d}.orders WHERE id = 1",
        )
        status = job.wait_for("the swap", _is_done(mysql), HANG_S)
        found = {one["source"].split(".")[1]: one["differences"] for one in status["channels"]}
        assert [one["kind"] for one in found["fresh"]] == ["rename.table"]
        assert len(target.rows("fresh")) == 2, "no row is lost"
        for table in ("orders", "spare"):
            assert target.rows(table) == source_rows(mysql, database, table), table
        mysql.execute(
            f"DROP TABLE {d}.spare", f"CREATE TABLE {d}.spare (id INT NOT NULL PRIMARY KEY, note VARCHAR(20))"
        )
        job.kill()
        mysql.execute(
            f"INSERT INTO {d}.spare VALUES (3, 'again')", f"ALTER TABLE {d}.orders ADD COLUMN c INT DEFAULT 7"
        )
        job.start()
        status = job.wait_for("the new table", _is_done(mysql), HANG_S)
        for table in ("orders", "spare"):
            assert target.rows(table) == source_rows(mysql, database, table), table
        assert status["state"] == "RUNNING"
        job.stop()
