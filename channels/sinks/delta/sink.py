"""The Delta sink: tables in a folder or an object store, written without a server and without a JVM.

The table ``ods.orders`` is in ``<root>/ods/orders``, and prepared loads are in ``<root>/_cdc_staging``. A commit writes
its checkpoint to the log of every table that it changes: the id as application transaction, so that a repeated commit
changes nothing, and all of it as commit metadata, which ``last_checkpoint`` reads.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from cdc.errors import PreparedLoadLost
from cdc.model.batch import PreparedLoad, TargetState
from channels.sinks.base import AlterStep, Finding, LoadState, SinkCheckpoint, TargetTable
from channels.sinks.delta.alter import DeltaAlterer
from channels.sinks.delta.commits import TableCommits
from channels.sinks.delta.compaction import Compactions, MergeMode
from channels.sinks.delta.files import STAGING, StagedFileWriter, StagedObjectWriter, guarded, unavailable
from channels.sinks.delta.keys import smallest_keys
from channels.sinks.delta.log import DurableLogs
from channels.sinks.delta.maintenance import DeltaMaintenance
from channels.sinks.delta.mapped_tables import DeltaTargets
from channels.sinks.delta.marker import read_marker, write_marker
from channels.sinks.delta.object_ownership import ObjectOwnership
from channels.sinks.delta.object_path import ObjectPath
from channels.sinks.delta.open_tables import OpenTables
from channels.sinks.delta.ownership import FolderOwnership, Ownership
from channels.sinks.delta.roots import refuse_missing, refuse_unsafe, root_of, writable
from channels.sinks.delta.rows import DeltaRows
from channels.sinks.delta.sink_checkpoint import (
    has_committed,
    has_traces,
    may_write,
    newest_mark,
)
from channels.sinks.delta.staging import Staging
from channels.sinks.delta.storage import StorePath
from channels.sinks.delta.table_merge import TableMerge
from channels.sinks.delta.table_paths import table_folder, table_folders, target_of
from channels.sinks.delta.vector_merge import FindRows

__all__ = ["DeltaSink", "MergeMode"]

logger = logging.getLogger(__name__)


class DeltaSink:
    """See ``channels.sinks.base.Sink``. One process writes at a time; any number may read."""

    tasks_in_order = False  # staged files are merged in order

    def __init__(
        self,
        root: Path | str,
        *,
        create_tables: bool = True,
        retention_s: float = 3600.0,
        merge_memory_bytes: int = 1 << 30,
        threads: int | None = None,
        merge: MergeMode = "rewrite",
        storage: Mapping[str, str] | None = None,
    ) -> None:
        """``root``: a folder, or the URL of a prefix in an object store, with its options in ``storage``.

        ``retention_s``: how long replaced files and log entries are kept for readers of older versions.

        ``merge_memory_bytes``: limit for the keys of one load during a merge (``memory.merge``). ``merge``: of tables
        that this sink creates, and of others that allow deletion vectors.
        """
        self.root = root_of(root, storage or {})
        cores = threads or os.cpu_count() or 2
        self._table_threads = ThreadPoolExecutor(cores * 2, "delta-table")
        self._file_threads = ThreadPoolExecutor(cores, "delta-file")
        self._logs = DurableLogs()
        self._ownership: Ownership = (
            ObjectOwnership(self.root / STAGING, self.last_checkpoint)
            if isinstance(self.root, ObjectPath)
            else FolderOwnership(self.root / STAGING, self.last_checkpoint)
        )
        self._staging = Staging(self.root, self._refuse_missing_root)
        self._tables = OpenTables(self._folder, self._logs)
        self._targets = DeltaTargets(
            self.root,
            self._tables,
            self._folder,
            self._logs,
            create=create_tables,
            retention_s=retention_s,
            merge=merge,
        )
        compactions = Compactions(merge)
        self._maintenance = DeltaMaintenance(
            self._tables, self._folder, self._logs, self._ownership, compactions, retention_s
        )
        self._commits = TableCommits(self._tables, self._folder, self._logs)
        self._merge = TableMerge(
            self._staging,
            self._folder,
            self._logs,
            self._ownership,
            compactions,
            self._file_threads,
            merge_memory_bytes,
        )
        self._alterer = DeltaAlterer(self._tables, self._folder, self._logs, self._ownership, self._file_threads)
        self._has_root = False  # whether the root had its marker at the last read

    @guarded
    def ensure_table(self, table: TargetTable) -> None:
        """See ``Sink``."""
        self._refuse_missing_root()
        self._targets.ensure(table)

    def describe(self, table: TargetTable) -> tuple[Finding, ...]:
        """See ``Sink``."""
        return self._targets.describe(table)

    @guarded
    def check(self, tables: Iterable[TargetTable]) -> tuple[Finding, ...]:
        """See ``Sink``."""
        refused = tuple(writable(self.root))
        if isinstance(self.root, ObjectPath) and any(finding.fatal for finding in refused):
            return refused  # the tables cannot be read either
        return (*refused, *(finding for table in tables for finding in self._targets.check(table)))

    def ddl(self, table: TargetTable) -> str:
        """See ``Sink``: Spark SQL for a Delta table."""
        return self._targets.ddl(table)

    @guarded
    def part_writer(self, table: TargetTable) -> StagedFileWriter | StagedObjectWriter:
        """See ``Sink``. Raises: TargetMismatch - the mapping has new columns that do not match the table."""
        return self._staging.writer(self._targets.with_stored_types(table))

    @guarded
    def acquire_ownership(self, mark: SinkCheckpoint, targets: Sequence[str]) -> None:
        """See ``Sink``. The ownership applies to the whole root."""
        self._refuse_missing_root()
        refuse_unsafe(self.root)
        self._alterer.begin_run()
        self._ownership.acquire(mark, lambda: self._write_fence(mark))
        self._staging.begin_run(mark.job)

    def _write_fence(self, mark: SinkCheckpoint) -> None:
        """Write the fence of a run into all tables that an older run of its job may be about to commit to."""
        for name, found in self._existing():
            if may_write(found, mark.job):
                self._commits.fence(name, mark)

    @guarded
    def commit(self, loads: Sequence[PreparedLoad], checkpoint: SinkCheckpoint) -> None:
        """See ``Sink``. Tables are merged in parallel; all rows of a table become visible together."""
        self._refuse_missing_root()
        self._ownership.check(checkpoint)
        self._staging.begin_commit(checkpoint)
        by_table: dict[str, list[PreparedLoad]] = {}
        for load in sorted(loads, key=lambda load: load.name):
            by_table.setdefault(load.table, []).append(load)
        jobs = [
            self._table_threads.submit(self._commit_table, table, found, checkpoint)
            for table, found in by_table.items()
        ]
        errors = [error for job in jobs if (error := job.exception()) is not None]
        lost = [error for error in errors if isinstance(error, PreparedLoadLost)]
        if lost:
            labels = [label for error in lost for label in error.context["labels"]]  # type: ignore[attr-defined]
            raise PreparedLoadLost(
                "Staged files do not exist.", hint="The job loads them again automatically.", labels=labels
            )
        if errors:
            raise errors[0]
        self._staging.delete_committed(checkpoint)

    @guarded
    def abort(self, job: str, incarnation: str, fence: int, checkpoint: int) -> None:
        """See ``Sink``."""
        self._refuse_missing_root()
        self._staging.abort(job, incarnation, fence, checkpoint)

    @guarded
    def state(self, load: PreparedLoad) -> LoadState:
        """See ``Sink``."""
        self._refuse_missing_root()
        if self._staging.is_aborted(load.name):
            return LoadState.ABORTED
        table = self._tables.open(load.table)
        if table is not None and has_committed(table, load.name):
            return LoadState.COMMITTED
        return LoadState.PREPARED if self._staging.holds(load) else LoadState.UNKNOWN

    @guarded
    def last_checkpoint(self, job: str) -> SinkCheckpoint | None:
        """See ``Sink``. Reads the newest entries of every table's log."""
        marks = [mark for _, found in self._existing() if (mark := newest_mark(found, job)) is not None]
        return max(marks, key=lambda mark: (mark.fence, mark.checkpoint), default=None)

    @guarded
    def has_written(self, job: str) -> bool:
        """See ``Traced``: a log clean-up of another writer removes marks, but not the fence of a run."""
        return any(has_traces(found, job) for _, found in self._existing())

    def _existing(self) -> Iterator[tuple[str, DeltaTable]]:
        for folder in table_folders(self.root):
            name = target_of(folder)
            if (found := self._tables.open(name)) is not None:
                yield name, found

    @guarded
    def identity(self, *, create: bool) -> str | None:
        """See ``Sink``: the marker in the root folder."""
        try:
            found = write_marker(self.root) if create else read_marker(self.root)
        except OSError as error:
            raise unavailable(error, self.root) from error
        self._has_root = found is not None
        return found

    @guarded
    def target_states(self, job: str, incarnation: str, targets: Sequence[str]) -> Mapping[str, TargetState]:
        """See ``Sink``: ``metaData.id``, the application transaction, and the files on the disk."""
        if self._has_root:  # otherwise the caller already knows that the root is missing
            self._refuse_missing_root()
        return self._tables.states(job, incarnation, targets)

    @guarded
    def repair(self, target: str) -> None:
        """See ``Repairable``: remove missing data files from the log."""
        self._tables.repair(target)

    @guarded
    def keys(self, table: TargetTable, after: pa.Table | None, limit: int) -> pa.Table:
        """See ``KeyLister``."""
        return smallest_keys(self._tables.open(table.name), self._folder(table.name), table, after, limit)

    def row_reader(self, table: TargetTable, columns: Sequence[str]) -> DeltaRows:
        """See ``RowSource``."""
        return DeltaRows(self._tables.open(table.name), self._folder(table.name), table, columns)

    @guarded
    def maintain(self, tables: Iterable[TargetTable], is_stopped: Callable[[], bool] = lambda: False) -> None:
        """See ``Maintainable``: compact small files, and delete files that no version within the retention needs."""
        self._maintenance.run(tables, is_stopped)

    @property
    def alters_in_one_commit(self) -> bool:
        """See ``TableAlterer``."""
        return True

    @guarded
    def check_steps(self, table: TargetTable, steps: Sequence[AlterStep]) -> tuple[Finding, ...]:
        """See ``TableAlterer``."""
        return self._alterer.check(table, steps)

    @guarded
    def alter(self, table: TargetTable, steps: Sequence[AlterStep], mark: SinkCheckpoint) -> None:
        """See ``TableAlterer``."""
        self._refuse_missing_root()
        self._ownership.check(mark)
        self._targets.forget(table.name)
        if self._tables.open(table.name) is None and not self._tables.is_known(table.name):
            return  # it is created with the columns after the steps

        def write(found: DeltaTable, version: int) -> None:
            self._alterer.alter(found, version, table, steps, mark)

        self._commits.commit(table.name, mark, write)

    @property
    def alter_progress(self) -> float | None:
        """See ``TableAlterer``. By the bytes of the data files that are written again."""
        return self._alterer.progress

    def stop_altering(self) -> None:
        """See ``TableAlterer``."""
        self._alterer.stop()

    def use_executors(self, find_rows: FindRows) -> None:
        """Look up the keys of large merges by ``find_rows``. Calls: before the first commit."""
        self._merge.executors = find_rows

    def close(self) -> None:
        """See ``Sink``."""
        self._table_threads.shutdown(wait=True)
        self._file_threads.shutdown(wait=True)
        self._ownership.release()
        self._staging.close()

    def _commit_table(self, table: str, loads: Sequence[PreparedLoad], mark: SinkCheckpoint) -> None:
        def write(found: DeltaTable, version: int) -> None:
            self._merge.merge(found, version, table, loads, mark)

        self._commits.commit(table, mark, write)

    def _refuse_missing_root(self) -> None:
        """Raise SinkUnavailable if the root does not exist or, by its missing marker, is not mounted."""
        refuse_missing(self.root, has_marker=self._has_root)

    def _folder(self, table: str) -> StorePath:
        return table_folder(self.root, table)
