"""Mappings: which columns of a source table become which columns of its target, by what key and under what filter."""

from __future__ import annotations

import functools
import json
import logging
import re
import threading
from collections import abc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa
import sqlglot
from sqlglot import exp

from cdc.batch import Reads
from cdc.errors import CdcError, ConfigError, SchemaMismatch, TargetMismatch
from cdc.left_out import LeftOut
from cdc.names import FORM, TableName, is_shadow, parse_excluded, parse_table, part_text, table_of, table_text
from cdc.schema import DELETED, SEQUENCE, Column, Kind, TableSchema
from channels.sinks.base import TargetColumn, TargetTable
from spark.frames import expression_types
from spark.session import SessionHolder

TAKEN_IN = (
    "The next start (`cdc restart NAME`) loads it whole if it can be mapped by then and the source has tables to read."
)

_log = logging.getLogger(__name__)


class ExpressionTypes(Protocol):
    """Tells types of Spark SQL expressions; Spark's own analyzer behind it."""

    def __call__(self, schema: TableSchema, expressions: abc.Mapping[str, str]) -> dict[str, tuple[pa.DataType, bool]]:
        """Arrow type and nullability of each expression over the columns of ``schema``, by target name.

        Raises: SchemaMismatch - an expression does not stand over this table; it names the target column.
        """


