"""Steps that change columns: what a table's columns say about a step, its statement, and the limits of the products.

A step is recognised by the columns alone, never by the text of an error, because a statement can be done although its
answer was lost.

Source: Doris, ``SchemaChangeHandler.java``, ``ColumnType.java``, ``Env.java`` (``renameColumn``); StarRocks, the
classes of the same names, and its manual, "ALTER TABLE".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from channels.sinks.base import AlterAction, AlterStep, Finding, TargetColumn, TargetTable
from channels.sinks.stream_load.defaults import default_literal, default_problem, default_text, is_same_default
from channels.sinks.stream_load.name_rules import NameRules, name_findings
from channels.sinks.stream_load.statements import TableRules, quoted, quoted_table, string_literal
from channels.sinks.stream_load.table import RECREATE, is_nullable
from channels.sinks.stream_load.types import ColumnType, parsed

Columns = Mapping[str, Mapping[str, Any]]  # rows of DESC by name

_RELOAD = "Load the table again after the change, so that its rows get the value."
_FIXED_CLAUSE = re.compile(r"^\s*(?:AUTO\s+)?(?:PARTITION|DISTRIBUTED|ORDER)\s+BY\b(.*)$", re.IGNORECASE | re.MULTILINE)
_NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT", "DECIMAL", "FLOAT", "DOUBLE")
_LONGEST_NUMBER = 64  # characters


class Image(Enum):
    """What the columns of a table say about a step."""

    BEFORE = "before"
    AFTER = "after"
    OTHER = "other"  # the column was changed to something else


def by_name(described: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the rows of DESC by column name."""
    return {str(row["Field"]): row for row in described}


def image_of(table: TargetTable, step: AlterStep, columns: Columns, rules: TableRules) -> Image:
    """Return if ``columns`` are as before ``step``, as after it, or neither. Raises: TypeError - see ``type_of``."""
    if step.action is AlterAction.TRUNCATE:
        return Image.BEFORE  # columns do not show it
    is_before = _has(table, step.before, columns, rules, null=False) if step.before else True
    is_after = _has(table, step.after, columns, rules, null=step.action is not AlterAction.RENAME)
    match step.action:
        case AlterAction.ADD:
            assert step.after is not None
            if not _is_taken(step.after.name, columns):
                return Image.BEFORE
            return Image.AFTER if is_after and _has_fill(table, step, columns, rules) else Image.OTHER
        case AlterAction.DROP:
            assert step.before is not None
            if not _is_taken(step.before.name, columns):
                return Image.AFTER
            return Image.BEFORE if is_before else Image.OTHER
        case AlterAction.RENAME:
            assert step.before is not None and step.after is not None
            if is_before and not _is_taken(step.after.name, columns, unless=step.before.name):
                return Image.BEFORE
            is_done = is_after and not _is_taken(step.before.name, columns, unless=step.after.name)
            return Image.AFTER if is_done else Image.OTHER
        case _:
            return Image.AFTER if is_after else Image.BEFORE if is_before else Image.OTHER


def _has(table: TargetTable, column: TargetColumn | None, columns: Columns, rules: TableRules, *, null: bool) -> bool:
    """Return True if the table has ``column`` with a type that holds its values. ``null``: and accepts its NULL."""
    row = None if column is None else columns.get(column.name)
    if column is None or row is None:
        return False
    is_matching = parsed(str(row["Type"])).holds(rules.type_of(table, column))
    return is_matching and (is_nullable(row) or not (null and column.nullable))


def _has_fill(table: TargetTable, step: AlterStep, columns: Columns, rules: TableRules) -> bool:
    assert step.after is not None
    row, kind = columns[step.after.name], rules.type_of(table, step.after)
    default = None if row["Default"] is None else str(row["Default"])
    return is_same_default(kind, default, default_text(step.fill))


def _is_taken(name: str, columns: Columns, unless: str = "") -> bool:
    """Return True if a column has this name, in any case, and is not the column ``unless``."""
    return any(other.casefold() == name.casefold() and other != unless for other in columns)


def mismatch(table: TargetTable, step: AlterStep, columns: Columns, rules: TableRules) -> str:
    """Return the sentence for a column that is neither as before nor as after ``step``."""
    names = {column.name.casefold() for column in (step.before, step.after) if column is not None}
    rows = [row for name, row in columns.items() if name.casefold() in names]
    found = ", ".join(_shown(str(row["Field"]), row["Type"], is_nullable(row), row["Default"]) for row in rows)
    sides = (_side(table, step.before, None, rules), _side(table, step.after, step.fill, rules))
    return f"{table.name} has {found or 'no such column'}; before the change it has {sides[0]}, after it {sides[1]}"


