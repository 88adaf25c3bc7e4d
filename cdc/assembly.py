"""A job file's parts, built: which class stands behind which setting is said here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdc.binlog.connection import Endpoint, ReaderIdentity, Tls
from cdc.binlog.server import Server
from cdc.canal.client import CanalClient, zookeeper_addresses
from cdc.config import (
    BinlogFilesSource,
    BinlogSource,
    CanalSource,
    Channel,
    Config,
    DeltaSink,
    DorisSink,
    MysqlServer,
    StartAtFile,
    StartAtGtids,
)
from cdc.names import parse_table
from cdc.parts import SnapshotSettings
from cdc.position import CanalPosition, Position
from cdc.receiver.base import Receiver
from cdc.receiver.binlog import BinlogReceiver
from cdc.receiver.canal import CanalReceiver, first_place
from cdc.receiver.feeds import files_start
from cdc.receiver.fetching import Ring
from cdc.receiver.file_tables import Descriptions, ServerDescriptions, StatementDescriptions
from cdc.receiver.logged import refuse_unlogged
from cdc.receiver.start import resolve_start
from cdc.receiver.tables import Resumption
from cdc.status import Resume
from channels.mapping import ExpressionTypes, Mapping, Routes, SparkExpressionTypes
from channels.sinks import delta, doris, starrocks
from channels.sinks.base import Sink
from channels.stall import STALL_S
from channels.task import RunIdentity, SparkTaskRunner, TaskRunner
from spark.session import SessionHolder

Passed = dict[Position, bool]  # statements that resumes went behind, with --past-ddl or without
ReceiverFactory = Callable[[RunIdentity, Resume | None, Passed], Receiver]  # Resume: what was agreed to just now


@dataclass(frozen=True, slots=True)
class Assembly:
    """Sink and runner outlive many runs of the Consumer; each run has a Receiver of its own."""

    routes: Routes
    sink: Sink
    runner: TaskRunner
    receiver: ReceiverFactory
    resolve_start: Callable[[RunIdentity], Position]
    types: ExpressionTypes | None = None
    snapshot: SnapshotSettings | None = None  # None: the source has nothing but its stream

    def close(self) -> None:
        """Let threads, sessions and connections go."""
        self.runner.close()
        self.sink.close()


def assemble(config: Config) -> Assembly:
    """Build what ``config`` describes. Nothing is connected or started yet. Raises: ConfigError."""
    routes = Routes([_mapping(channel) for channel in config.channels])
    sessions = SessionHolder(
        f"cdc {config.name}", config.spark.master or "local[*]", config.spark.conf, config.spark.remote
    )
    sink = _sink(config)
    receiver, start = _source(config, routes)
    return Assembly(
        routes=routes,
        sink=sink,
        runner=SparkTaskRunner(sessions, sink, config.tasks.parallel, _stall_s(config)),
        receiver=receiver,
        resolve_start=start,
        types=SparkExpressionTypes(sessions),
        snapshot=_snapshot(config),
    )


def _stall_s(config: Config) -> float:
    """Twice what one load may take by the job file: a Task that waits for its sink is not one without progress."""
    return STALL_S if isinstance(config.sink, DeltaSink) else max(STALL_S, 2 * config.sink.timeouts.load)


def _mapping(channel: Channel) -> Mapping:
    options = channel.tables.model_dump(exclude_none=True) if channel.tables else {}
    target = parse_table(channel.target).plain
    key, exclude = channel.key or (), channel.exclude or ()
    return Mapping(channel.source, target, key, channel.columns, channel.filter, options, exclude)


def _sink(config: Config) -> Sink:
    sink = config.sink
    if isinstance(sink, DeltaSink):
        return delta.DeltaSink(
            sink.location,
            create_tables=sink.create_tables,
            retention_s=sink.retention,
            merge_memory_bytes=config.memory.merge,
        )
    if isinstance(sink, DorisSink):
        return doris.DorisSink(
            [str(address) for address in sink.fe],
            username=sink.username,
            password=sink.password.get_secret_value(),
            sql_port=sink.sql_port,
            two_phase_commit=sink.two_phase_commit,
            create_tables=sink.create_tables,
            tables=sink.tables.model_dump(),
            backends=[str(address) for address in sink.be],
            compression=None if sink.compression == "off" else sink.compression,
            connect_timeout_s=sink.timeouts.connect,
            answer_timeout_s=sink.timeouts.load,
            connections=sink.connections,
        )
    return starrocks.StarrocksSink(
        [str(address) for address in sink.fe],
        username=sink.username,
        password=sink.password.get_secret_value(),
        databases=[parse_table(channel.target).database for channel in config.channels],
        sql_port=sink.sql_port,
        multi_table=sink.multi_table,
        create_tables=sink.create_tables,
        tables=sink.tables.model_dump(),
        connect_timeout_s=sink.timeouts.connect,
        answer_timeout_s=sink.timeouts.load,
        connections=sink.connections,
    )


def _source(config: Config, routes: Routes) -> tuple[ReceiverFactory, Callable[[RunIdentity], Position]]:
    source, window_bytes = config.source, config.memory.window
    if isinstance(source, BinlogFilesSource):
        pattern, described = source.location, descriptions_of(source)
        return (
            lambda run, resume, passed: BinlogReceiver.of_files(
                pattern,
                routes,
                descriptions=described,
                accept_gap=resume is not None and resume.accept_gap,
                window_bytes=window_bytes,
                resumption=_resumption(resume, passed),
            ),
            lambda run: files_start(pattern),
        )
    if isinstance(source, CanalSource):
        return _canal(source, routes, window_bytes)
    endpoint, start = endpoint_of(source), _start(source)

    def identity(run: RunIdentity) -> ReaderIdentity:
        return reader_of(source, run.job, run.incarnation)

    def receiver(run: RunIdentity, resume: Resume | None, passed: Passed) -> Receiver:
        agreed = resume or Resume()
        return BinlogReceiver.of_server(
            endpoint,
            identity(run),
            routes,
            accept_server=agreed.accept_server,
            accept_gap=agreed.accept_gap,
            window_bytes=window_bytes,
            resumption=_resumption(resume, passed),
        )

    def first_position(run: RunIdentity) -> Position:
        with Server(endpoint) as server:
            refuse_unlogged(server, routes.maps)
            return resolve_start(server, start, identity(run))

    return receiver, first_position


def _canal(
    source: CanalSource, routes: Routes, window_bytes: int
) -> tuple[ReceiverFactory, Callable[[RunIdentity], Position]]:
    def receiver(run: RunIdentity, resume: Resume | None, passed: Passed) -> Receiver:
        agreed = resume or Resume()
        return CanalReceiver(
            lambda: client_of(source),
            routes,
            zone_us=source.zone_us,
            batch_size=source.batch_size,
            ring=ring_of(source),
            window_bytes=window_bytes,
            mysql=endpoint_of(source.mysql) if source.mysql else None,
            accept_gap=agreed.accept_gap,
            accept_server=agreed.accept_server,
            resumption=_resumption(resume, passed),
        )

    return receiver, lambda run: first_place(client_of(source))


def descriptions_of(source: BinlogFilesSource) -> Descriptions | None:
    """Return what `source.schema` says of the tables of binlog files; None where it is not there."""
    schema = source.table_schema
    if schema is None:
        return None
    if schema.mysql is not None:
        return ServerDescriptions(endpoint_of(schema.mysql))
    return StatementDescriptions(schema.statements or "", schema.database or "")


def client_of(source: CanalSource) -> CanalClient:
    """A client of the destination, not connected yet."""
    return CanalClient(
        zookeeper_addresses(source.zookeeper, source.destination) if source.zookeeper else source.servers,
        destination=source.destination,
        client_id=source.client_id,
        username=source.username,
        password=source.password.get_secret_value(),
        filter=source.filter,
    )


def ring_of(source: CanalSource) -> Ring:
    """The server's ring buffer, as the job file tells it."""
    return Ring(source.buffer.entries, source.buffer.unit_bytes, source.buffer.mode)


