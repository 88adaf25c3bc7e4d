"""Columns that the job file describes: ``fields`` and ``paths``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from cdc.errors import ConfigError, SchemaMismatch
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.table_names import table_text
from cdc.sources.canal.layout import LayoutColumn, column_of

_NOT_NULL = re.compile(r"\s+NOT\s+NULL\s*$", re.I)
_SPARK = {  # Spark SQL's types by name, and MySQL's types with the same values
    "string": "longtext",
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "binary": "longblob",
    "timestamp": "timestamp(6)",
    "timestamp_ltz": "timestamp(6)",
    "timestamp_ntz": "datetime(6)",
}
_MYSQL = re.compile(r"[a-z ]+(\(.*\)[a-z ]*)?", re.I)  # the rules of Canal ignore what follows a type's name
_ALLOWED = (
    Kind.TINYINT, Kind.SMALLINT, Kind.INT, Kind.BIGINT, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL, Kind.DATE, Kind.DATETIME,
    Kind.TIMESTAMP, Kind.CHAR, Kind.VARCHAR, Kind.TEXT, Kind.BLOB,
)  # fmt: skip
_STEP = re.compile(r"\.([^.\[\]'\"*]+)|\['([^']+)'\]")


def schema_of_fields(database: str, table: str, fields: Mapping[str, str], key: Collection[str]) -> TableSchema:
    """Return the table of ``fields``: Spark SQL types by name, each with an optional NOT NULL.

    Raises: ConfigError - a type is unknown, or a key column is not in ``fields``.
    """
    columns = tuple(_column(table_text(database, table), name, text) for name, text in fields.items())
    _check_key(database, table, fields, key)
    return TableSchema(database, table, columns, tuple(key))


def _column(table: str, name: str, text: str) -> Column:
    bare = _NOT_NULL.sub("", text.strip())
    try:
        column = column_of("", table, LayoutColumn(0, name, _SPARK.get(bare.lower(), bare), False))
    except SchemaMismatch:
        column = None
    if column is None or column.kind not in _ALLOWED or column.precision > 38:
        raise ConfigError(
            f"The type {text!r} of field {name} is not supported.",
            hint="Use a Spark SQL type: BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, "
            "BINARY, DATE, TIMESTAMP or TIMESTAMP_NTZ; STRING holds objects and arrays as JSON text.",
            table=table,
        )
    return replace(column, type=text.strip(), nullable=bare == text.strip())


def schema_of_types(database: str, table: str, types: Mapping[str, str], key: Collection[str]) -> TableSchema:
    """Return the table of MySQL types by name, as SHOW CREATE TABLE prints them, each with an optional NOT NULL.

    Raises: ConfigError - a type is unknown, or a key column is not in ``types``.
    """
    columns = []
    for name, text in types.items():
        bare = _NOT_NULL.sub("", text.strip())
        try:
            column = column_of(database, table, LayoutColumn(0, name, bare if _MYSQL.fullmatch(bare) else "", False))
        except SchemaMismatch:
            raise ConfigError(
                f"The type {text!r} of field {name} is not a type of MySQL.",
                hint="Write the type as SHOW CREATE TABLE prints it, such as BIGINT UNSIGNED, DECIMAL(10,2) or "
                "DATETIME(6): the form of the values depends on it.",
                table=table_text(database, table),
            ) from None
        columns.append(replace(column, nullable=bare == text.strip()))
    _check_key(database, table, types, key)
    return TableSchema(database, table, tuple(columns), tuple(key))


def _check_key(database: str, table: str, fields: Mapping[str, str], key: Collection[str]) -> None:
    missing = [name for name in key if name not in fields]
    if missing:
        raise ConfigError(
            f"The key column {missing[0]} is not in `fields`.",
            hint="Add it to `fields` with its type.",
            table=table_text(database, table),
        )


def parse_path(text: str) -> tuple[str, ...]:
    """Return the names on a path such as ``$.address.city`` or ``$['a.b'].c``. Raises: ConfigError."""
    steps = tuple(found[1] or found[2] for found in _STEP.finditer(text, 1))
    if not text.startswith("$") or not steps or "".join(found[0] for found in _STEP.finditer(text, 1)) != text[1:]:
        raise ConfigError(
            f"The path {text!r} is not valid.",
            hint="Write $.name, $.outer.inner or $['a name'].inner; paths into arrays are not supported.",
        )
    return steps
