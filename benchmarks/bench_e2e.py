"""End to end: MySQL to Delta, server and job on the same machine. ``python -m benchmarks.bench_e2e [NAME ...]``."""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from benchmarks import orders, rig
from benchmarks.harness import Watch, report
from benchmarks.rig import DATABASE
from cdc.demo.process import JobProcess
from cdc.local_servers import LocalServer

_SINK = "type: delta, path: ./warehouse, create_tables: true"


# what docs/operations.md advises, word for word
_LOW_LATENCY = "commit: {interval: 500ms, min_rows: 1}"
_THROUGHPUT = "commit: {interval: 30s, max_bytes: 512MiB}\nmemory: {window: 1GiB}"
_SMALL_MACHINE = """\
commit: {max_bytes: 32MiB}
memory: {window: 64MiB, merge: 256MiB}
tasks: {parallel: 2, max_bytes: 8MiB}
spark: {conf: {spark.driver.memory: 512m}}"""


def _backlog(rows: int, settings: str = "") -> tuple[rig.Run, int]:
    """A job takes a backlog of inserts, from the first byte read to the last row visible; and how many rows it was."""
    with rig.source() as (server, folder):
        server.execute(orders.CREATE.format(name=f"{DATABASE}.orders"))
        start = rig.position(server)
        orders.fill(server, DATABASE, "orders", rows)
        with rig.job(server, folder, start, _SINK, settings=settings) as job:
            run = rig.drained(job, server)
        return run, rig.prove(server, folder, "orders")


def catch_up(rows: int) -> None:
    """A backlog, with the settings that a job has by itself."""
    run, rows = _backlog(rows)
    data = {"rows": rows, "table": "orders, 10 columns", "transactions": "10,000 rows each"}
    report(
        "e2e.delta.catch_up",
        rows / run.seconds,
        "rows/s",
        must=">= 200,000, aim 300,000",
        data=data,
        checked=rig.BY_ROW,
        usage=run.usage,
        rows=rows,
        with_start_of_the_job=round(rows / (run.start_s + run.seconds)),
        seconds=round(run.seconds, 1),
    )
    cpu = run.usage.cpu_s / rows * 1e6
    report("e2e.delta.cpu_per_million", cpu, "CPU s", must="reported, aim 6", data=data, checked=rig.BY_ROW)
    gib = run.usage.peak_bytes / 2**30
    report("e2e.delta.peak_memory", gib, "GiB", must="<= 4, aim 2", data=data, checked=rig.BY_ROW)


def throughput(rows: int) -> None:
    """The same with the settings for throughput."""
    run, rows = _backlog(rows, _THROUGHPUT)
    report(
        "e2e.delta.throughput", rows / run.seconds, "rows/s", must="reported", data={"rows": rows},
        checked=rig.BY_ROW, usage=run.usage, rows=rows,
    )  # fmt: skip


def small_machine(rows: int) -> None:
    """The same with the settings for a machine of 2 GiB."""
    run, rows = _backlog(rows, _SMALL_MACHINE)
    report(
        "e2e.delta.small_machine_peak_memory", run.usage.peak_bytes / 2**30, "GiB", must="<= 1.5", data={"rows": rows},
        checked=rig.BY_ROW, usage=run.usage, rows=rows, rows_per_s=round(rows / run.seconds),
    )  # fmt: skip


def big_transaction(rows: int) -> None:
    """One transaction of 5 million inserts, then one that updates them all: memory, and visible at once."""
    with rig.source() as (server, folder):
        server.execute(orders.CREATE.format(name=f"{DATABASE}.orders"))
        start = rig.position(server)
        orders.fill(server, DATABASE, "orders", rows, transaction_rows=rows)
        with rig.job(server, folder, start, _SINK) as job:
            job.start()
            with Watch(job.pid) as watch:
                rig.running(job)
                rig.caught_up(job, server, 900)
                inserts = watch.usage().peak_bytes
            log = folder / "warehouse" / "ods" / "orders" / "_delta_log"
            counts = {_rows(folder, "orders", version) for version in range(len(list(log.glob("*.json"))))}
            if not counts <= {0, rows}:
                raise SystemExit(f"half a transaction was visible: {counts}")
            server.execute(f"UPDATE {DATABASE}.orders SET priority = 9, total = total + 1")
            with Watch(job.pid) as watch:
                rig.caught_up(job, server, 900)
                updates = watch.usage().peak_bytes
        rows = rig.prove(server, folder, "orders")
    report(
        "e2e.delta.big_transaction_peak_memory",
        inserts / 2**30,
        "GiB",
        must="<= 4, aim as for small ones",
        data={"rows": rows, "transactions": 1},
        checked=f"{rig.BY_ROW}; every version of the table",
        updates_gib=round(updates / 2**30, 2),
    )


