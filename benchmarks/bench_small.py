"""Ten rows: where a plain Python loop wins. ``python -m benchmarks.bench_small [NAME ...]``.

A job has a JVM to start and a cycle to close; a loop over mysql-replication that appends to a list has neither, and
keeps nothing either.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from benchmarks import orders, rig
from benchmarks.baselines import rows_of_mysql_replication
from benchmarks.harness import Watch, report, wait_until
from cdc.binlog.connection import Endpoint, ReaderIdentity, Tls
from cdc.binlog.server import Server
from cdc.local_servers import LocalServer
from cdc.receiver.start import resolve_start

ROWS, ROUNDS = 10, 5
LARGE_ROWS = 20_000
_SINK = "type: delta, path: ./warehouse, create_tables: true"
_LOOP = """
import sys, time
from benchmarks.baselines import rows_of_mysql_replication
class Server: host, port = "127.0.0.1", int(sys.argv[1])
rows = []
for event in rows_of_mysql_replication(Server, (sys.argv[2], int(sys.argv[3])), blocking=True):
    rows += event.rows
    if len(rows) >= int(sys.argv[4]):
        break
times = time.process_time()
print(times)
"""


def start() -> None:
    """From the start of the process to ten rows visible."""
    with rig.source() as (server, folder):
        server.execute(orders.CREATE.format(name=f"{rig.DATABASE}.orders"))
        before = rig.position(server)
        orders.fill(server, rig.DATABASE, "orders", ROWS)
        with rig.job(server, folder, before, _SINK, settings=rig.EVERY_SECOND) as job:
            began = time.monotonic()
            job.start()
            with Watch(job.pid) as watch:
                wait_until(lambda: _visible(folder) >= ROWS, 300)
                seconds = time.monotonic() - began
                usage = watch.usage()
            rig.caught_up(job, server, 60)
        rig.prove(server, folder, "orders")
        began = time.monotonic()
        command = [sys.executable, "-c", _LOOP, str(server.port), before[0], str(before[1]), str(ROWS)]
        loop = subprocess.run(command, check=True, capture_output=True, text=True)
        loop_s = time.monotonic() - began
    report(
        "small.start",
        seconds,
        "s",
        must="reported: a plain loop is quicker",
        data={"rows": ROWS, "commit interval": "1s"},
        baselines={"mysql-replication into a list": round(loop_s, 2)},
        usage=usage,
        checked=rig.BY_ROW,
        baseline_cpu_s=round(float(loop.stdout), 2),
    )


def latency() -> None:
    """From the commit of ten changed rows to the moment at which a reader can see them; the job was at rest before."""
    with rig.source() as (server, folder):
        server.execute(orders.CREATE.format(name=f"{rig.DATABASE}.orders"))
        before = rig.position(server)
        with rig.job(server, folder, before, _SINK, settings=rig.EVERY_SECOND) as job:
            job.start()
            orders.fill(server, rig.DATABASE, "orders", ROWS)
            wait_until(lambda: _visible(folder) >= ROWS, 300)
            loop = _Loop(server)
            loop.start()
            ours, theirs = [], []
            for number in range(1, ROUNDS + 1):
                time.sleep(1.3)  # the job is at rest
                orders.fill(server, rig.DATABASE, "orders", ROWS, first=number * ROWS)
                committed, rows = time.monotonic(), (number + 1) * ROWS
                wait_until(lambda rows=rows: _visible(folder) >= rows, 60, 0.005)
                ours.append(time.monotonic() - committed)
                theirs.append(max(0.0, loop.arrivals[number * ROWS - 1] - committed))
            idle = _idle_cpu(job.pid)
            rig.caught_up(job, server, 60)
        rig.prove(server, folder, "orders")
    report(
        "small.latency",
        statistics.median(ours),
        "s",
        must="reported: a plain loop is quicker",
        data={"rows": ROWS, "commit interval": "1s", "rounds": ROUNDS},
        baselines={"mysql-replication into a list": round(statistics.median(theirs), 3)},
        each=[round(value, 2) for value in ours],
        idle_cpu_percent=round(idle * 100, 1),
        checked=rig.BY_ROW,
    )


def start_in_head() -> None:
    """From `start: {file, offset}` between a file's head and its first, large transaction to a resolved start."""
    with rig.source() as (server, _):
        server.execute(orders.CREATE.format(name=f"{rig.DATABASE}.orders"), "FLUSH BINARY LOGS")
        file, offset = rig.position(server)
        orders.fill(server, rig.DATABASE, "orders", LARGE_ROWS)
        endpoint = Endpoint(server.host, server.port, "cdc", "bench", Tls("required"))
        with Server(endpoint) as asked:
            began, cpu = time.monotonic(), time.process_time()
            found = resolve_start(asked, {"file": file, "offset": offset}, ReaderIdentity.of("bench", "0", "local"))
            seconds, cpu = time.monotonic() - began, time.process_time() - cpu
            bytes_after = asked.position().offset - offset
    report(
        "small.start_in_head",
        seconds,
        "s",
        must="<= 1 s, whatever the size of the first transaction",
        data={"rows": LARGE_ROWS, "bytes after the start": bytes_after},
        checked="the position resolved is the one asked for" if (found.file, found.offset) == (file, offset) else "",
        cpu_s=round(cpu, 3),
    )


def _idle_cpu(pid: int, seconds: float = 10.0) -> float:
    """CPU seconds a second of a job that has nothing to do."""
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    before = sum(sum(process.cpu_times()[:2]) for process in family)
    time.sleep(seconds)
    return (sum(sum(process.cpu_times()[:2]) for process in family) - before) / seconds


class _Loop(threading.Thread):
    """The plain loop: each row into a list, with its moment."""

    def __init__(self, server: LocalServer) -> None:
        super().__init__(daemon=True)
        self.arrivals: list[float] = []
        self._server, self._from = server, rig.position(server)

    def run(self) -> None:
        for event in rows_of_mysql_replication(self._server, self._from, blocking=True):
            self.arrivals += [time.monotonic()] * len(event.rows)


def _visible(folder: Path) -> int:
    try:
        actions = DeltaTable(str(folder / "warehouse/ods/orders")).get_add_actions(flatten=True)
    except TableNotFoundError:
        return 0
    return sum(pa.table(actions).column("num_records").to_pylist())


BENCHMARKS: dict[str, Callable[[], None]] = {"start": start, "latency": latency, "start_in_head": start_in_head}


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all."""
    for name in names or BENCHMARKS:
        BENCHMARKS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