@dataclass(frozen=True, slots=True)
class Mapping:
    """One source table to one target table; with a ``*`` on both sides, a pattern for many.

    Column names ignore case, as MySQL's do; table names are taken as they are written.
    """

    source: str  # "shop.orders", or "crm.*"; see ``cdc.names`` for names with a space or a dot in them
    target: str  # "ods.orders", or "ods.crm_*"; as it is, without quotes
    key: tuple[str, ...] = ()  # target columns; (): those that copy the source's key
    columns: abc.Mapping[str, str] | None = None  # target column -> Spark SQL over source columns; None: all by name
    filter: str | None = None  # Spark SQL; a row for which it is false or NULL becomes a delete
    options: abc.Mapping[str, Any] = field(default_factory=dict)  # for the sink: partition, buckets, properties
    exclude: tuple[str, ...] = ()  # of a pattern: tables that it does not match, names and * patterns

    @property
    def name(self) -> TableName:
        """Return ``source`` as a name. Raises: ValueError - it is not one."""
        return parse_table(self.source)

    @property
    def is_pattern(self) -> bool:
        """Whether this stands for many tables."""
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
        """Target column -> Spark SQL, for every target column in target order."""
        if self.columns is None:
            return {column.name: quoted(column.name) for column in schema.columns}
        return dict(self.columns)

    def reads(self, schema: TableSchema) -> Reads:
        """The source columns that this needs.

        Raises: SchemaMismatch - a column that is not there; TargetMismatch - no usable key.
        """
        expressions = self.expressions(schema)
        read = {name for text in expressions.values() for name in self._columns_read(text, schema)}
        if self.filter is not None:
            read |= self._columns_read(self.filter, schema)
        ours = sorted(name for name in read if name.casefold() in (DELETED, SEQUENCE))
        if ours:
            raise SchemaMismatch(
                f"The source has a column {ours[0]}, which is a name of ours.",
                mend="Leave it out: name the columns to load under columns: of the channel.",
                table=schema.name,
            )
        key = {name for part in self.key_of(schema) for name in self._columns_read(expressions[part], schema)}
        return Reads(frozenset(read | key), frozenset(key))

    def key_of(self, schema: TableSchema) -> tuple[str, ...]:
        """The target's key columns, spelt as the target spells them.

        Raises: TargetMismatch - the key lacks a column, or does not hold a NOT NULL unique key of the source.
        """
        copies = self.copies(schema)
        if not self.key:
            return self._copied_key(schema, copies)
        names = {name.casefold(): name for name in self.expressions(schema)}
        missing = [name for name in self.key if name.casefold() not in names]
        if missing:
            raise self._key_error(f"The key names {', '.join(missing)}, which is no column of the target.", schema)
        key = tuple(names[name.casefold()] for name in self.key)
        held = {copies[name].name for name in key if name in copies}
        lacking = [name for name in schema.key if schema.column(name).name not in held]
        if lacking:
            problem = f"The key lacks {', '.join(lacking)} of the source's key: rows of the source would fall together."
            raise self._key_error(problem, schema)
        loose = [name for name in key if name not in copies or copies[name].nullable]
        if not schema.key and loose:
            raise self._key_error(f"The key column {loose[0]} is not the copy of a NOT NULL source column.", schema)
        return key

    def copies(self, schema: TableSchema) -> dict[str, Column]:
        """Target columns that are plain copies, with the source column copied."""
        found = {}
        for name, text in self.expressions(schema).items():
            parsed = _parsed(text, self.source)
            if isinstance(parsed, exp.Column) and len(parsed.parts) == 1:
                found[name] = self._column(schema, parsed.name)
        return found

    def copied(self, schema: TableSchema) -> dict[str, str] | None:
        """Target column -> source column where rows are copied and no more; None where Spark SQL has work to do."""
        if self.filter is not None:
            return None
        if self.columns is None:
            return {column.name: column.name for column in schema.columns}
        copies = self.copies(schema)
        return {name: copies[name].name for name in self.columns} if len(copies) == len(self.columns) else None

    def target_table(self, schema: TableSchema, types: ExpressionTypes | None = None) -> TargetTable:
        """The target as this mapping wants it. ``types`` is needed where a column is more than a copy.

        Raises: SchemaMismatch, TargetMismatch.
        """
        key, copies = self.key_of(schema), self.copies(schema)
        expressions = self.expressions(schema)
        computed = {name: text for name, text in expressions.items() if name not in copies}
        if computed and types is None:
            raise ValueError(f"{self.source} has expressions, and nothing was given that knows their types")
        found = types(schema, computed) if computed and types is not None else {}
        columns = []
        for name in expressions:
            if name in copies:
                column = copies[name]
                nullable = can_be_null(column) and name not in key
                columns.append(TargetColumn(name, column.arrow, nullable, column.type, column.comment))
            else:
                arrow, nullable = found[name]
                columns.append(TargetColumn(name, arrow, nullable and name not in key))
        return TargetTable(self.target, tuple(columns), key, schema.comment, self.options)

    def _copied_key(self, schema: TableSchema, copies: abc.Mapping[str, Column]) -> tuple[str, ...]:
        if not schema.key:
            raise self._key_error("The source table has no primary key and no NOT NULL unique key.", schema)
        by_source = {column.name.casefold(): name for name, column in copies.items()}
        lacking = [name for name in schema.key if name.casefold() not in by_source]
        if lacking:
            raise self._key_error(f"No target column is a copy of the key column {lacking[0]}.", schema)
        return tuple(by_source[name.casefold()] for name in schema.key)

    def _columns_read(self, text: str, schema: TableSchema) -> set[str]:
        read = set()
        for column in _parsed(text, self.source).find_all(exp.Column):
            if len(column.parts) > 1:
                raise SchemaMismatch(
                    f"{column.sql(dialect='spark')} names more than a column.",
                    mend="Name source columns alone, without table; quote names that hold a dot with `.",
                    table=schema.name,
                )
            read.add(self._column(schema, column.name).name)
        return read

    def _column(self, schema: TableSchema, name: str) -> Column:
        try:
            return schema.column(name)
        except KeyError:
            raise SchemaMismatch(
                f"The mapping reads column {name}, which the table does not have.",
                mend=f"Columns are: {', '.join(column.name for column in schema.columns)}. Correct the job file.",
                table=schema.name,
            ) from None

    def _key_error(self, problem: str, schema: TableSchema) -> TargetMismatch:
        mend = "Set `key:` of the channel to target columns that hold a NOT NULL unique key of the source."
        return TargetMismatch(problem, mend=mend, table=schema.name, target=self.target)


class SparkExpressionTypes:
    """See ``ExpressionTypes``; asks Spark's analyzer. No session is built before an expression comes."""

    def __init__(self, sessions: SessionHolder) -> None:
        """``sessions`` gives the session when it is first needed."""
        self._sessions = sessions

    def __call__(self, schema: TableSchema, expressions: abc.Mapping[str, str]) -> dict[str, tuple[pa.DataType, bool]]:
        """See ``ExpressionTypes``."""
        source = pa.schema([pa.field(column.name, column.arrow, can_be_null(column)) for column in schema.columns])
        try:
            return expression_types(self._sessions.get(), source, expressions)
        except ValueError as error:
            mend = "Correct the expression in `columns:` of the channel."
            raise SchemaMismatch(f"Spark refuses {error}.", mend=mend, table=schema.name) from error


