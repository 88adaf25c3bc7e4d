"""The tables of a Canal job: schemas by table and place, and what statements do to them.

With ``source.mysql`` schemas come from information_schema; without it from the rows themselves, which tell no charsets
and no NOT NULL.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from cdc.binlog.catalog import table_schemas
from cdc.binlog.server import Server
from cdc.canal.layout import Layout, misfits, schema_of
from cdc.ddl import Effect, EffectKind, effect_of
from cdc.errors import LEAVE_OUT, LOAD_AGAIN, CdcError, SchemaMismatch, UnsupportedImage
from cdc.names import table_of, table_text
from cdc.position import CanalPosition, Position
from cdc.receiver.base import Selection
from cdc.receiver.tables import Resumption, in_force, reads_column
from cdc.schema import TableSchema

log = logging.getLogger(__name__)

Name = tuple[str, str]


@dataclass(frozen=True, slots=True)
class CanalStatement:
    """A statement that Canal passes on."""

    database: str  # the session's default
    sql: str
    before: CanalPosition
    after: CanalPosition
    dml: bool  # rows logged as text
    time_ms: int


class CanalTables:
    """Schemas by table, with the Position that each holds from. An EntryDecoder's TableSource, and what ddl asks."""

    def __init__(self, selection: Selection, ask: Callable[[], Server] | None, resumption: Resumption) -> None:
        """``ask``: opens a connection to the source's MySQL; None: rows tell what they can."""
        self._selection = selection
        self._ask = ask
        self._resumption = resumption
        self._versions: dict[Name, tuple[TableSchema, ...]] = {}
        self._loaded: frozenset[Name] = frozenset()
        self._agreed_ms = time.time() * 1000  # what was made before may be left out, where a person has said so
        self._gaps: frozenset[str] = frozenset()  # since ``take_gaps``
        self._stale: set[Name] = set()  # changed since: the next rows tell the schema anew
        self._start = CanalPosition("", 0)
        self.place = self._start  # before the rows that are being read
        self.fold_case = False

    def begin(self, start: CanalPosition, saved: Iterable[TableSchema]) -> None:
        """Start over at ``start`` with the schemas saved there."""
        self._start = self.place = start
        self._versions = {(schema.database, schema.table): (schema,) for schema in saved}
        self._stale.clear()
        self._gaps = frozenset()
        if self._ask is not None:
            with self._ask() as server:
                self.fold_case = server.folds_case

    def rewind(self, position: CanalPosition) -> None:
        """Forget what came after ``position``; it is read again."""
        self.begin(position, self.at(position))

    def at(self, position: Position) -> tuple[TableSchema, ...]:
        """The schemas in force at ``position``."""
        return in_force(self._versions.values(), position)

    def current(self, database: str, table: str) -> TableSchema | None:
        """The newest version known."""
        versions = self._versions.get((database, table))
        return versions[-1] if versions else None

    def look_up(self, database: str, table: str) -> TableSchema | None:
        """The table as the source has it now; None where it has none, or cannot be asked."""
        if self._ask is None:
            return None
        with self._ask() as server:
            return table_schemas(server, [(database, table)]).get((database, table))

    def schema(self, database: str, table: str, layout: Layout) -> TableSchema:
        """See ``cdc.canal.entries.TableSource``."""
        name = (database, table)
        known = None if name in self._stale else self.current(*name)
        problem = self._misfit(known, layout) if known is not None else None
        if known is not None and problem is None:
            return known
        if known is None or self._ask is not None:
            known = found = self._found(database, table, layout)
            problem = self._misfit(found, layout)
            if problem is None:
                if name in self._versions:
                    found = replace(found, since=self.place)
                self._versions[name] = (*self._versions.get(name, ()), found)
                self._stale.discard(name)
                return found
        if {column.name.casefold() for column in layout} < {column.name.casefold() for column in known.columns}:
            raise _not_full()
        raise SchemaMismatch(
            f"Canal's rows of {database}.{table} do not fit the table as it is known: {problem}.",
            mend="Canal may have the table's columns of another time (its TSDB is off, or DDL is filtered away from "
            "it): mend Canal, then take a new snapshot of the table.",
            position=self.place,
        )

    def _found(self, database: str, table: str, layout: Layout) -> TableSchema:
        if self._ask is not None:
            found = self.look_up(database, table)
            if found is not None:
                return found
        if [column.index for column in layout] != list(range(len(layout))):
            raise _not_full()
        return schema_of(database, table, layout)

    def _misfit(self, schema: TableSchema, layout: Layout) -> str | None:
        reads = self._selection.reads(schema)
        problem = misfits(schema, layout, sorted(reads.columns | reads.key))
        if problem is None and self._ask is None and len(layout) != len(schema.columns):
            problem = f"they have {len(layout)} columns, and {len(schema.columns)} are known"
        return problem

    # --- statements; see ``cdc.ddl.Tables`` ---

    def maps(self, database: str, table: str) -> bool:
        """Whether a channel reads this table."""
        return self._selection.maps(database, table)

    def note_loaded(self, tables: Iterable[str]) -> None:
        """See ``Receiver``."""
        self._loaded |= {name for name in map(table_of, tables) if self.maps(*name)}

    def known(self, database: str, table: str | None = None) -> tuple[str, ...]:
        """Mapped tables seen so far."""
        seen = {**self._versions, **dict.fromkeys(self._loaded)}
        return tuple(table_text(db, name) for db, name in seen if db == database and table in (None, name))

    def reads_column(self, database: str, table: str, column: str) -> bool:
        """Whether the channel reads this column; of a table never seen, every one counts as read."""
        return reads_column(self._selection, self.current(database, table), column)

    def on_statement(self, statement: CanalStatement) -> bool:
        """Judge a statement; True: schemas must be asked for again.

        Raises: SchemaChanged - it touches a mapped table.
        """
        effect = self._effect(statement)
        if effect.kind is EffectKind.TOUCHES:
            before = statement.before
            at_start = (self._start.file, self._start.offset) == (before.file, before.offset)
            self._resumption.check(effect, statement.sql, before, at_start=at_start)
            log.warning("going on behind %s on %s", effect.reason, ", ".join(effect.tables))
        elif effect.kind is EffectKind.CREATES:
            log.info("%s begins: %s", effect.tables[0], effect.reason, extra={"position": str(statement.before)})
        elif not (effect.reshapes or effect.may_rekey):
            return False
        self._stale |= {table_of(table) for table in effect.tables}
        return True

    def left_out_by(self, statement: CanalStatement) -> frozenset[str]:
        """Mapped tables that lack what a statement wrote as text, where a person has agreed to that.

        Raises: UnsupportedImage - nobody has.
        """
        effect = self._effect(statement)
        mapped = sorted(table for table in effect.tables if self.maps(*table_of(table)))
        if effect.kind is not EffectKind.WRITES or not (mapped or not effect.tables):
            return frozenset()
        error = UnsupportedImage(
            "A session writes rows as statements, without row images: "
            + (f"it writes {mapped[0]}." if mapped else "what it writes cannot be told."),
            mend="Set binlog_format=ROW for that session and on the server. " + (LEAVE_OUT if mapped else LOAD_AGAIN),
            statement=statement.sql[:120],
            position=statement.before,
        )
        if not self._is_agreed(error, mapped, statement.time_ms):
            raise error
        return frozenset(mapped)

    def _effect(self, statement: CanalStatement) -> Effect:
        return effect_of(statement.sql, database=statement.database, tables=self, fold_case=self.fold_case)

    # --- changes that cannot be read ---

    def leaves_out(self, error: CdcError, tables: Collection[str], time_ms: int) -> bool:
        """Whether a person has agreed to go on without changes of ``tables`` that cannot be read, for ``error``.

        ``time_ms``: when they were made, milliseconds since 1970, UTC.
        """
        if not self._is_agreed(error, tables, time_ms):
            return False
        self.note_gaps(tables)
        return True

    def _is_agreed(self, error: CdcError, tables: Collection[str], time_ms: int) -> bool:
        if not self._resumption.past_gap or time_ms > self._agreed_ms:
            return False
        log.warning("going on without changes of %s: %s", ", ".join(sorted(tables)) or "unknown tables", error)
        return True

    def note_gaps(self, tables: Iterable[str]) -> None:
        """The next Batch goes without changes of these."""
        self._gaps |= set(tables)

    def take_gaps(self) -> frozenset[str]:
        """Tables of which changes were left out since the last call."""
        gaps, self._gaps = self._gaps, frozenset()
        return gaps


def _not_full() -> UnsupportedImage:
    return UnsupportedImage(
        "Rows come without some of the table's columns: the row image is not FULL.",
        mend=f"Set binlog_row_image=FULL on the server and in the session, use no field filter in Canal. {LEAVE_OUT}",
    )
