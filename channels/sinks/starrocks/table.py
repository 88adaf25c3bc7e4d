"""The rules for StarRocks tables: CREATE TABLE, and the findings that only StarRocks has.

Source: StarRocks manual, "Primary Key table", "CREATE TABLE", "ALTER TABLE"; ``CreateTableAnalyzer.java``.
"""

from __future__ import annotations

from collections.abc import Iterator

from channels.sinks.base import Finding, TargetTable
from channels.sinks.starrocks.loader import OPERATION
from channels.sinks.starrocks.names import STARROCKS_NAMES
from channels.sinks.starrocks.types import starrocks_type
from channels.sinks.stream_load.statements import AlterRules, TableRules
from channels.sinks.stream_load.table import RECREATE

# one row per run: a late older run cannot overwrite the row of a newer one
_CHECKPOINTS = """CREATE TABLE IF NOT EXISTS {table} (
  `job` VARCHAR(160) NOT NULL,
  `fence` BIGINT NOT NULL,
  `sequence` BIGINT NOT NULL,
  `incarnation` VARCHAR(16) NOT NULL,
  `checkpoint` BIGINT NOT NULL,
  `first_position` VARCHAR(1048576) NOT NULL,
  `position` VARCHAR(1048576) NOT NULL
)
ENGINE = OLAP
PRIMARY KEY (`job`, `fence`)
COMMENT 'newest committed checkpoint of each run of a job; written by the jobs'
DISTRIBUTED BY HASH (`job`) BUCKETS 1
PROPERTIES (
  "enable_persistent_index" = "true",
  "replication_num" = "{replication}"
)"""


def _mapping_findings(table: TargetTable) -> Iterator[Finding]:
    if any(column.name == OPERATION for column in table.columns):
        yield Finding(
            f"{table.name}: {OPERATION} is a reserved name of StarRocks for the operation of a row",
            f"Give the column another name under columns: of the channel: {{other: {OPERATION}}}",
        )


STARROCKS_TABLES = TableRules(
    model="PRIMARY",
    reason="deletes",
    names=STARROCKS_NAMES,
    properties={"enable_persistent_index": "true"},
    buckets=lambda count: "" if count == "auto" else f" BUCKETS {count}",
    checkpoints=_CHECKPOINTS,
    type_of=lambda table, column: starrocks_type(column, key=column.name in table.key),
    findings=lambda table, columns, statement: iter(()),
    alters=AlterRules(
        rename="RENAME COLUMN {old} TO {new}",
        reads_escapes=True,
        keeps_ids=True,
        light_property="fast_schema_evolution",
        light_hint=f"The property can be set at creation only. {RECREATE}",
    ),
    mapping_findings=_mapping_findings,
)
