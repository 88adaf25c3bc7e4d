"""Checkpoints: a commit cycle and its saved progress; the store that keeps them, the lock and the fence.

States of a checkpoint: OPEN -> PREPARED -> COMMITTED. Every save is durable before it returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from cdc.batch import PreparedLoad, TargetState
from cdc.left_out import LeftOut
from cdc.names import table_of, table_text
from cdc.position import Position, position_from_json
from cdc.snapshot.chunks import TableSnapshot

if TYPE_CHECKING:  # it needs pyarrow, and the command line reads jobs without waiting for that
    from cdc.schema import TableSchema


class CheckpointState(Enum):
    """How far a commit cycle has come."""

    OPEN = "OPEN"  # loads may be under way; a crash aborts them
    PREPARED = "PREPARED"  # all loads are durable at the sink; from here it rolls forward
    COMMITTED = "COMMITTED"  # everything up to ``last`` is visible


class JobState(Enum):
    """States of a job, as in Binlog Load, and DONE for sources that end."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    CANCELLED = "CANCELLED"
    DONE = "DONE"


# a sink goes on above the commits it holds of a job, whatever becomes of our state: see ``cdc.recovery``
FORGOTTEN = (
    "What its targets hold stays there: `cdc start JOB.yaml --adopt` goes on from the newest commit in them; to load "
    "everything anew, start it with another `name:` into empty targets."
)


def forgetting(job: str) -> str:
    """What the user of a job that has ended can do, for messages."""
    return f"`cdc stop {job} --forget` drops its state. {FORGOTTEN}"


@dataclass(frozen=True, slots=True)
class ChannelCounts:
    """What a channel has committed since the job's first start."""

    upserts: int = 0  # source changes
    deletes: int = 0
    bytes: int = 0
    last_committed_at: str | None = None  # ISO 8601, UTC


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One commit cycle."""

    id: int  # 0 is the resolved start
    fence: int  # of the run that opened it
    state: CheckpointState
    first: Position
    last: Position | None  # None while OPEN
    schemas: tuple[TableSchema, ...] = ()  # in force at ``last``
    loads: tuple[PreparedLoad, ...] = ()  # emptied once COMMITTED
    rows: int = 0
    bytes: int = 0
    sequence: int = 0  # highest one handed out up to here
    closed_by: str | None = None  # interval, max_rows, max_bytes, idle, window, pause, ddl, end, start, snapshot
    committed_at: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)  # gather, prepare, commit, save
    counts: Mapping[str, ChannelCounts] = field(default_factory=dict)  # by source table, totals at this checkpoint
    snapshots: Mapping[str, TableSnapshot] = field(default_factory=dict)  # by source table, as far as committed here
    # by target table: its identity, and the newest COMMITTED checkpoint that had rows for it
    targets: Mapping[str, TargetState] = field(default_factory=dict)
    sink: str | None = None  # identity of the sink's root; None: not known yet
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)  # by source table: the job goes on without these

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form, without ``schemas``: they are large and rarely change, so a store keeps them apart."""
        return {
            "id": self.id,
            "fence": self.fence,
            "state": self.state.value,
            "first": self.first.to_json(),
            "last": self.last.to_json() if self.last else None,
            "loads": [load.to_json() for load in self.loads],
            "rows": self.rows,
            "bytes": self.bytes,
            "sequence": self.sequence,
            "closed_by": self.closed_by,
            "committed_at": self.committed_at,
            "seconds": dict(self.seconds),
            "counts": {source: asdict(counts) for source, counts in self.counts.items()},
            "snapshots": {source: snapshot.to_json() for source, snapshot in self.snapshots.items()},
            "targets": {target: [state.identity, state.checkpoint] for target, state in self.targets.items()},
            "sink": self.sink,
            "left_out": {source: asdict(one) for source, one in self.left_out.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], schemas: tuple[TableSchema, ...]) -> Checkpoint:
        """The checkpoint that ``to_json`` wrote, with the schemas that were kept apart."""
        return cls(
            id=data["id"],
            fence=data["fence"],
            state=CheckpointState(data["state"]),
            first=position_from_json(data["first"]),
            last=position_from_json(data["last"]) if data["last"] else None,
            schemas=schemas,
            loads=tuple(PreparedLoad.from_json(load) for load in data["loads"]),
            rows=data["rows"],
            bytes=data["bytes"],
            sequence=data["sequence"],
            closed_by=data["closed_by"],
            committed_at=data["committed_at"],
            seconds=data["seconds"],
            counts={_written(source): ChannelCounts(**counts) for source, counts in data["counts"].items()},
            # states written before there were snapshots have none
            snapshots={
                _written(source): TableSnapshot.from_json(one) for source, one in data.get("snapshots", {}).items()
            },
            left_out={source: LeftOut(**one) for source, one in data.get("left_out", {}).items()},
            # states of older versions have neither targets nor sink: both are recorded by the next commit
            targets={target: TargetState(*state) for target, state in data.get("targets", {}).items()},
            sink=data.get("sink"),
        )

    @property
    def loaded(self) -> frozenset[str]:
        """Return the source tables of which rows are committed, or will be once this is."""
        counted = {source for source, counts in self.counts.items() if counts.upserts or counts.deletes}
        return frozenset(counted | {source for source, snapshot in self.snapshots.items() if snapshot.rows})


