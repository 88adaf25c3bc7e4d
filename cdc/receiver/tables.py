"""The tables of a job as they are at the place read up to, and what statements do to them.

A schema comes from the row metadata where it is complete, else from the one saved with the checkpoint, else from
information_schema, and then only if no DDL on the table lies between the place read up to and now.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cdc.binlog.catalog import is_sequence, mapped_tables, table_schemas, writes_beyond
from cdc.binlog.events import Statement
from cdc.binlog.server import Server
from cdc.ddl import Effect, EffectKind, effect_of
from cdc.errors import LEAVE_OUT, LOAD_AGAIN, CdcError, SchemaChanged, SchemaMismatch, TargetMismatch, UnsupportedImage
from cdc.names import table_of, table_text
from cdc.position import BinlogPosition, Position
from cdc.receiver.base import Selection
from cdc.receiver.file_tables import FileTables, with_nulls
from cdc.receiver.fit import assembled, misfit, refuse_lost_labels
from cdc.schema import Column, Kind, TableSchema

if TYPE_CHECKING:
    from cdc.binlog.tables import TableMap

log = logging.getLogger(__name__)

_FULL_METADATA = "Set binlog_row_metadata=FULL (MySQL 8.0, MariaDB 10.5 and later), so that rows tell their columns."

Name = tuple[str, str]  # database and table
Scan = Callable[[Server, BinlogPosition, BinlogPosition, Callable[[Statement], None]], BinlogPosition]


def in_force(tables: Iterable[tuple[TableSchema, ...]], position: Position) -> tuple[TableSchema, ...]:
    """Of each table's versions the one that holds at ``position``, if any does."""
    found = []
    for versions in list(tables):
        held = [version for version in versions if version.since is None or position.reached(version.since)]
        found += held[-1:]
    return tuple(found)


def reads_column(selection: Selection, schema: TableSchema | None, column: str) -> bool:
    """Whether the table's channel reads a column, which may be new; of a table never seen (None) every one counts."""
    if schema is None:
        return True
    if column.casefold() not in {each.name.casefold() for each in schema.columns}:
        schema = replace(schema, columns=(*schema.columns, Column(column, Kind.INT, "int")))
    try:
        reads = selection.reads(schema)
    except CdcError:
        return True
    return column.casefold() in {name.casefold() for name in reads.columns | reads.key}


