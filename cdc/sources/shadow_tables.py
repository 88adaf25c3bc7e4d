"""Shadow tables: the copies that gh-ost and pt-online-schema-change change in place of a table.

The tools create a copy of the table t, change the copy with ALTER TABLE, fill it, and rename it to t. The job reads
only t. ``ShadowTables`` records the statements of each copy, so that the final RENAME TABLE is one ALTER TABLE of t,
and t is not loaded again. They are saved with the schemas of a checkpoint.

The sequences, observed with MySQL 9.7 and MariaDB 10.11:

::

    gh-ost     CREATE _t_gho LIKE t; ALTER _t_gho; rows of _t_gho; RENAME t TO _t_del, _t_gho TO t
    pt-osc     CREATE _t_new (..); ALTER _t_new; CREATE TRIGGER pt_osc_..; rows; RENAME t TO _t_old, _t_new TO t
    drop_swap  the same, but at the end: DROP t; RENAME _t_new TO t

Source: gh-ost, "Cut-over"; Percona Toolkit, "pt-online-schema-change".
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from sqlglot.errors import SqlglotError

from cdc.model.position import Position
from cdc.model.schema import Column, CopyStatement, ShadowCopy, TableSchema
from cdc.model.schema_change import ChangeKind, ColumnChange, Fill, FillKind, TableChange
from cdc.model.table_names import originals_of, table_text
from cdc.mysql.column_definition import Dialect
from cdc.mysql.ddl_tokens import Token, TokenCursor, Unreadable, tokens_of
from cdc.mysql.ddl_words import TableNames
from cdc.mysql.table_changes import read_changes
from cdc.sources.schema_history import Name, SchemaHistory

_log = logging.getLogger(__name__)

_SUFFIXES = ("_gho", "_new")
_LOSES_ROWS = (ChangeKind.TRUNCATE_TABLE, ChangeKind.DROP_PARTITION)
_REAL_AS_FLOAT, _NO_BACKSLASH_ESCAPES = 1, 1 << 20  # bits of sql_mode
_TRIGGER = re.compile(r"\s*CREATE\s.*?\bTRIGGER\s.*?\bpt_osc_", re.IGNORECASE | re.DOTALL)


def dialect_of(statement: CopyStatement) -> Dialect:
    """Return what the meaning of the statement's text depends on."""
    mode = statement.sql_mode
    return Dialect(
        mariadb=statement.mariadb,
        ansi_quotes=statement.ansi_quotes,
        backslash_escapes=None if mode is None else not mode & _NO_BACKSLASH_ESCAPES,
        real_is_float=None if mode is None else bool(mode & _REAL_AS_FLOAT),
        explicit_timestamps=statement.explicit_timestamps,
        time_zone=statement.time_zone,
    )


