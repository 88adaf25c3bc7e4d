"""The Doris sink alone, against the stand-in in its null mode: ``python -m benchmarks.bench_doris``."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.bench_clusters import CHECKED, prove
from benchmarks.harness import report
from cdc.batch import LoadName, PreparedLoad
from cdc.position import BinlogPosition
from cdc.schema import DELETED, SEQUENCE
from channels.sinks import bodies
from channels.sinks.base import CheckpointMark, PartWriter, TargetColumn, TargetTable
from channels.sinks.doris import DorisSink

_TYPES: tuple[tuple[str, pa.DataType, str], ...] = (
    ("id", pa.int64(), "bigint"),
    ("customer_id", pa.int32(), "int"),
    ("order_no", pa.string(), "varchar(40)"),
    ("status", pa.int16(), "smallint"),
    ("total", pa.decimal128(12, 2), "decimal(12,2)"),
    ("address", pa.string(), "varchar(100)"),
    ("placed_at", pa.timestamp("us"), "datetime(3)"),
    ("changed_at", pa.timestamp("us", "UTC"), "timestamp(6)"),
    ("priority", pa.int8(), "tinyint"),
    ("discount", pa.float64(), "double"),
)


def orders(rows: int) -> pa.RecordBatch:
    """Rows like those of ``benchmarks.orders``."""
    draw = np.random.default_rng(7)
    texts = [f"ORD-{number:010}-{random.getrandbits(16):X}" for number in range(rows)]
    streets = [f"{n % 999} Long Street, Flat {n % 77}, Some Town" if n % 20 else None for n in range(rows)]
    totals = [Decimal(int(cents)).scaleb(-2) for cents in draw.integers(0, 10**7, rows)]
    columns = [
        np.arange(rows), draw.integers(0, 10**6, rows), texts, draw.integers(0, 7, rows), totals, streets,
        draw.integers(0, 10**9, rows) * 10**6, draw.integers(0, 10**15, rows), draw.integers(0, 5, rows),
        draw.random(rows),
    ]  # fmt: skip
    arrays = [pa.array(values).cast(kind) for values, (_, kind, _) in zip(columns, _TYPES, strict=True)]
    arrays += [pa.array(np.zeros(rows, bool)), pa.array(np.arange(rows))]
    return pa.RecordBatch.from_arrays(arrays, [*(name for name, _, _ in _TYPES), DELETED, SEQUENCE])


def table(name: str = "ods.orders") -> TargetTable:
    """The target of ``orders``."""
    return TargetTable(
        name, tuple(TargetColumn(column, kind, True, source) for column, kind, source in _TYPES), ("id",)
    )


@contextmanager
def null_doris() -> Iterator[dict[str, Any]]:
    """A stand-in in its own process that throws bodies away."""
    command = [sys.executable, "-m", "tests.servers.doris", "--null", "--backends", "2", "--user", "cdc:cdc"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def write(writer: PartWriter, checkpoint: int, rows: pa.RecordBatch, name: str = "ods.orders") -> PreparedLoad:
    """One load."""
    load = writer(LoadName("bench", "0badcafe", 1, checkpoint, name, 0), iter([rows]))
    assert load is not None
    return load


def encoding(rows: pa.RecordBatch) -> None:
    """Rows a second and core of each body."""
    ways: dict[str, Callable[[], Iterator[bytes]]] = {
        "csv": lambda: bodies.csv_body([rows]),
        "csv_lz4": lambda: bodies.csv_body([rows], "lz4"),
        "json": lambda: bodies.json_body([rows], rows.schema.names),
    }
    for name, way in ways.items():
        best = min(_cpu(partial(_size, way)) for _ in range(3))
        size = _size(way) / rows.num_rows
        report(
            f"doris.body.{name}",
            rows.num_rows / best,
            "rows/s",
            must="reported",
            data={"rows": rows.num_rows},
            checked="",
            bytes=size,
        )


def _size(way: Callable[[], Iterator[bytes]]) -> int:
    return sum(map(len, way()))


def _cpu(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def loading(server: dict[str, Any], rows: pa.RecordBatch, loads: int) -> None:
    """Rows a second through two processes of writers, the stand-in on the same machine."""
    sink = DorisSink(server["fe"], username="cdc", password="cdc", sql_port=server["sql_port"])
    sink.ensure_table(table())
    writer = sink.part_writer(table())
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(write, [writer] * 2, range(2), [rows.slice(0, 1)] * 2))
        started = time.perf_counter()
        done = list(pool.map(write, [writer] * loads, range(10, 10 + loads), [rows] * loads))
        seconds = time.perf_counter() - started
    total = sum(load.rows for load in done)
    _commit(sink, done, 1)
    prove(server, total)
    data = {"rows": total, "loads": loads}
    report("doris.load", total / seconds, "rows/s", must="reported", data=data, checked=CHECKED)
    sink.close()


def _commit(sink: DorisSink, loads: list[PreparedLoad], checkpoint: int) -> None:
    first, last = BinlogPosition("b.1", 4), BinlogPosition("b.1", 9)
    sink.commit(loads, CheckpointMark("bench", "0badcafe", 1, checkpoint, first, last, 1))


def cycle(server: dict[str, Any], rows: pa.RecordBatch) -> None:
    """Seconds to load and commit 100 channels of 100 rows."""
    sink = DorisSink(server["fe"], username="cdc", password="cdc", sql_port=server["sql_port"])
    names = [f"many.t{number}" for number in range(100)]
    for name in names:
        sink.ensure_table(table(name))
    few = rows.slice(0, 100)
    with ThreadPoolExecutor(8) as pool:
        started = time.perf_counter()
        loads = list(pool.map(lambda name: write(sink.part_writer(table(name)), 500, few, name), names))
        loaded = time.perf_counter() - started
    _commit(sink, loads, 500)
    seconds = time.perf_counter() - started
    report(
        "doris.cycle_100_channels", seconds, "s", must="reported", data={"channels": 100}, checked="",
        load_s=round(loaded, 2),
    )  # fmt: skip
    sink.close()


def main(arguments: list[str] | None = None) -> None:
    """Run all three."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000, help="of a load")
    parser.add_argument("--loads", type=int, default=20)
    given = parser.parse_args(arguments)
    rows = orders(given.rows)
    encoding(rows)
    with null_doris() as server:
        loading(server, rows, given.loads)
        cycle(server, rows)


if __name__ == "__main__":
    main()
