"""Descriptions of tables for binlog files whose rows do not name their columns.

There are two: the job file's ``source.schema`` and the DDL statements in the files. ``source.schema`` describes the
tables at the end of the files: it is valid for rows that no later DDL on their table follows. A CREATE TABLE statement
in the files is valid from its position to the next change of the columns. ``table_registry`` uses both.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from sqlglot.errors import SqlglotError

from cdc.errors import SchemaMismatch, SourceActionRequired
from cdc.model.position import BinlogPosition
from cdc.model.schema import Kind, TableSchema
from cdc.mysql.catalog import table_schemas
from cdc.mysql.column_definition import Dialect, charset_name, charset_of_collation
from cdc.mysql.connection import Endpoint
from cdc.mysql.create_table import Definition, read_create_table
from cdc.mysql.ddl_tokens import TokenCursor, Unreadable, tokens_of
from cdc.mysql.server import Server
from cdc.sources.binlog.decoder.events import Statement
from cdc.sources.binlog.decoder.table_map import TableMap
from cdc.sources.binlog.schema_matching import column_mismatch

log = logging.getLogger(__name__)

Name = tuple[str, str]  # database and table
ScanFiles = Callable[[BinlogPosition, Callable[[Statement], None]], None]

_HINT = (
    "Describe the table in `source.schema`: `{mysql: ...}` names a server that has the table as it is at the end of "
    "the files, `{file: ...}` names a file of CREATE TABLE statements. Or remove the table from `channels`."
)
_LIKE_BINARY = (Kind.UUID, Kind.INET4, Kind.INET6)  # row events store them as BINARY
_STATEMENT_PARTS = re.compile(
    r"""'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*"|`(?:[^`]|``)*`|--[ \t\r\n][^\n]*|\#[^\n]*|/\*.*?\*/|;""", re.DOTALL
)
_BODIES = re.compile(r"^DELIMITER[ \t]+(?!;[ \t]*$)\S+[ \t]*$.*?^DELIMITER[ \t]+;[ \t]*$", re.DOTALL | re.MULTILINE)


class Descriptions(Protocol):
    """Descriptions of tables as they are at the end of the files."""

    def open(self) -> bool | None:
        """Read the description. Return whether the server stores table names in lower case; None: not known.

        Raises: SourceActionRequired, SourceUnavailable.
        """

    def table(self, name: Name) -> TableSchema | None:
        """Return one table; None if no table has that name. Raises: SchemaMismatch, SourceUnavailable."""


