"""Determine the effect of a statement in the binlog on the mapped tables.

It is an allow list: a statement is harmless only if it certainly changes neither rows nor columns that the job reads.
The job pauses at any other statement that names a mapped table, even at one that cannot be read. Only the tokenizer of
sqlglot is used for DDL: its parser does not parse a third of the servers' DDL, and drops table options.

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

from cdc.model.table_names import table_text
from cdc.mysql.ddl_tokens import Token, TokenCursor, Unreadable, specifications, tokens_of


class EffectKind(Enum):
    """The kinds of effects on mapped tables."""

    NONE = "none"  # it affects no mapped table
    HARMLESS = "harmless"  # it changes neither rows nor columns that the mapping reads
    TOUCHES = "touches"  # it changes a mapped table: the job pauses before it
    CREATES = "creates"  # it creates a mapped table
    WRITES = "writes"  # it writes rows as a statement, without row events


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of one statement."""

    kind: EffectKind
    tables: tuple[str, ...] = ()  # mapped ones, "database.table"; of WRITES: every written table, mapped or not
    reason: str = ""  # "DROP COLUMN price"
    row_changing: bool = False  # rows may have been changed or deleted without row events
    reshapes: bool = False  # columns that the mapping does not read were changed: the schema must be read again
    may_rekey: bool = False  # an index was dropped that may have been the table's key
    columns_stay: bool = False  # only rows were deleted


class TableLookup(Protocol):
    """The tables of the job."""

    def maps(self, database: str, table: str) -> bool:
        """Return whether a channel reads this table."""

    def known(self, database: str, table: str | None = None) -> tuple[str, ...]:
        """Return the mapped tables seen so far: of this name, or of the whole database."""

    def reads_column(self, database: str, table: str, column: str) -> bool:
        """Return whether the channel reads this column, even if the column does not exist yet."""


def effect_of(
    sql: str,
    *,
    database: str,
    tables: TableLookup,
    ansi_quotes: bool = False,
    fold_case: bool = False,
    mariadb: bool = True,
) -> Effect:
    """Return the effect of ``sql`` on the mapped tables, with ``database`` as the default database.

    ``fold_case``: the server stores table names in lower case (``lower_case_table_names`` is not 0). ``mariadb``: the
    server executes ``/*M! */`` comments. Set it too if the server is unknown, as with Canal.
    """
    reader = DdlReader(database, tables, ansi_quotes, fold_case, mariadb)
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
_TABLES = _words("TABLE TABLES LOCAL NO_WRITE_TO_BINLOG")  # after ANALYZE; MariaDB's ANALYZE can also run a statement
# MariaDB: SET STATEMENT ... FOR, followed by the statement
_SETTINGS_FOR = re.compile(
    r"""\s*SET\s+STATEMENT\s(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'"])*?\sFOR\s""", re.IGNORECASE | re.DOTALL
)
_RULES = frozenset(("UNIQUE", "PRIMARY", "CHECK", "FOREIGN", "REFERENCES", "PARTITION"))  # rows may violate them
_NO_ROWS_ENGINES = frozenset(("BLACKHOLE", "FEDERATED"))


