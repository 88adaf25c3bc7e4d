"""Run a snapshot step: plan it, read its chunks or delete orphan rows, and return its prepared loads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import TypeVar

from cdc.errors import LoadRejected, SchemaMismatch
from cdc.model.batch import PreparedLoad
from cdc.model.position import Position
from cdc.model.snapshot import TableSnapshot
from cdc.mysql.server import Server
from cdc.run_context import RunContext, SnapshotSettings
from cdc.snapshot.coordinator import SnapshotCoordinator
from cdc.snapshot.step_plan import SnapshotStep
from cdc.snapshot.table_shape import NOT_VISIBLE
from cdc.state.base import ChannelCounts
from channels.chunk_reader import SnapshotResult
from channels.task import Task

MISMATCH_S = 10.0  # a server may write a statement to its binlog some time after the table shows its result
_POLL_S = 0.05

_Result = TypeVar("_Result")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step: prepared loads and the new states of the tables."""

    loads: tuple[PreparedLoad, ...]
    rows: int
    bytes: int
    seconds: float
    counts: Mapping[str, ChannelCounts]  # of the tables that got rows; the Committer sets their commit time
    snapshots: Mapping[str, TableSnapshot]  # of all tables, after the step


@dataclass(slots=True)
class _Mismatch:
    """A table whose columns differ from those at the position of the stream, in one step after the other."""

    table: object
    position: Position  # of the newest step
    since: float  # monotonic time at which the stream has reached ``position``
    high: Position  # end of the source after an earlier step
    asked_at: float  # monotonic time at which ``high`` was queried
    passed: int = 0  # how often the stream has passed ``high``


