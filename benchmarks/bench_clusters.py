"""End to end into Doris and StarRocks: MySQL, job and a stand-in that throws bodies away, all on one machine.

``python -m benchmarks.bench_clusters [doris] [starrocks] [starrocks-single] [--rows N]``. The stand-ins read
every byte, check no row and keep none: what is measured is the job.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests

from benchmarks import orders, rig
from benchmarks.harness import Watch, report

CHANNELS, CHANNEL_ROWS = 100, 100
CHECKED = "rows of all committed loads counted by the stand-in"


@contextmanager
def _null(sink: str) -> Iterator[dict[str, Any]]:
    """A stand-in in its own process that throws bodies away."""
    command = [sys.executable, "-m", f"tests.servers.{_kind(sink)}", "--null", "--backends", "2", "--user", "cdc:cdc"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def _kind(sink: str) -> str:
    return sink.partition("-")[0]


def _sink(sink: str, cluster: Any) -> str:
    mode = "multi_table: 'off', " if sink.endswith("-single") else ""
    place = f"fe: {json.dumps(cluster['fe'])}, sql_port: {cluster['sql_port']}, "
    return f"type: {_kind(sink)}, {mode}{place}username: cdc, password: cdc"


def catch_up(sink: str, rows: int) -> None:
    """A backlog of inserts, from the first byte read to the last row committed."""
    with rig.source() as (server, folder), _null(sink) as cluster:
        server.execute(orders.CREATE.format(name=f"{rig.DATABASE}.orders"))
        start = rig.position(server)
        orders.fill(server, rig.DATABASE, "orders", rows)
        with rig.job(server, folder, start, _sink(sink, cluster)) as job:
            run = rig.drained(job, server)
        prove(cluster, rows)
    data = {"rows": rows, "table": "orders, 10 columns", "transactions": "10,000 rows each"}
    report(
        f"e2e.{sink}.catch_up", rows / run.seconds, "rows/s", must=">= 250,000, aim 400,000", data=data,
        with_start_of_the_job=round(rows / (run.seconds + run.start_s)), seconds=round(run.seconds, 1),
        usage=run.usage, rows=rows, checked=CHECKED,
    )  # fmt: skip


def prove(cluster: Any, rows: int) -> None:
    """Count the rows of the loads that were committed there. Raises: SystemExit - there are fewer or more."""
    history = requests.post(f"http://{cluster['fe'][0]}/__control", json={"do": "history"}, timeout=60).json()
    committed = (load for load in history if load["status"] in ("VISIBLE", "COMMITTED"))
    loaded = sum(load["rows"] for load in committed if not load["table"].endswith("._cdc_checkpoints"))
    if loaded != rows:
        raise SystemExit(f"{rows} rows were written, {loaded} loaded")


def cycle(sink: str) -> None:
    """Seconds of the checkpoint that loads and commits 100 channels of 100 rows."""
    with rig.source() as (server, folder), _null(sink) as cluster:
        tables = [f"t{number}" for number in range(CHANNELS)]
        for table in tables:
            server.execute(orders.CREATE.format(name=f"{rig.DATABASE}.{table}"))
        start = rig.position(server)
        with rig.job(server, folder, start, _sink(sink, cluster)) as job:
            job.start()
            with Watch(job.pid) as watch:
                rig.running(job)
                times = []
                for number in range(3):  # the first one makes the tables at the target
                    orders.fill_together(server, rig.DATABASE, tables, CHANNEL_ROWS, first=number * CHANNEL_ROWS)
                    seconds = rig.caught_up(job, server, 600)["checkpoint"]["seconds"]
                    times.append(seconds["prepare"] + seconds["commit"])
                usage = watch.usage()
        prove(cluster, 3 * CHANNELS * CHANNEL_ROWS)
    report(
        f"e2e.{sink}.cycle_{CHANNELS}_channels", max(times[1:]), "s", must="<= 3",
        data={"channels": CHANNELS, "rows": CHANNEL_ROWS}, all_s=[round(each, 2) for each in times],
        usage=usage, checked=CHECKED,
    )  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Run what is named; everything by default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sinks", nargs="*", default=["doris", "starrocks", "starrocks-single"])
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--no-cycle", action="store_true")
    given = parser.parse_args(arguments)
    for sink in given.sinks:
        catch_up(sink, given.rows)
        if not given.no_cycle:
            cycle(sink)


if __name__ == "__main__":
    main()
