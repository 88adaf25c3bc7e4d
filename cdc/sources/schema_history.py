"""The schemas of the mapped tables at each position of a source, and what the user accepted about DDL statements.

A receiver adds a version of a table's schema when it reads the table's first rows or a DDL statement. The versions that
are valid at the end of a Batch are saved with its checkpoint, and a restart begins with them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile

from sqlglot.errors import SqlglotError

from cdc.errors import STATEMENT_START, CdcError, DdlStop, SchemaMismatch
from cdc.model.position import BinlogPosition, CanalPosition, Position
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.table_filter import TableFilter
from cdc.model.table_names import table_of, table_text
from cdc.mysql.catalog import system_versioned, table_schemas
from cdc.mysql.ddl import Effect, EffectKind, effect_of
from cdc.mysql.ddl_effect import strongest
from cdc.mysql.ddl_tokens import tokens_of
from cdc.mysql.server import Server
from cdc.sources.stored_names import StoredNames

Name = tuple[str, str]  # database and table
Connect = Callable[[], Server]
_LIKE = re.compile(r"\bLIKE\b", re.IGNORECASE)
_REMOVES = re.compile(r"\b(?:DROP TABLE|(?:DROP|OR REPLACE) DATABASE|RENAME|CONVERT TABLE)\b", re.IGNORECASE)


class SchemaHistory:
    """Keep the versions of each mapped table's schema, each of which is valid from a Position on.

    Implements ``cdc.mysql.ddl.TableLookup``.
    Calls: ``current``, ``at``, ``look_up``, ``require``, ``note_loaded`` from any thread, the others from the thread
    that reads the source. A table's versions are replaced as a whole, so that no thread sees half of a change.
    """

    def __init__(self, table_filter: TableFilter, connect: Connect | None) -> None:
        """``connect``: opens a connection to the source's server; None: there is no server."""
        self.connect = connect
        self.names = StoredNames(self._knows, self.maps, has_server=connect is not None)
        self.catalog: dict[Name, TableSchema] = {}  # read when the source was opened; a table's next DDL removes it
        self.catalog_end: Position | None = None  # end of the binlog when ``catalog`` was read
        self.searched: frozenset[Name] = frozenset()  # a search for statements on these runs: they count as known
        self._table_filter = table_filter
        self._versions: dict[Name, tuple[TableSchema, ...]] = {}
        self._ended_at: dict[Name, Position] = {}  # where the table was dropped, renamed or created again
        self.created: frozenset[str] = frozenset()  # see ``ReceiverStatus``
        self.removed: frozenset[str] = frozenset()
        self._loaded: frozenset[Name] = frozenset()
        self._loaded_lock = threading.Lock()

    def begin(self, saved: Iterable[TableSchema]) -> None:
        """Start again with the schemas that were saved for the start position."""
        self._versions = {(schema.database, schema.table): (replace(schema, since=None),) for schema in saved}
        self._ended_at = {}

    def begin_run(self) -> None:
        """Forget which tables statements of an earlier run have created and removed."""
        self.created = self.removed = frozenset()

    def note_created(self, effect: Effect) -> None:
        """Record the table of a CREATE TABLE. One with IF NOT EXISTS does not prove that the table is new."""
        if effect.reason.startswith("CREATE TABLE"):
            self.removed -= {*effect.tables}
            self.created |= {*effect.tables} if effect.is_new else frozenset()

    def note_removed(self, effect: Effect, name: Name) -> None:
        """Record that ``name`` does not exist after an accepted statement, if that can drop or rename tables."""
        if _REMOVES.search(effect.reason):
            self.created -= {table_text(*name)}
            self.removed |= {table_text(*name)}

    def note_shown(self, name: Name) -> None:
        """Record that the server shows ``name`` after a statement, for example after a RENAME back."""
        self.removed -= {table_text(*name)}

    def add(self, name: Name, schema: TableSchema, since: Position) -> TableSchema:
        """Add a version that is valid from ``since`` on, and return it.

        A table's first version is also valid before ``since``, unless another table had that name.
        """
        is_first = name not in self._versions and name not in self._ended_at
        version = replace(schema, since=None if is_first else since)
        self._versions[name] = (*self._versions.get(name, ()), version)
        return version

    def add_after_end(self, name: Name, schema: TableSchema, since: Position) -> TableSchema:
        """Add a version as ``add`` does, but at the earliest where the table's last version has ended, and return it.

        For rows that are read after the statement which ended it, while ``since`` is before this statement.
        """
        ended_at = self._ended_at.get(name)
        return self.add(name, schema, since if ended_at is None or since.reached(ended_at) else ended_at)

    def note_charset(self, name: Name, charset: str, position: Position) -> bool:
        """Record the table's default charset from ``position`` on. Return whether it is another one."""
        known = self.current(name)
        if known is None or known.charset == charset:
            return False
        if self.newest(name) is not None:
            self.add(name, replace(known, charset=charset), position)
        else:
            self.catalog[name] = replace(known, charset=charset)
        return True

    def end(self, name: Name, position: Position) -> None:
        """End the table's newest version at ``position``: a later table of that name is another table."""
        self._ended_at[name] = position

    def has(self, name: Name) -> bool:
        """Return whether any version of the table is known, even one that has ended."""
        return name in self._versions

    def newest(self, name: Name) -> TableSchema | None:
        """Return the table's newest version; None if it has ended or no version is known."""
        version = self._newest(name)
        return None if version is None or version.is_dropped else version

    def known_schemas(self) -> Mapping[Name, TableSchema | None]:
        """Return the newest version of each table that is known, by name."""
        return {name: found for name in [*self._versions] if (found := self.newest(name)) is not None}

    def _newest(self, name: Name) -> TableSchema | None:
        versions = self._versions.get(name)
        return versions[-1] if versions and not self._has_ended(versions[-1]) else None

    def current(self, name: Name) -> TableSchema | None:
        """Return the table's newest version, or the catalog's description of a table without versions."""
        return None if self.dropped(name) is not None else self.newest(name) or self.catalog.get(name)

    def at_statement(self, name: Name, position: Position) -> TableSchema | None:
        """Return ``current`` for a statement at ``position``.

        Without columns if only the catalog describes the table, and was read after the statement: it has the columns
        after it, and those of later statements.
        """
        found = self.current(name)
        if found is None or self.newest(name) is not None or self.is_after_catalog(position):
            return found
        return replace(found, columns=(), key=(), charset="")

    def is_after_catalog(self, position: Position) -> bool:
        """Return whether ``position`` has reached the end of the binlog at which ``catalog`` was read."""
        try:
            return self.catalog_end is not None and position.reached(self.catalog_end)
        except ValueError:  # a start by GTID has no file before its first event, and ``catalog_end`` has no GTIDs
            return False

    def dropped(self, name: Name) -> TableSchema | None:
        """Return the columns of a table that was dropped or renamed, while its target has its rows; else None."""
        version = self._newest(name)
        return version if version is not None and version.is_dropped else None

    def shadow(self, name: Name) -> TableSchema | None:
        """Return a shadow table, if all its statements are known."""
        version = self._newest(name)
        return version if version is not None and version.copy is not None else None

    def shadows(self) -> tuple[Name, ...]:
        """Return the names of all shadow tables whose statements are known."""
        return tuple(name for name in self._versions if self.shadow(name) is not None)

    def renamed(self, name: Name) -> TableSchema | None:
        """Return a mapped table that has this name, which no channel reads, if no statement has changed it since."""
        version = self._newest(name)
        return version if version is not None and version.is_renamed else None

    def end_renamed(self, sql: str, position: Position) -> None:
        """End the record of each renamed table that a statement may change: its name is in the text.

        A text that may change a database as a whole counts for all tables of that database.
        """
        text = sql.casefold()
        is_whole = "database" in text or "schema" in text
        for database, table in [name for name in self._versions if self.renamed(name) is not None]:
            if table.casefold() in text or (is_whole and database.casefold() in text):
                self.end((database, table), position)

    def add_shadow(self, name: Name, schema: TableSchema, since: Position) -> None:
        """Add a version of a shadow table, which did not exist before ``since``."""
        self._versions[name] = (*self._versions.get(name, ()), replace(schema, since=since))

    def at(self, position: Position) -> tuple[TableSchema, ...]:
        """Return the schemas that are valid at ``position``, to be saved.

        A table that no channel reads has none: the statements on it are not followed, so if a channel reads it again,
        its rows must not be read with the columns that it had before.
        """
        found = []
        for name, versions in list(self._versions.items()):
            if not (versions[-1].copy or versions[-1].is_renamed or self.maps(*name)):
                continue
            valid = [version for version in versions if version.since is None or position.reached(version.since)]
            found += [version for version in valid[-1:] if not self._has_ended(version, position)]
        return tuple(found)

    def _has_ended(self, schema: TableSchema, position: Position | None = None) -> bool:
        """Return whether the table with this schema has ended; with a ``position``: at it or before it."""
        ended_at = self._ended_at.get((schema.database, schema.table))
        if ended_at is None or (schema.since is not None and schema.since.reached(ended_at)):
            return False
        return position is None or position.reached(ended_at)

    # --- the server ---

    def look_up(self, name: Name) -> TableSchema | None:
        """Return the table as the server describes it now; None if it has no such table or there is no server."""
        if self.connect is None:
            return None
        with self.connect() as server:
            return table_schemas(server, [name]).get(name)

    def is_versioned(self, name: Name) -> bool:
        """Return whether the server has this table with system versioning (MariaDB). Its deletes are updates there."""
        if self.connect is None:
            return False
        with self.connect() as server:
            return server.mariadb and bool(system_versioned(server, lambda database, table: (database, table) == name))

    def require(self, database: str, table: str, *, hint: str) -> TableSchema:
        """Return the table's current schema; query the server for an unknown table. Raises: SchemaMismatch."""
        name = (database, table)
        found = self.current(name) or (None if self.dropped(name) is not None else self.look_up(name))
        if found is None:
            problem = (
                "Table {} does not exist at the source."
                if self.connect is not None
                else "The columns of table {} are not known."
            )
            raise SchemaMismatch(problem.format(f"{database}.{table}"), hint=hint, table=f"{database}.{table}")
        return found

    # --- statements ---

    def creation(self, effect: Effect, sql: str) -> Effect:
        """Return the effect of a CREATE TABLE: a change if the target has rows, or if it copies system versioning.

        None if it names a table that exists in another case: it creates another table.
        """
        names = [table_of(table) for table in effect.tables]
        if any(self.dropped(name) is not None for name in names):
            return replace(effect, kind=EffectKind.TOUCHES, row_changing=True)
        if self.connect is None and all(self.newest(name) is not None and not _writes(sql, name) for name in names):
            return Effect(EffectKind.NONE)
        if _LIKE.search(sql) and self.is_versioned(names[0]):
            reason = "CREATE TABLE LIKE a table with system versioning"
            return replace(effect, kind=EffectKind.TOUCHES, reason=reason, row_changing=True)
        return effect

    def effect(self, sql: str, database: str, *, ansi_quotes: bool | None = None, mariadb: bool = True) -> Effect:
        """Return what a statement with the default database ``database`` does to the mapped tables.

        ``ansi_quotes``, ``mariadb``: see ``effect_of``.
        """
        spellings = (self.names.first, self.names.last) if self.names.fold_case is None else (self.names.first,)
        return strongest(
            [
                effect_of(sql, database=database, tables=self, ansi_quotes=ansi_quotes, stored=one, mariadb=mariadb)
                for one in spellings
            ]
        )

    def _knows(self, database: str, table: str) -> bool:
        """Return whether the job has seen this table, or a table of this database if ``table`` is ""."""
        if table:
            return (database, table) in self._versions or bool(self.known(database, table))
        return bool(self.known(database)) or any(name[0] == database for name in self._versions)

    def maps(self, database: str, table: str) -> bool:
        """See ``cdc.mysql.ddl.TableLookup``."""
        return self._table_filter.may_map(database, table)

    def known(self, database: str, table: str | None = None) -> tuple[str, ...]:
        """See ``cdc.mysql.ddl.TableLookup``."""
        versions = [known for known in self._versions if (one := self._newest(known)) is None or not _is_away(one)]
        away = self._versions.keys() - versions
        loaded = dict.fromkeys(one for one in {**self.catalog, **dict.fromkeys(self._loaded)} if one not in away)
        seen = {**loaded, **dict.fromkeys(versions), **dict.fromkeys(self.searched)}
        return tuple(table_text(db, name) for db, name in seen if db == database and table in (None, name))

    def reads_column(self, database: str, table: str, column: str) -> bool:
        """See ``cdc.mysql.ddl.TableLookup``. Every column of an unknown table counts as read."""
        versions = self._versions.get((database, table))  # even an ended version: other statements may follow
        schema = versions[-1] if versions else self.catalog.get((database, table))
        if schema is None:
            return True
        if column.casefold() not in {each.name.casefold() for each in schema.columns}:
            schema = replace(schema, columns=(*schema.columns, Column(column, Kind.INT, "int")))
        try:
            reads = self._table_filter.reads(schema)
        except CdcError:
            return True
        return column.casefold() in {name.casefold() for name in reads.columns | reads.key}

    def reads_generated(self, database: str, table: str) -> bool:
        """See ``cdc.mysql.ddl.TableLookup``."""
        versions = self._versions.get((database, table))
        schema = versions[-1] if versions else self.catalog.get((database, table))
        generated = [one.name for one in schema.columns if one.generated] if schema is not None else []
        return any(self.reads_column(database, table, name) for name in generated)

    def note_loaded(self, tables: Iterable[str]) -> None:
        """See ``Receiver``."""
        mapped = {name for name in map(table_of, tables) if self.maps(*name)}
        with self._loaded_lock:
            self._loaded |= mapped  # creates a new set: the reading thread may iterate over the old one

    def forget_loaded(self, name: Name) -> None:
        """Unregister a table that no longer exists."""
        with self._loaded_lock:
            self._loaded -= {name}


