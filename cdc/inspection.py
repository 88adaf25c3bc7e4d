"""``cdc check`` and ``cdc ddl``: a job file's parts, built and looked at without a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cdc.assembly import Assembly, assemble, endpoint_of
from cdc.binlog.server import Server
from cdc.config import BinlogSource, Config
from cdc.errors import ConfigError
from cdc.preflight import mapped_schemas, settings_findings, table_findings, target_of
from channels.sinks.base import Finding


def check_job(config: Config) -> tuple[Finding, ...]:
    """Everything about source, tables and targets that would stop the job.

    Raises: ConfigError - a part is not in this version; SourceUnavailable - the server cannot be asked.
    """
    with _assembled(config) as parts:
        if not isinstance(config.source, BinlogSource):
            return ()  # files are looked at when they are read; their tables are told in them
        with Server(endpoint_of(config.source)) as server:
            return (*settings_findings(server), *table_findings(server, parts.routes, parts.sink, parts.types))


def ddl_of_job(config: Config) -> tuple[str, ...]:
    """The statements that create the targets, in order of the source tables.

    Raises: ConfigError - the source has no server to ask; SourceUnavailable, SchemaMismatch, TargetMismatch.
    """
    if not isinstance(config.source, BinlogSource):
        raise ConfigError(
            "A source of files has no server that could be asked for its tables.",
            mend="Set `create_tables: true`: the tables are then made as their rows come.",
        )
    with _assembled(config) as parts, Server(endpoint_of(config.source)) as server:
        schemas = mapped_schemas(server, parts.routes)
        return tuple(parts.sink.ddl(target_of(schema, parts.routes, parts.types)) for schema in schemas)


@contextmanager
def _assembled(config: Config) -> Iterator[Assembly]:
    parts = assemble(config)
    try:
        yield parts
    finally:
        parts.close()
