"""Tables that are full, and written to all the while, under a job that is killed: source equals target, no chunk twice."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from cdc.checkpoint_sqlite import SqliteStore
from cdc.demo import proof
from cdc.demo.process import JobProcess
from cdc.local_servers import LocalServer, free_port

ROWS = 60_000
TABLES = {
    "orders": ("id BIGINT NOT NULL PRIMARY KEY", "i * 1000", ["id"]),
    "people": ("name VARCHAR(40) COLLATE utf8mb4_bin NOT NULL, id BIGINT NOT NULL, PRIMARY KEY (name, id)", "CONCAT('n', i % 7), i", ["name", "id"]),
    "codes": ("id BINARY(16) NOT NULL PRIMARY KEY", "LEFT(SHA2(i, 256), 16)", ["id"]),
}  # fmt: skip

JOB = """\
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: root, tls: {{mode: off}}, start: snapshot}}
sink: {{type: delta, path: ./warehouse, create_tables: true}}
channels:
  - {{source: {database}.*, target: ods.*}}
commit: {{interval: 500ms}}
snapshot: {{turn: 1s, readers: 2, rows_per_second: 40000}}
status: {{port: {status}}}
"""


def _fill(server: LocalServer, database: str) -> None:
    setting = "max_recursive_iterations" if "mariadb" in str(server.data) else "cte_max_recursion_depth"
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION {setting} = 1000000")
        for name, (columns, values, _) in TABLES.items():
            head, _, key = columns.partition(", PRIMARY")
            cursor.execute(f"CREATE TABLE {name} ({head}, note VARCHAR(50), n INT{', PRIMARY' + key if key else ''})")
            cursor.execute(
                f"INSERT IGNORE INTO {name} WITH RECURSIVE r AS "
                f"(SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < {ROWS}) "
                f"SELECT {values}, CONCAT('first ', i), i FROM r"
            )
        connection.commit()


class Writer(threading.Thread):
    """Inserts, updates, deletes and key changes all over the tables."""

    def __init__(self, server: LocalServer, database: str, seed: int) -> None:
        super().__init__(daemon=True)
        self._server, self._database, self._draw = server, database, random.Random(seed)
        self._stopping = threading.Event()
        self.transactions = 0

    def run(self) -> None:
        with self._server.connect(self._database) as connection, connection.cursor() as cursor:
            while not self._stopping.is_set():
                for _ in range(self._draw.randrange(1, 6)):
                    cursor.execute(self._statement())
                connection.commit()
                self.transactions += 1
                time.sleep(0.01)

    def _statement(self) -> str:
        i, j = self._draw.randrange(1, ROWS), self._draw.randrange(1, 10**9)
        return self._draw.choice([
            f"UPDATE orders SET note = 'later {j}' WHERE id = {i * 1000}",
            f"REPLACE INTO orders VALUES ({i * 1000 + j % 1000}, 'new {j}', {j})",
            f"DELETE FROM orders WHERE id BETWEEN {i * 1000} AND {i * 1000 + 2000}",
            f"UPDATE IGNORE orders SET id = {self._draw.randrange(ROWS * 1000)} WHERE id = {i * 1000}",
            f"UPDATE people SET n = {j} WHERE name = 'n{i % 7}' AND id = {i}",
            f"UPDATE IGNORE people SET name = 'm{i % 5}' WHERE name = 'n{i % 7}' AND id = {i}",
            f"DELETE FROM people WHERE name = 'n{i % 7}' AND id = {i}",
            f"REPLACE INTO people VALUES ('k{i % 9}', {j}, 'new', {j})",
            f"UPDATE codes SET n = {j} WHERE id = LEFT(SHA2({i}, 256), 16)",
            f"DELETE FROM codes WHERE id = LEFT(SHA2({i}, 256), 16)",
            f"REPLACE INTO codes VALUES (LEFT(SHA2({j}, 256), 16), 'new', {j})",
        ])  # fmt: skip

    def end(self) -> None:
        self._stopping.set()
        self.join()


def _done(home: Path) -> dict[str, int]:
    store = SqliteStore(home)
    try:
        committed = store.last_committed("shop")
        return {name: one.done for name, one in committed.snapshots.items()} if committed else {}
    finally:
        store.close()


def _is_consistent(status, database) -> bool:
    found = {channel["source"]: channel["snapshot"] for channel in status["channels"]}
    names = [f"{database}.{name}" for name in TABLES]
    return all(found.get(name) and found[name]["consistent"] for name in names)


def _rows(status) -> int:
    return sum(channel["snapshot"]["rows"] for channel in status["channels"] if channel["snapshot"])


def _end(server: LocalServer) -> tuple[str, int]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS" if "mariadb" in str(server.data) else "SHOW BINARY LOG STATUS")
        return tuple(cursor.fetchone()[:2])


def _until_loaded(job: JobProcess, home: Path, database: str, kills: int, draw: random.Random) -> None:
    before: dict[str, int] = {}
    read = 0
    for _ in range(kills):
        status = job.wait_for(
            "more rows are committed",
            lambda status, read=read: _rows(status) > read or _is_consistent(status, database),
            240,
        )
        time.sleep(draw.uniform(0.0, 3.0))
        job.kill()
        read = _rows(status)
        done = _done(home)
        assert all(done.get(name, 0) >= count for name, count in before.items()), "a finished chunk is forgotten"
        before = done
        job.start()
        job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 120)
    job.wait_for("all tables are consistent", lambda status: _is_consistent(status, database), 480)


def run(server: LocalServer, database: str, folder: Path, *, kills: int, seed: int) -> None:
    _fill(server, database)
    port, draw, home = free_port(), random.Random(seed), folder / "state"
    (folder / "job.yaml").write_text(JOB.format(port=server.port, database=database, status=port))
    writer = Writer(server, database, seed)
    with JobProcess(folder / "job.yaml", home=home, port=port) as job:
        job.start()
        job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 120)
        writer.start()
        try:
            _until_loaded(job, home, database, kills, draw)
        finally:
            writer.end()
        end = _end(server)
        status = job.wait_for(
            f"caught up with {end}",
            lambda status: status["position"] and (status["position"]["file"], status["position"]["offset"]) >= end,
            120,
        )
        assert job.stop() == 143
    assert writer.transactions > 100
    for name, (_, _, key) in TABLES.items():
        comparison = proof.compare(server, f"{database}.{name}", folder / "warehouse" / "ods" / name, key)
        assert not comparison.differences, (name, comparison.differences[:5])
        assert comparison.rows > ROWS // 3
    for channel in status["channels"]:
        snapshot = channel["snapshot"]
        # rows that were changed meanwhile aside, each was read once: finished chunks are never read again
        assert snapshot["done"] == snapshot["chunks"] > 0
        assert snapshot["rows"] <= ROWS * 1.3


@pytest.mark.timeout(900)
def test_mysql_is_loaded_whole_under_writes_and_kills(mysql, database, tmp_path):
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    run(mysql, database, tmp_path, kills=3, seed=seed)


@pytest.mark.timeout(900)
def test_mariadb_is_loaded_whole_under_writes_and_kills(mariadb, mariadb_database, tmp_path):
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    run(mariadb, mariadb_database, tmp_path, kills=1, seed=seed)
