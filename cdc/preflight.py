"""Looks at the world around a job before it starts: the server's settings, the mapped tables, their targets.

Every check runs, and every finding ends in its mend. Nothing is changed.

Source: MySQL manual, "Binary Logging Options and Variables".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdc.binlog.catalog import cascades, mapped_tables, table_schemas
from cdc.binlog.server import Server
from cdc.errors import ConfigError, SchemaMismatch, TargetMismatch
from cdc.schema import TableSchema
from channels.mapping import ExpressionTypes, Routes
from channels.sinks.base import Finding, Sink, TargetTable

_WANTED = {"log_bin": "ON", "binlog_format": "ROW", "binlog_row_image": "FULL"}
_IN_THE_FILE = {"log_bin"}  # not settable while the server runs


def settings_findings(server: Server) -> Iterator[Finding]:
    """Settings under which the binlog does not hold every row, or not its columns' names."""
    for name, wanted in _WANTED.items():
        found = server.settings.get(name, "")
        if found.upper() not in {wanted, "1" if wanted == "ON" else wanted}:
            mend = f"Run SET PERSIST {name} = {wanted}; sessions that are open keep the old value until they reconnect."
            if name in _IN_THE_FILE:
                mend = f"Set {name} in the server's configuration and restart it."
            elif server.mariadb:
                mend = mend.replace("PERSIST", "GLOBAL").replace(";", ", and set it in the configuration;")
            yield Finding(f"{name} is {found or 'unknown'}; {wanted} is needed.", mend)
    if not server.full_metadata:
        verb = "GLOBAL" if server.mariadb else "PERSIST"
        yield Finding(
            "binlog_row_metadata is not FULL: columns are known only as the tables are now.",
            f"Run SET {verb} binlog_row_metadata = FULL, so that a start in the past knows them as they were.",
            fatal=False,
        )


def table_findings(server: Server, routes: Routes, sink: Sink, types: ExpressionTypes | None) -> Iterator[Finding]:
    """Mappings that match nothing or have no key, tables that the server changes itself, targets that do not fit."""
    schemas = list(mapped_schemas(server, routes))
    for mapping in routes.mappings:
        if not any(mapping.matches(schema.name) for schema in schemas):
            what = "matches no table" if mapping.is_pattern else "is not on the server"
            mend = "Correct `channels` in the job file, or let its user SELECT from the table."
            yield Finding(f"{mapping.source} {what}.", mend)
    for schema in schemas:
        try:
            target = target_of(schema, routes, types)
        except (SchemaMismatch, TargetMismatch, ConfigError) as error:
            yield Finding(f"{schema.name}: {error.message}", error.mend)
            continue
        yield from sink.describe(target)
    if server.settings.get("innodb_native_foreign_keys", "").upper() == "OFF":
        return  # MySQL 9.6 and later: cascaded changes are in the binlog
    for one in cascades(server, routes.maps):
        yield Finding(
            f"{one.child} has the foreign key {one.constraint} {one.action}: the binlog does not show what it changes.",
            f"Drop the rule and let the application change the rows of {one.child}, or leave it out of the job.",
        )


def mapped_schemas(server: Server, routes: Routes) -> Sequence[TableSchema]:
    """The mapped tables as they are now."""
    names = mapped_tables(server, routes.maps)
    return tuple(table_schemas(server, names).values())


def target_of(schema: TableSchema, routes: Routes, types: ExpressionTypes | None) -> TargetTable:
    """The target of a mapped table. Raises: SchemaMismatch, TargetMismatch, ConfigError."""
    mapping = routes.mapping_for(schema.database, schema.table)
    if mapping is None:
        raise KeyError(schema.name)
    return mapping.target_table(schema, types)
