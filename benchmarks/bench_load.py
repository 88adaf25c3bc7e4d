"""How fast Changes become loads, and loads rows of a table: no source, so that reading and writing are apart.

Prints one JSON document. ``python benchmarks/bench_load.py --help`` lists the parts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.null_sink import NullSink
from cdc.batch import Changes
from cdc.position import BinlogPosition
from cdc.schema import Column, Kind, TableSchema
from channels.channel import Channel
from channels.mapping import Mapping, SparkExpressionTypes
from channels.sinks.base import CheckpointMark
from channels.sinks.delta import DeltaSink
from channels.task import RunIdentity, SparkTaskRunner, Task
from spark.session import SessionHolder

RUN = RunIdentity("bench", "0badcafe", 1)
COLUMNS = (
    Column("id", Kind.BIGINT, "bigint", nullable=False),
    Column("customer_id", Kind.INT, "int", nullable=False),
    Column("reference", Kind.VARCHAR, "varchar(40)", length=40, charset="utf8mb4"),
    Column("status", Kind.SMALLINT, "smallint"),
    Column("amount", Kind.DECIMAL, "decimal(12,2)", precision=12, scale=2),
    Column("note", Kind.VARCHAR, "varchar(100)", length=100, charset="utf8mb4"),
    Column("created_at", Kind.DATETIME, "datetime(3)", fsp=3),
    Column("updated_at", Kind.TIMESTAMP, "timestamp(6)", fsp=6),
    Column("flags", Kind.TINYINT, "tinyint"),
    Column("score", Kind.DOUBLE, "double"),
)


def order_schema(table: str = "orders") -> TableSchema:
    """The 10-column order table."""
    return TableSchema("shop", table, COLUMNS, ("id",))


def orders(ids: np.ndarray[Any, Any], sequence: int, seed: int = 0) -> pa.RecordBatch:
    """Upserts of rows with ``ids``, about 120 bytes each."""
    count, random = len(ids), np.random.default_rng(seed + sequence)
    references = pa.array([f"ORD-{number:010d}-{number % 97:05d}" for number in range(5000)])
    notes = pa.array([f"note {number} " * (1 + number % 6) for number in range(1000)])
    cents = pa.array(random.integers(0, 10**9, count)).cast(pa.decimal128(19, 0))
    created = pa.array(1_700_000_000_000_000 + np.asarray(ids, np.int64) * 1000)
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array(ids, pa.int64()),
            "customer_id": pa.array(random.integers(0, 1_000_000, count), pa.int32()),
            "reference": references.take(pa.array(random.integers(0, 5000, count))),
            "status": pa.array(random.integers(0, 6, count), pa.int16()),
            "amount": cents.cast(pa.decimal128(12, 2), safe=False),
            "note": notes.take(pa.array(random.integers(0, 1000, count))),
            "created_at": created.cast(pa.timestamp("us")),
            "updated_at": created.cast(pa.timestamp("us", "UTC")),
            "flags": pa.array(random.integers(0, 2, count), pa.int8()),
            "score": pa.array(random.random(count)),
            "__deleted": pa.array(np.zeros(count, bool)),
            "__sequence": pa.array(np.arange(sequence, sequence + count), pa.int64()),
        }
    )


def created(root: Path) -> DeltaSink:
    """Return a sink whose root exists, as a job's first start leaves it."""
    sink = DeltaSink(root)
    sink.identity(create=True)
    return sink


@dataclass
class Usage:
    """CPU seconds and peak memory of this process and everything it started."""

    cpu: float
    time: float

    @classmethod
    def now(cls) -> Usage:
        """Up to now."""
        total = 0.0
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
        return cls(total, time.perf_counter())


def memory_bytes() -> int:
    """Resident memory of this process and its children; shared pages are counted in each."""
    found = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.Error):
            found += process.memory_info().rss
    return found


def mark(checkpoint: int) -> CheckpointMark:
    """A mark for a checkpoint of the benchmark."""
    return CheckpointMark(
        RUN.job, RUN.incarnation, RUN.fence, checkpoint, BinlogPosition("b.1", 4), BinlogPosition("b.1", 4), checkpoint
    )


