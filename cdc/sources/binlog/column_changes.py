"""Search the rest of a binlog for statements that change the columns of tables.

A table's current description is valid at an earlier position only if no such statement follows that position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from cdc.model.position import BinlogPosition
from cdc.model.table_names import table_of
from cdc.mysql.ddl import EffectKind
from cdc.mysql.server import Server
from cdc.sources.binlog.decoder.events import Statement
from cdc.sources.binlog.file_tables import FileTables
from cdc.sources.schema_history import Name, SchemaHistory, is_same_position

Scan = Callable[[Server, BinlogPosition, BinlogPosition, Callable[[Statement], None]], BinlogPosition]


@dataclass(frozen=True, slots=True)
class PossibleColumnChange:
    """A statement that may have changed a table's columns."""

    what: str
    at: BinlogPosition


class ColumnChangeSearch:
    """Find the first statement after a position that changes the columns of a table. Calls: the reading thread."""

    def __init__(self, history: SchemaHistory, scan: Scan | None) -> None:
        """``scan``: reads the control events of a server's binlog; None: there is no server."""
        self._history = history
        self._scan = scan
        self._created: dict[Name, BinlogPosition] = {}

    def begin(self) -> None:
        """Forget the CREATE TABLE statements that ``note_created`` recorded."""
        self._created = {}

    def note_created(self, name: Name, position: BinlogPosition) -> None:
        """Ignore this CREATE TABLE in searches: it was read already, and its own transaction may have rows."""
        self._created[name] = position

    def on_server(self, server: Server, start: BinlogPosition, names: set[Name]) -> Mapping[Name, PossibleColumnChange]:
        """Return the first change of each table between ``start`` and the end of the server's binlog."""
        end, changed = server.position(), dict[Name, PossibleColumnChange]()
        if not names or self._scan is None or (start.file and start.server == end.server and start.reached(end)):
            return changed
        with self._searching(names):
            self._scan(server, start, end, lambda statement: self._note(statement, names, changed))
        return changed

    def in_files(self, files: FileTables, start: BinlogPosition, name: Name) -> Mapping[Name, PossibleColumnChange]:
        """Return the first change of the table between ``start`` and the end of the files."""
        changed: dict[Name, PossibleColumnChange] = {}
        with self._searching({name}):
            for statement in files.statements_from(start):
                self._note(statement, {name}, changed)
        return changed

    @contextmanager
    def _searching(self, names: set[Name]) -> Iterator[None]:
        self._history.searched = frozenset(names)
        try:
            yield
        finally:
            self._history.searched = frozenset()

    def _note(self, statement: Statement, names: set[Name], changed: dict[Name, PossibleColumnChange]) -> None:
        effect = self._history.effect(
            statement.sql, statement.database, ansi_quotes=statement.ansi_quotes, mariadb=statement.mariadb
        )
        is_creation = effect.kind is EffectKind.CREATES
        if not (is_creation or effect.reshapes or (effect.kind is EffectKind.TOUCHES and not effect.columns_stay)):
            return
        for name in names.intersection(map(table_of, effect.tables)):
            created = self._created.get(name)
            if not (is_creation and created is not None and is_same_position(created, statement.before)):
                changed.setdefault(name, PossibleColumnChange(effect.reason, statement.before))
