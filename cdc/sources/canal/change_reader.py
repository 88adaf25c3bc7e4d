"""Read the change that a statement from Canal makes, for a job that follows changes instead of pausing at them.

The statement gives the intent, the job's schema the columns before it. With ``source.mysql``, the catalog confirms the
columns after it, unless a later statement has changed the table. Else they must be certain by themselves. The rows
after the statement confirm them in both cases, because each layout is compared with the schema.

Canal reports neither the sql_mode nor the time zone of the session. A statement whose meaning depends on the sql_mode
is refused, and a value that depends on the time zone, such as CURRENT_TIMESTAMP, is loaded by a snapshot.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from cdc.errors import SchemaMismatch
from cdc.model.position import CanalPosition
from cdc.model.schema import Column, CopyStatement, TableSchema
from cdc.model.schema_change import ChangeKind, ColumnChange, SchemaChange, TableChange
from cdc.model.table_names import table_of, table_text
from cdc.mysql.catalog import table_schemas
from cdc.mysql.column_definition import TEXTS
from cdc.mysql.ddl import Effect
from cdc.mysql.ddl_tokens import Unreadable
from cdc.mysql.server import Server
from cdc.mysql.table_changes import certain, confirmed
from cdc.sources.canal.layout import NO_SERVER_CHARSET, Layout, has_order
from cdc.sources.schema_history import Name, SchemaHistory
from cdc.sources.shadow_tables import ShadowTables
from cdc.sources.table_statements import TableStatements, changes_tables, charset_after, unknown_tables

_DROPS = (ChangeKind.DROP_TABLE, ChangeKind.DROP_DATABASE)
_HAS_ROWS = re.compile(r"START\s+TRANSACTION\s*$", re.IGNORECASE)  # how MySQL logs CREATE TABLE .. SELECT


@dataclass(frozen=True, slots=True)
class CanalStatement:
    """A statement that Canal sends."""

    database: str  # the session's default database
    sql: str
    before: CanalPosition
    after: CanalPosition
    dml: bool  # rows logged as text
    time_ms: int


class CanalChangeReader:
    """Reads statements that change mapped tables. Calls: the Consumer's thread."""

    def __init__(self, history: SchemaHistory) -> None:
        self.mariadb: bool | None = None  # None: the server is not known
        self._history = history
        self._shadows = ShadowTables(history)
        self._tables = TableStatements(history, self._shadows)
        self._unknown: set[Name] = set()  # the columns have changed, and no row has shown them since
        self._layouts: dict[Name, set[Layout]] = {}  # of the rows since the table's last statement

    def begin(self) -> None:
        """Forget what the rows have shown."""
        self._unknown.clear()
        self._layouts.clear()

    def note_rows(self, name: Name, layout: Layout) -> None:
        """Record the layout of rows that match the newest schema of their table."""
        self._unknown.discard(name)
        self._layouts.setdefault(name, set()).add(layout)

    def note_statement(self, names: Iterable[Name], *, columns_stay: bool) -> None:
        """Record a statement that the job has passed without reading its change."""
        for name in names:
            self._layouts.pop(name, None)
            if not columns_stay:
                self._unknown.add(name)

    def note_charset(self, statement: CanalStatement, known: TableSchema) -> bool:
        """Record the default charset of ``known`` after a statement. Return whether it is another one."""
        charset = charset_after(self._text(statement), known, self._history.names.certain)
        return self._history.note_charset((known.database, known.table), charset, statement.after)

    def end_copies(self, originals: Iterable[Name], position: CanalPosition) -> None:
        """See ``ShadowTables``."""
        self._shadows.end_copies(originals, position)

    def note_passed(self, statement: CanalStatement) -> None:
        """Record what a statement does to tables that no channel reads: shadow tables, and tables that were renamed."""
        self._shadows.note(self._text(statement), statement.after)
        self._history.end_renamed(statement.sql, statement.after)

    def read(self, statement: CanalStatement, effect: Effect) -> SchemaChange | str:
        """Return what ``statement`` changes, or the reason why that is not certain. Raises: SourceUnavailable."""
        try:
            found = self._tables.read(self._text(statement), effect, self._known)
            if missing := unknown_tables(found, effect):
                return f"the columns of {missing} before the statement are not known"
            if changes_tables(found, effect):
                return self._change_of_tables(statement, found)
            changes = [one for one in found if self._tables.is_mapped(one)]
            if not all(one.before.columns for one in changes):
                return "the columns before the statement are not known"
            for change in changes:
                self._check_names(change)
            tables = tuple(self._confirmed(changes))
        except Unreadable as error:
            if unknown := sorted(name for name in effect.tables if table_of(name) in self._unknown):
                return f"the columns of {', '.join(unknown)} before the statement are not known"
            return str(error) or "it has an unknown form"
        return SchemaChange(statement.sql, statement.before, statement.after, tables, self._shadows.outdated(tables))

    def _text(self, statement: CanalStatement) -> CopyStatement:
        return CopyStatement(statement.sql, statement.database, ansi_quotes=None, mariadb=self.mariadb)

    def _known(self, database: str, table: str) -> TableSchema | None:
        """Return a table before the statement, without columns if those are not known; None if it has no rows."""
        found = self._tables.named(database, table)
        is_unknown = found is not None and (database, table) in self._unknown
        return TableSchema(database, table, (), ()) if is_unknown else found

    def _change_of_tables(self, statement: CanalStatement, found: Sequence[TableChange]) -> SchemaChange | str:
        if _HAS_ROWS.search(statement.sql):
            return "its transaction also has rows"
        # a DROP needs no columns: the target has the rows until the table is created again
        others = [one for one in found if one.rows not in _DROPS]
        names = {(one.database, one.table) for change in others for one in (change.before, change.after)}
        if unknown := names & self._unknown:
            return f"the columns of {', '.join(table_text(*name) for name in sorted(unknown))} before it are not known"
        # Canal can be late, so the catalog may be newer than the statement: the rows after it confirm the columns
        tables = self._tables.by_name(found, self._confirmed, _described)
        for change in tables.tables:
            self._check_names(change)
        return SchemaChange(
            statement.sql, statement.before, statement.after, tables.tables, tables.forgets, tables.renamed
        )

    def _check_names(self, change: TableChange) -> None:
        """Raise Unreadable if Canal has named columns before a rename as they are called at another time.

        Without TSDB, Canal names the columns as they are now, not as they were. The values of the rows before the
        rename are then in columns with other names, and only the names show it.
        """
        layouts: Collection[Layout] = self._layouts.get((change.before.database, change.before.table), ())
        renames = any(one.kind is ChangeKind.RENAME_COLUMN for one in change.columns)
        if renames and not all(has_order(change.before, layout) for layout in layouts):
            raise Unreadable(
                "Canal named the columns before the rename as they are called after it: enable its TSDB "
                "(canal.instance.tsdb.enable=true)"
            )

    def _confirmed(self, changes: list[TableChange]) -> list[TableChange]:
        if self._history.connect is None or not changes:
            return [certain(_with_charsets(one)) for one in changes]
        names = [(one.after.database, one.after.table) for one in changes]
        with self._history.connect() as server:
            found = table_schemas(server, names)
        return [_compared(change, found.get(name)) for name, change in zip(names, changes, strict=True)]