class ServerDescriptions:
    """The tables of a server, whose binlog is not read."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def open(self) -> bool | None:
        """See ``Descriptions``."""
        with Server(self._endpoint) as server:
            return server.folds_case or None  # False: the files can be of a server that stores them in lower case

    def table(self, name: Name) -> TableSchema | None:
        """See ``Descriptions``."""
        with Server(self._endpoint) as server:
            return table_schemas(server, [name]).get(name)


class StatementDescriptions:
    """The CREATE TABLE statements in a file, as ``mysqldump --no-data`` prints them."""

    def __init__(self, path: str, database: str = "") -> None:
        """``database``: of statements before the first USE."""
        self._path = Path(path)
        self._database = database
        self._tables: dict[Name, Definition | str] = {}  # or why the statement cannot be read

    def open(self) -> bool | None:
        """See ``Descriptions``."""
        try:
            text = self._path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise SourceActionRequired(
                f"The file of CREATE TABLE statements cannot be read: {reason}.",
                hint="Correct `source.schema.file`; `mysqldump --no-data --databases NAME` writes such a file.",
                file=self._path,
            ) from error
        self._tables = {}
        database, charsets = self._database, dict[str, str]()
        for statement in statements_of(text):
            database = self._take(statement, database, charsets)
        return None

    def table(self, name: Name) -> TableSchema | None:
        """See ``Descriptions``."""
        found = self._tables.get(name)
        if isinstance(found, Definition):
            return found.schema
        if found is None and ("", name[1]) in self._tables:
            found = "it names no database, and no USE statement is before it"
        if found is None:
            return None
        raise SchemaMismatch(
            f"The CREATE TABLE statement of {'.'.join(name)} cannot be read with certainty: {found}.",
            hint="Use the text of SHOW CREATE TABLE, after a USE statement or with `source.schema.database`. Or name "
            "a server that has the table: `source.schema: {mysql: ...}`.",
            table=".".join(name),
            file=self._path,
        )

    def _take(self, statement: str, database: str, charsets: dict[str, str]) -> str:
        """Read one statement; return the default database after it."""
        try:
            cursor = TokenCursor(tokens_of(statement, ansi_quotes=False, mariadb=True))
            if cursor.take("USE"):
                return cursor.name()
            if cursor.take("CREATE", "DATABASE") or cursor.take("CREATE", "SCHEMA"):
                cursor.if_exists()
                created = cursor.name()
                charsets[created] = _default_charset(cursor)
            elif cursor.take("CREATE", "TABLE"):
                cursor.if_exists()
                name = _named(cursor, database)
                self._tables[name] = self._definition(name, statement, charsets)
            elif cursor.take("DROP", "TABLE"):
                cursor.if_exists()
                self._tables.pop(_named(cursor, database), None)
            elif cursor.take("ALTER", "TABLE"):
                name = _named(cursor, database)
                if cursor.word() not in ("DISABLE", "ENABLE") and name in self._tables:
                    self._tables[name] = "an ALTER TABLE statement follows it in the file"
        except (Unreadable, SqlglotError) as error:  # another statement; a missing table pauses the job by its name
            log.debug("skipping a statement of %s: %s", self._path, error)
        return database

    def _definition(self, name: Name, statement: str, charsets: dict[str, str]) -> Definition | str:
        try:
            found = read_create_table(
                statement, database=name[0], charset=charsets.get(name[0], ""), dialect=Dialect(mariadb=None)
            )
        except Unreadable as error:
            return str(error) or "it does not follow the known grammar"
        before = self._tables.get(name)
        return found if before in (None, found) else "the file has two different statements for the table"


def statements_of(text: str) -> Iterator[str]:
    """Split the text of a dump at semicolons that are not in quotes or comments. Omit the bodies of triggers."""
    text = _BODIES.sub("", text)
    start = 0
    for match in _STATEMENT_PARTS.finditer(text):
        if match[0] == ";":
            yield text[start : match.start()]
            start = match.end()
    yield text[start:]


def _named(cursor: TokenCursor, database: str) -> Name:
    first = cursor.name()
    return (first, cursor.name()) if cursor.take(".") else (database, first)


def _default_charset(cursor: TokenCursor) -> str:
    charset = ""
    while not cursor.done:
        if cursor.take("CHARACTER", "SET") or cursor.take("CHARSET"):
            cursor.take("=")
            charset = charset_name(cursor.name())
        elif cursor.take("COLLATE"):
            cursor.take("=")
            charset = charset_of_collation(cursor.name(), charset)
        else:
            cursor.at += 1
    return charset


class FileTables:
    """Descriptions of the tables besides the rows of the files. Calls: the reading thread."""

    def __init__(self, scan: ScanFiles, descriptions: Descriptions | None) -> None:
        self._scan = scan
        self._descriptions = descriptions
        self._ahead: tuple[BinlogPosition, tuple[Statement, ...]] | None = None  # statements from a position on
        self._before: dict[Name, TableSchema] = {}  # the table before a DDL statement whose result is not known
        self._refused: dict[Name, str] = {}  # why a CREATE TABLE statement in the files is not used
        self._key_indexes: dict[Name, str] = {}  # unique indexes that are keys
        self._folds_case: bool | None = None

    def open(self) -> bool | None:
        """See ``Descriptions``."""
        self._folds_case = self._descriptions.open() if self._descriptions is not None else None
        return self._folds_case

    @property
    def described(self) -> bool:
        """Return whether the job file has a description."""
        return self._descriptions is not None

    def table(self, name: Name) -> TableSchema | None:
        """Return the table by the job file's description. Raises: SchemaMismatch, SourceUnavailable."""
        return self._descriptions.table(name) if self._descriptions is not None else None

    def created(self, statement: Statement, name: Name) -> TableSchema | None:
        """Return the table that a statement of the files creates; None if that is not certain."""
        self._key_indexes.pop(name, None)
        try:
            cursor = TokenCursor(tokens_of(statement.sql, statement.ansi_quotes, mariadb=statement.mariadb))
            if not cursor.take("CREATE"):
                return None
            cursor.take("OR", "REPLACE")
            if not cursor.take("TABLE"):
                return None
            if cursor.if_exists():
                raise Unreadable("with IF NOT EXISTS the table may have existed before, with other columns")
            if "\\" in statement.sql:
                raise Unreadable("the meaning of a backslash depends on sql_mode")
            found = read_create_table(
                statement.sql,
                database=statement.database,
                ansi_quotes=statement.ansi_quotes,
                mariadb=statement.mariadb,
            )
            is_folded = (found.schema.database, found.schema.table) != name
            if is_folded and not self._folds_case:
                raise Unreadable("it names the table in another case, and may mean another table")
        except (Unreadable, SqlglotError) as error:
            self._refused[name] = f"{str(error) or 'it does not follow the known grammar'} (at {statement.before})"
            return None
        if is_folded:
            found = replace(found, schema=replace(found.schema, database=name[0], table=name[1]))
        self._refused.pop(name, None)
        self._key_indexes[name] = found.key_index
        return found.schema

    def changed(self, name: Name, schema: TableSchema | None) -> None:
        """Record that ``schema`` ends with a statement whose result is not known."""
        if schema is not None:
            self._before[name] = schema

    def keyed_by_index(self, name: Name) -> bool:
        """Return whether the key may be a unique index: no CREATE TABLE statement was seen with a primary key."""
        return self._key_indexes.get(name) != ""

    def statements_from(self, position: BinlogPosition) -> Sequence[Statement]:
        """Return the statements of the files from ``position`` on. The first call reads the files' control events."""
        if self._ahead is None or not position.reached(self._ahead[0]):
            found: list[Statement] = []
            self._scan(position, found.append)
            self._ahead = (position, tuple(each for each in found if not each.dml))
        return [each for each in self._ahead[1] if each.before.reached(position)]

    def refuse_unsure(self, table_map: TableMap, known: TableSchema | None, later: TableSchema | None) -> None:
        """Raise SchemaMismatch if a column of these rows may be UUID, INET4 or INET6, which look like BINARY in files.

        ``later``: the table after a DDL statement that follows the rows.
        """
        known_names = {column.name for column in known.columns} if known is not None else set()
        for other in (self._before.get((table_map.database, table_map.table)), later):
            others = {column.name: column for column in other.columns} if other is not None else {}
            for mapped in table_map.columns:
                column = others.get(mapped.name or "")
                if column is None or column.kind not in _LIKE_BINARY or column.name in known_names:
                    continue
                if column_mismatch(column, mapped, mariadb=table_map.mariadb) is None:
                    raise SchemaMismatch(
                        f"Column {column.name} of {table_map.name} was {column.kind.value} or binary when these rows "
                        "were written: a later statement may have changed it.",
                        hint=_HINT,
                        table=table_map.name,
                    )

    def hint(self, name: Name, *, changes: bool) -> str:
        """Return the hint for a table whose columns are not known."""
        if changes and self.described:
            return "Add the files since the table's CREATE TABLE: `source.schema` is valid after the last change only."
        reason = f"The CREATE TABLE in the files is not used: {self._refused[name]}. " if name in self._refused else ""
        return reason + _HINT
