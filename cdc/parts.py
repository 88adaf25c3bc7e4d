"""What one run of a job is made of: plain parts, wired in ``cdc.job`` and nowhere else."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from cdc.binlog.connection import Endpoint
from cdc.binlog.server import Server
from cdc.checkpoint import CheckpointStore
from cdc.position import Position
from cdc.receiver.base import Receiver
from channels.mapping import ExpressionTypes, Routes
from channels.sinks.base import Sink
from channels.task import RunIdentity, TaskRunner

_GROWS_EVERY = 24  # loads of one checkpoint: what a sink has prepared and not committed counts against its limits
_WIDEST = 16  # 80 s with the interval of 5 s
_RELAXES_AFTER_S = 120.0  # servers compact versions and clean transactions within a minute or two
_LARGEST = 3  # doublings: from 16 to 128 MiB, half of the window

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """When a cycle closes and a Task starts; ``commit`` and ``tasks`` of the job file."""

    interval_s: float = 5.0
    min_rows: int = 10_000  # an idle source closes the cycle from here on
    min_bytes: int = 15 << 20
    max_bytes: int = 64 << 20
    max_rows: int = 20_000_000
    task_bytes: int = 16 << 20  # a channel that holds this much starts a Task at once


def grown(task_bytes: int, loads: int) -> int:
    """What a channel gathers for the next Task of a checkpoint that has ``loads``: few loads, however long it is."""
    return task_bytes << min(loads // _GROWS_EVERY, _LARGEST)


class Widening:
    """How much wider than asked for cycles are because the sink was busy: fewer loads and commits, and larger ones.

    It doubles each time, and halves again with every while that passes without. Calls: from any thread.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._factor, self._since = 1, 0.0

    @property
    def factor(self) -> int:
        """1 unless the sink was busy lately."""
        return max(1, self._factor >> int((self._now() - self._since) / _RELAXES_AFTER_S))

    def busy(self) -> None:
        """The sink has asked for patience."""
        self._factor, self._since = min(2 * self.factor, _WIDEST), self._now()
        _log.warning("the sink is busy: cycles are %d times as wide for a while", self._factor)

    def over(self, limits: Limits) -> Limits:
        """``limits``, as wide as they are now."""
        n = self.factor
        if n == 1:
            return limits
        return replace(
            limits,
            interval_s=n * limits.interval_s,
            min_rows=n * limits.min_rows,
            min_bytes=n * limits.min_bytes,
            max_bytes=n * limits.max_bytes,
            task_bytes=n * limits.task_bytes,
        )


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """Where and how the rows are read that are already there; whatever the receiver, they come from a MySQL server."""

    endpoint: Endpoint
    position: Callable[[Server], Position]  # where the source stands now, in the receiver's kind of Position
    initial: bool = True  # every table is loaded once; else only those that are asked for
    turn_s: float = 10.0  # how long the stream waits at a time
    readers: int = 4  # connections at once
    rows_per_s: float | None = None  # over all readers
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """One run of a job."""

    run: RunIdentity
    receiver: Receiver
    routes: Routes
    runner: TaskRunner
    sink: Sink
    store: CheckpointStore
    types: ExpressionTypes | None = None  # of mappings with expressions
    snapshot: SnapshotSettings | None = None  # None: there is nothing but the stream
    reload_missing: bool = False  # load targets again that do not prove to be the tables that the job wrote
    is_verified: bool = False  # the targets were verified since the last start or resume: a missing one may return
