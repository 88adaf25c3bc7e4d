"""Commits of a checkpoint to one Delta table: once, by the owner, and repeated after a conflict with another writer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from deltalake import DeltaTable, TableFeatures
from deltalake.exceptions import CommitFailedError

from cdc.errors import SinkUnavailable, TargetMismatch
from cdc.retry import Backoff
from channels.sinks.base import Finding, SinkCheckpoint
from channels.sinks.delta import table as delta_tables
from channels.sinks.delta.files import sync_path, unavailable
from channels.sinks.delta.log import LOG, DurableLogs
from channels.sinks.delta.open_tables import OpenTables
from channels.sinks.delta.sink_checkpoint import committed_checkpoint, refuse_ahead, refuse_foreign

logger = logging.getLogger(__name__)

_COMMIT_TRIES = 5  # another writer, for example OPTIMIZE, may commit between the read of the table and this commit
_COMMIT_DELAY_S = 0.05


class TableCommits:
    """Commits to the tables of one sink. Calls: any thread, one at a time for a table."""

    def __init__(self, tables: OpenTables, folder_of: Callable[[str], Path], logs: DurableLogs) -> None:
        self._tables = tables
        self._folder_of = folder_of
        self._logs = logs

    def commit(self, table: str, mark: SinkCheckpoint, write: Callable[[DeltaTable], None]) -> None:
        """Call ``write`` with the newest version of ``table``, unless the table has the checkpoint ``mark`` already.

        ``write``: commits with the application transaction of ``mark``, or raises CommitFailedError and is called
        again. Raises: SinkUnavailable, SinkOwnershipError, TargetMismatch, TargetLost.
        """
        backoff = Backoff(_COMMIT_DELAY_S)
        for _ in range(_COMMIT_TRIES):
            found = self._tables.open(table)
            if found is None:
                raise self._tables.missing_error(table)
            if self._has(found, table, mark):
                return
            refuse(table, self._folder_of(table), delta_tables.unwritable(found))
            try:
                write(found)
                self._tables.note_committed(table, mark.checkpoint)
                return
            except CommitFailedError:
                # the log has no part of this commit, so repeat it from the version of the other writer
                logger.warning("table %s was changed by another writer during a commit", table)
                backoff.wait()
        raise SinkUnavailable(
            f"Another writer changes the table continuously: {_COMMIT_TRIES} commits in a row conflicted with it.",
            hint="Stop the other writer, for example an OPTIMIZE; the job compacts its tables automatically.",
            table=table,
        )

    def _has(self, found: DeltaTable, table: str, mark: SinkCheckpoint) -> bool:
        """Return whether ``found`` has the checkpoint ``mark``. Raises: the table is not in the state before it."""
        done = committed_checkpoint(found, mark.job, mark.incarnation)
        self._tables.refuse_older(table, done)
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


def refuse(table: str, folder: Path, findings: Iterable[Finding]) -> None:
    """Raise TargetMismatch for the first fatal one of ``findings``."""
    for finding in findings:
        if finding.fatal:
            raise TargetMismatch(finding.problem, hint=finding.hint, table=table, path=folder)


def add_features(found: DeltaTable, folder: Path, logs: DurableLogs, features: list[TableFeatures]) -> None:
    """Add features that deltalake omits: Spark does not read a table with NOT NULL without that of invariants.

    Raises: SinkUnavailable, CommitFailedError.
    """
    try:
        found.alter.add_feature(features, allow_protocol_versions_increase=True)
        logs.sync(folder, found.version())
    except OSError as error:
        raise unavailable(error, folder / LOG) from error
