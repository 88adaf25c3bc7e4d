"""``cdc check`` and ``cdc ddl``: create the parts of a job and check them without a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from cdc.checks.canal import canal_findings, ring_findings, source_findings
from cdc.checks.ddl_preview import Preview, preview_change, preview_statement
from cdc.checks.mysql import CHECK_S, check_files, check_read_for_us, check_source, finding_of, run_checks
from cdc.config.kafka_models import KafkaSourceConfig
from cdc.config.models import Config
from cdc.config.source_models import BinlogFilesSourceConfig, BinlogSourceConfig, CanalSourceConfig
from cdc.errors import CdcError, ConfigError
from cdc.job.spark_start import remote_of
from cdc.job.wiring import Components, build, client_of, descriptions_of, endpoint_of, kafka_parts, reader_of, ring_of
from cdc.model.schema import TableSchema
from cdc.model.table_names import parse_table
from cdc.mysql.catalog import mapped_tables, table_schemas
from cdc.mysql.connection import Endpoint
from cdc.mysql.ddl_words import as_written, in_lower_case
from cdc.mysql.server import Server
from cdc.mysql.values.kernels import refuse_untrusted_caches
from cdc.pipeline.targets import lost_targets_of, sources_by_target
from cdc.state.base import Checkpoint, JobRecord
from channels.mapping import SparkExpressionTypes
from channels.routes import RESTORED
from channels.routes import log as routes_log
from channels.sinks.base import Finding, TargetTable
from channels.sinks.stream_load.time_limit import TimeLimit
from channels.task import RunIdentity
from spark.java import check_spark
from spark.settings import has_authentication

if TYPE_CHECKING:
    from cdc.checks.kafka import Sample
    from spark.session import SessionHolder


def check_job(
    config: Config,
    incarnation: str = "",
    checkpoint: Checkpoint | None = None,
    *,
    sessions: SessionHolder | None = None,
    on_sample: Callable[[Sample], None] = lambda sample: None,
) -> tuple[Finding, ...]:
    """Return everything about source, tables and targets that would stop the job.

    ``incarnation``: of an existing job, so that its own binlog connection is not reported as another reader.
    ``checkpoint``: its newest one. With it, tables of a pattern that cannot be mapped are warnings only, because the
    job leaves them out. ``sessions``: the Spark session that the job will use; it is not closed. A process must not
    start two. ``on_sample`` gets a row of each topic of a Kafka job, beside its target columns.
    Raises: ConfigError - another user can change the cache folder.
    """
    refuse_untrusted_caches()
    with _built(config, sessions) as components, _without_log(routes_log):
        findings = (*_spark_findings(config), *_source_findings(config, incarnation, components, checkpoint, on_sample))
        endpoint = _mysql_endpoint(config)
        try:
            schemas = _schemas(endpoint, components) if endpoint is not None else _described_rows(config, components)
        except CdcError:
            schemas = []  # the failed connection is a finding already; the sink is still checked
        if checkpoint is not None:
            schemas = [schema for schema in schemas if schema.name not in checkpoint.left_out]
        lost = _lost_findings(config, incarnation, components, checkpoint) if checkpoint is not None else ()
        return tuple(dict.fromkeys([*findings, *_target_findings(schemas, components, checkpoint), *lost]))


def _lost_findings(
    config: Config, incarnation: str, components: Components, checkpoint: Checkpoint
) -> tuple[Finding, ...]:
    """Return a finding for each target that is not the table that the job wrote."""

    def compare() -> Iterator[Finding]:
        routed = sources_by_target(components.routes, [checkpoint])
        for lost in lost_targets_of(components.sink, config.name, incarnation, checkpoint, routed):
            hint = "Restore it: the file system may not be mounted."
            if components.snapshot is not None:
                hint += f" If it is lost, run `cdc resume {config.name} --reload-missing` to load its table again."
            yield Finding(f"The sink does not have the committed data of the job: {lost}.", hint)

    return run_checks([compare])


def _spark_findings(config: Config) -> tuple[Finding, ...]:
    """Return what prevents the start of Spark, and a warning about a cluster without authentication."""
    spark = config.spark
    remote, master = remote_of(spark), spark.master or "local[*]"
    found = run_checks([partial(_needs, remote)])
    if remote is None and not has_authentication(master, spark.conf):
        unprotected = Finding(
            f"Spark at {master} does not authenticate: any program that reaches the ports of the driver can read rows "
            "and run code as this user.",
            "Set `spark.authenticate: true` and `spark.authenticate.secret: ${SPARK_SECRET}` in `spark.conf`, and the "
            "same secret on every node of a standalone cluster (YARN and Kubernetes create the secret).",
            fatal=False,
        )
        return (*found, unprotected)
    return found


def _needs(remote: str | None) -> tuple[Finding, ...]:
    check_spark(remote)
    return ()


def _source_findings(
    config: Config,
    incarnation: str,
    components: Components,
    checkpoint: Checkpoint | None,
    on_sample: Callable[[Sample], None],
) -> tuple[Finding, ...]:
    source = config.source
    if isinstance(source, BinlogFilesSourceConfig):
        return (*check_files(source.location), *_description_findings(config, source))
    if isinstance(source, CanalSourceConfig):
        return _canal_findings(config, source, components)
    if isinstance(source, KafkaSourceConfig):
        from cdc.checks.kafka import KafkaCheck  # the client library is an optional dependency

        check = KafkaCheck(kafka_parts(config, source, components.routes), components.routes, on_sample)
        return run_checks([partial(check.findings, is_new=checkpoint is None)])
    sources = [channel.source for channel in config.channels]
    identity = reader_of(source, config.name, incarnation)
    found = check_source(endpoint_of(source), identity, components.routes, sources)
    if checkpoint is None and not isinstance(source.start, str) and not any(one.fatal for one in found):
        found += run_checks([partial(_start_findings, components, RunIdentity(config.name, incarnation, 0))])
    return found


def _start_findings(components: Components, run: RunIdentity) -> tuple[Finding, ...]:
    """Raise an error if a new job cannot start at the position of `source.start`."""
    components.resolve_start(run)
    return ()


def _described_rows(config: Config, components: Components) -> list[TableSchema]:
    """Return the tables that the channels of a Kafka job describe by `fields`."""
    if not isinstance(config.source, KafkaSourceConfig):
        return []
    return [*kafka_parts(config, config.source, components.routes).schemas()]


def _canal_findings(config: Config, source: CanalSourceConfig, components: Components) -> tuple[Finding, ...]:
    sources = [channel.source for channel in config.channels]
    commit, endpoint = config.commit, _mysql_endpoint(config)
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
        checks.append(partial(check_read_for_us, endpoint, components.routes, sources))
        checks.append(partial(_unreadable, endpoint, components))
    return run_checks(checks)


def _unreadable(endpoint: Endpoint, components: Components) -> tuple[Finding, ...]:
    schemas = [
        (schema, components.routes.reads(schema).columns)
        for schema in _schemas(endpoint, components)
        if _can_map(schema, components)
    ]
    with Server(endpoint.within(CHECK_S)) as server:
        return tuple(source_findings(server, schemas))


def _can_map(schema: TableSchema, components: Components) -> bool:
    """Return whether the mapping matches the table; ``_target_findings`` reports why not."""
    try:
        components.routes.reads(schema)
    except CdcError:
        return False
    return True


def _mysql_endpoint(config: Config) -> Endpoint | None:
    """Return the MySQL server that has the tables; None if the job file has none."""
    source = config.source
    if isinstance(source, CanalSourceConfig):
        return endpoint_of(source.mysql) if source.mysql else None
    return endpoint_of(source) if isinstance(source, BinlogSourceConfig) else None


def _description_findings(config: Config, source: BinlogFilesSourceConfig) -> tuple[Finding, ...]:
    """Return the errors in `source.schema`."""
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
    """Return the statements that create the targets, in the order of the source tables.

    Raises: ConfigError - the source has no MySQL server; SourceUnavailable, SchemaMismatch, TargetMismatch.
    """
    endpoint = _described_by(config)
    with _built(config) as components:
        return tuple(components.sink.ddl(_target(schema, components)) for schema in _schemas(endpoint, components))


def preview_of_job(config: Config, statement: str, incarnation: str, checkpoint: Checkpoint | None) -> Preview:
    """Return what the job would do with ``statement``. Change nothing.

    ``incarnation``, ``checkpoint``: of the job, if it has run.
    Raises: ConfigError - the source has no MySQL server, or its statements are not followed; SourceUnavailable,
    SchemaMismatch, SinkUnavailable.
    """
    if isinstance(config.source, KafkaSourceConfig):
        raise ConfigError(
            f"A job that reads from {config.source.type.capitalize()} pauses before each DDL statement.",
            hint="Use a source of type binlog.",
        )
    endpoint = _described_by(config)
    with _built(config) as components, Server(endpoint.within(CHECK_S)) as server:
        names = mapped_tables(server, components.routes.maps)
        schemas = table_schemas(server, names, components.routes.leave_out)
        run = RunIdentity(config.name, incarnation, 0)
        ansi_quotes = None if isinstance(config.source, CanalSourceConfig) else False
        stored = in_lower_case if server.folds_case else as_written
        return preview_statement(
            statement, schemas, components, run, checkpoint,
            mariadb=server.mariadb, ansi_quotes=ansi_quotes, stored=stored,
        )  # fmt: skip


def preview_of_pause(config: Config, record: JobRecord, checkpoint: Checkpoint | None) -> Preview:
    """Return what ``cdc resume --apply-ddl`` would do with the statement at which the job is PAUSED. Change nothing.

    Raises: ConfigError - it is not PAUSED at a statement; SinkUnavailable.
    """
    if record.stopped_at_ddl is None:
        raise ConfigError(
            f"The job {record.name} is not paused at a DDL statement.",
            hint=f"`cdc status {record.name}` shows why it is paused.",
        )
    if record.pending_change is None:
        return Preview("", record.reason or "The statement cannot be followed.", record.hint, ())
    with _built(config) as components:
        run = RunIdentity(config.name, record.incarnation, 0)
        return preview_change(record.pending_change, components, run, checkpoint, applies_all=True)


def _described_by(config: Config) -> Endpoint:
    """Return the MySQL server that has the tables. Raises: ConfigError - there is none."""
    endpoint = _mysql_endpoint(config)
    if endpoint is None:
        raise ConfigError(
            f"The source of type {config.source.type} has no MySQL server from which table definitions can be read.",
            hint="Set `source.mysql` (Canal), or `create_tables: true` (binlog files): the job then creates each table "
            "when its first row arrives.",
        )
    return endpoint


def _schemas(endpoint: Endpoint, components: Components) -> list[TableSchema]:
    """Return the current definitions of the mapped tables, ordered by name."""
    with Server(endpoint.within(CHECK_S)) as server:
        names = mapped_tables(server, components.routes.maps)
        schemas = table_schemas(server, names, components.routes.leave_out)
    return [schema for _, schema in sorted(schemas.items())]


def _target_findings(
    schemas: list[TableSchema], components: Components, checkpoint: Checkpoint | None
) -> list[Finding]:
    """Return the tables that cannot be mapped, and the findings of the sink about the others."""
    targets, found = [], []
    for schema in schemas:
        try:
            targets.append(_target(schema, components))
        except CdcError as error:
            if not components.routes.leave_out(schema.database, schema.table, error):
                found.append(finding_of(error))
    left_out = {**components.routes.left_out, **(checkpoint.left_out if checkpoint else {})}
    for one in left_out.values():
        # a job that has not started omits no table, so the rest of the hint does not apply
        hint = one.hint.removesuffix(f" {RESTORED}") if checkpoint is None else one.hint
        found.append(Finding(one.reason, hint, fatal=checkpoint is None))
    return [*found, *run_checks([partial(components.sink.check, targets)])]


def _target(schema: TableSchema, components: Components) -> TargetTable:
    """Return the target of a mapped table. Raises: SchemaMismatch, TargetMismatch - it cannot be mapped."""
    mapping = components.routes.mapping_for(schema.database, schema.table)
    assert mapping is not None  # ``schemas`` has mapped tables only
    mapping.reads(schema)  # also checks the columns of `filter`, which the target does not depend on
    if mapping.filter is not None and components.types is not None:
        # the condition under which a row is loaded, as the tasks evaluate it
        components.types(schema, {"filter": f"coalesce(({mapping.filter}), FALSE)"})
    return mapping.target_table(schema, components.types)


@contextmanager
def _without_log(log: logging.Logger) -> Iterator[None]:
    """Omit the lines about tables that a running job would leave out: a finding reports each of them."""
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


@contextmanager
def _built(config: Config, sessions: SessionHolder | None = None) -> Iterator[Components]:
    components = build(config, limit=TimeLimit())
    try:
        yield replace(components, types=SparkExpressionTypes(sessions)) if sessions else components
    finally:
        components.close()
