"""End to end: MySQL to Delta, server and job on the same machine. ``python -m benchmarks.bench_e2e [NAME ...]``."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from benchmarks import orders, rig
from benchmarks.harness import Watch, report
from benchmarks.rig import DATABASE
from cdc.local_servers import LocalServer

BACKLOG_ROWS = 5_000_000

_SINK = "type: delta, path: ./warehouse, create_tables: true"


def catch_up() -> None:
    """A backlog of inserts, from the first byte read to the last row visible."""
    with rig.source() as (server, folder):
        server.execute(f"USE {DATABASE}")
        server.execute(orders.CREATE.format(name=f"{DATABASE}.orders"))
        start = rig.position(server)
        orders.fill(server, DATABASE, "orders", BACKLOG_ROWS)
        with rig.job(server, folder, start, _SINK) as job:
            run = rig.drained(job, server)
        rows = rig.prove(server, folder, "orders")
    data = {"rows": rows, "table": "orders, 10 columns", "transactions": "10,000 rows each"}
    report(
        "e2e.delta.catch_up",
        rows / run.seconds,
        "rows/s",
        must=">= 200,000, aim 300,000",
        data=data,
        with_start_of_the_job=round(rows / (run.start_s + run.seconds)),
        seconds=round(run.seconds, 1),
    )
    cpu = run.usage.cpu_s / rows * 1e6
    report("e2e.delta.cpu_per_million", cpu, "CPU s", must="reported, aim 6", data=data, includes="start of the job")
    report("e2e.delta.peak_memory", run.usage.peak_bytes / 2**30, "GiB", must="<= 4, aim 2", data=data)


def big_transaction() -> None:
    """One transaction of 5 million inserts, then one that updates them all: memory, and visible at once."""
    with rig.source() as (server, folder):
        server.execute(orders.CREATE.format(name=f"{DATABASE}.orders"))
        start = rig.position(server)
        orders.fill(server, DATABASE, "orders", BACKLOG_ROWS, transaction_rows=BACKLOG_ROWS)
        with rig.job(server, folder, start, _SINK) as job:
            job.start()
            with Watch(job.pid) as watch:
                rig.running(job)
                rig.caught_up(job, server, 900)
                inserts = watch.usage().peak_bytes
            log = folder / "warehouse" / "ods" / "orders" / "_delta_log"
            counts = {_rows(folder, "orders", version) for version in range(len(list(log.glob("*.json"))))}
            if not counts <= {0, BACKLOG_ROWS}:
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
        updates_gib=round(updates / 2**30, 2),
    )


def _rows(folder: Path, table: str, version: int) -> int:
    delta = DeltaTable(str(folder / "warehouse" / "ods" / table), version=version)
    actions = delta.get_add_actions(flatten=True)
    return sum(pa.table(actions).column("num_records").to_pylist())


def cycle_100_channels() -> None:
    """100 tables of 100 changed rows each: what one cycle takes once it has closed."""
    with rig.source() as (server, folder):
        names = [f"t{number:03d}" for number in range(100)]
        for name in names:
            server.execute(orders.CREATE.format(name=f"{DATABASE}.{name}"))
        start = rig.position(server)
        with rig.job(server, folder, start, _SINK, interval="1s") as job:
            job.start()
            rig.running(job)
            cycles = []
            for first in (0, 100, 200, 300):
                connection = server.connect(DATABASE)
                with connection, connection.cursor() as cursor:
                    connection.begin()
                    for name in names:
                        cursor.execute(orders._ROWS.format(name=name, first=first, count=100))
                        if first:
                            cursor.execute(f"UPDATE {name} SET status = 9 WHERE id < {first} AND id % 2 = 0 LIMIT 100")
                    connection.commit()
                status = rig.caught_up(job, server, 120)
                seconds = status["checkpoint"]["seconds"]
                cycles.append(seconds["prepare"] + seconds["commit"] + seconds["save"])
        rows = sum(rig.prove(server, folder, name) for name in names[:5])
    # the first cycle creates the tables and starts the Python workers
    value = sorted(cycles[1:])[len(cycles[1:]) // 2]
    report(
        "e2e.delta.cycle_100_channels",
        value,
        "s",
        must="<= 3, aim 1.2",
        data={"channels": 100, "rows_each": 100, "compared": rows},
        cycles=[round(cycle, 2) for cycle in cycles],
    )


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


def freshness(seconds: float = 60.0, per_s: int = 2000) -> None:
    """Single-row transactions at a steady rate onto a million rows: from source commit to visible."""
    with rig.source() as (server, folder):
        server.execute(orders.CREATE.format(name=f"{DATABASE}.orders"))
        server.execute(f"CREATE TABLE {DATABASE}.beats (id INT NOT NULL PRIMARY KEY, written_at TIMESTAMP(6) NOT NULL)")
        connection = server.connect(DATABASE)
        with connection, connection.cursor() as cursor:
            cursor.execute(_BURST)
        start = rig.position(server)
        orders.fill(server, DATABASE, "orders", 1_000_000)
        with rig.job(server, folder, start, _SINK, interval="1s") as job:
            job.start()
            rig.running(job)
            rig.caught_up(job, server, 300)
            seen: list[tuple[float, float]] = []  # visible at, newest commit visible
            stop = threading.Event()
            watcher = threading.Thread(target=_visible, args=(folder / "warehouse/ods/orders", seen, stop), daemon=True)
            watcher.start()
            bursts = _write_steadily(server, seconds, per_s)
            rig.caught_up(job, server, 60)
            time.sleep(0.5)
            stop.set()
            watcher.join()
        rows = rig.prove(server, folder, "orders")
    lags = sorted(_lags(bursts, seen))
    report(
        "e2e.delta.freshness_p99",
        lags[int(len(lags) * 0.99)],
        "s",
        must="<= 3, aim 1.5",
        data={"rows": rows, "transactions_per_s": round(len(bursts) * 20 / seconds), "seconds": seconds},
        p50=round(lags[len(lags) // 2], 2),
        worst=round(lags[-1], 2),
    )


def _write_steadily(server: LocalServer, seconds: float, per_s: int) -> list[float]:
    """Bursts of 20 transactions, half inserts, half updates of random rows; gives each burst's end, by the clock."""
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
    return bursts


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


def merge_growth() -> None:
    """Commit time of 2,000 updates on 10 million rows to that on 1 million: recent keys, random keys."""
    seconds: dict[tuple[int, str], float] = {}
    draw = random.Random(7)
    for rows in (1_000_000, 10_000_000):
        with rig.source() as (server, folder):
            server.execute(orders.CREATE.format(name=f"{DATABASE}.orders"))
            start = rig.position(server)
            orders.fill(server, DATABASE, "orders", rows)
            with rig.job(server, folder, start, _SINK, interval="1s") as job:
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
        random_keys=round(growth["random"], 2),
        seconds={f"{rows} {kind}": round(value, 2) for (rows, kind), value in seconds.items()},
    )


BENCHMARKS: dict[str, Callable[[], None]] = {
    "catch_up": catch_up,
    "freshness": freshness,
    "cycle_100_channels": cycle_100_channels,
    "big_transaction": big_transaction,
    "merge_growth": merge_growth,
}


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all."""
    for name in names or BENCHMARKS:
        BENCHMARKS[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
