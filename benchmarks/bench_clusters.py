"""End to end into Doris and StarRocks: MySQL, job and a stand-in that throws bodies away, all on one machine.

``python -m benchmarks.bench_clusters [doris] [starrocks] [--rows N]``. The stand-ins read every byte, check no row and
keep none: what is measured is the job.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import orders
from benchmarks.harness import Watch, report
from cdc.demo.process import JobProcess
from cdc.local_servers import LocalServer, free_port, obtain

DATABASE = "bench"
CHANNELS, CHANNEL_ROWS = 100, 100

_JOB = """\
name: bench
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: cdc, password: bench, tls: {{mode: required}},
         start: {{file: {file}, offset: {offset}}}}}
sink: {{type: {sink}, fe: {fe}, sql_port: {sql_port}, username: cdc, password: cdc}}
channels:
  - {{source: bench.*, target: ods.*}}
commit: {{interval: 5s}}
status: {{port: {status}}}
"""


@contextmanager
def _null(sink: str) -> Iterator[dict[str, Any]]:
    """A stand-in in its own process that throws bodies away."""
    command = [sys.executable, "-m", f"tests.servers.{sink}", "--null", "--backends", "2", "--user", "cdc:cdc"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


@contextmanager
def _server(folder: Path) -> Iterator[LocalServer]:
    options = ("--binlog-row-metadata=FULL", "--innodb-buffer-pool-size=512M", "--max-binlog-size=256M")
    with LocalServer.start(obtain("mysql", print), folder / "mysql", options=options) as server:
        server.create_user("cdc", "bench")
        orders.prepare(server, DATABASE)
        yield server


def _position(server: LocalServer) -> tuple[str, int]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        row: Any = cursor.fetchone()
    return str(row[0]), int(row[1])


@contextmanager
def _job(server: LocalServer, folder: Path, start: tuple[str, int], sink: str, cluster: Any) -> Iterator[JobProcess]:
    status = free_port()
    text = _JOB.format(
        port=server.port, file=start[0], offset=start[1], status=status, sink=sink, fe=json.dumps(cluster["fe"]),
        sql_port=cluster["sql_port"],
    )  # fmt: skip
    (folder / "job.yaml").write_text(text)
    with JobProcess(folder / "job.yaml", home=folder / "state", port=status) as job:
        job.start()
        job.wait_for("RUNNING", lambda found: found["state"] == "RUNNING", 300)
        yield job
        job.stop()


def _caught_up(job: JobProcess, server: LocalServer, timeout_s: float) -> dict[str, Any]:
    end = _position(server)

    def reached(status: dict[str, Any]) -> bool:
        position = status["position"]  # null while the job starts
        return position is not None and (position["file"], position["offset"]) >= end and status["lag_seconds"] == 0

    return job.wait_for(f"caught up with {end}", reached, timeout_s)


def catch_up(sink: str, rows: int) -> None:
    """A backlog of inserts, from the first byte read to the last row committed."""
    with (
        tempfile.TemporaryDirectory(prefix="cdc-bench-") as name,
        _server(Path(name)) as server,
        _null(sink) as cluster,
    ):
        folder = Path(name)
        server.execute(f"USE {DATABASE}")
        server.execute(orders.CREATE.format(name=f"{DATABASE}.orders"))
        start = _position(server)
        orders.fill(server, DATABASE, "orders", rows)
        began = time.monotonic()
        with _job(server, folder, start, sink, cluster) as job, Watch(job.pid) as watch:
            running = time.monotonic()
            status = _caught_up(job, server, 1800)
            end = time.monotonic()
            usage = watch.usage()
        loaded = sum(channel["upserts"] for channel in status["channels"])
        if loaded != rows:
            raise SystemExit(f"{loaded} of {rows} rows were loaded")
    data = {"rows": rows, "table": "orders, 10 columns", "transactions": "10,000 rows each"}
    report(
        f"e2e.{sink}.catch_up", rows / (end - running), "rows/s", must=">= 250,000, aim 400,000", data=data,
        with_start_of_the_job=round(rows / (end - began)), seconds=round(end - running, 1),
        cpu_s_per_million=round(usage.cpu_s / rows * 1e6, 1), peak_gib=round(usage.peak_bytes / 2**30, 2),
    )  # fmt: skip


def cycle(sink: str) -> None:
    """Seconds of the checkpoint that loads and commits 100 channels of 100 rows."""
    with (
        tempfile.TemporaryDirectory(prefix="cdc-bench-") as name,
        _server(Path(name)) as server,
        _null(sink) as cluster,
    ):
        tables = [f"t{number}" for number in range(CHANNELS)]
        for table in tables:
            server.execute(orders.CREATE.format(name=f"{DATABASE}.{table}"))
        start = _position(server)
        with _job(server, Path(name), start, sink, cluster) as job:
            times = []
            for number in range(3):  # the first one makes the tables at the target
                for table in tables:
                    orders.fill(server, DATABASE, table, CHANNEL_ROWS, first=number * CHANNEL_ROWS)
                seconds = _caught_up(job, server, 600)["checkpoint"]["seconds"]
                times.append(seconds["prepare"] + seconds["commit"])
    report(
        f"e2e.{sink}.cycle_{CHANNELS}_channels", min(times[1:]), "s", must="<= 3",
        data={"channels": CHANNELS, "rows": CHANNEL_ROWS}, all_s=[round(each, 2) for each in times],
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Run what is named; everything by default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sinks", nargs="*", default=["doris", "starrocks"])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--no-cycle", action="store_true")
    given = parser.parse_args(arguments)
    for sink in given.sinks:
        catch_up(sink, given.rows)
        if not given.no_cycle:
            cycle(sink)


if __name__ == "__main__":
    main()
