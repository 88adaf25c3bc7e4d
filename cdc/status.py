"""What a job tells about itself: the tree behind ``GET /status``, and what a user may ask of a running job.

The JSON form is an interface: other programs read it (docs: the status page). Times are ISO 8601, UTC.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from cdc.errors import with_job
from cdc.left_out import LeftOut
from cdc.names import parsed_table, table_of
from cdc.snapshot.chunks import SnapshotState, TableSnapshot

if TYPE_CHECKING:
    from cdc.checkpoint import Checkpoint
    from cdc.position import Position


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """Where rows come from."""

    type: str  # binlog, canal, binlog_files
    server: str | None  # "127.0.0.1:3306"; of files: the pattern
    destination: str | None = None  # Canal's


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """Where rows go."""

    type: str  # delta, doris, starrocks
    target: str  # as the job file writes it


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """The newest commit cycle."""

    id: int
    state: str  # OPEN, PREPARED, COMMITTED
    committed_at: str | None = None
    closed_by: str | None = None
    rows: int = 0
    bytes: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)  # gather, prepare, commit, save

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> CheckpointStatus:
        """What is told of ``checkpoint``."""
        return cls(
            id=checkpoint.id,
            state=checkpoint.state.value,
            committed_at=checkpoint.committed_at,
            closed_by=checkpoint.closed_by,
            rows=checkpoint.rows,
            bytes=checkpoint.bytes,
            seconds=checkpoint.seconds,
        )


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """How far a table's snapshot has come."""

    chunks: int  # 0 until the table is looked at
    done: int
    rows: int  # read and committed
    estimated_rows: int  # in the table, as the server guesses
    consistent: bool  # whether a reader of the target can no longer see a row step back
    since: str | None = None  # when it became so
    bytes: int = 0
    rows_per_second: float = 0.0  # while it is read
    seconds_left: float | None = None  # at that rate; None: not known, or nothing is left
    where: str | None = None  # rows that are wanted, if not all

    @classmethod
    def of(cls, snapshot: TableSnapshot) -> SnapshotStatus:
        """What a saved snapshot says."""
        rate = snapshot.rows / snapshot.seconds if snapshot.seconds else 0.0
        left = max(0, snapshot.estimated_rows - snapshot.rows)
        return cls(
            snapshot.chunks,
            snapshot.done,
            snapshot.rows,
            snapshot.estimated_rows,
            snapshot.state is SnapshotState.CONSISTENT,
            snapshot.consistent_since,
            snapshot.bytes,
            round(rate, 1),
            round(left / rate, 1) if rate and snapshot.is_due else None,
            snapshot.where,
        )


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """One source table on its way to one target table."""

    source: str
    target: str
    state: str
    upserts: int = 0  # source changes in committed checkpoints since the job's first start
    deletes: int = 0
    bytes: int = 0
    buffered_rows: int = 0
    last_committed_at: str | None = None
    snapshot: SnapshotStatus | None = None  # None: its rows all came through the stream
    impossible_dates: int = 0  # that became NULL since the run's start

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ChannelStatus:
        """The channel that ``asdict`` gave. Raises: KeyError, TypeError - it did not."""
        snapshot = data.get("snapshot")
        return cls(**{**data, "snapshot": SnapshotStatus(**snapshot) if snapshot else None})


@dataclass(frozen=True, slots=True)
class LeftOutStatus:
    """A source table that a wildcard matches and that the job goes on without."""

    table: str
    reason: str
    mend: str

    @classmethod
    def of(cls, tables: Mapping[str, LeftOut], job: str) -> tuple[LeftOutStatus, ...]:
        """Return all of them, by name."""
        return tuple(cls(name, one.reason, with_job(one.mend, job)) for name, one in sorted(tables.items()))


