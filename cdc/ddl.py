"""What a statement in the binlog does to the mapped tables.

A white list: only what is known to leave rows and read columns alone is harmless. Everything else that names a mapped
table touches it, and so does what cannot be read at all. The tokens come from sqlglot's MySQL tokenizer; its parser is
not asked about DDL, because it turns a third of the server's own DDL into opaque commands and drops table options.

Source: MySQL manual, "Data Definition Statements"; MariaDB knowledge base, "ALTER TABLE".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from cdc.ddl_tokens import Cursor, Token, Unreadable, specifications, tokens_of
from cdc.names import table_text


class EffectKind(Enum):
    """What a statement is to the job."""

    NONE = "none"  # it has nothing to do with a mapped table
    HARMLESS = "harmless"  # rows and the columns that the mapping reads stay as they are
    TOUCHES = "touches"  # the job pauses before it
    CREATES = "creates"  # a mapped table begins
    WRITES = "writes"  # rows written by a statement and not by row events


@dataclass(frozen=True, slots=True)
class Effect:
    """What one statement does."""

    kind: EffectKind
    tables: tuple[str, ...] = ()  # mapped ones, "database.table"; of WRITES: every table it writes, mapped or not
    reason: str = ""  # "DROP COLUMN price"
    row_changing: bool = False  # rows may have changed or gone without row events
    reshapes: bool = False  # columns that the mapping does not read changed: the schema must be read again
    may_rekey: bool = False  # an index went that may have been the table's key
    columns_stay: bool = False  # the rows alone are gone


class Tables(Protocol):
    """What the job knows of tables, as far as statements go."""

    def maps(self, database: str, table: str) -> bool:
        """Whether a channel reads this table."""

    def known(self, database: str, table: str | None = None) -> tuple[str, ...]:
        """Mapped tables seen so far, of that name or, without one, of the whole database."""

    def reads_column(self, database: str, table: str, column: str) -> bool:
        """Whether the channel reads this column, also one that does not exist yet."""


def effect_of(
    sql: str,
    *,
    database: str,
    tables: Tables,
    ansi_quotes: bool = False,
    fold_case: bool = False,
    mariadb: bool = True,
) -> Effect:
    """What ``sql``, run with ``database`` as its default, does to the mapped tables.

    ``fold_case``: the server stores table names in lower case (``lower_case_table_names`` is not 0). ``mariadb``: the
    server executes ``/*M! */`` comments; where the server is not known, as with Canal, they are read as code.
    """
    reader = _Reader(database, tables, ansi_quotes, fold_case, mariadb)
    return reader.effect(sql)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SESSION = _words(
    "BEGIN COMMIT ROLLBACK SAVEPOINT RELEASE XA SET START LOCK UNLOCK FLUSH ANALYZE OPTIMIZE REPAIR CHECK CHECKSUM "
    "CACHE GRANT REVOKE INSTALL UNINSTALL USE SHOW DESCRIBE EXPLAIN HELP KILL RESET PURGE CHANGE STOP BINLOG SHUTDOWN"
)
_DML = _words("INSERT REPLACE UPDATE DELETE LOAD WITH CALL DO SELECT VALUES")
_OTHER_OBJECTS = _words(
    "VIEW TRIGGER PROCEDURE FUNCTION EVENT USER ROLE SERVER TABLESPACE SEQUENCE LOGFILE RESOURCE SPATIAL PACKAGE "
    "UNDO INSTANCE LIBRARY LOADABLE MATERIALIZED"
)
_DATABASE = frozenset(("DATABASE", "SCHEMA"))
_INDEX = _words("INDEX KEY UNIQUE FULLTEXT SPATIAL")
# the first word of an ALTER specification that changes neither rows nor columns
_HARMLESS_OPTIONS = _words(
    "ALGORITHM LOCK FORCE ENGINE STORAGE AUTO_INCREMENT AVG_ROW_LENGTH DEFAULT CHARSET CHARACTER COLLATE CHECKSUM "
    "TABLE_CHECKSUM COMMENT COMPRESSION CONNECTION DATA INDEX DELAY_KEY_WRITE ENCRYPTION ENCRYPTED ENCRYPTION_KEY_ID "
    "INSERT_METHOD KEY_BLOCK_SIZE MAX_ROWS MIN_ROWS PACK_KEYS PASSWORD ROW_FORMAT STATS_AUTO_RECALC STATS_PERSISTENT "
    "STATS_SAMPLE_PAGES TABLESPACE PAGE_CHECKSUM PAGE_COMPRESSED PAGE_COMPRESSION_LEVEL TRANSACTIONAL IETF_QUOTES "
    "AUTOEXTEND_SIZE ENGINE_ATTRIBUTE SECONDARY_ENGINE SECONDARY_ENGINE_ATTRIBUTE SECONDARY_LOAD SECONDARY_UNLOAD "
    "ENABLE DISABLE WITH WITHOUT ORDER"
)
_HARMLESS_PARTITION_WORK = _words("REORGANIZE COALESCE ANALYZE CHECK OPTIMIZE REBUILD REPAIR")
_ROW_CHANGING_PARTITION_WORK = _words("DROP TRUNCATE EXCHANGE DISCARD IMPORT CONVERT")
_TABLES = _words("TABLE TABLES LOCAL NO_WRITE_TO_BINLOG")  # behind ANALYZE, where it is no statement that is run
# MariaDB: settings for one statement, which is what follows
_SETTINGS_FOR = re.compile(
    r"""\s*SET\s+STATEMENT\s(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'"])*?\sFOR\s""", re.IGNORECASE | re.DOTALL
)
_RULES = frozenset(("UNIQUE", "PRIMARY", "CHECK", "FOREIGN", "REFERENCES", "PARTITION"))  # rows may break them
_NO_ROWS_ENGINES = frozenset(("BLACKHOLE", "FEDERATED"))