@dataclass(frozen=True, slots=True)
class _Change:
    """A statement after which a table's columns may be other ones."""

    what: str
    at: BinlogPosition


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a person has said when resuming a paused job."""

    behind_ddl: bool = False  # go on behind a statement that lies exactly at the start
    past_ddl: bool = False  # also if it changed rows without row events
    past_gap: bool = False  # leave out changes that cannot be read, as far as the source has come by then
    passed: Mapping[Position, bool] = field(default_factory=dict)  # statements gone behind before -> past_ddl

    def of(self, place: BinlogPosition, *, at_start: bool) -> Resumption | None:
        """What was said of the statement at ``place`` in resumes before, and now where it lies ``at_start``."""
        for other, past_ddl in self.passed.items():
            if isinstance(other, BinlogPosition) and _same_place(other, place):
                return replace(self, behind_ddl=True, past_ddl=past_ddl or (at_start and self.past_ddl))
        return None

    def check(self, effect: Effect, sql: str, before: Position, *, at_start: bool) -> None:
        """Whether to go on behind a statement that touches a mapped table and lies at ``before``.

        Raises: SchemaChanged - nobody has said so.
        """
        if not (self.behind_ddl and at_start):
            mend = "Look at the table and its target, then run `cdc resume`"
            mend += " --past-ddl, or `cdc snapshot` to load the table again." if effect.row_changing else "."
        elif effect.row_changing and not self.past_ddl:
            mend = "It may have changed rows without row events: run `cdc snapshot` for the table, or `cdc resume "
            mend += "--past-ddl` if the target is right as it is."
        else:
            return
        raise SchemaChanged(
            f"{effect.reason} touches {', '.join(effect.tables)}.",
            mend=mend,
            tables=", ".join(effect.tables),
            statement=sql[:200],
            position=before,
        )


class KnownTables:
    """Schemas by table, with the Position that each holds from. A decoder's TableSource, and what ddl asks.

    Calls: the reading thread; ``at``, ``current``, ``rewind`` also the Consumer's. Versions are appended and replaced
    whole, so readers of a list see it before or after.
    """

    def __init__(
        self,
        selection: Selection,
        ask: Callable[[], Server] | None,
        scan: Scan | None,
        resumption: Resumption,
        files: FileTables | None = None,
    ) -> None:
        self._files = files  # without ``ask``: what describes tables of binlog files
        self._selection = selection
        self._ask = ask  # opens a connection for questions; None: no server, binlog files alone
        self._scan = scan
        self._resumption = resumption
        self._versions: dict[Name, tuple[TableSchema, ...]] = {}
        self._described: dict[Name, tuple[TableSchema, TableSchema]] = {}  # from metadata -> with comments
        self._catalog: dict[Name, TableSchema] = {}  # as of opening; gone where DDL came since
        self._gone: dict[Name, BinlogPosition] = {}  # tables that were dropped or made anew, and behind what statement
        self._begun: dict[Name, BinlogPosition] = {}  # by CREATE TABLE, which may have rows in its own transaction
        self._left_out: dict[Name, BinlogPosition] = {}  # whose rows are left out, and before what statement
        self._sequences: set[Name] = set()
        self._loaded: frozenset[Name] = frozenset()
        self._loaded_lock = threading.Lock()
        self._looked_at: frozenset[Name] = frozenset()  # tables whose statements are being looked for
        self._gaps: frozenset[str] = frozenset()  # since ``take_gaps``
        self._agreed_upto: BinlogPosition | None = None  # what lies before may be left out
        self._plain_writes: set[Name] = set()  # tables that statements may write without touching others
        self._start: BinlogPosition | None = None
        self.place: Callable[[], BinlogPosition] = lambda: BinlogPosition("", 0)
        self.inside_xa: Callable[[], bool] = lambda: False
        self.is_ahead: Callable[[], bool] = lambda: False  # what is read now lies behind transactions behind ``place``
        self.fold_case = False

    # --- schemas ---

    def begin(self, start: BinlogPosition, saved: Iterable[TableSchema]) -> None:
        """Start over at ``start`` with the schemas saved there."""
        self._start = start
        self._versions = {(schema.database, schema.table): (replace(schema, since=None),) for schema in saved}
        self._described, self._gone, self._gaps = {}, {}, frozenset()
        self._begun, self._left_out = {}, {}

    def prepare(self, server: Server, start: BinlogPosition) -> None:
        """Read what is not known of the mapped tables, while ``server`` is at hand.

        With complete row metadata in the binlog this only adds comments later. Else today's description holds from
        ``start`` on where no statement between changed the table; of others the first rows are asked for, if any come.
        """
        self.fold_case = server.folds_case
        if self._resumption.past_gap and self._agreed_upto is None:
            here = server.position()
            gtids = server.gtids_at(here.file, here.offset) if server.mariadb else server.executed()
            self._agreed_upto = replace(here, gtid_set=gtids or "")
        missing = [name for name in mapped_tables(server, self._selection.maps) if name not in self._versions]
        if server.full_metadata:
            self._catalog = table_schemas(server, missing, self._selection.leave_out)
        elif missing:
            self._learn(server, missing, start)

    def prepare_files(self) -> None:
        """Read what the job file says of the tables of binlog files. Raises: SourceBlocked, SourceUnavailable."""
        if self._files is not None:
            self.fold_case = self._files.open()

    def _learn(self, server: Server, names: list[Name], since: BinlogPosition) -> Mapping[Name, _Change]:
        """Take today's description of tables for the one in force at ``since``; what forbids it, by table."""
        found = table_schemas(server, names, self._selection.leave_out)
        changed = self._changed_between(server, since, set(names))
        for name, schema in found.items():
            if name not in changed:
                self._add(name, schema, since)
        return changed

    def _changed_between(self, server: Server, start: BinlogPosition, names: set[Name]) -> Mapping[Name, _Change]:
        """What changed the columns of some tables between ``start`` and now, or began them, by table."""
        end, changed = server.position(), dict[Name, _Change]()
        if not names or self._scan is None or (start.file and start.server == end.server and start.reached(end)):
            return changed

        self._looked_at = frozenset(names)
        try:
            self._scan(server, start, end, lambda statement: self._note_changes(statement, names, changed))
        finally:
            self._looked_at = frozenset()
        return changed

    def _note_changes(self, statement: Statement, names: set[Name], changed: dict[Name, _Change]) -> None:
        effect = self._effect(statement)
        creates = effect.kind is EffectKind.CREATES
        if not (creates or effect.reshapes or (effect.kind is EffectKind.TOUCHES and not effect.columns_stay)):
            return
        for name in names.intersection(map(table_of, effect.tables)):
            begun = self._begun.get(name)
            if not (creates and begun is not None and _same_place(begun, statement.before)):
                changed.setdefault(name, _Change(effect.reason, statement.before))

    def _changed_in_files(self, name: Name) -> Mapping[Name, _Change]:
        """Return the first statement after the current position that changed the columns of a table."""
        assert self._files is not None
        changed: dict[Name, _Change] = {}
        self._looked_at = frozenset([name])
        # whether the server folds names is not known of files: a statement in another case counts as well
        folds, self.fold_case = self.fold_case, self.fold_case or all(part == part.lower() for part in name)
        try:
            for statement in self._files.statements_from(self.place()):
                self._note_changes(statement, {name}, changed)
        finally:
            self._looked_at, self.fold_case = frozenset(), folds
        return changed

    def schema(self, table_map: TableMap) -> TableSchema | None:
        """The schema for rows whose TABLE_MAP does not tell all. See ``TableSource``."""
        found = self._schema(table_map)
        told = {mapped.name for mapped in table_map.columns if mapped.labels is not None}
        if found is not None and self.maps(found.database, found.table):
            try:
                reads = self._selection.reads(found)
                refuse_lost_labels(found, (reads.columns | reads.key) - told)
            except (SchemaMismatch, TargetMismatch) as error:
                if not self._selection.leave_out(found.database, found.table, error):
                    raise
                return None
        return found

    def _schema(self, table_map: TableMap) -> TableSchema | None:
        name = (table_map.database, table_map.table)
        known = self._newest(name)
        if known is not None and misfit(known, table_map) is None:
            if self._files is not None and (exact := with_nulls(known, table_map)) is not known:
                self._keep(name, exact)
                return self._newest(name)
            return known
        if name in self._sequences or self._is_left_out(name):
            return None
        changed: Mapping[Name, _Change] = {}
        if self._ask is not None:
            with self._ask() as server:
                if is_sequence(server, name):
                    self._sequences.add(name)
                    return None
                told = assembled(table_map, table_schemas(server, [name]).get(name) or known)
                if told is not None:
                    self._keep(name, told)
                    return self._versions[name][-1]
                changed = self._learn(server, [name], self.place())
            known = self._newest(name)
        else:
            known, changed = self._schema_of_files(table_map, known)
        problem = misfit(known, table_map) if known is not None else "nothing describes them"
        change = changed.get(name)
        if change is not None:
            problem = f"{change.what} at {change.at} lies behind them"
        if known is not None and problem is None:
            return known
        error = SchemaMismatch(
            f"The columns that {table_map.name} had when its rows were written are not known: {problem}.",
            mend=(f"{LEAVE_OUT} " if change is not None else "")
            + (_FULL_METADATA if self._files is None else self._files.hint(name, changes=change is not None)),
            table=table_map.name,
            position=self.place(),
        )
        # the change must come yet, since the table is asked for again behind it; who is ahead of our place comes again
        if change is None or self.is_ahead() or _reached(self.place(), change.at):
            raise error
        if not self.leaves_out(error, [table_map.name]):
            raise error
        self._left_out[name] = change.at
        return None

    def _schema_of_files(
        self, table_map: TableMap, known: TableSchema | None
    ) -> tuple[TableSchema | None, Mapping[Name, _Change]]:
        """Return the table as the files and the job file describe it, and what forbids to use the latter."""
        name, later = (table_map.database, table_map.table), None
        changed: Mapping[Name, _Change] = {}
        if self._files is not None:
            if known is None and self._files.described:
                changed, later = self._changed_in_files(name), self._files.table(name)
                if name not in changed:
                    known, later = later, None
            self._files.refuse_unsure(table_map, known, later)
        found = assembled(table_map, known)
        if found is None and known is not None and misfit(known, table_map) is None:
            found = with_nulls(known, table_map)
        if found is None:
            return known, changed
        self._keep(name, found)
        return self._newest(name), {}

    def _is_left_out(self, name: Name) -> bool:
        """Whether the statement that its rows are left out up to is still to come."""
        upto = self._left_out.get(name)
        return upto is not None and not _reached(self.place(), upto)

    def leaves_out(self, error: CdcError, tables: Collection[str]) -> bool:
        """Whether a person has agreed to go on without changes of ``tables`` that cannot be read, for ``error``."""
        if self.inside_xa():  # a table that is loaded again before they are decided would go without them
            error.mend = (
                "Rows of an XA transaction cannot be left out. Begin a new job behind it, under another name and with "
                "empty targets."
            )
            return False
        if not self._resumption.past_gap or (self._ask is not None and self._is_new()):
            return False
        log.warning("going on without changes of %s: %s", ", ".join(sorted(tables)) or "unknown tables", error)
        self._gaps |= set(tables)
        return True

    def _is_new(self) -> bool:
        """Whether the place read up to lies behind what was there when a person agreed."""
        return self._agreed_upto is None or _reached(self.place(), self._agreed_upto)

    def note_gap(self, server: Server) -> None:
        """Note that changes of any mapped table may be missing. Calls: after ``prepare``."""
        self._gaps |= {f"{database}.{table}" for database, table in mapped_tables(server, self._selection.maps)}

    def take_gaps(self) -> frozenset[str]:
        """Tables of which changes were left out since the last call."""
        gaps, self._gaps = self._gaps, frozenset()
        return gaps

    def _keep(self, name: Name, schema: TableSchema) -> None:
        """Make ``schema`` the table's version from the place read up to on."""
        if self._newest(name) is not schema:
            self._add(name, schema, self.place())

    def described(self, told: TableSchema, at: Position) -> TableSchema:
        """``told``, a schema from row metadata, with comments and exact types where the server still has them."""
        name = (told.database, told.table)
        known = self._described.get(name)
        if known is not None and known[0] is told:
            return known[1]
        current = self._versions[name][-1] if name in self._versions else None
        if current is not None and self._is_gone(current):
            current = None
        if current is told:
            return told
        if current is None or not _merged(told, current).same_shape(current):
            current = self._with_comments(told)
            self._add(name, current, at)
            current = self._versions[name][-1]
        self._described[name] = (told, current)
        return current

    def _with_comments(self, told: TableSchema) -> TableSchema:
        name = (told.database, told.table)
        if self._ask is None or name in self._catalog:
            return _merged(told, self._catalog.get(name, told))
        try:
            with self._ask() as server:
                found = table_schemas(server, [name])
        except CdcError as error:  # comments are worth no pause
            log.warning("no comments for %s: %s", told.name, error.message)
            return told
        return _merged(told, found.get(name, told))

    def _add(self, name: Name, schema: TableSchema, since: Position) -> None:
        """A table's first version holds before ``since`` too, unless another table of that name was there."""
        is_first = name not in self._versions and name not in self._gone
        version = replace(schema, since=None if is_first else since)
        self._versions[name] = (*self._versions.get(name, ()), version)

    def current(self, database: str, table: str) -> TableSchema | None:
        """The newest version known."""
        return self._newest((database, table)) or self._catalog.get((database, table))

    def _newest(self, name: Name) -> TableSchema | None:
        versions = self._versions.get(name)
        return versions[-1] if versions and not self._is_gone(versions[-1]) else None

    def look_up(self, database: str, table: str) -> TableSchema | None:
        """The table as the server has it now."""
        if self._ask is None:
            return None
        with self._ask() as server:
            return table_schemas(server, [(database, table)]).get((database, table))

    def at(self, position: Position) -> tuple[TableSchema, ...]:
        """The schemas in force at ``position``."""
        return tuple(
            schema for schema in in_force(self._versions.values(), position) if not self._is_gone(schema, position)
        )

    def _is_gone(self, schema: TableSchema, position: Position | None = None) -> bool:
        """Whether the table that had ``schema`` is no more, at ``position`` or now."""
        gone = self._gone.get((schema.database, schema.table))
        if gone is None or (schema.since is not None and schema.since.reached(gone)):
            return False
        return position is None or position.reached(gone)

    def rewind(self, position: BinlogPosition) -> None:
        """Forget what came after ``position``; it is read again."""
        self.begin(position, self.at(position))

    # --- statements ---

    def maps(self, database: str, table: str) -> bool:
        """See ``cdc.ddl.Tables``."""
        return self._selection.maps(database, table)

    def note_loaded(self, tables: Iterable[str]) -> None:
        """See ``Receiver``."""
        named = {name for name in map(table_of, tables) if self.maps(*name)}
        with self._loaded_lock:
            self._loaded |= named  # made anew: the reading thread may be at it

    def known(self, database: str, table: str | None = None) -> tuple[str, ...]:
        """See ``cdc.ddl.Tables``."""
        seen = {**self._catalog, **self._versions, **dict.fromkeys(self._looked_at | self._loaded)}
        return tuple(table_text(db, name) for db, name in seen if db == database and table in (None, name))

    def reads_column(self, database: str, table: str, column: str) -> bool:
        """See ``cdc.ddl.Tables``. Of a table never seen, every column counts as read."""
        versions = self._versions.get((database, table))  # also a gone one: other statements may lie between
        schema = versions[-1] if versions else self._catalog.get((database, table))
        return reads_column(self._selection, schema, column)

    def on_statement(self, statement: Statement) -> None:
        """Judge a statement of the binlog.

        Raises: SchemaChanged - it touches a mapped table; UnsupportedImage - it writes rows as text.
        """
        effect = self._effect(statement)
        if effect.kind is EffectKind.WRITES:
            self._check_writes(statement, effect)
            return
        self._plain_writes.clear()  # it may have made a trigger or a foreign key
        if effect.kind is EffectKind.CREATES:
            log.info("%s begins: %s", effect.tables[0], effect.reason, extra={"position": str(statement.before)})
            self._drop(effect.tables)
            self._begun |= dict.fromkeys(map(table_of, effect.tables), statement.before)
            known = [name for name in map(table_of, effect.tables) if name in self._versions]
            self._gone |= dict.fromkeys(known, statement.before)
            for name in map(table_of, effect.tables):
                self._begin_table(statement, name, statement.before)
        elif effect.kind is EffectKind.HARMLESS:
            if effect.may_rekey:
                self._check_key(statement, effect)
            if effect.reshapes:
                self._renew(statement, effect)
        elif effect.kind is EffectKind.TOUCHES:
            self._touched(statement, effect)

    def _effect(self, statement: Statement) -> Effect:
        return effect_of(
            statement.sql,
            database=statement.database,
            tables=self,
            ansi_quotes=statement.ansi_quotes,
            fold_case=self.fold_case,
            mariadb=statement.mariadb,
        )

    def _touched(self, statement: Statement, effect: Effect) -> None:
        at_start = self._start is not None and _same_place(self._start, statement.before)
        said = self._resumption.of(statement.before, at_start=at_start)
        (said or self._resumption).check(effect, statement.sql, statement.before, at_start=at_start or bool(said))
        self._renew(statement, effect)
        log.warning("going on behind %s on %s", effect.reason, ", ".join(effect.tables))

    def _renew(self, statement: Statement, effect: Effect) -> None:
        """Go on with the tables as they are behind the statement, if the mapping still fits them."""
        names = [table_of(table) for table in effect.tables]
        self._drop(effect.tables)
        if self._files is not None and not effect.columns_stay:
            for name in names:
                self._files.changed(name, self._newest(name))
                self._gone[name] = statement.after  # what comes under that name must be described again
                self._begin_table(statement, name, statement.after)
        if self._ask is None:
            return
        with self._ask() as server:
            found = table_schemas(server, names)
            for name in names:
                schema = found.get(name)
                if schema is None:
                    self._gone[name] = statement.after  # dropped or renamed; who comes under that name is a new table
                    with self._loaded_lock:
                        self._loaded -= {name}
                    continue
                try:
                    self._selection.reads(schema)
                except (SchemaMismatch, TargetMismatch) as error:
                    if not self._selection.leave_out(*name, error):
                        raise
                    self._gone[name] = statement.after
                    continue
                if not server.full_metadata and self._changed_between(server, statement.after, {name}):
                    self._gone[name] = statement.after  # the next statement tells more, or rows before it are refused
                    continue
                self._add(name, schema, statement.after)

    def _begin_table(self, statement: Statement, name: Name, since: BinlogPosition) -> None:
        """Take the table from a CREATE TABLE statement in binlog files, if it defines all."""
        schema = self._files.created(statement, name) if self._files is not None else None
        if schema is not None:
            self._add(name, schema, since)

    def _drop(self, tables: Iterable[str]) -> None:
        for table in tables:
            name = table_of(table)
            self._described.pop(name, None)
            self._catalog.pop(name, None)
            self._sequences.discard(name)

    def _check_key(self, statement: Statement, effect: Effect) -> None:
        name = table_of(effect.tables[0])
        if self._files is not None and self._files.keyed_by_index(name):
            self._renew(statement, effect)
        known = self.current(*name)
        if known is None or self._ask is None:
            return
        with self._ask() as server:
            schema = table_schemas(server, [name]).get(name)
        if schema is not None and schema.key != known.key:
            self._touched(statement, replace(effect, kind=EffectKind.TOUCHES))

    def _check_writes(self, statement: Statement, effect: Effect) -> None:
        mapped = sorted(table for table in effect.tables if self.maps(*table_of(table)))
        beyond = [told for table in effect.tables if (told := self._written_beyond(table))]
        if mapped:
            why = f"it writes {', '.join([*mapped, *beyond])}"
        elif beyond:
            why = f"it writes {beyond[0]}"
        elif effect.tables:
            return
        else:
            why = "what it writes cannot be told"
        is_all = mapped and not beyond
        error = UnsupportedImage(
            f"A session writes rows as statements, without row images: {why}.",
            mend="Set binlog_format=ROW for that session and on the server. " + (LEAVE_OUT if is_all else LOAD_AGAIN),
            statement=statement.sql[:120],
            position=statement.before,
        )
        if not self.leaves_out(error, mapped):
            raise error

    def _written_beyond(self, table: str) -> str:
        """What a statement on ``table`` may write besides, in words with the table's name; "" if nothing."""
        name = table_of(table)
        if name in self._plain_writes or self._ask is None:
            return ""
        with self._ask() as server:
            beyond = writes_beyond(server, name, self.maps)
        if beyond is None:
            self._plain_writes.add(name)
            return ""
        return f"{table}, and {beyond}"


def _merged(told: TableSchema, today: TableSchema) -> TableSchema:
    """``told`` with what only the catalog knows, column by column where both agree on the kind."""
    columns = []
    known = {column.name.casefold(): column for column in today.columns}
    for column in told.columns:
        other = known.get(column.name.casefold())
        if other is not None and other.kind is column.kind and other.arrow == column.arrow:
            columns.append(replace(column, type=other.type, comment=other.comment, generated=other.generated))
        else:
            columns.append(column)
    return replace(told, columns=tuple(columns), comment=today.comment)


def _reached(place: BinlogPosition, other: BinlogPosition) -> bool:
    """As ``Position.reached``; True where the two cannot be compared, since rows are left out only on firm ground."""
    try:
        return place.reached(other)
    except ValueError:
        return True


def _same_place(one: BinlogPosition, other: BinlogPosition) -> bool:
    if one.file and other.file and one.server == other.server:
        return (one.file, one.offset) == (other.file, other.offset)
    return bool(one.gtid_set) and one.gtid_set == other.gtid_set
