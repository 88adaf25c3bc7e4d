"""The Sink contract: a target that prepares, commits and aborts loads. Each call may be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeGuard

import pyarrow as pa

from cdc.errors import SinkOwnershipError
from cdc.model.batch import LoadName, PreparedLoad, TargetState
from cdc.model.position import Position


class LoadState(Enum):
    """State of a load in the sink."""

    UNKNOWN = "UNKNOWN"  # the sink does not know the load, or no longer
    PREPARED = "PREPARED"
    COMMITTED = "COMMITTED"
    ABORTED = "ABORTED"


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """One column of a target table, as the mapping defines it."""

    name: str
    arrow: pa.DataType
    nullable: bool
    source_type: str = ""  # MySQL's type text of a plain copy, or of nullif() of a JSON column; "" for others
    comment: str = ""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table with a key, as the mapping defines it."""

    name: str  # "ods.orders": database and table
    columns: tuple[TargetColumn, ...]  # in target order, without delete sign and sequence
    key: tuple[str, ...]
    comment: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)  # sink-specific: buckets, partition, properties
    kept: tuple[str, ...] = ()  # further columns that the source has dropped: loaded rows have NULL in them


@dataclass(frozen=True, slots=True)
class SinkCheckpoint:
    """The checkpoint of a commit. A sink stores the newest one that it committed."""

    job: str
    incarnation: str
    fence: int
    checkpoint: int
    first: Position  # start: if only some tables have the checkpoint, the others are completed from here
    position: Position  # end of the checkpoint
    sequence: int  # highest one in the checkpoint


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that a check found, with its hint."""

    problem: str
    hint: str
    fatal: bool = True


def ownership_error(mark: SinkCheckpoint) -> SinkOwnershipError:
    """Return the error for a sink that has the checkpoint of another incarnation of the job."""
    return SinkOwnershipError(
        f"Another run of a job {mark.job} owns this sink.",
        hint=f"Stop the other job (`cdc stop {mark.job}`, with its CDC_HOME) or rename this one. If the other one no "
        "longer exists, run `cdc start JOB.yaml --adopt`.",
        incarnation=mark.incarnation,
        fence=mark.fence,
        checkpoint=mark.checkpoint,
        position=mark.position,
    )


def refuse_newer_run(known: SinkCheckpoint | None, mark: SinkCheckpoint) -> None:
    """Raise SinkOwnershipError if ``known``, the newest checkpoint in the sink, is of a newer run than ``mark``.

    A run that adopts gets a fence and sequences above all that the sink has, so another incarnation with a higher
    one has adopted the sink since. It may have raised its fence only, and still have rows that are visible.
    """
    if known is None:
        return
    if known.incarnation == mark.incarnation:
        is_newer = known.fence > mark.fence
    else:
        is_newer = known.fence >= mark.fence or known.sequence >= mark.sequence
    if is_newer:
        raise ownership_error(known)


class PartWriter(Protocol):
    """Writes one part of a load. It is picklable, and called on an executor.

    Never: needs an unlimited amount of memory.
    """

    def __call__(self, name: LoadName, rows: Iterator[pa.RecordBatch]) -> PreparedLoad | None:
        """Write ``rows`` (target columns, ``__deleted``, ``__sequence``; one row per key) durably; None if empty.

        Raises: LoadRejected, SinkUnavailable, SinkBusy.
        """


class Sink(Protocol):
    """A target of tables with a key."""

    @property
    def tasks_in_order(self) -> bool:
        """Return whether the Tasks of a channel must be loaded one after the other, in order, and each only once.

        Otherwise they are loaded in parallel, and a load may be repeated. Raises: SinkUnavailable, SinkLimitExceeded.
        """

    def ensure_table(self, table: TargetTable) -> None:
        """Create ``table`` if it is missing and the job may create tables.

        Raises: TargetMismatch - it is missing and may not be created, or it does not match.
        """

    def check(self, tables: Iterable[TargetTable]) -> tuple[Finding, ...]:
        """Return everything about the target and ``tables`` that would stop a job. Change nothing.

        A missing table that the job may create is no Finding. Never: raises for a problem that a person can solve.
        """

    def ddl(self, table: TargetTable) -> str:
        """Return the statement that creates ``table``."""

    def part_writer(self, table: TargetTable) -> PartWriter:
        """Return the writer that executors call for each part.

        Raises: TargetMismatch - the table has changed since ``ensure_table``; SinkLimitExceeded, SinkUnavailable.
        """

    def acquire_ownership(self, mark: SinkCheckpoint, targets: Sequence[str]) -> None:
        """Take exclusive write access to ``targets``. Of two competing runs of a job, at most one succeeds.

        ``mark``: the last COMMITTED checkpoint of the run's state, with a sequence at the start of this run's range.
        The ownership lasts until ``close``, and ``commit`` checks it.
        Calls: once in a run, before all other calls, but not in a run that continues after a schema change. May be
        repeated.
        Raises: SinkOwnershipError - another run of a job with this name owns the sink; SinkUnavailable.
        """

    def commit(self, loads: Sequence[PreparedLoad], checkpoint: SinkCheckpoint) -> None:
        """Make all loads of a checkpoint visible, in order of channel, task and part.

        Returns when ``last_checkpoint`` reports it, and the loads are visible, or become so without further calls.
        Raises: PreparedLoadLost (with the labels), CommitOutcomeUnknown, SinkUnavailable, SinkBusy, SinkLimitExceeded;
        SinkOwnershipError - another run owns the sink now.
        """

    def abort(self, job: str, incarnation: str, fence: int, checkpoint: int) -> None:
        """Discard all prepared loads of that run and checkpoint, even unknown ones. Their labels are not used again."""

    def state(self, load: PreparedLoad) -> LoadState:
        """Return the state of ``load``."""

    def last_checkpoint(self, job: str) -> SinkCheckpoint | None:
        """Return the newest checkpoint of ``job`` that this sink committed, of any incarnation."""

    def identity(self, *, create: bool) -> str | None:
        """Return the identity of the root that holds all targets; None if the root has none.

        ``create``: give the root an identity if it has none. Never: creates anything without ``create``.
        Raises: SinkUnavailable.
        """

    def target_states(self, job: str, incarnation: str, targets: Sequence[str]) -> Mapping[str, TargetState]:
        """Return the identity and checkpoint of each of ``targets`` that exists.

        Calls: before ``acquire_ownership``, once for a table before its first commit, and for the targets of a schema
        change. Never: changes anything.
        Raises: SinkUnavailable; TargetMismatch - the checkpoint of a table cannot be read.
        """

    def close(self) -> None:
        """Close connections. A repeated call does nothing."""


class KeyLister(Protocol):
    """A sink that can list the keys of its rows, to find orphan rows."""

    def keys(self, table: TargetTable, after: pa.Table | None, limit: int) -> pa.Table:
        """Return the ``limit`` smallest visible keys, in the order in which the sink sorts them, which never changes.

        ``after``: one row, the last key of the page before; only greater keys are returned. Every committed row is
        visible. The types are those of the columns of ``table``.
        Raises: SinkUnavailable; TargetMismatch - a key in the table is not exactly a value of its type.
        """


class Maintainable(Protocol):
    """A sink whose tables need maintenance, such as compaction and vacuum."""

    def maintain(self, tables: Iterable[TargetTable], is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Maintain ``tables``; return early once ``is_stopped`` is true, at the latest after one data file.

        Calls: one thread, also during a commit. Raises: SinkError.
        """


