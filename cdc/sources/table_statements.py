"""Read statements that rename, drop or create tables, for the change readers of all sources.

Such a statement is described for each name that a channel reads: which table it means after the statement, and which
one its target has. ``shadow_tables`` adds the copies of gh-ost and pt-online-schema-change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlglot.errors import SqlglotError

from cdc.model.schema import CopyStatement, TableSchema
from cdc.model.schema_change import ChangeKind, TableChange
from cdc.model.table_names import table_of, table_text
from cdc.mysql.ddl import Effect
from cdc.mysql.ddl_tokens import Unreadable, refuse, tokens_of
from cdc.mysql.ddl_words import StoredName, is_versioned
from cdc.mysql.server import Server
from cdc.mysql.table_changes import read_changes
from cdc.mysql.table_contents import TABLE_KINDS, Content, changes_by_name, contents_of
from cdc.sources.schema_history import Name, SchemaHistory
from cdc.sources.shadow_tables import ShadowTables, dialect_of
from cdc.sources.stored_names import UncertainName

_SETS_CHARSET = re.compile(r"\b(?:CHARSET|CHARACTER|COLLATE)\b", re.IGNORECASE)
_DROP = "DROP TABLE"  # ``Effect.reason``
Confirm = Callable[[list[TableChange]], list[TableChange]]
Describe = Callable[[Server, Name], TableSchema | None]


@dataclass(frozen=True, slots=True)
class FoundTables:
    """What a statement on whole tables changes. The fields are those of ``SchemaChange``."""

    tables: tuple[TableChange, ...]
    forgets: tuple[str, ...]
    renamed: tuple[TableSchema, ...]


def changes_tables(found: Sequence[TableChange], effect: Effect) -> bool:
    """Return whether a statement renames, drops or creates mapped tables."""
    drops_nothing = not found and effect.reason == _DROP  # no row of the table was ever read
    return drops_nothing or any(one.rows in TABLE_KINDS for one in found)


def unknown_tables(found: Sequence[TableChange], effect: Effect) -> str:
    """Return the mapped tables of a statement without a change, because their columns are not known; "" if none.

    DROP TABLE needs no columns: of such a table no row was ever read.
    """
    names = {schema.name for one in found for schema in (one.before, one.after)}
    return "" if effect.reason == _DROP else ", ".join(sorted({*effect.tables} - names))


def charset_after(statement: CopyStatement, known: TableSchema, stored: StoredName) -> str:
    """Return the default charset of ``known`` after an ALTER TABLE; "" if it is not known.

    A column that a later statement adds without a charset has it.
    """
    if not _SETS_CHARSET.search(statement.sql):
        return known.charset
    try:
        changes = read_changes(
            statement.sql,
            database=statement.database,
            schema_of=lambda database, table: known if (database, table) == (known.database, known.table) else None,
            dialect=dialect_of(statement),
            stored=stored,
        )
    except (Unreadable, SqlglotError):
        return ""
    return changes[0].after.charset if changes else known.charset


class TableStatements:
    """Reads statements that rename, drop or create tables. Calls: the thread that reads the source."""

    def __init__(
        self,
        history: SchemaHistory,
        shadows: ShadowTables,
        current: Callable[[Name], TableSchema | None] | None = None,
    ) -> None:
        """``current``: replaces ``history.current``: the table before the statement that is read."""
        self._history = history
        self._shadows = shadows
        self._current = current or history.current

    def named(self, database: str, table: str) -> TableSchema | None:
        """Return a mapped table that the job has loaded, or one that was renamed to this name; None for others.

        It has no columns if only a snapshot has loaded it and the server no longer has it.
        """
        if not self._history.maps(database, table):
            found = self._history.renamed((database, table))
            return None if found is None else replace(found, is_renamed=False)
        is_loaded = bool(self._history.known(database, table))
        return self._current((database, table)) or (TableSchema(database, table, (), ()) if is_loaded else None)

    def read(
        self, statement: CopyStatement, effect: Effect, schema_of: Callable[[str, str], TableSchema | None]
    ) -> tuple[TableChange, ...]:
        """Return what ``statement`` changes, step by step. Raises: Unreadable."""
        try:
            return read_changes(
                statement.sql,
                database=statement.database,
                schema_of=schema_of,
                tables_of=lambda database: [table_of(name)[1] for name in self._history.known(database)],
                dialect=dialect_of(statement),
                stored=self._history.names.certain,
            )
        except UncertainName:
            raise
        except Unreadable:
            names = [table_of(name) for name in effect.tables]
            is_created = effect.reason.startswith("CREATE") and bool(names)  # not a text that cannot be read at all
            if not is_created or any(self._history.dropped(name) is None for name in names):
                raise
            if is_versioned(
                tokens_of(statement.sql, bool(statement.ansi_quotes), mariadb=statement.mariadb is not False)
            ):
                raise
            # it creates a dropped table again, and the server has its columns: CREATE TABLE .. LIKE, for example
            created = TableSchema(*names[0], (), ())
            return (TableChange(created, created, rows=ChangeKind.CREATE_TABLE),)

    def is_mapped(self, change: TableChange) -> bool:
        """Return whether a channel reads one of the names of ``change``."""
        return any(self._history.maps(schema.database, schema.table) for schema in (change.before, change.after))

    def by_name(self, found: Sequence[TableChange], confirm: Confirm, describe: Describe) -> FoundTables:
        """Return the changes of each mapped name.

        ``confirm``: returns changes as the server confirms them. ``describe``: returns the table after the statement;
        None if the server has no such table, or if another statement may have changed it since.
        Raises: Unreadable, SchemaMismatch, SourceUnavailable.
        """
        contents = contents_of(found)
        forgets = {name for content in contents for name in (content, contents[content].origin) if name is not None}
        copies: list[TableChange] = []
        others: list[tuple[Name, Content]] = []
        for name, content in contents.items():
            if not self._history.maps(*name):
                continue
            original, origin = self._before(*name), content.origin
            copy = None
            if original is not None and original.columns and origin is not None:
                copy = self._shadows.as_alter(original, origin)
            if copy is not None:
                copies.append(copy)
            else:
                others.append((name, content))

        def complete(name: Name, content: Content, before: TableSchema | None) -> TableSchema:
            return self._after(name, content, before, confirm, describe)

        changes = (
            *confirm(copies),
            *changes_by_name(others, self._before, complete),
            *confirm([one for one in found if one.rows not in TABLE_KINDS and self.is_mapped(one)]),
        )
        recorded = [name for name in forgets if self._history.shadow(name) or self._history.renamed(name)]
        names = {*(table_text(*name) for name in recorded), *self._shadows.outdated(changes)}
        return FoundTables(changes, tuple(sorted(names)), tuple(self._renamed(contents)))

    def _renamed(self, contents: Mapping[Name, Content]) -> Iterator[TableSchema]:
        """Yield the tables that have a name after the statement that no channel reads, if their columns are known.

        With them a later RENAME TABLE back can be followed, also if the table was changed again after it.
        """
        for name, content in contents.items():
            schema = content.schema
            is_plain = not {*'`"\\'} & {*name[0], *name[1]}  # its text in a statement is the name itself
            if schema is None or not schema.columns or content.origin is None or self._history.maps(*name):
                continue
            if is_plain:
                yield replace(schema, database=name[0], table=name[1], since=None, copy=None, is_renamed=True)

    def _before(self, database: str, table: str) -> TableSchema | None:
        """Return the columns of a table, or those that it had when it was dropped: its target still has them."""
        return self._history.dropped((database, table)) or self.named(database, table)

    def _after(
        self,
        name: Name,
        content: Content,
        before: TableSchema | None,
        confirm: Confirm,
        describe: Describe,
    ) -> TableSchema:
        """Return the columns of ``name`` after the statement. Raises: Unreadable, SchemaMismatch."""
        computed = content.schema
        assert computed is not None
        if self._history.is_versioned(name):
            refuse(f"{table_text(*name)} has system versioning after it: its deletes are logged as updates")
        shadow = self._history.shadow(content.origin) if content.origin is not None else None
        if not computed.columns and shadow is not None:  # its rows can differ, but its columns are known
            computed = replace(shadow, copy=None, since=None)
        if computed.columns:
            return confirm([TableChange(computed, replace(computed, database=name[0], table=name[1]))])[0].after
        if self._history.connect is not None:
            with self._history.connect() as server:
                if (found := describe(server, name)) is not None:
                    return found
        has_server = self._history.connect is not None
        if before is not None and (before.columns or (before.is_dropped and has_server)):
            refuse(f"the columns of {table_text(*name)} after it are not known")
        return computed
