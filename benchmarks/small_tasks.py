"""What a few rows cost: the start of a job, the way of ten rows through it, the cost of one small Task.

A loop over mysql-replication that appends rows to a list is faster: it starts no JVM and commits nothing.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from benchmarks.rig import baselines, orders
from benchmarks.rig.jobs import EVERY_SECOND, Rig, rig
from benchmarks.rig.measure import Watch, report, wait_until
from benchmarks.rig.suite import Case, Options
from cdc.model.batch import Changes
from cdc.model.position import BinlogPosition
from channels.channel import Channel
from channels.mapping import Mapping
from channels.sinks.base import SinkCheckpoint
from channels.sinks.delta.sink import DeltaSink
from channels.spark_runner import SparkTaskRunner
from channels.task import RunIdentity
from spark.session import SessionHolder

ROWS, ROUNDS = 10, 5
REST_S = 3.0  # after the last commit, whose files are still being looked after
TABLES, TABLE_ROWS = 100, 100
_RUN = RunIdentity("bench", "0badcafe", 1)
_LOOP = """
import sys, time
from benchmarks.rig.baselines import read_events
rows = []
for _, event in read_events(sys.argv[1], (sys.argv[2], int(sys.argv[3])), blocking=True):
    rows += event.rows
    if len(rows) >= int(sys.argv[4]):
        break
