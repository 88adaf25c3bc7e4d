"""The data files of a Delta table's version: their key ranges, and their rows without the deleted ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cdc.errors import TargetMismatch
from channels.sinks.delta.entries import RemovedFile, file_vectors, folder_of
from channels.sinks.delta.storage import StorePath, open_parquet, relative
from channels.sinks.delta.vectors import Vector, damaged, read_vector

_LATEST = 253_402_300_799_999_999  # the last microsecond of the year 9999
_EXACT_DIGITS = 15  # a double has each decimal of so many digits
_DOUBLE_ERROR = Decimal(2) ** -51  # of a decimal that was written as a double, relative: three roundings at most
_MOST_INTEGER = Decimal(2**63 - 1)

_OUTSIDE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/|(?:.*/)?\.\.(?:/|$)", re.DOTALL)  # a path that leaves the table


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of the table's version."""

    path: str  # relative to the table
    size: int
    rows: int
    low: tuple[Any, ...]  # Arrow scalars by key column; NULL where the log has no bound
    high: tuple[Any, ...]
    vector: Vector | None = None
    logged: str | None = None  # its path as the log has it, if it is encoded

    @property
    def live_rows(self) -> int:
        """Return the number of rows that are not deleted, if the log has it."""
        return self.rows - (self.vector.cardinality if self.vector is not None else 0)

    def paths(self, folder: StorePath) -> list[str]:
        """Return the paths of the file and of its deletion vector, relative to ``folder``, the table's."""
        vector = self.vector.file(folder) if self.vector is not None else None
        return [self.path] if vector is None else [self.path, relative(vector, folder)]

    @property
    def is_bounded(self) -> bool:
        """Return whether the log has bounds of the first key column."""
        return bool(self.low[0].is_valid and self.high[0].is_valid)

    @property
    def log_path(self) -> str:
        """Return the path as the log has it."""
        return self.path if self.logged is None else self.logged

    def removal(self, *, data_change: bool = True) -> RemovedFile:
        """Return the log entry that removes this file."""
        return RemovedFile(self.path, self.size, self.log_path, data_change)


def table_files(table: DeltaTable, key: Sequence[str]) -> list[TableFile]:
    """Return the files of the table's version, with their key ranges if the log has them.

    Raises: TargetMismatch - a file is there twice, or is outside the table; SinkUnavailable - an entry of the log is
    missing.
    """
    while True:
        version = table.version()
        actions, vectors = pa.table(table.get_add_actions(flatten=True)), file_vectors(table)
        if table.version() == version:  # another thread can update the handle; files and vectors must be of one version
            break
    logged, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
    paths = [unquote(path) if "%" in path else path for path in logged]
    if outside := next(filter(_OUTSIDE.match, paths), None):
        raise TargetMismatch(
            "The Delta table has data files outside its folder, as a shallow clone of another table has.",
            hint="Use a separate target table, or copy the rows into a table of its own, for example by CREATE TABLE "
            "AS SELECT.",
            path=folder_of(table),
            file=outside,
        )
    if len(set(paths)) != len(paths):
        raise TargetMismatch(
            "The Delta table has a data file twice, with different deletion vectors: another writer has removed a file "
            "without its vector.",
            hint="Stop the other writer. Move the table's folder away and run `cdc resume NAME --reload-missing`.",
            path=folder_of(table),
        )
    rows = actions.column("num_records").to_pylist() if "num_records" in actions.column_names else [None] * len(paths)
    bounds = {}
    for side in ("min", "max"):
        for name in key:
            known = f"{side}.{name}" in actions.column_names
            column = actions.column(f"{side}.{name}") if known else pa.nulls(len(paths))
            bounds[side, name] = list(_above(column) if side == "max" else _below(column))
    return [
        TableFile(
            path,
            size,
            count or 0,
            tuple(bounds["min", name][number] for name in key),
            tuple(bounds["max", name][number] for name in key),
            vectors.get(path),
            None if path == in_log else in_log,
        )
        for number, (path, in_log, size, count) in enumerate(zip(paths, logged, sizes, rows, strict=True))
    ]


