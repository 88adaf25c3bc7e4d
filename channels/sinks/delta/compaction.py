"""Compact small files of a Delta table, and files with many deleted rows, while commits continue.

A compaction reads files of one version and writes their rows to new files, sorted by key. When it commits, rows of the
old files can have been deleted since. It knows where each row is in the new files, so it writes deletion vectors for
them. No merge conflicts with it, and it repeats only this last step.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from channels.sinks.delta.entries import Action, MarkedFile, loose, writes_vectors
from channels.sinks.delta.files import unpacked_bytes
from channels.sinks.delta.merge import FILE_BYTES, FILE_ROWS, can_sort, write_files
from channels.sinks.delta.storage import StorePath
from channels.sinks.delta.table_files import TableFile, live_rows, live_tables, open_data_file
from channels.sinks.delta.vectors import Positions, read_vector, write_vectors

MergeMode = Literal["rewrite", "deletion_vectors"]

# a full Task writes larger files, so those of a backlog are not rewritten
_SMALL_ROWS = FILE_ROWS // 4
_SMALL_BYTES = FILE_BYTES // 8
_DEAD_SHARE = 0.1  # of a file; readers read deleted rows as well
_SMALL_FILES = 8  # rewrite at least this many small files
_ROUND_ROWS, _ROUND_BYTES = 20 * FILE_ROWS, 8 * FILE_BYTES  # limits of one call, because its result is lost by a crash


@dataclass(frozen=True, slots=True)
class CompactedFiles:
    """Files of a table, and the new files that have the same rows."""

    old: Sequence[TableFile]
    counts: Sequence[int]  # rows of each old file, also deleted ones
    new: Sequence[AddAction]
    rows: npt.NDArray[np.int64]  # of each row of the new files, in order: its number within the old files, in order

    def deleted_since(
        self, folder: StorePath, files: Mapping[str, TableFile], emptied: Collection[str]
    ) -> npt.NDArray[np.bool_] | None:
        """Return which rows of the new files are deleted in a later version; None if they cannot replace the old files.

        ``files``: of that version, by path. ``emptied``: files that are not in it because all their rows were deleted.
        Raises: TargetMismatch - a deletion vector is damaged; SinkUnavailable.
        """
        first, deleted = 0, np.zeros(sum(self.counts), np.bool_)
        for file, count in zip(self.old, self.counts, strict=True):
            now = files.get(file.path)
            if now is None and file.path not in emptied:
                return None  # another writer has replaced it
            if now is None:
                deleted[first : first + count] = True
            elif now.vector is not None:
                deleted[read_vector(folder, now.vector).astype(np.int64) + first] = True
            first += count
        found = deleted[self.rows]
        deleted[self.rows] = True
        return found if deleted.all() else None  # another writer has restored rows that the new files do not have


class Compactions:
    """The running compactions of one sink, and what merges do to their files. Calls: with the lock of the table."""

    def __init__(self, mode: MergeMode) -> None:
        """``mode``: of merges into tables that allow deletion vectors."""
        self._mode = mode
        self._emptied: dict[str, set[str]] = {}

    def merges_with_vectors(self, found: DeltaTable) -> bool:
        """Return whether merges into the table leave its files as they are."""
        return self._mode == "deletion_vectors" and writes_vectors(found)

    def begin(self, table: str) -> None:
        """Begin to record the files of ``table`` whose rows are all deleted."""
        self._emptied[table] = set()

    def note_emptied(self, table: str, paths: Iterable[str]) -> None:
        """Record files that a merge has removed from ``table`` because all their rows are deleted."""
        if table in self._emptied:
            self._emptied[table].update(paths)

    def emptied(self, table: str) -> Collection[str]:
        """Return the files that merges have removed since ``begin`` because all their rows are deleted."""
        return self._emptied.get(table, ())

    def end(self, table: str) -> None:
        """End the record."""
        self._emptied.pop(table, None)


def file_groups(folder: StorePath, files: Sequence[TableFile]) -> list[list[TableFile]]:
    """Return the files to compact, in groups that form about one data file each; [] if there are few.

    These are small files, and files of which more than a tenth is deleted.
    """
    small = [file for file in files if file.rows < _SMALL_ROWS and file.size < _SMALL_BYTES]
    if len(small) >= _SMALL_FILES:
        small = [file for file in small if _bytes(folder / file.path) < _SMALL_BYTES]
    if len(small) < _SMALL_FILES:
        small = []
    chosen = sorted({file.path: file for file in (*small, *filter(_is_sparse, files))}.values(), key=_sort_key)
    found: list[list[TableFile]] = []
    rows_left, bytes_left = _ROUND_ROWS, _ROUND_BYTES
    for group in _groups(folder, chosen):
        rows_left -= sum(file.live_rows for file in group)
        bytes_left -= sum(_bytes(folder / file.path) for file in group)
        if min(rows_left, bytes_left) < 0 and found:
            break
        found.append(group)
    return found


def compact(
    folder: StorePath, schema: pa.Schema, key: Sequence[str], group: Sequence[TableFile], name: str
) -> CompactedFiles:
    """Write the rows of ``group`` to new files, sorted by key, without deleted rows.

    The rows of a large file of another writer keep their order, see ``can_sort``. Memory: about two data files.
    ``name``: prefix of the new files; no other files may have it. Raises: TargetMismatch, SinkUnavailable, OSError.
    """
    counts, numbers, first = list[int](), [np.empty(0, np.int64)], 0
    for file in group:
        with open_data_file(folder / file.path) as opened:
            counts.append(opened.metadata.num_rows)
        live = live_rows(folder, file, counts[-1])
        numbers.append((np.arange(counts[-1]) if live is None else np.flatnonzero(live)) + first)
        first += counts[-1]
    tables: Iterator[pa.Table] = itertools.chain.from_iterable(live_tables(folder, file, schema) for file in group)
    order: slice | npt.NDArray[np.int64] = slice(None)
    if can_sort(first, sum(_bytes(folder / file.path) for file in group)):
        rows = pa.concat_tables([schema.empty_table(), *tables])
        indices = pc.sort_indices(rows, [(part, "ascending") for part in key])
        tables, order = iter([rows.take(indices)]), indices.to_numpy()
    added = write_files(tables, folder, name, schema, key, data_change=False)
    return CompactedFiles(group, counts, added, np.concatenate(numbers)[order])


def replacement(
    folder: StorePath, compacted: Sequence[CompactedFiles], files: Sequence[TableFile], emptied: Collection[str]
) -> list[Action]:
    """Return the log entries that replace the compacted files by the new ones in a later version.

    ``files``: of that version. ``emptied``: see ``CompactedFiles.deleted_since``. Writes a file of vectors for rows
    that were deleted meanwhile. Raises: TargetMismatch, SinkUnavailable, OSError.
    """
    now, actions = {file.path: file for file in files}, list[Action]()
    marked: dict[str, tuple[AddAction, Positions]] = {}
    for one in compacted:
        deleted = one.deleted_since(folder, now, emptied)
        if deleted is None:
            continue
        actions += [now[file.path].removal(data_change=False) for file in one.old if file.path in now]
        first = 0
        for added in one.new:
            count = json.loads(added.stats or "{}")["numRecords"]
            rows = np.flatnonzero(deleted[first : first + count]).astype(np.uint64)
            first += count
            if not len(rows):
                actions.append(added)
            elif len(rows) < count:
                marked[added.path] = added, rows
    vectors = write_vectors(folder, {path: rows for path, (_, rows) in marked.items()}) if marked else {}
    for path, (added, _) in marked.items():
        stats = loose(added.stats or "{}")
        actions.append(MarkedFile(path, added.size, vectors[path], stats, data_change=False))
    return actions


def _sort_key(file: TableFile) -> tuple[bool, object]:
    low = file.low[0].as_py() if file.low[0].is_valid else None
    return (low is not None, low if low is not None else 0)


def _groups(folder: StorePath, files: Sequence[TableFile]) -> Iterator[list[TableFile]]:
    """Yield groups of adjacent files that form one data file. A single file is rewritten only if it is sparse."""
    group: list[TableFile] = []
    rows = size = 0
    for file in files:
        group.append(file)
        rows, size = rows + file.live_rows, size + _bytes(folder / file.path)
        if rows >= FILE_ROWS or size >= FILE_BYTES:
            if len(group) > 1 or _is_sparse(file):
                yield group
            group, rows, size = [], 0, 0
    if len(group) > 1 or (group and _is_sparse(group[0])):
        yield group


def _is_sparse(file: TableFile) -> bool:
    """Return whether readers of the file read many deleted rows."""
    return file.vector is not None and file.vector.cardinality > file.rows * _DEAD_SHARE


@functools.lru_cache(maxsize=1 << 16)
def _bytes(path: StorePath) -> int:
    """See ``unpacked_bytes``; a file of a table never changes."""
    with open_data_file(path) as file:
        return unpacked_bytes(file.metadata)
