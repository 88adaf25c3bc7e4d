"""The tables of a Canal job: find the schema of rows (for ``entries``), evaluate statements (for ``transactions``).

With ``source.mysql``, schemas are read from information_schema. Without it they are made of the rows, which have no
charsets and no NOT NULL.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable
from dataclasses import replace

from cdc.errors import GAP_HINT, GAP_SNAPSHOT_HINT, CdcError, DdlStop, SchemaMismatch, UnsupportedRowFormat
from cdc.model.position import CanalPosition
from cdc.model.schema import TableSchema
from cdc.model.table_filter import TableFilter
from cdc.model.table_names import table_of, table_text
from cdc.mysql.catalog import mapped_tables, table_schemas
from cdc.mysql.ddl import Effect, EffectKind
from cdc.sources.canal.change_reader import CanalChangeReader, CanalStatement
from cdc.sources.canal.layout import Layout, has_order, mismatches, schema_of
from cdc.sources.omitted_changes import OmittedChanges, log_omission
from cdc.sources.schema_history import Connect, Name, ResumeOptions, SchemaHistory

log = logging.getLogger(__name__)


class CanalTables:
    """Find the schema of rows, and evaluate statements. Implements the ``CanalTableSource`` of an EntryDecoder."""

    def __init__(self, table_filter: TableFilter, connect: Connect | None, resume_options: ResumeOptions) -> None:
        """``connect``: opens a connection to the source's MySQL; None: schemas are made of the rows only."""
        self.history = SchemaHistory(table_filter, connect)
        self.omitted = OmittedChanges()
        self._changes = CanalChangeReader(self.history)
        self.position = CanalPosition("", 0)  # the position before the rows that are read now
        self._table_filter = table_filter
        self._resume_options = resume_options
        self._accepted_until_ms = time.time() * 1000  # older changes may be omitted, if the user accepted that
        self._stale: set[Name] = set()  # changed by a statement: look up the schema at the next rows
        # Without a server it is not known which one wrote the statements: /*M! */ then counts as code, so that the job
        # pauses rather than miss a change.
        self._mariadb = True

    def begin(self, start: CanalPosition, saved: Iterable[TableSchema]) -> None:
        """Start again at ``start`` with the schemas that were saved for it."""
        self.position = start
        self.history.begin(saved)
        self._stale.clear()
        self._changes.begin()
        self.omitted.take()
        if self.history.connect is not None:
            with self.history.connect() as server:
                self.history.names.fold_case, self._mariadb = server.folds_case, server.mariadb
                self._changes.mariadb = server.mariadb
                # A statement after now changes these columns. One between ``start`` and now does not follow from them:
                # the catalog does not confirm it.
                mapped = mapped_tables(server, self._table_filter.maps)
                missing = [name for name in mapped if not self.history.has(name)]
                self.history.catalog = table_schemas(server, missing, self._table_filter.leave_out)

    # --- schemas of rows ---

    def schema(self, database: str, table: str, layout: Layout) -> TableSchema:
        """See ``cdc.sources.canal.entries.CanalTableSource``."""
        name = (database, table)
        if self.history.dropped(name) is not None:
            raise SchemaMismatch(
                f"{table_text(*name)} was dropped, but has rows: Canal did not send how it was created again.",
                hint="Do not filter DDL in Canal. Drop the target of the table and run `cdc resume NAME "
                "--reload-missing`: a snapshot loads the table.",
                position=self.position,
            )
        known = None if name in self._stale else self.history.newest(name)
        problem = self._mismatch(known, layout) if known is not None else None
        if known is not None and problem is None:
            self._changes.note_rows(name, layout)
            return known
        # No statement has moved the columns of a known table, so the catalog cannot explain another order.
        if known is None or (self.history.connect is not None and not _is_reordered(known, layout)):
            known = self._found(name, layout)
            problem = self._mismatch(known, layout)
            if problem is None:
                self._stale.discard(name)
                self._changes.note_rows(name, layout)
                return self.history.add(name, known, self.position)
        if {column.name.casefold() for column in layout} < {column.name.casefold() for column in known.columns}:
            raise _not_full()
        raise SchemaMismatch(
            f"Canal's rows of {database}.{table} do not match the known schema: {problem}.",
            hint="Canal may use the table's columns of another time: enable its TSDB (canal.instance.tsdb.enable=true) "
            "and do not filter DDL. Then run `cdc snapshot` for the table.",
            position=self.position,
        )

    def _found(self, name: Name, layout: Layout) -> TableSchema:
        found = self.history.look_up(name)
        if found is not None:
            return self._with_known_key(name, found)
        if [column.index for column in layout] != list(range(len(layout))):
            raise _not_full()
        return schema_of(*name, layout)

    def _with_known_key(self, name: Name, found: TableSchema) -> TableSchema:
        """Return ``found`` with the known key, if the table still has its columns.

        Canal can be late: the statement that changes the key then follows, and the job stops at it.
        """
        known, columns = self.history.newest(name), {column.name.casefold() for column in found.columns}
        has_columns = known is not None and {one.casefold() for one in known.key} <= columns
        return replace(found, key=known.key) if known is not None and has_columns else found

    def _mismatch(self, schema: TableSchema, layout: Layout) -> str | None:
        reads = self._table_filter.reads(schema)
        problem = mismatches(schema, layout, sorted(reads.columns | reads.key))
        if problem is None and self.history.connect is None and len(layout) != len(schema.columns):
            problem = f"the rows have {len(layout)} columns, the known schema has {len(schema.columns)}"
        if problem is None and _is_reordered(schema, layout):
            problem = f"the rows have the columns in the order {', '.join(column.name for column in layout)}"
        return problem

    # --- statements ---

    def on_statement(self, statement: CanalStatement) -> bool:
        """Evaluate a statement. Return whether schemas must be looked up again.

        Raises: DdlStop - it changes a mapped table, and the user has not accepted that.
        """
        is_changed = self._handle(statement)
        self._changes.note_passed(statement)
        return is_changed

    def _handle(self, statement: CanalStatement) -> bool:
        effect = self._effect(statement)
        self.history.note_created(effect)
        if effect.kind is EffectKind.CREATES:
            effect = self.history.creation(effect, statement.sql)
        elif effect.may_rekey and any(self._is_rekeyed(table_of(table)) for table in effect.tables):
            effect = replace(effect, kind=EffectKind.TOUCHES)
        if effect.kind is EffectKind.TOUCHES:
            try:
                self._resume_options.check(effect, statement.sql, statement.before)
            except DdlStop as stop:
                self._describe(stop, statement, effect)
                raise
            if effect.row_changing:
                self._changes.end_copies(map(table_of, effect.tables), statement.after)
            log.warning("continuing after %s on %s", effect.reason, ", ".join(effect.tables))
        elif effect.kind is EffectKind.CREATES:
            log.info(
                "table %s was created (%s)", effect.tables[0], effect.reason, extra={"position": str(statement.before)}
            )
        elif not (effect.reshapes or effect.may_rekey):
            known = [self.history.current(table_of(table)) for table in effect.tables]
            is_other = [self._changes.note_charset(statement, one) for one in known if one is not None]
            return any(is_other)
        names = {table_of(table) for table in effect.tables}
        self._stale |= names
        for name in names:
            if effect.kind is EffectKind.TOUCHES:
                if self.history.look_up(name) is None:
                    self.history.note_removed(effect, name)
                else:
                    self.history.note_shown(name)
            if effect.kind is not EffectKind.HARMLESS and not effect.columns_stay:
                self._note_key(name, statement.after)
            self.history.catalog.pop(name, None)
            if self.history.dropped(name) is not None:  # the user has accepted that it was created again
                self.history.end(name, statement.after)
        is_index = effect.kind is EffectKind.HARMLESS and not effect.reshapes
        self._changes.note_statement(names, columns_stay=effect.columns_stay or is_index)
        return True

    def _effect(self, statement: CanalStatement) -> Effect:
        return self.history.effect(statement.sql, statement.database, mariadb=self._mariadb)

    def _note_key(self, name: Name, position: CanalPosition) -> None:
        """Record the key of a table after a statement that was passed, for the checkpoints before its next rows."""
        known = self.history.newest(name)
        if known is None:
            return
        found = self.history.look_up(name)
        if found is None or not {*found.key} <= {column.name for column in known.columns}:
            self.history.end(name, position)  # the next rows show the key, or the server then
        elif found.key != known.key:
            self.history.add(name, replace(known, key=found.key), position)

    def _is_rekeyed(self, name: Name) -> bool:
        """Return whether the server's table has another key than the known one."""
        known = self.history.current(name)
        found = self.history.look_up(name) if known is not None else None
        return known is not None and found is not None and found.key != known.key

    def _describe(self, stop: DdlStop, statement: CanalStatement, effect: Effect) -> None:
        """Add to ``stop`` what the statement changes, or why that is not certain."""
        found = self._changes.read(statement, effect)
        if isinstance(found, str):
            stop.message = f"{stop.message.removesuffix('.')}, and the job cannot follow it: {found}."
        else:
            stop.change = found

    def omitted_by(self, statement: CanalStatement) -> frozenset[str]:
        """Return the mapped tables whose changes a statement logged as text, if the user accepted to omit them.

        Raises: UnsupportedRowFormat - the user did not.
        """
        effect = self._effect(statement)
        mapped = sorted(table for table in effect.tables if self.history.maps(*table_of(table)))
        if effect.kind is not EffectKind.WRITES or not (mapped or not effect.tables):
            return frozenset()
        error = UnsupportedRowFormat(
            "A session logs its changes as statements, without row images: "
            + (f"it writes {mapped[0]}." if mapped else "the tables that it writes are not known."),
            hint="Set binlog_format=ROW for that session and on the server. "
            + (GAP_HINT if mapped else GAP_SNAPSHOT_HINT),
            statement=statement.sql[:120],
            position=statement.before,
        )
        if not self._is_accepted(error, mapped, statement.time_ms):
            raise error
        return frozenset(mapped)

    # --- changes that cannot be read ---

    def omits(self, error: CdcError, tables: Collection[str], time_ms: int) -> bool:
        """Return whether to omit changes of ``tables`` that cannot be read because of ``error``. If so, note them.

        ``time_ms``: when they were made, milliseconds since 1970, UTC.
        """
        if not self._is_accepted(error, tables, time_ms):
            return False
        self.omitted.note(tables)
        return True

    def note_gap(self, position: CanalPosition) -> None:
        """Record that changes of every mapped table may be missing after ``position``. Raises: SourceUnavailable.

        Without ``source.mysql``, only the tables whose rows have arrived are known.
        """
        connect, history = self.history.connect, self.history
        if connect is None:
            known = [(schema.database, schema.table) for schema in history.at(position)]
            names = {name for name in known if history.maps(*name)}  # not the shadow tables
        else:
            with connect() as server:
                names = set(mapped_tables(server, self._table_filter.maps))
        tables = sorted(f"{database}.{table}" for database, table in names)
        log.warning("changes after %s may be missing in %s", position, ", ".join(tables) or "unknown tables")
        self.omitted.note(tables)

    def _is_accepted(self, error: CdcError, tables: Collection[str], time_ms: int) -> bool:
        if not self._resume_options.past_gap or time_ms > self._accepted_until_ms:
            return False
        log_omission(error, tables)
        return True


def _is_reordered(schema: TableSchema, layout: Layout) -> bool:
    """Return whether the rows have the columns of ``schema`` in another order: their names are of another time."""
    known = {column.name.casefold() for column in schema.columns}
    return {column.name.casefold() for column in layout} <= known and not has_order(schema, layout)


def _not_full() -> UnsupportedRowFormat:
    return UnsupportedRowFormat(
        "The rows do not have all columns of the table: the row image is not FULL.",
        hint=f"Set binlog_row_image=FULL on the server, and remove field filters from Canal. {GAP_HINT}",
    )
