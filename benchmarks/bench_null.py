"""The real job with a sink that discards: what reading, decoding and Spark cost without writing.

``python -m benchmarks.bench_null [NAME ...] [--rows N]``. Beside it, in the same run, mysql-replication reads the same
binlog into a list.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import orders, rig
from benchmarks.baselines import rate_of_mysql_replication
from benchmarks.harness import report
from benchmarks.null_sink import TALLY
from cdc.local_servers import LocalServer

WIDE_COLUMNS, TABLES = 200, 100
_NULL_JOB = (sys.executable, "-m", "benchmarks.null_job")
_SINK = "type: delta, path: ./warehouse"
_KINDS = ("INT", "VARCHAR(30)", "DECIMAL(12,2)", "DATETIME(3)", "BIGINT")
_VALUES = (
    "n + {0}", "CONCAT('value ', n % 97 + {0})", "(n + {0}) / 100", "'2026-01-01' + INTERVAL n SECOND", "n * {0}",
)  # fmt: skip


def _narrow(server: LocalServer, rows: int) -> None:
    server.execute(orders.CREATE.format(name=f"{rig.DATABASE}.orders"))
    orders.fill(server, rig.DATABASE, "orders", rows)


def _wide(server: LocalServer, rows: int) -> None:
    columns = ", ".join(f"c{i} {_KINDS[i % 5]}" for i in range(1, WIDE_COLUMNS))
    chosen = ", ".join(_VALUES[i % 5].format(i) for i in range(1, WIDE_COLUMNS))
    server.execute(f"CREATE TABLE {rig.DATABASE}.wide (id BIGINT NOT NULL PRIMARY KEY, {columns})")
    with server.connect(rig.DATABASE) as connection, connection.cursor() as cursor:
        for first in range(0, rows, 1000):
            cursor.execute(
                f"INSERT INTO wide SELECT {first} + n, {chosen} FROM numbers WHERE n < {min(1000, rows - first)}"
            )


def _many(server: LocalServer, rows: int) -> None:
    """Transactions that go round all tables, a thousand rows of one table each."""
    names = [f"t{number:03d}" for number in range(TABLES)]
    for name in names:
        server.execute(orders.CREATE.format(name=f"{rig.DATABASE}.{name}"))
    for first in range(0, rows // TABLES, 1000):
        for name in names:
            count = min(1000, rows // TABLES - first)
            orders.fill(server, rig.DATABASE, name, count, first=first, transaction_rows=count)


def measure(name: str, data: str, rows: int, fill: Callable[[LocalServer, int], None]) -> None:
    """Let a job take a backlog that ``fill`` writes, and see that it got all of it."""
    with rig.source() as (server, folder):
        prepared = rig.position(server)
        fill(server, rows)
        with rig.job(server, folder, prepared, _SINK, program=_NULL_JOB) as job:
            run = rig.drained(job, server)
        rows = _parity(server, folder)
        baseline = rate_of_mysql_replication(server, prepared)
    report(
        name,
        rows / run.seconds,
        "rows/s",
        must="reported",
        data={"rows": rows, "table": data},
        baselines={"mysql-replication into a list": round(baseline)},
        seconds=round(run.seconds, 1),
        start_s=round(run.start_s, 1),
        usage=run.usage,
        rows=rows,
        checked="count and sum of keys of each table",
    )


def _parity(server: LocalServer, folder: Path) -> int:
    """Rows and the sum of keys of every table. Raises: SystemExit - the sink was given others."""
    found = json.loads((folder / "warehouse" / TALLY).read_text())
    expected = {}
    with server.connect(rig.DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        for (table,) in cursor.fetchall():
            if table != "numbers":
                cursor.execute(f"SELECT count(*), CAST(coalesce(sum(id), 0) AS UNSIGNED) FROM {table}")
                expected[f"ods.{table}"] = [int(value) for value in cursor.fetchone()]
    if found != expected:
        raise SystemExit(f"source and target differ: {expected} is in the source, {found} was given to the sink")
    return sum(rows for rows, _ in found.values())


BENCHMARKS: dict[str, tuple[str, float, Callable[[LocalServer, int], None]]] = {
    "catch_up": ("orders, 10 columns, transactions of 10,000 rows", 1.0, _narrow),
    "wide": (f"{WIDE_COLUMNS} columns, transactions of 1,000 rows", 0.04, _wide),
    "many_tables": (f"{TABLES} tables of 10 columns in turn, transactions of 1,000 rows", 0.4, _many),
}


def main(arguments: list[str] | None = None) -> None:
    """Run what is named; everything by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--rows", type=int, default=5_000_000, help="of catch_up; the others take a share of it")
    given = parser.parse_args(arguments)
    for name in given.names or BENCHMARKS:
        data, share, fill = BENCHMARKS[name]
        measure(f"e2e.null.{name}", data, int(given.rows * share), fill)


if __name__ == "__main__":
    main()
