"""Tasks: what a channel has gathered, loaded into its sink once."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from cdc.batch import LoadName, PreparedLoad
from cdc.schema import TableSchema
from channels.sinks.base import TargetTable

if TYPE_CHECKING:
    from channels.mapping import Mapping


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What all labels of one run of a job share."""

    job: str
    incarnation: str
    fence: int


@dataclass(frozen=True, slots=True)
class Task:
    """Rows of one source table under one TableSchema, on their way to one target."""

    name: LoadName  # of its first part
    target: TargetTable
    mapping: Mapping
    schema: TableSchema
    rows: tuple[pa.RecordBatch, ...] = field(repr=False)  # as in Changes, in source order
    row_count: int
    byte_count: int  # of the Arrow buffers
    upserts: int
    deletes: int
    last_sequence: int


class TaskRunner(Protocol):
    """Prepares Tasks at the sink, in the background."""

    def submit(self, tasks: Sequence[Task]) -> list[Future[tuple[PreparedLoad, ...]]]:
        """Start ``tasks``; returns at once, with a future for each. Small ones may share one job of Spark."""

    def cancel(self) -> None:
        """Give up everything under way. Results that come late are ignored, and their labels stay unused."""

    def close(self) -> None:
        """Cancel, and let threads and sessions go. Harmless when repeated."""
