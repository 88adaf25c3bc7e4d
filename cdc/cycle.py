"""Cycle: what has been gathered since the last close, and the Tasks that load it meanwhile.

A cycle is OPEN from its first Task on. ``close`` turns it into a ``Closed`` one, which the Committer finishes while
the next cycle gathers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field, replace

from cdc.batch import Batch, PreparedLoad
from cdc.checkpoint import ChannelCounts, Checkpoint, CheckpointState
from cdc.parts import Limits
from cdc.position import Position
from channels.task import Task

STRETCH = 4  # a cycle that may not close yet gathers up to this many times max_bytes, then the source waits
_WATCH_S = 0.05  # how soon a closed cycle notices that it is given up


@dataclass(slots=True)
class Loading:
    """A Task handed to the runner. It does not hold the Task: prepared rows are to be gone from memory."""

    source: str
    upserts: int
    deletes: int
    bytes: int  # of its rows in memory, which the receiver's window counts
    last_sequence: int
    future: Future[tuple[PreparedLoad, ...]]
    taken: bool = False  # the window was told


def take_off_window(loadings: Iterable[Loading]) -> int:
    """Bytes of the window whose Tasks have started since the last call."""
    freed = 0
    for loading in loadings:
        if not loading.taken and (loading.future.running() or loading.future.done()):
            loading.taken = True
            freed += loading.bytes
    return freed


class Cycle:
    """One commit cycle while it gathers. Calls: the Consumer's thread only."""

    def __init__(self, first: Position) -> None:
        self.first = first
        self.last = first  # behind the last whole transaction
        self.inside_transaction = False
        self.rows = 0
        self.bytes = 0
        self.oldest_commit_us: int | None = None
        self.began: float | None = None  # monotonic seconds at its first Batch
        self.checkpoint: Checkpoint | None = None  # once OPEN is saved
        self.loading: list[Loading] = []

    @property
    def may_close(self) -> bool:
        """Whether it stands between two transactions and has something to save."""
        return not self.inside_transaction and self.last != self.first

    def enter(self, now: float) -> None:
        """A Batch is being taken; until ``take`` follows, the cycle holds a part of it."""
        if self.began is None:
            self.began = now
        self.inside_transaction = True

    def take(self, batch: Batch) -> None:
        """The rows of ``batch`` are with their channels."""
        self.rows += batch.rows
        self.bytes += batch.bytes
        self.inside_transaction = not batch.ends_transaction
        if batch.ends_transaction:
            self.last = batch.last
        if batch.rows and self.oldest_commit_us is None:
            self.oldest_commit_us = batch.oldest_commit_us

    def closed_by(self, limits: Limits, now: float, *, idle: bool, window_full: bool) -> str | None:
        """Why the cycle closes now; None when it goes on gathering."""
        if not self.may_close or self.began is None:
            return None
        if self.rows >= limits.max_rows:
            return "max_rows"
        if self.bytes >= limits.max_bytes:
            return "max_bytes"
        if window_full:
            return "window"
        if now - self.began >= limits.interval_s:
            return "interval"
        if idle and self.rows and (self.rows >= limits.min_rows or self.bytes >= limits.min_bytes):
            return "idle"
        return None

    def is_full(self, limits: Limits) -> bool:
        """Whether it may hold no more, and has to wait for the cycle before it."""
        return self.may_close and (self.rows >= limits.max_rows or self.bytes >= STRETCH * limits.max_bytes)

    def add(self, task: Task, future: Future[tuple[PreparedLoad, ...]]) -> None:
        """``task`` was handed to the runner."""
        self.loading.append(
            Loading(
                task.schema.name,
                task.upserts,
                task.deletes,
                task.byte_count,
                task.last_sequence,
                future,
            )
        )

    def raise_failure(self) -> None:
        """Raises: what a Task that is done has raised."""
        for loading in self.loading:
            if loading.future.done():
                loading.future.result()

    def close(self, opened: Checkpoint, before: Checkpoint, closed_by: str, gather_s: float) -> Closed:
        """The closed cycle, with its totals on top of those of the checkpoint ``before``."""
        counts = dict(before.counts)
        for loading in self.loading:
            old = counts.get(loading.source, ChannelCounts())
            counts[loading.source] = replace(
                old,
                upserts=old.upserts + loading.upserts,
                deletes=old.deletes + loading.deletes,
                bytes=old.bytes + loading.bytes,
                last_committed_at=None,  # the Committer fills it in
            )
        checkpoint = replace(
            opened,
            last=self.last,
            rows=self.rows,
            bytes=self.bytes,
            sequence=max([before.sequence, *(loading.last_sequence for loading in self.loading)]),
            closed_by=closed_by,
            seconds={"gather": gather_s},
            counts=counts,
            targets=before.targets,
            sink=before.sink,
        )
        return Closed(checkpoint, self.loading, self.oldest_commit_us)


class GivenUp(Exception):
    """Work was given up because the job stops; the next start finishes or repeats it."""


@dataclass(slots=True)
class Closed:
    """A cycle that gathers no more; the Committer's thread brings it to COMMITTED."""

    checkpoint: Checkpoint  # as far as it has come
    loading: list[Loading]
    oldest_commit_us: int | None
    _given_up: threading.Event = field(default_factory=threading.Event)

    def give_up(self) -> None:
        """Stop waiting for Tasks. From PREPARED on it has no effect."""
        self._given_up.set()

    @property
    def is_prepared(self) -> bool:
        """Whether it rolls forward, whatever happens."""
        return self.checkpoint.state is not CheckpointState.OPEN

    @property
    def targets(self) -> frozenset[str]:
        """Tables that its loads go to. Asked for once all are prepared."""
        return frozenset(load.table for loading in self.loading for load in loading.future.result())

    def loads(self) -> tuple[PreparedLoad, ...]:
        """All loads in order of channel, task and part, once every Task is prepared. Blocks.

        Raises: what a Task raised; GivenUp.
        """
        futures = [loading.future for loading in self.loading]
        pending: set[Future[tuple[PreparedLoad, ...]]] = set(futures)
        while pending:
            if self._given_up.is_set():
                raise GivenUp
            done, pending = wait(pending, _WATCH_S, FIRST_EXCEPTION if len(pending) > 1 else FIRST_COMPLETED)
            for future in done:
                future.result()
        found = [load for future in futures for load in future.result()]
        return tuple(sorted(found, key=lambda load: (load.name.channel, load.name.task, load.name.part)))
