"""Mappings: columns, key and filter from a source table to its target table."""

from __future__ import annotations

import functools
from collections import abc
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa
import sqlglot
from sqlglot import TokenType, exp

from cdc.errors import ConfigError, SchemaMismatch, TargetMismatch
from cdc.model.batch import RequiredColumns
from cdc.model.schema import DELETED, SEQUENCE, Column, Kind, TableSchema
from cdc.model.schema_change import ChangePolicy, ColumnMap
from cdc.model.table_names import (
    FORM,
    TableName,
    is_shadow,
    parse_excluded,
    parse_table,
    table_of,
    table_text,
)
from channels.sinks.base import TargetColumn, TargetTable
from spark.frames import expression_types
from spark.session import SessionHolder

_LITERALS = (TokenType.STRING, TokenType.RAW_STRING, TokenType.HEX_STRING, TokenType.NUMBER)


class ExpressionTypes(Protocol):
    """Returns the types of Spark SQL expressions. The implementation uses Spark's analyzer."""

    def __call__(self, schema: TableSchema, expressions: abc.Mapping[str, str]) -> dict[str, tuple[pa.DataType, bool]]:
        """Return Arrow type and nullability of each expression over the columns of ``schema``, by target column.

        Raises: SchemaMismatch - an expression is not valid for this table; the message has the target column.
        """


