"""Merge a load into a Delta table with deletion vectors: replaced rows are marked as deleted, new rows are new files.

No data file is written again. Of the files that may contain a key of the load, only the key columns of the row groups
that may contain it are read. Compaction deletes the marked rows later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from deltalake.transaction import AddAction

from channels.sinks.delta.entries import Action, MarkedFile
from channels.sinks.delta.lookup import FileLayout, MergeKeys, layout_of
from channels.sinks.delta.merge import Merge, side_by_side
from channels.sinks.delta.storage import StorePath
from channels.sinks.delta.table_files import TableFile, live_rows
from channels.sinks.delta.vectors import Positions, write_vectors

LOCAL_BYTES = 64 << 20  # of keys: about a second of one core. Executors look up the keys of larger merges
# (folder, files, keys) -> the rows of each file that have one of the keys. Raises any error.
FindRows = Callable[[StorePath, Sequence[TableFile], MergeKeys], Sequence[Positions]]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Match:
    """A data file with rows that the load replaces."""

    file: TableFile
    layout: FileLayout
    deleted: Positions  # of all rows, also those that were deleted before


class VectorMerge(Merge):
    """Computes the changes of a load to one table and writes new files and vectors. The caller writes the log."""

    executors: FindRows | None = None

    def actions(self, threads: Executor) -> list[Action]:
        """Write new files and one file of vectors, and return the log entries.

        Raises: TargetMismatch - a deletion vector is damaged; SinkUnavailable, OSError.
        """
        candidates = [file for file in self._files if self._load.lookup.overlaps(file)]
        rows = self._find(candidates, threads)
        matches = [found for found in side_by_side(threads, self._match, candidates, rows) if found is not None]
        emptied = [one for one in matches if len(one.deleted) == one.layout.rows]
        marked = {one.file.path: one for one in matches if len(one.deleted) < one.layout.rows}
        actions: list[Action] = [one.file.removal() for one in emptied]
        vectors = write_vectors(self._folder, {path: one.deleted for path, one in marked.items()}) if marked else {}
        for path, one in marked.items():
            actions.append(MarkedFile(path, one.file.size, vectors[path], one.layout.stats, logged=one.file.log_path))
        return [*actions, *self._add_rows(threads)]

    def _find(self, files: Sequence[TableFile], threads: Executor) -> Sequence[Positions]:
        """Return the rows of each of ``files`` that have a key of the load."""
        if self.executors is not None and self._load.lookup.byte_count(files) > LOCAL_BYTES:
            try:
                return self.executors(self._folder, files, self._load.lookup)
            except Exception as error:  # noqa: BLE001 - a commit does not depend on Spark
                logger.warning("Spark could not look up keys; this process does it: %s", error)

        def find(file: TableFile) -> Positions:
            path = self._folder / file.path
            return self._load.lookup.rows_in(path, layout_of(path, tuple(self._load.key)), file)

        return side_by_side(threads, find, files)

    def _match(self, file: TableFile, replaced: Positions) -> _Match | None:
        if not len(replaced):
            return None
        layout = layout_of(self._folder / file.path, tuple(self._load.key))
        live = live_rows(self._folder, file, layout.rows)
        if live is None:
            return _Match(file, layout, replaced)
        if not live[replaced].any():  # all of them are deleted already
            return None
        live[replaced] = False
        return _Match(file, layout, np.flatnonzero(~live).astype(np.uint64))

    def _add_rows(self, threads: Executor) -> list[AddAction]:
        """Add the upserts of the load: those of several small staged files in one file, sorted by key."""
        upserts = list(self._load.upserts())
        if len(upserts) == 1 or not self.is_small:
            added = side_by_side(threads, self._add_staged_file, *zip(*upserts, strict=True))
            return [action for actions in added for action in actions]
        rows = self._upserted().sort_by([(part, "ascending") for part in self._load.key])
        return self._write(iter([rows]), "new") if rows.num_rows else []
