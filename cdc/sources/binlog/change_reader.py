"""Read the change that a statement makes, for a job that follows changes instead of pausing at them.

The statement gives the intent, the saved or known schema the columns before it. The columns after it are computed and
compared with the server's, if no later statement has changed the table. Without a server, or after later statements,
they must be certain by themselves; then the rows confirm them, because the decoder compares each TABLE_MAP.
"""

from __future__ import annotations

import datetime
from dataclasses import replace

from cdc.errors import SchemaMismatch, SourceUnavailable
from cdc.model.schema import Kind, TableSchema
from cdc.model.schema_change import ColumnChange, Fill, FillKind, SchemaChange, TableChange
from cdc.mysql.catalog import table_schemas
from cdc.mysql.column_definition import Dialect
from cdc.mysql.ddl import Effect
from cdc.mysql.ddl_tokens import Unreadable
from cdc.mysql.table_changes import certain, confirmed, read_changes
from cdc.sources.binlog.column_changes import ColumnChangeSearch
from cdc.sources.binlog.decoder.events import Statement
from cdc.sources.schema_history import Name, SchemaHistory

_REAL_AS_FLOAT, _NO_BACKSLASH_ESCAPES = 1, 1 << 20  # bits of sql_mode


class ChangeReader:
    """Reads statements that change mapped tables. Calls: the reading thread."""

    def __init__(self, history: SchemaHistory, search: ColumnChangeSearch) -> None:
        self._history = history
        self._search = search

    def read(self, statement: Statement, effect: Effect) -> SchemaChange | str:
        """Return what ``statement`` changes, or the reason why that is not certain.

        Raises: SchemaMismatch - the server's columns are not those that follow from the statement.
        """
        try:
            found = read_changes(
                statement.sql,
                database=statement.database,
                schema_of=self._known,
                dialect=_dialect(statement),
                fold_case=self._history.fold_case,
            )
            changes = [_timed(one, statement.timestamp) for one in found if self._is_mapped(one)]
            missing = {*effect.tables} - {schema.name for one in changes for schema in (one.before, one.after)}
            if missing:
                return f"the columns of {', '.join(sorted(missing))} before the statement are not known"
            if not all(one.before.columns for one in changes):
                return "the columns before the statement are not known"
            confirmed_changes = self._confirmed(statement, changes)
        except Unreadable as error:
            return str(error) or "it has an unknown form"
        except SourceUnavailable as error:
            return f"the source cannot be asked for the columns: {error.message}"
        return SchemaChange(statement.sql, statement.before, statement.after, tuple(confirmed_changes))

    def _known(self, database: str, table: str) -> TableSchema | None:
        return self._history.current((database, table)) if self._history.maps(database, table) else None

    def _is_mapped(self, change: TableChange) -> bool:
        return any(self._history.maps(schema.database, schema.table) for schema in (change.before, change.after))

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


def _dialect(statement: Statement) -> Dialect:
    mode = statement.sql_mode
    return Dialect(
        mariadb=statement.mariadb,
        ansi_quotes=statement.ansi_quotes,
        backslash_escapes=None if mode is None else not mode & _NO_BACKSLASH_ESCAPES,
        real_is_float=None if mode is None else bool(mode & _REAL_AS_FLOAT),
    )


def _timed(change: TableChange, timestamp: int) -> TableChange:
    """Return ``change`` with the time of the statement as the value of new TIMESTAMP columns, in whole seconds."""
    return replace(change, columns=tuple(_timed_column(one, timestamp) for one in change.columns))


def _timed_column(change: ColumnChange, timestamp: int) -> ColumnChange:
    column = change.new
    if change.fill.kind is not FillKind.STATEMENT_TIME or column is None:
        return change
    # the zone of the session, which DATETIME and DATE have, and fractions are not read: these tables are loaded again
    if column.kind is not Kind.TIMESTAMP or column.fsp:
        return change
    text = datetime.datetime.fromtimestamp(timestamp, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    return replace(change, fill=Fill(FillKind.LITERAL, text.encode()))
