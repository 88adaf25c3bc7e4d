"""Commits of a checkpoint to one Delta table: once, by the owner, and repeated after a conflict with another writer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from deltalake import DeltaTable, TableFeatures
from deltalake.exceptions import CommitFailedError

from cdc.errors import SinkUnavailable, TargetMismatch
from cdc.retry import Backoff
from channels.sinks.base import Finding, SinkCheckpoint, refuse_newer_run
from channels.sinks.delta import table as delta_tables
from channels.sinks.delta.fence import fence_transactions, has_fence, refuse_fenced
from channels.sinks.delta.files import unavailable
from channels.sinks.delta.log import LOG, DurableLogs
from channels.sinks.delta.open_tables import OpenTables
from channels.sinks.delta.sink_checkpoint import (
    committed_checkpoint,
    mark_to_json,
    newest_mark,
    refuse_ahead,
    refuse_foreign,
)
from channels.sinks.delta.storage import StorePath, sync_path

logger = logging.getLogger(__name__)

_COMMIT_TRIES = 5  # another writer, for example OPTIMIZE, may commit between the read of the table and this commit
_COMMIT_DELAY_S = 0.05


class TableCommits:
    """Commits to the tables of one sink. Calls: any thread."""

    def __init__(self, tables: OpenTables, folder_of: Callable[[str], StorePath], logs: DurableLogs) -> None:
        self._tables = tables
        self._folder_of = folder_of
        self._logs = logs

    def commit(self, table: str, mark: SinkCheckpoint, write: Callable[[DeltaTable, int], None]) -> None:
        """Call ``write`` with the newest version of ``table``, unless the table has the checkpoint ``mark`` already.

        ``write(found, version)``: commits as the next version after ``version``, with the application transaction of
        ``mark``, or raises CommitFailedError and is called again.
        Raises: SinkUnavailable, SinkOwnershipError, TargetMismatch, TargetLost.
        """
        with self._tables.lock(table):
            self._commit(table, mark, write)

    def _commit(self, table: str, mark: SinkCheckpoint, write: Callable[[DeltaTable, int], None]) -> None:
        backoff = Backoff(_COMMIT_DELAY_S)
        for _ in range(_COMMIT_TRIES):
            found = self._open(table)
            # Fixed before the checks. A thread that only reads can update the handle to the entry of another writer,
            # which no check has seen: for example the fence of a newer run, or RESTORE.
            version = found.version()
            delta_tables.refuse_expiring(found, table, self._folder_of(table))
            if self._has(found, table, mark):
                return
            refuse(table, self._folder_of(table), delta_tables.unwritable(found))
            try:
                write(found, version)
                self._tables.note_committed(table, mark.checkpoint, version + 1)
                return
            except CommitFailedError:
                # the log has no part of this commit, so repeat it from the version of the other writer
                logger.warning("table %s was changed by another writer during a commit", table)
                self._tables.close(table)  # the handle can have an entry that is not in the log
                backoff.wait()
            except BaseException as error:  # the answer of the store can be lost: the next try reads the log
                self._tables.close(table)
                if isinstance(error, SinkUnavailable) and isinstance(error.__cause__, FileNotFoundError):
                    self._tables.refuse_incomplete(table)
                raise
        raise _continuous_changes(table)

    def fence(self, table: str, mark: SinkCheckpoint) -> None:
        """Write the fence of the run of ``mark`` into ``table``, if it exists; see ``channels.sinks.delta.fence``.

        ``mark``: the newest checkpoint that the run has committed or found committed in all tables.
        Raises: SinkUnavailable, SinkOwnershipError.
        """
        with self._tables.lock(table):
            self._fence(table, mark)

    def _fence(self, table: str, mark: SinkCheckpoint) -> None:
        for _ in range(_COMMIT_TRIES):
            found, folder = self._tables.open(table), self._folder_of(table)
            if found is None or any(delta_tables.unwritable(found)):
                return
            version = found.version()  # before the checks, see ``_commit``
            refuse_fenced(found, table, mark)
            if has_fence(found, mark):
                newest = newest_mark(found, mark.job)
                refuse_newer_run(newest, mark)  # two runs that adopt can have the same fence
                if newest is not None and (newest.incarnation, newest.fence) == (mark.incarnation, mark.fence):
                    return
                # A compaction of an earlier run has written this fence, with the mark of a run before it. That run may
                # be frozen before its next compaction: an entry takes its version.
            try:
                fences = fence_transactions(found, table, [mark])
                self._logs.append(found, folder, [], mark_to_json(mark), fences, version=version)
                return
            except CommitFailedError:
                self._tables.close(table)
            except OSError as error:
                raise unavailable(error, folder / LOG) from error
        raise _continuous_changes(table)

    def _open(self, table: str) -> DeltaTable:
        found = self._tables.open(table)
        if found is None:
            raise self._tables.missing_error(table)
        return found

    def _has(self, found: DeltaTable, table: str, mark: SinkCheckpoint) -> bool:
        """Return whether ``found`` has the checkpoint ``mark``. Raises: the table is not in the state before it."""
        refuse_fenced(found, table, mark)
        done = committed_checkpoint(found, mark.job, mark.incarnation)
        self._tables.refuse_older(table, done)
        self._tables.refuse_restored(table, found)
        if done == mark.checkpoint:
            self._make_durable(found, table)  # a repeat
            return True
        if done is not None:
            refuse_ahead(table, mark, done)
        else:
            refuse_foreign(found, table, mark)
        return False

    def _make_durable(self, found: DeltaTable, table: str) -> None:
        """Sync a commit of a process that was killed before it could sync it."""
        folder = self._folder_of(table)
        try:
            sync_path(folder)
            self._logs.sync(folder, found.version())
        except OSError as error:
            raise unavailable(error, folder / LOG) from error


def _continuous_changes(table: str) -> SinkUnavailable:
    return SinkUnavailable(
        f"Another writer changes the table continuously: {_COMMIT_TRIES} commits in a row conflicted with it.",
        hint="Stop the other writer, for example an OPTIMIZE; the job compacts its tables automatically.",
        table=table,
    )


def refuse(table: str, folder: StorePath, findings: Iterable[Finding]) -> None:
    """Raise TargetMismatch for the first fatal one of ``findings``."""
    for finding in findings:
        if finding.fatal:
            raise TargetMismatch(finding.problem, hint=finding.hint, table=table, path=folder)


def add_features(found: DeltaTable, folder: StorePath, logs: DurableLogs, features: list[TableFeatures]) -> None:
    """Add features that deltalake omits: Spark does not read a table with NOT NULL without that of invariants.

    Raises: SinkUnavailable, CommitFailedError.
    """
    try:
        found.alter.add_feature(features, allow_protocol_versions_increase=True)
        logs.sync(folder, found.version())
    except OSError as error:
        raise unavailable(error, folder / LOG) from error
