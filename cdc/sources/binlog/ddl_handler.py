"""Evaluation of the statements in a binlog.

The decoder calls ``DdlHandler.handle`` for each statement that is not transaction control. The handler decides: record
the new columns of mapped tables in the ``SchemaHistory``, stop the job with an error, or ignore the statement.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from cdc.errors import (
    GAP_HINT,
    GAP_SNAPSHOT_HINT,
    STATEMENT_START,
    DdlStop,
    SchemaMismatch,
    TargetMismatch,
    UnsupportedRowFormat,
)
from cdc.model.position import BinlogPosition
from cdc.model.schema import TableSchema
from cdc.model.table_filter import TableFilter
from cdc.model.table_names import table_of
from cdc.mysql.catalog import writes_beyond
from cdc.mysql.ddl import Effect, EffectKind
from cdc.mysql.server import Server
from cdc.mysql.visibility import schemas_after
from cdc.sources.binlog.change_reader import ChangeReader, copy_statement
from cdc.sources.binlog.decoder.events import Statement
from cdc.sources.binlog.table_registry import TableRegistry
from cdc.sources.schema_history import Name, ResumeOptions
from cdc.sources.shadow_tables import ShadowTables
from cdc.sources.table_statements import charset_after

log = logging.getLogger(__name__)


class DdlHandler:
    """Evaluate each statement: record the tables' new columns, or stop the job. Calls: the reading thread."""

    def __init__(self, table_filter: TableFilter, tables: TableRegistry, resume_options: ResumeOptions) -> None:
        self._table_filter = table_filter
        self._tables = tables
        self._history = tables.history
        self._files = tables.files
        self._resume_options = resume_options
        self._shadows = ShadowTables(tables.history)
        self._changes = ChangeReader(tables.history, tables.search, self._shadows)
        self._plain_writes: set[Name] = set()  # tables without triggers or foreign keys to other mapped tables
        self._handlers = {
            EffectKind.WRITES: self._handle_writes,
            EffectKind.CREATES: self._handle_creation,
            EffectKind.HARMLESS: self._handle_harmless,
            EffectKind.TOUCHES: self._handle_change,
        }

    def handle(self, statement: Statement) -> None:
        """Evaluate a statement of the binlog.

        Raises: DdlStop - it changes a mapped table; UnsupportedRowFormat - it writes rows without row events.
        """
        effect = self._history.effect(
            statement.sql, statement.database, ansi_quotes=statement.ansi_quotes, mariadb=statement.mariadb
        )
        self._history.note_created(effect)
        if effect.kind is not EffectKind.WRITES:
            self._plain_writes.clear()  # the statement may have created a trigger or a foreign key
        handler = self._handlers.get(effect.kind)
        if handler is not None:
            handler(statement, effect)
        if effect.kind is not EffectKind.WRITES:
            self._shadows.note(copy_statement(statement), statement.after)
            self._history.end_renamed(statement.sql, statement.after)

    # --- changes of tables ---

    def _handle_creation(self, statement: Statement, effect: Effect) -> None:
        effect = self._history.creation(effect, statement.sql)
        if effect.kind is EffectKind.TOUCHES:
            self._handle_change(statement, effect)
        if effect.kind is not EffectKind.CREATES:
            return
        log.info(
            "table %s was created (%s)", effect.tables[0], effect.reason, extra={"position": str(statement.before)}
        )
        names = [table_of(table) for table in effect.tables]
        self._tables.forget(names)
        for name in names:
            self._tables.search.note_created(name, statement.before)
            if self._history.has(name):
                self._history.end(name, statement.before)
            self._add_created(statement, name, statement.before)

    def _handle_harmless(self, statement: Statement, effect: Effect) -> None:
        if effect.may_rekey:
            self._check_key(statement, effect)
        if effect.reshapes:
            self._renew(statement, effect)
            return
        for name in map(table_of, effect.tables):
            known = self._history.current(name)
            if known is not None:
                charset = charset_after(copy_statement(statement), known, self._history.names.certain)
                if self._history.note_charset(name, charset, statement.after):
                    self._tables.forget([name])

    def _handle_change(self, statement: Statement, effect: Effect) -> None:
        try:
            self._resume_options.check(effect, statement.sql, statement.before)
            self._check_target_columns(statement, effect)
        except DdlStop as stop:
            self._describe(stop, statement, effect)
            raise
        if effect.row_changing:
            self._shadows.end_copies(map(table_of, effect.tables), statement.after)
        self._renew(statement, effect)
        log.warning("continuing after %s on %s", effect.reason, ", ".join(effect.tables))

    def _check_target_columns(self, statement: Statement, effect: Effect) -> None:
        """Raise DdlStop if an accepted statement leaves two columns with one target column.

        The job can then still apply the statement: it gives the new column a target column of its own.
        """
        for name in map(table_of, effect.tables):
            found = self._history.look_up(name)
            try:
                if found is not None and self._history.maps(*name):
                    self._table_filter.reads(found)
            except SchemaMismatch:
                continue  # ``_renew`` raises it
            except TargetMismatch as error:
                if "shared_column" not in error.context:
                    continue
                raise DdlStop(
                    f"{effect.reason} changes {', '.join(effect.tables)}: {error.message}",
                    hint=f"--apply-ddl gives the new column a target column of another name. Or: {error.hint}",
                    tables=", ".join(effect.tables),
                    statement=statement.sql[:STATEMENT_START],
                    position=statement.before,
                ) from error

    def _describe(self, stop: DdlStop, statement: Statement, effect: Effect) -> None:
        """Add to ``stop`` what the statement changes, or why that is not certain."""
        try:
            found = self._changes.read(statement, effect)
        except SchemaMismatch as error:
            found = f"{error.message.removesuffix('.')} ({error.location})"
        if isinstance(found, str):
            stop.message = f"{stop.message.removesuffix('.')}, and the job cannot follow it: {found}."
        else:
            stop.change = found

    def _check_key(self, statement: Statement, effect: Effect) -> None:
        name = table_of(effect.tables[0])
        if self._files is not None and any(self._files.keyed_by_index(table_of(one)) for one in effect.tables):
            self._renew(statement, effect)
        known = self._history.current(name)
        if known is None or self._history.connect is None:
            return
        with self._history.connect() as server:
            schema = schemas_after(server, [name], statement.after).get(name)
        if schema is not None and schema.key != known.key:
            self._handle_change(statement, replace(effect, kind=EffectKind.TOUCHES))

    # --- the columns after a statement ---

    def _renew(self, statement: Statement, effect: Effect) -> None:
        """Record the tables' columns after the statement.

        Raises: SchemaMismatch, TargetMismatch - the mapping does not match the new columns.
        """
        names = [table_of(table) for table in effect.tables]
        self._tables.forget(names)
        if self._files is not None and not effect.columns_stay:
            for name in names:
                self._files.changed(name, self._history.newest(name))
                self._history.end(name, statement.after)  # the next table of that name must be described again
                self._add_created(statement, name, statement.after)
        if self._history.connect is None:
            return
        with self._history.connect() as server:
            found = schemas_after(server, names, statement.after)
            for name in names:
                if name not in found:
                    self._history.forget_loaded(name)  # dropped or renamed
                    self._history.note_removed(effect, name)
                else:
                    self._history.note_shown(name)
                if self._is_current(server, statement, name, found.get(name)):
                    self._history.add(name, found[name], statement.after)
                else:
                    self._history.end(name, statement.after)

    def _is_current(self, server: Server, statement: Statement, name: Name, schema: TableSchema | None) -> bool:
        """Return whether the server's current description is valid directly after the statement.

        Raises: SchemaMismatch, TargetMismatch - the mapping does not match it.
        """
        if schema is None:
            return False
        try:
            self._table_filter.reads(schema)
        except (SchemaMismatch, TargetMismatch) as error:
            if not self._table_filter.leave_out(*name, error):
                raise
            return False
        # Rows without complete metadata are read with this description. If the server's binlog has a later DDL
        # statement for the table, the description is newer than the rows between the two statements. The present
        # setting of the server says nothing about rows that were written before.
        return not self._tables.search.on_server(server, statement.after, {name})

    def _add_created(self, statement: Statement, name: Name, since: BinlogPosition) -> None:
        """Record the table of a CREATE TABLE statement in binlog files, if the statement defines it completely."""
        schema = self._files.created(statement, name) if self._files is not None else None
        if schema is not None:
            self._history.add(name, schema, since)

    # --- rows without row events ---

    def _handle_writes(self, statement: Statement, effect: Effect) -> None:
        mapped = sorted(table for table in effect.tables if self._history.maps(*table_of(table)))
        beyond = [found for table in effect.tables if (found := self._written_beyond(table))]
        if effect.tables and not mapped and not beyond:
            return
        written = ", ".join([*mapped, *beyond]) if mapped else "".join(beyond[:1])
        why = f"it writes {written}" if written else "the tables that it writes are not known"
        is_all = mapped and not beyond
        error = UnsupportedRowFormat(
            f"A session logs its changes as statements, without row images: {why}.",
            hint="Set binlog_format=ROW for that session and on the server. "
            + (GAP_HINT if is_all else GAP_SNAPSHOT_HINT),
            statement=statement.sql[:120],
            position=statement.before,
        )
        if not self._tables.rules.omits(error, mapped):
            raise error

    def _written_beyond(self, table: str) -> str:
        """Return ``table`` and why a statement on it may also write mapped tables, as text; "" if it cannot."""
        name = table_of(table)
        if name in self._plain_writes or self._history.connect is None:
            return ""
        with self._history.connect() as server:
            beyond = writes_beyond(server, name, self._history.maps)
        if beyond is None:
            self._plain_writes.add(name)
            return ""
        return f"{table}, and {beyond}"
