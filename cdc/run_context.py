"""The components of one run of a job. Only ``cdc.job`` creates them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cdc.model.position import Position
from cdc.model.schema_change import SchemaChange
from cdc.mysql.connection import Endpoint
from cdc.mysql.server import Server
from cdc.sources.base import Receiver
from cdc.state.base import CheckpointStore
from channels.channel import Channel
from channels.mapping import ExpressionTypes
from channels.routes import Routes
from channels.sinks.base import Sink
from channels.task import RunIdentity, TaskRunner


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """Settings of the snapshot. Every receiver uses a MySQL server for it."""

    endpoint: Endpoint
    position: Callable[[Server], Position]  # returns the newest position of the source, of the receiver's class
    initial: bool = True  # load every table once; False: only the requested tables
    step_s: float = 10.0  # longest duration of a snapshot step, while the stream waits
    readers: int = 4  # concurrent connections
    rows_per_s: float | None = None  # all readers together
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """Settings of verifications."""

    every_s: float | None = None  # None: only on request
    sample: float | None = None  # of scheduled ones: fraction of the rows; None: all
    repair: bool = False  # of scheduled ones
    hidden: tuple[str, ...] = ()  # target columns whose values are not shown


@dataclass(frozen=True, slots=True)
class RunContext:
    """The components of one run of a job."""

    run: RunIdentity
    receiver: Receiver
    routes: Routes
    runner: TaskRunner
    sink: Sink
    store: CheckpointStore
    types: ExpressionTypes | None = None  # for mappings with expressions
    snapshot: SnapshotSettings | None = None  # None: the source has no tables, only a stream
    verify: VerifySettings = VerifySettings()
    reload_missing: bool = False  # load targets again that are not the tables that the job wrote
    is_verified: bool = False  # the targets were verified since the last start or resume, so wait for a missing one
    applies: SchemaChange | None = None  # the user applies this statement, whatever `schema_changes` says
    # The run before ended for a schema change. As if it had continued, targets are not verified and the sink is not
    # acquired again, and the channels of tables without a change are used again.
    is_continued: bool = False
    channels: dict[str, Channel] = field(default_factory=dict)  # by source table
