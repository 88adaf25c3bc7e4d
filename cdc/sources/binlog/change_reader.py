"""Read the change that a statement makes, for a job that follows changes instead of pausing at them.

The statement gives the intent, the saved or known schema the columns before it. The columns after it are computed and
compared with the server's, if no later statement has changed the table. Without a server, or after later statements,
they must be certain by themselves; then the rows confirm them, because the decoder compares each TABLE_MAP.
"""

from __future__ import annotations

from collections.abc import Sequence

from cdc.errors import SchemaMismatch
from cdc.model.schema import CopyStatement, TableSchema
from cdc.model.schema_change import SchemaChange, TableChange
from cdc.model.table_names import table_of
from cdc.mysql.ddl import Effect
from cdc.mysql.ddl_tokens import Unreadable
from cdc.mysql.server import Server
from cdc.mysql.statement_time import StatementTime, with_time
from cdc.mysql.table_changes import certain, confirmed, shows
from cdc.mysql.value_changes import with_kept_nulls
from cdc.mysql.visibility import schemas_after
from cdc.sources.binlog.column_changes import ColumnChangeSearch
from cdc.sources.binlog.decoder.events import Statement
from cdc.sources.schema_history import Name, SchemaHistory
from cdc.sources.shadow_tables import ShadowTables
from cdc.sources.table_statements import TableStatements, changes_tables, unknown_tables

_UNKNOWN = "the columns of {} before the statement are not known"
_NO_ROWS = ", because no row of it came before"


def copy_statement(statement: Statement) -> CopyStatement:
    """Return the text of ``statement``, with what its meaning depends on."""
    return CopyStatement(
        statement.sql,
        statement.database,
        statement.ansi_quotes,
        statement.mariadb,
        statement.sql_mode,
        statement.time_zone,
        statement.explicit_timestamps,
    )


class ChangeReader:
    """Reads statements that change mapped tables. Calls: the reading thread."""

    def __init__(self, history: SchemaHistory, search: ColumnChangeSearch, shadows: ShadowTables) -> None:
        self._history = history
        self._search = search
        self._shadows = shadows

    def read(self, statement: Statement, effect: Effect) -> SchemaChange | str:
        """Return what ``statement`` changes, or the reason why that is not certain.

        Raises: SchemaMismatch - the server's columns are not those that follow from the statement; SourceUnavailable.
        """
        reader = TableStatements(self._history, self._shadows, lambda name: self._before(statement, effect, name))
        try:
            found = reader.read(copy_statement(statement), effect, reader.named)
            if missing := unknown_tables(found, effect):
                return _UNKNOWN.format(missing)
            if changes_tables(found, effect):
                return self._change_of_tables(reader, statement, found)
            changes = [one for one in found if reader.is_mapped(one)]
            if unknown := sorted({one.before.name for one in changes if not one.before.columns}):
                return f"{_UNKNOWN.format(', '.join(unknown))}{_NO_ROWS}"
            time = StatementTime(statement.timestamp, statement.microseconds, statement.time_zone)
            tables = with_time(self._confirmed(statement, changes), time, self._history.connect)
        except Unreadable as error:
            unknown = sorted(name for name in effect.tables if self._is_only_loaded(table_of(name)))
            if unknown:  # it was compared with what the server had when it was opened, perhaps after the statement
                return f"{_UNKNOWN.format(', '.join(unknown))}{_NO_ROWS}"
            return str(error) or "it has an unknown form"
        forgets = self._shadows.outdated(tables)
        return SchemaChange(statement.sql, statement.before, statement.after, tuple(tables), forgets)

    def _change_of_tables(
        self, reader: TableStatements, statement: Statement, found: Sequence[TableChange]
    ) -> SchemaChange | str:
        if statement.is_part:
            return "its transaction also has rows"
        try:
            tables = reader.by_name(
                found,
                lambda changes: self._confirmed(statement, changes),
                lambda server, name: self._described(server, statement, name),
            )
        except Unreadable as error:
            return str(error)
        return SchemaChange(
            statement.sql, statement.before, statement.after, tables.tables, tables.forgets, tables.renamed
        )

    def _is_only_loaded(self, name: Name) -> bool:
        """Return whether the job loads the table, but has read no columns of it at an earlier position."""
        return not self._history.has(name) and bool(self._history.known(*name))

    # --- the columns of the server ---

    def _before(self, statement: Statement, effect: Effect, name: Name) -> TableSchema | None:
        """Return the table before the statement, without columns if those that the job knows may be newer."""
        found = self._history.at_statement(name, statement.before)
        if found is None or found.columns or not effect.columns_stay or self._history.connect is None:
            return found
        with self._history.connect() as server:
            is_changed = self._search.on_server(server, statement.after, {name})
        return found if is_changed else self._history.current(name)

    def _confirmed(self, statement: Statement, changes: list[TableChange]) -> list[TableChange]:
        needs_no_server = all(one.rows is not None and not one.columns and one.key_is_certain for one in changes)
        if self._history.connect is None or needs_no_server:
            return [certain(one) for one in changes]
        names: list[Name] = [(one.after.database, one.after.table) for one in changes]
        done = []
        with self._history.connect() as server:
            found = schemas_after(
                server,
                names,
                statement.after,
                lambda found: all(shows(found.get(name), one) for name, one in zip(names, changes, strict=True)),
            )
            for name, change in zip(names, changes, strict=True):
                described = found.get(name)
                try:
                    if described is None:
                        raise SchemaMismatch("The table does not exist any more.", hint="Do nothing.", table=name)
                    done.append(self._with_nulls(server, statement, change, confirmed(change, described)))
                except SchemaMismatch:
                    # a later statement has changed the table: what the server has now is not what follows from this one
                    if not self._search.on_server(server, statement.after, {name}):
                        raise
                    done.append(certain(change))
        return done

    def _with_nulls(
        self, server: Server, statement: Statement, computed: TableChange, exact: TableChange
    ) -> TableChange:
        """Return ``exact``; ``computed`` if NULL or NOT NULL of the columns may be that of a later statement."""
        nulls = [[column.nullable for column in one.after.columns] for one in (computed, exact)]
        found, name = with_kept_nulls(exact), (exact.after.database, exact.after.table)
        is_equal = (not nulls[0] or nulls[0] == nulls[1]) and found == exact
        is_changed = not is_equal and self._search.on_server(server, statement.after, {name})
        return certain(computed) if is_changed else found

    def _described(self, server: Server, statement: Statement, name: Name) -> TableSchema | None:
        """Return the table after the statement; None if it does not exist, or if a later statement has changed it."""
        found = schemas_after(server, [name], statement.after).get(name)
        return None if self._search.on_server(server, statement.after, {name}) else found
