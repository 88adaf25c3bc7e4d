"""The table ``cdc_checkpoints`` in each target database: the newest committed checkpoint of a job, and its ownership.

A cluster remembers a load's label for hours or days only. This table keeps for good what was committed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cdc.errors import SinkOwnershipError, SinkUnavailable
from cdc.model.batch import TargetState
from cdc.model.position import position_from_json
from cdc.mysql.client import shown
from cdc.retry import Backoff
from channels.sinks.base import SinkCheckpoint, ownership_error, refuse_newer_run
from channels.sinks.stream_load.frontend import FrontendSql
from channels.sinks.stream_load.name_rules import CHECKPOINTS
from channels.sinks.stream_load.statements import escape_percent, quoted

VISIBLE_TIMEOUT_S = 10.0  # how long a commit waits until the cluster publishes it, which happens automatically
# the message of INSERT is {'label':'insert_1a2b', 'status':'VISIBLE', 'txnId':'4005'}; after its time limit COMMITTED
_IS_VISIBLE = "'VISIBLE'"


class CheckpointTable:
    """The rows of ``cdc_checkpoints`` in all target databases.

    Calls: on the driver. Commits call ``check_commit``, ``is_recorded``, ``states``, ``create`` and ``record`` from the
    job's commit thread. ``acquire_ownership`` is called by the thread of the run, before the first commit. The sink's
    own commit threads call nothing that writes. ``FrontendSql`` serializes all statements.
    """

    def __init__(self, sql: FrontendSql, create_statement: Callable[[str], str]) -> None:
        """``create_statement``: returns CREATE TABLE for a database."""
        self._sql, self._create_statement = sql, create_statement
        self._created: set[str] = set()  # databases
        self._written: dict[tuple[str, str], int] = {}  # (database, job): the newest sequence that this sink wrote
        self.owned: set[str] = set()  # databases for which this run has taken ownership
        self.replaced: list[SinkCheckpoint] = []  # of other incarnations, from which this run has taken ownership

    # ---- read

    def marks(self, databases: Iterable[str], job: str) -> list[SinkCheckpoint]:
        """Return the newest checkpoint of ``job`` in each of ``databases``, which have the table.

        A frontend that lags could hide the row of a newer run, so each read waits for all commits.
        """
        # StarRocks keeps a row per run, and every commit asks: after years of restarts still only one row is sent
        newest = "ORDER BY `sequence` DESC, `fence` DESC, `checkpoint` DESC LIMIT 1"
        found = []
        for database in sorted(databases):
            table = escape_percent(f"{quoted(database)}.{quoted(CHECKPOINTS)}")
            rows = self._sql.ask_synced(f"SELECT * FROM {table} WHERE job = %s {newest}", (job,))
            found += [_checkpoint_of(job, row) for row in rows]
        return found

    def newest(self, job: str) -> SinkCheckpoint | None:
        """Return the newest checkpoint of ``job`` in any database; None if there is none."""
        marks = self.marks(self._sql.databases_with(CHECKPOINTS), job)
        return max(marks, key=_order, default=None)

    def is_recorded(self, job: str, incarnation: str, checkpoint: int) -> bool:
        """Return True if ``checkpoint`` is the newest one of that incarnation.

        Raises: SinkOwnershipError - the table has a newer one, which does not prove that this one was committed.
        """
        known = self.newest(job)
        if known is None or known.incarnation != incarnation:
            return False
        _refuse_newer(known, checkpoint)
        return known.checkpoint == checkpoint

    def states(self, job: str, incarnation: str, targets: Sequence[str]) -> Mapping[str, TargetState]:
        """Return the creation time of each table and the checkpoint of its database. See ``Sink.target_states``."""
        created = self._sql.creation_times(targets)
        recorded = set(self._sql.databases_with(CHECKPOINTS)) & {_database(name) for name in created}
        checkpoints = {
            database: next(
                (mark.checkpoint for mark in self.marks([database], job) if mark.incarnation == incarnation), -1
            )
            for database in recorded
        }
        return {
            name: TargetState(time_text, checkpoints.get(_database(name), -1)) for name, time_text in created.items()
        }

    # ---- ownership

    def acquire_ownership(self, databases: Collection[str], mark: SinkCheckpoint) -> None:
        """Write the row of this run into each of ``databases`` and read it back. See ``Sink.acquire_ownership``.

        Then ``replaced`` has the newest checkpoints of other incarnations that owned a database.
        """
        self.owned = set(databases)
        recorded = set(self._sql.databases_with(CHECKPOINTS))
        for database in sorted(self.owned):
            known = next(iter(self.marks({database} & recorded, mark.job)), None)
            refuse_newer_run(known, mark)
            if known is not None and known.incarnation == mark.incarnation:
                if known.fence < mark.fence:  # a run that adopts continues above this sequence, even without a commit
                    self.record(database, replace(known, fence=mark.fence))
                continue
            if known is not None and known not in self.replaced:
                self.replaced.append(known)
            self.record(database, mark)
        self._check_owner(mark)

    def _check_owner(self, mark: SinkCheckpoint) -> list[SinkCheckpoint]:
        marks = self.marks(self.owned, mark.job)
        for known in marks:
            if known.incarnation != mark.incarnation or known.fence > mark.fence:
                raise ownership_error(known)
        return marks

    def check_commit(self, mark: SinkCheckpoint) -> None:
        """Check that ``mark`` may be committed. An equal checkpoint is a repeat.

        Raises: SinkOwnershipError - another run has taken ownership of a database, or a database has a newer
        checkpoint.
        """
        for known in self._check_owner(mark):
            _refuse_newer(known, mark.checkpoint)

    # ---- write

    def record(self, database: str, mark: SinkCheckpoint) -> None:
        """Write ``mark`` as the newest checkpoint, except if this sink has already written a newer one.

        A run that starts compares the row with its state, so return when queries see it.
        Raises: SinkUnavailable - it is committed, but not visible within the time limit. A repeat is harmless.
        """
        self.create(database)
        if self._written.get((database, mark.job), -1) > mark.sequence:
            return  # a repeat of an older checkpoint
        row = record_row(mark)
        statement = (
            f"INSERT INTO {escape_percent(quoted(database))}.{quoted(CHECKPOINTS)} ({', '.join(map(quoted, row))}) "
            f"VALUES ({', '.join(['%s'] * len(row))})"
        )
        message = self._sql.execute(statement, f"{database}.{CHECKPOINTS}", tuple(row.values()))
        self._written[database, mark.job] = mark.sequence
        if _IS_VISIBLE not in message:
            self._await_visible(database, mark)

    def _await_visible(self, database: str, mark: SinkCheckpoint) -> None:
        deadline = time.monotonic() + VISIBLE_TIMEOUT_S
        for pause in Backoff(0.02, 0.5):
            if any(_order(known) >= _order(mark) for known in self.marks([database], mark.job)):
                return
            if time.monotonic() > deadline:
                raise self._sql.messages.unavailable(
                    "a committed checkpoint is not visible yet", table=f"{database}.{CHECKPOINTS}"
                )
            time.sleep(pause)

    def create(self, database: str) -> None:
        """Create the table in ``database`` if it is missing."""
        if database not in self._created:
            self._sql.execute(self._create_statement(database), f"{database}.{CHECKPOINTS}")
            self._created.add(database)


def record_row(mark: SinkCheckpoint) -> dict[str, str | int]:
    """Return the row of ``cdc_checkpoints`` for ``mark``."""
    return {
        "job": mark.job,
        "sequence": mark.sequence,
        "incarnation": mark.incarnation,
        "fence": mark.fence,
        "checkpoint": mark.checkpoint,
        "first_position": json.dumps(mark.first.to_json()),
        "position": json.dumps(mark.position.to_json()),
    }


def _checkpoint_of(job: str, row: Mapping[str, Any]) -> SinkCheckpoint:
    """Return the checkpoint of a row. Raises: SinkUnavailable - no job wrote this row."""
    try:
        return SinkCheckpoint(
            job,
            row["incarnation"],
            int(row["fence"]),
            int(row["checkpoint"]),
            position_from_json(json.loads(row["first_position"])),
            position_from_json(json.loads(row["position"])),
            int(row["sequence"]),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise SinkUnavailable(
            f"A row of {CHECKPOINTS} cannot be read: {type(error).__name__}: {shown(str(error))}.",
            hint=f"The read is retried; check the row with `SELECT * FROM {CHECKPOINTS} WHERE job = '{job}'`.",
        ) from error


def _order(mark: SinkCheckpoint) -> tuple[int, int, int]:
    """Return the order of the rows of a job."""
    return mark.sequence, mark.fence, mark.checkpoint


def _refuse_newer(known: SinkCheckpoint, checkpoint: int) -> None:
    """Raise SinkOwnershipError if the sink has a newer checkpoint than the one to commit."""
    if known.checkpoint > checkpoint:
        raise SinkOwnershipError(
            f"The sink has checkpoint {known.checkpoint} of job {known.job}, but the job commits checkpoint "
            f"{checkpoint}.",
            hint=f"The state file is older than the sink, or two processes run the job: `cdc stop {known.job}` in the "
            "other CDC_HOME, or restore the newer state file. If it is lost: `cdc start JOB.yaml --adopt`.",
            incarnation=known.incarnation,
            fence=known.fence,
            checkpoint=known.checkpoint,
            position=known.position,
        )


def _database(table: str) -> str:
    return table.partition(".")[0]
