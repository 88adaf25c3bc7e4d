"""Find the rows of data files that have keys of a load, in the key columns of the row groups that may have them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc.model.row_keys import KeyIndex, strictly_rising
from channels.sinks.delta.entries import loose
from channels.sinks.delta.files import statistics
from channels.sinks.delta.storage import StorePath
from channels.sinks.delta.table_files import TableFile, open_data_file
from channels.sinks.delta.vectors import Positions

_PLAIN = ("INT", "STRING", "NONE")  # logical types whose bounds in a footer are values of the column
_KEPT_FILES = 1 << 13  # layouts: about 1 KB and 100 bytes a row group each


@dataclass(frozen=True, slots=True)
class FileLayout:
    """What a merge needs of the footer of a data file. A file never changes."""

    stats: str  # for an entry of the log that marks rows of the file as deleted
    rows: int
    first: npt.NDArray[np.int64]  # row number at which each row group begins
    groups: Sequence[TableFile]  # key range of each row group
    integers: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None  # the same, if the key is one integer


class MergeKeys:
    """The keys of a load. Calls: any thread."""

    def __init__(self, keys: pa.Table, key: Sequence[str]) -> None:
        """``keys``: distinct, in the columns ``key``. There is at least one."""
        self.key = list(key)
        self.keys = keys
        self.columns = [keys.column(name) for name in key]
        bounds = [pc.min_max(column) for column in self.columns]
        self._low, self._high = [one["min"] for one in bounds], [one["max"] for one in bounds]
        is_integer = len(key) == 1 and pa.types.is_integer(self.columns[0].type)
        self._sorted = np.sort(self.columns[0].to_numpy()) if is_integer else None

    def byte_count(self, files: Sequence[TableFile]) -> int:
        """Return at most how many bytes of keys must be read to look up the keys in ``files``."""
        return sum(file.rows for file in files) * max(1, int(self.keys.nbytes) // max(1, int(self.keys.num_rows)))

    def overlaps(self, file: TableFile) -> bool:
        """Return whether ``file`` may contain a key, by its bounds."""
        for low, high, first, last in zip(self._low, self._high, file.low, file.high, strict=True):
            try:
                if first.is_valid and last.is_valid and (pc.less(last, low).as_py() or pc.greater(first, high).as_py()):
                    return False
            except pa.ArrowException:  # the type of the bound cannot be compared
                continue
        if self._sorted is not None and file.low[0].is_valid and file.high[0].is_valid:
            position = np.searchsorted(self._sorted, file.low[0].as_py())
            return bool(position < len(self._sorted) and self._sorted[position] <= file.high[0].as_py())
        return True

    def index_for(self, file: TableFile) -> tuple[KeyIndex, npt.NDArray[np.int64]]:
        """Return an index of the keys that ``file`` may contain, and their row numbers in ``keys``."""
        keys, positions = self.keys, np.arange(self.keys.num_rows)
        if len(positions) > 2 * max(file.rows, 1) and file.is_bounded:
            column = self.columns[0]
            within = pc.and_(pc.greater_equal(column, file.low[0]), pc.less_equal(column, file.high[0]))
            positions = np.flatnonzero(within.to_numpy())
            keys = keys.take(pa.array(positions))
        return KeyIndex([keys.column(name) for name in self.key]), positions

    def columns_of(self, table: pa.Table) -> list[pa.ChunkedArray]:
        """Return the key columns of ``table``, with the types of the load."""
        return [table.column(name).cast(column.type) for name, column in zip(self.key, self.columns, strict=True)]

    def rows_in(self, path: StorePath, layout: FileLayout, file: TableFile) -> Positions:
        """Return the numbers of the rows of ``file`` that have one of the keys, rising.

        Raises: TargetMismatch, OSError.
        """
        groups = self._groups(layout)
        if not len(groups):
            return np.empty(0, np.uint64)
        with open_data_file(path) as opened:
            keys = self.columns_of(opened.read_row_groups(groups.tolist(), columns=self.key, use_threads=False))
        found = self._find(keys, file)
        ends = np.append(layout.first, layout.rows)
        counts = ends[groups + 1] - ends[groups]
        shift = ends[groups] - (np.cumsum(counts) - counts)  # of rows that were read to rows of the file
        return np.asarray(found + shift[np.searchsorted(np.cumsum(counts), found, side="right")], np.uint64)

    def _groups(self, layout: FileLayout) -> npt.NDArray[np.int64]:
        """Return the row groups that may contain a key."""
        if layout.integers is not None:
            low, high = layout.integers
            if self._sorted is None:  # truth values
                return np.arange(len(low))
            return np.flatnonzero(
                np.searchsorted(self._sorted, low) < np.searchsorted(self._sorted, high, side="right")
            )
        return np.flatnonzero([self.overlaps(group) for group in layout.groups])

    def _find(self, columns: Sequence[pa.ChunkedArray], file: TableFile) -> npt.NDArray[np.int64]:
        """Return which rows of ``columns`` have one of the keys."""
        if self._sorted is None or not len(columns[0]) or not strictly_rising(columns):
            return np.flatnonzero(self.index_for(file)[0].find(columns) >= 0)
        values = columns[0].to_numpy()
        least, most = np.searchsorted(self._sorted, values[0]), np.searchsorted(self._sorted, values[-1], side="right")
        keys = self._sorted[least:most]
        rows = np.searchsorted(values, keys)
        return np.asarray(rows[values[rows] == keys], np.int64)


@functools.lru_cache(maxsize=_KEPT_FILES)
def layout_of(path: StorePath, key: tuple[str, ...]) -> FileLayout:
    """Return the layout of a data file of a table with the columns ``key``. Raises: TargetMismatch, OSError."""
    with open_data_file(path) as file:
        footer = file.metadata
    groups = [_bounds_of(footer, number, key) for number in range(footer.num_row_groups)]
    rows = np.array([group.rows for group in groups], np.int64)
    low, high = ([getattr(group, side)[0].as_py() for group in groups] for side in ("low", "high"))
    is_integer = len(key) == 1 and all(isinstance(bound, int) for bound in (*low, *high))
    integers = (np.array(low, np.int64), np.array(high, np.int64)) if is_integer else None
    stats = loose(statistics(footer, key))
    return FileLayout(stats, footer.num_rows, np.cumsum(rows) - rows, () if is_integer else groups, integers)


def _bounds_of(footer: pq.FileMetaData, group: int, key: Sequence[str]) -> TableFile:
    """Return the key range of a row group. Of other types, the footer has forms that need a conversion: no bounds."""
    numbers = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
    lows, highs = list[pa.Scalar](), list[pa.Scalar]()
    for name in key:
        found: Any = footer.row_group(group).column(numbers[name]).statistics if name in numbers else None
        is_plain = name in numbers and footer.schema.column(numbers[name]).logical_type.type in _PLAIN
        if is_plain and found is not None and found.has_min_max and isinstance(found.min, int | str | bytes):
            lows.append(pa.scalar(found.min))
            highs.append(pa.scalar(found.max))
        else:
            lows.append(pa.scalar(None))
            highs.append(pa.scalar(None))
    return TableFile("", 0, footer.row_group(group).num_rows, tuple(lows), tuple(highs))
