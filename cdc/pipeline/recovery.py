"""Recovery: make state and sink consistent before a run reads its first row.

::

    verify_targets      each target is the table that the job wrote; not in a continued run
    acquire_ownership   take exclusive write access to the sink; not in a continued run
    PREPARED            commit it, and replay loads that the sink lost
    OPEN                abort it
    open the receiver   at the end of the last COMMITTED checkpoint
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from cdc.errors import ErrorAction, SinkError, SinkOwnershipError, action_for
from cdc.model.batch import FENCE_STEP, TargetState
from cdc.model.position import Position
from cdc.model.timing import utc_now
from cdc.pipeline import schema_changes
from cdc.pipeline.commit_cycle import Cancelled
from cdc.pipeline.committer import Committer, is_snapshot_step, last_of
from cdc.pipeline.flow_control import FlowControl
from cdc.pipeline.replay import Replay, commit_after_replay
from cdc.pipeline.targets import verify_targets
from cdc.run_context import RunContext
from cdc.state.base import ChannelCounts, Checkpoint, CheckpointState, CheckpointStore, CloseReason, JobRecord
from channels.sinks.base import Sink, SinkCheckpoint, is_traced

_log = logging.getLogger(__name__)


def check_sink_state(record: JobRecord, store: CheckpointStore, sink: Sink) -> SinkCheckpoint | None:
    """Return the job's newest checkpoint in the sink. It must not be newer than the saved state.

    Raises: SinkOwnershipError - it is newer, or it is of another incarnation.
    """
    mark = sink.last_checkpoint(record.name)
    if mark is None and is_traced(sink) and store.last_committed(record.name) is None and sink.has_written(record.name):
        raise unknown_position(record.name)
    if mark is None or _is_adopted(record, mark):
        return mark
    committed = store.last_committed(record.name)
    # Each checkpoint is saved as PREPARED before its commit, and they are committed one after the other. The sink
    # therefore has at most the first PREPARED one.
    prepared = [checkpoint.id for checkpoint in store.unfinished() if checkpoint.state is CheckpointState.PREPARED]
    known = min(prepared, default=committed.id if committed else -1)
    if mark.incarnation == record.incarnation and mark.checkpoint <= known and mark.fence < record.fence:
        return mark
    fault = "of another incarnation" if mark.incarnation != record.incarnation else "ahead of the state"
    raise SinkOwnershipError(
        f"The sink has a checkpoint of job {record.name} that is {fault}: the state was lost or is an old copy, "
        "or another job with this name writes to the sink.",
        hint="Stop the other job or rename this one. If the state was lost: `cdc start JOB.yaml --adopt`.",
        sink=f"{mark.incarnation}, checkpoint {mark.checkpoint}, fence {mark.fence}, position {mark.position}",
        state=f"{record.incarnation}, checkpoint {known if known >= 0 else 'none'}, fence {record.fence}",
    )


def _is_adopted(record: JobRecord, mark: SinkCheckpoint) -> bool:
    """Return whether the adoption has taken ``mark`` over, also one that is older than the newest one of that time."""
    incarnation, _, checkpoint = (record.adopted or "").rpartition(":")
    return mark.incarnation == incarnation and mark.checkpoint <= int(checkpoint)


def unknown_position(job: str) -> SinkOwnershipError:
    """Return the error for a sink with rows of ``job`` of which neither it nor the state knows the position."""
    return SinkOwnershipError(
        f"The sink has rows of job {job}, but the state of the job was lost, and so was the position in the "
        "sink: another writer has deleted the entries of the Delta logs that had it.",
        hint="Restore the state. If it is lost, delete the target tables or give the job another `sink.path`, and load "
        "all rows again with `start: snapshot`.",
    )


def adopt(record: JobRecord, store: CheckpointStore, sink: Sink, targets: Callable[[], Mapping[str, str]]) -> JobRecord:
    """Continue with a sink whose commits the state does not have: return the record with a new incarnation and fence.

    A new incarnation has new labels, and the fence is above all sequences in the sink. If a saved state exists, the
    stream continues at its last checkpoint. Rows that are loaded a second time do no harm, and they complete a
    checkpoint that the sink committed in some tables only. If no state exists, the range of the sink's newest
    checkpoint is read again, for the same reason, and the identity of each of ``targets`` (source table -> target) is
    saved, so that a target that is lost later is noticed. An adoption that was interrupted is refused and repeated.

    Raises: SourceUnavailable, SinkUnavailable, CheckpointError, LeaseLost.
    """
    mark = sink.last_checkpoint(record.name)
    if mark is None:
        if is_traced(sink) and sink.has_written(record.name):
            raise unknown_position(record.name)
        return record
    found = _existing(targets(), record.name, mark, sink) if store.last_committed(record.name) is None else {}
    for checkpoint in store.unfinished():
        sink.abort(record.name, record.incarnation, checkpoint.fence, checkpoint.id)
        store.discard(checkpoint.id)
    adopted = replace(
        record,
        incarnation=secrets.token_hex(4),
        fence=1 + max(record.fence, mark.fence, mark.sequence // FENCE_STEP),
        adopted=f"{mark.incarnation}:{mark.checkpoint}",
    )
    own = store.last_committed(record.name)
    position = last_of(own) if own else mark.first
    start = _start(max(store.next_id(), mark.checkpoint + 1), adopted.fence, position)
    # in one transaction: a start that finds the adopted record without this checkpoint begins at `source.start`
    store.save_adoption(adopted, _with_state_of(own, start) if own else _with_targets(start, found))
    _log.warning("adopted: %s continues at %s as incarnation %s", record.name, position, adopted.incarnation)
    return adopted


def _existing(
    targets: Mapping[str, str], job: str, mark: SinkCheckpoint, sink: Sink
) -> Mapping[str, tuple[str, TargetState]]:
    states = sink.target_states(job, mark.incarnation, sorted(set(targets.values())))
    return {source: (target, states[target]) for source, target in targets.items() if target in states}


def _with_targets(start: Checkpoint, found: Mapping[str, tuple[str, TargetState]]) -> Checkpoint:
    return replace(
        start,
        counts=dict.fromkeys(found, ChannelCounts()),
        # checkpoint numbers in the targets belong to the old incarnation
        targets={target: TargetState(state.identity) for target, state in found.values()},
    )


def _with_state_of(own: Checkpoint, start: Checkpoint) -> Checkpoint:
    # checkpoint numbers in the targets belong to the old incarnation
    targets = {name: replace(state, checkpoint=None) for name, state in own.targets.items()}
    return replace(
        start,
        schemas=own.schemas,
        counts=own.counts,
        snapshots=own.snapshots,
        left_out=own.left_out,
        targets=targets,
        sink=own.sink,
        column_maps=own.column_maps,
    )


def _start(checkpoint_id: int, fence: int, position: Position) -> Checkpoint:
    return Checkpoint(
        checkpoint_id,
        fence,
        CheckpointState.COMMITTED,
        first=position,
        last=position,
        closed_by=CloseReason.START,
        committed_at=utc_now(),
    )


class Recovery:
    """Makes state and sink consistent after the last run, even after a crash. See the module's docstring."""

    def __init__(
        self, context: RunContext, flow: FlowControl, committer: Committer, sequence: int, stopping: threading.Event
    ) -> None:
        self._context = context
        self._flow = flow
        self._committer = committer
        self._sequence = sequence  # new rows get higher sequences
        self._stopping = stopping
        self._is_open = False

    def run(self, resolve_start: Callable[[], Position]) -> Checkpoint:
        """Return the last COMMITTED checkpoint, with the receiver open at its end.

        ``resolve_start`` is called at the first run of a job only. Its result is saved before the first event is read.
        """
        store = self._context.store
        before = store.last_committed(self._context.run.job)
        if before is None:
            start = _start(0, self._context.run.fence, resolve_start())
            before = replace(start, sink=self._context.sink.identity(create=True))
            store.save(before)
        elif not self._context.is_continued:
            before = verify_targets(self._context, before)
        self._context.routes.use_column_maps(before.column_maps)  # a reload ends differences
        if not self._context.is_continued:
            self._acquire_sink(before)
        unfinished = store.unfinished()
        store.check_fence()  # after unfinished(): if another process opened one of them, this run must not abort it
        # an earlier run can have replayed one of them and committed a part of it: its rows are above all others
        self._sequence = max([self._sequence, *(checkpoint.sequence for checkpoint in unfinished)])
        for checkpoint in unfinished:
            if checkpoint.state is CheckpointState.PREPARED:
                before = self._roll_forward(checkpoint, before)
        for checkpoint in unfinished:
            if checkpoint.state is CheckpointState.OPEN:
                before = self._abort(checkpoint, before)
        self._seek(before)
        return before

    def _acquire_sink(self, before: Checkpoint) -> None:
        run, position = self._context.run, last_of(before)
        sequence = max(before.sequence, run.fence * FENCE_STEP)  # at least every sequence of earlier runs
        mark = SinkCheckpoint(run.job, run.incarnation, run.fence, before.id, position, position, sequence)
        self._context.sink.acquire_ownership(mark, [mapping.target for mapping in self._context.routes.mappings])

    def _new_replay(self) -> Replay:
        return Replay(self._context, self._flow, self._stopping)

    def _roll_forward(self, checkpoint: Checkpoint, before: Checkpoint) -> Checkpoint:
        _log.info("checkpoint %d is PREPARED: rolling forward", checkpoint.id)
        if checkpoint.change is not None:
            if self._stopping.is_set():  # the sink knows only a stop after ``acquire_ownership``
                raise Cancelled(f"before the schema change of checkpoint {checkpoint.id}")
            return schema_changes.roll_forward(self._context, checkpoint)
        was_replayed = False
        try:
            committed = self._committer.roll_forward(checkpoint)
        except SinkError as error:
            if action_for(error) is not ErrorAction.REPLAY:
                raise
            if is_snapshot_step(checkpoint):
                return self._committer.commit_without_loads(checkpoint, before)
            was_replayed = True
            committed = commit_after_replay(
                self._new_replay, self._committer, error, checkpoint, before, lambda: self._seek(before)
            )
        if is_snapshot_step(checkpoint):
            return committed
        if self._is_open and not was_replayed:
            self._new_replay().skip(committed)
        if was_replayed or checkpoint.replays or any(load.name.attempt for load in checkpoint.loads):
            self._new_replay().clean_up(committed)
        if self._is_open:
            self._context.receiver.ack(last_of(committed))
        return committed

    def _seek(self, before: Checkpoint) -> None:
        if self._is_open:
            self._context.receiver.rollback(last_of(before))
            return
        self._context.receiver.note_loaded(before.snapshots)
        self._context.receiver.open(last_of(before), before.schemas, max(self._sequence, before.sequence))
        self._is_open = True

    def _abort(self, checkpoint: Checkpoint, before: Checkpoint) -> Checkpoint:
        run, store, sink = self._context.run, self._context.store, self._context.sink
        mark = sink.last_checkpoint(run.job)
        if mark and (mark.incarnation, mark.fence, mark.checkpoint) == (
            run.incarnation,
            checkpoint.fence,
            checkpoint.id,
        ):
            # A state server that failed over lost PREPARED. The columns at the end of the range were lost with it, and
            # rows after a renamed column would be read with the old ones. Read the range again from its first position:
            # rows that are loaded twice, with higher sequences, do no harm.
            committed = replace(
                checkpoint,
                state=CheckpointState.COMMITTED,
                last=checkpoint.first,
                sequence=mark.sequence,
                counts=before.counts,
                snapshots=before.snapshots,
                targets=before.targets,
                sink=before.sink,
                left_out=self._context.routes.left_out,
                column_maps=before.column_maps,
                verify=before.verify,
                committed_at=utc_now(),
            )
            store.save(committed)
            return committed
        sink.abort(run.job, run.incarnation, checkpoint.fence, checkpoint.id)
        store.discard(checkpoint.id)
        return before
