"""The rules for Doris tables: CREATE TABLE, and the findings that only Doris has.

Source: Doris manual, "CREATE TABLE" and "ALTER TABLE COLUMN"; ``CreateTableStmt.java``, ``SchemaChangeHandler.java``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from channels.sinks.base import Finding, TargetTable
from channels.sinks.doris.loader import DELETE_SIGN
from channels.sinks.doris.names import DORIS_UNICODE_NAMES
from channels.sinks.doris.types import doris_type
from channels.sinks.stream_load.statements import AlterRules, TableRules, quoted_table
from channels.sinks.stream_load.table import RECREATE, model_of
from channels.sinks.stream_load.types import ColumnType, parsed

SEQUENCE_COLUMN = "__DORIS_SEQUENCE_COL__"
# one row per job; the sequence column keeps the newest
_CHECKPOINTS = """CREATE TABLE IF NOT EXISTS {table} (
  `job` VARCHAR(160) NOT NULL,
  `sequence` BIGINT NOT NULL,
  `incarnation` VARCHAR(16) NOT NULL,
  `fence` BIGINT NOT NULL,
  `checkpoint` BIGINT NOT NULL,
  `first_position` STRING NOT NULL,
  `position` STRING NOT NULL
)
ENGINE = OLAP
UNIQUE KEY (`job`)
COMMENT 'newest committed checkpoint of each job; written by the jobs'
DISTRIBUTED BY HASH (`job`) BUCKETS 1
PROPERTIES (
  "enable_unique_key_merge_on_write" = "true",
  "replication_num" = "{replication}",
  "function_column.sequence_col" = "sequence"
)"""


def _findings(table: TargetTable, existing: Mapping[str, Mapping[str, Any]], statement: str) -> Iterator[Finding]:
    if model_of(statement)[0] != "UNIQUE":
        return
    alter = f"ALTER TABLE {quoted_table(table.name)}"
    if not re.search(r'"enable_unique_key_merge_on_write"\s*=\s*"true"', statement):
        problem = f"{table.name}: the table merges on read, so queries are slow while changes are loaded"
        yield Finding(problem, RECREATE, fatal=False)
    if DELETE_SIGN not in existing:
        yield Finding(f"{table.name}: the table has no delete sign", f'{alter} ENABLE FEATURE "BATCH_DELETE"')
    mapped = re.search(r'"function_column\.sequence_col"\s*=\s*"([^"]*)"', statement)
    if mapped:
        yield Finding(f"{table.name}: column {mapped[1]} is the sequence, so the job cannot add its own", RECREATE)
    elif SEQUENCE_COLUMN not in existing:
        yield Finding(
            f"{table.name}: the table has no sequence column",
            f'{alter} ENABLE FEATURE "SEQUENCE_LOAD" WITH PROPERTIES ("function_column.sequence_type" = "bigint"); '
            "before 2.0.15, 2.1.6 and 3.0.2 this duplicates rows: recreate the table there",
        )
    elif not parsed(str(existing[SEQUENCE_COLUMN]["Type"])).holds(ColumnType("BIGINT")):
        problem = f"{table.name}: the sequence column is {existing[SEQUENCE_COLUMN]['Type']}, not BIGINT"
        yield Finding(problem, RECREATE)


def rename_findings(table: TargetTable, statement: str) -> Iterator[Finding]:
    """Find a table whose columns have no ids. ``statement``: from SHOW CREATE TABLE."""
    if not re.search(r'"light_schema_change"\s*=\s*"true"', statement):
        problem = f"{table.name}: light_schema_change is off, and Doris renames no column of such a table"
        yield Finding(problem, f'ALTER TABLE {quoted_table(table.name)} SET ("light_schema_change" = "true")')


DORIS_TABLES = TableRules(
    model="UNIQUE",
    reason="updates",
    names=DORIS_UNICODE_NAMES,
    properties={
        "enable_unique_key_merge_on_write": "true",
        "light_schema_change": "true",
        "function_column.sequence_type": "bigint",
    },
    buckets=lambda count: f" BUCKETS {str(count).upper()}",
    checkpoints=_CHECKPOINTS,
    type_of=lambda table, column: doris_type(column, key=column.name in table.key),
    findings=_findings,
    alters=AlterRules(
        rename="RENAME COLUMN {old} {new}",
        reads_escapes=False,
        keeps_ids=False,
        light_property="light_schema_change",
        light_hint='ALTER TABLE {table} SET ("light_schema_change" = "true")',
    ),
    hidden="__DORIS_",
)
