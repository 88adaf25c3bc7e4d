"""Changes of columns: how long the stream stops, what the fill of a column costs, and a hundred changes in a row."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.rig import orders
from benchmarks.rig.jobs import EVERY_SECOND, Rig, rig
from benchmarks.rig.measure import Watch, report, wait_until
from benchmarks.rig.orders import DATABASE
from benchmarks.rig.suite import Case, Options
from cdc.model.batch import LoadName
from cdc.model.position import BinlogPosition
from channels.mapping import Mapping
from channels.sinks.base import AlterAction, AlterStep, SinkCheckpoint, TargetColumn, TargetTable
from channels.sinks.delta.sink import DeltaSink

TABLES = [f"t{number:03d}" for number in range(100)]
ROUNDS = 10
LOAD_ROWS = 500_000
_EVOLVE = f"{EVERY_SECOND}\nschema_changes: evolve"


def add_column(options: Options) -> None:
    """Measure a column without a default: from the end of the statement until the target has it, while nothing waits.

    It contains the whole stop of the stream: the plan, the end of the run, the recovery of the next one.
    """
    with rig(options) as bench:
        orders.create(bench.server, "orders")
        bench.begin()
        orders.fill(bench.server, "orders", options.rows)
        with bench.job(_EVOLVE) as job:
            bench.wait_caught_up(job, 900)
            with Watch(job.pid) as watch:
                stops = []
                for number in range(ROUNDS):
                    bench.server.execute(f"ALTER TABLE {DATABASE}.orders ADD COLUMN c{number} INT")
                    began = time.monotonic()
                    wait_until(lambda name=f"c{number}": name in _columns(bench, "orders"), 60, 0.002)  # type: ignore[misc]
                    stops.append(time.monotonic() - began)
                    time.sleep(0.3)
                usage = watch.usage()
            bench.wait_caught_up(job, 60)
        rows = bench.prove()
    report(
        "schema.add_column", 1000 * statistics.median(stops), "ms", goal="< 100", usage=usage, checked=bench.checked,
        data={"rows": rows, "rounds": ROUNDS}, each=[round(1000 * each) for each in stops],
    )  # fmt: skip


def hundred(options: Options) -> None:
    """Measure a hundred changes in a row, one of each of a hundred channels."""
    with rig(options) as bench:
        orders.create(bench.server, *TABLES)
        bench.begin()
        with bench.job(_EVOLVE) as job:
            bench.wait_running(job)
            orders.fill_together(bench.server, TABLES, 10)
            bench.wait_caught_up(job, 600)
            with Watch(job.pid) as watch:
                began = time.monotonic()
                for name in TABLES:
                    bench.server.execute(f"ALTER TABLE {DATABASE}.{name} ADD COLUMN c INT")
                wait_until(lambda: all("c" in _columns(bench, name) for name in (TABLES[-1], *TABLES)), 600)
                seconds, usage = time.monotonic() - began, watch.usage()
            status = bench.wait_caught_up(job, 60)
            if status["schema_changes"]["applied"] != len(TABLES):
                raise SystemExit(f"Not every change was applied once: {status['schema_changes']}")
        bench.prove()
    report(
        "schema.hundred", seconds, "s", goal="< 10", usage=usage, checked=bench.checked,
        data={"channels": len(TABLES), "changes": len(TABLES)}, ms_each=round(1000 * seconds / len(TABLES), 1),
    )  # fmt: skip


def filled_add(options: Options) -> None:
    """Measure the sink alone: a column with a value for each existing row of 10 columns."""
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder:
        sink = DeltaSink(Path(folder) / "warehouse")
        sink.identity(create=True)
        target = Mapping(orders.SCHEMA.name, "ods.orders").target_table(orders.SCHEMA)
        sink.acquire_ownership(_mark(0), [target.name])
        sink.ensure_table(target)
        for number, first in enumerate(range(0, options.rows, LOAD_ROWS), 1):
            _load(sink, target, first, min(LOAD_ROWS, options.rows - first), number)
        column = TargetColumn("added", pa.int32(), True, "int")
        step = AlterStep(AlterAction.ADD, None, column, pa.scalar(5, pa.int32()))
        with Watch(os.getpid()) as watch:
            before = watch.usage().peak_bytes
            began = time.monotonic()
            sink.alter(target, [step], _mark(1_000))
            seconds, usage = time.monotonic() - began, watch.usage()
        sink.close()
        table = DeltaTable(str(Path(folder) / "warehouse/ods/orders"))
        found = table.to_pyarrow_dataset().scanner(columns=["id", "added"]).to_table()
        if found.num_rows != options.rows or found.column("added").unique().to_pylist() != [5]:
            raise SystemExit(f"The table has {found.num_rows} rows with {found.column('added').unique()}.")
    report(
        "schema.filled_add", usage.cpu_s / options.rows * 1e6, "CPU s/million", goal="<= 1.5", usage=usage,
        rows=options.rows, data={"rows": options.rows, "columns": len(target.columns)}, checked="rows and values",
        seconds=round(seconds, 2), more_mib=round((usage.peak_bytes - before) / 2**20),
    )  # fmt: skip


def _columns(bench: Rig, table: str) -> Sequence[str]:
    path = bench.folder / "warehouse" / "ods" / table
    return [field.name for field in DeltaTable(str(path)).schema().fields]


def _load(sink: DeltaSink, target: TargetTable, first: int, count: int, checkpoint: int) -> None:
    rows = orders.arrow_rows(count, sequence=checkpoint * LOAD_ROWS)
    ids = pa.array(range(first, first + count), pa.int64())
    rows = rows.set_column(rows.schema.get_field_index("id"), "id", ids)
    load = sink.part_writer(target)(LoadName("bench", "0badcafe", 1, checkpoint, target.name, 0), iter([rows]))
    assert load is not None
    sink.commit([load], _mark(checkpoint))


def _mark(checkpoint: int) -> SinkCheckpoint:
    first, last = BinlogPosition("b.1", 4 + checkpoint), BinlogPosition("b.1", 5 + checkpoint)
    return SinkCheckpoint("bench", "0badcafe", 1, checkpoint, first, last, checkpoint * LOAD_ROWS)


_MILLION = 1_000_000
CASES = (
    Case("schema.add_column", add_column, Options(_MILLION), 100_000),
    Case("schema.filled_add", filled_add, Options(2 * _MILLION), 500_000),
    Case("schema.hundred", hundred),
)
