"""Doris tables as a mapping wants them: CREATE TABLE, and every way in which a table does not fit, with its mend.

Source: Doris manual, "CREATE TABLE" and "ALTER TABLE COLUMN"; ``CreateTableStmt.java``, ``SchemaChangeHandler.java``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from channels.sinks.base import Finding, TargetColumn, TargetTable
from channels.sinks.cluster import CHECKPOINTS, ordered, quoted, text
from channels.sinks.column_findings import MAKE_AGAIN, column_findings, model_findings, model_of
from channels.sinks.column_types import ColumnType, parsed
from channels.sinks.doris_load import DELETE_SIGN
from channels.sinks.doris_types import doris_type

SEQUENCE_COLUMN = "__DORIS_SEQUENCE_COL__"


def create_table(table: TargetTable, options: Mapping[str, Any]) -> str:
    """The statement. ``options``: buckets, replication, partition, properties; the table's own go before them."""
    properties = {**(options.get("properties") or {}), **(table.options.get("properties") or {})}
    options = {**options, **{name: value for name, value in table.options.items() if value is not None}}
    database, _, name = table.name.partition(".")
    columns = ",\n".join(f"  {_definition(table, column)}" for column in ordered(table))
    keys = ", ".join(quoted(key) for key in table.key)
    given = {
        "enable_unique_key_merge_on_write": "true",
        "light_schema_change": "true",
        "function_column.sequence_type": "bigint",
        **({"replication_num": str(options["replication"])} if options.get("replication") else {}),
        **{str(key): str(value) for key, value in properties.items()},
    }
    lines = [
        f"CREATE TABLE IF NOT EXISTS {quoted(database)}.{quoted(name)} (\n{columns}\n)",
        "ENGINE = OLAP",
        f"UNIQUE KEY ({keys})",
        *([f"COMMENT {text(table.comment)}"] if table.comment else []),
        *([str(options["partition"])] if options.get("partition") else []),
        f"DISTRIBUTED BY HASH ({keys}) BUCKETS {str(options.get('buckets') or 'auto').upper()}",
        "PROPERTIES (\n" + ",\n".join(f'  "{key}" = "{value}"' for key, value in given.items()) + "\n)",
    ]
    return "\n".join(lines)


def create_checkpoints(database: str, replication: int) -> str:
    """The statement for the small table that keeps what was committed."""
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(database)}.{quoted(CHECKPOINTS)} (\n"
        "  `job` VARCHAR(160) NOT NULL,\n  `sequence` BIGINT NOT NULL,\n  `incarnation` VARCHAR(16) NOT NULL,\n"
        "  `fence` BIGINT NOT NULL,\n  `checkpoint` BIGINT NOT NULL,\n  `first_position` STRING NOT NULL,\n"
        "  `position` STRING NOT NULL\n"
        ")\nENGINE = OLAP\nUNIQUE KEY (`job`)\nCOMMENT 'newest committed checkpoint of each job; written by the jobs'\n"
        "DISTRIBUTED BY HASH (`job`) BUCKETS 1\nPROPERTIES (\n"
        f'  "enable_unique_key_merge_on_write" = "true",\n  "replication_num" = "{replication}",\n'
        '  "function_column.sequence_col" = "sequence"\n)'
    )


def _definition(table: TargetTable, column: TargetColumn) -> str:
    kind = doris_type(column, key=column.name in table.key)
    null = "NULL" if column.nullable and column.name not in table.key else "NOT NULL"
    comment = f" COMMENT {text(column.comment)}" if column.comment else ""
    return f"{quoted(column.name)} {kind} {null}{comment}"


def findings(table: TargetTable, shown: Sequence[Mapping[str, Any]], statement: str) -> Iterator[Finding]:
    """How the table that Doris has differs from ``table``. ``shown``: DESC, hidden columns included."""
    target = ".".join(quoted(part) for part in table.name.split("."))
    existing = {str(row["Field"]): row for row in shown}
    yield from _model(table, target, existing, statement)
    yield from column_differences(table, shown)


def column_differences(table: TargetTable, shown: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """How its columns differ. ``shown``: DESC, with or without hidden columns."""
    yield from column_findings(
        table,
        shown,
        lambda column: doris_type(column, key=column.name in table.key),
        hidden="__DORIS_",
    )


def _model(
    table: TargetTable, target: str, existing: Mapping[str, Mapping[str, Any]], statement: str
) -> Iterator[Finding]:
    yield from model_findings(table, statement, "UNIQUE", "updates")
    if model_of(statement)[0] != "UNIQUE":
        return
    if not re.search(r'"enable_unique_key_merge_on_write"\s*=\s*"true"', statement):
        yield Finding(
            f"{table.name}: the table merges on read, so queries are slow while it takes changes",
            MAKE_AGAIN,
            fatal=False,
        )
    if DELETE_SIGN not in existing:
        yield Finding(
            f"{table.name}: the table has no delete sign", f'ALTER TABLE {target} ENABLE FEATURE "BATCH_DELETE"'
        )
    mapped = re.search(r'"function_column\.sequence_col"\s*=\s*"([^"]*)"', statement)
    if mapped:
        yield Finding(f"{table.name}: column {mapped[1]} serves as sequence; ours has no place beside it", MAKE_AGAIN)
    elif SEQUENCE_COLUMN not in existing:
        yield Finding(
            f"{table.name}: the table has no sequence column",
            f'ALTER TABLE {target} ENABLE FEATURE "SEQUENCE_LOAD" WITH PROPERTIES '
            '("function_column.sequence_type" = "bigint"); before 2.0.15, 2.1.6 and 3.0.2 rows become double by it: '
            "make the table again there",
        )
    elif not parsed(str(existing[SEQUENCE_COLUMN]["Type"])).holds(ColumnType("BIGINT")):
        yield Finding(
            f"{table.name}: the sequence column is {existing[SEQUENCE_COLUMN]['Type']}, not BIGINT", MAKE_AGAIN
        )
