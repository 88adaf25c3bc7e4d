"""Read a TableSchema from the text of a CREATE TABLE statement.

It supports the output of SHOW CREATE TABLE and mysqldump, and common statements of users. The result equals the one of
``cdc.mysql.catalog`` from information_schema. Anything that is not certain raises ``Unreadable``.

Source: MySQL manual, "CREATE TABLE Statement" and "Data Types"; MariaDB knowledge base, "CREATE TABLE".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from sqlglot.errors import SqlglotError

from cdc.model.schema import Column, Kind, TableSchema
from cdc.mysql.catalog import KINDS
from cdc.mysql.charsets import charset_names
from cdc.mysql.ddl_tokens import Token, TokenCursor, Unreadable, specifications, tokens_of

_ALIASES = {
    "integer": "int", "int1": "tinyint", "int2": "smallint", "int3": "mediumint", "middleint": "mediumint",
    "int4": "int", "int8": "bigint", "dec": "decimal", "numeric": "decimal", "fixed": "decimal", "float4": "float",
    "float8": "double", "character": "char", "varcharacter": "varchar",
}  # fmt: skip
_SIZES = {"tiny": (1 << 8) - 1, "": (1 << 16) - 1, "medium": (1 << 24) - 1, "long": (1 << 32) - 1}
_LEAST_BYTES = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}  # minimum of a character; 1 in other charsets
_TEXTS = (Kind.CHAR, Kind.VARCHAR, Kind.TEXT, Kind.ENUM, Kind.SET)
_BINARY_OF = {"char": "binary", "varchar": "varbinary", **{f"{size}text": f"{size}blob" for size in _SIZES}}
_INTEGERS = (Kind.TINYINT, Kind.SMALLINT, Kind.MEDIUMINT, Kind.INT, Kind.BIGINT)
_NUMBERS = (*_INTEGERS, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL)
_FRACTIONS = (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME)
_INDEX_WORDS = frozenset(("PRIMARY", "KEY", "INDEX", "UNIQUE", "FULLTEXT", "SPATIAL", "CONSTRAINT", "FOREIGN", "CHECK"))
_NOT_OPTIONS = frozenset(
    ("SELECT", "LIKE", "AS", "VALUES", "TABLE", "IGNORE", "REPLACE")
)  # rows or columns are copied from another table
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_ESCAPED = {"\0": "\\0", "\n": "\\n", "\r": "\\r", "\\": "\\\\", "'": "''"}


@dataclass(frozen=True, slots=True)
class Definition:
    """The table that a statement defines."""

    schema: TableSchema
    key_index: str = ""  # name of the unique index that is the key, if there is no primary key


def read_create_table(
    sql: str, *, database: str, charset: str = "", ansi_quotes: bool = False, mariadb: bool = True
) -> Definition:
    """Return the table that ``sql`` creates.

    ``database``, ``charset``: the defaults, "" if unknown. ``mariadb``: JSON is LONGTEXT.
    A TIMESTAMP column without NULL and NOT NULL counts as nullable.
    Raises: Unreadable - with the reason: the result would be ambiguous, or the statement is not supported.
    """
    try:
        cursor = TokenCursor(tokens_of(sql, ansi_quotes, mariadb=True))
    except SqlglotError as error:
        raise Unreadable("it is not valid SQL") from error
    cursor.take("CREATE")
    cursor.take("OR", "REPLACE")
    if not cursor.take("TABLE"):
        _refuse("it is not a CREATE TABLE statement")
    cursor.if_exists()
    table = cursor.name()
    if cursor.take("."):
        database, table = table, cursor.name()
    if not database:
        _refuse("it names no database")
    body = _bracketed(cursor)
    options = _options(cursor, charset)
    return _TableReader(database, table, options, mariadb).read(body)


@dataclass(frozen=True, slots=True)
class _Options:
    charset: str
    comment: str = ""
    versioned: bool = False


def _options(cursor: TokenCursor, charset: str) -> _Options:
    options = _Options(charset)
    if cursor.word() == "(":
        _refuse("its rows and columns are the result of a query")
    while not cursor.done and cursor.word() != "PARTITION":
        if cursor.take("WITH", "SYSTEM", "VERSIONING"):
            options = replace(options, versioned=True)
        elif cursor.take("CHARACTER", "SET") or cursor.take("CHARSET"):
            cursor.take("=")
            options = replace(options, charset=charset_name(cursor.name()))
        elif cursor.take("COLLATE"):
            cursor.take("=")
            options = replace(options, charset=charset_of_collation(cursor.name(), options.charset))
        elif cursor.take("COMMENT"):
            cursor.take("=")
            options = replace(options, comment=_literal(cursor))
        elif cursor.word() in _NOT_OPTIONS:
            break
        else:
            cursor.at += 1
    depth = 0
    for token in cursor.rest():
        depth += (token.word == "(") - (token.word == ")")
        if token.word == "SELECT" or (depth == 0 and token.word in _NOT_OPTIONS):
            _refuse("its rows or columns are copied from another table")
    return options


@dataclass(frozen=True, slots=True)
class _Index:
    name: str
    columns: tuple[str, ...]
    partial: bool  # it has prefixes of values


class _TableReader:
    def __init__(self, database: str, table: str, options: _Options, mariadb: bool) -> None:
        self._database = database
        self._table = table
        self._options = options
        self._mariadb = mariadb
        self._columns: list[Column] = []
        self._primary: tuple[str, ...] = ()
        self._uniques: list[_Index] = []
        self._has_period = False
        self._row_end = ""

    def read(self, body: Sequence[Token]) -> Definition:
        for part in specifications(body):
            if self._is_index(part):
                self._index(part)
            else:
                self._column(part)
        columns = [replace(column, nullable=False) if self._in_key(column.name) else column for column in self._columns]
        names = {column.name.casefold(): column.name for column in columns}
        if len(names) < len(columns) or not columns:
            _refuse("it has no columns, or has a column twice")
        if self._options.versioned and not self._has_period:
            columns += [
                Column(name, Kind.TIMESTAMP, "timestamp(6)", nullable=False, fsp=6, generated=True, visible=False)
                for name in ("row_start", "row_end")
            ]
        key, index = self._key({column.name.casefold(): column.nullable for column in columns})
        if self._row_end and key and self._row_end not in key:
            _refuse(f"the server adds {self._row_end} to its key")
        if any(name.casefold() not in names for name in key):
            _refuse("its key names a column that is not there")
        schema = TableSchema(
            self._database,
            self._table,
            tuple(columns),
            tuple(names[name.casefold()] for name in key),
            self._options.comment,
        )
        return Definition(schema, index)

    def _in_key(self, name: str) -> bool:
        return name.casefold() in {each.casefold() for each in self._primary}

    def _key(self, nullable: dict[str, bool]) -> tuple[tuple[str, ...], str]:
        if self._primary:
            return self._primary, ""
        usable = [
            index
            for index in self._uniques
            if index.columns and not any(nullable.get(name.casefold(), True) for name in index.columns)
        ]
        if any(index.partial for index in usable):
            _refuse("its key may be a unique key over prefixes, which are parts of values")
        return (usable[0].columns, usable[0].name) if usable else ((), "")

    # --- indexes ---

    def _is_index(self, part: TokenCursor) -> bool:
        first, second = part.word(), part.word(1)
        return (
            first in _INDEX_WORDS
            or (first, second) == ("PERIOD", "FOR")
            or (first == "VECTOR" and second in ("KEY", "INDEX"))
        )

    def _index(self, part: TokenCursor) -> None:
        name = ""
        if part.take("CONSTRAINT") and part.word() not in ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
            name = part.name()
        if part.take("PERIOD", "FOR"):
            self._has_period = self._has_period or part.word() == "SYSTEM_TIME"
            return
        primary = part.take("PRIMARY", "KEY")
        if not primary and not part.take("UNIQUE"):
            return  # it is not a key
        part.take("KEY") or part.take("INDEX")
        if part.word() not in ("(", "USING"):
            name = part.name()
        if part.take("USING"):
            part.at += 1
        index = _index_of(name, _bracketed(part))
        if primary:
            if index.partial or self._primary:
                _refuse("its primary key is over prefixes, or it has two primary keys")
            self._primary = index.columns
        else:
            self._uniques.append(index)

    # --- columns ---

    def _column(self, part: TokenCursor) -> None:
        name = part.name()
        base = part.word().lower()
        part.at += 1
        if base == "double":
            part.take("PRECISION")
        if base in ("char", "character") and part.take("VARYING"):
            base = "varchar"
        base = _ALIASES.get(base, base)
        arguments = _bracketed(part) if part.word() == "(" else ()
        if base in ("bool", "boolean"):
            base, arguments = "tinyint", (Token("1", "1", True),)
        if base == "json" and self._mariadb:
            base = "longtext"
            column = self._typed(name, base, (), _Attributes(charset="utf8mb4"))
            _, found = self._attributes(name, part)
        else:
            attributes, found = self._attributes(name, part)
            column = self._typed(name, base, arguments, attributes)
        self._columns.append(replace(column, **found))

    def _attributes(self, name: str, part: TokenCursor) -> tuple[_Attributes, dict[str, Any]]:
        attributes = _Attributes(self._options.charset)
        found: dict[str, Any] = {}
        while not part.done:
            if part.take("UNSIGNED"):
                attributes = replace(attributes, unsigned=True)
            elif part.take("ZEROFILL"):
                attributes = replace(attributes, unsigned=True, zerofill=True)
            elif part.take("CHARACTER", "SET") or part.take("CHARSET"):
                attributes = replace(attributes, charset=charset_name(part.name()))
            elif part.take("COLLATE"):
                charset = charset_of_collation(part.name(), attributes.charset)
                attributes = replace(attributes, charset=charset)
            elif part.take("COMPRESSED"):
                if part.take("="):
                    part.at += 1
                attributes = replace(attributes, compressed=True)
            elif part.take("NOT", "NULL"):
                found["nullable"] = False
            elif part.take("COMMENT"):
                found["comment"] = _literal(part)
            elif part.take("INVISIBLE"):
                found["visible"] = False
            elif part.take("PRIMARY", "KEY") or part.take("KEY"):
                self._primary = (*self._primary, name)
            elif part.take("UNIQUE"):
                part.take("KEY")
                self._uniques.append(_Index(name, (name,), partial=False))
            elif part.take("GENERATED", "ALWAYS", "AS") or part.take("AS"):
                if part.take("ROW"):
                    self._has_period = True
                    self._row_end = name if part.word() == "END" else self._row_end
                    part.at += 1
                    found["nullable"] = False
                else:
                    _bracketed(part)
                    found["generated"] = True
            elif part.take("DEFAULT") or part.take("ON", "UPDATE"):
                _skip_value(part)
            elif part.take("CHECK"):
                _bracketed(part)
            elif part.take("WITHOUT", "SYSTEM", "VERSIONING"):
                pass
            elif part.take("SRID") or part.take("COLUMN_FORMAT") or part.take("STORAGE"):
                part.at += 1
            elif part.take("REF_SYSTEM_ID"):
                part.take("=")
                part.at += 1
            elif not _take_any(part, "NULL SIGNED AUTO_INCREMENT VISIBLE STORED VIRTUAL PERSISTENT BINARY ENFORCED"):
                _refuse(f"{part.rest()[0].text} of column {name} is not known")
        return attributes, found

    def _typed(self, name: str, base: str, arguments: Sequence[Token], attributes: _Attributes) -> Column:
        kind = KINDS.get(base)
        if kind is None:
            _refuse(f"type {base or '?'} of column {name} is not known")
        charset = attributes.charset
        if kind in _TEXTS and not charset:
            _refuse(f"the character set of column {name} is the default of the database, which is not known")
        if charset == "binary" and base in _BINARY_OF:
            base = _BINARY_OF[base]
            kind = KINDS[base]
        labels: tuple[str, ...] = ()
        numbers: list[int] = []
        if kind in (Kind.ENUM, Kind.SET):
            # the server removes trailing spaces of labels, except of binary ones
            labels = tuple(label if charset == "binary" else label.rstrip(" ") for label in _labels(arguments, name))
        else:
            numbers = _numbers(arguments, name)
        if kind is Kind.FLOAT and len(numbers) == 1:
            base, kind, numbers = _float_of(numbers[0])
        unsigned = attributes.unsigned and kind in _NUMBERS
        if attributes.unsigned and not unsigned:
            _refuse(f"column {name} cannot be unsigned")
        length, precision, scale, fsp, numbers = _sizes(name, base, kind, numbers)
        if kind is Kind.TEXT:
            length //= _LEAST_BYTES.get(charset, 1)
        inside = ",".join(_quoted(label) for label in labels) or ",".join(map(str, numbers))
        text = f"{base}({inside})" if inside else base
        text += " unsigned" * unsigned + " zerofill" * attributes.zerofill
        text += " /*M!100301 COMPRESSED*/" * attributes.compressed
        return Column(
            name,
            kind,
            text,
            unsigned=unsigned,
            length=length,
            precision=precision,
            scale=scale,
            fsp=fsp,
            charset=charset if kind in _TEXTS else "",
            labels=labels,
        )


@dataclass(frozen=True, slots=True)
class _Attributes:
    charset: str
    unsigned: bool = False
    zerofill: bool = False
    compressed: bool = False


def _sizes(name: str, base: str, kind: Kind, numbers: list[int]) -> tuple[int, int, int, int, list[int]]:
    """Return length, precision, scale, fractional digits of seconds, and the numbers as SHOW COLUMNS prints them."""
    if kind in (Kind.TEXT, Kind.BLOB):
        if numbers:
            _refuse(f"{base} of column {name} has a length, from which the server chooses another type")
        return _SIZES[base[:-4]], 0, 0, 0, []
    if kind is Kind.DECIMAL:
        precision, scale = (*numbers, *((10, 0)[len(numbers) :]))
        return 0, precision, scale, 0, [precision, scale]
    if kind in (Kind.VARCHAR, Kind.VARBINARY) and not numbers:
        _refuse(f"column {name} has no length")
    if kind in (Kind.CHAR, Kind.BINARY, Kind.BIT):
        numbers = numbers or [1]
    if kind is Kind.VECTOR:
        numbers = numbers or [2048]
    if kind in (Kind.CHAR, Kind.BINARY, Kind.BIT, Kind.VECTOR, Kind.VARCHAR, Kind.VARBINARY):
        return numbers[0], 0, 0, 0, numbers
    if kind in _FRACTIONS:
        fsp = numbers[0] if numbers else 0
        return 0, 0, 0, fsp, [fsp] if fsp else []
    return 0, 0, 0, 0, numbers


def _float_of(digits: int) -> tuple[str, Kind, list[int]]:
    return ("float", Kind.FLOAT, []) if digits <= 24 else ("double", Kind.DOUBLE, [])


def _index_of(name: str, columns: Sequence[Token]) -> _Index:
    names, partial = [], False
    for part in specifications(columns):
        if part.word() == "(":
            return _Index(name, (), partial=False)  # over an expression, so it is never the key
        names.append(part.name())
        if part.word() == "WITHOUT":
            _refuse("a key is over a period (WITHOUT OVERLAPS)")
        partial = partial or part.word() == "("
    return _Index(name or (names[0] if names else ""), tuple(names), partial)


def charset_name(name: str) -> str:
    """Return MySQL's name of a character set. Raises: Unreadable - it is unknown."""
    found = {"utf8": "utf8mb3"}.get(name.lower(), name.lower())
    if found != "binary" and found not in charset_names():
        _refuse(f"character set {name} is not known")
    return found


