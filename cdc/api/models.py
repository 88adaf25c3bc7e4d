"""The status of a job, as ``GET /status`` returns it, and the requests to a running job.

Other programs read the JSON form, so it is an interface (docs: the status page). Times are ISO 8601, UTC.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from cdc.api.differences import ColumnDifference
from cdc.api.schema_change_models import SchemaChangeStatus
from cdc.api.verify_models import StartVerify, VerifySummary
from cdc.errors import with_job
from cdc.model.kept_messages import KeptMessages, ReplayProgress
from cdc.model.left_out import LeftOut
from cdc.model.snapshot import SnapshotState, TableSnapshot
from cdc.state.base import Checkpoint, CheckpointState, CloseReason, JobState, ResumeKind
from cdc.state.deployments import DesiredState
from cdc.state.identity import SinkIdentity, SourceIdentity
from cdc.state.write_times import WriteTimes

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from cdc.sources.base import LogProgress


_REQUEST = {"extra": "forbid"}  # pydantic's configuration of a request body: unknown keys are errors


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The source of a job."""

    type: str  # binlog, canal, binlog_files, kafka
    server: str | None  # "127.0.0.1:3306"; the path pattern for files; brokers
    destination: str | None = None  # of Canal

    @classmethod
    def of(cls, identity: SourceIdentity) -> SourceStatus:
        """Return the status of the source ``identity``."""
        return cls(identity.type, identity.server, identity.destination)


