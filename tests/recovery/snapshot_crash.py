"""SIGKILL of a job that loads full tables during writes: ``python -m tests.recovery.snapshot_crash [PAIR ...]``.

A writer inserts, updates, deletes and changes keys everywhere in the tables, also in the chunk being read. At the end
source and target have equal rows, and no finished chunk was read again.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from cdc.demo.local_servers import Kind, LocalServer, free_port, obtain
from cdc.demo.process import JobProcess
from cdc.state.sqlite import SqliteStore
from tests.soak.pairs import PASSWORD, SOURCES, TARGETS, Target
from tests.soak.run import end_of
from tests.support.seeds import seed_of

DATABASE = "full"
ROWS = 60_000
TABLES = {  # columns of the key; their values for a number i
    "orders": ("id BIGINT NOT NULL PRIMARY KEY", "i * 1000"),
    "people": ("name VARCHAR(40) COLLATE utf8mb4_bin NOT NULL, id BIGINT NOT NULL, PRIMARY KEY (name, id)", "CONCAT('n', i % 7), i"),
    "codes": ("id BINARY(16) NOT NULL PRIMARY KEY", "LEFT(SHA2(i, 256), 16)"),
}  # fmt: skip

JOB = """\
name: full
{source}
{sink}
channels:
  - {{source: {database}.*, target: ods.*}}
commit: {{interval: 500ms}}
snapshot: {{step: 1s, readers: 2, rows_per_second: 40000}}
status: {{port: {status}}}
"""


def run(folder: Path, source: str, target: str, *, kills: int, seed: int, kind: Kind = "mysql") -> int:
    """Kill ``kills`` times while the tables are loaded. Return the number of rows compared.

    Raises: AssertionError - source and target differ, or a finished chunk was read again.
    """
    options = ("--binlog-row-metadata=FULL",)
    with (
        LocalServer.start(obtain(kind), folder / kind, options=options) as server,
        TARGETS[target](folder, seed) as sink,
    ):
        server.create_user("cdc", PASSWORD)
        server.execute(f"CREATE DATABASE {DATABASE}")
        _fill(server, kind)
        with SOURCES[source](server, "snapshot", folder) as read:
            port = free_port()
            text = JOB.format(source=read.yaml, sink=sink.yaml, database=DATABASE, status=port)
            (folder / "job.yaml").write_text(text)
            with JobProcess(folder / "job.yaml", home=folder / "state", port=port) as job:
                return _run(folder, server, job, sink, kills, random.Random(seed))


def _run(folder: Path, server: LocalServer, job: JobProcess, sink: Target, kills: int, draw: random.Random) -> int:
    writer = Writer(server, draw.randrange(10**6))
    job.start()
    job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 600)
    writer.start()
    try:
        _until_loaded(job, folder / "state", kills, draw)
    finally:
        writer.end()
    end = end_of(server)
    status = job.wait_for(
        f"caught up with {end}",
        lambda status: status["position"] and (status["position"]["file"], status["position"]["offset"]) >= end,
        180,
    )
    assert job.stop() == 143
    assert writer.transactions > 100
    for channel in status["channels"]:
        snapshot = channel["snapshot"]
        # apart from rows changed meanwhile, each row was read once: finished chunks are never read again
        assert snapshot["done"] == snapshot["chunks"] > 0
        assert snapshot["rows"] <= ROWS * 1.3
    return sum(_compare(server, sink, table) for table in TABLES)


def _compare(server: LocalServer, sink: Target, table: str) -> int:
    connection = server.connect(DATABASE)
    with connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        expected = {tuple(map(_readable, row)) for row in cursor.fetchall()}
    found = sink.rows(table).select(names).to_pylist()
    rows = {tuple(map(_readable, row.values())) for row in found}
    assert len(rows) == len(found), f"{table}: rows exist twice"
    assert rows == expected, f"{table}: {sorted(rows ^ expected, key=repr)[:5]}"
    assert len(rows) > ROWS // 3
    return len(rows)


def _readable(value: object) -> object:
    """Convert binary keys to hexadecimal digits, as clusters store them."""
    return value.hex().upper() if isinstance(value, bytes) else value


def _fill(server: LocalServer, kind: Kind) -> None:
    setting = "max_recursive_iterations" if kind == "mariadb" else "cte_max_recursion_depth"
    with server.connect(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION {setting} = 1000000")
        for name, (columns, values) in TABLES.items():
            head, _, key = columns.partition(", PRIMARY")
            cursor.execute(f"CREATE TABLE {name} ({head}, note VARCHAR(50), n INT{', PRIMARY' + key if key else ''})")
            cursor.execute(
                f"INSERT IGNORE INTO {name} WITH RECURSIVE r AS "
                f"(SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < {ROWS}) "
                f"SELECT {values}, CONCAT('first ', i), i FROM r"
            )
        connection.commit()


class Writer(threading.Thread):
    """Insert, update, delete and change keys everywhere in the tables."""

    def __init__(self, server: LocalServer, seed: int) -> None:
        super().__init__(daemon=True)
        self._server, self._draw = server, random.Random(seed)
        self._stopping = threading.Event()
        self.transactions = 0

    def run(self) -> None:
        """Write until ``end`` is called."""
        with self._server.connect(DATABASE) as connection, connection.cursor() as cursor:
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
        """Stop writing. Return when no statement runs."""
        self._stopping.set()
        self.join()


def _until_loaded(job: JobProcess, home: Path, kills: int, draw: random.Random) -> None:
    before: Mapping[str, int] = {}
    read = 0
    for _ in range(kills):
        status = job.wait_for(
            "more rows are committed", lambda status, read=read: _rows(status) > read or _is_consistent(status), 600
        )
        time.sleep(draw.uniform(0.0, 3.0))
        job.kill()
        read = _rows(status)
        done = _done(home)
        assert all(done.get(name, 0) >= count for name, count in before.items()), (
            "a finished chunk is missing in the saved state"
        )
        before = done
        job.start()
        job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 600)
    job.wait_for("all tables are consistent", _is_consistent, 900)


def _done(home: Path) -> dict[str, int]:
    store = SqliteStore(home)
    try:
        committed = store.last_committed("full")
        return {name: one.done for name, one in committed.snapshots.items()} if committed else {}
    finally:
        store.close()


def _is_consistent(status: dict[str, Any]) -> bool:
    found = {channel["source"]: channel["snapshot"] for channel in status["channels"]}
    names = [f"{DATABASE}.{name}" for name in TABLES]
    return all(found.get(name) and found[name]["consistent"] for name in names)


def _rows(status: dict[str, Any]) -> int:
    return sum(channel["snapshot"]["rows"] for channel in status["channels"] if channel["snapshot"])


def main() -> None:
    """Run the named pairs, or all."""
    pairs = [f"{source}:{target}" for source in SOURCES for target in TARGETS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help=", ".join(pairs))
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--kind", choices=get_args(Kind), default="mysql", help="of the server; Canal pairs need MySQL")
    arguments = parser.parse_args()
    seed = seed_of(arguments.seed)
    for pair in arguments.pairs or pairs:
        source, target = pair.split(":")
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="cdc-snapshot-kills-") as folder:
            rows = run(Path(folder), source, target, kills=arguments.kills, seed=seed, kind=arguments.kind)
        print(
            f"{pair}: {arguments.kills} kills in {time.monotonic() - begin:.0f} s, seed {seed}: {rows} rows, "
            "source and target agree",
            flush=True,
        )


if __name__ == "__main__":
    main()