def charset_of_collation(name: str, default: str) -> str:
    """Return the character set of a collation; ``default`` if MariaDB's name does not contain it (uca1400_ai_ci)."""
    first = name.lower().partition("_")[0]
    if first == "uca1400" and default:
        return default
    return charset_name(first)


def _labels(arguments: Sequence[Token], name: str) -> Iterator[str]:
    for part in specifications(arguments):
        label = _literal(part)
        if not part.done:
            _refuse(f"a label of column {name} is not a plain text")
        yield label


def _numbers(arguments: Sequence[Token], name: str) -> list[int]:
    numbers = []
    for part in specifications(arguments) if arguments else ():
        text = part.name()
        if not part.done or not text.isdecimal():
            _refuse(f"the length of column {name} is not a number")
        numbers.append(int(text))
    return numbers


def _literal(part: TokenCursor) -> str:
    """Consume a string literal and return its value."""
    literal = part.tokens[part.at].literal if not part.done else None
    if literal is None:
        _refuse("a text is expected, but something else follows")
    part.at += 1
    quote = literal[0]
    inside = re.sub(rf"{quote}{quote}|\\(.)", lambda match: _unescaped(match, quote), literal[1:-1], flags=re.S)
    if part.at < len(part.tokens) and part.tokens[part.at].literal is not None:
        _refuse("two texts follow each other, which is not supported")
    return inside


