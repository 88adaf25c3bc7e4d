"""Committer: brings a closed cycle from OPEN to PREPARED to COMMITTED. Exactly-once depends on the order of its steps.

::

    all Tasks prepared      the loads are durable in the sink, and invisible
    PREPARED saved          with the end position and all loads; from here the checkpoint is always committed
    loads committed         in order; a repeated commit changes nothing
    COMMITTED saved         then the source is acknowledged
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import groupby

from cdc.errors import CdcError, ErrorAction, PreparedLoadLost, SinkBusy, SinkError, TargetLost, action_for
from cdc.model.batch import PreparedLoad, TargetState
from cdc.model.position import Position
from cdc.model.timing import utc_now
from cdc.pipeline.commit_cycle import Cancelled, ClosedCycle
from cdc.pipeline.targets import changed_targets, committed_tables, with_lost_rows
from cdc.retry import Backoff
from cdc.state.base import Checkpoint, CheckpointState, CheckpointStore
from channels.sinks.base import LoadState, Sink, SinkCheckpoint
from channels.sinks.labels import label_for
from channels.task import RunIdentity

_NOT_PREPARED = (LoadState.UNKNOWN, LoadState.ABORTED)

_log = logging.getLogger(__name__)


class Committer:
    """Commits closed cycles. Calls: one at a time, from the commit thread or the Consumer's thread."""

    def __init__(
        self,
        run: RunIdentity,
        store: CheckpointStore,
        sink: Sink,
        stopping: threading.Event,
        busy: Callable[[], None] = lambda: None,
    ) -> None:
        """Call ``busy`` when the sink reports an overload."""
        self._run = run
        self._store = store
        self._sink = sink
        self._stopping = stopping  # ends the wait for the sink; the checkpoint stays PREPARED
        self._busy = busy
        self.blocked_by: CdcError | None = None  # the reason why the commit waits
        self.on_wait: Callable[[], None] = lambda: None  # called after each change of ``blocked_by``
        self.merge_s = 0.0  # duration of the sink's last commit, without waits
        self._losses = Backoff(sleep=stopping.wait)
        self._has_lost = False  # whether the sink has lost loads since the last commit

    def finish(self, closed: ClosedCycle) -> Checkpoint:
        """Wait until all Tasks are prepared, save PREPARED, and bring ``closed`` to COMMITTED.

        Raises: Cancelled or the error of a Task - the checkpoint is still OPEN; PreparedLoadLost, CdcError - it is
        PREPARED.
        """
        began = time.monotonic()
        loads = closed.loads()
        prepared = replace(
            closed.checkpoint,
            state=CheckpointState.PREPARED,
            loads=loads,
            targets=self._identified(closed.checkpoint, loads),
            seconds={**closed.checkpoint.seconds, "prepare": time.monotonic() - began},
        )
        self._store.save(prepared)
        closed.checkpoint = prepared
        closed.checkpoint = self.roll_forward(prepared)
        return closed.checkpoint

    def roll_forward(self, prepared: Checkpoint) -> Checkpoint:
        """Commit a PREPARED checkpoint, save it as COMMITTED and return it. Blocks while the sink is unavailable.

        Raises: PreparedLoadLost - the loads must be replayed first; Cancelled - the job stops; CdcError.
        """
        began = time.monotonic()
        if prepared.loads:
            try:
                self._commit(prepared)
            except SinkError as error:
                if action_for(error) is ErrorAction.REPLAY:
                    self._back_off(prepared, error)
                raise
            self._losses.reset()
            self._has_lost = False
        commit_s, committed_at = time.monotonic() - began, utc_now()
        committed = replace(
            prepared,
            state=CheckpointState.COMMITTED,
            loads=(),
            committed_at=committed_at,
            seconds={**prepared.seconds, "commit": commit_s},
            counts={
                source: replace(counts, last_committed_at=counts.last_committed_at or committed_at)
                for source, counts in prepared.counts.items()
            },
            targets={
                **prepared.targets,
                **{
                    load.table: TargetState(prepared.targets[load.table].identity, prepared.id)
                    for load in prepared.loads
                    if load.table in prepared.targets  # a state saved by an older version has no targets
                },
            },
        )
        self._store.save(committed)
        _log_commit(prepared, commit_s)
        return replace(committed, seconds={**committed.seconds, "save": time.monotonic() - began - commit_s})

    def _identified(self, opened: Checkpoint, loads: tuple[PreparedLoad, ...]) -> Mapping[str, TargetState]:
        """Return ``opened.targets``, plus the identity of each target that gets its first rows.

        Raises: TargetLost - a target was deleted after its loads were prepared; SinkUnavailable.
        """
        new = sorted({load.table for load in loads} - opened.targets.keys())
        if not new:
            return opened.targets
        found = self._sink.target_states(self._run.job, self._run.incarnation, new)
        lost = [name for name in new if name not in found]
        if lost:
            raise TargetLost(
                f"The target {', '.join(lost)} was deleted before its first commit.",
                hint=f"`cdc resume {self._run.job}` creates it again and reads its rows again.",
            )
        return {**opened.targets, **{name: TargetState(found[name].identity) for name in new}}

    def _commit_checked(self, prepared: Checkpoint, mark: SinkCheckpoint) -> None:
        """Commit the loads, and check before and after that their tables are those that they were prepared for.

        StarRocks commits the load of a dropped table successfully, and RECOVER TABLE restores it without these rows.
        Raises: TargetLost - a table is missing or another one. If its loads are committed, this is saved in the state.
        """
        if changed := changed_targets(self._sink, prepared):
            # the answer of an earlier attempt can be lost: its commit counts
            if committed := committed_tables(self._sink, prepared, changed):
                self._store.save(with_lost_rows(prepared, committed))
            raise TargetLost(
                f"The target {', '.join(changed)} was dropped or replaced while rows were loaded into it.",
                hint="Restore the table, then run `cdc resume NAME`; or run `cdc resume NAME --reload-missing` to load "
                "it again.",
            )
        try:
            self._sink.commit(prepared.loads, mark)
        except PreparedLoadLost:
            self._check_committed(prepared)  # loads of other tables can be committed
            raise
        self._check_committed(prepared)

    def _check_committed(self, prepared: Checkpoint) -> None:
        if changed := changed_targets(self._sink, prepared):
            self._store.save(with_lost_rows(prepared, changed))
            raise TargetLost(
                f"The target {', '.join(changed)} was dropped or replaced during the commit of its rows.",
                hint="A restored table lacks these rows: `cdc resume NAME --reload-missing` loads it again.",
            )

    def commit_without_loads(self, prepared: Checkpoint, before: Checkpoint) -> Checkpoint:
        """Save a snapshot step as COMMITTED without the loads that the sink lost. A later step reads its chunks again.

        Rows of the step that are already visible are correct: they are as new as the position of the step, or newer.
        """
        _log.warning("the sink lost chunks of checkpoint %d; a later step reads them again", prepared.id)
        self._sink.abort(self._run.job, self._run.incarnation, prepared.fence, prepared.id)
        committed = replace(
            prepared,
            state=CheckpointState.COMMITTED,
            loads=(),
            committed_at=utc_now(),
            counts=before.counts,
            snapshots=before.snapshots,
            verify=before.verify,
        )
        self._store.save(committed)
        return committed

    def _commit(self, prepared: Checkpoint) -> None:
        run, backoff, is_unknown = self._run, Backoff(sleep=self._stopping.wait), False
        mark = SinkCheckpoint(
            run.job, run.incarnation, run.fence, prepared.id, prepared.first, last_of(prepared), prepared.sequence
        )
        while True:
            try:
                self._store.check_fence()
                if not (is_unknown and self._is_committed(prepared.loads)):
                    began = time.monotonic()
                    self._commit_checked(prepared, mark)
                    self.merge_s = time.monotonic() - began
                self._show_wait(None)
                return
            except SinkError as error:
                action = action_for(error)
                if action not in (ErrorAction.RETRY, ErrorAction.RESOLVE):
                    raise
                _log.warning("commit of checkpoint %d waits: %s", prepared.id, error)
                if isinstance(error, SinkBusy):
                    self._busy()
                if action is ErrorAction.RESOLVE and not is_unknown:
                    is_unknown = True  # the sink is available, only its reply was lost: ask for the state at once
                    continue
                self._show_wait(error)
                if backoff.wait(error.after_s if isinstance(error, SinkBusy) else 0.0):
                    raise Cancelled(f"while the commit waits: {error}") from error

    def _show_wait(self, reason: CdcError | None) -> None:
        if reason is not self.blocked_by:
            self.blocked_by = reason
            self.on_wait()

    def _back_off(self, prepared: Checkpoint, lost: SinkError) -> None:
        """Back off before lost loads are replayed again. The first loss since the last commit is replayed at once.

        Raises: Cancelled - the job stops.
        """
        if self._has_lost:
            self._show_wait(lost)
            _log.warning("checkpoint %d: its loads were lost again: %s", prepared.id, lost)
            if self._losses.wait():
                raise Cancelled(f"while loads are lost repeatedly: {lost}") from lost
        self._has_lost = True

    def _is_committed(self, loads: tuple[PreparedLoad, ...]) -> bool:
        states = [self._sink.state(load) for load in loads]
        missing = [load for load, state in zip(loads, states, strict=True) if state in _NOT_PREPARED]
        if missing:
            raise PreparedLoadLost(
                "The sink no longer has the loads to commit.",
                hint="The job reads and loads their rows again automatically.",
                labels=[label_for(load.name) for load in missing],
            )
        return all(state is LoadState.COMMITTED for state in states)


def is_snapshot_step(checkpoint: Checkpoint) -> bool:
    """Return whether a closed checkpoint is a snapshot step: it begins and ends at the same position."""
    return checkpoint.first == checkpoint.last


def last_of(checkpoint: Checkpoint) -> Position:
    """Return the end position of a closed checkpoint."""
    if checkpoint.last is None:
        raise RuntimeError(f"checkpoint {checkpoint.id} is {checkpoint.state.value} and has no end")
    return checkpoint.last


def _log_commit(prepared: Checkpoint, commit_s: float) -> None:
    for name, parts in groupby(prepared.loads, key=lambda load: replace(load.name, part=0)):
        loads = list(parts)
        words = {
            "label": label_for(name),
            "rows": sum(load.rows for load in loads),
            "bytes": sum(load.bytes for load in loads),
            "seconds": round(commit_s, 3),
            "position": str(prepared.last),
        }
        _log.info("committed", extra=words)
