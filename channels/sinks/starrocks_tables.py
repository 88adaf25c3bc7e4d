"""StarRocks tables as a mapping wants them: CREATE TABLE, and every way in which a table does not fit, with its mend.

Source: StarRocks manual, "Primary Key table", "CREATE TABLE", "ALTER TABLE"; ``CreateTableAnalyzer.java``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from channels.sinks.base import Finding, TargetColumn, TargetTable
from channels.sinks.cluster import CHECKPOINTS, ordered, quoted, target, text
from channels.sinks.column_findings import column_findings as common_findings
from channels.sinks.column_findings import model_findings
from channels.sinks.starrocks_load import OPERATION
from channels.sinks.starrocks_types import starrocks_type


def create_table(table: TargetTable, options: Mapping[str, Any]) -> str:
    """The statement. ``options``: buckets, replication, partition, properties; the table's own go before them."""
    properties = {**(options.get("properties") or {}), **(table.options.get("properties") or {})}
    options = {**options, **{name: value for name, value in table.options.items() if value is not None}}
    columns = ",\n".join(f"  {_definition(table, column)}" for column in ordered(table))
    keys = ", ".join(quoted(key) for key in table.key)
    buckets = options.get("buckets") or "auto"
    given = {
        "enable_persistent_index": "true",
        **({"replication_num": str(options["replication"])} if options.get("replication") else {}),
        **{str(key): str(value) for key, value in properties.items()},
    }
    lines = [
        f"CREATE TABLE IF NOT EXISTS {target(table.name)} (\n{columns}\n)",
        "ENGINE = OLAP",
        f"PRIMARY KEY ({keys})",
        *([f"COMMENT {text(table.comment)}"] if table.comment else []),
        *([str(options["partition"])] if options.get("partition") else []),
        f"DISTRIBUTED BY HASH ({keys})" + ("" if buckets == "auto" else f" BUCKETS {buckets}"),
        "PROPERTIES (\n" + ",\n".join(f'  "{key}" = "{value}"' for key, value in given.items()) + "\n)",
    ]
    return "\n".join(lines)


def create_checkpoints(database: str, replication: int) -> str:
    """The statement for the small table that keeps what was committed: of each run of a job the newest.

    The run is part of the key: an older one that wakes up late cannot set back what a newer one has written.
    """
    return (
        f"CREATE TABLE IF NOT EXISTS {quoted(database)}.{quoted(CHECKPOINTS)} (\n"
        "  `job` VARCHAR(160) NOT NULL,\n  `fence` BIGINT NOT NULL,\n  `sequence` BIGINT NOT NULL,\n"
        "  `incarnation` VARCHAR(16) NOT NULL,\n  `checkpoint` BIGINT NOT NULL,\n"
        "  `first_position` VARCHAR(1048576) NOT NULL,\n  `position` VARCHAR(1048576) NOT NULL\n"
        ")\nENGINE = OLAP\nPRIMARY KEY (`job`, `fence`)\n"
        "COMMENT 'newest committed checkpoint of each run of a job; written by the jobs'\n"
        "DISTRIBUTED BY HASH (`job`) BUCKETS 1\nPROPERTIES (\n"
        f'  "enable_persistent_index" = "true",\n  "replication_num" = "{replication}"\n)'
    )


def _definition(table: TargetTable, column: TargetColumn) -> str:
    kind = starrocks_type(column, key=column.name in table.key)
    null = "NULL" if column.nullable and column.name not in table.key else "NOT NULL"
    comment = f" COMMENT {text(column.comment)}" if column.comment else ""
    return f"{quoted(column.name)} {kind} {null}{comment}"


def findings(table: TargetTable, shown: Sequence[Mapping[str, Any]], statement: str) -> Iterator[Finding]:
    """How the table that StarRocks has differs from ``table``. ``shown``: DESC."""
    yield from model_findings(table, statement, "PRIMARY", "deletes")
    yield from column_findings(table, shown)


def column_findings(table: TargetTable, shown: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """How its columns differ. ``shown``: DESC."""
    if any(column.name == OPERATION for column in table.columns):
        yield Finding(
            f"{table.name}: {OPERATION} is StarRocks' own name for what becomes of a row",
            f"Give the column another name under columns: of the channel: {{other: {OPERATION}}}",
        )
    yield from common_findings(table, shown, lambda column: starrocks_type(column, key=column.name in table.key))