def _is_away(schema: TableSchema) -> bool:
    """Return whether this is not a table that a channel reads now: it was dropped or renamed, or is a shadow table."""
    return schema.is_dropped or schema.is_renamed or schema.copy is not None


def _writes(sql: str, name: Name) -> bool:
    """Return whether a CREATE TABLE statement has this name of a table, in this case, before its columns."""
    try:
        tokens = tokens_of(sql, ansi_quotes=False, mariadb=True)
    except SqlglotError:
        return True
    return any(token.text == name[1] for token in takewhile(lambda token: token.word != "(", tokens))


@dataclass(frozen=True, slots=True)
class ResumeOptions:
    """What the user accepted with the options of ``cdc resume``."""

    past_gap: bool = False  # omit changes that cannot be read and that the source already had when the job resumed
    acknowledged: Mapping[Position, bool] = field(
        default_factory=dict
    )  # the statements at which the job was PAUSED when it resumed -> whether with --past-ddl

    def check(self, effect: Effect, sql: str, before: Position) -> None:
        """Check that the user accepted the statement at ``before``, which changes a mapped table.

        A resume accepts only the statement at which the job was PAUSED. Another one can be the first event after the
        position of the job: it was written after the pause.
        Raises: DdlStop - the user did not accept it.
        """
        found = [past_ddl for position, past_ddl in self.acknowledged.items() if is_same_position(position, before)]
        check_accepted(effect, sql, before, past_ddl=any(found) if found else None)


