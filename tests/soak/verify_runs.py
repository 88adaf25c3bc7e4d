"""Faults in targets, found and repaired under load: ``python -m tests.soak.verify_runs [--runs N] [--seed N] [SINK ...]``.

A job loads four tables while up to 2,000 transactions a second change them. In each run, rows of the target that the
writer never changes are deleted, changed and added, drawn from the seed. ``cdc verify`` must first report no row, then
exactly these rows, and repair each once; with ``--kills N``, N kills of the driver interrupt it. ``make verify-runs`` does
it with Delta and the emulators of Doris and StarRocks. ``--rows 10000000 --faults 1`` looks for one row in ten million.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from cdc.demo import proof
from cdc.demo.local_servers import LocalServer, free_port, obtain
from cdc.demo.process import JobProcess, is_caught_up
from tests.emulators.cases import USER
from tests.emulators.doris import cases as doris
from tests.emulators.starrocks import cases as starrocks
from tests.soak.run import end_of
from tests.support.seeds import seed_of

DATABASE, PASSWORD = "shop", "secret"
ROWS, FAULTS = 12_000, 8
HOT = 1000  # rows of each table that the writer changes; it changes no other row
FILLED = 100_000  # rows of one INSERT
PER_S, BURST = 2000, 100  # transactions
WAIT_S = 900
LONGEST_S = 1.5  # from the start of a verification to a kill
JOB = """\
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: cdc, password: {password}, tls: {{mode: required}},
         start: snapshot}}
sink: {sink}
channels: [{{source: shop.*, target: ods.*}}]
commit: {{interval: 500ms}}
snapshot: {{step: 1s}}
status: {{port: {status}}}
"""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the source. Its column ``r`` is the number of the row."""

    columns: str
    key: tuple[str, ...]
    values: str  # of row i
    changes: tuple[tuple[str, str], ...]  # column, and the SQL of a value that no row has
    added: tuple[str, Any]  # column of the key, and a value that no row has
    most: int = 1 << 40  # rows


TABLES = {
    "orders": Table(
        "id BIGINT NOT NULL PRIMARY KEY, customer INT NOT NULL, note VARCHAR(60), status SMALLINT NOT NULL, "
        "total DECIMAL(12,2), at DATETIME(6), day DATE, raw VARBINARY(20), big BIGINT UNSIGNED, r INT NOT NULL",
        ("id",),
        "i, i * 7919 % 10007, CONCAT('order ', i), i % 7, i % 10000019 / 7, '2024-01-01' + INTERVAL i SECOND, "
        "'2024-01-01' + INTERVAL i % 3000 DAY, UNHEX(LPAD(HEX(i), 8, '0')), 18446744073709551615 - i, i",
        (("note", "'changed'"), ("note", "NULL"), ("status", "99"), ("total", "-0.01"), ("customer", "-1"),
         ("at", "CAST('2001-01-01 00:00:00.000001' AS TIMESTAMP)"), ("day", "CAST('2001-01-01' AS DATE)"), ("big", "1")),
        ("id", 10**9),
    ),
    "pairs": Table(
        "a INT NOT NULL, b DATETIME NOT NULL, v VARCHAR(40), n BIGINT, r INT NOT NULL, PRIMARY KEY (a, b)",
        ("a", "b"),
        "i % 500, '2024-01-01' + INTERVAL i SECOND, CONCAT('v', i), i, i",
        (("v", "'changed'"), ("n", "-1"), ("n", "NULL")),
        ("a", 600),
        ROWS,
    ),
    "words": Table(
        "word VARCHAR(40) NOT NULL PRIMARY KEY, n INT, more TEXT, r INT NOT NULL",
        ("word",),
        f"CONCAT(IF(i <= {HOT}, 'hot', IF(i % 2, 'W', 'w')), i), i, REPEAT('x', i % 50), i",
        (("n", "-1"), ("more", "NULL"), ("more", "'changed'")),
        ("word", "only here"),
        ROWS,
    ),
    "mixed": Table(
        "id INT NOT NULL PRIMARY KEY, doc JSON, ratio DOUBLE, n INT, r INT NOT NULL",
        ("id",),
        "i, JSON_OBJECT('n', i), i / 3, i, i",
        (("doc", "'{\"n\": -7}'"), ("ratio", "-0.5"), ("n", "NULL")),
        ("id", -1),
        ROWS,
    ),
}  # fmt: skip
# each statement is a transaction; keys from 20,000,000 on are inserted and deleted
WRITER = f"""
CREATE PROCEDURE write_some(first BIGINT, count INT)
BEGIN
  DECLARE k BIGINT DEFAULT first;
  WHILE k < first + count DO
    CASE k % 6
      WHEN 0 THEN INSERT INTO orders (id, customer, note, status, r) VALUES (20000000 + k, k % 100, 'new', 1, 0);
      WHEN 1 THEN DELETE FROM orders WHERE id = 20000000 + k - 601;
      WHEN 2 THEN UPDATE orders SET status = (status + 1) % 90, at = NOW(6) WHERE id = 1 + k * 7919 % {HOT};
      WHEN 3 THEN UPDATE pairs SET v = CONCAT('now ', k)
        WHERE a = (1 + k % {HOT}) % 500 AND b = '2024-01-01' + INTERVAL 1 + k % {HOT} SECOND;
      WHEN 4 THEN UPDATE words SET n = k WHERE word = CONCAT('hot', 1 + k % {HOT});
      ELSE UPDATE mixed SET doc = JSON_OBJECT('n', k), n = k WHERE id = 1 + k % {HOT};
    END CASE;
    SET k = k + 1;
  END WHILE;
END"""


