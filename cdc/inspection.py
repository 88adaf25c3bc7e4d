"""``cdc check`` and ``cdc ddl``: a job file's parts, built and looked at without a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from cdc.assembly import Assembly, assemble, client_of, descriptions_of, endpoint_of, reader_of, ring_of
from cdc.binlog.catalog import mapped_tables, table_schemas
from cdc.binlog.connection import Endpoint
from cdc.binlog.kernels import refuse_untrusted_caches
from cdc.binlog.server import Server
from cdc.canal_checks import canal_findings, ring_findings, source_findings
from cdc.checkpoint import Checkpoint
from cdc.config import BinlogFilesSource, BinlogSource, CanalSource, Config
from cdc.errors import CdcError, ConfigError
from cdc.names import parse_table
from cdc.preflight import CHECK_S, check_files, check_read_for_us, check_source, finding_of, run_checks
from cdc.schema import TableSchema
from cdc.targets import lost_targets_of, sources_by_target
from channels.sinks.base import Finding, TargetTable
from spark.java import check_spark
from spark.settings import has_authentication


def check_job(config: Config, incarnation: str = "", begun: Checkpoint | None = None) -> tuple[Finding, ...]:
    """Everything about source, tables and targets that would stop the job.

    ``incarnation``: of the job that exists already, so that its own reader is not taken for a stranger.
    ``begun``: its newest checkpoint. With one, tables of a pattern that cannot be mapped are left out: warnings.
    Raises: ConfigError - a part is not in this version; another user can change the cache folder.
    """
    refuse_untrusted_caches()
    with _assembled(config) as parts:
        findings = (*_spark_findings(config), *_source_findings(config, incarnation, parts))
        endpoint = _asked(config)
        try:
            schemas = _schemas(endpoint, parts) if endpoint is not None else []
        except CdcError:
            schemas = []  # the server cannot be asked, which is a finding already; of itself the sink still tells
        if begun is not None:
            schemas = [schema for schema in schemas if schema.name not in begun.left_out]
        lost = _lost_findings(config, incarnation, parts, begun) if begun is not None else ()
        return tuple(dict.fromkeys([*findings, *_target_findings(schemas, parts, begun), *lost]))


def _lost_findings(config: Config, incarnation: str, parts: Assembly, begun: Checkpoint) -> tuple[Finding, ...]:
    """Return a finding for each target that is not the table that the job wrote."""

    def compare() -> Iterator[Finding]:
        routed = sources_by_target(parts.routes, [begun])
        for lost in lost_targets_of(parts.sink, config.name, incarnation, begun, routed):
            hint = "Bring it back (a file system that is not mounted?)."
            if parts.snapshot is not None:
                hint += f" If it is lost, `cdc resume {config.name} --reload-missing` loads its table again."
            yield Finding(f"The sink does not hold what the job has committed: {lost}.", hint)

    return run_checks([compare])


def _spark_findings(config: Config) -> tuple[Finding, ...]:
    """What keeps Spark from its start, and a cluster that anybody on the network can use."""
    spark = config.spark
    found = run_checks([partial(_needs, spark.remote)])
    master = spark.master or "local[*]"
    if spark.remote is None and not has_authentication(master, spark.conf):
        unprotected = Finding(
            f"Spark at {master} does not authenticate: whoever reaches the ports of the driver can read rows and run "
            "code as this user.",
            "Set `spark.authenticate: true` and `spark.authenticate.secret: ${SPARK_SECRET}` in `spark.conf`, and the "
            "same secret on every node of a standalone cluster (YARN and Kubernetes create it themselves).",
            fatal=False,
        )
        return (*found, unprotected)
    return found


def _needs(remote: str | None) -> tuple[Finding, ...]:
    check_spark(remote)
    return ()


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
            patterns=any(parse_table(name).is_pattern for name in sources),
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
    schemas = [
        (schema, parts.routes.reads(schema).columns) for schema in _schemas(endpoint, parts) if _can_map(schema, parts)
    ]
    with Server(endpoint.within(CHECK_S)) as server:
        return tuple(source_findings(server, schemas))


def _can_map(schema: TableSchema, parts: Assembly) -> bool:
    """Return whether the mapping fits the table; ``_target_findings`` reports why not."""
    try:
        parts.routes.reads(schema)
    except CdcError:
        return False
    return True


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
    with Server(endpoint.within(CHECK_S)) as server:
        names = mapped_tables(server, parts.routes.maps)
        schemas = table_schemas(server, names, parts.routes.leave_out)
    return [schema for _, schema in sorted(schemas.items())]


def _target_findings(schemas: list[TableSchema], parts: Assembly, begun: Checkpoint | None) -> list[Finding]:
    """What keeps a mapping from its table, and what the sink says of the others."""
    targets, found = [], []
    for schema in schemas:
        try:
            targets.append(_target(schema, parts))
        except CdcError as error:
            if not parts.routes.leave_out(schema.database, schema.table, error):
                found.append(finding_of(error))
    left_out = {**parts.routes.left_out, **(begun.left_out if begun else {})}
    found += [Finding(one.reason, one.mend, fatal=begun is None) for one in left_out.values()]
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