def check_accepted(
    effect: Effect, sql: str, before: Position, *, past_ddl: bool | None, has_tables: bool = True
) -> None:
    """Check that the user accepted the statement at ``before``, which changes a mapped table.

    ``past_ddl``: whether the resume that accepted it had --past-ddl, which a statement needs that changed rows without
    row events; None: no resume accepted it. ``has_tables``: a snapshot can load the tables again.
    Raises: DdlStop - the user did not accept it.
    """
    if past_ddl or (past_ddl is not None and not effect.row_changing):
        return
    hint = "Check that the target table fits the changed table, then run `cdc resume NAME`."
    if effect.row_changing and not has_tables:
        hint = "The statement may have changed rows without messages about them. If it did, correct these rows in the "
        hint += "target, or let the producer send them again. Then run `cdc resume NAME --past-ddl`."
    elif effect.row_changing:
        hint = "The statement may have changed rows without row events. If it did, run `cdc snapshot NAME "
        hint += f"{' '.join(effect.tables)}`, which starts after the resume. Then run `cdc resume NAME "
        hint += "--past-ddl`."
    raise DdlStop(
        f"{effect.reason} changes {', '.join(effect.tables)}.",
        hint=hint,
        tables=", ".join(effect.tables),
        statement=sql[:STATEMENT_START],
        position=before,
    )


def is_same_position(one: Position, other: Position) -> bool:
    """Return whether both are the same position: by file and offset on one server, else by GTID sets."""
    if isinstance(one, CanalPosition) and isinstance(other, CanalPosition):
        try:
            return one.reached(other) and other.reached(one)
        except ValueError:  # of different servers
            return False
    if not (isinstance(one, BinlogPosition) and isinstance(other, BinlogPosition)):
        return False
    if one.file and other.file and one.server == other.server:
        return (one.file, one.offset) == (other.file, other.offset)
    return bool(one.gtid_set) and one.gtid_set == other.gtid_set