class Repairable(Protocol):
    """A sink whose tables can lose parts of their data, such as single files."""

    def repair(self, target: str) -> None:
        """Make a target readable again that has lost a part of its data. Its rows are loaded again afterwards.

        Raises: SinkUnavailable.
        """


class AlterAction(Enum):
    """What a step does to one column of a target, or to all its rows."""

    ADD = "add"
    DROP = "drop"
    RENAME = "rename"
    WIDEN = "widen"
    MAKE_NULLABLE = "make nullable"
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class AlterStep:
    """One change of one column of a target, with the column before and after it.

    ``before`` is None for ADD, ``after`` for DROP. RENAME changes only the name, WIDEN only type and nullability.
    TRUNCATE has no column: it removes all rows that are committed before the change.
    """

    action: AlterAction
    before: TargetColumn | None
    after: TargetColumn | None
    fill: pa.Scalar | None = None  # of ADD: the value of all existing rows, of the type of ``after``; None: NULL


class TableAlterer(Protocol):
    """A sink that can change the columns of its tables."""

    @property
    def alters_in_one_commit(self) -> bool:
        """Return whether ``alter`` makes any number of steps visible together; otherwise it gets one at a time."""

    def check_steps(self, table: TargetTable, steps: Sequence[AlterStep]) -> tuple[Finding, ...]:
        """Return why ``steps`` cannot be done to ``table``, as it is now. Changes nothing; reads the table's columns.

        A Finding that is not fatal describes costs: a step that rewrites all rows, with their number and bytes.
        Raises: SinkUnavailable.
        """

    def alter(self, table: TargetTable, steps: Sequence[AlterStep], mark: SinkCheckpoint) -> None:
        """Do ``steps`` in order, and return when readers see them and loads can begin. May be repeated.

        ``table``: before the steps. ``mark``: the checkpoint of the change; no load of an earlier one is open. A step
        that is done already (by a crashed run, or by hand) is recognised by the table's columns and skipped. TRUNCATE
        can be done again, because no row is committed between it and the end of the change.
        Existing rows get ``fill`` in the same moment in which the column becomes visible.
        Blocks: until the sink's own job has ended, or ``stop_altering`` is called.
        Raises: TargetMismatch - a column is neither as before nor as after the step, or the sink refuses the step;
        SinkUnavailable, SinkOwnershipError.
        """

    @property
    def alter_progress(self) -> float | None:
        """How much of the running ``alter`` is done, from 0 to 1. None: no call runs, or it is not known.

        Calls: any thread.
        """

    def stop_altering(self) -> None:
        """Let ``alter`` stop to wait, now or at its next call in this run: it raises SinkUnavailable.

        Calls: any thread.
        """


