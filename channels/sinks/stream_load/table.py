"""Findings on a Doris or StarRocks table: differences in model, key, columns and partitions, each with its hint."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from cdc.errors import TargetMismatch
from channels.sinks.base import Finding, TargetColumn, TargetTable
from channels.sinks.stream_load.frontend import FrontendSql
from channels.sinks.stream_load.messages import SqlError
from channels.sinks.stream_load.statements import TableRules, quoted, quoted_table
from channels.sinks.stream_load.types import ColumnType, parsed

RECREATE = "Recreate the table: `cdc ddl JOB.yaml` prints the statement."
ENOUGH_TRANSACTIONS = 250  # running at the same time: the loads of a long checkpoint, and some more for other clients

# The patterns match whole lines of SHOW CREATE TABLE, because a comment can contain any text. Older releases print
# comments without escaping their quotes.
_KEY = re.compile(
    r"^\)\s*ENGINE\s*=\s*\w+\s+(PRIMARY|UNIQUE|DUPLICATE|AGGREGATE)\s+KEY\s*\(((?:`(?:[^`]|``)*`|[^)`])*)\)",
    re.IGNORECASE | re.MULTILINE,
)
_BY_RANGE = re.compile(r"^\s*PARTITION\s+BY\s+RANGE", re.IGNORECASE | re.MULTILINE)
_DYNAMIC = re.compile(r'^\s*"dynamic_partition\.enable"\s*=\s*"true"', re.IGNORECASE | re.MULTILINE)


def model_of(statement: str) -> tuple[str, tuple[str, ...]]:
    """Return model and key of a table. ``statement``: from SHOW CREATE TABLE."""
    found = _KEY.search(statement)
    return (found[1].upper(), tuple(re.findall(r"`((?:[^`]|``)*)`", found[2]))) if found else ("unknown", ())


def model_findings(table: TargetTable, statement: str, rules: TableRules) -> Iterator[Finding]:
    """Find a wrong model or key."""
    model, key = model_of(statement)
    if model != rules.model:
        problem = f"{table.name}: the table's model is {model} KEY, and only {rules.model} KEY supports {rules.reason}"
        yield Finding(problem, RECREATE)
    elif [name.casefold() for name in key] != [name.casefold() for name in table.key]:  # _column checks the spelling
        yield Finding(
            f"{table.name}: the table's key is ({', '.join(key)}), the mapping's is ({', '.join(table.key)})",
            f"Set key: [{', '.join(key)}] if these columns are unique in the source, or: {RECREATE}",
        )


def column_findings(table: TargetTable, described: Sequence[Mapping[str, Any]], rules: TableRules) -> Iterator[Finding]:
    """Find columns that differ. ``described``: rows of DESC, with or without hidden columns."""
    existing = {str(row["Field"]).casefold(): row for row in described}
    for column in table.columns:
        yield from _column(table, column, rules.type_of(table, column), existing.get(column.name.casefold()))
    names = {column.name.casefold() for column in table.columns}
    for name, row in existing.items():
        if name in names or (rules.hidden and name.startswith(rules.hidden.casefold())):
            continue
        if is_nullable(row) or row["Default"] is not None:
            continue
        yield Finding(
            f"{table.name}: column {row['Field']} is NOT NULL without a default, and the mapping does not fill it",
            f"ALTER TABLE {quoted_table(table.name)} MODIFY COLUMN {quoted(str(row['Field']))} {row['Type']} NULL; "
            "or add it under columns:",
        )


def _column(
    table: TargetTable, column: TargetColumn, required: ColumnType, row: Mapping[str, Any] | None
) -> Iterator[Finding]:
    alter, key = f"ALTER TABLE {quoted_table(table.name)}", column.name in table.key
    if row is None:
        yield Finding(
            f"{table.name}: column {column.name} is missing",
            f"{alter} ADD COLUMN {quoted(column.name)} {required} NULL",
        )
        return
    if row["Field"] != column.name:
        yield Finding(
            f"{table.name}: column {column.name} is spelled {row['Field']} in the table",
            f"List all columns under columns: of the channel, and this one as {{{row['Field']}: {column.name}}}",
        )
        return
    existing = parsed(str(row["Type"]))
    null = "NULL" if is_nullable(row) or (column.nullable and not key) else "NOT NULL"
    is_matching, problems = existing.holds(required), []
    if not is_matching:
        unit = " bytes, 4 for a character" if required.base == "VARCHAR" == existing.base else ""
        problems.append(f"is {existing}, and the source needs {required}{unit}")
    if null == "NULL" and not is_nullable(row):
        problems.append("is NOT NULL, and the source has NULL")
    if not problems:
        return
    kind = row["Type"] if is_matching else required
    hint = f"{alter} MODIFY COLUMN {quoted(column.name)} {kind} {null}{_default(row)}"
    if key and not is_matching:
        hint = f"Keys cannot be modified. {RECREATE}"  # tables are distributed by their keys
    elif not is_matching and existing.is_text and not required.is_text:
        text = f"hex({column.name})" if required.base == "VARBINARY" else f"cast({column.name} as string)"
        hint = f"Set columns: {{{column.name}: {text}}} to keep text, or recreate the table."
    yield Finding(f"{table.name}: column {column.name} {'; it '.join(problems)}", hint)


def _default(row: Mapping[str, Any]) -> str:
    """Return the DEFAULT clause: both servers refuse a MODIFY COLUMN without the existing default."""
    default = row["Default"]
    if default is None:
        return ""
    return f" DEFAULT {default}" if str(default).upper().startswith("CURRENT_") else f' DEFAULT "{default}"'


def is_nullable(row: Mapping[str, Any]) -> bool:
    """Return True if the column in a row of DESC accepts NULL."""
    return str(row["Null"]).upper() != "NO"


def partition_findings(
    table: TargetTable, statement: str, partitions: Sequence[Mapping[str, Any]], today: datetime.date
) -> Iterator[Finding]:
    """Find a table that is partitioned by date and has no partition for ``today``: such rows are rejected.

    ``partitions``: rows of SHOW PARTITIONS.
    """
    if _DYNAMIC.search(statement) or not _BY_RANGE.search(statement):
        return
    ends = [re.findall(r"keys: \[(\d{4}-\d{2}-\d{2})", str(row["Range"]).rpartition("..")[2]) for row in partitions]
    last = max((datetime.date.fromisoformat(found[0]) for found in ends if found), default=None)
    if last is None or not all(ends) or last > today:
        return  # the ranges are no dates, or one has no end
    tomorrow = today + datetime.timedelta(days=1)
    yield Finding(
        f"{table.name}: the last partition ends at {last}, so no partition accepts rows of today",
        f'ALTER TABLE {quoted_table(table.name)} ADD PARTITION `p{today:%Y%m%d}` VALUES [("{last}"), ("{tomorrow}"))',
        fatal=False,  # the source may have no such rows
    )


def transaction_findings(
    sql: FrontendSql,
    product: str,
    tables: Sequence[TargetTable],
    quotas: Mapping[str, int] = MappingProxyType({}),
    raise_quota: str = "",
) -> Iterator[Finding]:
    """Find databases that allow fewer prepared loads than a checkpoint of ``tables`` has: at least one per table.

    ``quotas``: of databases that have their own limit; ``raise_quota``: the statement that raises it.
    """
    try:
        rows = sql.rows("ADMIN SHOW FRONTEND CONFIG LIKE 'max_running_txn_num_per_db'")
    except (SqlError, TargetMismatch):
        rows = []  # only administrators may ask; a load that reaches the limit reports it and waits
    for database, count in sorted(Counter(table.name.partition(".")[0] for table in tables).items()):
        limit = quotas.get(database, int(rows[0]["Value"]) if rows else None)
        needed = max(ENOUGH_TRANSACTIONS, 2 * count)
        if limit is None or limit >= needed:
            continue
        hint = (
            raise_quota
            if database in quotas
            else 'ADMIN SET FRONTEND CONFIG ("max_running_txn_num_per_db" = "{limit}")'
        )
        yield Finding(
            f"{product} allows {limit} running transactions in database {database}, and a checkpoint of this job can "
            f"have {needed}.",
            hint.format(database=quoted(database), limit=4 * needed),
            fatal=limit < count,
        )
