"""Values of one commit cycle: the open cycle, its Tasks, and the closed cycle.

A cycle is OPEN from its first Task on. ``OpenCycle.close`` returns a ``ClosedCycle``, which the Committer commits while
the next cycle reads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field, replace

from cdc.model.batch import Batch, PreparedLoad
from cdc.model.position import Position
from cdc.state.base import ChannelCounts, Checkpoint, CheckpointState, CloseReason
from channels.task import Task

_WATCH_S = 0.05  # a cancelled cycle stops waiting for its Tasks within this time


@dataclass(slots=True)
class PendingLoad:
    """A submitted Task. It has no reference to the Task, so that rows in memory are released once prepared."""

    source: str
    upserts: int
    deletes: int
    bytes: int  # of its rows in memory, as counted in the receiver's window
    last_sequence: int
    future: Future[tuple[PreparedLoad, ...]]
    is_released: bool = False  # its bytes were released


def release_window(loadings: Iterable[PendingLoad]) -> int:
    """Return the bytes of the Tasks that have started since the last call, and mark them as released."""
    freed = 0
    for loading in loadings:
        if not loading.is_released and (loading.future.running() or loading.future.done()):
            loading.is_released = True
            freed += loading.bytes
    return freed


class OpenCycle:
    """The open cycle: the rows since the last close, and the Tasks that load them. Calls: the Consumer's thread."""

    def __init__(self, first: Position) -> None:
        self.first = first
        self.last = first  # end of the last whole transaction
        self.inside_transaction = False
        self.rows = 0
        self.bytes = 0
        self.oldest_commit_us: int | None = None
        self.began: float | None = None  # monotonic seconds at its first Batch
        self.checkpoint: Checkpoint | None = None  # the saved OPEN checkpoint, from the first Task on
        self.loading: list[PendingLoad] = []

    @property
    def may_close(self) -> bool:
        """Whether it ends between two transactions and has at least one whole transaction."""
        return not self.inside_transaction and self.last != self.first

    def begin_batch(self, now: float) -> None:
        """Begin a Batch. Until ``end_batch``, the cycle may contain a part of its rows."""
        if self.began is None:
            self.began = now
        self.inside_transaction = True

    def end_batch(self, batch: Batch) -> None:
        """End a Batch: all its rows are in their channels."""
        self.rows += batch.rows
        self.bytes += batch.bytes
        self.inside_transaction = not batch.ends_transaction
        if batch.ends_transaction:
            self.last = batch.last
        if batch.rows and self.oldest_commit_us is None:
            self.oldest_commit_us = batch.oldest_commit_us

    def add(self, task: Task, future: Future[tuple[PreparedLoad, ...]]) -> None:
        """Add a Task that was submitted to the runner."""
        self.loading.append(
            PendingLoad(
                task.schema.name,
                task.upserts,
                task.deletes,
                task.byte_count,
                task.last_sequence,
                future,
            )
        )

    def raise_failure(self) -> None:
        """Raise the error of a Task that has failed, if there is one."""
        for loading in self.loading:
            if loading.future.done():
                loading.future.result()

    def close(self, opened: Checkpoint, before: Checkpoint, closed_by: CloseReason, buffer_s: float) -> ClosedCycle:
        """Return the closed cycle. Its counts are those of the previous checkpoint ``before`` plus its own."""
        counts = dict(before.counts)
        for loading in self.loading:
            old = counts.get(loading.source, ChannelCounts())
            counts[loading.source] = replace(
                old,
                upserts=old.upserts + loading.upserts,
                deletes=old.deletes + loading.deletes,
                bytes=old.bytes + loading.bytes,
                last_committed_at=None,  # the Committer sets it
            )
        checkpoint = replace(
            opened,
            last=self.last,
            rows=self.rows,
            bytes=self.bytes,
            sequence=max([before.sequence, *(loading.last_sequence for loading in self.loading)]),
            closed_by=closed_by,
            seconds={"buffer": buffer_s},
            counts=counts,
            targets=before.targets,
            sink=before.sink,
        )
        return ClosedCycle(checkpoint, self.loading, self.oldest_commit_us)


class Cancelled(Exception):
    """Work was cancelled because the job stops. The next start finishes or repeats it."""


@dataclass(slots=True)
class ClosedCycle:
    """A cycle that reads no more rows, or a snapshot step. The Committer brings it to COMMITTED."""

    checkpoint: Checkpoint  # OPEN, then PREPARED, then COMMITTED
    loading: list[PendingLoad]
    oldest_commit_us: int | None = None
    step_loads: tuple[PreparedLoad, ...] = ()  # of a snapshot step: already prepared
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Stop the wait for Tasks. A PREPARED cycle is committed nevertheless."""
        self._cancelled.set()

    @property
    def is_prepared(self) -> bool:
        """Whether it is PREPARED or COMMITTED. If its commit fails, the next recovery completes it."""
        return self.checkpoint.state is not CheckpointState.OPEN

    @property
    def targets(self) -> frozenset[str]:
        """Return the target tables of its loads. Calls: after all Tasks are prepared."""
        loads = [load for loading in self.loading for load in loading.future.result()]
        return frozenset(load.table for load in (*self.step_loads, *loads))

    def loads(self) -> tuple[PreparedLoad, ...]:
        """Wait until every Task is prepared. Return all loads, ordered by channel, task and part.

        Raises: the error of a Task, without waiting for the others; Cancelled.
        """
        futures = [loading.future for loading in self.loading]
        pending: set[Future[tuple[PreparedLoad, ...]]] = set(futures)
        if self._cancelled.is_set():
            raise Cancelled
        while pending:
            if self._cancelled.is_set():
                raise Cancelled
            done, pending = wait(pending, _WATCH_S, FIRST_EXCEPTION if len(pending) > 1 else FIRST_COMPLETED)
            for future in done:
                future.result()
        found = [*self.step_loads, *(load for future in futures for load in future.result())]
        return tuple(sorted(found, key=lambda load: (load.name.channel, load.name.task, load.name.part)))
