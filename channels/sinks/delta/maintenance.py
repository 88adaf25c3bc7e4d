"""Maintenance of Delta tables between commits: compaction, log checkpoints, vacuum."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from channels.sinks.base import TargetTable
from channels.sinks.delta import table as delta_tables
from channels.sinks.delta.compaction import compaction, delete_unused
from channels.sinks.delta.files import unavailable
from channels.sinks.delta.log import LOG, MARK, DurableLogs, last_checkpoint_version, write_checkpoint
from channels.sinks.delta.open_tables import OpenTables
from channels.sinks.delta.table_files import table_files

logger = logging.getLogger(__name__)

_EVERY_S = 5.0  # the check itself costs time
_VACUUM_EVERY_S = 300.0  # listing the folder of a table costs time, and unused files may stay a little longer


class DeltaMaintenance:
    """Maintenance of the tables of one sink. Calls: one thread, never during a commit."""

    def __init__(
        self,
        tables: OpenTables,
        folder_of: Callable[[str], Path],
        logs: DurableLogs,
        check_ownership: Callable[[], None],
        retention_s: float,
    ) -> None:
        """``check_ownership``: raises SinkOwnershipError if another run owns the sink; called before each change."""
        self._tables = tables
        self._folder_of = folder_of
        self._logs = logs
        self._check_ownership = check_ownership
        self._retention_s = retention_s
        self._began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self._maintained: dict[str, float] = {}
        self._vacuumed: dict[str, float] = {}

    def run(self, tables: Iterable[TargetTable]) -> None:
        """Maintain ``tables``, each every 5 s at most. Raises: SinkUnavailable, SinkOwnershipError, TargetLost."""
        now = time.monotonic()
        for table in tables:
            if now - self._maintained.get(table.name, -_EVERY_S) < _EVERY_S:
                continue
            found = self._tables.open(table.name)
            if found is None or any(delta_tables.unwritable(found)):
                continue
            self._maintained[table.name] = now
            self._compact(found, table)
            self._write_log_checkpoint(found, table)
            self._vacuum(table)

    def _compact(self, found: DeltaTable, table: TargetTable) -> None:
        schema, folder = delta_tables.arrow_schema(found), self._folder_of(table.name)
        try:
            actions = compaction(folder, schema, table.key, table_files(found, table.key), uuid.uuid4().hex)
            if not actions:
                return
            self._check_ownership()
            self._logs.append(found, folder, actions, found.history(1)[0].get(MARK))
            found.update_incremental()
        except CommitFailedError:
            logger.warning("table %s was changed by another writer during its compaction", table.name)
        except OSError as error:
            raise unavailable(error, folder) from error
        else:
            added = sum(isinstance(action, AddAction) for action in actions)
            logger.info("compacted %s: %d files into %d", table.name, len(actions) - added, added)

    def _write_log_checkpoint(self, found: DeltaTable, table: TargetTable) -> None:
        """Write a checkpoint of the log every 50 versions, and delete expired entries before it.

        A commit takes longer with a longer log: 0.8 s with 50,000 entries, which a job writes in half a day. Do nothing
        if another writer wrote the newest entry: the entry with this job's mark may be older and expired, but the job
        needs it.
        """
        folder = self._folder_of(table.name)
        try:
            entries = found.version() - last_checkpoint_version(folder / LOG)
            if entries >= delta_tables.CHECKPOINT_EVERY and MARK in found.history(1)[0]:
                self._logs.sync(folder, found.version())
                write_checkpoint(found, folder)
        except OSError as error:
            raise unavailable(error, folder / LOG) from error

    def _vacuum(self, table: TargetTable) -> None:
        now = time.monotonic()
        if now - self._vacuumed.get(table.name, -_VACUUM_EVERY_S) < min(_VACUUM_EVERY_S, self._retention_s):
            return
        self._vacuumed[table.name] = now
        folder, oldest = self._folder_of(table.name), self._wall_clock() - self._retention_s

        def active() -> set[str]:
            found = self._tables.open(table.name, fresh=True)
            if found is None:
                raise self._tables.missing_error(table.name)
            return {path for file in table_files(found, ()) for path in file.paths(folder)}

        try:
            delete_unused(folder, active, oldest, self._check_ownership)
        except OSError as error:
            raise unavailable(error, folder) from error

    def _wall_clock(self) -> float:
        """Return seconds since 1970, without forward changes of the clock, which would shorten the retention."""
        return min(time.time(), self._began + time.clock_gettime(time.CLOCK_BOOTTIME))
