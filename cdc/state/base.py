"""Checkpoints (a commit cycle and its saved progress), job records, and the contract of the store that keeps them.

States of a checkpoint: OPEN -> PREPARED -> COMMITTED. Every save is durable before it returns.

The store is an SQLite file of one host, or a database server that several hosts share (``$CDC_STORE``)::

    cdc.state.opening.open_store()   returns ``SqlStore`` (``cdc.state.sql``), which implements ``CheckpointStore``
    store.hosts                      ``Hosts``: heartbeat, all, leave, set_drained, forget
    store.deployments                ``Deployments``: all, get, declare (specification, desired state), assign (a host)
    store.events                     ``Events``: add, newest, get; request, open_requests, take, answer, withdraw
    store.committed                  the newest COMMITTED checkpoints of a job
    store.host                       ``HostIdentity`` of this host: $CDC_HOST or the name of the machine
    store.is_shared, store.lease_s   whether runs have a lease; its length ($CDC_LEASE)

Rules of a shared store:

- The fence decides who may write. Every write of a run is ``UPDATE cdc_jobs SET saves = saves + 1 WHERE name = ? AND
  fence = ? AND token = ?`` in the transaction of the write. No row: LeaseLost.
- The lease only says when another host may try. ``acquire`` is refused while a run of another host has a lease that has
  not expired by the clock of the store, or while the job is assigned to another host. A host gets its own job back at
  once, because the flock of its lock file proves that the older process has ended.
- No rule needs a clock that only increases. If the clock of the store is set back, nothing renews the lease of a dead
  host: the other hosts shorten it (``Hosts.shorten_leases``); without `cdc serve` it ends later by as much. If the
  clock is ahead, a live run is taken over, and its next write is refused.
- ``Deployments.assign`` increases the fence: an older run saves nothing from then on.
- ``cdc serve`` manages the jobs that have a specification; ``cdc start`` without it saves none.
- Secrets are never in the store: a specification keeps ``${NAME}``.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from cdc.model.batch import PreparedLoad, TargetState
from cdc.model.change_record import ChangeRecord, ChangeSummary
from cdc.model.left_out import LeftOut
from cdc.model.position import Position
from cdc.model.schema import TableSchema
from cdc.model.schema_change import ChangePlan, ColumnMap, SchemaChange
from cdc.model.snapshot import SnapshotRequest, TableSnapshot
from cdc.model.verify import Verification, VerifyRequest
from cdc.state.identity import JobIdentity
from cdc.state.write_times import WriteTimes


class CheckpointState(StrEnum):
    """The states of a commit cycle."""

    OPEN = "OPEN"  # loads may be running; after a crash they are aborted
    PREPARED = "PREPARED"  # all loads are durable in the sink; after a crash they are committed
    COMMITTED = "COMMITTED"  # everything up to ``last`` is visible


class CloseReason(StrEnum):
    """Why a commit cycle closed."""

    INTERVAL = "interval"  # ``commit.interval`` has passed
    MAX_ROWS = "max_rows"
    MAX_BYTES = "max_bytes"
    IDLE = "idle"  # the source has no more changes, and the cycle has enough rows
    WINDOW = "window"  # the read-ahead window is full
    PAUSE = "pause"  # the run ends
    DDL = "ddl"  # a DDL statement of a mapped table follows
    SCHEMA_CHANGE = "schema_change"  # it has no rows: it changes the columns of targets
    END = "end"  # the source has ended
    START = "start"  # the first checkpoint of a job, or of an adopted one
    SNAPSHOT = "snapshot"  # a snapshot step or a verification step follows or ends


class JobState(StrEnum):
    """The states of a job, as in Binlog Load of Doris, and DONE for sources that end."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    CANCELLED = "CANCELLED"
    DONE = "DONE"


ENDED = {JobState.CANCELLED: "was cancelled", JobState.DONE: "has read its source to the end"}


class ResumeKind(StrEnum):
    """How a pause ends."""

    AUTOMATIC = "automatic"  # the job retries
    MANUAL = "manual"  # the user runs `cdc resume`


# the sink keeps the job's commits when its state is deleted: see ``cdc.pipeline.recovery``
FORGOTTEN = (
    "The rows in its targets remain. `cdc start JOB.yaml --adopt` continues from the newest commit in them. To load "
    "everything again, start it with another `name:` and empty targets."
)


