"""Snapshots: the rows of a table that exists before the job starts, from MySQL to Delta."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.rig import orders
from benchmarks.rig.jobs import Rig, rig
from benchmarks.rig.measure import Watch, report
from benchmarks.rig.orders import DATABASE
from benchmarks.rig.suite import Case, Options
from cdc.demo.local_servers import LocalServer
from cdc.demo.process import JobProcess

WRITES_PER_S = 500
LARGE_ROWS, SMALL_ROWS = 2000, 1_000_000


def delta(options: Options) -> None:
    """Measure a table of 10 columns, from RUNNING until the last row is visible."""
    with rig(options) as bench:
        orders.create(bench.server, "orders")
        orders.fill(bench.server, "orders", options.rows)
        backlog = bench.drain()
    backlog.report("snapshot.delta", goal=">= 150,000, target 300,000; <= 4 GiB", work="10 columns")


def again(options: Options) -> None:
    """Measure ``cdc snapshot``: all rows of a loaded table are read again, and orphan rows are searched."""
    with rig(options) as bench:
        with bench.loaded_job() as job, Watch(job.pid) as watch:
            seconds = _load_again(bench, job)
            usage = watch.usage()
        rows = bench.prove()
    report(
        "snapshot.again",
        rows / seconds,
        "rows/s",
        data={"rows": rows, "work": "10 columns"},
        checked=bench.checked,
        usage=usage,
        rows=rows,
        seconds=round(seconds, 1),
    )


def _load_again(bench: Rig, job: JobProcess) -> float:
    first = _snapshot_of(bench.wait_caught_up(job))["since"]
    began = time.monotonic()
    job.command("snapshot", "bench", f"{DATABASE}.orders")
    job.wait_for(
        "all rows are loaded again", lambda status: _snapshot_of(status).get("since") not in (None, first), 1800
    )
    return time.monotonic() - began


def wide(options: Options) -> None:
    """Measure the memory for a skewed table: 2,000 rows of 1 MiB after a million small ones."""
    with rig(options) as bench:
        _fill_skewed(bench.server)
        backlog = bench.drain()
    backlog.report("snapshot.delta.wide", goal="<= 4 GiB", work=f"{LARGE_ROWS} rows of 1 MiB, {SMALL_ROWS} small ones")


def _fill_skewed(server: LocalServer) -> None:
    numbers = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < {})"
    server.execute(f"CREATE TABLE {DATABASE}.wide (id BIGINT NOT NULL PRIMARY KEY, note VARCHAR(20), body LONGBLOB)")
    with server.connect(DATABASE) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION cte_max_recursion_depth = {SMALL_ROWS}")
        cursor.execute(f"INSERT INTO wide {numbers.format(SMALL_ROWS)} SELECT i, 'small', NULL FROM n")
        for first in range(0, LARGE_ROWS, 20):
            values = f"SELECT 10000000000 + {first} + i, 'large', REPEAT(CHAR(65 + i), 1048576) FROM n"
            cursor.execute(f"INSERT INTO wide {numbers.format(20)} {values}")


def lag(options: Options) -> None:
    """Measure the lag of the stream while one table is loaded and 500 transactions per second change another one."""
    with rig(options) as bench:
        orders.create(bench.server, "orders", "busy")
        orders.fill(bench.server, "orders", options.rows)
        loaded = threading.Event()
        with bench.job() as job, Watch(job.pid) as watch, ThreadPoolExecutor(1) as pool:
            writing = pool.submit(orders.write_steadily, bench.server, WRITES_PER_S, _upsert, lambda _: loaded.is_set())
            try:
                lags, status = _lags_until_loaded(job)
            finally:
                loaded.set()
            usage = watch.usage()
            _, rate = writing.result()
            bench.wait_caught_up(job, 300)
        rows = bench.prove()
    report(
        "snapshot.delta.lag",
        max(lags),
        "s",
        goal="<= 30",
        data={"rows": rows, "transactions_per_s": round(rate)},
        checked=bench.checked,
        usage=usage,
        p50=round(sorted(lags)[len(lags) // 2], 1),
        rows_per_s=_snapshot_of(status)["rows_per_second"],
    )


def _lags_until_loaded(job: JobProcess) -> tuple[list[float], dict[str, Any]]:
    lags: list[float] = []

    def is_loaded(status: dict[str, Any]) -> bool:
        if status["lag_seconds"] is not None and status["state"] == "RUNNING":
            lags.append(status["lag_seconds"])
        return bool(_snapshot_of(status).get("consistent"))

    return lags, job.wait_for("orders are loaded", is_loaded, 1800)


def _snapshot_of(status: dict[str, Any]) -> dict[str, Any]:
    found = (channel["snapshot"] for channel in status["channels"] if channel["source"] == f"{DATABASE}.orders")
    return next(found, None) or {}


def _upsert(number: int) -> str:
    values = f"({number % 20_000}, 1, 'ORD', 1, 10.5, 'somewhere', NOW(3), NOW(6), 1, NULL)"
    return f"INSERT INTO busy VALUES {values} ON DUPLICATE KEY UPDATE total = total + 1"


CASES = (
    Case("snapshot.delta", delta, Options(10_000_000), 500_000, runs=1),
    Case("snapshot.again", again, Options(10_000_000), 500_000, runs=1),
    Case("snapshot.wide", wide, runs=1),
    Case("snapshot.lag", lag, Options(10_000_000), 500_000, runs=1),
)
