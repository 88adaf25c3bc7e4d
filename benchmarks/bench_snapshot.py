"""The snapshot: a table that is there already, MySQL to Delta. ``python -m benchmarks.bench_snapshot [NAME ...]``."""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import orders
from benchmarks.harness import Watch, report
from benchmarks.rig import BY_ROW, DATABASE, prove
from cdc.demo.process import JobProcess
from cdc.local_servers import LocalServer, free_port, obtain

WRITES_PER_S = 500

_JOB = """\
name: bench
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: cdc, password: bench, tls: {{mode: required}},
         start: snapshot}}
sink: {{type: delta, path: ./warehouse, create_tables: true}}
channels:
  - {{source: bench.*, target: ods.*}}
status: {{port: {status}}}
"""


@contextmanager
def _server() -> Iterator[tuple[LocalServer, Path]]:
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
        options = ("--binlog-row-metadata=FULL", "--innodb-buffer-pool-size=1G", "--max-binlog-size=256M")
        with LocalServer.start(obtain("mysql", print), Path(name) / "mysql", options=options) as server:
            server.create_user("cdc", "bench")
            orders.prepare(server, DATABASE)
            yield server, Path(name)


@contextmanager
def _job(server: LocalServer, folder: Path) -> Iterator[JobProcess]:
    status = free_port()
    (folder / "job.yaml").write_text(_JOB.format(port=server.port, status=status))
    with JobProcess(folder / "job.yaml", home=folder / "state", port=status) as job:
        job.start()
        yield job
        if os.environ.get("CDC_BENCH_LOG"):
            print(job.log.read_text())
        job.stop()


def _tables(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {channel["source"]: channel["snapshot"] for channel in status["channels"] if channel["snapshot"]}


def _loaded(job: JobProcess, names: list[str], timeout_s: float = 1800) -> dict[str, Any]:
    def is_loaded(status: dict[str, Any]) -> bool:
        found = _tables(status)
        return all(name in found and found[name]["consistent"] for name in names)

    return job.wait_for(f"{names} are loaded", is_loaded, timeout_s)


def delta(rows: int) -> None:
    """Ten columns, from RUNNING to the last row visible."""
    with _server() as (server, folder):
        server.execute(orders.CREATE.format(name=f"{DATABASE}.orders"))
        orders.fill(server, DATABASE, "orders", rows)
        begin = time.monotonic()
        with _job(server, folder) as job, Watch(job.pid) as watch:
            job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 180)
            running = time.monotonic()
            status = _loaded(job, [f"{DATABASE}.orders"])
            end = time.monotonic()
            usage = watch.usage()
        rows = prove(server, folder, "orders")
    data = {"rows": rows, "table": "orders, 10 columns"}
    report(
        "snapshot.delta",
        rows / (end - running),
        "rows/s",
        must=">= 150,000, aim 300,000",
        data=data,
        checked=BY_ROW,
        usage=usage,
        rows=rows,
        with_start_of_the_job=round(rows / (end - begin)),
        seconds=round(end - running, 1),
        chunks=_tables(status)[f"{DATABASE}.orders"]["chunks"],
    )
    cpu = usage.cpu_s / rows * 1e6
    report("snapshot.delta.cpu_per_million", cpu, "CPU s", must="reported", data=data, checked=BY_ROW)
    report("snapshot.delta.peak_memory", usage.peak_bytes / 2**30, "GiB", must="<= 4", data=data, checked=BY_ROW)


