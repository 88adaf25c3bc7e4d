"""Create the components of a job from its job file. Only this module knows which class implements a setting."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.api.models import Resume
from cdc.config.channel_models import ChannelConfig
from cdc.config.connection_models import MysqlServer
from cdc.config.kafka_models import KafkaSourceConfig
from cdc.config.models import Config
from cdc.config.sink_models import ClusterSinkConfig, DeltaSinkConfig, DorisSinkConfig
from cdc.config.source_models import (
    BinlogFilesSourceConfig,
    BinlogSourceConfig,
    CanalSourceConfig,
    StartAtFile,
    StartAtGtids,
)
from cdc.errors import ConfigError
from cdc.job.spark_start import sessions_of
from cdc.model.position import CanalPosition, Position
from cdc.model.table_names import parse_table
from cdc.mysql.connection import Endpoint, Tls
from cdc.mysql.server import Server
from cdc.pipeline.flow_control import CommitLimits
from cdc.run_context import SnapshotSettings, VerifySettings
from cdc.sources.base import Receiver
from cdc.sources.binlog.file_tables import Descriptions, ServerDescriptions, StatementDescriptions
from cdc.sources.binlog.log_coverage import check_log_coverage
from cdc.sources.binlog.receiver import BinlogReceiver
from cdc.sources.binlog.replication_stream import ReaderIdentity
from cdc.sources.binlog.start_position import resolve_start
from cdc.sources.binlog.transport import files_start
from cdc.sources.canal.client import CanalClient, zookeeper_addresses
from cdc.sources.canal.fetcher import Ring
from cdc.sources.canal.receiver import CanalReceiver, first_position
from cdc.sources.schema_history import ResumeOptions
from channels.file_lookup import FileLookup
from channels.mapping import ExpressionTypes, Mapping, SparkExpressionTypes
from channels.routes import Routes
from channels.sinks.base import Sink
from channels.sinks.delta import sink as delta
from channels.sinks.doris import sink as doris
from channels.sinks.starrocks import sink as starrocks
from channels.sinks.stream_load.http import ClusterAddress
from channels.sinks.stream_load.login import ClusterTls
from channels.sinks.stream_load.time_limit import TimeLimit
from channels.spark_runner import SparkTaskRunner
from channels.stall import STALL_S
from channels.task import RunIdentity, TaskRunner
from spark.session import SessionHolder
from spark.settings import is_local

if TYPE_CHECKING:  # the client library is an optional dependency
    from cdc.job.kafka_wiring import KafkaParts

# position of a DDL statement to skip -> whether the resume had --past-ddl
AcknowledgedStatements = MappingOf[Position, bool]
# Resume: options of the last resume
ReceiverFactory = Callable[[RunIdentity, Resume | None, AcknowledgedStatements], Receiver]


@dataclass(frozen=True, slots=True)
class Components:
    """The components of a job. Many runs use the same sink and runner; each run creates a Receiver."""

    routes: Routes
    sink: Sink
    runner: TaskRunner
    receiver: ReceiverFactory
    resolve_start: Callable[[RunIdentity], Position]
    types: ExpressionTypes | None = None
    snapshot: SnapshotSettings | None = None  # None: the source has no tables, only a stream
    verify: VerifySettings = field(default_factory=VerifySettings)

    def close(self) -> None:
        """Close threads, sessions and connections."""
        self.runner.close()
        self.sink.close()


def build(config: Config, started: SessionHolder | None = None, *, limit: TimeLimit | None = None) -> Components:
    """Create the components that ``config`` describes, without connecting or starting anything.

    ``started``: a Spark session that is starting; closed if ``config`` describes another one. ``limit``: the time
    limit of ``cdc check``. Raises: ConfigError.
    """
    snapshot = _snapshot(config)
    routes = Routes([_mapping(channel, config) for channel in config.channels], can_load_whole=snapshot is not None)
    sessions = sessions_of(config)
    if started is not None and started.is_same(sessions):
        sessions = started
    elif started is not None:
        started.close()
    sink = _sink(config, limit)
    receiver, start = _source(config, routes)
    runner = SparkTaskRunner(sessions, sink, config.tasks.parallel, _stall_s(config))
    if isinstance(sink, delta.DeltaSink) and not is_local(config.spark.remote or config.spark.master or "local"):
        # executors on this machine are not faster than its threads
        sink.use_executors(lambda *files: runner.submit_reading(FileLookup(*files)).result())
    return Components(
        routes=routes,
        sink=sink,
        runner=runner,
        receiver=receiver,
        resolve_start=start,
        types=SparkExpressionTypes(sessions),
        snapshot=snapshot,
        verify=VerifySettings(
            config.verify.every,
            config.verify.sample if config.verify.sample < 1 else None,
            config.verify.repair,
            config.verify.hide,
        ),
    )


def limits_of(config: Config) -> CommitLimits:
    """Return the limits of commits and Tasks."""
    commit = config.commit
    return CommitLimits(
        commit.interval, commit.min_rows, commit.min_bytes, commit.max_bytes, commit.max_rows, config.task_bytes
    )


def _stall_s(config: Config) -> float:
    """Return the time without progress after which a Task is stalled: at least twice the time limit of a load.

    A Task that waits for its sink also makes no progress.
    """
    return STALL_S if isinstance(config.sink, DeltaSinkConfig) else max(STALL_S, 2 * config.sink.timeouts.load)


def _mapping(channel: ChannelConfig, config: Config) -> Mapping:
    options = channel.tables.model_dump(exclude_none=True) if channel.tables else {}
    target = parse_table(channel.target).plain
    key, exclude = channel.key or (), channel.exclude or ()
    changes = (channel.schema_changes or config.schema_changes).policy
    return Mapping(channel.source, target, key, channel.columns, _filter_of(channel), options, exclude, changes)


def _filter_of(channel: ChannelConfig) -> str | None:
    """Return the condition of rows that stay: `filter`, and not `delete_when`."""
    if channel.delete_when is None:
        return channel.filter
    stays = f"NOT coalesce(({channel.delete_when}), false)"
    return stays if channel.filter is None else f"({channel.filter}) AND {stays}"


def _sink(config: Config, limit: TimeLimit | None) -> Sink:
    sink = config.sink
    if isinstance(sink, DeltaSinkConfig):
        return delta.DeltaSink(
            sink.location,
            create_tables=sink.create_tables,
            retention_s=sink.retention,
            merge_memory_bytes=config.memory.merge,
            merge=sink.merge,
            storage=sink.storage_options,
        )
    address = ClusterAddress(
        fe=tuple(map(str, sink.fe)),
        username=sink.username,
        password=sink.password.get_secret_value(),
        backends=tuple(map(str, sink.be)),
        sql_port=sink.sql_port,
        connect_timeout_s=sink.timeouts.connect,
        answer_timeout_s=sink.timeouts.load,
        connections=sink.connections,
        tls=_tls_of(sink),
        limit=limit,
    )
    if isinstance(sink, DorisSinkConfig):
        return doris.DorisSink(
            address,
            two_phase_commit=sink.two_phase_commit,
            create_tables=sink.create_tables,
            tables=sink.tables.model_dump(),
            alter_timeout_s=config.schema_changes.alter_timeout,
            compression=None if sink.compression == "off" else sink.compression,
        )
    return starrocks.StarrocksSink(
        address,
        databases=[parse_table(channel.target).database for channel in config.channels],
        multi_table=sink.multi_table,
        # Kafka and Canal send texts, also those of MariaDB, whose JSON is any text without its CHECK
        parses_documents=config.source.type in ("kafka", "canal"),
        create_tables=sink.create_tables,
        tables=sink.tables.model_dump(),
        alter_timeout_s=config.schema_changes.alter_timeout,
    )


def _tls_of(sink: ClusterSinkConfig) -> ClusterTls:
    """Return ``sink.tls`` with the text of its file. Raises: ConfigError - the file has no certificates."""
    try:
        text = None if sink.tls.ca_file is None else Path(sink.tls.ca_file).read_text()
        if text is not None and "BEGIN CERTIFICATE" not in text:
            raise ValueError("the file has no certificate")
        found = ClusterTls(sink.tls.mode, text)
        _ = found.context
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise ConfigError(
            f"The certificates of the sink cannot be read: {error}.",
            hint="Set `sink.tls.ca` to a file with certificates in PEM format.",
            file=sink.tls.ca_file,
        ) from error
    return found


def _source(config: Config, routes: Routes) -> tuple[ReceiverFactory, Callable[[RunIdentity], Position]]:
    source, window_bytes = config.source, config.memory.window
    if isinstance(source, BinlogFilesSourceConfig):
        pattern, described = source.location, descriptions_of(source)
        return (
            lambda run, resume, acknowledged: BinlogReceiver.of_files(
                pattern,
                routes,
                descriptions=described,
                accept_gap=resume is not None and resume.accept_gap,
                window_bytes=window_bytes,
                resume_options=_resume_options(resume, acknowledged),
            ),
            lambda run: files_start(pattern),
        )
    if isinstance(source, CanalSourceConfig):
        return _canal(source, routes, window_bytes)
    if isinstance(source, KafkaSourceConfig):
        return _kafka(config, source, routes, window_bytes)
    endpoint, start = endpoint_of(source), _start(source)

    def identity(run: RunIdentity) -> ReaderIdentity:
        return reader_of(source, run.job, run.incarnation)

    def receiver(run: RunIdentity, resume: Resume | None, acknowledged: AcknowledgedStatements) -> Receiver:
        accepted = resume or Resume()
        return BinlogReceiver.of_server(
            endpoint,
            identity(run),
            routes,
            accept_server=accepted.accept_server,
            accept_gap=accepted.accept_gap,
            window_bytes=window_bytes,
            resume_options=_resume_options(resume, acknowledged),
        )

    def first_position(run: RunIdentity) -> Position:
        with Server(endpoint) as server:
            check_log_coverage(server, routes.maps)
            return resolve_start(server, start, identity(run))

    return receiver, first_position


def _kafka(
    config: Config, source: KafkaSourceConfig, routes: Routes, window_bytes: int
) -> tuple[ReceiverFactory, Callable[[RunIdentity], Position]]:
    parts = kafka_parts(config, source, routes)

    def receiver(run: RunIdentity, resume: Resume | None, acknowledged: AcknowledgedStatements) -> Receiver:
        return parts.receiver(resume or Resume(), acknowledged, window_bytes)

    return receiver, lambda run: parts.first_position()


def kafka_parts(config: Config, source: KafkaSourceConfig, routes: Routes) -> KafkaParts:
    """Return what a Kafka job consists of. Raises: ConfigError - the client library is not installed; a type or a path
    of a channel is not valid.
    """
    try:
        from cdc.job.kafka_wiring import KafkaParts
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"A Kafka source needs the package confluent-kafka: {error}.",
            hint="Install it with `pip install 'spark-binlog-load[kafka]'`.",
        ) from error
    return KafkaParts(config.name, source, config.channels, routes)


def _canal(
    source: CanalSourceConfig, routes: Routes, window_bytes: int
) -> tuple[ReceiverFactory, Callable[[RunIdentity], Position]]:
    def receiver(run: RunIdentity, resume: Resume | None, acknowledged: AcknowledgedStatements) -> Receiver:
        accepted = resume or Resume()
        return CanalReceiver(
            lambda: client_of(source),
            routes,
            zone_us=source.zone_us,
            batch_size=source.batch_size,
            ring=ring_of(source),
            window_bytes=window_bytes,
            mysql=endpoint_of(source.mysql) if source.mysql else None,
            accept_gap=accepted.accept_gap,
            accept_server=accepted.accept_server,
            resume_options=_resume_options(resume, acknowledged),
        )

    return receiver, lambda run: first_position(client_of(source))


def descriptions_of(source: BinlogFilesSourceConfig) -> Descriptions | None:
    """Return the table descriptions of `source.schema`, for binlog files; None if it is not set."""
    schema = source.table_schema
    if schema is None:
        return None
    if schema.mysql is not None:
        return ServerDescriptions(endpoint_of(schema.mysql))
    return StatementDescriptions(schema.statements or "", schema.database or "")


def client_of(source: CanalSourceConfig) -> CanalClient:
    """Return a client of the destination that is not connected yet."""
    return CanalClient(
        zookeeper_addresses(source.zookeeper, source.destination) if source.zookeeper else source.servers,
        destination=source.destination,
        client_id=source.client_id,
        username=source.username,
        password=source.password.get_secret_value(),
        filter=source.filter,
    )


def ring_of(source: CanalSourceConfig) -> Ring:
    """Return the settings of the Canal server's ring buffer."""
    return Ring(source.buffer.entries, source.buffer.unit_bytes, source.buffer.mode)