def _described(server: Server, name: Name) -> TableSchema | None:
    return table_schemas(server, [name]).get(name)


def _compared(change: TableChange, found: TableSchema | None) -> TableChange:
    """Return ``change`` as the catalog confirms it. Raises: Unreadable - it does not, and the change is not certain.

    A different catalog proves nothing: Canal can be late, and a later statement can have changed the table. The next
    rows of the table are compared with the computed columns.
    """
    try:
        return confirmed(change, found) if found is not None else certain(change)
    except SchemaMismatch:
        return certain(change)


def _with_charsets(change: TableChange) -> TableChange:
    """Return ``change`` with the charset that columns made of rows have, for added columns without a charset.

    Changed columns stay without one: whether values change depends on charsets that only the server knows.
    """
    added = {one.new.name for one in change.columns if one.kind is ChangeKind.ADD_COLUMN and one.new is not None}
    after = tuple(_with_charset(one) if one.name in added else one for one in change.after.columns)
    columns = tuple(_added_with_charset(one) for one in change.columns)
    return replace(change, after=replace(change.after, columns=after), columns=columns)


def _added_with_charset(change: ColumnChange) -> ColumnChange:
    if change.kind is not ChangeKind.ADD_COLUMN or change.new is None:
        return change
    return replace(change, new=_with_charset(change.new))


def _with_charset(column: Column) -> Column:
    if column.kind not in TEXTS or column.charset:
        return column
    return replace(column, charset=NO_SERVER_CHARSET)
