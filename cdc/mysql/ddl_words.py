"""Words of statements, and what both readers of DDL do with them: ``ddl`` for effects, ``table_changes`` for columns.

Source: MySQL manual, "Data Definition Statements"; MariaDB knowledge base, "ALTER TABLE" and "SET STATEMENT".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from cdc.mysql.ddl_tokens import Token, TokenCursor


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SESSION = _words(
    "BEGIN COMMIT ROLLBACK SAVEPOINT RELEASE XA SET START LOCK UNLOCK FLUSH ANALYZE OPTIMIZE REPAIR CHECK CHECKSUM "
    "CACHE GRANT REVOKE INSTALL UNINSTALL USE SHOW DESCRIBE EXPLAIN HELP KILL RESET PURGE CHANGE STOP BINLOG SHUTDOWN"
)
DML = _words("INSERT REPLACE UPDATE DELETE LOAD WITH CALL DO SELECT VALUES")
OTHER_OBJECTS = _words(
    "VIEW TRIGGER PROCEDURE FUNCTION EVENT USER ROLE SERVER TABLESPACE SEQUENCE LOGFILE RESOURCE SPATIAL PACKAGE "
    "UNDO INSTANCE LIBRARY LOADABLE MATERIALIZED"
)
DATABASE = frozenset(("DATABASE", "SCHEMA"))
INDEX = _words("INDEX KEY UNIQUE FULLTEXT SPATIAL")
# the first word of an ALTER specification that changes neither rows nor columns
HARMLESS_OPTIONS = _words(
    "ALGORITHM LOCK FORCE ENGINE STORAGE AUTO_INCREMENT AVG_ROW_LENGTH DEFAULT CHARSET CHARACTER COLLATE CHECKSUM "
    "TABLE_CHECKSUM COMMENT COMPRESSION CONNECTION DATA INDEX DELAY_KEY_WRITE ENCRYPTION ENCRYPTED ENCRYPTION_KEY_ID "
    "INSERT_METHOD KEY_BLOCK_SIZE MAX_ROWS MIN_ROWS PACK_KEYS PASSWORD ROW_FORMAT STATS_AUTO_RECALC STATS_PERSISTENT "
    "STATS_SAMPLE_PAGES TABLESPACE PAGE_CHECKSUM PAGE_COMPRESSED PAGE_COMPRESSION_LEVEL TRANSACTIONAL IETF_QUOTES "
    "AUTOEXTEND_SIZE ENGINE_ATTRIBUTE SECONDARY_ENGINE SECONDARY_ENGINE_ATTRIBUTE SECONDARY_LOAD SECONDARY_UNLOAD "
    "ENABLE DISABLE WITH WITHOUT ORDER"
)
HARMLESS_PARTITION_WORK = _words("REORGANIZE COALESCE ANALYZE CHECK OPTIMIZE REBUILD REPAIR")
ROW_CHANGING_PARTITION_WORK = _words("DROP TRUNCATE EXCHANGE DISCARD IMPORT CONVERT")
TABLES = _words("TABLE TABLES LOCAL NO_WRITE_TO_BINLOG")  # after ANALYZE; MariaDB's ANALYZE can also run a statement
NO_ROWS_ENGINES = frozenset(("BLACKHOLE", "FEDERATED"))
_RULES = frozenset(("UNIQUE", "PRIMARY", "CHECK", "FOREIGN", "REFERENCES", "PARTITION"))  # rows may violate them
# MariaDB: SET STATEMENT ... FOR, followed by the statement
_SETTINGS_FOR = re.compile(
    r"""\s*SET\s+STATEMENT\s(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^'"])*?\sFOR\s""", re.IGNORECASE | re.DOTALL
)


def split_settings(sql: str) -> tuple[str, str]:
    """Return the settings of SET STATEMENT ... FOR, "" if there are none, and the statement after them."""
    settings = ""
    while found := _SETTINGS_FOR.match(sql):
        settings, sql = settings + found[0], sql[found.end() :]
    return settings, sql


def contains_statement(cursor: TokenCursor) -> bool:
    """Return whether the statement runs another one: SET STATEMENT, and ANALYZE of MariaDB."""
    first, second = cursor.word(), cursor.word(1)
    return (first, second) == ("SET", "STATEMENT") or (first == "ANALYZE" and second not in TABLES)


def skip_wait(cursor: TokenCursor) -> None:
    """Consume WAIT n or NOWAIT of MariaDB."""
    if cursor.take("WAIT"):
        cursor.at += 1
    cursor.take("NOWAIT")


def is_other_object(cursor: TokenCursor, words: frozenset[str] = OTHER_OBJECTS) -> bool:
    """Return whether a statement is about another object than a table. DEFINER and the like may be before the word."""
    return bool({token.word for token in cursor.rest()[:24]} & words)


def deletes_violating_rows(tokens: Sequence[Token]) -> bool:
    """Return whether ALTER IGNORE with these clauses can delete rows: they violate a key, or have no partition."""
    return any(token.word in _RULES for token in tokens)


def is_versioned(tokens: Sequence[Token]) -> bool:
    """Return whether a definition keeps old versions of rows, which MariaDB logs as further rows of the table."""
    words = [token.word for token in tokens]
    return any(words[at : at + 3] == ["WITH", "SYSTEM", "VERSIONING"] for at in range(len(words)))


def has_engine_without_rows(tokens: Sequence[Token]) -> bool:
    """Return whether a clause names a storage engine that keeps no rows."""
    return any(token.text.upper() in NO_ROWS_ENGINES for token in tokens)


def as_written(database: str, table: str) -> tuple[str, str]:
    """Return the name as a server stores it that distinguishes upper and lower case."""
    return database, table


def in_lower_case(database: str, table: str) -> tuple[str, str]:
    """Return the name as a server stores it whose ``lower_case_table_names`` is not 0."""
    return database.lower(), table.lower()


StoredName = Callable[[str, str], tuple[str, str]]  # (database, table) of a statement -> as the server stores it


class TableNames:
    """Reads names of tables, with the default database of a statement."""

    def __init__(self, database: str, stored: StoredName) -> None:
        """``stored``: returns the name of a table as the server stores it; the table is "" for a database."""
        self.database = database
        self.stored = stored

    def database_of(self, cursor: TokenCursor) -> str:
        """Consume and return the name of a database. Raises: Unreadable."""
        return self.stored(cursor.name(), "")[0]

    def read(self, cursor: TokenCursor) -> tuple[str, str]:
        """Consume the name of a table. Return database and table. Raises: Unreadable."""
        if cursor.take("."):  # ".orders" is an old form for the default database
            return self.stored(self.database, cursor.name())
        first = cursor.name()
        return self.stored(first, cursor.name()) if cursor.take(".") else self.stored(self.database, first)