class Routes:
    """All mappings of a job, one to one. Gives each source table its mapping, patterns resolved.

    A channel that names a table takes precedence over a pattern. Calls: from any thread.
    """

    def __init__(self, mappings: Sequence[Mapping]) -> None:
        """Raises: ConfigError - a source mapped twice, a target used twice, a mapping that cannot stand."""
        self._mappings = tuple(mappings)
        for mapping in self._mappings:
            _check(mapping)
        for number, mapping in enumerate(self._mappings):
            for earlier in self._mappings[:number]:
                _check_pair(earlier, mapping)
        self._named = {one.name: one for one in self._mappings if not one.is_pattern}
        self._patterns = tuple(one for one in self._mappings if one.is_pattern)
        self._lock = threading.RLock()
        self._left_out: dict[str, LeftOut] = {}
        self._loaded: set[str] = set()
        self._forget_tables()

    def _forget_tables(self) -> None:
        self._known: dict[TableName, Mapping | None] = {}
        # target, case ignored -> source
        self._targets = {one.target.casefold(): one.source for one in self._named.values()}

    @property
    def mappings(self) -> tuple[Mapping, ...]:
        """As given, patterns unresolved."""
        return self._mappings

    def mapping_for(self, database: str, table: str) -> Mapping | None:
        """The mapping of a source table, resolved; None when no channel reads it, or it is left out."""
        found = self._match(TableName(database, table))
        return found if found is not None and found.source not in self._left_out else None

    def _match(self, name: TableName) -> Mapping | None:
        """As ``mapping_for``, of tables too that are left out.

        Raises: ConfigError - its target, by a pattern, is another source's already, and rows of it are loaded.
        """
        with self._lock:
            if name not in self._known:
                found = self._named.get(name)
                self._known[name] = found if found is not None else self._by_pattern(name)
            return self._known[name]

    def _by_pattern(self, name: TableName) -> Mapping | None:
        found = [one for pattern in self._patterns if (one := pattern.resolved(str(name))) is not None]
        if not found:
            return None
        error = None
        owner = self._targets.setdefault(found[0].target.casefold(), found[0].source)
        if len(found) > 1:
            error = _mapped_twice(found[0].source)
        elif owner != found[0].source:
            error = _used_twice(found[0].target, owner, found[0].source)
        if error is not None and not self.leave_out(name.database, name.table, error):
            raise error
        return found[0]

    def maps(self, database: str, table: str) -> bool:
        """See ``cdc.receiver.base.Selection``."""
        return self.mapping_for(database, table) is not None

    def reads(self, schema: TableSchema) -> Reads:
        """See ``cdc.receiver.base.Selection``."""
        mapping = self._match(TableName(schema.database, schema.table))
        if mapping is None:
            raise KeyError(schema.name)
        try:
            return mapping.reads(schema)
        except CdcError as error:
            self.advise(schema.database, schema.table, error)
            raise

    # tables that a pattern matches and that cannot be mapped

    @property
    def left_out(self) -> dict[str, LeftOut]:
        """Return the tables that are left out, by name."""
        with self._lock:
            return dict(self._left_out)

    def leave_out(self, database: str, table: str, error: CdcError) -> bool:
        """See ``cdc.receiver.base.Selection``."""
        name = table_text(database, table)
        with self._lock:
            if not self.advise(database, table, error) or name in self._loaded:
                return False
            if name not in self._left_out:
                reason = f"{error.message} ({error.place})" if error.place else error.message
                self._left_out[name] = LeftOut(reason, f"{error.mend} {TAKEN_IN}")
                _log.warning("%s is left out, and the other tables go on: %s %s", name, reason, error.mend)
            return True

    def advise(self, database: str, table: str, error: CdcError) -> bool:
        """Name both ways out in the hint of ``error``, if a pattern maps this table; return whether one does."""
        name = TableName(database, table)
        pattern = next((one for one in self._patterns if one.resolved(str(name)) is not None), None)
        if pattern is None or name in self._named:
            return False
        found = pattern.resolved(str(name))
        assert found is not None
        is_free = self._targets.get(found.target.casefold(), found.source) == found.source
        target = _in_yaml(found.target) if is_free else "another one"
        own = f"source: {_in_yaml(found.source)}, target: {target}, key: [...]"
        error.mend = (
            f"Leave it out with `exclude: [{_in_yaml(part_text(table))}]` in the channel {pattern.source}, or map it "
            f"by a channel of its own: `{{{own}}}`."
        )
        return True

    def restore(self, loaded: Iterable[str], left_out: abc.Mapping[str, LeftOut]) -> None:
        """Take up what was saved: tables with committed rows, which are never left out, and tables left out."""
        with self._lock:
            self._loaded, self._left_out = set(loaded), dict(left_out)
            self._forget_tables()
            for name in sorted(self._loaded):  # they keep their targets, whatever table is asked for first
                self._match(TableName(*table_of(name)))

    def note_joined(self, source: str) -> None:
        """A table has a channel in this run: it is not left out any more, whatever comes."""
        self._loaded.add(source)

    def matches(self, source: str) -> bool:
        """Return whether a channel matches this table, left out or not."""
        return self._match(TableName(*table_of(source))) is not None

    def take_in(self, source: str) -> None:
        """A table is no longer left out."""
        with self._lock:
            self._left_out.pop(source, None)
            self._known.pop(TableName(*table_of(source)), None)