def _snapshot(config: Config) -> SnapshotSettings | None:
    source, settings = config.source, config.snapshot
    position: Callable[[Server], Position]
    if isinstance(source, BinlogSourceConfig):
        endpoint, position = endpoint_of(source), Server.position
    elif isinstance(source, CanalSourceConfig) and source.mysql is not None:
        endpoint, position = endpoint_of(source.mysql), _canal_position
    else:
        return None
    return SnapshotSettings(
        endpoint,
        position,
        initial=source.start == "snapshot",
        step_s=settings.step,
        readers=settings.readers,
        rows_per_s=settings.rows_per_second,
        bytes_per_s=settings.bytes_per_second,
    )


def _canal_position(server: Server) -> CanalPosition:
    """Return the current position of the MySQL server, in the form of Canal's entries."""
    position = server.position()
    return CanalPosition(position.file, position.offset)


def _resume_options(resume: Resume | None, acknowledged: AcknowledgedStatements) -> ResumeOptions:
    return ResumeOptions(past_gap=resume is not None and resume.accept_gap, acknowledged=acknowledged)


def endpoint_of(source: MysqlServer) -> Endpoint:
    """Return address, login and TLS settings of a MySQL server."""
    tls = Tls(source.tls.mode, source.tls.ca_file, public_key=source.tls.public_key_file)
    host, password = source.host or "localhost", source.password.get_secret_value()
    return Endpoint(host, source.port, source.username, password, tls, source.socket_file)


def reader_of(source: BinlogSourceConfig, job: str, incarnation: str) -> ReaderIdentity:
    """Return the identity with which the job registers as a replica."""
    return ReaderIdentity.of(job, incarnation, source.host or "localhost", source.server_id)


def _start(source: BinlogSourceConfig) -> str | dict[str, object]:
    start = source.start
    if isinstance(start, StartAtFile):
        return {"file": start.file, "offset": start.offset}
    if isinstance(start, StartAtGtids):
        return {"gtid_set": start.gtid_set}
    return "latest" if start == "snapshot" else start  # the stream starts before the first chunk is read
