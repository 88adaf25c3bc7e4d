"""The merge of a load into a Delta table: files that hold a key of it are written anew, all others stay.

A table is laid out as leaves of up to ``LEAF_ROWS`` rows and ``LEAF_BYTES``, apart in their key ranges as far as rows
came in key order.
What a merge costs follows the leaves touched; a load whose keys are all new rewrites nothing, its staged files become
files of the table as they are. Nothing larger than one leaf and the load's keys is held in memory.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from cdc.schema import DELETED
from channels.sinks.delta_files import copy, now_ms, statistics, unpacked_bytes, write_parquet
from spark.newest import KeyIndex, strictly_rising

LEAF_ROWS = 200_000
LEAF_BYTES = 64 << 20  # in memory: what wide rows fill before they are so many
_ROUTED_ROWS = LEAF_ROWS  # a load up to this size is held in memory, and its rows go to the leaves that they belong to

_LATEST = 253_402_300_799_999_999  # the last microsecond of the year 9999

Action = AddAction | RemoveAction
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of the table's snapshot."""

    path: str  # relative to the table
    size: int
    rows: int
    low: tuple[Any, ...]  # Arrow scalars by key column; NULL where the log has no bound
    high: tuple[Any, ...]

    @property
    def is_bounded(self) -> bool:
        """Whether the log tells a range of the first key column."""
        return bool(self.low[0].is_valid and self.high[0].is_valid)

    def removal(self, *, data_change: bool = True) -> RemoveAction:
        """The log's entry that this file is gone."""
        return RemoveAction(self.path, data_change, now_ms(), self.size, {})


def table_files(table: DeltaTable, key: Sequence[str]) -> list[TableFile]:
    """The files of the snapshot, with their key ranges as far as the log tells."""
    actions = pa.table(table.get_add_actions(flatten=True))
    paths, sizes = actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist()
    rows = actions.column("num_records").to_pylist() if "num_records" in actions.column_names else [None] * len(paths)
    bounds = {}
    for side in ("min", "max"):
        for name in key:
            known = f"{side}.{name}" in actions.column_names
            column = actions.column(f"{side}.{name}") if known else pa.nulls(len(paths))
            bounds[side, name] = list(_above(column) if side == "max" else _plain(column))
    return [
        TableFile(
            path,
            size,
            count or 0,
            tuple(bounds["min", name][number] for name in key),
            tuple(bounds["max", name][number] for name in key),
        )
        for number, (path, size, count) in enumerate(zip(paths, sizes, rows, strict=True))
    ]


