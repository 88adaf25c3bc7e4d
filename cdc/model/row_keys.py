"""Keys of rows as Arrow columns: number the keys, find keys, keep the newest row of each key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.schema import SEQUENCE

Numbers = npt.NDArray[np.int64]


class KeyIndex:
    """Numbers the distinct keys of rows. Two keys have the same number if they are equal byte for byte.

    Columns are numbered one after the other. This supports any number of columns and any comparable Arrow type, without
    a Python object per row.
    """

    def __init__(self, columns: Sequence[pa.ChunkedArray | pa.Array]) -> None:
        """Number the keys of ``columns``, the key columns. They have no NULL."""
        self._values: list[pa.Array] = []
        self._pairs: list[pa.Array] = []  # the number of the previous columns and that of the next one, as one integer
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
        """Return the number of each row's key; -1 if this index does not have the key."""
        numbers = _positions(columns[0], self._values[0])
        for column, values, pairs in zip(columns[1:], self._values[1:], self._pairs, strict=True):
            found = _positions(column, values)
            both = np.where((numbers < 0) | (found < 0), -1, numbers * len(values) + found)
            numbers = _positions(pa.array(both), pairs)
        return numbers

    def last_rows(self) -> Numbers:
        """Return the last row of each key, ordered by the number of the key."""
        last = np.empty(self.count, np.int64)
        last[self.numbers] = np.arange(len(self.numbers))  # for a repeated index numpy keeps the last assignment
        return last


def newest_rows(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the newest row of each key of ``table`` by ``__sequence``, in source order."""
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
    """Return whether the key is one integer that increases from row to row. Such keys are distinct without hashing."""
    if len(columns) != 1 or not pa.types.is_integer(columns[0].type) or columns[0].null_count:
        return False
    values = columns[0].to_numpy()
    return bool(np.all(values[1:] > values[:-1]))


def _positions(column: pa.ChunkedArray | pa.Array, values: pa.Array) -> Numbers:
    found = pc.fill_null(pc.index_in(column, value_set=values), -1)
    return np.asarray(found.to_numpy(), np.int64)