def wide(_: int) -> None:
    """A skewed table: 2,000 rows of 1 MiB behind a million small ones."""
    with _server() as (server, folder):
        server.execute(
            f"CREATE TABLE {DATABASE}.wide (id BIGINT NOT NULL PRIMARY KEY, note VARCHAR(20), body LONGBLOB)",
        )
        connection = server.connect(DATABASE)
        with connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION cte_max_recursion_depth = 2000000")
            cursor.execute(
                "INSERT INTO wide WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) "
                "SELECT i, 'small', NULL FROM n"
            )
            for first in range(0, 2000, 20):
                cursor.execute(
                    "INSERT INTO wide WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 20) "
                    "SELECT 10000000000 + %s + i, 'large', REPEAT(CHAR(65 + i), 1048576) FROM n",
                    (first,),
                )
            connection.commit()
        with _job(server, folder) as job, Watch(job.pid) as watch:
            _loaded(job, [f"{DATABASE}.wide"])
            usage = watch.usage()
        rows = prove(server, folder, "wide")
    report(
        "snapshot.delta.wide_peak_memory",
        usage.peak_bytes / 2**30,
        "GiB",
        must="<= 4",
        data={"rows": rows, "wide": 2000},
        checked=BY_ROW,
        usage=usage,
        rows=rows,
    )


def lag(rows: int) -> None:
    """Stream lag while a table is loaded and 500 transactions a second change another."""
    with _server() as (server, folder):
        for name in ("orders", "busy"):
            server.execute(orders.CREATE.format(name=f"{DATABASE}.{name}"))
        orders.fill(server, DATABASE, "orders", rows)
        stop = threading.Event()
        rates: list[float] = []
        writer = threading.Thread(target=_write, args=(server, stop, rates), daemon=True)
        lags: list[float] = []
        with _job(server, folder) as job, Watch(job.pid) as watch:
            writer.start()

            def is_loaded(status: dict[str, Any]) -> bool:
                if status["lag_seconds"] is not None and status["state"] == "RUNNING":
                    lags.append(status["lag_seconds"])
                one = _tables(status).get(f"{DATABASE}.orders")
                return bool(one and one["consistent"])

            status = job.wait_for("orders are loaded", is_loaded, 1800)
            usage = watch.usage()
            stop.set()
            writer.join()
            _caught_up(job, server)
        rows = sum(prove(server, folder, name) for name in ("orders", "busy"))
    if rates[0] < 0.95 * WRITES_PER_S:
        raise SystemExit(f"only {rates[0]:.0f} of {WRITES_PER_S} transactions a second were written: no figure")
    lags.sort()
    report(
        "snapshot.delta.lag",
        lags[-1],
        "s",
        must="<= 30",
        data={"rows": rows, "transactions_per_s": round(rates[0])},
        checked=BY_ROW,
        usage=usage,
        p50=round(lags[len(lags) // 2], 1),
        rows_per_second=_tables(status)[f"{DATABASE}.orders"]["rows_per_second"],
    )


def _write(server: LocalServer, stop: threading.Event, rates: list[float]) -> None:
    """Change rows of a table at a steady rate; how many a second were reached goes to ``rates``."""
    connection = server.connect(DATABASE)
    with connection, connection.cursor() as cursor:
        begin, done = time.monotonic(), 0
        while not stop.is_set():
            time.sleep(max(0.0, begin + done / WRITES_PER_S - time.monotonic()))
            cursor.execute(
                "INSERT INTO busy VALUES (%s, 1, 'ORD', 1, 10.5, 'somewhere', NOW(3), NOW(6), 1, NULL) "
                "ON DUPLICATE KEY UPDATE total = total + 1",
                (done % 20_000,),
            )
            connection.commit()
            done += 1
        rates.append(done / (time.monotonic() - begin))


def _caught_up(job: JobProcess, server: LocalServer) -> None:
    connection = server.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        row: Any = cursor.fetchone()

    def reached(status: dict[str, Any]) -> bool:
        position = status["position"]
        return bool(position) and (position["file"], position["offset"]) >= (row[0], row[1])

    job.wait_for("caught up", reached, 300)


BENCHMARKS: dict[str, Callable[[int], None]] = {"delta": delta, "wide": wide, "lag": lag}


def main(arguments: list[str] | None = None) -> None:
    """Run what is named; everything by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the table of orders")
    given = parser.parse_args(arguments)
    for name in given.names or BENCHMARKS:
        BENCHMARKS[name](given.rows)


if __name__ == "__main__":
    main()
