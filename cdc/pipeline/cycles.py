"""The commit cycles of a run: one cycle reads while the previous one commits. Snapshot steps run between cycles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cdc.errors import ErrorAction, SinkError, action_for
from cdc.model.batch import Batch, PreparedLoad
from cdc.model.position import Position
from cdc.model.snapshot import TableSnapshot
from cdc.model.timing import utc_now
from cdc.pipeline.commit_cycle import ClosedCycle
from cdc.pipeline.commit_thread import CommitThread
from cdc.pipeline.committer import is_snapshot_step, last_of
from cdc.pipeline.dispatcher import Dispatcher
from cdc.pipeline.flow_control import BUSY_POLL_S, FlowControl
from cdc.pipeline.maintenance import MaintenanceSchedule
from cdc.pipeline.replay import Replay, commit_after_replay
from cdc.run_context import RunContext
from cdc.snapshot.coordinator import SnapshotCoordinator
from cdc.snapshot.step import StepResult
from cdc.state.base import ChannelCounts, Checkpoint, CheckpointState, CloseReason
from cdc.verify.session import VerifySession

SHUTDOWN_S = 5.0  # after a pause or SIGTERM an OPEN cycle may continue this long
_REST_S = 1.0  # time between two saves at rest


class Cycles:
    """Closes cycles, commits them in order, and acknowledges them to the source.

    Calls: the Consumer's thread; other threads may read ``dispatcher``, ``committed`` and ``is_at_end``.
    """

    def __init__(
        self,
        context: RunContext,
        flow: FlowControl,
        commits: CommitThread,
        maintenance: MaintenanceSchedule,
        stopping: threading.Event,
        now: Callable[[], float],
        *,
        dispatcher: Dispatcher,
        committed: Checkpoint,
        coordinator: SnapshotCoordinator | None,
        session: VerifySession | None = None,
    ) -> None:
        """Start from ``committed``, the checkpoint of the recovery. ``coordinator`` and ``session`` are None if the
        source has no tables.
        """
        self.dispatcher = dispatcher
        self.committed = committed
        self.coordinator = coordinator
        self.session = session
        self.is_at_end = False  # the source has no more changes
        self.lost_steps = 0  # steps whose loads the sink has lost: their rows are read again
        self._next_save = 0.0  # time of the next save at rest
        self._context = context
        self._receiver = context.receiver
        self._flow = flow
        self._commits = commits
        self._maintenance = maintenance
        self._stopping = stopping
        self._now = now

    def poll(self) -> None:
        """Update ``is_at_end`` from the receiver, and acknowledge a commit that has succeeded.

        The error of a commit is raised by the next call of another method.
        """
        self.is_at_end = self._receiver.status().is_at_end
        if self._commits.has_succeeded:
            self.poll_tasks()

    # closing

    @property
    def is_committing(self) -> bool:
        """Whether a cycle or a step is being committed, or is not acknowledged yet."""
        return self._commits.is_busy

    @property
    def is_committing_step(self) -> bool:
        """Whether a step is being committed, or is not acknowledged yet."""
        closed = self._commits.closed
        return closed is not None and is_snapshot_step(closed.checkpoint)

    @property
    def may_close(self) -> bool:
        """Whether the previous cycle is acknowledged and the flow control allows a close."""
        return not self._commits.is_busy and self._flow.may_close

    def close(self, reason: CloseReason) -> None:
        """Close the open cycle, pass it to the commit thread, and begin the next cycle at its end."""
        opened, cycle = self.dispatcher.close(), self.dispatcher.cycle
        if cycle.began is None:
            raise RuntimeError("the cycle has no Batch to commit")
        self._flow.note_close(reason)
        self.dispatcher.begin(cycle.last)
        if opened is None:
            self._save_empty(cycle.last, reason)
            return
        opened = self._with_last_state(opened, self._snapshots(cycle.last))
        self._commits.begin(cycle.close(opened, self.committed, reason, self._now() - cycle.began))

    def close_and_commit(self, reason: CloseReason, deadline: float | None = None) -> None:
        """Close the open cycle if it has whole transactions. Wait until everything is acknowledged."""
        self.wait_for_commit(deadline)
        if self.dispatcher.cycle.may_close:
            self.close(reason)
            self.wait_for_commit(deadline)

    def close_step(self, opened: Checkpoint, result: StepResult) -> None:
        """Pass a snapshot step to the commit thread. Its checkpoint begins and ends at the same position."""
        first = opened.first
        self.dispatcher.read_schemas()
        step = replace(
            self._with_last_state(opened, result.snapshots),
            last=first,
            rows=result.rows,
            bytes=result.bytes,
            sequence=max(self.committed.sequence, self.dispatcher.sequence),
            closed_by=CloseReason.SNAPSHOT,
            seconds={"buffer": result.seconds},
            counts={**self.committed.counts, **result.counts},
        )
        self.dispatcher.begin(first)
        self._commits.begin(ClosedCycle(step, [], step_loads=result.loads))

    def close_range(
        self,
        opened: Checkpoint,
        read: Batch,
        loads: Sequence[PreparedLoad],
        counts: Mapping[str, ChannelCounts],
        seconds: float,
    ) -> None:
        """Pass a range that executors have read to the commit thread. ``counts``: of the tables that got rows."""
        closed = replace(
            self._with_last_state(opened, self.committed.snapshots),
            last=read.last,
            rows=read.rows,
            bytes=read.bytes,
            sequence=max(self.committed.sequence, self.dispatcher.sequence),
            closed_by=CloseReason.INTERVAL,
            seconds={"buffer": seconds},
            counts={**self.committed.counts, **counts},
        )
        self.dispatcher.newest_commit_us = read.newest_commit_us or self.dispatcher.newest_commit_us
        self.dispatcher.begin(read.last)
        self._commits.begin(ClosedCycle(closed, [], read.oldest_commit_us, step_loads=tuple(loads)))

    def save_at_rest(self) -> None:
        """Save the state of a source without changes, at most once a second, because all tables are compared."""
        if self._now() >= self._next_save:
            self._next_save = self._now() + _REST_S
            self.save_state()

    def save_state(self) -> None:
        """Save changes of columns, snapshots, verifications and omitted tables, for which no cycle closes."""
        self.dispatcher.read_schemas()
        first, saved = self.dispatcher.cycle.first, self.committed
        known = saved.snapshots, saved.left_out, saved.schemas
        verify = self.session.run if self.session is not None else None
        is_changed = (self._snapshots(first), self._context.routes.left_out, self.dispatcher.schemas) != known
        if is_changed or (verify is not None and verify != self.committed.verify):
            self._save_empty(first, CloseReason.SNAPSHOT)

    def _save_empty(self, last: Position, reason: CloseReason) -> None:
        """Save a COMMITTED checkpoint without loads, for a cycle without rows. The sink is not called."""
        empty = Checkpoint(
            self._context.store.next_id(),
            self._context.run.fence,
            CheckpointState.COMMITTED,
            first=last_of(self.committed),
            last=last,
            sequence=self.committed.sequence,
            closed_by=reason,
            committed_at=utc_now(),
        )
        committed = self._with_last_state(empty, self._snapshots(last))
        self._context.store.save(committed)
        self.acknowledge(committed)

    def _with_last_state(self, checkpoint: Checkpoint, snapshots: Mapping[str, TableSnapshot]) -> Checkpoint:
        """Return ``checkpoint`` with the state that it copies from the last COMMITTED checkpoint."""
        return replace(
            checkpoint,
            schemas=self.dispatcher.schemas,
            counts=self.committed.counts,
            snapshots=snapshots,
            targets=self.committed.targets,
            sink=self.committed.sink,
            left_out=self._context.routes.left_out,
            column_maps=self.committed.column_maps,
            verify=self.session.run if self.session is not None else None,
        )

    def _snapshots(self, last: Position) -> Mapping[str, TableSnapshot]:
        if self.coordinator is None:
            return self.committed.snapshots
        return self.coordinator.advance(last, [*self.dispatcher.channels], at_end=self.is_at_end)

    # committing, acknowledging

    def poll_tasks(self) -> None:
        """Release the window's bytes of started Tasks. Acknowledge the commit if it is done.

        Raises: the error of a Task or of the commit.
        """
        closed = self._commits.closed
        self.dispatcher.poll_tasks(closed.loading if closed else ())
        try:
            committed = self._commits.result()
        except SinkError as error:
            if closed is None or action_for(error) is not ErrorAction.REPLAY:
                raise
            committed = self._replay(closed.checkpoint, error)
        if committed is None or closed is None:
            return
        self._commits.release()
        self.acknowledge(committed)
        if any(load.name.attempt for load in closed.step_loads):
            self._new_replay().clean_up(committed)  # of tasks that Spark has repeated
        self._flow.note_commit(self._commits.committer.merge_s)
        self._maintenance.after_commit(self.dispatcher.targets(closed.targets))

    def wait_for_commit(self, deadline: float | None = None) -> None:
        """Wait until the previous cycle is acknowledged. ``SHUTDOWN_S`` after a stop, cancel it if it is still OPEN."""
        while self._commits.is_busy:
            if deadline is None and self._stopping.is_set():
                deadline = self.shutdown_deadline()
            if deadline is not None and self._now() >= deadline:
                self._commits.cancel()
            self._commits.wait(BUSY_POLL_S)
            self.poll_tasks()

    def shutdown_deadline(self) -> float:
        """Return the time at which an OPEN cycle is cancelled if the run ends now."""
        return self._now() + SHUTDOWN_S

    def acknowledge(self, committed: Checkpoint) -> None:
        """Ack a COMMITTED checkpoint to the receiver. It frees its memory and acks Canal; MySQL gets nothing."""
        self.committed = committed
        if self.coordinator is not None:
            self.coordinator.requests.note_committed(committed.snapshots)
        if self.session is not None:
            self.session.note_committed(committed.verify)
        if not is_snapshot_step(committed):
            self._receiver.ack(last_of(committed))

    def _replay(self, prepared: Checkpoint, lost: SinkError) -> Checkpoint:
        """Replay the loads that the sink lost, and commit. No newer checkpoint is committed before this one."""
        committer, receiver, before = self._commits.committer, self._receiver, self.committed
        if is_snapshot_step(prepared):
            committed = committer.commit_without_loads(prepared, before)
            self.lost_steps += 1
            if self.coordinator is not None:
                self.coordinator.tables = committed.snapshots  # a later step reads its chunks again
            if self.session is not None:
                self.session.restore(committed.verify)
            return committed
        self.dispatcher.discard()
        self.dispatcher.begin(last_of(prepared))
        committed = commit_after_replay(
            self._new_replay, committer, lost, prepared, before, lambda: receiver.rollback(prepared.first)
        )
        self.dispatcher.sequence = max(self.dispatcher.sequence, committed.sequence)
        self._new_replay().clean_up(committed)
        # roll back to the end of the range, because the last Batch of the replay may end after it
        receiver.ack(last_of(committed))
        receiver.rollback(last_of(committed))
        return committed

    def _new_replay(self) -> Replay:
        return Replay(self._context, self._flow, self._stopping)

    # aborting

    def abort_open(self) -> None:
        """Abort the open cycle, and read it again from its first position."""
        self.wait_for_commit()
        first = self.dispatcher.cycle.first
        self.dispatcher.discard()
        self._receiver.rollback(first)
        self.dispatcher.begin(first)

    def end(self) -> None:
        """Finish a PREPARED cycle, abort OPEN ones. Raises: the error of an abort; the next recovery repeats it."""
        committed = self._commits.end(SHUTDOWN_S)
        if committed is not None:
            self.acknowledge(committed)
        closed = self._commits.closed
        self.dispatcher.discard()
        if closed is not None and not closed.is_prepared:
            self.dispatcher.abort(closed.checkpoint)
