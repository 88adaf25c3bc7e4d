"""The progress of a run, for the status and the metrics."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cdc.errors import CdcError
from cdc.model.kept_messages import ReplayProgress
from cdc.model.position import Position
from cdc.model.snapshot import TableSnapshot
from cdc.model.table_names import table_of
from cdc.pipeline.commit_cycle import ClosedCycle
from cdc.pipeline.committer import last_of
from cdc.pipeline.dispatcher import Dispatcher
from cdc.run_context import RunContext
from cdc.sources.base import LogProgress, PartitionLag
from cdc.state.base import ChannelCounts, Checkpoint


@dataclass(frozen=True, slots=True)
class ChannelProgress:
    """The progress of a channel."""

    source: str
    target: str
    buffered_rows: int
    counts: ChannelCounts
    snapshot: TableSnapshot | None = None
    invalid_dates: int = 0  # since the start of the run


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a run."""

    position: Position  # everything up to it is visible
    lag_s: float | None  # None: the source has no commit times
    checkpoint: Checkpoint  # the PREPARED one that is being committed, else the last COMMITTED one
    channels: tuple[ChannelProgress, ...]
    warning: CdcError | None = None  # a problem of the source; rows may still arrive
    partitions: tuple[PartitionLag, ...] = ()
    is_connected: bool = True  # the source answers
    disconnects: int | None = None  # connections to the source that were lost; None: not counted
    log: LogProgress | None = None  # of the binlog of a server
    replay: ReplayProgress | None = None  # of kept messages of Kafka
    window_bytes: int = 0  # of rows in memory that no Task has started to load


def progress_of(
    context: RunContext,
    committed: Checkpoint,
    closed: ClosedCycle | None,
    dispatcher: Dispatcher | None,
    *,
    at_end: bool,
) -> Progress:
    """Return the progress of a run. Calls: any thread."""
    channels, routes = dispatcher.channels.copy() if dispatcher else {}, context.routes
    targets = {source: channel.target.name for source, channel in channels.items()}
    # the channel is created when the snapshot begins; a table that was dropped or renamed has none
    ended = {source for source, one in committed.column_maps.items() if one.kept_rows}
    for source in (committed.snapshots.keys() | ended) - targets.keys():
        if (mapping := routes.mapping_for(*table_of(source))) is not None:
            targets[source] = mapping.target
    status = context.receiver.status()
    return Progress(
        position=last_of(committed),
        lag_s=_with_held(_lag_s(closed, dispatcher, at_end=at_end), status.held_s),
        checkpoint=closed.checkpoint if closed and closed.is_prepared else committed,
        channels=tuple(
            ChannelProgress(
                source,
                target,
                channels[source].buffered_rows if source in channels else 0,
                committed.counts.get(source, ChannelCounts()),
                committed.snapshots.get(source),
                status.invalid_dates.get(source, 0),
            )
            for source, target in sorted(targets.items())
        ),
        warning=status.warning,
        partitions=status.partitions,
        is_connected=status.is_connected,
        disconnects=status.disconnects,
        log=status.log,
        replay=status.replay,
        window_bytes=status.window_bytes,
    )


def _lag_s(closed: ClosedCycle | None, dispatcher: Dispatcher | None, *, at_end: bool) -> float | None:
    """Return the age in seconds of the oldest transaction that was received and is not visible yet."""
    cycles = (closed, dispatcher.cycle if dispatcher else None)
    oldest = [cycle.oldest_commit_us for cycle in cycles if cycle and cycle.oldest_commit_us is not None]
    if not oldest and at_end:
        return 0.0
    newest = dispatcher.newest_commit_us if dispatcher else None
    since_us = min(oldest) if oldest else newest
    return None if since_us is None else max(0.0, time.time() - since_us / 1e6)


def _with_held(lag_s: float | None, held_s: float) -> float | None:
    """Return the lag with changes that the source holds back."""
    return max(lag_s or 0.0, held_s) if held_s else lag_s