@dataclass(frozen=True, slots=True)
class _Reader:
    database: str
    tables: Tables
    ansi_quotes: bool
    fold_case: bool
    mariadb: bool

    def effect(self, sql: str) -> Effect:
        if settings := _SETTINGS_FOR.match(sql):
            return self.effect(sql[settings.end() :])
        try:
            tokens = tokens_of(sql, self.ansi_quotes, mariadb=self.mariadb)
        except SqlglotError:
            return self._unreadable(_rough_names(sql), sql)
        cursor = Cursor(tokens)
        if cursor.done:
            return Effect(EffectKind.NONE)
        try:
            return self._statement(cursor, sql)
        except Unreadable:
            if cursor.tokens[0].word in _DML:
                return Effect(EffectKind.WRITES, (), sql[:80])
            return self._unreadable([token.text for token in tokens if token.name], sql, tokens)

    def _statement(self, cursor: Cursor, sql: str) -> Effect:
        first = cursor.word()
        if (first, cursor.word(1)) == ("SET", "STATEMENT") or (first == "ANALYZE" and cursor.word(1) not in _TABLES):
            raise Unreadable  # another statement is in it
        if first in _SESSION or (first == "RENAME" and cursor.word(1) == "USER"):
            return Effect(EffectKind.NONE)
        if first in _DML:
            return self._writes(cursor, sql)
        cursor.at += 1
        if first == "CREATE":
            return self._create(cursor)
        if first == "DROP":
            return self._drop(cursor)
        if first == "ALTER":
            return self._alter(cursor)
        if first == "TRUNCATE":
            cursor.take("TABLE")
            return replace(self._rows_gone("TRUNCATE", [self._table(cursor)]), columns_stay=True)
        if first == "RENAME" and (cursor.take("TABLE") or cursor.take("TABLES")):
            return self._rename(cursor)
        raise Unreadable

    # --- the kinds of statement ---

    def _create(self, cursor: Cursor) -> Effect:
        replaces = cursor.take("OR", "REPLACE")
        if cursor.take("TEMPORARY"):
            return Effect(EffectKind.NONE)
        if cursor.take("TABLE"):
            if_missing = cursor.take("IF", "NOT", "EXISTS")
            database, table = self._table(cursor)
            if not self.tables.maps(database, table):
                return Effect(EffectKind.NONE)
            if replaces:
                return self._rows_gone("CREATE OR REPLACE TABLE", [(database, table)])
            if if_missing and self.tables.known(database, table):
                return Effect(EffectKind.HARMLESS, (table_text(database, table),), "CREATE TABLE IF NOT EXISTS")
            return Effect(EffectKind.CREATES, (table_text(database, table),), "CREATE TABLE")
        if cursor.take_any(_DATABASE):
            if replaces:
                cursor.if_exists()
                return self._database_gone(self._fold(cursor.name()), "CREATE OR REPLACE DATABASE")
            return Effect(EffectKind.NONE)
        words = {token.word for token in cursor.rest()[:24]}  # DEFINER, ALGORITHM and SQL SECURITY may come before
        if words & _OTHER_OBJECTS and cursor.word() not in _INDEX - {"SPATIAL"}:
            return Effect(EffectKind.NONE)
        if words & {"INDEX"}:
            return Effect(EffectKind.HARMLESS)
        raise Unreadable

    def _drop(self, cursor: Cursor) -> Effect:
        if cursor.take("TEMPORARY"):
            return Effect(EffectKind.NONE)
        if cursor.take("TABLE") or cursor.take("TABLES"):
            if_exists = cursor.if_exists()
            dropped = [self._table(cursor)]
            while cursor.take(","):
                dropped.append(self._table(cursor))
            if if_exists:
                # a dump's "drop it if it is there" before its CREATE says nothing about a table that never was
                dropped = [name for name in dropped if self.tables.known(*name)]
            return self._rows_gone("DROP TABLE", dropped)
        if cursor.take_any(_DATABASE):
            cursor.if_exists()
            return self._database_gone(self._fold(cursor.name()), "DROP DATABASE")
        cursor.take("ONLINE") or cursor.take("OFFLINE")
        if cursor.take("INDEX"):
            cursor.if_exists()
            index = cursor.name()
            if not cursor.take("ON"):
                raise Unreadable
            return self._index_gone(self._table(cursor), index)
        if cursor.take_any(_OTHER_OBJECTS | {"PREPARE"}):
            return Effect(EffectKind.NONE)
        raise Unreadable

    def _rename(self, cursor: Cursor) -> Effect:
        cursor.if_exists()
        named = []
        while not cursor.done:
            named.append(self._table(cursor))
            if cursor.take("WAIT"):
                cursor.at += 1
            cursor.take("NOWAIT")
            if not cursor.take("TO"):
                raise Unreadable
            named.append(self._table(cursor))
            cursor.take(",")
        return self._rows_gone("RENAME TABLE", named)

    def _alter(self, cursor: Cursor) -> Effect:
        cursor.take("ONLINE") or cursor.take("OFFLINE")
        ignores = cursor.take("IGNORE")
        if not cursor.take("TABLE"):
            words = {token.word for token in cursor.rest()[:24]}
            if words & (_OTHER_OBJECTS | _DATABASE):
                return Effect(EffectKind.NONE)
            raise Unreadable
        cursor.if_exists()
        database, table = self._table(cursor)
        if cursor.take("WAIT"):
            cursor.at += 1
        cursor.take("NOWAIT")
        if not self.tables.maps(database, table):
            return self._alter_of_another(cursor)
        found = [self._specification(database, table, part) for part in specifications(cursor.rest())]
        if ignores and any(token.word in _RULES for token in cursor.rest()):
            # rows that break a key or a condition, or have no partition, are deleted, and no row event says so
            found.append(Effect(EffectKind.TOUCHES, reason=f"IGNORE {_phrase(cursor.rest())}", row_changing=True))
        touching = [effect for effect in found if effect.kind is EffectKind.TOUCHES]
        return Effect(
            EffectKind.TOUCHES if touching else EffectKind.HARMLESS,
            (table_text(database, table),),
            ", ".join(effect.reason for effect in touching or found if effect.reason),
            row_changing=any(effect.row_changing for effect in found),
            reshapes=any(effect.reshapes for effect in found),
            may_rekey=any(effect.may_rekey for effect in found),
        )

    def _alter_of_another(self, cursor: Cursor) -> Effect:
        """An unmapped table may be renamed to a mapped one, or exchange its rows with one."""
        for part in specifications(cursor.rest()):
            if part.word() in ("RENAME", "EXCHANGE", "CONVERT") and part.word(1) not in ("COLUMN", "INDEX", "KEY"):
                touched = self._named(part.tokens)
                if touched:
                    return Effect(EffectKind.TOUCHES, touched, _phrase(part.tokens), row_changing=True)
        return Effect(EffectKind.NONE)

    def _specification(self, database: str, table: str, part: Cursor) -> Effect:
        reason = _phrase(part.tokens)
        harmless = Effect(EffectKind.HARMLESS, reason=reason)
        touches = Effect(EffectKind.TOUCHES, reason=reason)
        loses = Effect(EffectKind.TOUCHES, reason=reason, row_changing=True)
        if part.done:
            return harmless
        first = part.word()
        part.at += 1
        if first in _ROW_CHANGING_PARTITION_WORK and part.word() in ("PARTITION", "TABLESPACE", "TABLE"):
            return loses
        if first in _HARMLESS_PARTITION_WORK and part.word() == "PARTITION":
            return harmless
        if first in ("PARTITION", "REMOVE") and part.word() in ("BY", "PARTITIONING"):
            return harmless
        if first == "ADD":
            return self._add(database, table, part, reason)
        if first == "DROP":
            return self._drop_part(database, table, part, reason)
        if first in ("MODIFY", "CHANGE"):
            part.take("COLUMN")
            part.if_exists()
            named = [part.name()] + ([part.name()] if first == "CHANGE" else [])
            if any(self.tables.reads_column(database, table, column) for column in named) or _is_key(part.rest()):
                return loses  # a narrower type cuts stored values, and no row event says so
            return Effect(EffectKind.HARMLESS, reason=reason, reshapes=True)
        if first == "ALTER":
            return harmless  # defaults, visibility of columns and indexes, enforcement of checks
        if first == "RENAME":
            if part.take("INDEX") or part.take("KEY"):
                return harmless
            if part.take("COLUMN"):
                part.if_exists()
                old = part.name()
                part.take("TO")
                if any(self.tables.reads_column(database, table, column) for column in (old, part.name())):
                    return touches
                return Effect(EffectKind.HARMLESS, reason=reason, reshapes=True)
            return loses
        if first == "CONVERT":
            return loses
        if first in _HARMLESS_OPTIONS and not any(token.text.upper() in _NO_ROWS_ENGINES for token in part.tokens):
            return harmless
        return loses

    def _add(self, database: str, table: str, part: Cursor, reason: str) -> Effect:
        harmless = Effect(EffectKind.HARMLESS, reason=reason)
        touches = Effect(EffectKind.TOUCHES, reason=reason)
        if part.take("CONSTRAINT") and part.word() not in ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
            part.name()
        if part.word() == "PRIMARY":
            return touches
        if part.word() in _INDEX | {"FOREIGN", "CHECK", "PARTITION"}:
            return harmless
        if part.word() == "VECTOR" and part.word(1) in ("INDEX", "KEY"):
            return harmless
        if (part.word(), part.word(1)) in (("PERIOD", "FOR"), ("SYSTEM", "VERSIONING")):
            return Effect(EffectKind.TOUCHES, reason=reason, row_changing=True)
        part.take("COLUMN")
        part.if_exists()
        definitions = list(specifications(part.rest()[1:-1])) if part.word() == "(" else [Cursor(part.rest())]
        read = key = filled = False
        for definition in definitions:
            if definition.word() in _INDEX | {"PRIMARY", "CONSTRAINT", "FOREIGN", "CHECK"}:
                key |= definition.word() in ("PRIMARY", "CONSTRAINT")
                continue
            column = definition.name()
            key |= _is_key(definition.rest())
            if self.tables.reads_column(database, table, column):
                read = True
                filled |= _is_filled(definition.rest())
        if read or key:
            return Effect(EffectKind.TOUCHES, reason=reason, row_changing=filled)
        return Effect(EffectKind.HARMLESS, reason=reason, reshapes=True)

    def _drop_part(self, database: str, table: str, part: Cursor, reason: str) -> Effect:
        if part.take("PRIMARY"):
            return Effect(EffectKind.TOUCHES, reason=reason)
        if part.take("INDEX") or part.take("KEY") or part.take("CONSTRAINT"):
            part.if_exists()
            return self._index_gone((database, table), part.name())
        if part.word() in ("FOREIGN", "CHECK"):
            return Effect(EffectKind.HARMLESS, reason=reason)
        if (part.word(), part.word(1)) in (("PERIOD", "FOR"), ("SYSTEM", "VERSIONING")):
            return Effect(EffectKind.TOUCHES, reason=reason, row_changing=True)
        part.take("COLUMN")
        part.if_exists()
        if self.tables.reads_column(database, table, part.name()):
            return Effect(EffectKind.TOUCHES, reason=reason)
        return Effect(EffectKind.HARMLESS, reason=reason, reshapes=True)

    def _writes(self, cursor: Cursor, sql: str) -> Effect:
        """DML in statement format: which tables it writes, or none if that cannot be told."""
        if cursor.word() in ("INSERT", "REPLACE", "LOAD"):
            loads = cursor.word() == "LOAD"
            while not cursor.done and not (cursor.take("INTO", "TABLE") if loads else cursor.take("INTO")):
                cursor.at += 1
            return Effect(EffectKind.WRITES, (table_text(*self._table(cursor)),), sql[:80])
        try:
            tree = sqlglot.parse_one(sql, dialect="mysql")
        except (SqlglotError, RecursionError):
            return Effect(EffectKind.WRITES, (), sql[:80])
        written: list[exp.Table] = []
        if isinstance(tree, (exp.Update, exp.Delete)):
            written = list(tree.find_all(exp.Table))  # of several tables any may be written
        names = [(self._fold(table.db or self.database), self._fold(table.name)) for table in written]
        return Effect(EffectKind.WRITES, tuple(table_text(database, table) for database, table in names), sql[:80])

    # --- names ---

    def _fold(self, name: str) -> str:
        return name.lower() if self.fold_case else name

    def _table(self, cursor: Cursor) -> tuple[str, str]:
        if cursor.take("."):  # ".orders" is the default database's, an old spelling
            return self.database, self._fold(cursor.name())
        first = cursor.name()
        if cursor.take("."):
            return self._fold(first), self._fold(cursor.name())
        return self._fold(self.database), self._fold(first)

    def _named(self, tokens: Sequence[Token]) -> tuple[str, ...]:
        """Mapped tables that any run of names in ``tokens`` may mean."""
        found = {}
        for index, token in enumerate(tokens):
            if not token.name:
                continue
            database, table = self._fold(self.database), self._fold(token.text)
            if index >= 2 and tokens[index - 1].word == "." and tokens[index - 2].name:
                database = self._fold(tokens[index - 2].text)
            if self.tables.maps(database, table):
                found[table_text(database, table)] = True
        return tuple(found)

    # --- effects ---

    def _rows_gone(self, reason: str, named: Sequence[tuple[str, str]]) -> Effect:
        touched = tuple(dict.fromkeys(table_text(db, table) for db, table in named if self.tables.maps(db, table)))
        if not touched:
            return Effect(EffectKind.NONE)
        return Effect(EffectKind.TOUCHES, touched, reason, row_changing=True)

    def _database_gone(self, database: str, reason: str) -> Effect:
        touched = self.tables.known(database)
        return Effect(EffectKind.TOUCHES, touched, reason, row_changing=True) if touched else Effect(EffectKind.NONE)

    def _index_gone(self, name: tuple[str, str], index: str) -> Effect:
        if not self.tables.maps(*name):
            return Effect(EffectKind.NONE)
        reason = f"DROP INDEX {index}"
        if index.upper() == "PRIMARY":
            return Effect(EffectKind.TOUCHES, (table_text(*name),), reason)
        return Effect(EffectKind.HARMLESS, (table_text(*name),), reason, may_rekey=True)

    def _unreadable(self, names: Sequence[str], sql: str, tokens: Sequence[Token] = ()) -> Effect:
        touched = self._named(tokens or [Token(name, "", True) for name in names])
        if not touched:
            return Effect(EffectKind.NONE)
        return Effect(EffectKind.TOUCHES, touched, f"unreadable statement {sql[:80]!r}", row_changing=True)


def _rough_names(sql: str) -> list[str]:
    return re.findall(r"[^\s`'\"(),;=]+", sql.replace(".", " "))


def _phrase(tokens: Sequence[Token]) -> str:
    text = " ".join(token.text for token in tokens[:6])
    return text + (" ..." if len(tokens) > 6 else "")


def _is_key(definition: Sequence[Token]) -> bool:
    """Whether a column's definition makes it the primary key: [PRIMARY] KEY, but not UNIQUE KEY."""
    words = [token.word for token in definition]
    return any(
        word == "PRIMARY" or (word == "KEY" and (index == 0 or words[index - 1] != "UNIQUE"))
        for index, word in enumerate(words)
    )


def _is_filled(definition: Sequence[Token]) -> bool:
    """Whether a new column has values in the rows that were there before."""
    words = [token.word for token in definition]
    if "AS" in words or "AUTO_INCREMENT" in words or "SERIAL" in words:
        return True
    if "DEFAULT" in words:
        after = words.index("DEFAULT") + 1
        return after >= len(words) or words[after] != "NULL"
    return any(words[index : index + 2] == ["NOT", "NULL"] for index in range(len(words)))
