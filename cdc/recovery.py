"""What a run does before its first new row: compare with the sink, roll forward, abort, stand at the right place."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace

from cdc.batch import FENCE_STEP
from cdc.checkpoint import Checkpoint, CheckpointState, CheckpointStore, JobRecord
from cdc.commit import Committer, is_turn, last_of, utc_now
from cdc.errors import LoadLost, SinkForeign
from cdc.parts import Limits, Parts
from cdc.position import Position
from cdc.reload import Reload, lost_targets
from cdc.targets import verify_targets
from channels.sinks.base import CheckpointMark, Sink

_log = logging.getLogger(__name__)


def compare(record: JobRecord, store: CheckpointStore, sink: Sink) -> CheckpointMark | None:
    """What the sink has seen of the job. It may be behind our state, never ahead.

    Raises: SinkForeign - it has seen another incarnation, or more than our state knows.
    """
    mark = sink.last_checkpoint(record.name)
    if mark is None or record.adopted == f"{mark.incarnation}:{mark.checkpoint}":
        return mark
    committed = store.last_committed(record.name)
    known = max([committed.id if committed else -1, *(checkpoint.id for checkpoint in store.unfinished())])
    if mark.incarnation == record.incarnation and mark.checkpoint <= known and mark.fence < record.fence:
        return mark
    told = "of another incarnation" if mark.incarnation != record.incarnation else "ahead of the state"
    raise SinkForeign(
        f"The sink holds a checkpoint of job {record.name} that is {told}: the state was lost or is an old copy, "
        "or another job of this name writes to the sink.",
        mend="End the other job or rename this one. If the state was lost: `cdc start JOB.yaml --adopt`.",
        sink=f"{mark.incarnation}, checkpoint {mark.checkpoint}, fence {mark.fence}, position {mark.position}",
        state=f"{record.incarnation}, checkpoint {known if known >= 0 else 'none'}, fence {record.fence}",
    )


def adopt(record: JobRecord, store: CheckpointStore, sink: Sink) -> JobRecord:
    """Go on above what the sink holds, as a new incarnation so that no label can meet an older one.

    With a state of our own the stream goes on behind its last checkpoint: repeated rows do no harm, and a checkpoint
    that the sink has committed in part is made whole. Without, the sink's newest checkpoint is read again: it may be
    in some tables only.
    """
    mark = sink.last_checkpoint(record.name)
    if mark is None:
        return record
    for checkpoint in store.unfinished():
        sink.abort(record.name, record.incarnation, checkpoint.fence, checkpoint.id)
        store.discard(checkpoint.id)
    adopted = replace(
        record,
        incarnation=secrets.token_hex(4),
        fence=1 + max(record.fence, mark.fence, mark.sequence // FENCE_STEP),
        adopted=f"{mark.incarnation}:{mark.checkpoint}",
    )
    store.save_job(adopted)
    own = store.last_committed(record.name)
    position = last_of(own) if own else mark.first
    start = _start(max(store.next_id(), mark.checkpoint + 1), adopted.fence, position)
    store.save(_carried(start, own) if own else start)
    _log.warning("adopted: %s goes on at %s as incarnation %s", record.name, position, adopted.incarnation)
    return adopted


def _carried(start: Checkpoint, own: Checkpoint) -> Checkpoint:
    # the targets count their checkpoints by incarnation, and none is of the new one
    targets = {name: replace(state, checkpoint=None) for name, state in own.targets.items()}
    return replace(
        start,
        schemas=own.schemas,
        counts=own.counts,
        snapshots=own.snapshots,
        left_out=own.left_out,
        targets=targets,
        sink=own.sink,
    )


def _start(checkpoint_id: int, fence: int, position: Position) -> Checkpoint:
    return Checkpoint(
        checkpoint_id,
        fence,
        CheckpointState.COMMITTED,
        first=position,
        last=position,
        closed_by="start",
        committed_at=utc_now(),
    )


class Recovery:
    """Brings state and sink together after whatever happened to the last run."""

    def __init__(
        self, parts: Parts, limits: Limits, committer: Committer, sequence: int, stopping: threading.Event
    ) -> None:
        self._parts = parts
        self._limits = limits
        self._committer = committer
        self._sequence = sequence  # rows get sequences above it
        self._stopping = stopping
        self._is_open = False

    def run(self, resolve_start: Callable[[], Position]) -> Checkpoint:
        """The last COMMITTED checkpoint; the receiver stands behind it.

        ``resolve_start`` is asked once in the life of a job, and its answer saved before the first event is read.
        """
        store = self._parts.store
        before = store.last_committed(self._parts.run.job)
        if before is None:
            start = _start(0, self._parts.run.fence, resolve_start())
            before = replace(start, sink=self._parts.sink.identity(create=True))
            store.save(before)
        else:
            before = verify_targets(self._parts, before)
        self._claim(before)
        unfinished = store.unfinished()
        store.check_fence()  # behind the reading: what another process has opened by now is not ours to abort
        for checkpoint in unfinished:
            if checkpoint.state is CheckpointState.PREPARED:
                before = self._roll_forward(checkpoint, before)
        for checkpoint in unfinished:
            if checkpoint.state is CheckpointState.OPEN:
                before = self._abort(checkpoint, before)
        self._stand_behind(before)
        return before

    def _claim(self, before: Checkpoint) -> None:
        run, place = self._parts.run, last_of(before)
        sequence = max(before.sequence, run.fence * FENCE_STEP)  # above all that was ever claimed or committed
        mark = CheckpointMark(run.job, run.incarnation, run.fence, before.id, place, place, sequence)
        self._parts.sink.claim(mark, [mapping.target for mapping in self._parts.routes.mappings])

    @property
    def _reload(self) -> Reload:
        return Reload(self._parts, self._limits, self._stopping)

    def _roll_forward(self, checkpoint: Checkpoint, before: Checkpoint) -> Checkpoint:
        _log.info("checkpoint %d is PREPARED: rolling forward", checkpoint.id)
        was_reloaded, committed = False, None
        while committed is None:
            try:
                committed = self._committer.roll_forward(checkpoint)
            except LoadLost as error:
                if is_turn(checkpoint):
                    return self._committer.give_back(checkpoint, before)
                self._stand_behind(before)
                checkpoint, was_reloaded = self._reload.run(checkpoint, lost_targets(checkpoint, error), before), True
        if is_turn(checkpoint):
            return committed
        if self._is_open and not was_reloaded:
            self._reload.skip(committed)
        if any(load.name.attempt for load in checkpoint.loads):
            self._reload.tidy(committed)
        if self._is_open:
            self._parts.receiver.ack(last_of(committed))
        return committed

    def _stand_behind(self, before: Checkpoint) -> None:
        if self._is_open:
            self._parts.receiver.rollback(last_of(before))
            return
        self._parts.receiver.note_loaded(before.snapshots)
        self._parts.receiver.open(last_of(before), before.schemas, max(self._sequence, before.sequence))
        self._is_open = True

    def _abort(self, checkpoint: Checkpoint, before: Checkpoint) -> Checkpoint:
        run, store, sink = self._parts.run, self._parts.store, self._parts.sink
        mark = sink.last_checkpoint(run.job)
        if mark and (mark.incarnation, mark.fence, mark.checkpoint) == (
            run.incarnation,
            checkpoint.fence,
            checkpoint.id,
        ):
            # a sink whose prepared loads live in one open transaction commits it without our PREPARED
            taken = replace(
                checkpoint,
                state=CheckpointState.COMMITTED,
                last=mark.position,
                sequence=mark.sequence,
                counts=before.counts,
                snapshots=before.snapshots,
                targets=before.targets,
                sink=before.sink,
                left_out=self._parts.routes.left_out,
                committed_at=utc_now(),
            )
            store.save(taken)
            return taken
        sink.abort(run.job, run.incarnation, checkpoint.fence, checkpoint.id)
        store.discard(checkpoint.id)
        return before