@dataclass(frozen=True, slots=True)
class SourceLogStatus:
    """The binlog of a source server."""

    position_bytes: int | None = None  # offset of `position` in its file
    behind_bytes: int | None = None  # from `position` to the end of the binlog; null: not known
    retention_seconds: float | None = None  # how long the server keeps its files; null: not known, or for ever

    @classmethod
    def of(cls, log: LogProgress | None, is_running: bool, saved_s: float | None) -> SourceLogStatus | None:
        """Return the status of ``log``; None if the job has no such source. Without a run its end is not known.

        ``saved_s``: the retention, as an earlier run has read it.
        """
        known_s = log.retention_s if log is not None and log.retention_s is not None else saved_s
        if log is None:
            return cls(retention_seconds=known_s) if known_s else None
        return cls(log.offset, log.behind_bytes if is_running else None, known_s or None)


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition of a Kafka topic."""

    topic: str
    partition: int
    next_offset: int  # everything before it is committed
    end_offset: int  # the newest known end of the partition
    lag_messages: int  # offsets between the two
    behind_seconds: float | None = None  # age of the last committed message; 0 at the end; null: unknown


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """The sink of a job."""

    type: str  # delta, doris, starrocks
    target: str  # as the job file writes it

    @classmethod
    def of(cls, identity: SinkIdentity) -> SinkStatus:
        """Return the status of the sink ``identity``."""
        return cls(identity.type, identity.written)


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """The newest commit cycle."""

    id: int
    state: CheckpointState
    committed_at: str | None = None
    closed_by: CloseReason | None = None  # why its commit cycle closed
    rows: int = 0
    bytes: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)  # buffer, prepare, commit, save

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> CheckpointStatus:
        """Return the status of ``checkpoint``."""
        return cls(
            id=checkpoint.id,
            state=checkpoint.state,
            committed_at=checkpoint.committed_at,
            closed_by=checkpoint.closed_by,
            rows=checkpoint.rows,
            bytes=checkpoint.bytes,
            seconds=checkpoint.seconds,
        )


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """Progress of the snapshot of a table."""

    chunks: int  # 0 until the snapshot of the table is planned
    done: int
    rows: int  # read and committed
    estimated_rows: int  # in the table, estimated by the server
    consistent: bool  # true when a reader of the target can no longer see a row change back to an older version
    since: str | None = None  # when it became consistent
    bytes: int = 0
    rows_per_second: float = 0.0  # while it is read
    seconds_left: float | None = None  # at that rate; null: not known, or no rows are left
    where: str | None = None  # SQL condition of the requested rows; null: all rows
    state: SnapshotState = SnapshotState.WAITING

    @classmethod
    def of(cls, snapshot: TableSnapshot) -> SnapshotStatus:
        """Return the status of a saved snapshot."""
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
            snapshot.state,
        )


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """One source table and its target table."""

    source: str
    target: str
    state: JobState
    upserts: int = 0  # inserts and updates in committed checkpoints since the job's first start
    deletes: int = 0  # deletes in committed checkpoints since the job's first start
    bytes: int = 0  # source bytes of these changes
    buffered_rows: int = 0  # rows that wait for a Task
    last_committed_at: str | None = None
    snapshot: SnapshotStatus | None = None  # null: all rows come from the stream
    invalid_dates: int = 0  # dates that became NULL since the start of the run
    bad_messages: int = 0  # of a Kafka source: messages that are kept as files, because they cannot be decoded
    differences: tuple[ColumnDifference, ...] = ()  # columns and rows of schema changes that were not applied


@dataclass(frozen=True, slots=True)
class BadRowsStatus:
    """The messages of a Kafka source that could not be decoded, as of the newest COMMITTED checkpoint."""

    kept: int = 0  # kept as files, and not loaded since; those without a known table included
    window_messages: int = 0  # messages in the window
    window_bad: int = 0  # bad ones of them
    replays: int = 0  # how often kept messages were loaded again
    loaded: int = 0  # messages that were loaded so
    replay_messages: int = 0  # to read again from the topics while kept messages are loaded; else 0
    replay_read: int = 0  # how many of them were read

    @classmethod
    def of(cls, kept: KeptMessages, replay: ReplayProgress | None) -> BadRowsStatus:
        """Return the status of what a position knows. ``replay``: the running one."""
        read, bad = (sum(part[n] for part in kept.window) for n in (0, 1))
        running = replay or ReplayProgress()
        return cls(kept.count, read, bad, kept.replays, kept.loaded, running.total, running.read)


@dataclass(frozen=True, slots=True)
class SnapshotTotal:
    """The snapshots of all tables together."""

    tables: int = 0
    tables_done: int = 0  # consistent
    waiting: int = 0  # not started
    chunks: int = 0  # planned so far; a waiting table has none
    chunks_done: int = 0
    rows: int = 0

    @classmethod
    def of(cls, channels: Iterable[ChannelStatus]) -> SnapshotTotal:
        """Return the sums over ``channels``."""
        found = [channel.snapshot for channel in channels if channel.snapshot is not None]
        return cls(
            len(found),
            sum(one.consistent for one in found),
            sum(one.state is SnapshotState.WAITING for one in found),
            sum(one.chunks for one in found),
            sum(one.done for one in found),
            sum(one.rows for one in found),
        )


@dataclass(frozen=True, slots=True)
class LeftOutStatus:
    """A source table that a wildcard matches and that the job does not load."""

    table: str
    reason: str
    hint: str

    @classmethod
    def of(cls, tables: Mapping[str, LeftOut], job: str) -> tuple[LeftOutStatus, ...]:
        """Return the status of ``tables``, by name."""
        return tuple(cls(name, one.reason, with_job(one.hint, job)) for name, one in sorted(tables.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """The status of a job: the body of ``GET /status``, with the keys in this order."""

    job: str
    state: JobState
    desired_state: DesiredState = DesiredState.RUNNING  # what its user wants: RUNNING, although an error pauses it
    reason: str | None = None  # why the job is in this state
    hint: str | None = None  # a command or setting that resolves it
    resume: ResumeKind | None = None  # null: not PAUSED
    pause: str | None = None  # name of this pause; null: not PAUSED. A resume with it ends no other pause
    started_at: str | None = None
    source: SourceStatus
    sink: SinkStatus
    position: Mapping[str, Any] | None = None  # of the newest COMMITTED checkpoint
    lag_seconds: float | None = None  # null: unknown, because no driver runs
    source_disconnects: int | None = None  # connections that this process has lost; null: not counted
    source_log: SourceLogStatus | None = None  # of a binlog source
    source_connected: bool | None = None  # false: the source does not answer; null: the job does not run
    partitions: tuple[PartitionStatus, ...] = ()  # of the topics of a Kafka source, while a driver runs
    bad_rows: BadRowsStatus | None = None  # of a Kafka source, see source.bad_rows
    split_transactions: int = 0
    window_bytes: int = 0  # rows that are read ahead or delivered, and not yet in a started Task
    window_limit_bytes: int = 0  # memory.window; 0: no driver runs
    resumes: int = 0  # number of resumes that this driver has applied; PAUSED with a higher number is a new pause
    last_committed_at: str | None = None  # when the newest COMMITTED checkpoint was committed; null: there is none
    checkpoint: CheckpointStatus | None = None
    store: WriteTimes | None = None  # how long the writes to the state store take; null: no driver runs
    snapshot: SnapshotTotal = SnapshotTotal()  # the sums over ``channels``
    schema_changes: SchemaChangeStatus = field(default_factory=SchemaChangeStatus)
    verify: VerifySummary = field(default_factory=VerifySummary)
    channels: tuple[ChannelStatus, ...] = ()
    left_out: tuple[LeftOutStatus, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "snapshot", SnapshotTotal.of(self.channels))

    def to_json(self) -> dict[str, Any]:
        """Return the body of ``GET /status``."""
        return dict(_status_codec().dump_python(self, mode="json"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobStatus:
        """Return the status that ``to_json`` wrote. Raises: ValueError - the data has another form."""
        found: JobStatus = _status_codec().validate_python(data)
        return found


def _status_codec() -> TypeAdapter[Any]:
    kind: Any = JobStatus
    return _codec(kind)


@cache
def _codec(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # importing it costs 0.1 s, which a command that shows no job does not need

    return TypeAdapter(kind)


@dataclass(frozen=True, slots=True)
class PauseJob:
    """Pause the job as soon as possible and keep its position. A PAUSED job stays as it is."""

    __pydantic_config__: ClassVar = _REQUEST


@dataclass(frozen=True, slots=True)
class Resume:
    """Continue after a pause, with the flags of ``cdc resume``. A RUNNING job stays as it is, but for `replay_bad`."""

    __pydantic_config__: ClassVar = _REQUEST
    past_ddl: bool = False  # continue after a row-changing statement
    apply_ddl: bool = False  # apply the statement at which the job is paused to the targets, whatever the mode says
    accept_server: bool = False  # continue from another server at the address
    # continue without changes that the source no longer has, or that cannot be read; with `replay_bad`, load messages
    # after which others were deleted
    accept_gap: bool = False
    reload_missing: bool = False  # load targets again that are missing, were replaced or are older than the state
    pause: str | None = None  # `pause` of the status that the user has seen: another pause is not ended; null: any
    replay_bad: bool = False  # load kept messages of Kafka again; a RUNNING job reads its file again and continues


@dataclass(frozen=True, slots=True)
class LoadTable:
    """Save a request to load a table again. It is carried out while the job runs."""

    __pydantic_config__: ClassVar = _REQUEST
    table: str
    where: str | None = None  # the rows to load, in the source's SQL; None: all


@dataclass(frozen=True, slots=True)
class StopJob:
    """Cancel the job. It cannot be started again."""

    __pydantic_config__: ClassVar = _REQUEST


RequestBody: TypeAlias = PauseJob | Resume | LoadTable | StartVerify | StopJob
# by path: ``POST /pause`` and so on; the fields of the class are the body
REQUESTS: Mapping[str, type[RequestBody]] = {
    "pause": PauseJob,
    "resume": Resume,
    "snapshot": LoadTable,
    "verify": StartVerify,
    "stop": StopJob,
}


def request_to_json(request: RequestBody) -> dict[str, Any]:
    """Return the body of a ``POST``. Fields that are null are left out: a driver of an earlier version has fewer."""
    return {name: value for name, value in asdict(request).items() if value is not None}


def request_from_json(path: str, body: bytes) -> RequestBody:
    """Return the request of a ``POST``. Raises: ValueError - the body does not match the path, and the reason."""
    from pydantic import ValidationError

    kind: Any = REQUESTS[path]
    try:
        found: RequestBody = _codec(kind).validate_json(body.strip() or b"{}", strict=True)
    except ValidationError as error:
        issues = (f"{'.'.join(map(str, one['loc']))} {one['msg']}" for one in error.errors(include_input=False))
        raise ValueError("; ".join(issues).strip()[:200]) from None
    return found


class Controls(Protocol):
    """The job as the status endpoint uses it. Calls: threads of the endpoint; they do not block."""

    def status(self) -> JobStatus:
        """Return the status of the job at this moment."""

    def request(self, request: RequestBody) -> None:
        """Accept a request, which the run of the job executes later.

        Raises: CdcError - it cannot be executed: a flag of the resume is missing, the job file no longer matches the
        job, or the job does not have the table.
        """
