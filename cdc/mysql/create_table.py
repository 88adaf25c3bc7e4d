"""Read a TableSchema from the text of a CREATE TABLE statement.

It supports the output of SHOW CREATE TABLE and mysqldump, and common statements of users. The result equals the one of
``cdc.mysql.catalog`` from information_schema. Anything that is not certain raises ``Unreadable``.

Source: MySQL manual, "CREATE TABLE Statement" and "Data Types"; MariaDB knowledge base, "CREATE TABLE".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot.errors import SqlglotError

from cdc.model.schema import Column, Kind, TableSchema
from cdc.mysql.column_definition import TEXTS, Dialect, charset_name, charset_of_collation, read_column
from cdc.mysql.ddl_tokens import (
    Token,
    TokenCursor,
    Unreadable,
    bracketed,
    literal_of,
    refuse,
    specifications,
    tokens_of,
)

_INDEX_WORDS = frozenset(("PRIMARY", "KEY", "INDEX", "UNIQUE", "FULLTEXT", "SPATIAL", "CONSTRAINT", "FOREIGN", "CHECK"))
_NOT_OPTIONS = frozenset(
    ("SELECT", "LIKE", "AS", "VALUES", "TABLE", "IGNORE", "REPLACE")
)  # rows or columns are copied from another table


@dataclass(frozen=True, slots=True)
class Definition:
    """The table that a statement defines."""

    schema: TableSchema
    key_index: str = ""  # name of the unique index that is the key, if there is no primary key


def read_create_table(
    sql: str,
    *,
    database: str,
    charset: str = "",
    ansi_quotes: bool = False,
    mariadb: bool = True,
    dialect: Dialect | None = None,
) -> Definition:
    """Return the table that ``sql`` creates.

    ``database``, ``charset``: the defaults, "" if unknown. ``mariadb``: ``/*M! */`` is code, and JSON is LONGTEXT.
    ``dialect``: replaces ``ansi_quotes`` and ``mariadb``.
    A TIMESTAMP column without NULL and NOT NULL counts as nullable.
    Raises: Unreadable - with the reason: the result would be ambiguous, or the statement is not supported.
    """
    dialect = dialect or Dialect(mariadb, ansi_quotes)
    try:
        cursor = TokenCursor(tokens_of(sql, bool(dialect.ansi_quotes), mariadb=dialect.mariadb is not False))
    except SqlglotError as error:
        raise Unreadable("it is not valid SQL") from error
    cursor.take("CREATE")
    cursor.take("OR", "REPLACE")
    if not cursor.take("TABLE"):
        refuse("it is not a CREATE TABLE statement")
    cursor.if_exists()
    table = cursor.name()
    if cursor.take("."):
        database, table = table, cursor.name()
    if not database:
        refuse("it names no database")
    body = bracketed(cursor)
    options = read_options(cursor, charset)
    return _TableReader(database, table, options, dialect).read(body)


def is_index(part: TokenCursor) -> bool:
    """Return whether a part of a table definition is an index, a condition or a period, not a column."""
    first, second = part.word(), part.word(1)
    return (
        first in _INDEX_WORDS
        or (first, second) == ("PERIOD", "FOR")
        or (first == "VECTOR" and second in ("KEY", "INDEX"))
    )


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What a statement says about the whole table, as far as it concerns columns."""

    charset: str  # the default, "" if unknown
    comment: str = ""
    versioned: bool = False


def read_options(cursor: TokenCursor, charset: str) -> TableOptions:
    """Consume table options. ``charset``: the default without them. Raises: Unreadable - rows or columns are copied."""
    options = TableOptions(charset)
    if cursor.word() == "(":
        refuse("its rows and columns are the result of a query")
    while not cursor.done and cursor.word() != "PARTITION":
        if cursor.take("WITH", "SYSTEM", "VERSIONING"):
            options = replace(options, versioned=True)
        elif cursor.take("CHARACTER", "SET") or cursor.take("CHARSET"):
            cursor.take("=")
            options = replace(options, charset=charset_name(cursor.name()))
        elif cursor.take("COLLATE"):
            cursor.take("=")
            options = replace(options, charset=charset_of_collation(cursor.name(), options.charset))
        elif cursor.take("COMMENT"):
            cursor.take("=")
            options = replace(options, comment=literal_of(cursor))
        elif cursor.word() in _NOT_OPTIONS:
            break
        else:
            cursor.at += 1
    depth = 0
    for token in cursor.rest():
        depth += (token.word == "(") - (token.word == ")")
        if token.word == "SELECT" or (depth == 0 and token.word in _NOT_OPTIONS):
            refuse("its rows or columns are copied from another table")
    return options