def _side(table: TargetTable, column: TargetColumn | None, fill: Any, rules: TableRules) -> str:
    if column is None:
        return "no column"
    return _shown(column.name, rules.type_of(table, column), column.nullable, default_text(fill))


def _shown(name: str, kind: object, nullable: bool, default: object) -> str:
    end = "" if default is None else f" DEFAULT {str(default)[:40]!r}"
    return f"{quoted(name)} {str(kind).upper()} {'NULL' if nullable else 'NOT NULL'}{end}"


# ---- statements


def statement_of(table: TargetTable, step: AlterStep, columns: Columns, comment: str, rules: TableRules) -> str:
    """Return the ALTER TABLE of ``step``. ``comment``: of the existing column."""
    alter = f"ALTER TABLE {quoted_table(table.name)}"
    old = quoted(step.before.name) if step.before else ""
    new = quoted(step.after.name) if step.after else ""
    match step.action:
        case AlterAction.ADD:
            assert step.after is not None
            kind, text = rules.type_of(table, step.after), default_text(step.fill)
            default = "" if text is None else f" DEFAULT {_literal(text, rules)}"
            note = f" COMMENT {string_literal(step.after.comment)}" if step.after.comment else ""
            return f"{alter} ADD COLUMN {new} {kind} NULL{default}{note}"
        case AlterAction.DROP:
            return f"{alter} DROP COLUMN {old}"
        case AlterAction.TRUNCATE:
            return f"TRUNCATE TABLE {quoted_table(table.name)}"
        case AlterAction.RENAME:
            return f"{alter} {rules.alters.rename.format(old=old, new=new)}"
        case _:
            return f"{alter} MODIFY COLUMN {new} {_modified(table, step, columns, comment, rules)}"


def _modified(table: TargetTable, step: AlterStep, columns: Columns, comment: str, rules: TableRules) -> str:
    """Return type, nullability, default and comment. The servers refuse a MODIFY without the existing default."""
    assert step.after is not None
    row, required = columns[step.after.name], rules.type_of(table, step.after)
    kind = row["Type"] if parsed(str(row["Type"])).holds(required) else required
    null = "NULL" if is_nullable(row) or step.after.nullable else "NOT NULL"
    default = "" if row["Default"] is None else f" DEFAULT {_kept_default(str(row['Default']), rules)}"
    note = f" COMMENT {string_literal(comment)}" if comment else ""
    return f"{kind} {null}{default}{note}"


def _kept_default(text: str, rules: TableRules) -> str:
    return text if text.upper().startswith("CURRENT_") else _literal(text, rules)


def _literal(text: str, rules: TableRules) -> str:
    return default_literal(text, reads_escapes=rules.alters.reads_escapes)


# ---- findings


def step_findings(
    table: TargetTable,
    steps: Sequence[AlterStep],
    columns: Columns,
    statement: str,
    rules: TableRules,
    new_names: Callable[[], NameRules],
) -> Iterator[Finding]:
    """Find why ``steps`` cannot be done to the table with ``columns`` and the SHOW CREATE TABLE ``statement``.

    Each step is checked with the columns that the steps before it leave.
    """
    renamed: set[str] = set()
    for step in steps:
        if step.action is AlterAction.TRUNCATE:
            continue
        try:
            image = image_of(table, step, columns, rules)
            if image is Image.OTHER:
                yield Finding(mismatch(table, step, columns, rules), "Change the column by hand to one of the two.")
                return
            if image is Image.BEFORE:
                for problem, hint in _problems(table, step, columns, statement, rules, renamed):
                    yield Finding(f"{table.name}: {problem}", hint)
                yield from _name_findings(table, step, rules, new_names)
                columns = _applied(table, step, columns, rules)
        except TypeError as error:
            yield Finding(f"{table.name}: {error}", "Map the column to another type under columns: of the channel.")
            return
        if step.action is AlterAction.RENAME and step.before is not None:
            renamed.add(step.before.name.casefold())


