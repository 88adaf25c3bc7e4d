"""How model, key and columns of a Doris or StarRocks table differ from what a mapping wants, each with its mend."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from channels.sinks.base import Finding, TargetColumn, TargetTable
from channels.sinks.cluster import names_in, quoted, target, without_texts
from channels.sinks.column_types import ColumnType, parsed

MAKE_AGAIN = "Make the table again: `cdc ddl JOB.yaml` prints the statement."
_KEY = re.compile(r"\b(PRIMARY|UNIQUE|DUPLICATE|AGGREGATE)\s+KEY\s*\(((?:`(?:[^`]|``)*`|[^)`])*)\)", re.IGNORECASE)


def model_of(statement: str) -> tuple[str, tuple[str, ...]]:
    """Model and key of the table that SHOW CREATE TABLE tells in ``statement``."""
    found = _KEY.search(without_texts(statement))
    return (found[1].upper(), names_in(found[2])) if found else ("unknown", ())


def model_findings(table: TargetTable, statement: str, wanted: str, why: str) -> Iterator[Finding]:
    """``wanted``: the model; ``why``: what only it takes."""
    model, key = model_of(statement)
    if model != wanted:
        problem = f"{table.name}: the table's model is {model} KEY, and only {wanted} KEY takes {why}"
        yield Finding(problem, MAKE_AGAIN)
    elif key != table.key:
        yield Finding(
            f"{table.name}: the table's key is ({', '.join(key)}), the mapping's is ({', '.join(table.key)})",
            f"Set key: [{', '.join(key)}] if the source has it as a unique key, or: {MAKE_AGAIN}",
        )


def column_findings(
    table: TargetTable,
    shown: Sequence[Mapping[str, Any]],
    wanted: Callable[[TargetColumn], ColumnType],
    *,
    keys_change: bool,
    hidden: str | None = None,
) -> Iterator[Finding]:
    """``shown``: DESC. ``keys_change``: ALTER TABLE takes keys. ``hidden``: how names of the server's own begin."""
    existing = {str(row["Field"]): row for row in shown}
    for column in table.columns:
        yield from _column(table, column, wanted(column), existing.get(column.name), keys_change)
    names = {column.name for column in table.columns}
    for name, row in existing.items():
        if name in names or (hidden and name.startswith(hidden)) or _nullable(row) or row["Default"] is not None:
            continue
        yield Finding(
            f"{table.name}: column {name} is NOT NULL without a default, and the mapping does not fill it",
            f"ALTER TABLE {target(table.name)} MODIFY COLUMN {quoted(name)} {row['Type']} NULL; "
            "or give it a place under columns:",
        )


def _column(
    table: TargetTable, column: TargetColumn, wanted: ColumnType, row: Mapping[str, Any] | None, keys_change: bool
) -> Iterator[Finding]:
    alter, key = f"ALTER TABLE {target(table.name)}", column.name in table.key
    if row is None:
        yield Finding(
            f"{table.name}: column {column.name} is missing",
            f"{alter} ADD COLUMN {quoted(column.name)} {wanted} NULL",
        )
        return
    there, null = parsed(str(row["Type"])), "NULL" if _nullable(row) else "NOT NULL"
    if not there.holds(wanted):
        unit = " bytes, 4 for a character" if wanted.base == "VARCHAR" == there.base else ""
        mend = f"{alter} MODIFY COLUMN {quoted(column.name)} {wanted} {'KEY ' if key else ''}{null}"
        if key and not keys_change:
            mend = f"Keys cannot be modified. {MAKE_AGAIN}"
        elif there.is_text and not wanted.is_text:
            mend = f"Set columns: {{{column.name}: cast(... as string)}} to keep text, or make the table again."
        yield Finding(f"{table.name}: column {column.name} is {there}, and the source needs {wanted}{unit}", mend)
    if null == "NOT NULL" and column.nullable and not key:
        yield Finding(
            f"{table.name}: column {column.name} is NOT NULL, and the source has NULL",
            f"{alter} MODIFY COLUMN {quoted(column.name)} {row['Type']} NULL",
        )


def _nullable(row: Mapping[str, Any]) -> bool:
    return str(row["Null"]).upper() != "NO"
