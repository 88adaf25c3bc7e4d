"""Determine the effect of a statement in the binlog on the mapped tables.

It is an allow list: a statement is harmless only if it certainly changes neither rows nor columns that the job reads.
The job pauses at any other statement that names a mapped table, even at one that cannot be read. Only the tokenizer of
sqlglot is used for DDL: its parser does not parse a third of the servers' DDL, and drops table options.

Source: MySQL manual, "Data Definition Statements"; MariaDB knowledge base, "ALTER TABLE".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from cdc.model.table_names import table_text
from cdc.mysql.ddl_alter import AlterReader
from cdc.mysql.ddl_effect import Effect, EffectKind, MappedTables, TableLookup, strongest
from cdc.mysql.ddl_tokens import MisreadQuotes, Token, TokenCursor, Unreadable, quote_readings, tokens_of
from cdc.mysql.ddl_words import (
    DATABASE,
    DML,
    INDEX,
    OTHER_OBJECTS,
    SESSION,
    StoredName,
    TableNames,
    as_written,
    contains_statement,
    is_other_object,
    is_versioned,
    skip_wait,
    split_settings,
)

__all__ = ["Effect", "EffectKind", "TableLookup", "effect_of"]


def effect_of(
    sql: str,
    *,
    database: str,
    tables: TableLookup,
    ansi_quotes: bool | None = False,
    stored: StoredName = as_written,
    mariadb: bool = True,
) -> Effect:
    """Return the effect of ``sql`` on the mapped tables, with ``database`` as the default database.

    ``stored``: see ``TableNames``. ``mariadb``: the server executes ``/*M! */`` comments. Set it too if the server is
    unknown, as with Canal. ``ansi_quotes``: None if the sql_mode of the session is not known: then return the strongest
    effect that the statement can have. The server has executed it, so a reading that is not valid SQL does not count.
    """
    mapped = MappedTables(TableNames(database, stored), tables)
    readers = [DdlReader(mapped, one, mariadb) for one in quote_readings(sql, ansi_quotes)]
    found = []
    for reader in readers:
        try:
            found.append(reader.effect(sql))
        except (SqlglotError, MisreadQuotes):
            continue
    return strongest(found or [reader.unreadable(sql) for reader in readers])


@dataclass(frozen=True, slots=True)
class DdlReader:
    """Reads one DDL statement from its tokens."""

    tables: MappedTables
    ansi_quotes: bool
    mariadb: bool

    def effect(self, sql: str) -> Effect:
        """Return the effect of the statement on mapped tables.

        Raises: SqlglotError, MisreadQuotes - it is not valid SQL, at least with this meaning of double quotes.
        """
        _, sql = split_settings(sql)
        cursor = TokenCursor(tokens_of(sql, self.ansi_quotes, mariadb=self.mariadb))
        if cursor.done:
            return Effect(EffectKind.NONE)
        try:
            return self._statement(cursor, sql)
        except MisreadQuotes:
            raise
        except Unreadable:
            return self.unreadable(sql)

    def unreadable(self, sql: str) -> Effect:
        """Return the effect of a statement that cannot be read: on each mapped table that it may name."""
        _, sql = split_settings(sql)
        try:
            tokens = tokens_of(sql, self.ansi_quotes, mariadb=self.mariadb)
        except SqlglotError:
            return self.tables.unreadable([Token(name, "", True) for name in _rough_names(sql)], sql)
        if tokens[0].word in DML:
            return Effect(EffectKind.WRITES, (), sql[:80])
        return self.tables.unreadable(tokens, sql)

    def _statement(self, cursor: TokenCursor, sql: str) -> Effect:
        first = cursor.word()
        if contains_statement(cursor):
            raise Unreadable
        if first in SESSION or (first == "RENAME" and cursor.word(1) == "USER"):
            return Effect(EffectKind.NONE)
        if first in DML:
            return self._writes(cursor, sql)
        cursor.at += 1
        if first == "CREATE":
            return self._create(cursor)
        if first == "DROP":
            return self._drop(cursor)
        if first == "ALTER":
            return AlterReader(self.tables).effect(cursor)
        if first == "TRUNCATE":
            cursor.take("TABLE")
            return replace(self.tables.delete_rows("TRUNCATE", [self.tables.names.read(cursor)]), columns_stay=True)
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
            database, table = self.tables.names.read(cursor)
            if not self.tables.lookup.maps(database, table):
                return Effect(EffectKind.NONE)
            if replaces:
                return self.tables.delete_rows("CREATE OR REPLACE TABLE", [(database, table)])
            if if_missing and self.tables.lookup.known(database, table):
                return Effect(EffectKind.HARMLESS, (table_text(database, table),), "CREATE TABLE IF NOT EXISTS")
            if is_versioned(cursor.rest()):
                reason = "CREATE TABLE WITH SYSTEM VERSIONING"
                return Effect(EffectKind.TOUCHES, (table_text(database, table),), reason, row_changing=True)
            # with IF NOT EXISTS, servers log it for a table that exists too
            return Effect(EffectKind.CREATES, (table_text(database, table),), "CREATE TABLE", is_new=not if_missing)
        if cursor.take_any(DATABASE):
            if replaces:
                cursor.if_exists()
                return self.tables.drop_database(self.tables.names.database_of(cursor), "CREATE OR REPLACE DATABASE")
            return Effect(EffectKind.NONE)
        if is_other_object(cursor) and cursor.word() not in INDEX - {"SPATIAL"}:
            return Effect(EffectKind.NONE)
        if is_other_object(cursor, frozenset(("INDEX",))):
            return Effect(EffectKind.HARMLESS)
        raise Unreadable

    def _drop(self, cursor: TokenCursor) -> Effect:
        if cursor.take("TEMPORARY"):
            return Effect(EffectKind.NONE)
        if cursor.take("TABLE") or cursor.take("TABLES"):
            if_exists = cursor.if_exists()
            dropped = [self.tables.names.read(cursor)]
            while cursor.take(","):
                dropped.append(self.tables.names.read(cursor))
            if if_exists:
                # a dump has DROP TABLE IF EXISTS before each CREATE TABLE, even for a table that never existed
                dropped = [name for name in dropped if self.tables.lookup.known(*name)]
            return self.tables.delete_rows("DROP TABLE", dropped)
        if cursor.take_any(DATABASE):
            cursor.if_exists()
            return self.tables.drop_database(self.tables.names.database_of(cursor), "DROP DATABASE")
        cursor.take("ONLINE") or cursor.take("OFFLINE")
        if cursor.take("INDEX"):
            cursor.if_exists()
            index = cursor.name()
            if not cursor.take("ON"):
                raise Unreadable
            return self.tables.drop_index(self.tables.names.read(cursor), index)
        if cursor.take_any(OTHER_OBJECTS | {"PREPARE"}):
            return Effect(EffectKind.NONE)
        raise Unreadable

    def _rename(self, cursor: TokenCursor) -> Effect:
        cursor.if_exists()
        named = []
        while not cursor.done:
            named.append(self.tables.names.read(cursor))
            skip_wait(cursor)
            if not cursor.take("TO"):
                raise Unreadable
            named.append(self.tables.names.read(cursor))
            cursor.take(",")
        return self.tables.delete_rows("RENAME TABLE", named)

    def _writes(self, cursor: TokenCursor, sql: str) -> Effect:
        """Return the tables that DML in statement format writes; no tables if they are unknown."""
        if cursor.word() in ("INSERT", "REPLACE", "LOAD"):
            loads = cursor.word() == "LOAD"
            while not cursor.done and not (cursor.take("INTO", "TABLE") if loads else cursor.take("INTO")):
                cursor.at += 1
            return Effect(EffectKind.WRITES, (table_text(*self.tables.names.read(cursor)),), sql[:80])
        names = self.tables.names
        try:
            tree = sqlglot.parse_one(sql, dialect="mysql")
        except (SqlglotError, RecursionError):
            return Effect(EffectKind.WRITES, (), sql[:80])
        written: list[exp.Table] = []
        if isinstance(tree, (exp.Update, exp.Delete)):
            written = list(tree.find_all(exp.Table))  # any of several tables may be written
        found = [names.stored(table.db or names.database, table.name) for table in written]
        return Effect(EffectKind.WRITES, tuple(table_text(database, table) for database, table in found), sql[:80])


def _rough_names(sql: str) -> list[str]:
    return re.findall(r"[^\s`'\"(),;=]+", sql.replace(".", " "))