def forgetting(job: str) -> str:
    """Return the hint for a job that has ended."""
    return f"`cdc stop {job} --forget` deletes its state. {FORGOTTEN}"


@dataclass(frozen=True, slots=True)
class ChannelCounts:
    """The numbers of changes that a channel has committed since the job's first start."""

    upserts: int = 0  # inserts and updates in the source
    deletes: int = 0
    bytes: int = 0
    last_committed_at: str | None = None  # ISO 8601, UTC


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One commit cycle and its saved progress."""

    id: int  # 0 is the start position of the job
    fence: int  # of the run that opened it
    state: CheckpointState
    first: Position
    last: Position | None  # None while OPEN
    schemas: tuple[TableSchema, ...] = ()  # as they are at ``last``
    loads: tuple[PreparedLoad, ...] = ()  # () after the commit
    rows: int = 0
    bytes: int = 0
    sequence: int = 0  # highest sequence that was assigned up to here
    closed_by: CloseReason | None = None  # None while OPEN
    committed_at: str | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)  # buffer, prepare, commit, save
    counts: Mapping[str, ChannelCounts] = field(default_factory=dict)  # by source table: totals at this checkpoint
    snapshots: Mapping[str, TableSnapshot] = field(default_factory=dict)  # by source table: state at this checkpoint
    # by target table: its identity, and the newest COMMITTED checkpoint that had rows for it
    targets: Mapping[str, TargetState] = field(default_factory=dict)
    sink: str | None = None  # identity of the sink's root; None: not known yet
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)  # by source table: the tables that the job omits
    # by source table: where the columns of its target differ, because changes were ignored
    column_maps: Mapping[str, ColumnMap] = field(default_factory=dict)
    change: ChangePlan | None = None  # of a checkpoint that changes targets; it has no loads
    verify: Verification | None = None  # the current verification, or the one that ends with this checkpoint
    replays: int = 0  # replays that have begun, also those that failed: each loads under names of its own

    @property
    def loaded(self) -> frozenset[str]:
        """Return the source tables with rows in this checkpoint or an earlier one."""
        counted = {source for source, counts in self.counts.items() if counts.upserts or counts.deletes}
        return frozenset(counted | {source for source, snapshot in self.snapshots.items() if snapshot.rows})


@dataclass(frozen=True, slots=True)
class AcknowledgedDdl:
    """A DDL statement at which the job was PAUSED, and after which it was resumed. The stream may deliver it again."""

    position: Position
    past_ddl: bool = False  # the resume had --past-ddl


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The saved record of a job, without its checkpoints. The command line reads it when no driver answers."""

    name: str
    incarnation: str  # 8 random hex digits, for the life of a job
    fence: int  # of the newest run
    state: JobState
    job_file: str  # absolute path
    reason: str | None = None
    hint: str | None = None
    resume: ResumeKind | None = None  # None: not PAUSED
    pause: str | None = None  # random name of this pause; None: not PAUSED
    is_paused_by_user: bool = False  # the newest pause was requested, not caused by an error
    started_at: str | None = None
    driver_pid: int | None = None
    supervisor_pid: int | None = None
    status_url: str | None = None  # "http://127.0.0.1:8470"
    identity: JobIdentity | None = None  # None: the job has never started
    stopped_at_ddl: Position | None = None  # the DDL statement at which the job is PAUSED
    pending_change: SchemaChange | None = None  # what that statement does, if it could be read
    acknowledged_ddl: tuple[AcknowledgedDdl, ...] = ()
    adopted: str | None = None  # "incarnation:checkpoint" of the sink at the last --adopt
    source_retention_s: float | None = None  # how long the server keeps its binlog; None: not known; 0: for ever
    host: str | None = None  # name of the host that has, or had, the newest run
    home: str | None = None  # its ``$CDC_HOME``, as ``HostIdentity.home``: the pids above are of that host
    is_lag_posted: bool = False  # the webhook of the job file has the event, and not its end
    alert_reason: str | None = None  # of a pause: its reason without values of rows, for messages to other programs


def new_pause() -> str:
    """Return the name of a pause that begins."""
    return secrets.token_hex(4)