def _written(source: str) -> str:
    """Return a table's name as it is written now: states of earlier versions have names without quotes."""
    return table_text(*table_of(source))


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What the store knows of a job besides its checkpoints. The command line reads it when no driver answers."""

    name: str
    incarnation: str  # 8 hex digits, drawn once
    fence: int  # of the newest run
    state: JobState
    job_file: str  # absolute path
    reason: str | None = None
    mend: str | None = None
    resume: str | None = None  # "automatic" or "manual" when PAUSED
    started_at: str | None = None
    driver_pid: int | None = None
    supervisor_pid: int | None = None
    status_url: str | None = None  # "http://127.0.0.1:8470"
    identity: Mapping[str, str] = field(default_factory=dict)  # source server, keys, targets: what may not change
    statement_at: Mapping[str, Any] | None = None  # Position (JSON) of the statement that it is PAUSED before
    passed: tuple[Mapping[str, Any], ...] = ()  # such that were resumed behind and may come again: "at", "past_ddl"
    adopted: str | None = None  # "incarnation:checkpoint" that the sink held when --adopt took it over

    def to_json(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {**asdict(self), "state": self.state.value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobRecord:
        """The record that ``to_json`` wrote, of this version or another."""
        known = {each.name: data[each.name] for each in fields(cls) if each.name in data}
        return cls(**{**known, "state": JobState(data["state"]), "passed": tuple(data.get("passed", ()))})


class CheckpointStore(Protocol):
    """Keeps jobs and checkpoints durably; one store serves many jobs.

    Raises: CheckpointError from every call - the store cannot be read or written;
    LeaseLost from every writing call of a run - a newer fence exists.
    """

    def acquire(self, job: str, job_file: str) -> JobRecord:
        """Take the job's operating-system lock, raise its fence and give its record (made if new).

        Raises: LeaseLost - another process holds the lock; the message names its pid.
        """

    def release(self) -> None:
        """Give the lock back. It goes by itself when the process dies."""

    def jobs(self) -> tuple[JobRecord, ...]:
        """All jobs, by name. Needs no lock."""

    def job(self, name: str) -> JobRecord | None:
        """One job. Needs no lock."""

    def save_job(self, record: JobRecord) -> None:
        """Save the record of the job that this process holds. A greater fence in it becomes this run's fence."""

    def check_fence(self) -> None:
        """Raises: LeaseLost - this process is no longer the one that runs the job."""

    def next_id(self) -> int:
        """The id above every one that was ever saved for the job held, discarded ones too."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Save or replace a checkpoint of the job held, and prune old COMMITTED ones."""

    def discard(self, checkpoint_id: int) -> None:
        """Forget an aborted OPEN checkpoint. Its id is not used again."""

    def unfinished(self) -> tuple[Checkpoint, ...]:
        """PREPARED and OPEN checkpoints of the job held, oldest first."""

    def last_committed(self, job: str) -> Checkpoint | None:
        """The newest COMMITTED checkpoint. Needs no lock."""

    def forget(self, job: str) -> None:
        """Drop everything about a job that nobody holds. Raises: LeaseLost - a process holds it."""

    def close(self) -> None:
        """Release, and let the file go. Harmless when repeated."""
