"""Read what a statement changes in the columns and rows of tables, and confirm it with the catalog.

The statement gives the intent: renames, values of added columns, removed rows. The catalog, or the row metadata, gives
the columns as they are. ``confirmed`` compares the two. Anything that is not certain raises ``Unreadable``.

Source: MySQL manual, "Data Definition Statements"; MariaDB knowledge base, "ALTER TABLE".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from sqlglot.errors import SqlglotError

from cdc.errors import SchemaMismatch
from cdc.model.schema import Column, TableSchema
from cdc.model.schema_change import ChangeKind, ColumnChange, TableChange
from cdc.mysql.alter_clauses import ClauseReader
from cdc.mysql.column_definition import TEXTS, Dialect
from cdc.mysql.create_table import index_of, read_create_table
from cdc.mysql.ddl_tokens import TokenCursor, Unreadable, bracketed, quote_readings, refuse, tokens_of
from cdc.mysql.ddl_words import (
    DATABASE,
    DML,
    INDEX,
    OTHER_OBJECTS,
    SESSION,
    StoredName,
    TableNames,
    as_written,
    contains_statement,
    is_other_object,
    is_versioned,
    skip_wait,
    split_settings,
)
from cdc.mysql.value_changes import can_change_values

SchemaOf = Callable[[str, str], TableSchema | None]
_MEANINGS = re.compile(r"sql_mode|time_zone|timestamp|character_set|collation|names|innodb_strict", re.IGNORECASE)


def read_changes(
    sql: str,
    *,
    database: str,
    schema_of: SchemaOf,
    tables_of: Callable[[str], Iterable[str]] = lambda database: (),
    charset_of: Callable[[str], str] = lambda database: "",
    dialect: Dialect | None = None,
    stored: StoredName = as_written,
    ignores: bool = False,
) -> tuple[TableChange, ...]:
    """Return what ``sql`` changes in tables, in the order in which the changes apply; () for other statements.

    ALTER TABLE gives a change also if the columns and the key stay as they are.

    ``database``: the default one. ``schema_of``: a table before the statement, None if it is not known; changes of such
    a table are omitted, except for RENAME TABLE and CREATE TABLE. ``tables_of``: the known tables of a database, for
    DROP DATABASE. ``charset_of``: the default charset of a database, for CREATE TABLE; "" if it is not known.
    ``stored``: see ``TableNames``. ``ignores``: read ALTER TABLE as ALTER IGNORE TABLE.
    Raises: Unreadable - with the reason: the statement is not supported, or its result is not certain.
    """
    dialect = dialect or Dialect()

    def read(dialect: Dialect) -> tuple[TableChange, ...]:
        return _StatementReader(database, schema_of, tables_of, charset_of, ignores, dialect, stored).read(sql)

    servers = (False, True) if dialect.mariadb is None else (dialect.mariadb,)
    found = [_read_quotes(replace(dialect, mariadb=one), sql, read) for one in servers]
    if found[0] != found[-1]:
        refuse("MySQL and MariaDB read it in different ways, and the server is not known")
    return found[0]


def _read_quotes(
    dialect: Dialect, sql: str, read: Callable[[Dialect], tuple[TableChange, ...]]
) -> tuple[TableChange, ...]:
    """Read the statement with each meaning that its double quotes can have: the server has executed it with one.

    Raises: Unreadable - it can be read with none, or with both, and the changes differ.
    """
    found, problems = list[tuple[TableChange, ...]](), list[Unreadable]()
    for ansi_quotes in quote_readings(sql, dialect.ansi_quotes):
        try:
            found.append(read(replace(dialect, ansi_quotes=ansi_quotes)))
        except Unreadable as error:
            problems.append(error)
    if not found:
        raise problems[0]
    if found[0] != found[-1]:
        refuse("the meaning of its double quotes depends on sql_mode, which is not known")
    return found[0]


class _StatementReader:
    def __init__(
        self,
        database: str,
        schema_of: SchemaOf,
        tables_of: Callable[[str], Iterable[str]],
        charset_of: Callable[[str], str],
        ignores: bool,
        dialect: Dialect,
        stored: StoredName,
    ) -> None:
        self._names = TableNames(database, stored)
        self._schema_of = schema_of
        self._tables_of = tables_of
        self._charset_of = charset_of
        self._ignores = ignores
        self._dialect = dialect

    def read(self, sql: str) -> tuple[TableChange, ...]:
        settings, sql = split_settings(sql)
        try:
            cursor = TokenCursor(tokens_of(sql, bool(self._dialect.ansi_quotes), mariadb=bool(self._dialect.mariadb)))
        except SqlglotError:
            refuse("it is not valid SQL")
        if cursor.done:
            return ()
        if contains_statement(cursor):
            refuse("it runs another statement")
        first = cursor.word()
        if first in SESSION or first in DML or (first, cursor.word(1)) == ("RENAME", "USER"):
            return ()
        if _MEANINGS.search(settings):
            refuse("its settings change the meaning of the statement")
        if "\\" in sql and not self._dialect.backslash_escapes:
            refuse("the meaning of a backslash depends on sql_mode")
        if first not in _STATEMENTS:
            refuse(f"{cursor.rest()[0].text} is not known")
        cursor.at += 1
        try:
            return tuple(_STATEMENTS[first](self, cursor, sql))
        except (LookupError, ValueError, ArithmeticError) as error:  # it ends early, or a number is too large
            raise Unreadable("it has an unknown form") from error

    # --- the kinds of statement ---

    def _create(self, cursor: TokenCursor, sql: str) -> Iterator[TableChange]:
        replaces = cursor.take("OR", "REPLACE")
        if cursor.take("TEMPORARY"):
            return
        if cursor.take("TABLE"):
            yield from self._create_table(cursor, sql, replaces=replaces)
        elif cursor.take_any(DATABASE):
            if replaces:
                cursor.if_exists()
                yield from self._drop_database(cursor)
        elif is_other_object(cursor) and cursor.word() not in INDEX - {"SPATIAL"}:
            return
        elif is_other_object(cursor, frozenset(("INDEX",))):
            yield from self._create_index(cursor)
        else:
            refuse("CREATE has an unknown form")

    def _create_table(self, cursor: TokenCursor, sql: str, *, replaces: bool) -> Iterator[TableChange]:
        only_missing = cursor.if_exists()
        name = self._names.read(cursor)
        known = self._schema_of(*name)
        if only_missing and known is not None:
            return
        is_like = cursor.take("LIKE") or cursor.take("(", "LIKE")
        if is_like:
            other = self._schema_of(*self._names.read(cursor))
            if other is None:
                refuse("its columns are those of a table that is not known")
            found = replace(other, database=name[0], table=name[1], since=None)
        else:
            charset = self._charset_of(name[0])
            if is_versioned(cursor.rest()):
                refuse("it creates a table with system versioning")
            definition = read_create_table(sql, database=name[0], charset=charset, dialect=self._dialect)
            found = replace(definition.schema, database=name[0], table=name[1])
        if replaces and known is not None:
            yield TableChange(known, known, rows=ChangeKind.DROP_TABLE)
        yield TableChange(_unknown(name), found, rows=ChangeKind.CREATE_TABLE)

    def _create_index(self, cursor: TokenCursor) -> Iterator[TableChange]:
        cursor.take("ONLINE") or cursor.take("OFFLINE")
        is_unique = cursor.take("UNIQUE")
        while not cursor.take("INDEX"):
            cursor.at += 1
        cursor.if_exists()
        index = cursor.name()
        while not cursor.take("ON"):
            if cursor.done:
                refuse("CREATE INDEX has an unknown form")
            cursor.at += 1
        before = self._schema_of(*self._names.read(cursor))
        if not is_unique or before is None:
            return
        reader = ClauseReader(before, self._names, self._dialect)
        skip_wait(cursor)
        reader.alteration.indexes.append(index_of(index, bracketed(cursor)))
        yield from _unless_equal(reader.alteration.result())

    def _drop(self, cursor: TokenCursor, sql: str) -> Iterator[TableChange]:
        if cursor.take("TEMPORARY"):
            return
        if cursor.take("TABLE") or cursor.take("TABLES"):
            cursor.if_exists()
            dropped = [self._names.read(cursor)]
            while cursor.take(","):
                dropped.append(self._names.read(cursor))
            for name in dropped:
                yield from self._removes(name, ChangeKind.DROP_TABLE)
        elif cursor.take_any(DATABASE):
            yield from self._drop_database(cursor)
        elif cursor.take("INDEX") or cursor.take("ONLINE", "INDEX") or cursor.take("OFFLINE", "INDEX"):
            yield from self._drop_index(cursor)
        elif not cursor.take_any(OTHER_OBJECTS | {"PREPARE"}):
            refuse("DROP has an unknown form")

    def _drop_database(self, cursor: TokenCursor) -> Iterator[TableChange]:
        cursor.if_exists()
        database = self._names.database_of(cursor)
        for table in self._tables_of(database):
            yield from self._removes((database, table), ChangeKind.DROP_DATABASE)

    def _drop_index(self, cursor: TokenCursor) -> Iterator[TableChange]:
        cursor.if_exists()
        index = cursor.name()
        if not cursor.take("ON"):
            refuse("DROP INDEX has an unknown form")
        before = self._schema_of(*self._names.read(cursor))
        if before is not None:
            reader = ClauseReader(before, self._names, self._dialect)
            reader.alteration.drops_primary = index.upper() == "PRIMARY"
            reader.alteration.may_drop_key = True
            yield from _unless_equal(reader.alteration.result())

    def _removes(self, name: tuple[str, str], kind: ChangeKind, *, gets_rows: bool = False) -> Iterator[TableChange]:
        known = self._schema_of(*name)
        if known is not None:
            yield TableChange(known, known, rows=kind, values_differ=gets_rows)

    def _truncate(self, cursor: TokenCursor, sql: str) -> Iterator[TableChange]:
        cursor.take("TABLE")
        yield from self._removes(self._names.read(cursor), ChangeKind.TRUNCATE_TABLE)

    def _rename(self, cursor: TokenCursor, sql: str) -> Iterator[TableChange]:
        if not (cursor.take("TABLE") or cursor.take("TABLES")):
            refuse("RENAME has an unknown form")
        cursor.if_exists()
        renamed: dict[tuple[str, str], TableSchema | None] = {}  # tables at this point of the statement
        while not cursor.done:
            old = self._names.read(cursor)
            skip_wait(cursor)
            if not cursor.take("TO"):
                refuse("RENAME has an unknown form")
            new = self._names.read(cursor)
            before = (renamed[old] if old in renamed else self._schema_of(*old)) or _unknown(old)
            after = replace(before, database=new[0], table=new[1], since=None)
            renamed[old], renamed[new] = None, after
            yield TableChange(before, after, rows=ChangeKind.RENAME_TABLE)
            if not cursor.done and not cursor.take(","):
                refuse("RENAME has an unknown form")

    def _alter(self, cursor: TokenCursor, sql: str) -> Iterator[TableChange]:
        cursor.take("ONLINE") or cursor.take("OFFLINE")
        ignores = cursor.take("IGNORE") or self._ignores
        if not cursor.take("TABLE"):
            if is_other_object(cursor, OTHER_OBJECTS | DATABASE):
                return
            refuse("ALTER has an unknown form")
        cursor.if_exists()
        name = self._names.read(cursor)
        skip_wait(cursor)
        before = self._schema_of(*name)
        if before is None:
            yield from self._alter_unknown(name, cursor)
            return
        reader = ClauseReader(before, self._names, self._dialect)
        reader.read(cursor.rest(), ignores=ignores)
        yield reader.alteration.result()  # also if it changes nothing that a TableSchema has: a default, for example
        for other, kind, gets_rows in reader.exchanged:
            yield from self._removes(other, kind, gets_rows=gets_rows)

    def _alter_unknown(self, name: tuple[str, str], cursor: TokenCursor) -> Iterator[TableChange]:
        """ALTER of a table that is not known: it may be renamed to a known name, or swap rows with a known table."""
        reader = ClauseReader(_unknown(name), self._names, self._dialect)
        reader.read_tables(cursor.rest())
        for other, kind, gets_rows in reader.exchanged:
            yield from self._removes(other, kind, gets_rows=gets_rows)
        if reader.alteration.name != name:
            yield TableChange(_unknown(name), _unknown(reader.alteration.name), rows=ChangeKind.RENAME_TABLE)


_STATEMENTS = {
    "CREATE": _StatementReader._create,
    "DROP": _StatementReader._drop,
    "ALTER": _StatementReader._alter,
    "TRUNCATE": _StatementReader._truncate,
    "RENAME": _StatementReader._rename,
}


def _unknown(name: tuple[str, str]) -> TableSchema:
    return TableSchema(*name, (), ())


def _unless_equal(change: TableChange) -> Iterator[TableChange]:
    """Yield the change if there is one: a new index, for example, changes nothing that a TableSchema has."""
    same_columns = change.before.same_shape(change.after) and change.before.charset == change.after.charset
    if not same_columns or change.columns or change.rows is not None or not change.key_is_certain:
        yield change


def shows(found: TableSchema | None, change: TableChange) -> bool:
    """Return whether ``found``, the catalog's description, certainly has ``change``: it differs from the table before.

    False if the change is not visible yet, or cannot be seen in the kinds of the columns and in the key.
    """
    before, after = change.before, change.after
    if found is None or not before.columns or not after.columns or not change.key_is_certain:
        return False
    shapes = [[*map(_shape, one.columns)] for one in (before, after, found)]
    keys = [one.key for one in (before, after, found)]
    return (shapes[0], keys[0]) != (shapes[1], keys[1]) == (shapes[2], keys[2])


def confirmed(change: TableChange, found: TableSchema) -> TableChange:
    """Return ``change`` with the exact types, comments, charsets and key of ``found``, the catalog's description.

    Calls: only if no later statement has changed the table, because the catalog describes it as it is now.
    Raises: SchemaMismatch - ``found`` is not the table that the statement leads to.
    """
    after = change.after
    key_differs = change.key_is_certain and bool(after.columns) and found.key != after.key
    if after.columns and (key_differs or list(map(_shape, after.columns)) != list(map(_shape, found.columns))):
        raise _mismatch(after, found)
    for computed, real in zip(after.columns, found.columns, strict=False):
        if (computed.charset and computed.charset != real.charset) or not same_labels(computed, real):
            raise _mismatch(after, found)
    renamed = {
        each.old.name: each.new.name
        for each in change.columns
        if each.kind is ChangeKind.RENAME_COLUMN and each.old is not None and each.new is not None
    }
    key = tuple(renamed.get(name, name) for name in change.before.key)
    return replace(
        change,
        after=replace(found, since=None),
        columns=tuple(_exact(each, found) for each in change.columns),
        key_changed=key != found.key if after.columns else change.key_changed,
        key_is_certain=True,
    )


def certain(change: TableChange) -> TableChange:
    """Return ``change``, which nothing confirms. Raises: Unreadable - its result depends on what only the server knows.

    Calls: if there is no catalog, or if later statements have changed the table.
    """
    if not change.key_is_certain:
        raise Unreadable("the key after it depends on indexes that are not known")
    for column in change.after.columns:
        if column.kind in TEXTS and not column.charset:
            raise Unreadable(f"the character set of column {column.name} is not known")
    return change


def _shape(column: Column) -> tuple[object, ...]:
    return (
        column.name, column.kind, column.unsigned, column.length, column.precision, column.scale, column.fsp,
        column.generated, len(column.labels),
    )  # fmt: skip


def same_labels(known: Column, real: Column) -> bool:
    """Compare labels with those of information_schema, which has ? for characters outside the basic plane."""
    pairs = zip(known.labels, real.labels, strict=False)
    same = all(one == other or ("?" in other and len(one) == len(other)) for one, other in pairs)
    return same and len(known.labels) == len(real.labels)


def _exact(change: ColumnChange, found: TableSchema) -> ColumnChange:
    if change.new is None or change.kind is ChangeKind.RENAME_COLUMN:
        return change
    real = found.column(change.new.name)
    if real.labels != change.new.labels:
        real = replace(real, labels=change.new.labels)  # those of the statement have all characters
    changes_values = change.changes_values
    if change.old is not None and change.new.kind in TEXTS and not change.new.charset and not change.new.generated:
        changes_values = can_change_values(change.old, real)
    return replace(change, new=real, changes_values=changes_values)


def _mismatch(computed: TableSchema, found: TableSchema) -> SchemaMismatch:
    return SchemaMismatch(
        "The table does not have the columns that follow from the statement.",
        hint="Check whether another statement changed the table. Then run `cdc resume NAME`, or `cdc snapshot NAME` "
        "for this table.",
        table=computed.name,
        statement_leads_to=_text(computed),
        server_has=_text(found),
    )


def _text(schema: TableSchema) -> str:
    columns = ", ".join(f"{each.name} {each.type}" + f" {each.charset}" * bool(each.charset) for each in schema.columns)
    return f"{columns}; key ({', '.join(schema.key)})"
