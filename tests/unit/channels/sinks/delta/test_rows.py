"""Rows of a Delta table by key range and by key, after merges that left its files out of order."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from channels.sinks.base import TargetColumn, TargetTable
from channels.sinks.delta import files
from channels.sinks.delta.rows import DeltaRows
from channels.sinks.delta.sink import DeltaSink
from channels.sinks.row_ranges import KeyRange
from tests.emulators.cases import mark_of, name_of

KINDS: dict[str, tuple[pa.DataType, Any]] = {
    "whole": (pa.int64(), lambda n: n - 100),
    "large": (pa.decimal128(20, 0), lambda n: Decimal(n) * 10**15),
    "decimal": (pa.decimal128(12, 2), lambda n: Decimal(n - 100) / 4),
    "date": (pa.date32(), lambda n: datetime.date(2024, 1, 1) + datetime.timedelta(n)),
    "moment": (pa.timestamp("us"), lambda n: datetime.datetime(2024, 1, 1) + datetime.timedelta(microseconds=n * 333)),
    "zoned": (
        pa.timestamp("us", "UTC"),
        lambda n: datetime.datetime(1999, 12, 31, tzinfo=datetime.UTC) + datetime.timedelta(seconds=n / 8),
    ),
    "bytes": (pa.binary(), lambda n: n.to_bytes(2, "big")),
    "text": (pa.string(), lambda n: f"k{n:03d}"),
}


@pytest.fixture
def sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(files, "_GROUP_ROWS", 7)
    sink = DeltaSink(tmp_path / "lake")
    sink.identity(create=True)
    sink.acquire_ownership(mark_of(), [])
    yield sink
    sink.close()


def _load(sink: DeltaSink, table: TargetTable, numbers: list[int], checkpoint: int, values: Any) -> None:
    rows = pa.record_batch({
        "k": pa.array([values(n) for n in numbers], table.columns[0].arrow), "m": pa.array([n % 5 for n in numbers], pa.int32()),
        "n": pa.array([checkpoint] * len(numbers), pa.int64()),
        "__deleted": [False] * len(numbers), "__sequence": pa.array(numbers, pa.int64()),
    })  # fmt: skip
    name = name_of(checkpoint=checkpoint, channel=table.name)
    load = sink.part_writer(table)(name, iter([rows]))
    assert load is not None
    sink.commit([load], mark_of(checkpoint=checkpoint))


@pytest.mark.parametrize("kind", KINDS)
def test_delta_rows_are_those_of_a_filter(sink: DeltaSink, kind: str) -> None:
    arrow, values = KINDS[kind]
    columns = (
        TargetColumn("k", arrow, False),
        TargetColumn("m", pa.int32(), False),
        TargetColumn("n", pa.int64(), True),
    )
    table = TargetTable("ods.rows", columns, ("k", "m"))
    sink.ensure_table(table)
    draw, state = random.Random(kind), {}
    for checkpoint in range(1, 6):
        numbers = sorted(draw.sample(range(200), 60))
        _load(sink, table, numbers, checkpoint, values)
        state |= dict.fromkeys(numbers, checkpoint)
    rows = sink.row_reader(table, ["k", "m", "n"])
    assert isinstance(rows, DeltaRows)
    expected = {(values(n), n % 5): checkpoint for n, checkpoint in state.items()}
    for _ in range(30):
        low, high = sorted(draw.sample(range(-1, 201), 2))
        bounds = [
            None if n < 0 or n >= 200 else (pa.scalar(values(n), arrow), pa.scalar(n % 5, pa.int32()))
            for n in (low, high)
        ]
        found = rows.between(KeyRange(("k", "m"), *bounds))
        assert _plain(found) == {
            (values(n), n % 5): state[n] for n in state if (low < 0 or n > low) and (high >= 200 or n <= high)
        }
        keys = draw.sample(range(200), 20)
        asked = pa.table(
            {"k": pa.array([values(n) for n in keys], arrow), "m": pa.array([n % 5 for n in keys], pa.int32())}
        )
        assert _plain(rows.of_keys(asked)) == {
            one: expected[one] for n in keys if (one := (values(n), n % 5)) in expected
        }
    assert rows.of_keys(asked.slice(0, 0)).num_rows == 0


def _plain(found: pa.Table) -> dict[tuple[Any, Any], int]:
    listed = [((row["k"], row["m"]), row["n"]) for row in found.to_pylist()]
    assert len(dict(listed)) == len(listed), "a key was returned twice"
    return dict(listed)


def test_rows_of_a_missing_table_are_none(sink: DeltaSink) -> None:
    table = TargetTable("ods.none", (TargetColumn("k", pa.int64(), False),), ("k",))
    rows = sink.row_reader(table, ["k"])
    assert rows.between(KeyRange(("k",), None, None)).num_rows == 0
    assert rows.of_keys(pa.table({"k": pa.array([1], pa.int64())})).num_rows == 0
