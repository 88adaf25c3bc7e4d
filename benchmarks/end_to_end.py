"""Complete jobs: a receiver, Spark and a sink on one machine, with the server. See ``--receiver`` and ``--sink``."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from benchmarks.rig import baselines, orders
from benchmarks.rig.freshness import lags, watched
from benchmarks.rig.jobs import EVERY_SECOND, Rig, rig
from benchmarks.rig.measure import Watch, report
from benchmarks.rig.orders import DATABASE
from benchmarks.rig.suite import Case, Options
from cdc.demo.process import JobProcess
from tests.support.spark_cluster import standalone_cluster

TABLES = [f"t{number:03d}" for number in range(100)]
TABLE_ROWS = 100  # of each table in a cycle
BURST = 20  # transactions
LARGER = 10  # merge_growth compares a table with one that is ten times as large

# the settings of docs/how-to/tune.md
_LOW_LATENCY = "commit: {interval: 500ms, min_rows: 1}"
_THROUGHPUT = "commit: {interval: 30s, max_bytes: 512MiB}\nmemory: {window: 1GiB}"
_SMALL_MACHINE = """\
commit: {max_bytes: 32MiB}
memory: {window: 64MiB, merge: 256MiB}
tasks: {parallel: 2, max_bytes: 8MiB}
spark: {conf: {spark.driver.memory: 512m}}"""

_CATCH_UP_GOALS = {  # by sink, or receiver
    "delta": ">= 200,000, target 300,000; <= 4 GiB, target 2; target 6 CPU s per million",
    "s3": ">= 150,000",
    "null": "reported",
    "files": "reported",
    "canal": ">= 40,000",
}
_CLUSTER_GOAL = ">= 250,000, target 400,000"


def catch_up(options: Options, name: str = "catch_up", goal: str = "", settings: str = "") -> None:
    """Measure a backlog of multi-row inserts, from RUNNING until the last row is committed."""
    goal = goal or _CATCH_UP_GOALS.get(options.figure.split(".")[1], _CLUSTER_GOAL)

    def fill(bench: Rig) -> None:
        orders.fill(bench.server, "orders", options.rows)

    _backlog(options, name, fill, work="10 columns, transactions of 10,000 rows", goal=goal, settings=settings)


def wide(options: Options) -> None:
    """Measure a backlog of rows with 200 columns."""

    def fill(bench: Rig) -> None:
        orders.fill_wide(bench.server, options.rows)

    _backlog(options, "wide", fill, tables=(), work=f"{orders.WIDE_COLUMNS} columns, transactions of 1,000 rows")


def many_tables(options: Options) -> None:
    """Measure a backlog of transactions that change 100 tables in turn, 1,000 rows of one table each."""
    each = options.rows // len(TABLES)

    def fill(bench: Rig) -> None:
        for first in range(0, each, 1000):
            for name in TABLES:
                orders.fill(bench.server, name, min(1000, each - first), first=first)

    work = f"{len(TABLES)} tables of 10 columns in turn, transactions of 1,000 rows"
    _backlog(options, "many_tables", fill, tables=TABLES, work=work)


def single_rows(options: Options) -> None:
    """Measure a backlog of transactions of one row."""

    def fill(bench: Rig) -> None:
        bench.server.execute("SET GLOBAL sync_binlog = 0", "SET GLOBAL innodb_flush_log_at_trx_commit = 0")
        bench.execute(orders.BURST, f"CALL burst(0, {options.rows}, 0, 0)")

    goal = ">= 8,000" if options.receiver == "canal" else "reported"
    _backlog(options, "catch_up_single_rows", fill, work="10 columns, transactions of 1 row", goal=goal)


def large_transaction(options: Options) -> None:
    """Measure one transaction of many inserts; from the binlog into Delta also one that updates all rows."""

    def fill(bench: Rig) -> None:
        orders.fill(bench.server, "orders", options.rows, transaction_rows=options.rows)

    def update(bench: Rig, job: JobProcess) -> dict[str, float]:
        _check_versions(bench.folder, options.rows)
        bench.server.execute(f"UPDATE {DATABASE}.orders SET priority = 9, total = total + 1")
        with Watch(job.pid) as watch:
            bench.wait_caught_up(job, 900)
            return {"updates_gib": round(watch.usage().peak_bytes / 2**30, 2)}

    then = update if (options.receiver, options.sink) == ("binlog", "delta") else None
    _backlog(options, "large_transaction", fill, work="1 transaction", goal="<= 4 GiB", then=then)


def _backlog(
    options: Options, name: str, fill: Callable[[Rig], None], *, work: str, goal: str = "reported", settings: str = "",
    tables: Sequence[str] = ("orders",), then: Callable[[Rig, JobProcess], dict[str, float]] | None = None,
) -> None:  # fmt: skip
    """Measure a job that loads what ``fill`` writes, beside mysql-replication if the sink writes nothing either."""
    if options.receiver == "canal":
        settings = settings or EVERY_SECOND
    with rig(options) as bench:
        orders.create(bench.server, *tables)
        bench.begin()
        fill(bench)
        backlog = bench.drain(settings, then)
        compared = {}
        if options.sink == "null":
            compared = {baselines.NAME: baselines.measure(str(bench.server.socket), bench.start)["rows_per_s"]}
    backlog.report(f"{options.figure}.{name}", goal=goal, work=work, baselines=compared)


def _check_versions(folder: Path, rows: int) -> None:
    """Raise SystemExit if a version of the table has only a part of the transaction."""
    path = folder / "warehouse" / "ods" / "orders"
    counts = set()
    for version in range(len(list((path / "_delta_log").glob("*.json")))):
        reader = QueryBuilder().register("t", DeltaTable(str(path), version=version))
        counts.add(pa.table(reader.execute("SELECT COUNT(*) AS n FROM t").read_all()).column("n")[0].as_py())
    if not counts <= {0, rows}:
        raise SystemExit(f"Half a transaction was visible: {counts} rows.")


def cycle(options: Options, tables: Sequence[str] = TABLES, goal: str = "<= 3, target 1.2") -> None:
    """Measure one commit cycle with 100 changed rows in each channel, from its close to its checkpoint."""
    updates = TABLE_ROWS if options.sink == "delta" else 0  # the emulators of clusters count rows, not keys
    with rig(options) as bench:
        orders.create(bench.server, *tables)
        bench.begin()
        with bench.job(EVERY_SECOND) as job, Watch(job.pid) as watch:
            bench.wait_running(job)
            cycles = []
            for first in range(0, 4 * TABLE_ROWS, TABLE_ROWS):
                orders.fill_together(bench.server, tables, TABLE_ROWS, first=first, updates=updates if first else 0)
                seconds = bench.wait_caught_up(job, 600)["checkpoint"]["seconds"]
                cycles.append(seconds["prepare"] + seconds["commit"] + seconds["save"])
            usage = watch.usage()
        rows = bench.prove()
    value = statistics.median(cycles[1:])  # the first cycle creates the tables and starts the Python workers
    report(
        f"{options.figure}.cycle_{len(tables)}_channels", value, "s", goal=goal, usage=usage,
        data={"channels": len(tables), "rows_each": TABLE_ROWS, "rows": rows}, checked=bench.checked,
        cycles=[round(seconds, 2) for seconds in cycles],
    )  # fmt: skip


def freshness(options: Options, name: str, goal: str, settings: str, seconds: float = 60.0, per_s: int = 2000) -> None:
    """Measure single-row transactions at a steady rate onto a million rows, from source commit to visible."""
    half = BURST // 2  # inserts; the other half are updates of random rows
    with rig(options) as bench:
        orders.create(bench.server, "orders")
        bench.begin()
        orders.fill(bench.server, "orders", options.rows)
        bench.execute(orders.BURST)
        with bench.job(settings) as job:
            bench.wait_caught_up(job, 600)
            with watched(bench.folder / "warehouse/ods/orders") as seen, Watch(job.pid) as watch:
                bursts, reached = orders.write_steadily(
                    bench.server,
                    per_s / BURST,
                    lambda n: f"CALL burst({2 * options.rows + n * BURST}, {half}, {half}, {options.rows})",
                    lambda passed: passed >= seconds,
                )
                bench.wait_caught_up(job, 60)
                usage = watch.usage()
        rows = bench.prove()
    found = lags(bursts, seen)  # the last transaction of a burst is older than the burst's end by the time of a reply
    report(
        f"{options.figure}.{name}", found[int(len(found) * 0.99)], "s", goal=goal, usage=usage,
        rows=len(bursts) * BURST, checked=bench.checked,
        data={"rows": rows, "transactions_per_s": round(reached * BURST), "seconds": seconds},
        p50=round(found[len(found) // 2], 2), worst=round(found[-1], 2),
    )  # fmt: skip


def merge_growth(options: Options) -> None:
    """Measure the commit of 2,000 updates, for recent and for random keys, on a table and on one ten times as large."""
    found: dict[str, dict[int, tuple[float, float]]] = {"recent": {}, "random": {}}
    draw = random.Random(7)
    for rows in (options.rows // LARGER, options.rows):
        with rig(options) as bench:
            orders.create(bench.server, "orders")
            bench.begin()
            orders.fill(bench.server, "orders", rows)
            with bench.job(EVERY_SECOND) as job:
                bench.wait_caught_up(job, 900)
                for kind, results in found.items():
                    keys = range(rows - 20_000 if kind == "recent" else 0, rows)
                    results[rows] = sorted(_merge(bench, job, draw.choices(keys, k=2000)) for _ in range(3))[1]
            bench.prove()
    growth = {kind: results[options.rows][0] / results[options.rows // LARGER][0] for kind, results in found.items()}
    commits = {f"{rows} {kind}": round(at[0], 2) for kind, results in found.items() for rows, at in results.items()}
    report(
        f"{options.figure}.merge_growth", growth["recent"], "ratio", goal="reported, target 1.5 for recent keys",
        data={"rows": [options.rows // LARGER, options.rows], "updates": 2000}, checked="row by row",
        random_keys=round(growth["random"], 2), commit_s=commits,
        random_cpu_s_per_million_of_table=round(found["random"][options.rows][1] / options.rows * 1e6, 2),
    )  # fmt: skip


def _merge(bench: Rig, job: JobProcess, keys: list[int]) -> tuple[float, float]:
    """Update rows; return the seconds of their commit, and the CPU seconds of the job until then."""
    with Watch(job.pid) as watch:
        chosen = ",".join(map(str, keys))
        bench.server.execute(f"UPDATE {DATABASE}.orders SET status = 8 - status WHERE id IN ({chosen})")
        seconds = bench.wait_caught_up(job, 120)["checkpoint"]["seconds"]["commit"]
        return seconds, watch.usage().cpu_s


def standalone(options: Options) -> None:
    """Measure a backlog on a standalone cluster of two workers, and on as many local cores. The starts do not count."""
    found = {}
    for kind in ("local", "cluster"):
        with rig(options) as bench, ExitStack() as stack:
            spark, pids = "'local[2]'", tuple[int, ...]()
            if kind == "cluster":
                cluster = stack.enter_context(standalone_cluster(bench.folder / "spark", memory="1200m"))
                spark, pids = f"'{cluster.url}'", cluster.workers
            conf = "spark.driver.host: 127.0.0.1, spark.driver.bindAddress: 127.0.0.1, spark.executor.memory: 1g"
            orders.create(bench.server, "orders")
            bench.begin()
            orders.fill(bench.server, "orders", options.rows // 10)
            with bench.job(f"spark: {{master: {spark}, conf: {{{conf}}}}}") as job:
                bench.wait_caught_up(job)
                job.command("pause", "bench")
                orders.fill(bench.server, "orders", options.rows, first=options.rows // 10)
                with Watch(job.pid, *pids) as watch:
                    began = time.monotonic()
                    job.command("resume", "bench")
                    bench.wait_caught_up(job)
                    found[kind] = watch.usage(), time.monotonic() - began
            bench.prove()
    (local, local_s), (usage, seconds) = found["local"], found["cluster"]
    report(
        f"{options.figure}.standalone_cluster", usage.cpu_s / local.cpu_s, "times the CPU", goal="<= 1.5, target 1.2",
        usage=usage, rows=options.rows, checked="row by row",
        data={"rows": options.rows, "workers": 2, "compared_with": "local[2]"},
        rows_per_s=round(options.rows / seconds), local_rows_per_s=round(options.rows / local_s),
        local_cpu_s_per_million=round(local.cpu_s / options.rows * 1e6, 2),
    )  # fmt: skip


_MILLION = 1_000_000
_throughput = partial(catch_up, name="throughput", goal="reported", settings=_THROUGHPUT)
_small_machine = partial(catch_up, name="small_machine", goal="<= 1.5 GiB", settings=_SMALL_MACHINE)
_cycle_1000 = partial(cycle, tables=[f"t{number:03d}" for number in range(1000)], goal="<= 10, target 5")
_freshness = partial(freshness, name="freshness_p99", goal="<= 3, target 1.5", settings=EVERY_SECOND)
_low_latency = partial(freshness, name="low_latency_p99", goal="reported", settings=_LOW_LATENCY)
_jobs = partial(Case, has_route=True)
CASES = (
    _jobs("end_to_end.catch_up", catch_up, Options(5 * _MILLION), 500_000),
    _jobs("end_to_end.catch_up", catch_up, Options(5 * _MILLION, sink="s3"), 500_000),
    _jobs("end_to_end.catch_up", catch_up, Options(5 * _MILLION, sink="null"), 500_000),
    _jobs("end_to_end.catch_up", catch_up, Options(4 * _MILLION, "canal"), 500_000),
    _jobs("end_to_end.wide", wide, Options(200_000, sink="null"), 20_000),
    _jobs("end_to_end.many_tables", many_tables, Options(2 * _MILLION, sink="null"), 200_000),
    _jobs("end_to_end.single_rows", single_rows, Options(600_000, "canal"), 60_000, runs=1),
    _jobs("end_to_end.large_transaction", large_transaction, Options(5 * _MILLION), 500_000, runs=1),
    _jobs("end_to_end.large_transaction", large_transaction, Options(_MILLION, "canal"), 100_000, runs=1),
    _jobs("end_to_end.throughput", _throughput, Options(5 * _MILLION), 500_000, runs=1),
    _jobs("end_to_end.small_machine", _small_machine, Options(5 * _MILLION), 500_000, runs=1),
    _jobs("end_to_end.cycle", cycle),
    Case("end_to_end.cycle_1000", _cycle_1000, runs=1),
    Case("end_to_end.standalone", standalone, Options(5 * _MILLION), 500_000, runs=1),
    Case("end_to_end.freshness", _freshness, Options(_MILLION)),
    Case("end_to_end.low_latency", _low_latency, Options(_MILLION), runs=1),
    Case("end_to_end.merge_growth", merge_growth, Options(10 * _MILLION), 1_000_000, runs=1),
)