@dataclass(frozen=True, slots=True)
class Mapping:
    """Map one source table to one target table, or with a ``*`` on both sides many tables.

    Column names ignore case, as in MySQL. Table names are case-sensitive.
    """

    source: str  # "shop.orders", or "crm.*"; see ``cdc.model.table_names`` for names with a space or a dot in them
    target: str  # "ods.orders", or "ods.crm_*"; without quotes
    key: tuple[str, ...] = ()  # target columns; (): the copies of the source's key
    columns: abc.Mapping[str, str] | None = None  # target column -> Spark SQL over source columns; None: all columns
    filter: str | None = None  # Spark SQL; a row for which it is false or NULL becomes a delete
    options: abc.Mapping[str, Any] = field(default_factory=dict)  # for the sink: partition, buckets, properties
    exclude: tuple[str, ...] = ()  # names and * patterns of tables that the pattern does not match
    changes: ChangePolicy = field(default_factory=ChangePolicy)  # what the job does when the source table changes
    column_map: ColumnMap = field(
        default_factory=ColumnMap
    )  # without ``columns``: where the target differs from the source table

    @property
    def name(self) -> TableName:
        """Return ``source`` as a name. Raises: ValueError - it is not a table name."""
        return parse_table(self.source)

    @property
    def is_pattern(self) -> bool:
        """Return whether this is a pattern for many tables."""
        return self.name.is_pattern

    def resolved(self, source: str) -> Mapping | None:
        """Return the mapping of the table ``source`` by this pattern; None if the pattern does not match it."""
        database, table = table_of(source)
        middle = self.name.middle(database, table)
        if middle is None or is_shadow(table) or any(parse_excluded(one).fullmatch(table) for one in self.exclude):
            return None
        target = self.target.replace("*", middle)
        return replace(self, source=table_text(database, table), target=target, exclude=())

    def expressions(self, schema: TableSchema) -> dict[str, str]:
        """Return the Spark SQL of each target column, in target order."""
        if self.columns is None:
            return {target: quoted(source) for target, source in self._same_names(schema).items()}
        return dict(self.columns)

    def _same_names(self, schema: TableSchema) -> dict[str, str]:
        """Return target column -> source column. Raises: TargetMismatch - two source columns have one target column.

        That happens if a rename was ignored, and the user has passed the statement that adds the old name again.
        """
        found: dict[str, str] = {}
        taken: dict[str, str] = {}
        for column in schema.columns:
            target = self.column_map.target_of(column.name)
            if target is None:
                continue
            if (other := taken.setdefault(target.casefold(), column.name)) != column.name:
                both = f"{other} and {column.name}"
                raise TargetMismatch(
                    f"The source columns {both} have one target column, because a rename was ignored.",
                    hint="Drop the target table, or move it away, and run `cdc resume NAME --reload-missing`: a "
                    "snapshot loads the table with the columns that the source has now.",
                    table=schema.name,
                    shared_column=target,
                )
            found[target] = column.name
        return found

    def reads(self, schema: TableSchema) -> RequiredColumns:
        """Return the source columns that this mapping reads.

        Raises: SchemaMismatch - a column does not exist; TargetMismatch - there is no usable key.
        """
        expressions = self.expressions(schema)
        read = {name for text in expressions.values() for name in self._columns_read(text, schema)}
        if self.filter is not None:
            read |= self._columns_read(self.filter, schema)
        reserved = sorted(name for name in read if name.casefold() in (DELETED, SEQUENCE))
        if reserved:
            raise SchemaMismatch(
                f"The column name {reserved[0]} is reserved.",
                hint="Set `columns` of the channel to the columns to load, without this one.",
                table=schema.name,
            )
        parts = self.key_of(schema)
        key = {name for part in parts for name in self._columns_read(expressions[part], schema)}
        return RequiredColumns(frozenset(read | key), frozenset(key), {*parts} <= self.copies(schema).keys())

    def names(self, schema: TableSchema, column: str) -> bool:
        """Return whether `columns`, `filter` or `key` of the job file name a column of ``schema``.

        Raises: SchemaMismatch - they name a column that does not exist.
        """
        texts = [*(self.columns or {}).values(), *([self.filter] if self.filter is not None else [])]
        named = {name for text in texts for name in self._columns_read(text, schema)}
        if self.columns is None:
            named.update(self.key)
        return column.casefold() in {name.casefold() for name in named}

    def key_of(self, schema: TableSchema) -> tuple[str, ...]:
        """Return the key columns of the target, in the target's spelling.

        Raises: TargetMismatch - a key column does not exist, or the key does not contain the key of the source.
        """
        copies = self.copies(schema)
        if not self.key:
            return self._copied_key(schema, copies)
        names = {name.casefold(): name for name in self.expressions(schema)}
        missing = [name for name in self.key if name.casefold() not in names]
        if missing:
            raise self._key_error(f"The key column {', '.join(missing)} is not a column of the target.", schema)
        key = tuple(names[name.casefold()] for name in self.key)
        held = {copies[name].name for name in key if name in copies}
        lacking = [name for name in schema.key if schema.column(name).name not in held]
        if lacking:
            problem = (
                f"The key lacks {', '.join(lacking)} of the source's key: several source rows would become one row."
            )
            raise self._key_error(problem, schema)
        loose = [name for name in key if name not in copies or copies[name].nullable]
        if not schema.key and loose:
            raise TargetMismatch(
                f"The key column {loose[0]} is not the copy of a NOT NULL source column.",
                hint="Set `key` of the channel to copies of NOT NULL columns that identify a row.",
                table=schema.name,
                target=self.target,
            )
        return key

    def copies(self, schema: TableSchema) -> dict[str, Column]:
        """Return the target columns that are plain copies, each with its source column."""
        found = {}
        for name, text in self.expressions(schema).items():
            parsed = _parsed(text, self.source)
            if isinstance(parsed, exp.Column) and len(parsed.parts) == 1:
                found[name] = self._column(schema, parsed.name)
        return found

    def copied(self, schema: TableSchema) -> dict[str, str] | None:
        """Return target column -> source column if all columns are copies; None if Spark SQL is needed."""
        if self.filter is not None:
            return None
        if self.columns is None:
            return self._same_names(schema)
        copies = self.copies(schema)
        return {name: copies[name].name for name in self.columns} if len(copies) == len(self.columns) else None

    def target_table(self, schema: TableSchema, types: ExpressionTypes | None = None) -> TargetTable:
        """Return the target table of this mapping. ``types`` is required if a column is computed.

        Raises: SchemaMismatch, TargetMismatch.
        """
        key, copies = self.key_of(schema), self.copies(schema)
        expressions = self.expressions(schema)
        computed = {name: text for name, text in expressions.items() if name not in copies}
        if computed and types is None:
            raise ValueError(f"{self.source} has expressions, so `types` is required")
        found = types(schema, computed) if computed and types is not None else {}
        columns = []
        for name in expressions:
            if name in copies:
                column = copies[name]
                nullable = can_be_null(column) and name not in key
                columns.append(TargetColumn(name, column.arrow, nullable, column.type, column.comment))
            else:
                arrow, nullable = found[name]
                documents = self._documents(schema, computed[name])
                type_and_comment = (documents.type, documents.comment) if documents is not None else ()
                columns.append(TargetColumn(name, arrow, nullable and name not in key, *type_and_comment))
        names = {name.casefold() for name in expressions}
        kept = () if self.columns is not None else (one for one in self.column_map.kept if one.casefold() not in names)
        return TargetTable(self.target, tuple(columns), key, schema.comment, self.options, tuple(kept))

    def _documents(self, schema: TableSchema, text: str) -> Column | None:
        """Return the JSON column if ``text`` is ``nullif(column, ...)``: its values are documents of it, or NULL."""
        parsed = _parsed(text, self.source)
        column = parsed.this if isinstance(parsed, exp.Nullif) else None
        if not isinstance(column, exp.Column) or len(column.parts) != 1:
            return None
        found = self._column(schema, column.name)
        return found if found.kind is Kind.JSON else None

    def _copied_key(self, schema: TableSchema, copies: abc.Mapping[str, Column]) -> tuple[str, ...]:
        if not schema.key:
            raise TargetMismatch(
                "The source table has no primary key and no NOT NULL unique key.",
                hint="Add a primary key to it, or set `key` of the channel to NOT NULL columns that identify a row.",
                table=schema.name,
                target=self.target,
            )
        by_source = {column.name.casefold(): name for name, column in copies.items()}
        lacking = [name for name in schema.key if name.casefold() not in by_source]
        if lacking:
            raise self._key_error(f"No target column is a copy of the key column {lacking[0]}.", schema)
        return tuple(by_source[name.casefold()] for name in schema.key)

    def _columns_read(self, text: str, schema: TableSchema) -> set[str]:
        """Return the source columns that ``text`` reads. It may have more: one column too many does no harm.

        The parser has no column for some of them: for the unit in ``trunc(day, unit)``, and for a column with the name
        of a function without parentheses, such as ``current_date``, which Spark prefers to the function.
        """
        parsed, words = _parsed(text, self.source), _words(text)
        read = {column.name for column in schema.columns if column.name.casefold() in words}
        for column in parsed.find_all(exp.Column):
            if len(column.parts) > 1:
                raise SchemaMismatch(
                    f"{column.sql(dialect='spark')} is not a plain column name.",
                    hint="Write source columns without a table name; quote names that contain a dot with `.",
                    table=schema.name,
                )
            read.add(self._column(schema, column.name).name)
        return read

    def _column(self, schema: TableSchema, name: str) -> Column:
        try:
            return schema.column(name)
        except KeyError:
            raise SchemaMismatch(
                f"The mapping reads the column {name}, which does not exist.",
                hint=f"Columns are: {', '.join(column.name for column in schema.columns)}. Correct the job file.",
                table=schema.name,
            ) from None

    def _key_error(self, problem: str, schema: TableSchema) -> TargetMismatch:
        hint = "Set `key` of the channel to target columns that contain a NOT NULL unique key of the source."
        return TargetMismatch(problem, hint=hint, table=schema.name, target=self.target)


