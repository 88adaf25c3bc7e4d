"""Rows of a Delta table by key, from the committed version: only the row groups that may have them are read."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cdc.model.row_keys import KeyIndex
from channels.sinks.base import TargetTable
from channels.sinks.delta.files import unavailable
from channels.sinks.delta.keys import bound_value
from channels.sinks.delta.storage import StorePath
from channels.sinks.delta.table import arrow_schema
from channels.sinks.delta.table_files import TableFile, live_rows, open_data_file, rows_of, table_files
from channels.sinks.key_pages import is_greater
from channels.sinks.row_ranges import KeyRange

_KEPT_GROUPS = 3  # consecutive ranges often meet the same row group


class DeltaRows:
    """See ``RowReader``. Memory: a few row groups, and the rows that a call returns."""

    rounds_floats = False
    checksums = None

    def __init__(self, found: DeltaTable | None, folder: StorePath, table: TargetTable, columns: Sequence[str]) -> None:
        self._folder, self._key = folder, list(table.key)
        types = {column.name: column.arrow for column in table.columns}
        stored = arrow_schema(found) if found is not None else pa.schema(list(types.items()))
        self._schema = pa.schema([pa.field(name, stored.field(name).type) for name in columns])
        self._files = table_files(found, table.key) if found is not None else []
        self._footers: dict[str, pq.FileMetaData] = {}
        self._groups: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()

    def has_order_of(self, columns: Sequence[str]) -> bool:
        """See ``RowReader``."""
        return True

    def between(self, range: KeyRange, columns: Sequence[str] | None = None) -> pa.Table:
        """See ``RowReader``."""
        low, high = (
            bound_value(bound[0], self._schema.field(range.columns[0]).type) if bound is not None else None
            for bound in (range.above, range.upto)
        )
        found = [self._schema.empty_table()]
        for rows in self._candidates(range.columns[0], low, high):
            mask = _within(rows, range)
            found.append(rows if mask is None else _rows_in(rows, mask))
        rows = pa.concat_tables(found)
        return rows if columns is None else rows.select(list(columns))

    def of_keys(self, keys: pa.Table) -> pa.Table:
        """See ``RowReader``."""
        if not keys.num_rows:
            return self._schema.empty_table()
        columns = [keys.column(name).cast(self._schema.field(name).type) for name in self._key]
        ends = pc.min_max(columns[0])
        index, found = KeyIndex(columns), [self._schema.empty_table()]
        for rows in self._candidates(
            self._key[0], *(bound_value(ends[side], columns[0].type) for side in ("min", "max"))
        ):
            hits = np.flatnonzero(index.find([rows.column(name) for name in self._key]) >= 0)
            if len(hits):
                found.append(rows.take(pa.array(hits)))
        return pa.concat_tables(found)

    def _candidates(self, column: str, low: Any, high: Any) -> Iterator[pa.Table]:
        """Yield the row groups that may have rows with ``low`` <= ``column`` <= ``high``; None: no limit."""
        for file in self._files:
            if not _meets(*self._bounds(file, column), low, high):
                continue
            try:
                yield from self._groups_of(file, column, low, high)
            except OSError as error:
                raise unavailable(error, self._folder / file.path) from error

    def _groups_of(self, file: TableFile, column: str, low: Any, high: Any) -> Iterator[pa.Table]:
        path = self._folder / file.path
        footer = self._footer(file.path)
        names = [footer.schema.column(number).path for number in range(footer.num_columns)]
        number = names.index(column) if column in names else None
        kind = self._schema.field(column).type
        opened: pq.ParquetFile | None = None
        with ExitStack() as stack:
            for group in range(footer.num_row_groups):
                if number is not None and not _meets(*_group_bounds(footer, group, number, kind), low, high):
                    continue
                rows = self._groups.get((file.path, group))
                if rows is None:
                    opened = opened or stack.enter_context(open_data_file(path, footer))
                    rows = self._live(file, footer, group, rows_of(opened, self._schema, group))
                    self._groups[file.path, group] = rows
                    while len(self._groups) > _KEPT_GROUPS:
                        self._groups.popitem(last=False)
                yield rows

    def _footer(self, path: str) -> pq.FileMetaData:
        if path not in self._footers:
            with open_data_file(self._folder / path) as file:
                self._footers[path] = file.metadata
        return self._footers[path]

    def _live(self, file: TableFile, footer: pq.FileMetaData, group: int, rows: pa.Table) -> pa.Table:
        """Return the rows of a row group that are not deleted."""
        mask = live_rows(self._folder, file, footer.num_rows)
        if mask is None:
            return rows
        first = sum(footer.row_group(number).num_rows for number in range(group))
        return rows.filter(pa.array(mask[first : first + rows.num_rows]))

    def _bounds(self, file: TableFile, column: str) -> tuple[Any, Any]:
        if column not in self._key:
            return None, None
        number, kind = self._key.index(column), self._schema.field(column).type
        return bound_value(file.low[number], kind), bound_value(file.high[number], kind)


def _meets(first: Any, last: Any, low: Any, high: Any) -> bool:
    """Return whether two closed ranges may have a common value. None: no limit, or it is not known."""
    try:
        return not ((last is not None and low is not None and last < low) or
                    (first is not None and high is not None and first > high))  # fmt: skip
    except TypeError:
        return True


def _group_bounds(footer: pq.FileMetaData, group: int, column: int, kind: pa.DataType) -> tuple[Any, Any]:
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return None, None  # footers give other types in forms that need a conversion
    found = footer.row_group(group).column(column).statistics
    return (found.min, found.max) if found is not None and found.has_min_max else (None, None)


def _within(rows: pa.Table, range: KeyRange) -> pa.ChunkedArray | None:
    """Return the mask of the rows in ``range``; None: all."""
    columns = [rows.column(name) for name in range.columns]
    mask = None
    if range.above is not None:
        mask = is_greater(columns, _cast(range.above, columns))
    if range.upto is not None:
        upto = pc.invert(is_greater(columns, _cast(range.upto, columns)))
        mask = upto if mask is None else pc.and_(mask, upto)
    return None if mask is None or pc.all(mask, min_count=0).as_py() else mask


def _rows_in(rows: pa.Table, mask: pa.ChunkedArray) -> pa.Table:
    """Return the rows for which ``mask`` is true, without a copy if they follow each other."""
    hits = np.flatnonzero(mask.to_numpy())
    if len(hits) and hits[-1] - hits[0] + 1 == len(hits):
        return rows.slice(int(hits[0]), len(hits))
    return rows.take(pa.array(hits))


def _cast(values: Sequence[pa.Scalar], columns: Sequence[pa.ChunkedArray]) -> list[pa.Scalar]:
    return [value.cast(column.type) for value, column in zip(values, columns, strict=True)]