def _unescaped(match: re.Match[str], quote: str) -> str:
    return quote if match[1] is None else _ESCAPES.get(match[1], match[1])


def _quoted(label: str) -> str:
    return "'" + "".join(_ESCAPED.get(character, character) for character in label) + "'"


def _skip_value(part: TokenCursor) -> None:
    """Consume a default: a literal, a function, or an expression in brackets."""
    part.take("-") or part.take("+")
    if part.word() == "(":
        _bracketed(part)
        return
    introducer = part.word().startswith("_")
    part.at += 1
    if introducer and not part.done and not part.tokens[part.at].word:
        part.at += 1
    if part.word() == "(":
        _bracketed(part)


def _take_any(part: TokenCursor, words: str) -> bool:
    return bool(part.take_any(frozenset(words.split())))


def _bracketed(cursor: TokenCursor) -> Sequence[Token]:
    """Consume an expression in brackets, and return the tokens inside."""
    if cursor.word() != "(":
        _refuse("brackets are expected, but something else follows")
    depth = 0
    for index in range(cursor.at, len(cursor.tokens)):
        depth += (cursor.tokens[index].word == "(") - (cursor.tokens[index].word == ")")
        if depth == 0:
            inside = cursor.tokens[cursor.at + 1 : index]
            cursor.at = index + 1
            return inside
    _refuse("a bracket is not closed")


def _refuse(why: str) -> NoReturn:
    raise Unreadable(why)