@dataclass(frozen=True, slots=True)
class DdlReader:
    """Reads one DDL statement from its tokens."""

    database: str
    tables: TableLookup
    ansi_quotes: bool
    fold_case: bool
    mariadb: bool

    def effect(self, sql: str) -> Effect:
        """Return the effect of the statement on mapped tables."""
        if settings := _SETTINGS_FOR.match(sql):
            return self.effect(sql[settings.end() :])
        try:
            tokens = tokens_of(sql, self.ansi_quotes, mariadb=self.mariadb)
        except SqlglotError:
            return self._unreadable(_rough_names(sql), sql)
        cursor = TokenCursor(tokens)
        if cursor.done:
            return Effect(EffectKind.NONE)
        try:
            return self._statement(cursor, sql)
        except Unreadable:
            if cursor.tokens[0].word in _DML:
                return Effect(EffectKind.WRITES, (), sql[:80])
            return self._unreadable([token.text for token in tokens if token.name], sql, tokens)

    def _statement(self, cursor: TokenCursor, sql: str) -> Effect:
        first = cursor.word()
        if (first, cursor.word(1)) == ("SET", "STATEMENT") or (first == "ANALYZE" and cursor.word(1) not in _TABLES):
            raise Unreadable  # it contains another statement
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
            return replace(self._delete_rows("TRUNCATE", [self._table(cursor)]), columns_stay=True)
        if first == "RENAME" and (cursor.take("TABLE") or cursor.take("TABLES")):
            return self._rename(cursor)
        raise Unreadable

    # --- the kinds of statement ---

    def _create(self, cursor: TokenCursor) -> Effect:
        replaces = cursor.take("OR", "REPLACE")
        if cursor.take("TEMPORARY"):
            return Effect(EffectKind.NONE)
        if cursor.take("TABLE"):
            if_missing = cursor.take("IF", "NOT", "EXISTS")
            database, table = self._table(cursor)
            if not self.tables.maps(database, table):
                return Effect(EffectKind.NONE)
            if replaces:
                return self._delete_rows("CREATE OR REPLACE TABLE", [(database, table)])
            if if_missing and self.tables.known(database, table):
                return Effect(EffectKind.HARMLESS, (table_text(database, table),), "CREATE TABLE IF NOT EXISTS")
            return Effect(EffectKind.CREATES, (table_text(database, table),), "CREATE TABLE")
        if cursor.take_any(_DATABASE):
            if replaces:
                cursor.if_exists()
                return self._drop_database(self._fold(cursor.name()), "CREATE OR REPLACE DATABASE")
            return Effect(EffectKind.NONE)
        words = {token.word for token in cursor.rest()[:24]}  # DEFINER, ALGORITHM and SQL SECURITY may be before it
        if words & _OTHER_OBJECTS and cursor.word() not in _INDEX - {"SPATIAL"}:
            return Effect(EffectKind.NONE)
        if words & {"INDEX"}:
            return Effect(EffectKind.HARMLESS)
        raise Unreadable

    def _drop(self, cursor: TokenCursor) -> Effect:
        if cursor.take("TEMPORARY"):
            return Effect(EffectKind.NONE)
        if cursor.take("TABLE") or cursor.take("TABLES"):
            if_exists = cursor.if_exists()
            dropped = [self._table(cursor)]
            while cursor.take(","):
                dropped.append(self._table(cursor))
            if if_exists:
                # a dump has DROP TABLE IF EXISTS before each CREATE TABLE, even for a table that never existed
                dropped = [name for name in dropped if self.tables.known(*name)]
            return self._delete_rows("DROP TABLE", dropped)
        if cursor.take_any(_DATABASE):
            cursor.if_exists()
            return self._drop_database(self._fold(cursor.name()), "DROP DATABASE")
        cursor.take("ONLINE") or cursor.take("OFFLINE")
        if cursor.take("INDEX"):
            cursor.if_exists()
            index = cursor.name()
            if not cursor.take("ON"):
                raise Unreadable
            return self._drop_index(self._table(cursor), index)
        if cursor.take_any(_OTHER_OBJECTS | {"PREPARE"}):
            return Effect(EffectKind.NONE)
        raise Unreadable

    def _rename(self, cursor: TokenCursor) -> Effect:
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
        return self._delete_rows("RENAME TABLE", named)

    def _alter(self, cursor: TokenCursor) -> Effect:
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
            # rows that violate a key or a condition, or have no partition, are deleted without row events
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

    def _alter_of_another(self, cursor: TokenCursor) -> Effect:
        """Return the effect of ALTER on an unmapped table: it may be renamed to a mapped one, or swap rows with one."""
        for part in specifications(cursor.rest()):
            if part.word() in ("RENAME", "EXCHANGE", "CONVERT") and part.word(1) not in ("COLUMN", "INDEX", "KEY"):
                affected = self._named(part.tokens)
                if affected:
                    return Effect(EffectKind.TOUCHES, affected, _phrase(part.tokens), row_changing=True)
        return Effect(EffectKind.NONE)

    def _specification(self, database: str, table: str, part: TokenCursor) -> Effect:
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
                return loses  # a narrower type truncates stored values without row events
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

    def _add(self, database: str, table: str, part: TokenCursor, reason: str) -> Effect:
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
        definitions = list(specifications(part.rest()[1:-1])) if part.word() == "(" else [TokenCursor(part.rest())]
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

    def _drop_part(self, database: str, table: str, part: TokenCursor, reason: str) -> Effect:
        if part.take("PRIMARY"):
            return Effect(EffectKind.TOUCHES, reason=reason)
        if part.take("INDEX") or part.take("KEY") or part.take("CONSTRAINT"):
            part.if_exists()
            return self._drop_index((database, table), part.name())
        if part.word() in ("FOREIGN", "CHECK"):
            return Effect(EffectKind.HARMLESS, reason=reason)
        if (part.word(), part.word(1)) in (("PERIOD", "FOR"), ("SYSTEM", "VERSIONING")):
            return Effect(EffectKind.TOUCHES, reason=reason, row_changing=True)
        part.take("COLUMN")
        part.if_exists()
        if self.tables.reads_column(database, table, part.name()):
            return Effect(EffectKind.TOUCHES, reason=reason)
        return Effect(EffectKind.HARMLESS, reason=reason, reshapes=True)

    def _writes(self, cursor: TokenCursor, sql: str) -> Effect:
        """Return the tables that DML in statement format writes; no tables if they are unknown."""
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
            written = list(tree.find_all(exp.Table))  # any of several tables may be written
        names = [(self._fold(table.db or self.database), self._fold(table.name)) for table in written]
        return Effect(EffectKind.WRITES, tuple(table_text(database, table) for database, table in names), sql[:80])

    # --- names ---

    def _fold(self, name: str) -> str:
        return name.lower() if self.fold_case else name

    def _table(self, cursor: TokenCursor) -> tuple[str, str]:
        if cursor.take("."):  # ".orders" is an old form for the default database
            return self.database, self._fold(cursor.name())
        first = cursor.name()
        if cursor.take("."):
            return self._fold(first), self._fold(cursor.name())
        return self._fold(self.database), self._fold(first)

    def _named(self, tokens: Sequence[Token]) -> tuple[str, ...]:
        """Return the mapped tables that names in ``tokens`` may mean."""
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

    def _delete_rows(self, reason: str, named: Sequence[tuple[str, str]]) -> Effect:
        affected = tuple(dict.fromkeys(table_text(db, table) for db, table in named if self.tables.maps(db, table)))
        if not affected:
            return Effect(EffectKind.NONE)
        return Effect(EffectKind.TOUCHES, affected, reason, row_changing=True)

    def _drop_database(self, database: str, reason: str) -> Effect:
        affected = self.tables.known(database)
        return Effect(EffectKind.TOUCHES, affected, reason, row_changing=True) if affected else Effect(EffectKind.NONE)

    def _drop_index(self, name: tuple[str, str], index: str) -> Effect:
        if not self.tables.maps(*name):
            return Effect(EffectKind.NONE)
        reason = f"DROP INDEX {index}"
        if index.upper() == "PRIMARY":
            return Effect(EffectKind.TOUCHES, (table_text(*name),), reason)
        return Effect(EffectKind.HARMLESS, (table_text(*name),), reason, may_rekey=True)

    def _unreadable(self, names: Sequence[str], sql: str, tokens: Sequence[Token] = ()) -> Effect:
        affected = self._named(tokens or [Token(name, "", True) for name in names])
        if not affected:
            return Effect(EffectKind.NONE)
        return Effect(EffectKind.TOUCHES, affected, f"unreadable statement {sql[:80]!r}", row_changing=True)


def _rough_names(sql: str) -> list[str]:
    return re.findall(r"[^\s`'\"(),;=]+", sql.replace(".", " "))


def _phrase(tokens: Sequence[Token]) -> str:
    text = " ".join(token.text for token in tokens[:6])
    return text + (" ..." if len(tokens) > 6 else "")


def _is_key(definition: Sequence[Token]) -> bool:
    """Return whether a definition makes its column the primary key: [PRIMARY] KEY, but not UNIQUE KEY."""
    words = [token.word for token in definition]
    return any(
        word == "PRIMARY" or (word == "KEY" and (index == 0 or words[index - 1] != "UNIQUE"))
        for index, word in enumerate(words)
    )


def _is_filled(definition: Sequence[Token]) -> bool:
    """Return whether a new column has a value other than NULL in existing rows."""
    words = [token.word for token in definition]
    if "AS" in words or "AUTO_INCREMENT" in words or "SERIAL" in words:
        return True
    if "DEFAULT" in words:
        after = words.index("DEFAULT") + 1
        return after >= len(words) or words[after] != "NULL"
    return any(words[index : index + 2] == ["NOT", "NULL"] for index in range(len(words)))
