"""How model, key and columns of a Doris or StarRocks table differ from what a mapping wants, each with its mend."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from channels.sinks.base import Finding, TargetColumn, TargetTable
from channels.sinks.cluster import quoted, target
from channels.sinks.column_types import ColumnType, parsed

MAKE_AGAIN = "Make the table again: `cdc ddl JOB.yaml` prints the statement."
# at the beginning of its line: comments are printed as they are, by older releases with quotes that are not escaped
_KEY = re.compile(
    r"^\)\s*ENGINE\s*=\s*\w+\s+(PRIMARY|UNIQUE|DUPLICATE|AGGREGATE)\s+KEY\s*\(((?:`(?:[^`]|``)*`|[^)`])*)\)",
    re.IGNORECASE | re.MULTILINE,
)


def model_of(statement: str) -> tuple[str, tuple[str, ...]]:
    """Model and key of the table that SHOW CREATE TABLE tells in ``statement``."""
    found = _KEY.search(statement)
    return (found[1].upper(), tuple(re.findall(r"`((?:[^`]|``)*)`", found[2]))) if found else ("unknown", ())


def model_findings(table: TargetTable, statement: str, wanted: str, why: str) -> Iterator[Finding]:
    """``wanted``: the model; ``why``: what only it takes."""
    model, key = model_of(statement)
    if model != wanted:
        problem = f"{table.name}: the table's model is {model} KEY, and only {wanted} KEY takes {why}"
        yield Finding(problem, MAKE_AGAIN)
    elif [name.casefold() for name in key] != [name.casefold() for name in table.key]:  # how it is spelt is told below
        yield Finding(
            f"{table.name}: the table's key is ({', '.join(key)}), the mapping's is ({', '.join(table.key)})",
            f"Set key: [{', '.join(key)}] if the source has it as a unique key, or: {MAKE_AGAIN}",
        )


def column_findings(
    table: TargetTable,
    shown: Sequence[Mapping[str, Any]],
    wanted: Callable[[TargetColumn], ColumnType],
    *,
    hidden: str | None = None,
) -> Iterator[Finding]:
    """``shown``: DESC. ``hidden``: how names of the server's own begin."""
    existing = {str(row["Field"]).casefold(): row for row in shown}
    for column in table.columns:
        yield from _column(table, column, wanted(column), existing.get(column.name.casefold()))
    names = {column.name.casefold() for column in table.columns}
    for name, row in existing.items():
        if name in names or (hidden and name.startswith(hidden.casefold())):
            continue
        if _nullable(row) or row["Default"] is not None:
            continue
        yield Finding(
            f"{table.name}: column {row['Field']} is NOT NULL without a default, and the mapping does not fill it",
            f"ALTER TABLE {target(table.name)} MODIFY COLUMN {quoted(str(row['Field']))} {row['Type']} NULL; "
            "or give it a place under columns:",
        )


def _column(
    table: TargetTable, column: TargetColumn, wanted: ColumnType, row: Mapping[str, Any] | None
) -> Iterator[Finding]:
    alter, key = f"ALTER TABLE {target(table.name)}", column.name in table.key
    if row is None:
        yield Finding(
            f"{table.name}: column {column.name} is missing",
            f"{alter} ADD COLUMN {quoted(column.name)} {wanted} NULL",
        )
        return
    if row["Field"] != column.name:
        yield Finding(
            f"{table.name}: column {column.name} is spelt {row['Field']} in the table",
            f"Spell it so under columns: of the channel, beside all others: {{{row['Field']}: {column.name}}}",
        )
        return
    there, null = parsed(str(row["Type"])), "NULL" if _nullable(row) or (column.nullable and not key) else "NOT NULL"
    fits, problems = there.holds(wanted), []
    if not fits:
        unit = " bytes, 4 for a character" if wanted.base == "VARCHAR" == there.base else ""
        problems.append(f"is {there}, and the source needs {wanted}{unit}")
    if null == "NULL" and not _nullable(row):
        problems.append("is NOT NULL, and the source has NULL")
    if not problems:
        return
    kind = row["Type"] if fits else wanted
    mend = f"{alter} MODIFY COLUMN {quoted(column.name)} {kind} {null}{_default(row)}"
    if key and not fits:
        mend = f"Keys cannot be modified. {MAKE_AGAIN}"  # tables are distributed by them
    elif not fits and there.is_text and not wanted.is_text:
        text = f"hex({column.name})" if wanted.base == "VARBINARY" else f"cast({column.name} as string)"
        mend = f"Set columns: {{{column.name}: {text}}} to keep text, or make the table again."
    yield Finding(f"{table.name}: column {column.name} {'; it '.join(problems)}", mend)


def _default(row: Mapping[str, Any]) -> str:
    """Both servers refuse a MODIFY COLUMN that leaves the default out."""
    default = row["Default"]
    if default is None:
        return ""
    return f" DEFAULT {default}" if str(default).upper().startswith("CURRENT_") else f' DEFAULT "{default}"'


def _nullable(row: Mapping[str, Any]) -> bool:
    return str(row["Null"]).upper() != "NO"