@dataclass(frozen=True, slots=True)
class RowFault:
    """A fault to make in a target."""

    table: str
    kind: str  # missing, extra, different
    row: int  # the row that is deleted, changed or copied
    column: str = ""  # the changed one
    value: Any = None  # its new value: SQL for "different", a value of the key for "extra"


def draw_faults(draw: random.Random, count: int, rows: int) -> list[RowFault]:
    """Return ``count`` faults of different rows that the writer does not change."""
    faults = []
    for number, row in enumerate(draw.sample(range(HOT + 1, min(rows, ROWS) + 1), count)):
        name, kind = draw.choice(list(TABLES)), draw.choice(("missing", "extra", "different"))
        if rows > ROWS:  # only the largest table matters
            name, row = "orders", draw.randrange(HOT + 1, rows + 1)
        table = TABLES[name]
        column, value = {"missing": ("", None), "extra": table.added, "different": draw.choice(table.changes)}[kind]
        if kind == "extra":
            value = f"{value} {number}" if isinstance(value, str) else value - number
        faults.append(RowFault(name, kind, row, column, value))
    return faults


class DamagedTarget(Protocol):
    """A target of the job that another program damages."""

    sink: str  # of the job file

    def damage(self, fault: RowFault) -> None: ...

    def rows(self, name: str) -> pa.Table: ...


class DeltaTarget:
    """The tables of a Delta sink."""

    sink = "{type: delta, path: ./warehouse, merge: rewrite}"  # the faults are read and written by pyarrow

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "warehouse" / "ods"

    def damage(self, fault: RowFault) -> None:
        """Make ``fault``."""
        path = self._folder / fault.table
        table, where = DeltaTable(path), f"r = {fault.row}"
        if fault.kind == "missing":
            table.delete(where)
        elif fault.kind == "different":
            table.update(updates={fault.column: fault.value}, predicate=where)
        else:
            rows = table.to_pyarrow_table(filters=[("r", "=", fault.row)])
            number = rows.schema.get_field_index(fault.column)
            field = rows.schema.field(number)
            write_deltalake(path, rows.set_column(number, field, pa.array([fault.value], field.type)), mode="append")

    def rows(self, name: str) -> pa.Table:
        """Return all rows of a table."""
        return DeltaTable(self._folder / name).to_pyarrow_table()


class ClusterTarget:
    """The tables of an emulator."""

    def __init__(self, kind: str, cluster: Any) -> None:
        self._storage = cluster.storage
        user, password = USER
        self.sink = (
            f'{{type: {kind}, fe: ["{cluster.fe[0]}"], sql_port: {cluster.sql_port}, username: {user}, '
            f'password: "{password}"}}'
        )

    def damage(self, fault: RowFault) -> None:
        """Make ``fault``."""
        base, query, where = self._storage.find("ods", fault.table).base, self._storage.query, f"r = {fault.row}"
        if fault.kind == "missing":
            query(f"DELETE FROM {base} WHERE {where}")
        elif fault.kind == "different":
            query(f'UPDATE {base} SET "{fault.column}" = {fault.value} WHERE {where}')
        else:
            query(f"CREATE TEMP TABLE copied AS SELECT * FROM {base} WHERE {where}")
            query(f'UPDATE copied SET "{fault.column}" = {fault.value!r}')
            query(f"INSERT INTO {base} SELECT * FROM copied")
            query("DROP TABLE copied")

    def rows(self, name: str) -> pa.Table:
        """Return all rows of a table."""
        found: pa.Table = self._storage.arrow(f"SELECT * FROM ods.{name}")
        return found


