"""Merge a load into a Delta table: files that contain one of its keys are rewritten, all others stay.

A data file has up to ``FILE_ROWS`` rows and ``FILE_BYTES``. Key ranges of files do not overlap if rows arrived in key
order. The cost of a merge depends on the number of affected files. A load with new keys only rewrites no file: its
staged files become files of the table. A merge holds at most one data file and the keys of the load in memory. A larger
file of another writer is divided as it is read, without a sort.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from cdc.model.row_keys import KeyIndex, strictly_rising
from cdc.model.schema import DELETED
from channels.sinks.delta.entries import Action
from channels.sinks.delta.files import now_ms, statistics, unpacked_bytes, write_parquet
from channels.sinks.delta.lookup import MergeKeys
from channels.sinks.delta.storage import StorePath, adopt, open_parquet
from channels.sinks.delta.table_files import TableFile, live_rows, open_data_file, rows_of

FILE_ROWS = 200_000
FILE_BYTES = 64 << 20  # in memory; wide rows reach this limit first
_ASSIGNED_ROWS = FILE_ROWS  # a load up to this size is held in memory, and each row is written to its data file

_Result = TypeVar("_Result")


@dataclass(slots=True)
class StagedFile:
    """A staged file of the load, in commit order."""

    path: StorePath
    footer: pq.FileMetaData
    first_row: int  # of the whole load

    @property
    def deletes(self) -> bool:
        """Return whether some of its rows are deletes."""
        return DELETED in self.footer.schema.names


class MergeLoad:
    """All staged files of one table and checkpoint, with their keys in memory and the newest row of each key."""

    def __init__(self, files: Sequence[StorePath], key: Sequence[str], threads: Executor | None = None) -> None:
        """Read the keys of ``files``, on ``threads``: an object store answers slowly, but many requests at once.

        Raises: FileNotFoundError - a staged file does not exist; OSError.
        """
        self.key = list(key)
        self.files: list[StagedFile] = []
        pieces, first_row = list[pa.Table](), 0
        found = map(self._read, files) if threads is None else side_by_side(threads, self._read, files)
        for path, (footer, piece) in zip(files, found, strict=True):
            self.files.append(StagedFile(path, footer, first_row))
            first_row += footer.num_rows
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
        self.lookup = MergeKeys(keys, self.key)

    def _read(self, path: StorePath) -> tuple[pq.FileMetaData, pa.Table]:
        """Return the footer and the keys of a staged file, with ``__deleted``."""
        with open_parquet(path) as file:
            footer = file.metadata
            columns = [*self.key, DELETED] if DELETED in footer.schema.names else self.key
            piece = file.read(columns)
        if DELETED not in piece.column_names:
            piece = piece.append_column(DELETED, pa.repeat(pa.scalar(False), piece.num_rows))
        return footer, piece

    @property
    def row_bytes(self) -> int:
        """Return the bytes that its rows need in memory."""
        return sum(unpacked_bytes(file.footer) for file in self.files)

    @property
    def key_bytes(self) -> int:
        """Return the bytes that the keys and their index need in memory."""
        return int(self.keys.nbytes * (1 if self.unique else 4))

    def upserts(self) -> Iterator[tuple[StagedFile, pa.Array | None]]:
        """Yield each staged file with the mask of its newest rows that are not deletes; None: all rows."""
        requested = np.zeros(self.row_count, bool)
        requested[self.newest] = ~self.keys.column(DELETED).to_numpy()
        for file in self.files:
            mask = requested[file.first_row : file.first_row + file.footer.num_rows]
            yield file, None if mask.all() else pa.array(mask)

    def _columns(self, keys: pa.Table) -> list[pa.ChunkedArray]:
        return [keys.column(name) for name in self.key]


@dataclass(slots=True)
class AffectedFile:
    """A data file that contains keys of the load."""

    file: TableFile
    size: int  # of its rows in memory
    stays: np.ndarray[Any, Any]  # mask of the rows that the load does not replace
    found: np.ndarray[Any, Any]  # row numbers in the load's keys


class Merge:
    """Computes the changes of a load to one table and writes the files. The caller writes the log."""

    def __init__(
        self, folder: StorePath, schema: pa.Schema, load: MergeLoad, files: Sequence[TableFile], name: str
    ) -> None:
        """``name``: prefix of the new files; no other merge may use it."""
        self._folder = folder
        self._schema = schema
        self._load = load
        self._files = files
        self._name = name

    @property
    def is_small(self) -> bool:
        """Return whether the rows of the load are held in memory together."""
        return self._load.row_count <= _ASSIGNED_ROWS and self._load.row_bytes <= FILE_BYTES

    def actions(self, threads: Executor) -> list[Action]:
        """Write new files and return the log entries. A repeated call writes the same files again.

        Raises: SinkUnavailable - disk full, no permission.
        """
        candidates = [file for file in self._files if self._load.lookup.overlaps(file)]
        affected = [found for found in side_by_side(threads, self._affect, candidates) if found is not None]
        if self.is_small and affected:
            return self._assign_rows(affected, threads)
        written = side_by_side(threads, self._rewrite, affected, itertools.repeat(None), itertools.count())
        adopted = side_by_side(threads, self._add_staged_file, *zip(*self._load.upserts(), strict=True))
        return list(itertools.chain(*written, *adopted))

    def _affect(self, file: TableFile) -> AffectedFile | None:
        index, positions = self._load.lookup.index_for(file)
        with open_data_file(self._folder / file.path) as opened:
            keys, size = opened.read(self._load.key, use_threads=False), unpacked_bytes(opened.metadata)
            columns = self._load.lookup.columns_of(keys)
        found, live = index.find(columns), live_rows(self._folder, file, keys.num_rows)
        if live is not None:
            found = np.where(live, found, -1)
        hits = found[found >= 0]
        if not len(hits):
            return None
        # an index numbers keys by their first appearance, and each key of the load appears once
        stays = found < 0 if live is None else (found < 0) & live
        return AffectedFile(file, size, stays, positions[hits])

    def _assign_rows(self, affected: list[AffectedFile], threads: Executor) -> list[Action]:
        """Merge a small load: rows replace those with the same key in the same file; new keys are appended."""
        rows = self._upserted()
        upserted = ~self._load.keys.column(DELETED).to_numpy()
        row_of = np.cumsum(upserted) - 1  # row number in keys -> row in ``rows``
        unassigned = upserted.copy()
        routed = []
        for one in affected:
            mine = one.found[upserted[one.found] & unassigned[one.found]]
            unassigned[mine] = False
            routed.append(mine)
        self._append_new_keys(affected, routed, unassigned)
        arrived = [rows.take(pa.array(row_of[mine])) for mine in routed]
        written = side_by_side(threads, self._rewrite, affected, arrived, itertools.count())
        actions = list(itertools.chain(*written))
        if unassigned.any():
            rest = rows.take(pa.array(row_of[np.flatnonzero(unassigned)]))
            actions += self._write(iter([rest]), "new")
        return actions

    def _append_new_keys(
        self, affected: list[AffectedFile], routed: list[Any], unassigned: np.ndarray[Any, Any]
    ) -> None:
        """Assign new keys to the last affected file if it is not full and no other file has greater keys."""
        ranked = [
            number for number, one in enumerate(affected) if one.file.low[0].is_valid and one.file.high[0].is_valid
        ]
        if not unassigned.any() or not ranked:
            return
        last = max(ranked, key=lambda number: affected[number].file.high[0].as_py())
        data_file = affected[last].file
        highest = all(
            not file.high[0].is_valid or file.high[0].as_py() <= data_file.high[0].as_py() for file in self._files
        )
        if data_file.rows >= FILE_ROWS or affected[last].size >= FILE_BYTES or not highest:
            return
        column = self._load.keys.column(self._load.key[0])
        after = pc.greater_equal(column, data_file.low[0].cast(column.type)).to_numpy() & unassigned
        routed[last] = np.concatenate([routed[last], np.flatnonzero(after)])
        unassigned &= ~after

    def _upserted(self) -> pa.Table:
        tables = []
        for file, mask in self._load.upserts():
            with open_parquet(file.path) as opened:
                table = rows_of(opened, self._schema)
            tables.append(table if mask is None else table.filter(mask))
        return pa.concat_tables(tables)

    def _rewrite(self, affected: AffectedFile, rows: pa.Table | None, number: int) -> list[Action]:
        """Write the affected file again, without the rows that the load replaces, and with ``rows``."""

        def tables() -> Iterator[pa.Table]:
            first = 0
            with open_data_file(self._folder / affected.file.path) as file:
                for group in range(file.num_row_groups):
                    table = rows_of(file, self._schema, group)
                    stays = affected.stays[first : first + table.num_rows]
                    first += table.num_rows
                    yield table if stays.all() else table.filter(pa.array(stays))
            if rows is not None:
                yield rows

        written = tables()
        if (
            rows is not None
            and (
                affected.stays.sum() + rows.num_rows > FILE_ROWS + FILE_ROWS // 2
                or affected.size + rows.nbytes > FILE_BYTES + FILE_BYTES // 2
            )
            and can_sort(len(affected.stays), affected.size)
        ):
            # the file becomes two: sort by key, so that their ranges do not overlap
            written = iter([pa.concat_tables(written).sort_by([(part, "ascending") for part in self._load.key])])
        return [affected.file.removal(), *self._write(written, f"file-{number}")]

    def _add_staged_file(self, file: StagedFile, mask: pa.Array | None) -> list[AddAction]:
        """Add the upserts of a staged file to the table: as a link to the file if all rows are upserts."""
        if mask is None and not file.deletes:
            path = self._folder / f"{self._name}-staged-{file.first_row}.parquet"
            adopt(file.path, path)
            return [addition(path, file.footer, self._load.key)]

        def tables() -> Iterator[pa.Table]:
            first = 0
            with open_parquet(file.path) as staged:
                for group in range(staged.num_row_groups):
                    table = rows_of(staged, self._schema, group)
                    requested = mask.slice(first, table.num_rows) if mask is not None else None
                    first += table.num_rows
                    yield table if requested is None else table.filter(requested)

        return self._write(tables(), f"rows-{file.first_row}")

    def _write(self, tables: Iterator[pa.Table], name: str) -> list[AddAction]:
        """Write ``tables`` as data files; none without rows."""
        return write_files(tables, self._folder, f"{self._name}-{name}", self._schema, self._load.key)


def can_sort(row_count: int, byte_count: int) -> bool:
    """Return whether rows of data files are sorted in memory.

    Other writers have files of 1 GiB and more, for example Spark's OPTIMIZE. pyarrow cannot sort 2 GiB of text.
    """
    return row_count <= 4 * FILE_ROWS and byte_count <= 4 * FILE_BYTES


def side_by_side(threads: Executor, work: Callable[..., _Result], first: Sequence[Any], *more: Any) -> list[_Result]:
    """Map on ``threads``. A single call runs on this thread, because switching threads slows a small merge."""
    arguments = list(zip(first, *more))  # noqa: B905 - the others may be endless
    if len(arguments) == 1:
        return [work(*arguments[0])]
    return list(threads.map(work, *zip(*arguments, strict=True))) if arguments else []


def write_files(
    tables: Iterator[pa.Table],
    folder: StorePath,
    name: str,
    schema: pa.Schema,
    key: Sequence[str],
    *,
    data_change: bool = True,
) -> list[AddAction]:
    """Write ``tables`` as data files of at most 1.5 ``FILE_ROWS`` and ``FILE_BYTES``; return the log entries."""
    actions: list[AddAction] = []
    pending: list[pa.Table] = []
    most_rows, most_bytes = FILE_ROWS + FILE_ROWS // 2, FILE_BYTES + FILE_BYTES // 2
    rows_left, bytes_left = most_rows, most_bytes

    def flush() -> None:
        path = folder / f"{name}-{len(actions)}.parquet"
        footer = write_parquet(path, schema, iter([pa.concat_tables(pending)]))
        actions.append(addition(path, footer, key, data_change=data_change))
        pending.clear()

    for table in tables:
        while table.num_rows:
            batch_rows = bytes_left * table.num_rows // max(1, table.nbytes)
            pending.append(table.slice(0, max(1, min(rows_left, batch_rows))))
            rows_left -= pending[-1].num_rows
            bytes_left -= pending[-1].nbytes
            table = table.slice(pending[-1].num_rows)
            if rows_left <= 0 or bytes_left <= 0 or table.num_rows:
                flush()
                rows_left, bytes_left = most_rows, most_bytes
    if pending:
        flush()
    return actions


def addition(path: StorePath, footer: pq.FileMetaData, key: Sequence[str], *, data_change: bool = True) -> AddAction:
    """Return the log entry that adds a file to the table."""
    return AddAction(path.name, path.stat().st_size, {}, now_ms(), data_change, statistics(footer, key))
