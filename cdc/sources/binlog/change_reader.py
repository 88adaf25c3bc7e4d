"""Read the change that a statement makes, for a job that follows changes instead of pausing at them.

The statement gives the intent, the saved or known schema the columns before it. The columns after it are computed and
compared with the server's, if no later statement has changed the table. Without a server, or after later statements,
they must be certain by themselves; then the rows confirm them, because the decoder compares each TABLE_MAP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from cdc.errors import SchemaMismatch, SourceUnavailable
from cdc.model.schema import TableSchema
from cdc.model.schema_change import ChangeKind, SchemaChange, TableChange
from cdc.model.table_names import table_of, table_text
from cdc.mysql.catalog import table_schemas
from cdc.mysql.ddl import Effect
from cdc.mysql.ddl_tokens import Unreadable, refuse
from cdc.mysql.statement_time import StatementTime, with_time
from cdc.mysql.table_changes import certain, confirmed, read_changes
from cdc.mysql.table_contents import TABLE_KINDS, Content, changes_by_name, contents_of
from cdc.sources.binlog.column_changes import ColumnChangeSearch
from cdc.sources.binlog.decoder.events import Statement
from cdc.sources.binlog.shadow_tables import ShadowTables, dialect_of
from cdc.sources.schema_history import Name, SchemaHistory


class ChangeReader:
    """Reads statements that change mapped tables. Calls: the reading thread."""

    def __init__(self, history: SchemaHistory, search: ColumnChangeSearch, shadows: ShadowTables) -> None:
        self._history = history
        self._search = search
        self._shadows = shadows

    def read(self, statement: Statement, effect: Effect) -> SchemaChange | str:
        """Return what ``statement`` changes, or the reason why that is not certain.

        Raises: SchemaMismatch - the server's columns are not those that follow from the statement.
        """
        try:
            found = self._read(statement, effect)
            drops_nothing = not found and effect.reason == "DROP TABLE"  # no row of the table was ever read
            if drops_nothing or any(one.rows in TABLE_KINDS for one in found):
                return self._change_of_tables(statement, found)
            changes = [one for one in found if self._is_mapped(one)]
            missing = {*effect.tables} - {schema.name for one in changes for schema in (one.before, one.after)}
            if missing:
                return f"the columns of {', '.join(sorted(missing))} before the statement are not known"
            if not all(one.before.columns for one in changes):
                return "the columns before the statement are not known"
            time = StatementTime(statement.timestamp, statement.microseconds, statement.time_zone)
            tables = with_time(self._confirmed(statement, changes), time, self._history.connect)
        except Unreadable as error:
            return str(error) or "it has an unknown form"
        except SourceUnavailable as error:
            return f"the source cannot be asked for the columns: {error.message}"
        return SchemaChange(statement.sql, statement.before, statement.after, tuple(tables))

    def _read(self, statement: Statement, effect: Effect) -> tuple[TableChange, ...]:
        try:
            return read_changes(
                statement.sql,
                database=statement.database,
                schema_of=self._named,
                tables_of=lambda database: [table_of(name)[1] for name in self._history.known(database)],
                dialect=dialect_of(statement),
                fold_case=self._history.fold_case,
            )
        except Unreadable:
            names = [table_of(name) for name in effect.tables]
            if not names or any(self._history.dropped(name) is None for name in names):
                raise
            # it creates a dropped table again, and the server has its columns: CREATE TABLE .. LIKE, for example
            created = TableSchema(*names[0], (), ())
            return (TableChange(created, created, rows=ChangeKind.CREATE_TABLE),)

    def _named(self, database: str, table: str) -> TableSchema | None:
        """Return a mapped table that the job has loaded, or one that was renamed to this name; None for others.

        It has no columns if only a snapshot has loaded it and the server no longer has it.
        """
        if not self._history.maps(database, table):
            found = self._history.renamed((database, table))
            return None if found is None else replace(found, is_renamed=False)
        is_loaded = bool(self._history.known(database, table))
        return self._history.current((database, table)) or (TableSchema(database, table, (), ()) if is_loaded else None)

    def _is_mapped(self, change: TableChange) -> bool:
        return any(self._history.maps(schema.database, schema.table) for schema in (change.before, change.after))

    # --- statements that rename, drop or create tables ---

    def _change_of_tables(self, statement: Statement, found: Sequence[TableChange]) -> SchemaChange | str:
        if statement.is_part:
            return "its transaction also has rows"
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
        changes = [
            *self._confirmed(statement, copies),
            *changes_by_name(others, self._before, lambda *one: self._after(statement, *one)),
            *(one for one in found if one.rows not in TABLE_KINDS and self._is_mapped(one)),
        ]
        recorded = [name for name in forgets if self._history.shadow(name) or self._history.renamed(name)]
        names = tuple(sorted(table_text(*name) for name in recorded))
        renamed = tuple(self._renamed(contents))
        return SchemaChange(statement.sql, statement.before, statement.after, tuple(changes), names, renamed)

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
        return self._history.dropped((database, table)) or self._named(database, table)

    def _after(self, statement: Statement, name: Name, content: Content, before: TableSchema | None) -> TableSchema:
        """Return the columns of ``name`` after the statement. Raises: Unreadable, SchemaMismatch."""
        computed = content.schema
        assert computed is not None
        if computed.columns:
            change = TableChange(computed, replace(computed, database=name[0], table=name[1]))
            return self._confirmed(statement, [change])[0].after
        if self._history.connect is not None:
            with self._history.connect() as server:
                found = table_schemas(server, [name]).get(name)
                if found is not None and not self._search.on_server(server, statement.after, {name}):
                    return found
        if before is not None and before.columns:
            refuse(f"the columns of {table_text(*name)} after it are not known")
        return computed

    # --- the columns of the server ---

    def _confirmed(self, statement: Statement, changes: list[TableChange]) -> list[TableChange]:
        if self._history.connect is None or all(one.rows is not None and not one.columns for one in changes):
            return [certain(one) for one in changes]
        names: list[Name] = [(one.after.database, one.after.table) for one in changes]
        done = []
        with self._history.connect() as server:
            found = table_schemas(server, names)
            for name, change in zip(names, changes, strict=True):
                described = found.get(name)
                try:
                    if described is None:
                        raise SchemaMismatch("The table does not exist any more.", hint="Do nothing.", table=name)
                    done.append(confirmed(change, described))
                except SchemaMismatch:
                    # a later statement has changed the table: what the server has now is not what follows from this one
                    if not self._search.on_server(server, statement.after, {name}):
                        raise
                    done.append(certain(change))
        return done