def _rows(folder: Path, table: str, version: int) -> int:
    delta = DeltaTable(str(folder / "warehouse" / "ods" / table), version=version)
    actions = delta.get_add_actions(flatten=True)
    return sum(pa.table(actions).column("num_records").to_pylist())


def cycle_100_channels(_: int) -> None:
    """100 tables of 100 changed rows each: what one cycle takes once it has closed."""
    with rig.source() as (server, folder):
        names = [f"t{number:03d}" for number in range(100)]
        for name in names:
            server.execute(orders.CREATE.format(name=f"{DATABASE}.{name}"))
        start = rig.position(server)
        with rig.job(server, folder, start, _SINK, settings=rig.EVERY_SECOND) as job:
            job.start()
            with Watch(job.pid) as watch:
                rig.running(job)
                cycles = [_cycle(server, job, names, first) for first in (0, 100, 200, 300)]
                usage = watch.usage()
        rows = sum(rig.prove(server, folder, name) for name in names)
    # the first cycle creates the tables and starts the Python workers
    value = sorted(cycles[1:])[len(cycles[1:]) // 2]
    report(
        "e2e.delta.cycle_100_channels",
        value,
        "s",
        must="<= 3, aim 1.2",
        data={"channels": 100, "rows_each": 100, "rows": rows},
        checked=rig.BY_ROW,
        usage=usage,
        cycles=[round(cycle, 2) for cycle in cycles],
    )


def _cycle(server: LocalServer, job: JobProcess, names: list[str], first: int) -> float:
    """One transaction over all tables; seconds of its checkpoint behind its close."""
    connection = server.connect(DATABASE)
    with connection, connection.cursor() as cursor:
        connection.begin()
        for name in names:
            cursor.execute(orders._ROWS.format(name=name, first=first, count=100))
            if first:
                cursor.execute(f"UPDATE {name} SET status = 9 WHERE id < {first} AND id % 2 = 0 LIMIT 100")
        connection.commit()
    seconds = rig.caught_up(job, server, 120)["checkpoint"]["seconds"]
    return float(seconds["prepare"] + seconds["commit"] + seconds["save"])


_BURST = """
CREATE PROCEDURE burst(first BIGINT, inserts INT, updates INT, top BIGINT)
BEGIN
  DECLARE n INT DEFAULT 0;
  DECLARE chosen BIGINT;
  WHILE n < inserts DO
    INSERT INTO orders VALUES (first + n, n, 'ORD', 1, 10.5, 'somewhere', NOW(3), NOW(6), 1, NULL);
    SET n = n + 1;
  END WHILE;
  SET n = 0;
  WHILE n < updates DO
    SET chosen = FLOOR(RAND() * top); -- in the condition it would be drawn anew for every row of a scan
    UPDATE orders SET total = total + 1, changed_at = NOW(6) WHERE id = chosen;
    SET n = n + 1;
  END WHILE;
END"""


def freshness(_: int) -> None:
    """Single-row transactions at a steady rate onto a million rows: from source commit to visible."""
    _freshness("e2e.delta.freshness_p99", "<= 3, aim 1.5", rig.EVERY_SECOND)


def low_latency(_: int) -> None:
    """The same with the settings for low latency."""
    _freshness("e2e.delta.low_latency_p99", "reported", _LOW_LATENCY)


def _freshness(name: str, must: str, settings: str, seconds: float = 60.0, per_s: int = 2000) -> None:
    with rig.source() as (server, folder):
        server.execute(orders.CREATE.format(name=f"{DATABASE}.orders"))
        connection = server.connect(DATABASE)
        with connection, connection.cursor() as cursor:
            cursor.execute(_BURST)
        start = rig.position(server)
        orders.fill(server, DATABASE, "orders", 1_000_000)
        with rig.job(server, folder, start, _SINK, settings=settings) as job:
            job.start()
            rig.running(job)
            rig.caught_up(job, server, 300)
            seen: list[tuple[float, float]] = []  # visible at, newest commit visible
            stop = threading.Event()
            watcher = threading.Thread(target=_visible, args=(folder / "warehouse/ods/orders", seen, stop), daemon=True)
            watcher.start()
            with Watch(job.pid) as watch:
                bursts, took = _write_steadily(server, seconds, per_s)
                rig.caught_up(job, server, 60)
                usage = watch.usage()
            time.sleep(0.5)
            stop.set()
            watcher.join()
        rows = rig.prove(server, folder, "orders")
    lags = sorted(_lags(bursts, seen))
    reached = len(bursts) * 20 / took
    if reached < 0.95 * per_s:
        raise SystemExit(
            f"only {reached:,.0f} of {per_s:,} transactions a second were written: the figure means nothing"
        )
    report(
        name,
        lags[int(len(lags) * 0.99)],
        "s",
        must=must,
        data={"rows": rows, "transactions_per_s": round(reached), "seconds": round(took, 1)},
        checked=rig.BY_ROW,
        usage=usage,
        rows=len(bursts) * 20,
        p50=round(lags[len(lags) // 2], 2),
        worst=round(lags[-1], 2),
    )


def _write_steadily(server: LocalServer, seconds: float, per_s: int) -> tuple[list[float], float]:
    """Bursts of 20 transactions, half inserts, half updates of random rows, as many as ``seconds`` want.

    Gives each burst's end, by the clock, and the seconds that all of them took.
    """
    bursts: list[float] = []
    connection = server.connect(DATABASE)
    with connection, connection.cursor() as cursor:
        begin = time.monotonic()
        first = 2_000_000
        while (due := begin + len(bursts) * 20 / per_s) < begin + seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            cursor.execute("CALL burst(%s, 10, 10, 1000000)", (first,))
            first += 10
            bursts.append(time.time())
        return bursts, time.monotonic() - begin


def _visible(path: Path, seen: list[tuple[float, float]], stop: threading.Event) -> None:
    table = DeltaTable(str(path))
    while not stop.is_set():
        version = table.version()
        table.update_incremental()
        if table.version() != version:
            now = time.time()
            actions = table.get_add_actions(flatten=True)
            newest = max(filter(None, pa.table(actions).column("max.changed_at").to_pylist()))
            seen.append((now, newest.timestamp()))
        stop.wait(0.02)


def _lags(bursts: list[float], seen: list[tuple[float, float]]) -> Iterator[float]:
    for burst in bursts:
        # a burst's last transaction is as old as its end, but for the answer's way back
        yield next(at for at, newest in seen if newest >= burst - 0.005) - burst


def merge_growth(_: int) -> None:
    """Commit time of 2,000 updates on 10 million rows to that on 1 million: recent keys, random keys."""
    seconds: dict[tuple[int, str], float] = {}
    draw = random.Random(7)
    for rows in (1_000_000, 10_000_000):
        with rig.source() as (server, folder):
            server.execute(orders.CREATE.format(name=f"{DATABASE}.orders"))
            start = rig.position(server)
            orders.fill(server, DATABASE, "orders", rows)
            with rig.job(server, folder, start, _SINK, settings=rig.EVERY_SECOND) as job:
                job.start()
                rig.running(job)
                rig.caught_up(job, server, 900)
                for kind in ("recent", "random"):
                    low = rows - 20_000 if kind == "recent" else 0
                    runs = []
                    for _ in range(3):
                        keys = ",".join(str(draw.randrange(low, rows)) for _ in range(2000))
                        server.execute(f"UPDATE {DATABASE}.orders SET status = 8 - status WHERE id IN ({keys})")
                        runs.append(rig.caught_up(job, server, 120)["checkpoint"]["seconds"]["commit"])
                    seconds[rows, kind] = sorted(runs)[1]
            rig.prove(server, folder, "orders")
    growth = {kind: seconds[10_000_000, kind] / seconds[1_000_000, kind] for kind in ("recent", "random")}
    report(
        "e2e.delta.merge_growth",
        growth["recent"],
        "ratio",
        must="reported, aim 1.5 for recent keys",
        data={"rows": [1_000_000, 10_000_000], "updates": 2000},
        checked=rig.BY_ROW,
        random_keys=round(growth["random"], 2),
        seconds={f"{rows} {kind}": round(value, 2) for (rows, kind), value in seconds.items()},
    )


BENCHMARKS: dict[str, Callable[[int], None]] = {
    "catch_up": catch_up,
    "throughput": throughput,
    "small_machine": small_machine,
    "freshness": freshness,
    "low_latency": low_latency,
    "cycle_100_channels": cycle_100_channels,
    "big_transaction": big_transaction,
    "merge_growth": merge_growth,
}


def main(arguments: list[str] | None = None) -> None:
    """Run what is named; everything by default."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--rows", type=int, default=5_000_000, help="of a backlog, or of a large transaction")
    given = parser.parse_args(arguments)
    for name in given.names or BENCHMARKS:
        BENCHMARKS[name](given.rows)


if __name__ == "__main__":
    main()
