"""Build the status of a job: of one that runs, of one without a driver, and of one that has never run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cdc.api.differences import ColumnDifference, shown_position
from cdc.api.models import (
    BadRowsStatus,
    ChannelStatus,
    CheckpointStatus,
    JobStatus,
    LeftOutStatus,
    PartitionStatus,
    SinkStatus,
    SnapshotStatus,
    SourceLogStatus,
    SourceStatus,
)
from cdc.api.schema_change_models import SchemaChangeStatus
from cdc.api.verify_models import VerifySummary
from cdc.job.record import describe
from cdc.model.change_record import ChangeSummary
from cdc.model.kafka_position import KafkaPosition
from cdc.model.left_out import LeftOut
from cdc.model.position import CanalPosition, Position
from cdc.model.snapshot import SnapshotRequest, TableSnapshot
from cdc.model.table_names import parsed_table, table_of
from cdc.model.verify import Verification
from cdc.state.base import Checkpoint, JobRecord, JobState
from cdc.state.deployments import DesiredState
from cdc.state.write_times import WriteTimes

if TYPE_CHECKING:  # the command line shows jobs without importing the pipeline
    from cdc.errors import CdcError
    from cdc.pipeline.progress import Progress


@dataclass(frozen=True, slots=True)
class LiveStatus:
    """The part of the status that only the driver of a job has."""

    window_limit_bytes: int = 0
    progress: Progress | None = None  # None: no run has recovered yet
    is_running: bool = False  # a run continues, so lag and window are current
    warning: CdcError | None = None  # the current problem of a job that is not PAUSED
    left_out: Mapping[str, LeftOut] | None = None  # None: use the list of the checkpoint
    resumes: int = 0
    alter_progress: float | None = None  # of the step of a schema change
    store: WriteTimes | None = None


def build_status(
    record: JobRecord,
    checkpoint: Checkpoint | None,
    requests: Iterable[SnapshotRequest],
    changes: ChangeSummary,
    live: LiveStatus | None = None,
    verifications: Iterable[Verification] = (),
) -> JobStatus:
    """Return the status of a job from its last COMMITTED ``checkpoint``, saved snapshot ``requests`` and ``changes``.

    ``live``: None if no driver runs. ``verifications``: the newest ones, newest first.
    """
    live = live or LiveStatus()
    progress, identity = live.progress, record.identity
    if live.warning is not None:
        reason, hint = describe(live.warning, record.name)
        record = replace(record, reason=reason, hint=hint)
    committed_at = checkpoint.committed_at if checkpoint else None
    position: Position | None
    if progress is not None:
        checkpoint, position = progress.checkpoint, progress.position
        channels = _live_channels(progress, record.state)
    else:
        position = checkpoint.last if checkpoint else None
        channels = _saved_channels(checkpoint, record)
    left_out = live.left_out if live.left_out is not None else checkpoint.left_out if checkpoint else {}
    return JobStatus(
        job=record.name,
        state=record.state,
        desired_state=_desired(record),
        reason=record.reason,
        hint=record.hint,
        resume=record.resume,
        pause=record.pause if record.state is JobState.PAUSED else None,
        started_at=record.started_at,
        source=SourceStatus.of(identity.source) if identity else SourceStatus("unknown", None),
        sink=SinkStatus.of(identity.sink) if identity else SinkStatus("unknown", "unknown"),
        position=shown_position(position) if position else None,
        lag_seconds=progress.lag_s if progress and live.is_running else None,
        partitions=_partitions(progress) if progress and live.is_running else (),
        source_connected=progress.is_connected if progress and live.is_running else None,
        source_disconnects=progress.disconnects if progress else None,
        source_log=SourceLogStatus.of(progress.log if progress else None, live.is_running, record.source_retention_s),
        bad_rows=_bad_rows(position, progress),
        split_transactions=position.splits if isinstance(position, CanalPosition) else 0,
        window_bytes=progress.window_bytes if progress and live.is_running else 0,
        window_limit_bytes=live.window_limit_bytes,
        resumes=live.resumes,
        last_committed_at=committed_at,
        checkpoint=CheckpointStatus.of(checkpoint) if checkpoint else None,
        store=live.store,
        schema_changes=SchemaChangeStatus.of(changes, live.alter_progress),
        verify=VerifySummary.of(verifications, checkpoint.verify if checkpoint else None),
        channels=with_requests(_with_bad(_with_differences(channels, checkpoint), position), requests),
        left_out=LeftOutStatus.of(left_out, record.name),
    )


def _desired(record: JobRecord) -> DesiredState:
    if record.state is JobState.CANCELLED:
        return DesiredState.CANCELLED
    is_paused = record.state is JobState.PAUSED and record.is_paused_by_user
    return DesiredState.PAUSED if is_paused else DesiredState.RUNNING


def with_requests(channels: Iterable[ChannelStatus], requests: Iterable[SnapshotRequest]) -> tuple[ChannelStatus, ...]:
    """Return ``channels``, with the tables of saved ``requests`` shown as waiting for a snapshot."""
    waiting = {one.table: SnapshotStatus.of(TableSnapshot(where=one.where)) for one in requests}
    return tuple(replace(one, snapshot=waiting.get(one.source, one.snapshot)) for one in channels)


def _with_differences(channels: Iterable[ChannelStatus], checkpoint: Checkpoint | None) -> Iterator[ChannelStatus]:
    maps, snapshots = (checkpoint.column_maps, checkpoint.snapshots) if checkpoint else ({}, {})
    for one in channels:
        found = maps.get(one.source)
        yield replace(one, differences=ColumnDifference.of(found, snapshots.get(one.source))) if found else one


def _bad_rows(position: Position | None, progress: Progress | None) -> BadRowsStatus | None:
    if not isinstance(position, KafkaPosition):
        return None
    return BadRowsStatus.of(position.kept, progress.replay if progress else None)


def _with_bad(channels: Iterable[ChannelStatus], position: Position | None) -> Iterator[ChannelStatus]:
    counts = dict(position.kept.tables) if isinstance(position, KafkaPosition) else {}
    return (replace(one, bad_messages=counts.get(one.source, 0)) for one in channels)


def _partitions(progress: Progress) -> tuple[PartitionStatus, ...]:
    return tuple(
        PartitionStatus(one.topic, one.partition, one.next, one.end, one.end - one.next, one.seconds)
        for one in progress.partitions
    )


def _live_channels(progress: Progress, state: JobState) -> Iterator[ChannelStatus]:
    for channel in progress.channels:
        yield ChannelStatus(
            channel.source,
            channel.target,
            state,
            channel.counts.upserts,
            channel.counts.deletes,
            channel.counts.bytes,
            channel.buffered_rows,
            channel.counts.last_committed_at,
            SnapshotStatus.of(channel.snapshot) if channel.snapshot else None,
            channel.invalid_dates,
        )


def _saved_channels(checkpoint: Checkpoint | None, record: JobRecord) -> Iterator[ChannelStatus]:
    """Yield the channels of the last checkpoint, then those that only the job file has."""
    targets = {source: one.target for source, one in record.identity.channels.items()} if record.identity else {}
    snapshots, counts = (checkpoint.snapshots, checkpoint.counts) if checkpoint else ({}, {})
    known = sorted({*snapshots, *counts})
    for name in (*known, *(source for source in targets if source not in known and not _is_pattern(source))):
        channel = ChannelStatus(name, _target(name, targets), record.state)
        if (one := counts.get(name)) is not None:
            channel = replace(
                channel,
                upserts=one.upserts,
                deletes=one.deletes,
                bytes=one.bytes,
                last_committed_at=one.last_committed_at,
            )
        yield replace(channel, snapshot=SnapshotStatus.of(snapshots[name])) if name in snapshots else channel


def _target(source: str, targets: Mapping[str, str]) -> str:
    """Return the plain name of the target of a source table: of its own channel, else of a channel with a pattern."""
    for mapped in (source, *targets):
        name, target = parsed_table(mapped), parsed_table(targets.get(mapped, ""))
        if target is None or name is None:
            continue
        if mapped == source:
            return target.plain
        middle = name.middle(*table_of(source)) if name.is_pattern else None
        if middle is not None:
            return target.with_middle(middle).plain
    return source


def _is_pattern(source: str) -> bool:
    name = parsed_table(source)
    return name is not None and name.is_pattern
