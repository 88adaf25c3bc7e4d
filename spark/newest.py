"""The newest row per key, on Arrow columns: where rows of one key meet, the later one wins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.schema import SEQUENCE

Numbers = npt.NDArray[np.int64]


class KeyIndex:
    """Numbers the different keys of some rows; equal keys, byte for byte, have equal numbers.

    Columns are numbered one after the other, so keys of any width and any comparable Arrow type go through without
    a Python object per row.
    """

    def __init__(self, columns: Sequence[pa.ChunkedArray | pa.Array]) -> None:
        """``columns`` make up the key, none of them NULL."""
        self._values: list[pa.Array] = []
        self._pairs: list[pa.Array] = []  # of the number so far and the next column's, as one integer
        numbers: Numbers | None = None
        for column in columns:
            values = pc.unique(column)
            self._values.append(values)
            found = _positions(column, values)
            if numbers is not None:
                pairs = pa.array(numbers * len(values) + found)
                self._pairs.append(pc.unique(pairs))
                found = _positions(pairs, self._pairs[-1])
            numbers = found
        assert numbers is not None
        self.numbers: Numbers = numbers  # one per row
        self.count = len(self._pairs[-1] if self._pairs else self._values[0])

    def find(self, columns: Sequence[pa.ChunkedArray | pa.Array]) -> Numbers:
        """The number of each row's key, -1 where the key is none of ours."""
        numbers = _positions(columns[0], self._values[0])
        for column, values, pairs in zip(columns[1:], self._values[1:], self._pairs, strict=True):
            found = _positions(column, values)
            both = np.where((numbers < 0) | (found < 0), -1, numbers * len(values) + found)
            numbers = _positions(pa.array(both), pairs)
        return numbers

    def last_rows(self) -> Numbers:
        """For each key, by number: the last row that has it."""
        last = np.empty(self.count, np.int64)
        last[self.numbers] = np.arange(len(self.numbers))  # of repeated places numpy keeps the last assignment
        return last


def newest_rows(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """The newest row per key of ``table``, by ``__sequence``, in source order."""
    sequence = table.column(SEQUENCE).to_numpy()
    if np.any(np.diff(sequence) < 0):
        table = table.sort_by(SEQUENCE)
    columns = [table.column(name) for name in key]
    if strictly_rising(columns):
        return table
    index = KeyIndex(columns)
    if index.count == table.num_rows:
        return table
    return table.take(pa.array(np.sort(index.last_rows())))


def strictly_rising(columns: Sequence[pa.ChunkedArray | pa.Array]) -> bool:
    """Whether a single integer key rises from row to row: then no key comes twice, and nothing need be hashed."""
    if len(columns) != 1 or not pa.types.is_integer(columns[0].type) or columns[0].null_count:
        return False
    values = columns[0].to_numpy()
    return bool(np.all(values[1:] > values[:-1]))


def _positions(column: pa.ChunkedArray | pa.Array, values: pa.Array) -> Numbers:
    found = pc.fill_null(pc.index_in(column, value_set=values), -1)
    return np.asarray(found.to_numpy(), np.int64)