def can_be_null(column: Column) -> bool:
    """Whether values of ``column`` may be NULL in Arrow: dates that are none (0000-00-00) come as NULL."""
    return column.nullable or column.kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP)


def quoted(name: str) -> str:
    """``name`` as an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def is_condition(text: str) -> bool:
    """Whether ``text`` is one condition of MySQL's SQL, without queries in it."""
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
            f"{text!r} is no Spark SQL expression: {reason}", mend="Correct the job file.", table=source
        ) from error
    parsed = statements[0] if len(statements) == 1 else None
    if not isinstance(parsed, exp.Condition) or parsed.find(exp.Query, exp.Star) is not None:
        raise ConfigError(
            f"{text!r} is not one expression over the columns of a row.",
            mend="Use column names, literals and functions of Spark SQL, without queries.",
            table=source,
        )
    return parsed


def _check(mapping: Mapping) -> None:
    try:
        is_pattern = mapping.is_pattern
    except ValueError as error:
        raise ConfigError(
            f"source {mapping.source!r} is not `database.table`.", mend=f"It {FORM}.", source=mapping.source
        ) from error
    database, _, table = mapping.target.partition(".")
    if not (database and table) or "*" in database or table.count("*") > 1:
        raise ConfigError(
            f"target {mapping.target!r} is not `database.table`.",
            mend="Write database, a dot and the table; one * may stand in the table's name.",
            source=mapping.source,
        )
    if is_pattern != ("*" in mapping.target):
        raise ConfigError(
            f"{mapping.source} -> {mapping.target} has a * on one side only.",
            mend="Put one * on each side, or on none.",
            source=mapping.source,
        )
    seen: set[str] = set()
    for name, text in (mapping.columns or {}).items():
        if name.casefold() in seen or name in (DELETED, SEQUENCE):
            raise ConfigError(
                f"Target column {name} is given twice or is a name of ours.",
                mend="Names of target columns ignore case; give each once.",
                source=mapping.source,
            )
        seen.add(name.casefold())
        _parsed(text, mapping.source)
    if mapping.filter is not None:
        _parsed(mapping.filter, mapping.source)


def _check_pair(one: Mapping, other: Mapping) -> None:
    if one.name == other.name or (one.name.includes(other.name) or other.name.includes(one.name)):
        raise _mapped_twice(other.source)
    if one.target.casefold() == other.target.casefold() and not one.is_pattern:
        raise _used_twice(other.target, one.source, other.source)


def _in_yaml(text: str) -> str:
    """Return ``text`` as a YAML value inside of [] or {}."""
    return text if re.fullmatch(r"[\w$.-]+", text) and not text.isdecimal() else json.dumps(text, ensure_ascii=False)


def _mapped_twice(source: str) -> ConfigError:
    return ConfigError(
        f"Source table {source} is mapped twice.", mend="Leave it in one entry of `channels` only.", source=source
    )


def _used_twice(target: str, one: str, other: str) -> ConfigError:
    return ConfigError(
        f"Target table {target} is used twice, by {one} and by {other}.",
        mend="Give each source table a target of its own.",
        target=target,
    )