@dataclass(frozen=True, slots=True)
class JobStatus:
    """One job at a moment."""

    job: str
    state: str  # PENDING, RUNNING, PAUSED, CANCELLED, DONE
    source: SourceStatus
    sink: SinkStatus
    reason: str | None = None  # why it is in this state, where that is not plain
    mend: str | None = None  # what its user can do about it
    resume: str | None = None  # automatic or manual while PAUSED
    started_at: str | None = None
    position: Mapping[str, Any] | None = None  # of the newest COMMITTED checkpoint, see position_status
    lag_seconds: float | None = None  # None: not known, no driver is running
    split_transactions: int = 0
    checkpoint: CheckpointStatus | None = None
    channels: tuple[ChannelStatus, ...] = ()
    window_bytes: int = 0  # rows read ahead or handed out, and in no started Task's hands
    window_limit_bytes: int = 0  # memory.window; 0: no driver is running
    left_out: tuple[LeftOutStatus, ...] = ()
    resumes: int = 0  # that this driver has taken up: a pause that is shown beside a higher number came after them

    def to_json(self) -> dict[str, Any]:
        """The body of ``GET /status``, keys in their documented order."""
        return {
            "job": self.job,
            "state": self.state,
            "reason": self.reason,
            "mend": self.mend,
            "resume": self.resume,
            "started_at": self.started_at,
            "source": asdict(self.source),
            "sink": asdict(self.sink),
            "position": None if self.position is None else dict(self.position),
            "lag_seconds": self.lag_seconds,
            "split_transactions": self.split_transactions,
            "window_bytes": self.window_bytes,
            "window_limit_bytes": self.window_limit_bytes,
            "resumes": self.resumes,
            "checkpoint": None if self.checkpoint is None else asdict(self.checkpoint),
            "channels": [asdict(channel) for channel in self.channels],
            "left_out": [asdict(one) for one in self.left_out],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobStatus:
        """The status that ``to_json`` wrote. Raises: KeyError, TypeError - it did not."""
        checkpoint = data["checkpoint"]
        plain = {
            name: value
            for name, value in data.items()
            if name not in {"source", "sink", "checkpoint", "channels", "left_out"}
        }
        return cls(
            source=SourceStatus(**data["source"]),
            sink=SinkStatus(**data["sink"]),
            checkpoint=None if checkpoint is None else CheckpointStatus(**checkpoint),
            channels=tuple(ChannelStatus.from_json(channel) for channel in data["channels"]),
            left_out=tuple(LeftOutStatus(**one) for one in data.get("left_out", ())),
            **plain,
        )


@dataclass(frozen=True, slots=True)
class Resume:
    """What the user of ``cdc resume`` agrees to."""

    past_ddl: bool = False  # go on behind a row-changing statement
    accept_server: bool = False  # go on from another server at the address
    accept_gap: bool = False  # go on without changes that are gone from the source, or cannot be read
    reload_missing: bool = False  # load targets again that are missing, were replaced or are older than the state


class Controls(Protocol):
    """What the status endpoint needs of a job. Calls come from threads of the endpoint and return at once."""

    def status(self) -> JobStatus:
        """The job at this moment."""

    def request_pause(self) -> None:
        """Pause at the next possible place. Harmless when paused already."""

    def request_resume(self, resume: Resume) -> None:
        """Go on after a pause. Harmless while running.

        Raises: CdcError - what was agreed to does not suffice, or the job file no longer fits.
        """

    def request_snapshot(self, table: str, where: str | None) -> None:
        """Load a table again, or those of its rows that ``where`` (the source's SQL) names.

        Raises: CdcError - the job has no such table, or does not run.
        """

    def request_stop(self) -> None:
        """Cancel the job for good."""


def position_status(position: Position) -> dict[str, Any]:
    """A Position as ``/status`` shows it: the place alone, without the server's identity."""
    return {
        name: value for name, value in position.to_json().items() if name not in {"kind", "server", "splits", "held"}
    }


def split_transactions(position: Position | None) -> int:
    """How many transactions were cut up to a Position."""
    return int(position.to_json().get("splits", 0)) if position is not None else 0


def saved_channels(checkpoint: Checkpoint | None, state: str, targets: Mapping[str, str]) -> tuple[ChannelStatus, ...]:
    """Channels of a job that nobody runs: those of its last checkpoint, and tables that the job file names.

    ``targets``: the job file's targets by source, patterns among them.
    """
    snapshots = checkpoint.snapshots if checkpoint is not None else {}
    counts = checkpoint.counts if checkpoint is not None else {}
    known = {*snapshots, *counts}
    found = []
    for name in (*sorted(known), *(name for name in targets if name not in known and not _is_pattern(name))):
        channel = ChannelStatus(name, _target(name, targets), state)
        if name in counts:
            one = counts[name]
            channel = replace(
                channel,
                upserts=one.upserts,
                deletes=one.deletes,
                bytes=one.bytes,
                last_committed_at=one.last_committed_at,
            )
        if name in snapshots:
            channel = replace(channel, snapshot=SnapshotStatus.of(snapshots[name]))
        found.append(channel)
    return tuple(found)


def _target(source: str, targets: Mapping[str, str]) -> str:
    if source in targets:
        return targets[source]
    for pattern, target in targets.items():
        name = parsed_table(pattern)
        middle = name.middle(*table_of(source)) if name and name.is_pattern else None
        if middle is not None:
            return target.replace("*", middle)
    return source


def _is_pattern(source: str) -> bool:
    name = parsed_table(source)
    return name is not None and name.is_pattern


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an endpoint at ``host``."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