def _plain(bounds: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return text bounds, NULL if they contain characters beyond U+FFFF, which deltalake decodes wrongly."""
    if pa.types.is_string_view(bounds.type):
        bounds = bounds.cast(pa.string())
    if not (pa.types.is_string(bounds.type) or pa.types.is_large_string(bounds.type)):
        return bounds
    return pc.if_else(pc.match_substring_regex(bounds, "[\U00010000-\U0010ffff]"), pa.scalar(None, bounds.type), bounds)


def _below(bounds: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return safe lower bounds."""
    return _wide_decimals(bounds, -1) if pa.types.is_decimal(bounds.type) else _plain(bounds)


def _wide_decimals(bounds: pa.ChunkedArray | pa.Array, sign: int) -> pa.Array:
    """Return decimal bounds that are safe also for files of deltalake, which writes decimals as rounded doubles.

    It writes 2^63 - 1 for each greater integer, and -2^63 for each smaller one. ``sign``: 1 for upper bounds, -1 for
    lower ones. NULL where the type has no safe bound.
    """
    kind, values = bounds.type, bounds.to_pylist()
    unit = Decimal((0, (1,), -kind.scale))
    exact = unit.scaleb(_EXACT_DIGITS)
    if all(value is None or abs(value) < exact for value in values):
        return bounds
    most, wide = unit.scaleb(kind.precision), list[Decimal | None]()
    with localcontext(Context(prec=2 * kind.precision + 2)):
        for value in values:
            if value is not None and abs(value) >= exact:
                is_cut = sign * value >= _MOST_INTEGER
                value = (value + sign * (abs(value) * _DOUBLE_ERROR + unit)).quantize(unit)
                value = None if is_cut or abs(value) >= most else value
            wide.append(value)
    return pa.array(wide, kind)


def _above(bounds: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Return safe upper bounds: the log may truncate a time to milliseconds.

    Source: the Delta protocol, "Per-file Statistics".
    """
    if pa.types.is_decimal(bounds.type):
        return _wide_decimals(bounds, 1)
    bounds = _plain(bounds)
    if not pa.types.is_timestamp(bounds.type):
        return bounds
    latest = pa.scalar(_LATEST, pa.int64())
    raised = pc.add(bounds.cast(pa.timestamp("us", bounds.type.tz)).cast(pa.int64()), 999)
    return pc.min_element_wise(raised, latest, skip_nulls=False).cast(pa.timestamp("us", bounds.type.tz))


@contextmanager
def open_data_file(path: StorePath, footer: pq.FileMetaData | None = None) -> Iterator[pq.ParquetFile]:
    """Open a data file of a table, see ``open_parquet``.

    Raises: TargetMismatch - it cannot be read, or not with the types of the table; OSError.
    """
    try:
        with open_parquet(path, footer) as file:
            yield file
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise TargetMismatch(
            f"A data file of the Delta table cannot be read: {error}.",
            hint="Restore the file from a backup, or write its rows again with the program that wrote it; then run "
            "`cdc resume NAME`. Or move the table's folder away and run `cdc resume NAME --reload-missing`.",
            path=path,
        ) from error


def live_rows(folder: StorePath, file: TableFile, rows: int) -> npt.NDArray[np.bool_] | None:
    """Return the mask of the rows of ``file`` that are not deleted; None: all. ``rows``: of the file.

    Raises: TargetMismatch - the deletion vector is damaged; SinkUnavailable.
    """
    if file.vector is None:
        return None
    deleted = read_vector(folder, file.vector)
    if len(deleted) and deleted[-1] >= rows:
        raise damaged(f"names row {deleted[-1]} of a file with {rows} rows", folder, file.vector)
    mask = np.ones(rows, np.bool_)
    mask[deleted] = False
    return mask


def live_tables(folder: StorePath, file: TableFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of ``file`` by row group, with the columns of ``schema``, without deleted rows.

    Raises: see ``live_rows``; OSError.
    """
    with open_data_file(folder / file.path) as opened:
        mask, first = live_rows(folder, file, opened.metadata.num_rows), 0
        for group in range(opened.num_row_groups):
            rows = rows_of(opened, schema, group)
            part = mask[first : first + rows.num_rows] if mask is not None else None
            first += rows.num_rows
            yield rows if part is None or part.all() else rows.filter(pa.array(part))


def rows_of(file: pq.ParquetFile, schema: pa.Schema, group: int | None = None) -> pa.Table:
    """Return all rows of a file or row group with the columns of the table. A column added later is NULL."""
    there = [name for name in schema.names if name in file.schema_arrow.names]
    found = file.read(there) if group is None else file.read_row_group(group, columns=there, use_threads=False)
    columns = [
        found.column(field.name).cast(field.type) if field.name in there else pa.nulls(found.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
