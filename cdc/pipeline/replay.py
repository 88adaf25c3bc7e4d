"""Replay: read the range of a PREPARED checkpoint again, and load again what the sink lost of it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from cdc.errors import CdcError, CheckpointError, ErrorAction, LeaseLost, PositionLost, SinkError, action_for
from cdc.model.batch import Batch, PreparedLoad
from cdc.model.position import BinlogPosition, CanalPosition, Position
from cdc.pipeline.commit_cycle import Cancelled
from cdc.pipeline.committer import Committer, last_of
from cdc.pipeline.flow_control import FlowControl
from cdc.run_context import RunContext
from cdc.sources.base import RangeReceiver
from cdc.state.base import ChannelCounts, Checkpoint
from channels.channel import Channel
from channels.sinks.labels import label_for

if TYPE_CHECKING:
    import pyarrow as pa

_GET_S = 0.2
_WATCH_S = 0.05

_log = logging.getLogger(__name__)


def lost_tables(checkpoint: Checkpoint, error: CdcError) -> frozenset[str]:
    """Return the targets of the loads that ``error`` names, or all targets if it names no load of ``checkpoint``."""
    named = error.context.get("labels")
    labels = {str(label) for label in named} if isinstance(named, Iterable) and not isinstance(named, str) else {named}
    lost = {load.table for load in checkpoint.loads if label_for(load.name) in labels or str(load.name) in labels}
    return frozenset(lost or {load.table for load in checkpoint.loads})


def commit_after_replay(
    new_replay: Callable[[], Replay],
    committer: Committer,
    lost: SinkError,
    prepared: Checkpoint,
    before: Checkpoint,
    rewind: Callable[[], None],
) -> Checkpoint:
    """Replay the lost loads and commit, until the checkpoint is COMMITTED. ``before`` is the previous checkpoint.

    ``rewind`` moves the receiver to the first position of the range. Raises: the errors of a replay and a commit.
    """
    while True:
        rewind()
        prepared = new_replay().run(prepared, lost_tables(prepared, lost), before)
        try:
            return committer.roll_forward(prepared)
        except SinkError as error:
            if action_for(error) is not ErrorAction.REPLAY:
                raise
            lost = error


def _row_counts(checkpoint: Checkpoint, before: Checkpoint) -> dict[str, int]:
    """Return the number of rows of the range by source table, as counted at the first read."""
    none = ChannelCounts()
    found = {}
    for source, counts in checkpoint.counts.items():
        old = before.counts.get(source, none)
        if rows := counts.upserts + counts.deletes - old.upserts - old.deletes:
            found[source] = rows
    return found


def _is_first_order(position: Position, last: Position) -> bool:
    """Return whether the rows up to ``position`` arrive in the order of the first read, which ended at ``last``.

    Only then are the first rows of a table those of the range. Another server can have committed the transactions in
    another order. A server that was read by GTID did not send all of them, and sends more if it is read by offset.
    """
    if isinstance(position, BinlogPosition) and isinstance(last, BinlogPosition):
        return position.server == last.server and not last.by_gtid
    # Canal does not report its server. If it reads by GTIDs, it can have changed it.
    return isinstance(last, CanalPosition) and not last.gtid_set


class Replay:
    """Reads ``first..last`` of a PREPARED checkpoint again, and loads all rows of lost targets as a new attempt.

    The receiver must be at the checkpoint's ``first``. Afterwards it is at ``last`` or later.
    """

    def __init__(self, context: RunContext, flow: FlowControl, stopping: threading.Event) -> None:
        self._context = context
        self._flow = flow
        self._stopping = stopping
        self._channels: dict[str, Channel] = {}  # by source
        self._loads: list[Future[tuple[PreparedLoad, ...]]] = []
        self._sequence = 0  # the highest one of the loaded rows
        self._left: dict[str, int] = {}  # by source: number of rows of the range that are not read yet; empty: no cut

    def run(self, checkpoint: Checkpoint, lost: frozenset[str], before: Checkpoint) -> Checkpoint:
        """Replace the lost loads, save the checkpoint as PREPARED and return it. ``before`` is the previous one.

        Raises: PositionLost - the source no longer has the range; the error of the source or of a Task.
        """
        _log.warning("checkpoint %d: replaying %s", checkpoint.id, ", ".join(sorted(lost)))
        attempt = 1 + max([checkpoint.replays, *(load.name.attempt for load in checkpoint.loads)])
        # saved before the first load: a replay that is repeated may divide the rows into other Tasks, and a sink
        # takes a load with a known label as loaded already
        checkpoint = replace(checkpoint, replays=attempt)
        self._context.store.save(checkpoint)
        self._left = _row_counts(checkpoint, before)
        try:
            self._read(checkpoint, lost, attempt)
            again = [load for future in self._loads for load in self._result(future)]
        except PositionLost as error:
            self._note_sequence(checkpoint)
            raise PositionLost(
                "The sink lost a load, and the source no longer has its rows.",
                hint=f"Load {', '.join(sorted(lost))} again with `cdc snapshot`. {error.hint}",
                tables=", ".join(sorted(lost)),
                first=checkpoint.first,
                last=checkpoint.last,
            ) from error
        except BaseException:
            self._note_sequence(checkpoint)
            raise
        intact = [load for load in checkpoint.loads if load.table not in lost]
        loads = sorted([*intact, *again], key=lambda load: (load.name.channel, load.name.task, load.name.part))
        # the rows have new sequences, and later changes of the same keys must get higher ones
        reloaded = replace(checkpoint, loads=tuple(loads), sequence=max(checkpoint.sequence, self._sequence))
        self._context.store.save(reloaded)
        return reloaded

    def _note_sequence(self, checkpoint: Checkpoint) -> None:
        """Save the sequence of a replay that failed: without prepared loads, its rows are visible already."""
        if self._sequence > checkpoint.sequence:
            with suppress(CheckpointError, LeaseLost):  # another process has higher sequences in any case
                self._context.store.save(replace(checkpoint, sequence=self._sequence))

    def clean_up(self, committed: Checkpoint) -> None:
        """Delete the loads of earlier attempts from the sink."""
        run = self._context.run
        try:
            for fence in range(committed.fence, run.fence + 1):
                self._context.sink.abort(run.job, run.incarnation, fence, committed.id)
        except SinkError as error:
            _log.warning("loads of earlier attempts of checkpoint %d remain in the sink: %s", committed.id, error)

    def skip(self, checkpoint: Checkpoint) -> None:
        """Read the range of a COMMITTED checkpoint and discard its rows."""
        self._read(checkpoint, frozenset(), 0)

    def _read(self, checkpoint: Checkpoint, lost: frozenset[str], attempt: int) -> None:
        last, receiver = last_of(checkpoint), self._context.receiver
        if not isinstance(receiver, RangeReceiver):
            self._read_until(last, checkpoint.id, lost, attempt)
            return
        receiver.limit(last)
        self._left.clear()  # exact: rows need no counting, and the order of partitions may be another one
        self._read_until(last, checkpoint.id, lost, attempt)
        receiver.limit(None)

    def _read_until(self, last: Position, checkpoint_id: int, lost: frozenset[str], attempt: int) -> None:
        receiver = self._context.receiver
        while True:
            self._check_stop()
            batch = receiver.get(_GET_S)
            if batch is None:
                continue
            if not _is_first_order(batch.last, last):
                self._left.clear()
            self._add_rows(batch, lost)
            arrived = batch.ends_transaction and batch.last.reached(last)
            self._load(checkpoint_id, attempt, is_last=arrived)
            receiver.release(sum(changes.bytes for changes in batch.changes))
            if arrived:
                return

    def _add_rows(self, batch: Batch, lost: frozenset[str]) -> None:
        for changes in batch.changes:
            schema = changes.schema
            mapping = self._context.routes.mapping_for(schema.database, schema.table)
            if mapping is None or mapping.target not in lost:
                continue  # the sink still has the load of this target
            if schema.name not in self._channels:
                self._channels[schema.name] = Channel(mapping, schema, self._context.types)
            self._channels[schema.name].add(replace(changes, rows=self._within_range(schema.name, changes.rows)))

    def _within_range(self, source: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return ``rows`` without rows after the range. The last Batch can be larger than at the first read.

        If they cannot be found by counting, all rows are returned. Later rows do no harm: they are read again after the
        range, with higher sequences.
        """
        left = self._left.get(source)
        if left is None:
            return rows
        self._left[source] = max(0, left - rows.num_rows)
        return rows.slice(0, left)

    def _load(self, checkpoint_id: int, attempt: int, is_last: bool) -> None:
        for channel in self._channels.values():
            while channel.buffered_rows and (
                is_last or channel.buffered_bytes >= self._flow.task_bytes(len(self._loads))
            ):
                task = channel.task_for(self._context.run, checkpoint_id, attempt)
                if task is not None:
                    # one Task at a time limits the memory, because the window no longer counts these rows
                    for future in self._loads[-1:]:
                        self._result(future)
                    self._loads.extend(self._context.runner.submit([task]))
                    self._sequence = max(self._sequence, task.last_sequence)

    def _result(self, future: Future[tuple[PreparedLoad, ...]]) -> tuple[PreparedLoad, ...]:
        while not future.done():
            self._check_stop()
            wait([future], _WATCH_S)
        return future.result()

    def _check_stop(self) -> None:
        if self._stopping.is_set():
            raise Cancelled("while loading a range again")
