"""What one run of a job is made of: plain parts, wired in ``cdc.job`` and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from cdc.checkpoint import CheckpointStore
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
class Parts:
    """One run of a job."""

    run: RunIdentity
    receiver: Receiver
    routes: Routes
    runner: TaskRunner
    sink: Sink
    store: CheckpointStore
    types: ExpressionTypes | None = None  # of mappings with expressions
