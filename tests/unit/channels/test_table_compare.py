"""Comparison of a key range: rows are read only where checksums differ, and columns that are not part of them always."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from cdc.model.schema import Column, Kind
from cdc.model.snapshot import Chunk
from channels.row_compare import DIFFERENT
from channels.sinks.row_ranges import KeyRange, RangeChecksum
from channels.table_compare import TableCompare, compare_range

PART = Chunk(0, ("1",), ("5",))
KEY = Column("id", Kind.INT, "int")
ROWS = pa.table({"id": pa.array([2, 3, 5], pa.int32()), "note": ["a", "b", "c"], "ratio": [0.5, 1.5, 2.5]})


class Target:
    """A reader of ``rows``, with a checksum that depends on the first two columns only."""

    rounds_floats = True

    def __init__(self, rows: pa.Table, columns: tuple[str, ...] = ("id", "note"), *, refuses: bool = False) -> None:
        self.rows, self.columns, self.refuses = rows, columns, refuses
        self.read: list[tuple[KeyRange, list[str] | None]] = []

    @property
    def checksums(self) -> Target:
        return self

    def of_rows(self, rows: pa.Table) -> RangeChecksum | None:
        return RangeChecksum(rows.num_rows, (hash(str(rows.select(list(self.columns)).to_pylist())), 0))

    def of_range(self, range: KeyRange) -> RangeChecksum | None:
        return None if self.refuses else self.of_rows(self.rows)

    def between(self, range: KeyRange, columns: Sequence[str] | None = None) -> pa.Table:
        self.read.append((range, list(columns) if columns is not None else None))
        return self.rows if columns is None else self.rows.select(list(columns))


def table() -> TableCompare:
    read = SimpleNamespace(order=SimpleNamespace(columns=[SimpleNamespace(column=KEY)]))
    names = tuple(ROWS.column_names)
    return TableCompare(
        cast(Any, read), ("id",), (KEY,), names, frozenset(), frozenset(), ("id",), lambda: cast(Any, None)
    )


def compared(target: Target, source: pa.Table = ROWS) -> tuple[list[int], list[int]]:
    found = compare_range(table(), source, PART, cast(Any, target))
    return found.keys.column("id").to_pylist(), found.kinds.tolist()


def test_equal_checksums_read_only_the_other_columns() -> None:
    target = Target(ROWS)
    assert compared(target) == ([], [])
    ((range, columns),) = target.read
    assert columns == ["id", "ratio"]
    assert range == KeyRange(("id",), (pa.scalar(1, pa.int32()),), (pa.scalar(5, pa.int32()),))
    complete = Target(ROWS, ("id", "note", "ratio"))
    assert compared(complete) == ([], []) and complete.read == []


def test_difference_in_a_column_without_checksum_is_found() -> None:
    other = ROWS.set_column(2, "ratio", pa.array([0.5, 1.25, 2.5]))
    assert compared(Target(other)) == ([3], [DIFFERENT])


@pytest.mark.parametrize("refuses", [False, True])
def test_other_or_refused_checksums_read_all_columns(refuses: bool) -> None:
    other = ROWS.set_column(1, "note", pa.array(["a", "x", "c"]))
    target = Target(other, refuses=refuses)
    assert compared(target) == ([3], [DIFFERENT])
    assert [columns for _, columns in target.read] == [None]
