"""Reading a closed checkpoint's range again, for loads that the sink lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import TYPE_CHECKING

from cdc.batch import Batch, PreparedLoad
from cdc.checkpoint import ChannelCounts, Checkpoint
from cdc.commit import last_of
from cdc.cycle import GivenUp
from cdc.errors import LoadLost, PositionLost, SinkError
from cdc.parts import Limits, Parts, grown
from channels.channel import Channel
from channels.label import label_for

if TYPE_CHECKING:
    import pyarrow as pa

_GET_S = 0.2
_WATCH_S = 0.05

_log = logging.getLogger(__name__)


def lost_targets(checkpoint: Checkpoint, error: LoadLost) -> frozenset[str]:
    """Targets with a load that ``error`` names; all targets when it names none of this checkpoint."""
    named = error.where.get("labels")
    labels = {str(label) for label in named} if isinstance(named, Iterable) and not isinstance(named, str) else {named}
    lost = {load.table for load in checkpoint.loads if label_for(load.name) in labels or str(load.name) in labels}
    return frozenset(lost or {load.table for load in checkpoint.loads})


def _row_counts(checkpoint: Checkpoint, before: Checkpoint) -> dict[str, int]:
    """Rows of the range by source table, as they were counted when it was first gathered."""
    none = ChannelCounts()
    found = {}
    for source, counts in checkpoint.counts.items():
        old = before.counts.get(source, none)
        if rows := counts.upserts + counts.deletes - old.upserts - old.deletes:
            found[source] = rows
    return found


class Reload:
    """Reads ``first..last`` of a PREPARED checkpoint again and loads the lost channels whole, under a new attempt.

    The receiver stands at the checkpoint's ``first`` when it is made, and somewhere behind its ``last`` afterwards.
    """

    def __init__(self, parts: Parts, limits: Limits, stopping: threading.Event) -> None:
        self._parts = parts
        self._limits = limits
        self._stopping = stopping
        self._channels: dict[str, Channel] = {}  # by source
        self._loads: list[Future[tuple[PreparedLoad, ...]]] = []
        self._left: dict[str, int] = {}  # by source: rows of the range that are still to come

    def run(self, checkpoint: Checkpoint, lost: frozenset[str], before: Checkpoint) -> Checkpoint:
        """The checkpoint with its lost loads replaced, saved as PREPARED; ``before`` is the one it follows.

        Raises: PositionLost - the source no longer has the range; what the source or a Task raises.
        """
        _log.warning("checkpoint %d: loading %s again", checkpoint.id, ", ".join(sorted(lost)))
        attempt = 1 + max((load.name.attempt for load in checkpoint.loads), default=0)
        self._parts.store.check_fence()
        self._left = _row_counts(checkpoint, before)
        try:
            self._read(checkpoint, lost, attempt)
        except PositionLost as error:
            raise PositionLost(
                "The sink lost a load, and the source no longer has its range.",
                mend=f"Load {', '.join(sorted(lost))} again with `cdc snapshot`. {error.mend}",
                tables=", ".join(sorted(lost)),
                first=checkpoint.first,
                last=checkpoint.last,
            ) from error
        intact = [load for load in checkpoint.loads if load.table not in lost]
        again = [load for future in self._loads for load in self._result(future)]
        loads = sorted([*intact, *again], key=lambda load: (load.name.channel, load.name.task, load.name.part))
        reloaded = replace(checkpoint, loads=tuple(loads))
        self._parts.store.save(reloaded)
        return reloaded

    def tidy(self, committed: Checkpoint) -> None:
        """Drop what attempts before the one that was committed have left at the sink."""
        run = self._parts.run
        try:
            for fence in range(committed.fence, run.fence + 1):
                self._parts.sink.abort(run.job, run.incarnation, fence, committed.id)
        except SinkError as error:
            _log.warning("leftovers of checkpoint %d stay at the sink: %s", committed.id, error)

    def skip(self, checkpoint: Checkpoint) -> None:
        """Read the range of a checkpoint that is COMMITTED, and throw its rows away."""
        self._read(checkpoint, frozenset(), 0)

    def _read(self, checkpoint: Checkpoint, lost: frozenset[str], attempt: int) -> None:
        last, receiver = last_of(checkpoint), self._parts.receiver
        while True:
            self._look_for_stop()
            batch = receiver.get(_GET_S)
            if batch is None:
                continue
            self._take(batch, lost)
            arrived = batch.ends_transaction and batch.last.reached(last)
            self._load(checkpoint.id, attempt, at_least=0 if arrived else self._limits.task_bytes)
            receiver.taken(batch.last, sum(changes.rows.nbytes for changes in batch.changes))
            if arrived:
                return

    def _take(self, batch: Batch, lost: frozenset[str]) -> None:
        for changes in batch.changes:
            schema = changes.schema
            mapping = self._parts.routes.mapping_for(schema.database, schema.table)
            if mapping is None or mapping.target not in lost:
                continue  # an intact channel's load is still at the sink
            if schema.name not in self._channels:
                self._channels[schema.name] = Channel(mapping, schema, self._parts.types)
            self._channels[schema.name].add(replace(changes, rows=self._within_range(schema.name, changes.rows)))

    def _within_range(self, source: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """``rows`` without those behind the range: Batches are packed anew, and the last one may reach beyond it."""
        left = self._left.get(source)
        if left is None:
            return rows
        self._left[source] = max(0, left - rows.num_rows)
        return rows.slice(0, left)

    def _load(self, checkpoint_id: int, attempt: int, at_least: int) -> None:
        for channel in self._channels.values():
            while channel.buffered_rows and channel.buffered_bytes >= grown(at_least, len(self._loads)):
                task = channel.task_for(self._parts.run, checkpoint_id, attempt)
                if task is not None:
                    # one at a time bounds the memory: the window was told that these rows are gone
                    for future in self._loads[-1:]:
                        self._result(future)
                    self._loads.extend(self._parts.runner.submit([task]))

    def _result(self, future: Future[tuple[PreparedLoad, ...]]) -> tuple[PreparedLoad, ...]:
        while not future.done():
            self._look_for_stop()
            wait([future], _WATCH_S)
        return future.result()

    def _look_for_stop(self) -> None:
        if self._stopping.is_set():
            raise GivenUp("while loading a range again")
