"""A job file's parts, built: which class stands behind which setting is said here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdc.binlog.connection import Endpoint, ReaderIdentity, Tls
from cdc.binlog.server import Server
from cdc.config import BinlogFilesSource, BinlogSource, Channel, Config, DeltaSink, DorisSink, StartAtFile, StartAtGtids
from cdc.errors import ConfigError
from cdc.position import Position
from cdc.receiver.base import Receiver
from cdc.receiver.binlog import BinlogReceiver
from cdc.receiver.feeds import files_start
from cdc.receiver.start import resolve_start
from cdc.receiver.tables import Resumption
from cdc.status import Resume
from channels.mapping import ExpressionTypes, Mapping, Routes, SparkExpressionTypes
from channels.sinks import delta, doris, starrocks
from channels.sinks.base import Sink
from channels.task import RunIdentity, SparkTaskRunner, TaskRunner
from spark.session import SessionHolder


@dataclass(frozen=True, slots=True)
class Assembly:
    """Sink and runner outlive many runs of the Consumer; each run has a Receiver of its own."""

    routes: Routes
    sink: Sink
    runner: TaskRunner
    receiver: Callable[[RunIdentity, Resume | None], Receiver]  # Resume: what the user agreed to, right after a resume
    resolve_start: Callable[[RunIdentity], Position]
    types: ExpressionTypes | None = None

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
        runner=SparkTaskRunner(sessions, sink, config.tasks.parallel),
        receiver=receiver,
        resolve_start=start,
        types=SparkExpressionTypes(sessions),
    )


def _mapping(channel: Channel) -> Mapping:
    options = channel.tables.model_dump(exclude_none=True) if channel.tables else {}
    return Mapping(channel.source, channel.target, channel.key or (), channel.columns, channel.filter, options)


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
        )
    return starrocks.StarrocksSink(
        [str(address) for address in sink.fe],
        username=sink.username,
        password=sink.password.get_secret_value(),
        databases=[channel.target.partition(".")[0] for channel in config.channels],
        sql_port=sink.sql_port,
        multi_table=sink.multi_table,
        create_tables=sink.create_tables,
        tables=sink.tables.model_dump(),
    )


def _source(
    config: Config, routes: Routes
) -> tuple[Callable[[RunIdentity, Resume | None], Receiver], Callable[[RunIdentity], Position]]:
    source, window_bytes = config.source, config.memory.window
    if isinstance(source, BinlogFilesSource):
        pattern = source.location
        return (
            lambda run, resume: BinlogReceiver.of_files(
                pattern,
                routes,
                accept_gap=resume is not None and resume.accept_gap,
                window_bytes=window_bytes,
                resumption=_resumption(resume),
            ),
            lambda run: files_start(pattern),
        )
    if not isinstance(source, BinlogSource):
        raise _not_yet("source", source.type, "binlog or binlog_files")
    endpoint, start = endpoint_of(source), _start(source)

    def identity(run: RunIdentity) -> ReaderIdentity:
        return reader_of(source, run.job, run.incarnation)

    def receiver(run: RunIdentity, resume: Resume | None) -> Receiver:
        agreed = resume or Resume()
        return BinlogReceiver.of_server(
            endpoint,
            identity(run),
            routes,
            accept_server=agreed.accept_server,
            accept_gap=agreed.accept_gap,
            window_bytes=window_bytes,
            resumption=_resumption(resume),
        )

    def first_position(run: RunIdentity) -> Position:
        with Server(endpoint) as server:
            return resolve_start(server, start, identity(run))

    return receiver, first_position


def _resumption(resume: Resume | None) -> Resumption:
    return Resumption(behind_ddl=resume is not None, past_ddl=resume is not None and resume.past_ddl)


def endpoint_of(source: BinlogSource) -> Endpoint:
    """Where and how the source server is reached."""
    tls = Tls(source.tls.mode, source.tls.ca_file)
    return Endpoint(source.host, source.port, source.username, source.password.get_secret_value(), tls)


def reader_of(source: BinlogSource, job: str, incarnation: str) -> ReaderIdentity:
    """Who we are among the server's replicas."""
    return ReaderIdentity.of(job, incarnation, source.host, source.server_id)


def _start(source: BinlogSource) -> str | dict[str, object]:
    start = source.start
    if isinstance(start, StartAtFile):
        return {"file": start.file, "offset": start.offset}
    if isinstance(start, StartAtGtids):
        return {"gtid_set": start.gtid_set}
    if start == "snapshot":
        raise ConfigError(
            "`source.start: snapshot` is not in this version.",
            mend="Set `source.start` to latest, earliest, {file: ..., offset: ...} or {gtid_set: ...}.",
        )
    return start


def _not_yet(what: str, kind: str, known: str) -> ConfigError:
    return ConfigError(f"`{what}.type: {kind}` is not in this version.", mend=f"Set it to {known}.")