class StepRunner:
    """Runs snapshot steps, each between two cycles of the stream. Calls: the Consumer's thread."""

    def __init__(
        self,
        context: RunContext,
        settings: SnapshotSettings,
        coordinator: SnapshotCoordinator,
        submit: Callable[[Callable[[], Task | None]], Future[Task | None]],
        stopping: threading.Event,
        *,
        on_poll: Callable[[], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Run searches for orphan rows with ``submit``. Call ``on_poll`` many times a second while a step waits."""
        self._context = context
        self._settings = settings
        self._coordinator = coordinator
        self._submit = submit
        self._stopping = stopping
        self._on_poll = on_poll
        self._now = now
        self._seconds = 0.0  # duration of the reading of a step
        self._retry_at = 0.0  # earliest time of the next step after one that could not be planned
        self._next_at = 0.0  # earliest time of the next step, unless the stream is at its end
        self._mismatch: _Mismatch | None = None

    @property
    def is_due(self) -> bool:
        """Whether a step should run now: the stream was read for one step's duration, or it is at its end.

        While Spark starts, only at the end of the stream: the step waits for Spark, and the stream for the step. The
        step is planned meanwhile, and the server counts the rows.
        """
        if not self._coordinator.is_due or self._now() < self._retry_at:
            return False
        return self._context.receiver.status().is_at_end or (
            self._now() >= self._next_at and not self._context.runner.is_warming
        )

    def plan(self, position: Position, sequence: int) -> SnapshotStep | None:
        """Return the work of a step at ``position``; None if nothing can be read now. Raises: see
        ``SnapshotCoordinator.plan``.
        """
        step = None
        try:
            step = self._coordinator.plan(position, sequence, self._context.store.next_id())
        except SchemaMismatch as error:
            self._await_statement(error, position)
        self._next_at = self._now() + self._settings.step_s
        self._retry_at = self._now() + (_POLL_S if step is None else 0.0)
        return step

    def read(self, step: SnapshotStep, position: Position) -> SnapshotResult | None:
        """Read and prepare the rows of ``step``. Return None after a stop or if the columns of a table were changed.

        Raises: the error of a Task.
        """
        while self._context.runner.is_warming and not self._stopping.wait(_POLL_S):
            self._on_poll()
        if self._stopping.is_set():
            return None
        began, outcome = self._now(), None
        try:
            outcome = self._read_unless_changed(step)
        except SchemaMismatch as error:
            self._await_statement(error, position)
        self._seconds = self._now() - began
        self._next_at = self._now() + self._settings.step_s
        return outcome

    def complete(
        self, step: SnapshotStep, outcome: SnapshotResult, position: Position, counts: Mapping[str, ChannelCounts]
    ) -> StepResult | None:
        """Return the result of ``step``; None if the columns of a table were changed. Calls: after ``read``.

        ``counts``: of the last checkpoint. Raises: see ``SnapshotCoordinator.complete``.
        """
        try:
            self._coordinator.note_committed(position)
            snapshots = self._coordinator.complete(step, outcome, self._seconds)
        except SchemaMismatch as error:
            self._await_statement(error, position)
            return None
        finally:
            self._next_at = self._now() + self._settings.step_s
        self._mismatch = None
        return StepResult(
            outcome.loads,
            rows=sum(one.rows for one in outcome.chunks),
            bytes=sum(one.bytes for one in outcome.chunks),
            seconds=self._seconds,
            counts=_affected(step.tables, counts, outcome),
            snapshots=snapshots,
        )

    def _read_unless_changed(self, step: SnapshotStep) -> SnapshotResult | None:
        try:
            return self._read(step)
        except LoadRejected:
            self._coordinator.refuse_changed(step)  # the target was made for the column of that name before it
            raise

    def _await_statement(self, error: SchemaMismatch, position: Position) -> None:
        """Wait until the stream reaches the DDL statement for this table.

        Raises: SchemaMismatch - the binlog has no such statement.
        """
        found, table = self._mismatch, error.context.get("table")
        if found is None or found.table != table:
            high, now = self._end(), self._now()
            self._mismatch = _Mismatch(table, position, now, high, now)
            _log.warning("the snapshot waits for the stream: %s", error)
            return
        if found.position != position:
            found.position, found.since = position, self._now()
            if _has_reached(position, found.high):
                found.passed += 1
                found.high, found.asked_at = self._end(), self._now()
        # a source that is never idle: the table can have been changed once more after the first end
        if self._is_idle(found) or found.passed > 1:
            raise SchemaMismatch(
                f"{error.message} The binlog has no statement of it.",
                hint=error.hint
                if error.message == NOT_VISIBLE
                else "Undo the change, then `cdc resume`. Or `cdc stop` the job, and load the table into an empty "
                "target with a job of another name.",
                **error.context,
            ) from error

    def _is_idle(self, found: _Mismatch) -> bool:
        """Return whether the stream has read up to ``found.high``, and no statement has moved its position."""
        if self._now() - found.since <= MISMATCH_S:
            return False
        try:
            return self._context.receiver.status().has_returned(found.high, found.asked_at)
        except ValueError:  # after a failover: wait for the end of the other server
            found.high, found.asked_at = self._end(), self._now()
            return False

    def _end(self) -> Position:
        with Server(self._settings.endpoint) as server:
            return self._settings.position(server)

    def _read(self, step: SnapshotStep) -> SnapshotResult | None:
        """Return the outcome of the step; None after a stop."""
        runner = self._context.runner
        if step.read_request is not None:
            return self._awaited(runner.submit_reading(step.read_request))
        if step.delete_orphans is None:
            raise RuntimeError("a step reads chunks or deletes orphan rows")
        search = self._submit(step.delete_orphans)
        self._awaited(search)
        if not search.done():
            if step.search is not None:
                step.search.is_cancelled = True
            return None
        task = search.result()
        if task is None:
            return SnapshotResult((), ())
        loads = self._awaited(runner.submit([task])[0])
        return None if loads is None else SnapshotResult(loads, ())

    def _awaited(self, future: Future[_Result]) -> _Result | None:
        while not future.done():
            if self._stopping.is_set():
                return None
            self._on_poll()
            wait([future], _POLL_S)
        return future.result()


def _has_reached(position: Position, high: Position) -> bool:
    try:
        return position.reached(high)
    except ValueError:
        return False  # after a failover positions cannot be compared


def _affected(
    tables: Sequence[str], counts: Mapping[str, ChannelCounts], outcome: SnapshotResult
) -> Mapping[str, ChannelCounts]:
    """Return the counts of the tables of which the step has rows."""
    names = {tables[one.table] for one in outcome.chunks if one.rows}
    return {name: replace(counts.get(name, ChannelCounts()), last_committed_at=None) for name in names}