@dataclass(frozen=True, slots=True)
class Index:
    """A primary key or a unique index."""

    name: str
    columns: tuple[str, ...]  # () if it is over an expression
    partial: bool  # it has prefixes of values
    primary: bool = False


class _TableReader:
    def __init__(self, database: str, table: str, options: TableOptions, dialect: Dialect) -> None:
        self._database = database
        self._table = table
        self._options = options
        self._dialect = dialect
        self._columns: list[Column] = []
        self._primary: tuple[str, ...] = ()
        self._uniques: list[Index] = []
        self._has_period = False
        self._row_end = ""

    def read(self, body: Sequence[Token]) -> Definition:
        for part in specifications(body):
            if is_index(part):
                self._index(part)
            else:
                self._column(part)
        columns = [replace(column, nullable=False) if self._in_key(column.name) else column for column in self._columns]
        names = {column.name.casefold(): column.name for column in columns}
        if len(names) < len(columns) or not columns:
            refuse("it has no columns, or has a column twice")
        if self._options.versioned and not self._has_period:
            columns += [
                Column(name, Kind.TIMESTAMP, "timestamp(6)", nullable=False, fsp=6, generated=True, visible=False)
                for name in ("row_start", "row_end")
            ]
        key, index = self._key({column.name.casefold(): column.nullable for column in columns})
        if self._row_end and key and self._row_end not in key:
            refuse(f"the server adds {self._row_end} to its key")
        if any(name.casefold() not in names for name in key):
            refuse("its key names a column that is not there")
        schema = TableSchema(
            self._database,
            self._table,
            tuple(columns),
            tuple(names[name.casefold()] for name in key),
            self._options.comment,
            charset=self._options.charset,
        )
        return Definition(schema, index)

    def _in_key(self, name: str) -> bool:
        return name.casefold() in {each.casefold() for each in self._primary}

    def _key(self, nullable: dict[str, bool]) -> tuple[tuple[str, ...], str]:
        if self._primary:
            return self._primary, ""
        usable = [
            index
            for index in self._uniques
            if index.columns and not any(nullable.get(name.casefold(), True) for name in index.columns)
        ]
        if any(index.partial for index in usable):
            refuse("its key may be a unique key over prefixes, which are parts of values")
        return (usable[0].columns, usable[0].name) if usable else ((), "")

    # --- indexes ---

    def _index(self, part: TokenCursor) -> None:
        if part.take("PERIOD", "FOR"):
            self._has_period = self._has_period or part.word() == "SYSTEM_TIME"
            return
        index = read_index(part)
        if index is None:
            return
        if index.primary:
            if index.partial or self._primary:
                refuse("its primary key is over prefixes, or it has two primary keys")
            self._primary = index.columns
        else:
            self._uniques.append(index)

    # --- columns ---

    def _column(self, part: TokenCursor) -> None:
        found = read_column(part, charset=self._options.charset, dialect=self._dialect)
        if not part.done:
            refuse(f"{part.rest()[0].text} of column {found.name} is not known")
        column = found.described
        if column.kind in TEXTS and not column.charset:
            refuse(f"the character set of column {found.name} is the default of the database, which is not known")
        if found.primary:
            self._primary = (*self._primary, found.name)
        if found.unique:
            self._uniques.append(Index(found.name, (found.name,), partial=False))
        if found.period:
            self._has_period = True
            self._row_end = found.name if found.period == "END" else self._row_end
        self._columns.append(column)


def read_index(part: TokenCursor) -> Index | None:
    """Consume the definition of an index. Return it if it is unique; None if it cannot be a key. Raises: Unreadable."""
    name = ""
    if part.take("CONSTRAINT") and part.word() not in ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
        name = part.name()
    primary = part.take("PRIMARY", "KEY")
    if not primary and not part.take("UNIQUE"):
        return None
    part.take("KEY") or part.take("INDEX")
    part.if_exists()
    if part.word() not in ("(", "USING"):
        name = part.name()
    if part.take("USING"):
        part.at += 1
    return index_of(name, bracketed(part), primary=primary)


def index_of(name: str, columns: Sequence[Token], *, primary: bool = False) -> Index:
    """Return the unique index over the columns in brackets. Raises: Unreadable."""
    names, partial = [], False
    for part in specifications(columns):
        if part.word() == "(":
            return Index(name, (), partial=False)  # over an expression, so it is never the key
        names.append(part.name())
        if part.word() == "WITHOUT":
            refuse("a key is over a period (WITHOUT OVERLAPS)")
        partial = partial or part.word() == "("
    return Index(name or (names[0] if names else ""), tuple(names), partial, primary)