class SparkExpressionTypes:
    """See ``ExpressionTypes``; uses Spark's analyzer. The first expression creates the session."""

    def __init__(self, sessions: SessionHolder) -> None:
        """``sessions``: creates the session at its first use."""
        self._sessions = sessions

    def __call__(self, schema: TableSchema, expressions: abc.Mapping[str, str]) -> dict[str, tuple[pa.DataType, bool]]:
        """See ``ExpressionTypes``."""
        source = pa.schema([pa.field(column.name, column.arrow, can_be_null(column)) for column in schema.columns])
        try:
            return expression_types(self._sessions.get(), source, expressions)
        except ValueError as error:
            hint = "Correct the expression in `columns` or `filter` of the channel."
            raise SchemaMismatch(f"Spark does not accept {error}.", hint=hint, table=schema.name) from error


def can_be_null(column: Column) -> bool:
    """Return whether values of ``column`` may be NULL in Arrow, as invalid dates (0000-00-00) are."""
    return column.nullable or column.kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP)


def quoted(name: str) -> str:
    """Return ``name`` as a quoted identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def is_condition(text: str) -> bool:
    """Return whether ``text`` is one SQL condition of MySQL without subqueries."""
    try:
        statements = sqlglot.parse(text, dialect="mysql")
    except sqlglot.errors.SqlglotError:
        return False
    parsed = statements[0] if len(statements) == 1 else None
    return isinstance(parsed, exp.Condition) and parsed.find(exp.Query, exp.Star) is None


@functools.lru_cache(4096)
def _parsed(text: str, source: str) -> exp.Expr:
    try:
        statements = sqlglot.parse(text, dialect="spark")
    except sqlglot.errors.SqlglotError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"{text!r} is not a Spark SQL expression: {reason}", hint="Correct the job file.", table=source
        ) from error
    parsed = statements[0] if len(statements) == 1 else None
    if not isinstance(parsed, exp.Condition) or parsed.find(exp.Query, exp.Star) is not None:
        raise ConfigError(
            f"{text!r} is not one expression over the columns of a row.",
            hint="Use column names, literals and functions of Spark SQL, without subqueries.",
            table=source,
        )
    return parsed


@functools.lru_cache(4096)
def _words(text: str) -> frozenset[str]:
    """Return the words of ``text`` that may be columns, in lower case; without functions, and types after AS."""
    tokens = sqlglot.tokenize(text, dialect="spark")
    before, after = [None, *tokens[:-1]], [*tokens[1:], None]
    return frozenset(
        token.text.casefold()
        for previous, token, following in zip(before, tokens, after, strict=True)
        if token.token_type not in _LITERALS
        and (previous is None or previous.token_type is not TokenType.ALIAS)
        and (following is None or following.token_type is not TokenType.L_PAREN)
    )


def check_mapping(mapping: Mapping) -> None:
    """Raise ConfigError for names or expressions of a channel that are not valid."""
    try:
        is_pattern = mapping.is_pattern
    except ValueError as error:
        raise ConfigError(
            f"source {mapping.source!r} is not `database.table`.", hint=f"It {FORM}.", source=mapping.source
        ) from error
    database, _, table = mapping.target.partition(".")
    if not (database and table) or "*" in database or table.count("*") > 1:
        raise ConfigError(
            f"target {mapping.target!r} is not `database.table`.",
            hint="Write database, a dot and the table; the table name may contain one *.",
            source=mapping.source,
        )
    if is_pattern != ("*" in mapping.target):
        raise ConfigError(
            f"{mapping.source} -> {mapping.target} has a * on one side only.",
            hint="Write one * in both, or in none.",
            source=mapping.source,
        )
    seen: set[str] = set()
    for name, text in (mapping.columns or {}).items():
        if name.casefold() in {*seen, DELETED, SEQUENCE}:
            raise ConfigError(
                f"Target column {name} exists twice, or the name is reserved.",
                hint="Give each target column one name; upper and lower case are the same.",
                source=mapping.source,
            )
        seen.add(name.casefold())
        _parsed(text, mapping.source)
    if mapping.filter is not None:
        _parsed(mapping.filter, mapping.source)
