"""Merges of 2,000 changed keys into a large Delta table: their CPU seconds and bytes, and scans after many of them.

The sink is called directly, so that neither Spark nor the source count. A tenth of the changes are deletes.
"""

from __future__ import annotations

import resource
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from benchmarks.rig.measure import report
from benchmarks.rig.suite import Case, Options
from cdc.model.batch import LoadName
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import SinkCheckpoint, TargetColumn, TargetTable
from channels.sinks.delta import maintenance
from channels.sinks.delta.sink import DeltaSink, MergeMode

CHANGES = 2_000
SMALLER = 10  # each figure has the costs on a table of a tenth of the rows, too
_LOAD_ROWS = 500_000
_COMMITS = 5
_MERGES = 1_000  # before a scan is measured
_MAINTAINED_EVERY = 5  # merges: a job with an interval of 1 s maintains a table every 5 s
_SCANS = 7
_COLUMNS = tuple(TargetColumn(f"c{number}", pa.int64(), True) for number in range(9))
_TABLE = TargetTable("bench.orders", (TargetColumn("id", pa.int64(), False), *_COLUMNS), ("id",))
Keys = npt.NDArray[np.int64]


def merge(options: Options, kind: str) -> None:
    """Measure merges of ``kind`` keys, random or recent, with both ways to merge, on two sizes of a table."""
    found: dict[str, dict[str, float]] = {}
    values: Sequence[float] = ()
    for rows in (options.rows // SMALLER, options.rows):
        for mode in ("rewrite", "deletion_vectors"):
            with tempfile.TemporaryDirectory(prefix="cdc-delta-") as folder:
                values, written = _measure(Path(folder), mode, rows, kind)
            found[f"{rows} {mode}"] = {"cpu_s": round(statistics.median(values), 3), "mb": round(written / 1e6, 2)}
    goal = "<= 0.5 at 10 million rows, target 0.3; <= 2 MB" if kind == "random" else "<= 0.05, target 0.01"
    report(
        f"delta.merge_{kind}", statistics.median(values), "CPU s", goal=goal, checked="count and sum of all rows",
        data={"rows": options.rows, "changes": CHANGES}, values=[round(each, 3) for each in values], merges=found,
    )  # fmt: skip


def _measure(root: Path, mode: MergeMode, rows: int, kind: str) -> tuple[list[float], float]:
    """Return the CPU seconds of each commit, and the bytes that the median commit wrote."""
    sink, draw = DeltaSink(root, merge=mode), np.random.default_rng(7)
    expected = np.zeros(rows, np.int64)  # the value of each row; -1: deleted
    checkpoint = _load(root, sink, expected)
    costs, sizes = [], []
    for number in range(_COMMITS + 1):
        checkpoint += 1
        cost, size = _change(root, sink, checkpoint, expected, draw, max(0, rows - 20_000) if kind == "recent" else 0)
        if number:  # the first commit warms up
            costs.append(cost)
            sizes.append(size)
    _prove(root, expected)
    sink.close()
    return costs, statistics.median(sizes)


def scan(options: Options) -> None:
    """Compare scans of a table after 1,000 merges of random keys, with its maintenance, with scans of a fresh table."""
    with tempfile.TemporaryDirectory(prefix="cdc-delta-") as folder:
        root, fresh, draw = Path(folder) / "merged", Path(folder) / "fresh", np.random.default_rng(7)
        expected = np.zeros(options.rows, np.int64)
        root.mkdir()
        fresh.mkdir()
        sink = DeltaSink(root, merge="deletion_vectors", retention_s=0)  # few files in the folder
        maintenance._EVERY_S = 0.0
        checkpoint = _load(root, sink, expected)
        for number in range(1, _MERGES + 1):
            _change(root, sink, checkpoint + number, expected, draw, 0)
            if number % _MAINTAINED_EVERY == 0:
                sink.maintain([_TABLE])
        sink.close()
        _prove(root, expected)
        sink = DeltaSink(fresh, merge="deletion_vectors")
        _load(fresh, sink, expected)
        sink.close()
        _prove(fresh, expected)
        seconds = {path: [_scan(path) for _ in range(_SCANS)] for path in (root, fresh)}
        files = {path: len(DeltaTable(str(path / "bench/orders")).file_uris()) for path in seconds}
    merged, new = (min(values) for values in seconds.values())
    report(
        "delta.scan_after_1000_merges", merged / new, "times a fresh table", goal="<= 1.5, target 1.2",
        checked="count and sum of all rows", data={"rows": options.rows, "changes": CHANGES * _MERGES},
        cpu_s={"merged": round(merged, 4), "fresh": round(new, 4)},
        files={"merged": files[root], "fresh": files[fresh]},
    )  # fmt: skip


def _scan(root: Path) -> float:
    """Return the CPU seconds of a scan of all columns."""
    sums = ", ".join(f"sum({column.name})" for column in _TABLE.columns)
    began = _cpu_s()
    QueryBuilder().register("t", DeltaTable(str(root / "bench/orders"))).execute(f"select {sums} from t").read_all()
    return _cpu_s() - began


def _load(root: Path, sink: DeltaSink, expected: npt.NDArray[np.int64]) -> int:
    """Commit the rows that are not deleted in ``expected``, in the order of their keys; return the last checkpoint."""
    sink.ensure_table(_TABLE)
    checkpoint = 0
    for first in range(0, len(expected), _LOAD_ROWS):
        checkpoint += 1
        values = expected[first : first + _LOAD_ROWS]
        keys = np.flatnonzero(values >= 0)
        _commit(root, sink, checkpoint, keys + first, np.zeros(len(keys), bool), values[keys])
    return checkpoint


def _change(
    root: Path, sink: DeltaSink, checkpoint: int, expected: Keys, draw: np.random.Generator, least: int
) -> tuple[float, int]:
    """Commit changes of random keys from ``least``; see ``_commit``."""
    keys = draw.choice(np.arange(least, len(expected)), CHANGES, replace=False)
    deleted = np.arange(CHANGES) % 10 == 0
    expected[keys] = np.where(deleted, -1, checkpoint)
    return _commit(root, sink, checkpoint, keys, deleted, np.full(CHANGES, checkpoint))


def _commit(
    root: Path, sink: DeltaSink, checkpoint: int, keys: Keys, deleted: npt.NDArray[np.bool_], values: Keys
) -> tuple[float, int]:
    """Commit rows; return the CPU seconds of the commit, and the bytes of the table's new files."""
    data = {"id": keys, "c0": values, **{column.name: keys * 7 for column in _COLUMNS[1:]}}
    batch = pa.RecordBatch.from_pydict({**data, DELETED: deleted, SEQUENCE: np.arange(len(keys))})
    load = sink.part_writer(_TABLE)(LoadName("bench", "0badcafe", 1, checkpoint, _TABLE.name, 0), iter([batch]))
    assert load is not None
    position = BinlogPosition("b.000001", checkpoint)
    before, began = _files(root), _cpu_s()
    sink.commit([load], SinkCheckpoint("bench", "0badcafe", 1, checkpoint, position, position, checkpoint))
    cost, after = _cpu_s() - began, _files(root)
    return cost, sum(size for path, size in after.items() if path not in before)


def _files(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in (root / "bench/orders").rglob("*") if path.is_file()}


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _prove(root: Path, expected: npt.NDArray[np.int64]) -> None:
    query = "select count(*) as rows, sum(id) as keys, sum(c0) as value, count(distinct id) as distinct_keys from t"
    found = QueryBuilder().register("t", DeltaTable(str(root / "bench/orders"))).execute(query).read_all()
    live = np.flatnonzero(expected >= 0)
    row = pa.table(found).to_pylist()[0]
    assert row == {
        "rows": len(live), "keys": live.sum(), "value": expected[live].sum(), "distinct_keys": len(live),
    }, row  # fmt: skip


CASES = (
    Case("delta.merge_random", partial(merge, kind="random"), Options(10_000_000), 1_000_000, runs=1),
    Case("delta.merge_recent", partial(merge, kind="recent"), Options(10_000_000), 1_000_000, runs=1),
    Case("delta.scan_after_1000_merges", scan, Options(1_000_000), 100_000, runs=1),
)
