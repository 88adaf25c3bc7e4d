"""What one run of a job is made of: plain parts, wired in ``cdc.job`` and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdc.binlog.connection import Endpoint
from cdc.binlog.server import Server
from cdc.checkpoint import CheckpointStore
from cdc.position import Position
from cdc.receiver.base import Receiver
from channels.mapping import ExpressionTypes, Routes
from channels.sinks.base import Sink
from channels.task import RunIdentity, TaskRunner


@dataclass(frozen=True, slots=True)
class Limits:
    """When a cycle closes and a Task starts; ``commit`` and ``tasks`` of the job file."""

    interval_s: float = 5.0
    min_rows: int = 10_000  # an idle source closes the cycle from here on
    min_bytes: int = 15 << 20
    max_bytes: int = 64 << 20
    max_rows: int = 20_000_000
    task_bytes: int = 16 << 20  # a channel that holds this much starts a Task at once


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