class Bench:
    """One session and one folder for all parts."""

    def __init__(self, conf: dict[str, str]) -> None:
        self.sessions = SessionHolder("bench", conf=conf)
        self.folder = Path(tempfile.mkdtemp(prefix="cdc-bench-"))
        self.results: list[dict[str, Any]] = []
        self.checkpoint = 0

    def report(self, name: str, value: float, unit: str, **more: Any) -> None:
        """Keep a figure, and show it."""
        self.results.append({"name": name, "value": round(value, 3), "unit": unit, **more})
        print(self.results[-1], file=sys.stderr, flush=True)

    def load(self, name: str, sink: Any, mapping: Mapping, rows: int, *, commit: bool = True) -> None:
        """``rows`` inserts in Tasks of 16 MiB, one checkpoint per 2 million."""
        types = SparkExpressionTypes(self.sessions)
        channel = Channel(mapping, order_schema(), types)
        sink.ensure_table(channel.target)
        runner = SparkTaskRunner(self.sessions, sink)
        batches = [orders(np.arange(first, first + 35_000), first) for first in range(0, rows, 35_000)]
        before, peak = Usage.now(), 0
        futures: list[Future[Any]] = []
        seconds = {"prepare": 0.0, "commit": 0.0}
        self.checkpoint += 1
        for batch in batches:
            channel.add(Changes(order_schema(), batch))
            if channel.buffered_bytes >= 16 << 20:
                while sum(not future.done() for future in futures) >= 4:
                    time.sleep(0.001)
                futures += runner.submit([_some(channel.task_for(RUN, self.checkpoint))])
                peak = max(peak, memory_bytes())
        futures += runner.submit([task] if (task := channel.task_for(RUN, self.checkpoint)) else [])
        loads = [load for future in futures for load in future.result()]
        prepared = Usage.now()
        if commit:
            sink.commit(loads, mark(self.checkpoint))
        after = Usage.now()
        seconds["prepare"], seconds["commit"] = prepared.time - before.time, after.time - prepared.time
        total = sum(batch.num_rows for batch in batches)
        self.report(
            f"load.{name}",
            total / (after.time - before.time),
            "rows/s",
            cpu_per_million=round((after.cpu - before.cpu) / total * 1e6, 2),
            seconds={part: round(value, 2) for part, value in seconds.items()},
            peak_mib=max(peak, memory_bytes()) >> 20,
        )

    def many(self, name: str, mapped: Callable[[int], Mapping], channels: int = 100, rows: int = 100) -> None:
        """One cycle over many channels with a few rows each, the second one of updates."""
        sink = created(self.folder / f"many-{name}")
        runner, types = SparkTaskRunner(self.sessions, sink), SparkExpressionTypes(self.sessions)
        found = [Channel(mapped(number), order_schema(f"t{number}"), types) for number in range(channels)]
        for channel in found:
            sink.ensure_table(channel.target)
        for cycle in ("inserts", "updates", "updates again"):
            self.checkpoint += 1
            for channel in found:
                channel.add(Changes(order_schema(), orders(np.arange(rows), self.checkpoint * 1000)))
            before = Usage.now()
            tasks = [_some(channel.task_for(RUN, self.checkpoint)) for channel in found]
            loads = [load for future in runner.submit(tasks) for load in future.result()]
            prepared = time.perf_counter()
            sink.commit(loads, mark(self.checkpoint))
            after = Usage.now()
            self.report(
                f"cycle.{channels}_channels.{name}.{cycle}",
                after.time - before.time,
                "s",
                prepare=round(prepared - before.time, 3),
                cpu=round(after.cpu - before.cpu, 2),
            )
        sink.close()

    def merges(self, target_rows: int, kinds: Sequence[str] = ("recent", "random")) -> None:
        """Commits of 2,000 changed rows on a target of ``target_rows``."""
        sink = created(self.folder / f"merge-{target_rows}")
        mapping = Mapping("shop.orders", "ods.orders")
        self.load(f"delta.{target_rows}", sink, mapping, target_rows)
        random = np.random.default_rng(7)
        runner, channel = SparkTaskRunner(self.sessions, sink), Channel(mapping, order_schema())
        for kind in kinds:
            for turn in range(4):
                ids = target_rows - 1 - np.arange(2000) if kind == "recent" else random.choice(target_rows, 2000, False)
                self.checkpoint += 1
                channel.add(Changes(order_schema(), orders(np.sort(ids), turn)))
                started = time.perf_counter()
                loads = runner.submit([_some(channel.task_for(RUN, self.checkpoint))])[0].result()
                prepared, before = time.perf_counter(), Usage.now()
                sink.commit(loads, mark(self.checkpoint))
                after = Usage.now()
                self.report(
                    f"merge.{target_rows}.{kind}",
                    after.time - before.time,
                    "s",
                    prepare=round(prepared - started, 3),
                    cpu=round(after.cpu - before.cpu, 2),
                )
        sink.close()


def _some(task: Task | None) -> Task:
    assert task is not None
    return task


def main() -> None:
    """Run the parts named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["null", "delta", "mapped", "many", "merge"])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--target-rows", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--conf", action="append", default=[], help="name=value, for Spark")
    arguments = parser.parse_args()
    bench = Bench(dict(pair.split("=", 1) for pair in arguments.conf))
    identity = Mapping("shop.orders", "ods.orders")
    copied = {column.name: column.name for column in COLUMNS}
    mapped = Mapping("shop.orders", "ods.orders", columns={**copied, "note": "upper(note)"}, filter="status < 5")
    started = time.perf_counter()
    bench.sessions.get().range(1).count()
    bench.report("session.start", time.perf_counter() - started, "s", cpu=Usage.now().cpu)
    bench.load("warm_up", NullSink(bench.folder), identity, 200_000, commit=False)
    if "null" in arguments.parts:
        bench.load("null", NullSink(bench.folder), identity, arguments.rows, commit=False)
    if "delta" in arguments.parts:
        bench.load("delta", created(bench.folder / "delta"), identity, arguments.rows)
    if "mapped" in arguments.parts:
        bench.load("mapped.delta", created(bench.folder / "mapped"), mapped, arguments.rows)
    if "many" in arguments.parts:
        bench.many("identity", lambda number: Mapping(f"shop.t{number}", f"ods.t{number}"))
    if "many_mapped" in arguments.parts:
        columns = mapped.columns
        bench.many("mapped", lambda number: Mapping(f"shop.t{number}", f"ods.t{number}", columns=columns))
    if "merge" in arguments.parts:
        for target_rows in arguments.target_rows:
            bench.merges(target_rows)
    bench.sessions.close()
    shutil.rmtree(bench.folder)
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    print(json.dumps({**machine, "results": bench.results}, indent=1))


if __name__ == "__main__":
    main()
