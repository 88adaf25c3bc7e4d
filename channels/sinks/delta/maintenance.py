"""Maintenance of Delta tables while commits continue: compaction, log checkpoints, vacuum."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from channels.sinks.base import TargetTable
from channels.sinks.delta import table as delta_tables
from channels.sinks.delta.compaction import CompactedFiles, Compactions, compact, file_groups, replacement
from channels.sinks.delta.entries import newest_commit
from channels.sinks.delta.fence import fence_transactions
from channels.sinks.delta.files import unavailable
from channels.sinks.delta.log import LOG, MARK, DurableLogs, last_checkpoint_version, write_checkpoint
from channels.sinks.delta.open_tables import OpenTables
from channels.sinks.delta.ownership import Ownership
from channels.sinks.delta.storage import StorePath
from channels.sinks.delta.table_files import table_files
from channels.sinks.delta.vacuum import delete_unused, find_inactive

logger = logging.getLogger(__name__)

_EVERY_S = 5.0  # the check itself costs time
_VACUUM_EVERY_S = 300.0  # listing the folder of a table costs time, and unused files may stay a little longer
_COMMIT_TRIES = 5  # another writer may commit at the same time


class DeltaMaintenance:
    """Maintenance of the tables of one sink. Calls: one thread, also during a commit."""

    def __init__(
        self,
        tables: OpenTables,
        folder_of: Callable[[str], StorePath],
        logs: DurableLogs,
        ownership: Ownership,
        compactions: Compactions,
        retention_s: float,
    ) -> None:
        self._tables = tables
        self._folder_of = folder_of
        self._logs = logs
        self._ownership = ownership
        self._compactions = compactions
        self._retention_s = retention_s
        self._began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self._maintained: dict[str, float] = {}
        self._vacuumed: dict[str, float] = {}

    def run(self, tables: Iterable[TargetTable], is_stopped: Callable[[], bool]) -> None:
        """Maintain ``tables``, each every 5 s at most, until ``is_stopped``.

        Raises: SinkUnavailable, SinkOwnershipError, TargetLost, TargetMismatch.
        """
        now = time.monotonic()
        for table in tables:
            if is_stopped():
                return
            if now - self._maintained.get(table.name, -_EVERY_S) < _EVERY_S:
                continue
            self._maintained[table.name] = now
            self._compact(table, is_stopped)
            inactive: Sequence[StorePath] = ()
            oldest = self._wall_clock() - self._retention_s
            # commits wait for the rest, so that no file of a running merge is unused
            with self._tables.lock(table.name):
                if (found := self._open(table)) is not None:
                    self._write_log_checkpoint(found, table)
                    inactive = self._inactive(table, oldest)
            self._delete(table, inactive, oldest, is_stopped)

    def _compact(self, table: TargetTable, is_stopped: Callable[[], bool]) -> None:
        """Compact a part of the table. Merges with deletion vectors continue meanwhile, others replace whole files."""
        folder, lock, name = self._folder_of(table.name), self._tables.lock(table.name), uuid.uuid4().hex
        try:
            with ExitStack() as locked:
                locked.enter_context(lock)
                found = self._open(table)
                groups = file_groups(folder, table_files(found, table.key)) if found is not None else []
                if found is None or not groups:
                    return
                schema = delta_tables.arrow_schema(found)
                self._compactions.begin(table.name)
                if self._compactions.merges_with_vectors(found):
                    locked.close()
                written = list[CompactedFiles]()
                for number, group in enumerate(groups):
                    if is_stopped():
                        break
                    written.append(compact(folder, schema, table.key, group, f"part-{name}-{number}"))
                with lock:
                    self._replace(table, folder, written)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                self._tables.refuse_incomplete(table.name)
            raise unavailable(error, folder) from error
        finally:
            self._compactions.end(table.name)

    def _replace(self, table: TargetTable, folder: StorePath, written: Sequence[CompactedFiles]) -> None:
        """Commit compacted files, at the newest version of the table. Calls: with the lock of the table."""
        for _ in range(_COMMIT_TRIES):
            found = self._open(table)
            if found is None:
                return
            # a thread that only reads can update the handle to the entry of another writer at any time
            version, emptied = found.version(), self._compactions.emptied(table.name)
            actions = replacement(folder, written, table_files(found, table.key), emptied)
            if not actions:
                return
            self._ownership.check_all()
            fences = fence_transactions(found, table.name, self._ownership.runs)
            try:
                mark = newest_commit(found).get(MARK)
                self._logs.append(found, folder, actions, mark, fences, version=version)
            except CommitFailedError:
                logger.warning("table %s was changed by another writer during its compaction", table.name)
                self._tables.close(table.name)
                continue
            found.update_incremental()
            old, new = sum(len(one.old) for one in written), sum(len(one.new) for one in written)
            logger.info("compacted %s: %d files into %d", table.name, old, new)
            return

    def _open(self, table: TargetTable) -> DeltaTable | None:
        found = self._tables.open(table.name)
        return None if found is None or any(delta_tables.unwritable(found)) else found

    def _write_log_checkpoint(self, found: DeltaTable, table: TargetTable) -> None:
        """Write a checkpoint of the log every 50 versions, and delete expired entries before it.

        A commit takes longer with a longer log: 0.8 s with 50,000 entries, which a job writes in half a day. Do nothing
        if another writer wrote the newest entry: the entry with this job's mark may be older and expired, but the job
        needs it.
        """
        folder = self._folder_of(table.name)
        try:
            entries = found.version() - last_checkpoint_version(folder / LOG)
            if entries >= delta_tables.CHECKPOINT_EVERY and MARK in newest_commit(found):
                self._logs.sync(folder, found.version())
                write_checkpoint(found, folder)
        except OSError as error:
            raise unavailable(error, folder / LOG) from error

    def _inactive(self, table: TargetTable, oldest: float) -> Sequence[StorePath]:
        """Return files that may be deleted; () if that was done a short time ago."""
        now = time.monotonic()
        if now - self._vacuumed.get(table.name, -_VACUUM_EVERY_S) < min(_VACUUM_EVERY_S, self._retention_s):
            return ()
        self._vacuumed[table.name] = now
        folder = self._folder_of(table.name)

        def active() -> set[str]:
            found = self._tables.open(table.name, fresh=True)
            if found is None:
                raise self._tables.missing_error(table.name)
            return {path for file in table_files(found, ()) for path in file.paths(folder)}

        try:
            return find_inactive(folder, active, oldest)
        except OSError as error:
            raise unavailable(error, folder) from error

    def _delete(
        self, table: TargetTable, inactive: Sequence[StorePath], oldest: float, is_stopped: Callable[[], bool]
    ) -> None:
        folder = self._folder_of(table.name)
        try:
            delete_unused(folder, inactive, oldest, self._ownership.check_all, is_stopped)
        except OSError as error:
            raise unavailable(error, folder) from error

    def _wall_clock(self) -> float:
        """Return seconds since 1970, without forward changes of the clock, which would shorten the retention."""
        return min(time.time(), self._began + time.clock_gettime(time.CLOCK_BOOTTIME))