def _problems(
    table: TargetTable, step: AlterStep, columns: Columns, statement: str, rules: TableRules, renamed: set[str]
) -> Iterator[tuple[str, str]]:
    if step.before is not None and step.before.name.casefold() in fixed_columns(table, columns, statement):
        where = "part of the key, the partitions, the buckets or the sort order"
        yield f"column {step.before.name} is {where}: {rules.names.product} does not change such columns", RECREATE
    if why := default_problem_of(table, step, columns, rules):
        yield why
    match step.action:
        case AlterAction.ADD:
            assert step.after is not None
            if rules.alters.keeps_ids and step.after.name.casefold() in renamed:
                product = rules.names.product
                yield f"{product} adds no column with the name {step.after.name}, which a renamed column had", RECREATE
        case AlterAction.RENAME:
            assert step.before is not None and step.after is not None
            if step.before.name.casefold() == step.after.name.casefold():
                yield f"{rules.names.product} does not change only the case of the name {step.before.name}", RECREATE
        case AlterAction.WIDEN | AlterAction.MAKE_NULLABLE:
            assert step.after is not None
            old, new = parsed(str(columns[step.after.name]["Type"])), rules.type_of(table, step.after)
            if not old.holds(new) and not _can_become(old, new):
                yield f"column {step.after.name} cannot be changed from {old} to {new}", RECREATE


def default_problem_of(
    table: TargetTable, step: AlterStep, columns: Columns, rules: TableRules
) -> tuple[str, str] | None:
    """Return why the default in the statement of ``step`` would have another value, and the hint; else None."""
    escapes = rules.alters.reads_escapes
    match step.action:
        case AlterAction.ADD:
            assert step.after is not None
            kind, text = rules.type_of(table, step.after), default_text(step.fill)
            why = default_problem(kind, text, reads_escapes=escapes)
            return (
                (f"existing rows of column {step.after.name} cannot get their value: {why}", _RELOAD) if why else None
            )
        case AlterAction.WIDEN | AlterAction.MAKE_NULLABLE:
            assert step.after is not None
            default = columns[step.after.name]["Default"]
            if default is None or str(default).upper().startswith("CURRENT_"):
                return None
            why = default_problem(ColumnType("STRING"), str(default), reads_escapes=escapes)
            return (f"column {step.after.name} cannot keep its default: {why}", RECREATE) if why else None
        case _:
            return None


def _can_become(old: ColumnType, new: ColumnType) -> bool:
    """Return True if MODIFY COLUMN converts every value of ``old`` exactly to ``new``."""
    if old.base in _NUMBERS and new.is_text:
        return new.base == "STRING" or (new.parameters or (1,))[0] >= _LONGEST_NUMBER
    return new.holds(old) and old.base != "BOOLEAN"


def fixed_columns(table: TargetTable, columns: Columns, statement: str) -> set[str]:
    """Return the columns, casefolded, of key, partitions, buckets and sort order: no statement changes them.

    ``statement``: from SHOW CREATE TABLE.
    """
    names = {name.casefold() for name in columns}
    found = {name.casefold() for name in table.key}
    for clause in _FIXED_CLAUSE.findall(statement):
        inside = re.sub(r"'[^']*'|\"[^\"]*\"", "", clause)
        given = re.findall(r"`((?:[^`]|``)*)`", inside) or re.findall(r"\w+", inside.partition("(")[2])
        found |= {name.replace("``", "`").casefold() for name in given} & names
    return found


def _name_findings(
    table: TargetTable, step: AlterStep, rules: TableRules, new_names: Callable[[], NameRules]
) -> Iterator[Finding]:
    if step.after is None or (step.before is not None and step.before.name == step.after.name):
        return
    named = replace(table, columns=(step.after,), key=())
    yield from name_findings(named, rules.names)
    yield from rules.mapping_findings(named)
    prefix = f"{table.name.partition('.')[0]}.t"  # the table exists, so only the column's name counts
    yield from new_names().refused(replace(named, name=prefix))


def _applied(table: TargetTable, step: AlterStep, columns: Columns, rules: TableRules) -> Columns:
    """Return the columns after ``step``."""
    found = dict(columns)
    old = found.pop(step.before.name, None) if step.before is not None else None
    if step.after is not None:
        kind = rules.type_of(table, step.after)
        null = "Yes" if old is None or step.after.nullable or is_nullable(old) else "No"
        row = old if old is not None and parsed(str(old["Type"])).holds(kind) else {"Type": str(kind)}
        default = default_text(step.fill) if old is None else old["Default"]
        found[step.after.name] = {**row, "Field": step.after.name, "Null": null, "Default": default}
    return found
