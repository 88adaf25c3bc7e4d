"""The Sink contract: a target that prepares, commits and aborts loads. Repeating any call is harmless."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from cdc.batch import LoadName, PreparedLoad, TargetState
from cdc.errors import CdcError, SinkForeign
from cdc.position import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class LoadState(Enum):
    """Where a load stands, as the sink sees it."""

    UNKNOWN = "UNKNOWN"  # the sink has never heard of it, or has forgotten it
    PREPARED = "PREPARED"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """One column of a target table, as the mapping makes it."""

    name: str
    arrow: pa.DataType
    nullable: bool
    source_type: str = ""  # MySQL's type text where the column is a plain copy; "" for an expression
    comment: str = ""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A Unique-key table as the mapping wants it."""

    name: str  # "ods.orders": database and table
    columns: tuple[TargetColumn, ...]  # in target order, without delete sign and sequence
    key: tuple[str, ...]
    comment: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)  # sink-specific: buckets, partition, properties


@dataclass(frozen=True, slots=True)
class CheckpointMark:
    """Which checkpoint loads belong to; a sink keeps the newest one it committed."""

    job: str
    incarnation: str
    fence: int
    checkpoint: int
    first: Position  # where it begins: a checkpoint that only some tables have is made whole from there
    position: Position  # where it ends
    sequence: int  # highest one in the checkpoint


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found, with its mend."""

    problem: str
    mend: str
    fatal: bool = True


def foreign(mark: CheckpointMark) -> SinkForeign:
    """What a claim says when another incarnation's mark is at the sink."""
    return SinkForeign(
        f"Another run of a job {mark.job} has claimed this sink.",
        mend=f"Stop the other one (`cdc stop {mark.job}`, with its CDC_HOME) or rename this job. If the other one is "
        "gone for good: `cdc start JOB.yaml --adopt`.",
        incarnation=mark.incarnation,
        fence=mark.fence,
        checkpoint=mark.checkpoint,
        position=mark.position,
    )


class PartWriter(Protocol):
    """Writes one part of a load; picklable, and called on an executor.

    Never: keeps more than a bounded number of bytes in memory.
    """

    def __call__(self, name: LoadName, rows: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
        """Write ``rows`` (target columns, ``__deleted``, ``__sequence``; one row per key) durably; None if empty.

        Raises: LoadRejected, SinkUnavailable, SinkBusy.
        """


def loads_of(outcomes: Iterable[PreparedLoad | CdcError | None]) -> tuple[PreparedLoad, ...]:
    """The loads among what writers of a Task's parts have said. Raises: the first error among it."""
    loads = []
    for outcome in outcomes:
        if isinstance(outcome, CdcError):
            raise outcome
        if outcome is not None:
            loads.append(outcome)
    return tuple(loads)


class Sink(Protocol):
    """A target with Unique-key tables."""

    @property
    def tasks_in_order(self) -> bool:
        """Whether Tasks of a channel have to be loaded one after the other, in their order, and each of them once.

        Else they are loaded side by side, and a repeat is harmless. Raises: SinkUnavailable, SinkSetting.
        """

    def ensure_table(self, table: TargetTable) -> None:
        """Create ``table`` if it is missing and the job may create tables.

        Raises: TargetMismatch - missing and not ours to create, or there and not fitting.
        """

    def describe(self, table: TargetTable) -> tuple[Finding, ...]:
        """Every way in which the existing table does not fit; empty when it fits."""

    def check(self, tables: Iterable[TargetTable]) -> tuple[Finding, ...]:
        """Everything about the target and ``tables`` that would keep a job from running, without changing any.

        Never: raises for what a person can mend; each is a Finding. A table that the job may create is none.
        """

    def ddl(self, table: TargetTable) -> str:
        """The statement that creates ``table``, for people to read and run."""

    def part_writer(self, table: TargetTable) -> PartWriter:
        """What executors call for each part.

        Raises: TargetMismatch - the table has changed since it was ensured; SinkSetting, SinkUnavailable.
        """

    def claim(self, mark: CheckpointMark, targets: Sequence[str]) -> None:
        """A run is about to write ``targets``: of two runs of a job that know nothing of each other, one gets the sink.

        ``mark`` is the last checkpoint that the run's own state holds as COMMITTED, with a sequence at the beginning of
        the run's own. The claim holds until ``close``, and ``commit`` looks at it.
        Calls: once in a run, before anything else of it. Harmless when repeated.
        Raises: SinkForeign - another run of a job of that name has the sink, and is named; SinkUnavailable.
        """

    def prepare(self, frame: DataFrame, name: LoadName, table: TargetTable) -> tuple[PreparedLoad, ...]:
        """Load a Task's rows; one PreparedLoad per non-empty part, durable at the sink when this returns.

        ``frame`` has the target columns, ``__deleted`` and ``__sequence``, one row per key. Several Tasks of a
        channel may be prepared in one checkpoint and hold the same key: the later Task wins.
        """

    def commit(self, loads: Sequence[PreparedLoad], checkpoint: CheckpointMark) -> None:
        """Make all loads of a checkpoint visible, in order of channel, task and part.

        Returns when they are visible, or will be without us.
        Raises: LoadLost (names the labels), CommitUnknown, SinkUnavailable, SinkBusy, SinkSetting; SinkForeign -
        another run has claimed the sink meanwhile.
        """

    def abort(self, job: str, incarnation: str, fence: int, checkpoint: int) -> None:
        """Drop every prepared load of that run and checkpoint, known to us or not; an aborted label stays unused."""

    def state(self, load: PreparedLoad) -> LoadState:
        """Where ``load`` stands."""

    def last_checkpoint(self, job: str) -> CheckpointMark | None:
        """The newest checkpoint of ``job`` that this sink committed, of any incarnation."""

    def identity(self, *, create: bool) -> str | None:
        """Return the identity of the root that holds all targets; None if the root has none.

        ``create``: give the root an identity if it has none. Never: creates anything without ``create``.
        Raises: SinkUnavailable.
        """

    def target_states(self, job: str, incarnation: str, targets: Sequence[str]) -> Mapping[str, TargetState]:
        """Return what proves the identity of each of ``targets``; a target that does not exist is left out.

        Calls: before ``claim`` of each run, and once for a table before its first commit. Never: changes anything.
        Raises: SinkUnavailable.
        """

    def repair(self, target: str) -> None:
        """Make a target readable again whose data was lost in part. Its rows are loaded again afterwards.

        Raises: SinkUnavailable.
        """

    @property
    def tells_keys(self) -> bool:
        """Whether ``keys`` answers."""

    def keys(self, table: TargetTable) -> pa.Table | None:
        """The key columns of all rows that a reader sees now; None from a sink that cannot tell them."""

    def maintain(self, tables: Iterable[TargetTable]) -> None:
        """Housekeeping (compaction, vacuum), called between commits and never beside one."""

    def close(self) -> None:
        """Let connections go. Harmless when repeated."""