class Writer:
    """Changes rows of the source, ``per_s`` transactions a second or as many as the server can."""

    def __init__(self, server: LocalServer, per_s: float) -> None:
        self._server, self._per_s, self._next = server, per_s, 6 * 10**6  # a multiple of 6
        self.transactions, self.seconds = 0, 0.0

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write until the end of the context. Raises: what a statement has raised."""
        stop, failures, began = threading.Event(), list[Exception](), time.monotonic()
        before = self.transactions

        def write() -> None:
            try:
                with self._server.connect(DATABASE) as connection, connection.cursor() as cursor:
                    cursor.execute("SET autocommit = 1")
                    due_s = 0.0
                    while not stop.wait(max(0.0, began + due_s - time.monotonic())):
                        cursor.execute(f"CALL write_some({self._next}, {BURST})")
                        self._next += BURST
                        self.transactions += BURST
                        due_s += BURST / self._per_s
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.seconds += time.monotonic() - began
        assert not failures, failures
        assert self.transactions > before


def fill(server: LocalServer, rows: int) -> None:
    """Create the tables with ``rows`` rows, and the procedure of the writer."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {DATABASE}")
        cursor.execute(f"USE {DATABASE}")
        cursor.execute(f"SET SESSION cte_max_recursion_depth = {FILLED + 1}")
        numbers = f"WITH RECURSIVE n (k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n WHERE k < {FILLED})"
        cursor.execute(f"CREATE TEMPORARY TABLE numbers (k INT PRIMARY KEY) {numbers} SELECT k FROM n")
        for name, table in TABLES.items():
            count = min(rows, table.most)
            cursor.execute(f"CREATE TABLE {name} ({table.columns}) CHARACTER SET utf8mb4")
            for first in range(0, count, FILLED):
                some = f"(SELECT k + {first} AS i FROM numbers WHERE k <= {count - first}) AS chosen"
                cursor.execute(f"INSERT INTO {name} SELECT {table.values} FROM {some}")
                connection.commit()
        cursor.execute(WRITER)


def expected_keys(server: LocalServer, faults: Sequence[RowFault]) -> set[tuple[str, str, tuple[str, ...]]]:
    """Return table, kind and key of each row that must be found."""
    found = set()
    with server.connect(DATABASE) as connection, connection.cursor() as cursor:
        for fault in faults:
            key = TABLES[fault.table].key
            cursor.execute(f"SELECT {', '.join(key)} FROM {fault.table} WHERE r = {fault.row}")
            values = dict(zip(key, cursor.fetchone(), strict=True))
            if fault.kind == "extra":
                values[fault.column] = fault.value
            found.add((f"{DATABASE}.{fault.table}", fault.kind, tuple(map(str, values.values()))))
    return found


