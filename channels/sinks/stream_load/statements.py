"""SQL text that Doris and StarRocks share: quoted names, string literals, CREATE TABLE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from channels.sinks.base import Finding, TargetColumn, TargetTable
from channels.sinks.stream_load.name_rules import NameRules
from channels.sinks.stream_load.types import ColumnType

_PLACEHOLDERS = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT", "FLOAT", "DOUBLE", "DECIMAL", "BOOLEAN"), "0"),
    **dict.fromkeys(("VARCHAR", "STRING", "VARBINARY"), ""),
    "JSON": "{}",
    "DATE": "1970-01-01",
    "DATETIME": "1970-01-01 00:00:00",
}


@dataclass(frozen=True, slots=True)
class AlterRules:
    """The differences between ALTER TABLE of the two products."""

    rename: str  # the clause, with {old} and {new}
    reads_escapes: bool  # the server reads backslashes and doubled quotes in the literal of a default
    keeps_ids: bool  # a renamed column keeps its first name as its id, and no other column can get this name
    light_property: str  # with this property of a table, ADD and DROP COLUMN do not rewrite rows
    light_hint: str  # how to set it for an existing table, with {table}


@dataclass(frozen=True, slots=True)
class TableRules:
    """The differences between tables of the two products."""

    model: str  # UNIQUE or PRIMARY
    reason: str  # what only this model supports
    names: NameRules  # of existing tables
    properties: Mapping[str, str]  # of every new table
    buckets: Callable[[Any], str]  # the clause for the option ``buckets``
    checkpoints: str  # CREATE TABLE of cdc_checkpoints, with {table} and {replication}
    type_of: Callable[[TargetTable, TargetColumn], ColumnType]
    findings: Callable[[TargetTable, Mapping[str, Mapping[str, Any]], str], Iterator[Finding]]  # columns; SHOW CREATE
    alters: AlterRules
    mapping_findings: Callable[[TargetTable], Iterator[Finding]] = lambda table: iter(())  # without the existing table
    hidden: str | None = None  # the prefix of hidden columns; DESC lists them with show_hidden_columns


def quoted(name: str) -> str:
    """Return a name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def quoted_table(table: str) -> str:
    """Return the name ``database.table`` in backticks."""
    return ".".join(quoted(part) for part in table.split(".", 1))


def string_literal(value: str) -> str:
    """Return a string in single quotes."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def escape_percent(part: str) -> str:
    """Return a part of a statement that is run with values. PyMySQL formats such a statement, and a name may have %."""
    return part.replace("%", "%%")


def placeholders(table: TargetTable, base_type: Callable[[TargetColumn], str]) -> dict[str, str]:
    """Return the values that deleted rows send for NOT NULL columns: a NULL there is rejected even in a deleted row.

    ``base_type``: the name of a column's type in the target.
    """
    return {
        column.name: _PLACEHOLDERS.get(base_type(column), "[]")
        for column in table.columns
        if not column.nullable and column.name not in table.key
    }


def create_table(table: TargetTable, options: Mapping[str, Any], rules: TableRules) -> str:
    """Return CREATE TABLE. ``options``: buckets, replication, partition, properties; those of ``table`` override them.

    Raises: TypeError - the product has no type for a column.
    """
    properties = {**(options.get("properties") or {}), **(table.options.get("properties") or {})}
    options = {**options, **{name: value for name, value in table.options.items() if value is not None}}
    columns = ",\n".join(f"  {_definition(table, column, rules)}" for column in _ordered(table))
    keys = ", ".join(quoted(key) for key in table.key)
    all_properties = {
        **rules.properties,
        **({"replication_num": str(options["replication"])} if options.get("replication") else {}),
        **{str(key): str(value) for key, value in properties.items()},
    }
    lines = [
        f"CREATE TABLE IF NOT EXISTS {quoted_table(table.name)} (\n{columns}\n)",
        "ENGINE = OLAP",
        f"{rules.model} KEY ({keys})",
        *([f"COMMENT {string_literal(table.comment)}"] if table.comment else []),
        *([str(options["partition"])] if options.get("partition") else []),
        f"DISTRIBUTED BY HASH ({keys}){rules.buckets(options.get('buckets') or 'auto')}",
        "PROPERTIES (\n" + ",\n".join(f'  "{key}" = "{value}"' for key, value in all_properties.items()) + "\n)",
    ]
    return "\n".join(lines)


def _ordered(table: TargetTable) -> list[TargetColumn]:
    """Return the key columns in key order, then the others: both products require this order."""
    columns = {column.name: column for column in table.columns}
    return [columns[name] for name in table.key] + [column for column in table.columns if column.name not in table.key]


def _definition(table: TargetTable, column: TargetColumn, rules: TableRules) -> str:
    null = "NULL" if column.nullable and column.name not in table.key else "NOT NULL"
    comment = f" COMMENT {string_literal(column.comment)}" if column.comment else ""
    return f"{quoted(column.name)} {rules.type_of(table, column)} {null}{comment}"
