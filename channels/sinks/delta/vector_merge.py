"""Merge a load into a Delta table with deletion vectors: replaced rows are marked as deleted, new rows are new files.

No data file is written again. Of the files that may contain a key of the load, only the key columns of the row groups
that may contain it are read. Compaction deletes the marked rows later.
"""

from __future__ import annotations

import json
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from channels.sinks.delta.entries import MarkedFile
from channels.sinks.delta.files import statistics
from channels.sinks.delta.merge import Merge, side_by_side
from channels.sinks.delta.table_files import Action, TableFile, live_rows
from channels.sinks.delta.vectors import Positions, write_vectors

_PLAIN = ("INT", "STRING", "NONE")  # logical types whose bounds in a footer are values of the column


@dataclass(slots=True)
class _Match:
    """A data file with rows that the load replaces."""

    file: TableFile
    footer: pq.FileMetaData
    deleted: Positions  # of all rows, also those that were deleted before


class VectorMerge(Merge):
    """Computes the changes of a load to one table and writes new files and vectors. The caller writes the log."""

    def actions(self, threads: Executor) -> list[Action]:
        """Write new files and one file of vectors, and return the log entries.

        Raises: TargetMismatch - a deletion vector is damaged; SinkUnavailable, OSError.
        """
        candidates = [file for file in self._files if self._load.overlaps(file)]
        matches = [found for found in side_by_side(threads, self._match, candidates) if found is not None]
        emptied = [one for one in matches if len(one.deleted) == one.footer.num_rows]
        marked = {one.file.path: one for one in matches if len(one.deleted) < one.footer.num_rows}
        actions: list[Action] = [one.file.removal() for one in emptied]
        vectors = write_vectors(self._folder, {path: one.deleted for path, one in marked.items()}) if marked else {}
        for path, one in marked.items():
            actions.append(MarkedFile(path, one.file.size, vectors[path], self._statistics(one.footer)))
        return [*actions, *self._add_rows(threads)]

    def _match(self, file: TableFile) -> _Match | None:
        index, _ = self._load.index_for(file)
        with pq.ParquetFile(self._folder / file.path, memory_map=True) as opened:
            footer, found, first = opened.metadata, list[Positions](), 0
            for group in range(footer.num_row_groups):
                if self._load.overlaps(_group_bounds(footer, group, self._load.key)):
                    keys = opened.read_row_group(group, columns=self._load.key, use_threads=False)
                    hits = np.flatnonzero(index.find(self._load.columns_of(keys)) >= 0)
                    found.append((hits + first).astype(np.uint64))
                first += footer.row_group(group).num_rows
        replaced = np.concatenate([np.empty(0, np.uint64), *found])
        if not len(replaced):
            return None
        live = live_rows(self._folder, file, footer.num_rows)
        if live is None:
            return _Match(file, footer, replaced)
        if not live[replaced].any():  # all of them are deleted already
            return None
        live[replaced] = False
        return _Match(file, footer, np.flatnonzero(~live).astype(np.uint64))

    def _statistics(self, footer: pq.FileMetaData) -> str:
        """Return the statistics of all rows: those that stay may have closer bounds."""
        return json.dumps({**json.loads(statistics(footer, self._load.key)), "tightBounds": False}, ensure_ascii=False)

    def _add_rows(self, threads: Executor) -> list[AddAction]:
        """Add the upserts of the load: those of several small staged files in one file, sorted by key."""
        upserts = list(self._load.upserts())
        if len(upserts) == 1 or not self.is_small:
            added = side_by_side(threads, self._add_staged_file, *zip(*upserts, strict=True))
            return [action for actions in added for action in actions]
        rows = self._upserted().sort_by([(part, "ascending") for part in self._load.key])
        return self._write(iter([rows]), "new") if rows.num_rows else []


def _group_bounds(footer: pq.FileMetaData, group: int, key: list[str]) -> TableFile:
    """Return the key range of a row group. Of other types, the footer has forms that need a conversion: no bounds."""
    numbers = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
    lows, highs = [], []
    for name in key:
        found = footer.row_group(group).column(numbers[name]).statistics if name in numbers else None
        is_plain = name in numbers and footer.schema.column(numbers[name]).logical_type.type in _PLAIN
        if is_plain and found is not None and found.has_min_max and isinstance(found.min, int | str | bytes):
            lows.append(pa.scalar(found.min))
            highs.append(pa.scalar(found.max))
        else:
            lows.append(pa.scalar(None))
            highs.append(pa.scalar(None))
    return TableFile("", 0, footer.row_group(group).num_rows, tuple(lows), tuple(highs))