def _snapshot(config: Config) -> SnapshotSettings | None:
    source, wanted = config.source, config.snapshot
    position: Callable[[Server], Position]
    if isinstance(source, BinlogSource):
        endpoint, position = endpoint_of(source), Server.position
    elif isinstance(source, CanalSource) and source.mysql is not None:
        endpoint, position = endpoint_of(source.mysql), _canal_position
    else:
        return None
    return SnapshotSettings(
        endpoint,
        position,
        initial=source.start == "snapshot",
        turn_s=wanted.turn,
        readers=wanted.readers,
        rows_per_s=wanted.rows_per_second,
        bytes_per_s=wanted.bytes_per_second,
    )


def _canal_position(server: Server) -> CanalPosition:
    """Where the server stands that Canal reads from, as Canal's own entries would tell it."""
    place = server.position()
    return CanalPosition(place.file, place.offset)


def _resumption(resume: Resume | None, passed: Passed) -> Resumption:
    if resume is None:
        return Resumption(passed=passed)
    return Resumption(behind_ddl=True, past_ddl=resume.past_ddl, past_gap=resume.accept_gap, passed=passed)


def endpoint_of(source: MysqlServer) -> Endpoint:
    """Where and how a MySQL server is reached."""
    tls = Tls(source.tls.mode, source.tls.ca_file, public_key=source.tls.public_key_file)
    host, password = source.host or "localhost", source.password.get_secret_value()
    return Endpoint(host, source.port, source.username, password, tls, source.socket_file)


def reader_of(source: BinlogSource, job: str, incarnation: str) -> ReaderIdentity:
    """Who we are among the server's replicas."""
    return ReaderIdentity.of(job, incarnation, source.host or "localhost", source.server_id)


def _start(source: BinlogSource) -> str | dict[str, object]:
    start = source.start
    if isinstance(start, StartAtFile):
        return {"file": start.file, "offset": start.offset}
    if isinstance(start, StartAtGtids):
        return {"gtid_set": start.gtid_set}
    return "latest" if start == "snapshot" else start  # the stream begins before the first chunk is read