def reported_keys(found: dict[str, Any]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return the same of the rows that a verification has reported."""
    return [
        (one["table"], one["kind"], tuple(one["key"][name] for name in TABLES[one["table"].partition(".")[2]].key))
        for one in found["differences"]
    ]


def caught_up(server: LocalServer, job: JobProcess) -> None:
    """Wait until the targets have everything that is committed now."""
    end = end_of(server)
    job.wait_for(
        f"caught up with {end}",
        lambda status: len(status["channels"]) == len(TABLES) and is_caught_up(status, end),
        WAIT_S,
    )


def run(
    folder: Path, sink: str, *, runs: int, seed: int, rows: int = ROWS, count: int = FAULTS, kills: int = 0,
    per_s: float = PER_S,
) -> int:  # fmt: skip
    """Make ``count`` faults in each of ``runs`` runs. Return the number of transactions that were written meanwhile.

    ``kills``: of the driver, during each verification that repairs. ``per_s``: transactions.

    Raises: AssertionError - a fault was not found or not repaired, or a row was reported that has no fault.
    """
    draw = random.Random(f"{seed} {sink}")
    options = ("--binlog-row-metadata=FULL", "--sync-binlog=0", "--innodb-flush-log-at-trx-commit=2")
    with ExitStack() as stack:
        server = stack.enter_context(LocalServer.start(obtain("mysql"), folder / "mysql", options=options))
        server.create_user("cdc", PASSWORD)
        fill(server, rows)
        target: DamagedTarget = DeltaTarget(folder)
        if sink != "delta":
            emulator = doris.emulator() if sink == "doris" else starrocks.emulator()
            target = ClusterTarget(sink, stack.enter_context(emulator))
        port = free_port()
        (folder / "job.yaml").write_text(JOB.format(port=server.port, password=PASSWORD, sink=target.sink, status=port))
        job = stack.enter_context(JobProcess(folder / "job.yaml", home=folder / "state", port=port))
        job.start()
        caught_up(server, job)
        writer = Writer(server, per_s)
        for number in range(runs):
            faults, where = draw_faults(draw, count, rows), f"{sink}, seed {seed}, run {number}"
            expected = expected_keys(server, faults)
            with writer.writing():
                _check_equal(job.verify("shop", timeout_s=WAIT_S), where)
            caught_up(server, job)
            for fault in faults:
                target.damage(fault)
            with writer.writing():
                found = verify_with_kills(job, draw, kills)
            reported = reported_keys(found)
            assert found["error"] is None and not found["equal"], (where, found)
            assert sorted(reported) == sorted(expected), (where, set(reported) ^ expected, faults, found)
            assert sum(one["repaired"] for one in found["tables"].values()) == len(expected), (where, found)
            rate = writer.transactions / writer.seconds
            print(f"{sink}: run {number + 1} of {runs}, {rate:.0f} transactions/s", flush=True)
        with writer.writing():
            _check_equal(job.verify("shop", timeout_s=WAIT_S), f"{sink}, seed {seed}, at the end")
        caught_up(server, job)
        assert job.stop() in (0, 130, 143)
        if rows <= ROWS:
            compare(server, target)
    return writer.transactions


def verify_with_kills(job: JobProcess, draw: random.Random, kills: int) -> dict[str, Any]:
    """Run ``cdc verify --repair``, kill the driver ``kills`` times meanwhile, and return the result."""
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(job.verify, "shop", "--repair", timeout_s=WAIT_S)
        for _ in range(kills):
            while not found.done() and not ((job.status() or {}).get("verify") or {}).get("current"):
                time.sleep(0.05)
            time.sleep(draw.uniform(0, LONGEST_S))
            if found.done():
                break
            job.kill()
            job.start()
        return found.result()


def _check_equal(found: dict[str, Any], where: str) -> None:
    assert found["equal"], (where, found)
    assert {one["state"] for one in found["tables"].values()} == {"done"}, (where, found)


def compare(server: LocalServer, target: DamagedTarget) -> None:
    """Compare all rows without the job."""
    for name, table in TABLES.items():
        rows = target.rows(name)
        rows = rows.select(
            [column for column in rows.column_names if column != "raw"]
        )  # bytes are no text in a CSV file
        order = [(column, "ascending") for column in table.key]
        expected = proof.read_mysql(server, f"{DATABASE}.{name}", rows.schema)
        assert rows.sort_by(order).to_pylist() == expected.sort_by(order).to_pylist(), name


def main() -> None:
    """Run all sinks or the named ones. Exit code 1: a run has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sinks", nargs="*", metavar="SINK", help="delta, doris, starrocks")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--faults", type=int, default=FAULTS)
    parser.add_argument("--kills", type=int, default=0)
    given = parser.parse_args()
    seed, failed = seed_of(given.seed), []
    for sink in given.sinks or ("delta", "doris", "starrocks"):
        with tempfile.TemporaryDirectory(prefix="cdc-verify-") as folder:
            try:
                run(
                    Path(folder), sink,
                    runs=given.runs, seed=seed, rows=given.rows, count=given.faults, kills=given.kills,
                )  # fmt: skip
            except Exception:  # the other sinks still run
                traceback.print_exc()
                failed.append(sink)
    print(
        f"seed {seed}: {given.runs} runs of each sink, " + (f"failed: {', '.join(failed)}" if failed else "all passed")
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