print(time.process_time())
"""


def start(options: Options) -> None:
    """Measure from the start of the process until ten rows are visible."""
    _start(options, "small.start")


def fresh_start(options: Options) -> None:
    """Measure the same with empty caches: kernels are compiled, and Java has no archive of classes."""
    _start(options, "start.fresh_machine", is_fresh=True)


def _start(options: Options, name: str, *, is_fresh: bool = False) -> None:
    with rig(options) as bench:
        orders.create(bench.server, "orders")
        bench.begin()
        if is_fresh:
            os.environ["CDC_CACHE"] = str(bench.folder / "cache")
        orders.fill(bench.server, "orders", ROWS)
        began = time.monotonic()
        with bench.job(EVERY_SECOND) as job:
            with Watch(job.pid) as watch:
                wait_until(lambda: _visible_rows(bench) >= ROWS, 300)
                seconds = time.monotonic() - began
                usage = watch.usage()
            bench.wait_caught_up(job, 60)
        bench.prove()
        began = time.monotonic()
        command = [sys.executable, "-c", _LOOP, str(bench.server.socket), *map(str, bench.start), str(ROWS)]
        loop = subprocess.run(command, check=True, capture_output=True, text=True)
        loop_s = time.monotonic() - began
    report(
        name, seconds, "s", data={"rows": ROWS, "commit interval": "1s"}, checked=bench.checked, usage=usage,
        baselines={baselines.NAME: round(loop_s, 2)}, baseline_cpu_s=round(float(loop.stdout), 2),
    )  # fmt: skip


def latency(options: Options) -> None:
    """Measure from the commit of ten rows until they are visible, for an idle job."""
    with rig(options) as bench:
        orders.create(bench.server, "orders")
        bench.begin()
        with bench.job(EVERY_SECOND) as job:
            orders.fill(bench.server, "orders", ROWS)
            wait_until(lambda: _visible_rows(bench) >= ROWS, 300)
            loop = _Loop(bench)
            loop.start()
            visible, arrived = [], []
            for number in range(1, ROUNDS + 1):
                time.sleep(1.3)  # longer than the interval: the job is idle
                orders.fill(bench.server, "orders", ROWS, first=number * ROWS)
                committed, rows = time.monotonic(), (number + 1) * ROWS
                wait_until(lambda rows=rows: _visible_rows(bench) >= rows, 60, 0.005)  # type: ignore[misc]
                visible.append(time.monotonic() - committed)
                arrived.append(max(0.0, loop.arrivals[number * ROWS - 1] - committed))
            idle = _idle_cpu(job.pid)
            bench.wait_caught_up(job, 60)
        bench.prove()
    report(
        "small.latency", statistics.median(visible), "s", checked=bench.checked,
        data={"rows": ROWS, "commit interval": "1s", "rounds": ROUNDS},
        baselines={baselines.NAME: round(statistics.median(arrived), 3)},
        each=[round(value, 2) for value in visible], idle_cpu_percent=round(idle * 100, 1),
    )  # fmt: skip


def _idle_cpu(pid: int, seconds: float = 30.0) -> float:
    """Return the CPU seconds per second of a job that has nothing to do."""
    time.sleep(REST_S)
    with Watch(pid) as watch:
        time.sleep(seconds)
        return watch.usage().cpu_s / seconds


class _Loop(threading.Thread):
    """Appends the time of arrival of each row to a list, with mysql-replication."""

    def __init__(self, bench: Rig) -> None:
        super().__init__(daemon=True)
        self.arrivals: list[float] = []
        self._events = baselines.read_events(str(bench.server.socket), bench.position(), blocking=True)

    def run(self) -> None:
        for _, event in self._events:
            self.arrivals += [time.monotonic()] * len(event.rows)


def _visible_rows(bench: Rig) -> int:
    try:
        actions = DeltaTable(str(bench.folder / "warehouse/ods/orders")).get_add_actions(flatten=True)
    except TableNotFoundError:
        return 0
    return sum(pa.table(actions).column("num_records").to_pylist())


def tasks(_: Options) -> None:
    """Measure Tasks without a source: 100 channels with 100 rows each into Delta, updates after the first cycle."""
    sessions = SessionHolder("bench", conf={})
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder, Watch(os.getpid()) as watch:
        sink = DeltaSink(Path(folder) / "warehouse")
        sink.identity(create=True)
        runner = SparkTaskRunner(sessions, sink)
        schemas = [replace(orders.SCHEMA, table=f"t{number}") for number in range(TABLES)]
        channels = [Channel(Mapping(each.name, f"ods.{each.table}"), each) for each in schemas]
        for channel in channels:
            sink.ensure_table(channel.target)
        prepares, commits, cpu = [], [], []
        for checkpoint in range(1, ROUNDS + 1):
            rows = orders.arrow_rows(TABLE_ROWS, sequence=checkpoint * TABLE_ROWS)
            before, began = watch.usage().cpu_s, time.perf_counter()
            for channel, schema in zip(channels, schemas, strict=True):
                channel.add(Changes(schema, rows))
            ready = [task for channel in channels if (task := channel.task_for(_RUN, checkpoint))]
            loads = [load for future in runner.submit(ready) for load in future.result()]
            prepares.append(time.perf_counter() - began)
            sink.commit(loads, _mark(checkpoint))
            commits.append(time.perf_counter() - began - prepares[-1])
            cpu.append(watch.usage().cpu_s - before)
            if sum(load.rows for load in loads) != TABLES * TABLE_ROWS:
                raise SystemExit(f"{TABLES * TABLE_ROWS} rows were added, but loads have others: {loads}")
        sink.close()
    sessions.close()
    medians = [statistics.median(each[1:]) for each in (prepares, commits, cpu)]  # the first cycle starts Spark
    report(
        f"small.tasks_{TABLES}_channels", medians[0] + medians[1], "s",
        data={"channels": TABLES, "rows_each": TABLE_ROWS}, checked="rows of all loads",
        prepare_s=round(medians[0], 3), commit_s=round(medians[1], 3), cpu_s=round(medians[2], 2),
    )  # fmt: skip


def _mark(checkpoint: int) -> SinkCheckpoint:
    first, last = BinlogPosition("b.1", 4), BinlogPosition("b.1", 9)
    return SinkCheckpoint(_RUN.job, _RUN.incarnation, _RUN.fence, checkpoint, first, last, checkpoint)


CASES = (
    Case("small_tasks.start", start),
    Case("small_tasks.fresh_start", fresh_start, runs=1),
    Case("small_tasks.latency", latency),
    Case("small_tasks.tasks", tasks),
)