class ShadowTables:
    """Records the statements of shadow tables. Calls: the thread that reads the source."""

    def __init__(self, history: SchemaHistory) -> None:
        self._history = history

    def note(self, statement: CopyStatement, after: Position) -> None:
        """Record what ``statement`` does to shadow tables. One that is not certain ends the record of its tables.

        ``after``: the position after the statement.
        """
        if not any(suffix in statement.sql for suffix in _SUFFIXES):
            return
        if _TRIGGER.match(statement.sql):
            self._note_triggers(statement, after)
            return
        try:
            name = self._altered(statement)
            changes = read_changes(
                statement.sql,
                database=statement.database,
                schema_of=self._schema,
                dialect=dialect_of(statement),
                stored=self._history.names.certain,
            )
        except (Unreadable, SqlglotError) as error:
            _log.info("a statement that may change a shadow table cannot be read: %s", error)
            for one in self._named(statement):
                self._history.end(one, after)
            return
        if name is not None:
            self._note_alter(name, changes, statement, after)
            return
        for change in changes:
            self._note_table(change, after)

    def _schema(self, database: str, table: str) -> TableSchema | None:
        name = (database, table)
        shadow = self._history.shadow(name)
        return shadow or (self._history.current(name) if self._history.maps(*name) else None)

    def _altered(self, statement: CopyStatement) -> Name | None:
        """Return the shadow table that an ALTER TABLE changes; None for other statements."""
        cursor = TokenCursor(_tokens(statement))
        if not cursor.take("ALTER"):
            return None
        cursor.take("ONLINE") or cursor.take("IGNORE")
        if not cursor.take("TABLE"):
            return None
        cursor.if_exists()
        name = TableNames(statement.database, self._history.names.certain).read(cursor)
        return name if self._history.shadow(name) is not None else None

    def _note_alter(
        self, name: Name, changes: tuple[TableChange, ...], statement: CopyStatement, position: Position
    ) -> None:
        shadow = self._history.shadow(name)
        assert shadow is not None and shadow.copy is not None
        if any(change.rows is not None for change in changes):  # it is renamed, or loses rows
            self._history.end(name, position)
            return
        after = changes[0].after if changes else shadow
        copy = replace(shadow.copy, statements=(*shadow.copy.statements, statement))
        self._history.add_shadow(name, replace(after, copy=copy), position)

    def _note_table(self, change: TableChange, position: Position) -> None:
        for schema in (change.before, change.after):
            name = (schema.database, schema.table)
            if self._history.shadow(name) is not None:
                self._history.end(name, position)
        name = (change.after.database, change.after.table)
        if change.rows is not ChangeKind.CREATE_TABLE or self._history.maps(*name):
            return
        for table in originals_of(name[1]):
            original = self._history.current((name[0], table)) if self._history.maps(name[0], table) else None
            if original is not None and _same_columns(original, change.after):
                shadow = replace(original, table=name[1], copy=ShadowCopy())
                self._history.add_shadow(name, shadow, position)
                _log.info("%s is the shadow table of %s", shadow.name, original.name)
                return

    def _note_triggers(self, statement: CopyStatement, position: Position) -> None:
        for name in self._named(statement):
            shadow = self._history.shadow(name)
            if shadow is not None and shadow.copy is not None:
                copy = replace(shadow.copy, has_triggers=True)
                self._history.add_shadow(name, replace(shadow, copy=copy), position)

    def _named(self, statement: CopyStatement) -> list[Name]:
        """Return the shadow tables whose name is in the text of ``statement``."""
        text = statement.sql.casefold()
        return [name for name in self._history.shadows() if name[1].casefold() in text]

    def outdated(self, changes: Iterable[TableChange]) -> tuple[str, ...]:
        """Return the shadow tables whose original loses rows in ``changes`` without row events.

        The copy keeps those of these rows that the tool has copied, so its record is no ALTER TABLE of the original.
        """
        losing = [one.before for one in changes if one.rows in _LOSES_ROWS]
        return tuple(sorted(table_text(*name) for name in self._copies((one.database, one.table) for one in losing)))

    def end_copies(self, originals: Iterable[Name], position: Position) -> None:
        """End the record of the shadow tables of ``originals``, which may have lost rows without row events."""
        for name in self._copies(originals):
            self._history.end(name, position)

    def _copies(self, originals: Iterable[Name]) -> list[Name]:
        known = set(originals)
        return [
            name for name in self._history.shadows() if known & {(name[0], table) for table in originals_of(name[1])}
        ]

    def as_alter(self, original: TableSchema, shadow: Name) -> TableChange | None:
        """Return the record of ``shadow`` as one ALTER TABLE of ``original``; None if rows can differ otherwise."""
        try:
            return self._as_alter(original, shadow)
        except Unreadable as error:
            _log.warning("the statements of a shadow table of %s cannot be read: %s", original.name, error)
            return None

    def _as_alter(self, original: TableSchema, shadow: Name) -> TableChange | None:
        found = self._history.shadow(shadow)
        is_copy = shadow[0] == original.database and original.table in originals_of(shadow[1])
        if found is None or found.copy is None or not is_copy:
            return None
        if shadow[1].endswith(_SUFFIXES[1]) and not found.copy.has_triggers:
            return None  # a table of this name that another program has filled
        before = replace(original, database=shadow[0], table=shadow[1], is_dropped=False, copy=None, since=None)
        now, columns, key_changed, key_is_certain = before, list[ColumnChange](), False, True
        adds_time_of_update = False
        for each in found.copy.statements:
            for change in self._changes(each, now):
                if change.rows is not None:  # INSERT IGNORE into the copy can omit rows, as ALTER IGNORE deletes them
                    return None
                columns += change.columns
                adds_time_of_update |= _adds_time_of_update(each, change)
                now = change.after
                key_changed |= change.key_changed
                key_is_certain &= change.key_is_certain
        if [column.name for column in now.columns] != [column.name for column in found.columns]:
            return None  # the original was changed while the tool ran
        after = replace(now, database=original.database, table=original.table)
        dropped = {one.old.name.casefold() for one in columns if one.new is None and one.old is not None}
        renames = any(one.kind is ChangeKind.RENAME_COLUMN for one in columns)
        return TableChange(
            original,
            after,
            tuple(_copied(one, dropped) for one in columns),
            None,
            key_changed,
            key_is_certain,
            # a renamed column is copied only if the tool recognises it; updates of copied rows set ON UPDATE columns
            values_differ=renames or adds_time_of_update,
        )

    def _changes(self, each: CopyStatement, now: TableSchema) -> tuple[TableChange, ...]:
        return read_changes(
            each.sql,
            database=each.database,
            schema_of=lambda database, table: now if (database, table) == (now.database, now.table) else None,
            dialect=dialect_of(each),
            stored=self._history.names.certain,
            ignores=True,
        )


def _copied(change: ColumnChange, dropped: set[str]) -> ColumnChange:
    """Return ``change`` with the values that the rows of the copy have: they were inserted, not altered."""
    if change.new is None or change.kind is not ChangeKind.ADD_COLUMN:
        return change
    # a dropped and added column is copied by its name, and CURRENT_TIMESTAMP is the time of the copying
    if change.new.name.casefold() in dropped or change.fill.kind is FillKind.STATEMENT_TIME:
        return replace(change, fill=Fill(FillKind.BY_ROW))
    return change


def _adds_time_of_update(statement: CopyStatement, change: TableChange) -> bool:
    """Return whether an added column can be ON UPDATE CURRENT_TIMESTAMP: the updates of gh-ost do not set it."""
    words = [token.word for token in _tokens(statement)]
    return ("ON", "UPDATE") in pairwise(words) and any(one.kind is ChangeKind.ADD_COLUMN for one in change.columns)


def _tokens(statement: CopyStatement) -> list[Token]:
    return tokens_of(statement.sql, bool(statement.ansi_quotes), mariadb=statement.mariadb is not False)


def _same_columns(one: TableSchema, other: TableSchema) -> bool:
    return [_shape(column) for column in one.columns] == [_shape(column) for column in other.columns] and [
        name.casefold() for name in one.key
    ] == [name.casefold() for name in other.key]


def _shape(column: Column) -> tuple[object, ...]:
    return (
        column.name, column.kind, column.unsigned, column.nullable, column.length, column.precision, column.scale,
        column.fsp, column.labels, column.generated,
    )  # fmt: skip