def can_alter(sink: object) -> TypeGuard[TableAlterer]:
    """Return whether ``sink`` is a TableAlterer."""
    return callable(getattr(sink, "alter", None))


class TargetChecker(Protocol):
    """A sink whose server commits the loads of a dropped table, so that each commit needs a check of its tables."""

    def identities(self, targets: Sequence[str]) -> Mapping[str, str]:
        """Return ``TargetState.identity`` of each existing table of ``targets``. Raises: SinkUnavailable."""


def can_check_targets(sink: object) -> TypeGuard[TargetChecker]:
    """Return whether ``sink`` is a ``TargetChecker``."""
    return callable(getattr(sink, "identities", None))


class Traced(Protocol):
    """A sink that can lose the newest checkpoint of a job, and still knows that the job has written to it."""

    def has_written(self, job: str) -> bool:
        """Return whether a run of ``job`` has written to the sink."""


def is_traced(sink: object) -> TypeGuard[Traced]:
    """Return whether ``sink`` is ``Traced``."""
    return callable(getattr(sink, "has_written", None))


def can_list_keys(sink: object) -> TypeGuard[KeyLister]:
    """Return whether ``sink`` is a ``KeyLister``."""
    return callable(getattr(sink, "keys", None))


def can_maintain(sink: object) -> TypeGuard[Maintainable]:
    """Return whether ``sink`` is ``Maintainable``."""
    return callable(getattr(sink, "maintain", None))


def can_repair(sink: object) -> TypeGuard[Repairable]:
    """Return whether ``sink`` is ``Repairable``."""
    return callable(getattr(sink, "repair", None))
