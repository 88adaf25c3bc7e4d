"""The schemas of a binlog's tables at the position read up to. The decoder asks here for the columns of rows.

A schema is taken from the row metadata if they are complete, else from the saved checkpoint, else from
information_schema, or for files from the job file's description (``file_tables``). The last two describe the table as
it is now. They are used only if no statement changes the table between the position read up to and now.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cdc.errors import GAP_HINT, CdcError, SchemaMismatch, TargetMismatch
from cdc.model.position import BinlogPosition, Position
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.table_filter import TableFilter
from cdc.mysql.catalog import is_sequence, mapped_tables, table_schemas
from cdc.mysql.server import Server
from cdc.mysql.visibility import wait_until_visible
from cdc.sources.binlog.column_changes import ColumnChangeSearch, PossibleColumnChange
from cdc.sources.binlog.file_tables import FileTables
from cdc.sources.binlog.omission_rules import OmissionRules, has_reached
from cdc.sources.binlog.schema_matching import merge_metadata, mismatch, refuse_lost_labels, with_nulls
from cdc.sources.schema_history import Name, SchemaHistory

if TYPE_CHECKING:
    from cdc.sources.binlog.decoder.table_map import TableMap

log = logging.getLogger(__name__)

_NEAR_BYTES = 1 << 20  # of a binlog, which are searched in some milliseconds
_FULL_METADATA = "Set binlog_row_metadata=FULL (MySQL 8.0, MariaDB 10.5 and later): rows then name their columns."


class TableRegistry:
    """Find the schema of rows. Implements the decoder's ``TableSource``.

    Calls: the reading thread. ``begin`` also the Consumer's thread, while the reading thread does not run.
    """

    def __init__(
        self,
        table_filter: TableFilter,
        history: SchemaHistory,
        search: ColumnChangeSearch,
        rules: OmissionRules,
        files: FileTables | None = None,
    ) -> None:
        """``files``: describes the tables of binlog files, if there is no server."""
        self.history = history
        self.search = search
        self.rules = rules
        self.files = files
        self._table_filter = table_filter
        self._described: dict[Name, tuple[TableSchema, TableSchema]] = {}  # (from row metadata, with comments)
        self._omitted_until: dict[Name, BinlogPosition] = {}  # rows are omitted up to the statement at this position
        self._sequences: set[Name] = set()
        # Tables that the server had when it was connected, and whose columns at the position read up to are not known.
        self._unsure: frozenset[Name] = frozenset()

    def begin(self, saved: Iterable[TableSchema]) -> None:
        """Start again with the schemas that were saved for the start position."""
        self.history.begin(saved)
        self.search.begin()
        self.rules.omitted.take()
        self._described, self._omitted_until = {}, {}
        self._unsure = frozenset()

    def forget(self, names: Iterable[Name]) -> None:
        """Forget everything that was derived from the columns that the tables had until now."""
        for name in names:
            self._described.pop(name, None)
            self.history.catalog.pop(name, None)
            self._sequences.discard(name)

    # --- the connection ---

    def maps(self, database: str, table: str) -> bool:
        """Return whether a channel reads this table, which exists."""
        return self._table_filter.maps(database, table)

    def prepare(self, server: Server, start: BinlogPosition) -> None:
        """Read the unknown schemas of mapped tables from ``server``.

        A table's current description is valid from ``start`` on if no statement changed the table since then. Other
        tables are looked up at their first rows. With complete row metadata these do not need a description, so a long
        binlog is not searched for statements, and until ``note_read`` the descriptions are used for comments only.
        """
        self.history.names.fold_case = server.folds_case
        self.rules.note_server(server)
        missing = [name for name in mapped_tables(server, self.maps) if not self.history.has(name)]
        if server.full_metadata:
            self.history.catalog = table_schemas(server, missing, self._table_filter.leave_out)
        end = self.history.catalog_end = server.position()
        is_near = (start.server, start.file) == (end.server, end.file) and end.offset - start.offset <= _NEAR_BYTES
        # saved with the next checkpoint: a statement may change a table that has no rows by then
        if missing and (is_near or not server.full_metadata):
            wait_until_visible(server, start)  # a statement directly before it is followed by none
            self._learn(server, missing, start)
        self._unsure = frozenset(name for name in missing if not self.history.has(name))

    def note_read(self) -> None:
        """Use the descriptions of ``prepare`` if the stream has reached the end that the binlog had then.

        They are valid from this end on. A statement before it has removed that of its table. A stream without bytes for
        some time is no evidence: a slow disk or a lost packet delays statements too. On an idle server the heads of
        files and heartbeats move the position read up to to exactly the end.
        Calls: after the decoder has returned everything that was read.
        """
        if not self._unsure or not self.history.is_after_catalog(self.rules.progress.read_to):
            return
        position = self.rules.progress.position
        for name, schema in list(self.history.catalog.items()):
            if name in self._unsure and not self.history.has(name) and self.maps(*name):
                self.history.add(name, schema, position)
        self._unsure = frozenset()

    def is_unsure(self, name: Name) -> bool:
        """Return whether the server's description of a table may be newer than the position read up to."""
        return name in self._unsure and self.history.newest(name) is None

    def prepare_files(self) -> None:
        """Read the job file's description of the tables, if any. Raises: SourceActionRequired, SourceUnavailable."""
        if self.files is not None:
            self.history.names.fold_case = self.files.open()

    def note_gap(self, server: Server) -> None:
        """Record that changes of every mapped table may be missing. Calls: after ``prepare``."""
        self.rules.omitted.note(f"{database}.{table}" for database, table in mapped_tables(server, self.maps))

    def _learn(self, server: Server, names: list[Name], since: BinlogPosition) -> Mapping[Name, PossibleColumnChange]:
        """Add the current descriptions of tables that did not change since ``since``; return the others' changes."""
        found = table_schemas(server, names, self._table_filter.leave_out)
        changed = self.search.on_server(server, since, set(names))
        for name, schema in found.items():
            if name not in changed:
                self.history.add(name, schema, since)
        return changed

    # --- schemas of rows ---

    def schema(self, table_map: TableMap) -> TableSchema | None:
        """See ``TableSource``."""
        found = self._schema(table_map)
        received = {mapped.name for mapped in table_map.columns if mapped.labels is not None}
        if found is not None and self.maps(found.database, found.table):
            try:
                reads = self._table_filter.reads(found)
                refuse_lost_labels(found, (reads.columns | reads.key) - received)
            except (SchemaMismatch, TargetMismatch) as error:
                if not self._table_filter.leave_out(found.database, found.table, error):
                    raise
                return None
        return found

    def _schema(self, table_map: TableMap) -> TableSchema | None:
        name, position = (table_map.database, table_map.table), self.rules.progress.position
        known = self.history.newest(name)
        if self.history.dropped(name) is not None:
            raise SchemaMismatch(
                f"{table_map.name} was dropped, but has rows: the binlog does not show how it was created again.",
                hint="Drop its target and run `cdc resume NAME --reload-missing`: a snapshot loads the table.",
                table=table_map.name,
                position=position,
            )
        if known is not None and mismatch(known, table_map) is None:
            return self._keep(name, with_nulls(known, table_map))
        if name in self._sequences or self._is_omitted(name):
            return None
        changed: Mapping[Name, PossibleColumnChange] = {}
        if self.history.connect is not None:
            with self.history.connect() as server:
                if is_sequence(server, name):
                    self._sequences.add(name)
                    return None
                merged = merge_metadata(table_map, table_schemas(server, [name]).get(name) or known)
                if merged is not None:
                    return self._keep(name, merged)
                changed = self._learn(server, [name], position)
            known = self.history.newest(name)
        else:
            known, changed = self._schema_of_files(table_map, known)
        problem = mismatch(known, table_map) if known is not None else "no description of the table was found"
        change = changed.get(name)
        if known is not None and problem is None and change is None:
            return known
        self._refuse(table_map, str(problem), change)
        return None

    def _schema_of_files(
        self, table_map: TableMap, known: TableSchema | None
    ) -> tuple[TableSchema | None, Mapping[Name, PossibleColumnChange]]:
        """Return the schema by the files and the description, and the changes that make the description unusable."""
        name, later = (table_map.database, table_map.table), None
        changed: Mapping[Name, PossibleColumnChange] = {}
        if self.files is not None:
            if known is None and self.files.described:
                changed = self.search.in_files(self.files, self.rules.progress.position, name)
                later = self.files.table(name)
                if name not in changed:
                    known, later = later, None
            self.files.refuse_unsure(table_map, known, later)
        found = merge_metadata(table_map, known)
        if found is None and known is not None and mismatch(known, table_map) is None:
            found = with_nulls(known, table_map)
        if found is None:
            return known, changed
        self._keep(name, found)
        # None while the statement that ended the last version is not processed: the event is decoded again after it.
        return self.history.newest(name), {}

    def _refuse(self, table_map: TableMap, problem: str, change: PossibleColumnChange | None) -> None:
        """Raise SchemaMismatch for rows without a schema, unless rows are omitted up to the statement ``change``."""
        name, position = (table_map.database, table_map.table), self.rules.progress.position
        if change is not None:
            problem = f"{change.what} at {change.at} follows the rows"
        error = SchemaMismatch(
            f"The columns that {table_map.name} had when its rows were written are not known: {problem}.",
            hint=(f"{GAP_HINT} " if change is not None else "")
            + (_FULL_METADATA if self.files is None else self.files.hint(name, changes=change is not None)),
            table=table_map.name,
            position=position,
        )
        # Omit rows only up to a statement that was not read yet: the table is looked up again after that statement. If
        # whole transactions wait to be returned, this event is decoded again later.
        if change is None or self.rules.progress.is_ahead or has_reached(position, change.at):
            raise error
        if not self.rules.omits(error, [table_map.name]):
            raise error
        self._omitted_until[name] = change.at

    def _is_omitted(self, name: Name) -> bool:
        """Return whether the table's rows are omitted up to a statement that was not read yet."""
        until = self._omitted_until.get(name)
        return until is not None and not has_reached(self.rules.progress.position, until)

    def _keep(self, name: Name, schema: TableSchema) -> TableSchema:
        """Make ``schema`` the table's version from the position read up to, if it is not already."""
        if self.history.newest(name) is schema:
            return schema
        return self._add(name, schema, self.rules.progress.position)

    def _add(self, name: Name, schema: TableSchema, since: Position) -> TableSchema:
        """Add the columns that rows show. Rows of files are decoded again after a statement that ends a version."""
        return (self.history.add if self.files is not None else self.history.add_after_end)(name, schema, since)

    # --- comments ---

    def described(self, received: TableSchema, at: Position) -> TableSchema:
        """Return a schema from row metadata with the comments and exact types of the server, if it still has them."""
        name = (received.database, received.table)
        known = self._described.get(name)
        if known is not None and known[0] is received:
            return known[1]
        current = self.history.newest(name)
        if current is received:
            return received
        if current is None or not _merged(received, current).same_shape(current):
            current = self._add(name, self._with_comments(received), at)
        self._described[name] = (received, current)
        return current

    def _with_comments(self, received: TableSchema) -> TableSchema:
        name, catalog = (received.database, received.table), self.history.catalog
        if self.history.connect is None or name in catalog:
            return _merged(received, catalog.get(name, received))
        try:
            found = self.history.look_up(name)
        except CdcError as error:  # missing comments are no reason to pause
            log.warning("cannot read the comments of %s: %s", received.name, error.message)
            return received
        return _merged(received, found or received)


def _merged(received: TableSchema, today: TableSchema) -> TableSchema:
    """Return ``received`` with comments and type text of ``today``, for each column that has the same kind in both.

    A type that was changed since the rows were written is not taken: a target would be created too narrow for them.
    """
    columns = []
    known = {column.name.casefold(): column for column in today.columns}
    for column in received.columns:
        other = known.get(column.name.casefold())
        if other is not None and other.kind is column.kind and other.arrow == column.arrow:
            columns.append(
                replace(
                    column,
                    type=other.type if _limits(other) == _limits(column) else column.type,
                    comment=other.comment,
                    generated=other.generated,
                    auto_increment=other.auto_increment,
                )
            )
        else:
            columns.append(column)
    return replace(received, columns=tuple(columns), comment=today.comment, charset=today.charset)


def _limits(column: Column) -> tuple[object, ...]:
    """Return what the type of a column allows beyond its Arrow type."""
    length = None if column.kind in (Kind.TEXT, Kind.BLOB) else column.length  # servers count theirs differently
    return length, column.fsp, column.labels