class CheckpointStore(Protocol):
    """Keeps job records and checkpoints durably. One store serves many jobs.

    Raises: CheckpointError from every call - the store cannot be read or written;
    LeaseLost from every writing call of a run - a newer fence exists.
    """

    @property
    def lease_s(self) -> float:
        """Length of the lease of a run in seconds; 0: the lock of the job ends with its process, and needs no lease."""

    @property
    def write_times(self) -> WriteTimes:
        """The writes of runs by this process since its start."""

    def acquire(self, job: str, job_file: str, incarnation: str | None = None) -> JobRecord:
        """Lock the job for this process, increase its fence by one, and return its record, created if it is new.

        ``incarnation``: of the job that the caller means. Nothing is changed if the job has another one now.
        Raises: LeaseLost - another process has the lock; the message names its pid, or its host;
        the job has another incarnation.
        """

    def renew(self, summary: Mapping[str, Any] | None = None) -> None:
        """Extend the lease of the locked job by ``lease_s``. Save ``summary``: lag, rows/s and so on, for other hosts.

        Raises: LeaseLost - another process runs the job now.
        """

    def release(self) -> None:
        """Release the lock and end the lease. When the process dies, the lock is released and the lease expires."""

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return the records of all jobs, ordered by name. Needs no lock."""

    def job(self, name: str) -> JobRecord | None:
        """Return the record of one job, if it exists. Needs no lock."""

    def save_job(self, record: JobRecord) -> None:
        """Save the record of the locked job. A larger fence in it becomes the fence of this run."""

    def end_pause(self) -> None:
        """Save that the locked job is to run, if a user wanted it PAUSED: a resume is carried out."""

    def save_adoption(self, record: JobRecord, start: Checkpoint) -> None:
        """Save the record of the locked job, with a larger fence, and the checkpoint at which it continues, or none."""

    def check_fence(self) -> None:
        """Raise LeaseLost if another process runs the job now."""

    def next_id(self) -> int:
        """Return an id for the locked job that is larger than every saved one, discarded ones included."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Save or replace a checkpoint of the locked job, and delete old COMMITTED ones."""

    def discard(self, checkpoint_id: int) -> None:
        """Delete an aborted OPEN checkpoint. Its id is not used again."""

    def unfinished(self) -> tuple[Checkpoint, ...]:
        """Return the PREPARED and OPEN checkpoints of the locked job, oldest first."""

    def last_committed(self, job: str) -> Checkpoint | None:
        """Return the newest COMMITTED checkpoint, if there is one. Needs no lock."""

    def changes(self, job: str, limit: int, *, before: int | None = None) -> tuple[ChangeRecord, ...]:
        """Return the newest ``limit`` schema changes that are COMMITTED, newest first. Needs no lock.

        ``before``: only changes of checkpoints with a smaller number. ``save`` adds changes. Only ``forget``
        deletes them.
        """

    def change_summary(self, job: str) -> ChangeSummary:
        """Return how many schema changes are done, the newest one and the current one. Needs no lock."""

    def add_request(self, job: str, request: SnapshotRequest, incarnation: str | None = None) -> None:
        """Save a request to load a table again. Needs no lock. A run of the job finds it within a second.

        ``incarnation``: see ``acquire``. Raises: LeaseLost - the job has another incarnation.
        """

    def requests(self, job: str) -> tuple[SnapshotRequest, ...]:
        """Return the saved requests, oldest first. Needs no lock."""

    def drop_requests(self, numbers: Collection[int]) -> None:
        """Delete requests that a COMMITTED checkpoint contains or that cannot be carried out. Needs the lock."""

    def add_verification(self, job: str, request: VerifyRequest) -> None:
        """Save a request to verify the job. Needs no lock. A run of the job finds it within a second."""

    def verifications(self, job: str, limit: int) -> tuple[Verification, ...]:
        """Return the newest ``limit`` verifications, newest first: waiting, running and ended ones. Needs no lock.

        ``save`` adds the result of one that ends with a COMMITTED checkpoint. The progress of the running one is in the
        checkpoint. The newest 100 are kept.
        """

    def forget(self, job: str, incarnation: str | None = None) -> None:
        """Delete everything about a job. ``incarnation``: see ``acquire``.

        Raises: LeaseLost - a process has its lock; the job has another incarnation.
        """

    def close(self) -> None:
        """Release the lock and close the store. May be repeated."""
