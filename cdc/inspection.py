"""``cdc check`` and ``cdc ddl``: a job file's parts, built and looked at without a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from cdc.assembly import Assembly, assemble, endpoint_of, reader_of
from cdc.binlog.catalog import mapped_tables, table_schemas
from cdc.binlog.server import Server
from cdc.config import BinlogFilesSource, BinlogSource, Config
from cdc.errors import CdcError, ConfigError
from cdc.preflight import check_files, check_source, finding_of, run_checks
from cdc.schema import TableSchema
from channels.sinks.base import Finding, TargetTable


def check_job(config: Config, incarnation: str = "") -> tuple[Finding, ...]:
    """Everything about source, tables and targets that would stop the job.

    ``incarnation``: of the job that exists already, so that its own reader is not taken for a stranger.
    Raises: ConfigError - a part is not in this version.
    """
    with _assembled(config) as parts:
        findings = _source_findings(config, incarnation, parts)
        if not isinstance(config.source, BinlogSource):
            return findings
        try:
            schemas = _schemas(config.source, parts)
        except CdcError:
            return findings  # the server cannot be asked, which is a finding already
        return tuple(dict.fromkeys([*findings, *_target_findings(schemas, parts)]))


def check_source_of(config: Config, incarnation: str = "") -> tuple[Finding, ...]:
    """The part of ``check_job`` that looks at the source alone: what a start looks at."""
    with _assembled(config) as parts:
        return _source_findings(config, incarnation, parts)


def _source_findings(config: Config, incarnation: str, parts: Assembly) -> tuple[Finding, ...]:
    source = config.source
    if isinstance(source, BinlogFilesSource):
        return check_files(source.location)
    if not isinstance(source, BinlogSource):
        return ()
    sources = [channel.source for channel in config.channels]
    return check_source(endpoint_of(source), reader_of(source, config.name, incarnation), parts.routes, sources)


def ddl_of_job(config: Config) -> tuple[str, ...]:
    """The statements that create the targets, in order of the source tables.

    Raises: ConfigError - the source has no server to ask; SourceUnavailable, SchemaMismatch, TargetMismatch.
    """
    if not isinstance(config.source, BinlogSource):
        raise ConfigError(
            "A source of files has no server that could be asked for its tables.",
            mend="Set `create_tables: true`: the tables are then made as their rows come.",
        )
    with _assembled(config) as parts:
        return tuple(parts.sink.ddl(_target(schema, parts)) for schema in _schemas(config.source, parts))


def _schemas(source: BinlogSource, parts: Assembly) -> list[TableSchema]:
    """The mapped tables as they are now, by name."""
    with Server(endpoint_of(source)) as server:
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
