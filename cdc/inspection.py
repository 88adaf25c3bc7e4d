"""``cdc check`` and ``cdc ddl``: a job file's parts, built and looked at without a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from cdc.assembly import Assembly, assemble, client_of, descriptions_of, endpoint_of, reader_of, ring_of
from cdc.binlog.catalog import mapped_tables, table_schemas
from cdc.binlog.connection import Endpoint
from cdc.binlog.server import Server
from cdc.canal_checks import canal_findings, ring_findings, source_findings
from cdc.config import BinlogFilesSource, BinlogSource, CanalSource, Config
from cdc.errors import CdcError, ConfigError
from cdc.preflight import check_files, check_read_for_us, check_source, finding_of, run_checks
from cdc.schema import TableSchema
from channels.sinks.base import Finding, TargetTable


def check_job(config: Config, incarnation: str = "") -> tuple[Finding, ...]:
    """Everything about source, tables and targets that would stop the job.

    ``incarnation``: of the job that exists already, so that its own reader is not taken for a stranger.
    Raises: ConfigError - a part is not in this version.
    """
    with _assembled(config) as parts:
        findings = _source_findings(config, incarnation, parts)
        endpoint = _asked(config)
        try:
            schemas = _schemas(endpoint, parts) if endpoint is not None else []
        except CdcError:
            schemas = []  # the server cannot be asked, which is a finding already; of itself the sink still tells
        return tuple(dict.fromkeys([*findings, *_target_findings(schemas, parts)]))


def _source_findings(config: Config, incarnation: str, parts: Assembly) -> tuple[Finding, ...]:
    source = config.source
    if isinstance(source, BinlogFilesSource):
        return (*check_files(source.location), *_description_findings(config, source))
    if isinstance(source, CanalSource):
        return _canal_findings(config, source, parts)
    sources = [channel.source for channel in config.channels]
    return check_source(endpoint_of(source), reader_of(source, config.name, incarnation), parts.routes, sources)


def _canal_findings(config: Config, source: CanalSource, parts: Assembly) -> tuple[Finding, ...]:
    sources = [channel.source for channel in config.channels]
    commit, endpoint = config.commit, _asked(config)
    checks: list[Callable[[], Iterable[Finding]]] = [
        partial(
            canal_findings,
            client_of(source),
            filter=source.filter,
            patterns=any("*" in name for name in sources),
            create_tables=config.sink.create_tables,
            mysql=endpoint is not None,
        ),
        partial(ring_findings, ring_of(source), min_bytes=commit.min_bytes, max_bytes=commit.max_bytes),
    ]
    if endpoint is not None:
        checks.append(partial(check_read_for_us, endpoint, parts.routes, sources))
        checks.append(partial(_unreadable, endpoint, parts))
    return run_checks(checks)


def _unreadable(endpoint: Endpoint, parts: Assembly) -> tuple[Finding, ...]:
    schemas = [(schema, parts.routes.reads(schema).columns) for schema in _schemas(endpoint, parts)]
    with Server(endpoint) as server:
        return tuple(source_findings(server, schemas))


def _asked(config: Config) -> Endpoint | None:
    """The MySQL server that can be asked for tables."""
    source = config.source
    if isinstance(source, CanalSource):
        return endpoint_of(source.mysql) if source.mysql else None
    return endpoint_of(source) if isinstance(source, BinlogSource) else None


def _description_findings(config: Config, source: BinlogFilesSource) -> tuple[Finding, ...]:
    """Return what is wrong with `source.schema`."""
    descriptions = descriptions_of(source)
    if descriptions is None:
        return ()
    try:
        descriptions.open()
    except CdcError as error:
        return (finding_of(error),)
    found = []
    for channel in config.channels:
        try:
            if "*" not in channel.source:
                database, _, table = channel.source.partition(".")
                descriptions.table((database, table))
        except CdcError as error:
            found.append(finding_of(error))
    return tuple(found)


def ddl_of_job(config: Config) -> tuple[str, ...]:
    """The statements that create the targets, in order of the source tables.

    Raises: ConfigError - the source has no server to ask; SourceUnavailable, SchemaMismatch, TargetMismatch.
    """
    endpoint = _asked(config)
    if endpoint is None:
        raise ConfigError(
            f"A source of type {config.source.type} has no server that could be asked for its tables.",
            mend="Give source.mysql to a Canal source; of files, set `create_tables: true`: the tables are then made "
            "as their rows come.",
        )
    with _assembled(config) as parts:
        return tuple(parts.sink.ddl(_target(schema, parts)) for schema in _schemas(endpoint, parts))


def _schemas(endpoint: Endpoint, parts: Assembly) -> list[TableSchema]:
    """The mapped tables as they are now, by name."""
    with Server(endpoint) as server:
        schemas = table_schemas(server, mapped_tables(server, parts.routes.maps))
    return [schema for _, schema in sorted(schemas.items())]


def _target_findings(schemas: list[TableSchema], parts: Assembly) -> list[Finding]:
    """What keeps a mapping from its table, and what the sink says of the others."""
    targets, found = [], []
    for schema in schemas:
        try:
            targets.append(_target(schema, parts))
        except CdcError as error:
            found.append(finding_of(error))
    return [*found, *run_checks([partial(parts.sink.check, targets)])]


def _target(schema: TableSchema, parts: Assembly) -> TargetTable:
    mapping = parts.routes.mapping_for(schema.database, schema.table)
    assert mapping is not None  # only mapped tables were asked for
    return mapping.target_table(schema, parts.types)


@contextmanager
def _assembled(config: Config) -> Iterator[Assembly]:
    parts = assemble(config)
    try:
        yield parts
    finally:
        parts.close()
