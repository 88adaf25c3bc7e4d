"""Open Delta tables of a sink: one handle for each, and the identity that shows whether a table was replaced."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from cdc.errors import SinkUnavailable, TargetLost
from cdc.model.batch import TargetState
from channels.sinks.delta.log import LOG, DurableLogs, repair
from channels.sinks.delta.object_path import ObjectPath
from channels.sinks.delta.sink_checkpoint import committed_checkpoint, is_restored
from channels.sinks.delta.storage import StorePath, open_table
from channels.sinks.delta.table import refuse_expiring, unwritable
from channels.sinks.delta.table_files import TableFile, table_files

logger = logging.getLogger(__name__)

_REPAIR_TRIES = 5  # another writer may commit at the same time


class OpenTables:
    """Handles of Delta tables by target name, with identity and checkpoint at the last read."""

    def __init__(self, folder_of: Callable[[str], StorePath], logs: DurableLogs) -> None:
        """``folder_of``: the folder of a target. ``logs``: makes entries durable that a repair writes."""
        self._folder_of = folder_of
        self._logs = logs
        self._tables: dict[str, DeltaTable] = {}
        self._identities: dict[str, str] = {}  # of tables with committed rows
        self._committed: dict[str, int | None] = {}  # their newest known application transaction
        self._searched: dict[str, int] = {}  # version up to which no other writer has restored an earlier one
        self._inodes: dict[str, tuple[int, int]] = {}  # device and inode of the log that a handle was read from
        self._newest: dict[str, tuple[int, str | None]] = {}  # version and tag of an entry in an object store
        self._locks: dict[str, threading.RLock] = defaultdict(threading.RLock)

    def open(self, table: str, *, fresh: bool = False) -> DeltaTable | None:
        """Return the table at its newest version; None if it does not exist.

        ``fresh``: open a separate handle, for a thread that runs during a commit, whose handle must not change.
        Raises: TargetLost - the table was replaced; SinkUnavailable - its log cannot be read.
        """
        folder = self._folder_of(table)
        try:
            if isinstance(folder, ObjectPath) and not fresh:
                self._discard_replaced(table, folder)
            if (isinstance(folder, Path) or table not in self._tables) and not (folder / LOG).is_dir():
                self._tables.pop(table, None)
                return None
            if fresh:
                return self._identified(table, open_table(folder))
            if isinstance(folder, Path):
                status = (folder / LOG).stat()
                inode = status.st_dev, status.st_ino
                if self._inodes.setdefault(table, inode) != inode:  # another log, so discard the handle
                    self._inodes[table] = inode
                    self._tables.pop(table, None)
            if (found := self._tables.get(table)) is not None:  # another thread can discard it
                found.update_incremental()
            else:
                repair(folder / LOG)
                found = self._tables[table] = open_table(folder)
            return self._identified(table, found)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            self._tables.pop(table, None)
            raise SinkUnavailable(
                f"The log of the Delta table cannot be read: {error}.",
                hint=f"Check {folder / LOG}; the job continues automatically.",
                table=table,
            ) from error

    def _discard_replaced(self, table: str, folder: ObjectPath) -> None:
        """Discard the handle of a table whose newest known entry does not exist, or is another one now."""
        if (found := self._tables.get(table)) is None:
            return
        version = found.version()
        try:
            newest = version, (folder / LOG / f"{version:020}.json").stat().version["e_tag"]
        except FileNotFoundError:
            self._tables.pop(table, None)
            self._newest.pop(table, None)
            return
        known = self._newest.get(table, newest)
        self._newest[table] = newest
        if known[0] == version and known != newest:
            self._tables.pop(table, None)

    def lock(self, table: str) -> threading.RLock:
        """Return the lock of the table: who changes the table has it, from reading the version to the entry."""
        return self._locks[table]

    def close(self, table: str) -> None:
        """Discard the handle of the table: the next ``open`` reads the log again."""
        self._tables.pop(table, None)

    def is_known(self, table: str) -> bool:
        """Return whether the table is known to have committed rows."""
        return table in self._identities

    def with_log_of(self, table: str) -> list[str]:
        """Return the tables that have the same log as ``table``: itself, and others by a link."""
        inode = self._inodes.get(table)
        return [other for other, its in self._inodes.items() if its == inode]

    def states(self, job: str, incarnation: str, targets: Sequence[str]) -> Mapping[str, TargetState]:
        """Read the state of each of ``targets`` again, and remember it; see ``Sink.target_states``.

        Raises: TargetMismatch - the committed checkpoints of a table expire; SinkUnavailable.
        """
        states = {}
        for name in targets:
            for known in (self._identities, self._committed, self._inodes, self._newest, self._tables):
                known.pop(name, None)  # the caller compares old and new state
            found = self.open(name)
            if found is None:
                continue
            refuse_expiring(found, name, self._folder_of(name))
            self._searched[name] = found.version()
            committed = committed_checkpoint(found, job, incarnation)
            if committed is not None and is_restored(found):
                logger.warning("another writer has restored an earlier version of table %s", name)
                committed = None
            identity = self._identities[name] = str(found.metadata().id)
            self._committed[name] = committed
            missing = len(self._missing(found, name))
            states[name] = TargetState(identity, -1 if committed is None else committed, missing)
        return states

    def refuse_older(self, table: str, committed: int | None) -> None:
        """Raise TargetLost if ``committed`` is older than the known checkpoint of ``table``."""
        known = self._committed.get(table)
        if known is not None and (committed is None or committed < known):
            raise self._replaced(table, f"checkpoint {committed}", f"checkpoint {known}")

    def refuse_restored(self, table: str, found: DeltaTable) -> None:
        """Raise TargetLost if another writer has restored an earlier version of ``table`` since its last commit."""
        version = found.version()
        since = self._searched.get(table, version)
        if since < version and is_restored(found, since):
            raise self._replaced(table, "an earlier version, restored by another writer", f"version {since} or later")
        self._searched[table] = version

    def note_committed(self, table: str, checkpoint: int, version: int) -> None:
        """Record the newest committed checkpoint of ``table``, and the version that has it."""
        self._searched[table] = version
        if table in self._identities:
            self._committed[table] = checkpoint

    def repair(self, table: str) -> None:
        """Remove data files from the log that are missing, or whose deletion vector is: every reader fails at them.

        ``DeltaTable.repair`` does not see a missing vector. A table with features that this sink does not write stays
        as it is: it is refused later. Raises: SinkUnavailable.
        """
        folder = self._folder_of(table)
        for _ in range(_REPAIR_TRIES):
            found = self.open(table)
            if found is None or any(unwritable(found)):
                return
            version = found.version()
            try:
                lost = [file.removal() for file in self._missing(found, table)]
                if lost:
                    self._logs.append(found, folder, [*lost], None, version=version)
                return
            except CommitFailedError:
                self.close(table)  # another writer has committed meanwhile
            except (DeltaError, OSError) as error:
                self.close(table)
                raise SinkUnavailable(
                    f"The log of the Delta table cannot be repaired: {error}.",
                    hint=f"Check {folder}; the job continues automatically.",
                    table=table,
                ) from error
        raise SinkUnavailable(
            "The log of the Delta table cannot be repaired: another writer changes the table continuously.",
            hint="Stop the other writer; the job continues automatically.",
            table=table,
        )

    def refuse_incomplete(self, table: str) -> None:
        """Raise TargetLost if the newest version of ``table`` names files that are missing, as a start of a job does.

        A VACUUM of another writer with a short retention can delete files that a merge needs. Without the log of the
        table, its file system may not be mounted; then the caller raises its own error, and the job waits.
        """
        folder = self._folder_of(table)
        try:
            found = self.open(table, fresh=True)
            missing = self._missing(found, table) if found is not None else []
        except (DeltaError, OSError, SinkUnavailable):
            return
        if missing:
            raise TargetLost(
                f"The target table lacks {len(missing)} data files that its log names.",
                hint="Restore them, then run `cdc resume NAME`. If they are lost, for example by a VACUUM with a short "
                "retention, run `cdc resume NAME --reload-missing` to load the table again.",
                table=table,
                path=folder / missing[0].path,
            )

    def missing_error(self, table: str) -> SinkUnavailable:
        """Return the error for a table that does not exist although the job has written it."""
        return SinkUnavailable(
            "The target table does not exist any more.",
            hint="Restore its folder or mount its file system; the job then continues automatically. If it is lost, "
            "run `cdc pause NAME`, then `cdc resume NAME --reload-missing`.",
            table=table,
            path=self._folder_of(table),
        )

    def _missing(self, found: DeltaTable, table: str) -> list[TableFile]:
        """Return the data files that are missing themselves or without their deletion vector."""
        folder = self._folder_of(table)
        existing = {entry.name for entry in folder.iterdir()}

        def is_missing(path: str) -> bool:
            return path not in existing and not (folder / path).exists()

        return [file for file in table_files(found, ()) if any(map(is_missing, file.paths(folder)))]

    def _identified(self, table: str, found: DeltaTable) -> DeltaTable:
        """Return ``found``. Raises: TargetLost - the table was replaced since it was opened first."""
        identity = str(found.metadata().id)
        if self._identities.get(table, identity) == identity:
            return found
        raise self._replaced(table, f"identity {identity}", f"identity {self._identities[table]}")

    def _replaced(self, table: str, found: str, expected: str) -> TargetLost:
        self._tables.pop(table, None)
        return TargetLost(
            "The target table was replaced while the job was running.",
            hint="Restore the table of the job, then run `cdc resume NAME`; or run `cdc resume NAME --reload-missing` "
            "to load it again.",
            table=table,
            found=found,
            expected=expected,
        )