def _plain(bounds: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Bounds of text, NULL beyond U+FFFF: where a log has such characters as escapes, deltalake gives others."""
    if pa.types.is_string_view(bounds.type):
        bounds = bounds.cast(pa.string())
    if not (pa.types.is_string(bounds.type) or pa.types.is_large_string(bounds.type)):
        return bounds
    return pc.if_else(pc.match_substring_regex(bounds, "[\U00010000-\U0010ffff]"), pa.scalar(None, bounds.type), bounds)


def _above(bounds: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
    """Upper bounds that hold: the log may have cut a time to its millisecond.

    Source: the Delta protocol, "Per-file Statistics".
    """
    bounds = _plain(bounds)
    if not pa.types.is_timestamp(bounds.type):
        return bounds
    latest = pa.scalar(_LATEST, pa.int64())
    raised = pc.add(bounds.cast(pa.timestamp("us", bounds.type.tz)).cast(pa.int64()), 999)
    return pc.min_element_wise(raised, latest, skip_nulls=False).cast(pa.timestamp("us", bounds.type.tz))


@dataclass(slots=True)
class StagedFile:
    """A staged file of the load, in commit order."""

    path: Path
    footer: pq.FileMetaData
    first_row: int  # of the whole load

    @property
    def deletes(self) -> bool:
        """Whether some of its rows are deletes."""
        return DELETED in self.footer.schema.names


class Load:
    """All staged files of one table and checkpoint; their keys in memory, and which rows are the newest."""

    def __init__(self, files: Sequence[Path], key: Sequence[str]) -> None:
        """Raises: FileNotFoundError - a staged file is gone."""
        self.key = list(key)
        self.files: list[StagedFile] = []
        pieces, first_row = [], 0
        for path in files:
            with pq.ParquetFile(path, memory_map=True) as file:
                self.files.append(StagedFile(path, file.metadata, first_row))
                first_row += file.metadata.num_rows
                columns = [*self.key, DELETED] if self.files[-1].deletes else self.key
                piece = file.read(columns)
            if DELETED not in piece.column_names:
                piece = piece.append_column(DELETED, pa.repeat(pa.scalar(False), piece.num_rows))
            pieces.append(piece)
        keys = pa.concat_tables(pieces)
        self.row_count = keys.num_rows
        self.unique = strictly_rising(self._columns(keys))
        newest = np.arange(self.row_count)
        if not self.unique:
            index = KeyIndex(self._columns(keys))
            self.unique = index.count == self.row_count
            if not self.unique:
                newest = np.sort(index.last_rows())
                keys = keys.take(pa.array(newest))
        self.keys = keys  # of the newest rows, with ``__deleted``
        self.newest = newest  # their row numbers within the load
        self.low, self.high = self._bounds(keys)

    @property
    def row_bytes(self) -> int:
        """What its rows would take in memory."""
        return sum(unpacked_bytes(file.footer) for file in self.files)

    @property
    def key_bytes(self) -> int:
        """What the keys take in memory, their index included."""
        return int(self.keys.nbytes * (1 if self.unique else 4))

    def upserts(self) -> Iterator[tuple[StagedFile, pa.Array | None]]:
        """Each staged file with the mask of its rows that are the newest and no deletes; None means all."""
        wanted = np.zeros(self.row_count, bool)
        wanted[self.newest] = ~self.keys.column(DELETED).to_numpy()
        for file in self.files:
            mask = wanted[file.first_row : file.first_row + file.footer.num_rows]
            yield file, None if mask.all() else pa.array(mask)

    def overlaps(self, file: TableFile) -> bool:
        """Whether ``file`` may hold a key of the load, as far as bounds tell."""
        for low, high, first, last in zip(self.low, self.high, file.low, file.high, strict=True):
            try:
                if first.is_valid and last.is_valid and (pc.less(last, low).as_py() or pc.greater(first, high).as_py()):
                    return False
            except pa.ArrowException:  # the log's bound is of a type that cannot be compared: no bound
                continue
        if len(self.key) == 1 and pa.types.is_integer(self.keys.column(0).type) and file.low[0].is_valid:
            values = self._sorted()
            place = np.searchsorted(values, file.low[0].as_py())
            return bool(place < len(values) and values[place] <= file.high[0].as_py())
        return True

    def index_for(self, file: TableFile) -> tuple[KeyIndex, np.ndarray[Any, np.dtype[np.int64]]]:
        """An index of the keys that ``file`` may hold, and their places in ``keys``."""
        keys, places = self.keys, np.arange(self.keys.num_rows)
        if len(places) > 2 * max(file.rows, 1) and file.is_bounded:
            column = keys.column(self.key[0])
            within = pc.and_(pc.greater_equal(column, file.low[0]), pc.less_equal(column, file.high[0]))
            places = np.flatnonzero(within.to_numpy())
            keys = keys.take(pa.array(places))
        return KeyIndex(self._columns(keys)), places

    def columns_of(self, table: pa.Table) -> list[pa.ChunkedArray]:
        """The key columns of ``table``, of the load's types."""
        return [table.column(name).cast(self.keys.schema.field(name).type) for name in self.key]

    def _columns(self, keys: pa.Table) -> list[pa.ChunkedArray]:
        return [keys.column(name) for name in self.key]

    def _bounds(self, keys: pa.Table) -> tuple[list[Any], list[Any]]:
        found = [pc.min_max(column) for column in self._columns(keys)]
        return [one["min"] for one in found], [one["max"] for one in found]

    def _sorted(self) -> np.ndarray[Any, Any]:
        if not hasattr(self, "_sorted_values"):
            self._sorted_values = np.sort(self.keys.column(0).to_numpy())
        return self._sorted_values


@dataclass(slots=True)
class _Touched:
    """A leaf that holds keys of the load."""

    file: TableFile
    size: int  # of its rows in memory
    stays: np.ndarray[Any, Any]  # mask of its rows that the load does not replace
    found: np.ndarray[Any, Any]  # places in the load's keys


class Merge:
    """Works out what a load does to one table, and writes the files; the log is the caller's."""

    def __init__(self, folder: Path, schema: pa.Schema, load: Load, files: Sequence[TableFile], name: str) -> None:
        """``name`` is unused by any other merge, and begins the names of new files."""
        self._folder = folder
        self._schema = schema
        self._load = load
        self._files = files
        self._name = name

    def actions(self, threads: Executor) -> list[Action]:
        """Write new files and give the log's entries. Repeating writes the same files again.

        Raises: SinkUnavailable - disk full, no permission.
        """
        candidates = [file for file in self._files if self._load.overlaps(file)]
        touched = [found for found in _side_by_side(threads, self._touch, candidates) if found is not None]
        if self._load.row_count <= _ROUTED_ROWS and self._load.row_bytes <= LEAF_BYTES and touched:
            return self._route(touched, threads)
        written = _side_by_side(threads, self._rewrite, touched, itertools.repeat(None), itertools.count())
        adopted = _side_by_side(threads, self._adopt, *zip(*self._load.upserts(), strict=True))
        return list(itertools.chain(*written, *adopted))

    def _touch(self, file: TableFile) -> _Touched | None:
        index, places = self._load.index_for(file)
        with pq.ParquetFile(self._folder / file.path, memory_map=True) as opened:
            keys, size = opened.read(self._load.key, use_threads=False), unpacked_bytes(opened.metadata)
        found = index.find(self._load.columns_of(keys))
        hits = found[found >= 0]
        if not len(hits):
            return None
        # an index numbers keys by their first appearance, and each key of the load appears once
        return _Touched(file, size, found < 0, places[hits])

    def _route(self, touched: list[_Touched], threads: Executor) -> list[Action]:
        """A small load: its rows go to the leaves that held their keys, and new keys to where they belong."""
        rows = self._upserted()
        upserted = ~self._load.keys.column(DELETED).to_numpy()
        row_of = np.cumsum(upserted) - 1  # place in keys -> row in ``rows``
        homeless = upserted.copy()
        routed = []
        for one in touched:
            mine = one.found[upserted[one.found] & homeless[one.found]]
            homeless[mine] = False
            routed.append(mine)
        self._settle(touched, routed, homeless)
        arrived = [rows.take(pa.array(row_of[mine])) for mine in routed]
        written = _side_by_side(threads, self._rewrite, touched, arrived, itertools.count())
        actions = list(itertools.chain(*written))
        if homeless.any():
            rest = rows.take(pa.array(row_of[np.flatnonzero(homeless)]))
            actions += self._write(iter([rest]), "new")
        return actions

    def _settle(self, touched: list[_Touched], routed: list[Any], homeless: np.ndarray[Any, Any]) -> None:
        """Give new keys to the last touched leaf, where it is not full and no leaf behind it is in between."""
        ranked = [
            number for number, one in enumerate(touched) if one.file.low[0].is_valid and one.file.high[0].is_valid
        ]
        if not homeless.any() or not ranked:
            return
        last = max(ranked, key=lambda number: touched[number].file.high[0].as_py())
        leaf = touched[last].file
        highest = all(not file.high[0].is_valid or file.high[0].as_py() <= leaf.high[0].as_py() for file in self._files)
        if leaf.rows >= LEAF_ROWS or touched[last].size >= LEAF_BYTES or not highest:
            return
        column = self._load.keys.column(self._load.key[0])
        behind = pc.greater_equal(column, leaf.low[0].cast(column.type)).to_numpy() & homeless
        routed[last] = np.concatenate([routed[last], np.flatnonzero(behind)])
        homeless &= ~behind

    def _upserted(self) -> pa.Table:
        tables = []
        for file, mask in self._load.upserts():
            with pq.ParquetFile(file.path, memory_map=True) as opened:
                table = rows_of(opened, self._schema)
            tables.append(table if mask is None else table.filter(mask))
        return pa.concat_tables(tables)

    def _rewrite(self, touched: _Touched, rows: pa.Table | None, number: int) -> list[Action]:
        """``touched`` without the rows that the load replaces, and with ``rows``."""

        def tables() -> Iterator[pa.Table]:
            first = 0
            with pq.ParquetFile(self._folder / touched.file.path, memory_map=True) as file:
                for group in range(file.num_row_groups):
                    table = rows_of(file, self._schema, group)
                    stays = touched.stays[first : first + table.num_rows]
                    first += table.num_rows
                    yield table if stays.all() else table.filter(pa.array(stays))
            if rows is not None:
                yield rows

        written = tables()
        if rows is not None and (
            touched.stays.sum() + rows.num_rows > LEAF_ROWS + LEAF_ROWS // 2
            or touched.size + rows.nbytes > LEAF_BYTES + LEAF_BYTES // 2
        ):
            # the leaf falls into two: by key, so that their ranges stay apart
            written = iter([pa.concat_tables(written).sort_by([(part, "ascending") for part in self._load.key])])
        return [touched.file.removal(), *self._write(written, f"leaf-{number}")]

    def _adopt(self, file: StagedFile, mask: pa.Array | None) -> list[Action]:
        """The upserts of a staged file, as a file of the table: the very same file where all its rows are wanted."""
        if mask is None and not file.deletes:
            path = self._folder / f"{self._name}-staged-{file.first_row}.parquet"
            try:
                path.unlink(missing_ok=True)
                os.link(file.path, path)
            except OSError:  # another file system, or one without links
                copy(file.path, path)
            return [addition(path, file.footer, self._load.key)]

        def tables() -> Iterator[pa.Table]:
            first = 0
            with pq.ParquetFile(file.path, memory_map=True) as staged:
                for group in range(staged.num_row_groups):
                    table = rows_of(staged, self._schema, group)
                    wanted = mask.slice(first, table.num_rows) if mask is not None else None
                    first += table.num_rows
                    yield table if wanted is None else table.filter(wanted)

        return self._write(tables(), f"rows-{file.first_row}")

    def _write(self, tables: Iterator[pa.Table], name: str) -> list[Action]:
        """Write ``tables`` as leaves; none where there is no row."""
        return write_leaves(tables, self._folder, f"{self._name}-{name}", self._schema, self._load.key)


def rows_of(file: pq.ParquetFile, schema: pa.Schema, group: int | None = None) -> pa.Table:
    """Rows of a file, or of one of its row groups, as the table has them: a column that came later is NULL in them."""
    there = [name for name in schema.names if name in file.schema_arrow.names]
    found = file.read(there) if group is None else file.read_row_group(group, columns=there, use_threads=False)
    columns = [
        found.column(field.name).cast(field.type) if field.name in there else pa.nulls(found.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _side_by_side(threads: Executor, work: Callable[..., _Result], first: Sequence[Any], *more: Any) -> list[_Result]:
    """``map``, on ``threads`` where there is more than one thing to do: a hop between threads costs a small merge."""
    arguments = list(zip(first, *more))  # noqa: B905 - the others may be endless
    if len(arguments) == 1:
        return [work(*arguments[0])]
    return list(threads.map(work, *zip(*arguments, strict=True))) if arguments else []


def write_leaves(
    tables: Iterator[pa.Table],
    folder: Path,
    name: str,
    schema: pa.Schema,
    key: Sequence[str],
    *,
    data_change: bool = True,
) -> list[Action]:
    """Write ``tables`` as leaves of at most one and a half ``LEAF_ROWS`` and ``LEAF_BYTES``; the log's entries."""
    actions: list[Action] = []
    pending: list[pa.Table] = []
    most_rows, most_bytes = LEAF_ROWS + LEAF_ROWS // 2, LEAF_BYTES + LEAF_BYTES // 2
    rows_left, bytes_left = most_rows, most_bytes

    def flush() -> None:
        path = folder / f"{name}-{len(actions)}.parquet"
        footer = write_parquet(path, schema, iter([pa.concat_tables(pending)]))
        actions.append(addition(path, footer, key, data_change=data_change))
        pending.clear()

    for table in tables:
        while table.num_rows:
            fitting = bytes_left * table.num_rows // max(1, table.nbytes)
            pending.append(table.slice(0, max(1, min(rows_left, fitting))))
            rows_left -= pending[-1].num_rows
            bytes_left -= pending[-1].nbytes
            table = table.slice(pending[-1].num_rows)
            if rows_left <= 0 or bytes_left <= 0 or table.num_rows:
                flush()
                rows_left, bytes_left = most_rows, most_bytes
    if pending:
        flush()
    return actions


def addition(path: Path, footer: pq.FileMetaData, key: Sequence[str], *, data_change: bool = True) -> AddAction:
    """The log's entry that a file is part of the table."""
    return AddAction(path.name, path.stat().st_size, {}, now_ms(), data_change, statistics(footer, key))
