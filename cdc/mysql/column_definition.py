"""Read the definition of one column from the tokens of CREATE TABLE and ALTER TABLE.

The column equals the one of ``cdc.mysql.catalog``, except for display widths in ``Column.type``.

Source: MySQL manual, "Data Types" and "CREATE TABLE Statement"; MariaDB knowledge base, "CREATE TABLE".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cdc.model.schema import Column, Kind
from cdc.mysql.catalog import KINDS
from cdc.mysql.charsets import charset_names
from cdc.mysql.ddl_tokens import Token, TokenCursor, bracketed, literal_of, refuse, specifications

TEXTS = (Kind.CHAR, Kind.VARCHAR, Kind.TEXT, Kind.ENUM, Kind.SET)
TEXT_BYTES = {"tiny": (1 << 8) - 1, "": (1 << 16) - 1, "medium": (1 << 24) - 1, "long": (1 << 32) - 1}
LEAST_BYTES = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}  # minimum of a character; 1 in other charsets
MOST_BYTES = {
    "utf8mb4": 4, "utf16": 4, "utf16le": 4, "utf32": 4, "gb18030": 4, "utf8mb3": 3, "ujis": 3, "eucjpms": 3, "ucs2": 2,
    "gbk": 2, "gb2312": 2, "big5": 2, "sjis": 2, "cp932": 2, "euckr": 2,
}  # maximum of a character; 1 in other charsets  # fmt: skip
_ALIASES = {
    "integer": "int", "int1": "tinyint", "int2": "smallint", "int3": "mediumint", "middleint": "mediumint",
    "int4": "int", "int8": "bigint", "dec": "decimal", "numeric": "decimal", "fixed": "decimal", "float4": "float",
    "float8": "double", "character": "char", "varcharacter": "varchar",
}  # fmt: skip
_BINARY_OF = {"char": "binary", "varchar": "varbinary", **{f"{size}text": f"{size}blob" for size in TEXT_BYTES}}
_INTEGERS = (Kind.TINYINT, Kind.SMALLINT, Kind.MEDIUMINT, Kind.INT, Kind.BIGINT)
_NUMBERS = (*_INTEGERS, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL)
_FRACTIONS = (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME)
_LARGEST = {Kind.CHAR: 255, Kind.BINARY: 255}
_WITHOUT_EFFECT = frozenset(["SIGNED", "VISIBLE", "STORED", "VIRTUAL", "PERSISTENT", "BINARY", "ENFORCED"])
_ESCAPED = {"\0": "\\0", "\n": "\\n", "\r": "\\r", "\\": "\\\\", "'": "''"}


@dataclass(frozen=True, slots=True)
class Dialect:
    """What the meaning of a statement depends on besides its text: the server and the session. None: not known."""

    mariadb: bool | None = True  # ``/*M! */`` is code, and JSON is LONGTEXT
    ansi_quotes: bool | None = False  # sql_mode: "x" is a name
    backslash_escapes: bool | None = None  # sql_mode has no NO_BACKSLASH_ESCAPES
    real_is_float: bool | None = None  # sql_mode has REAL_AS_FLOAT
    explicit_timestamps: bool | None = None  # explicit_defaults_for_timestamp
    time_zone: str = ""  # of the session: an offset such as "+02:00"; other values count as unknown


@dataclass(slots=True)
class ColumnDefinition:
    """A column as a statement defines it."""

    name: str
    column: Column | None = None  # set when the definition is read completely
    charset: str = ""
    unsigned: bool = False
    zerofill: bool = False
    compressed: bool = False
    sets_null: bool | None = None  # whether it has NULL; False: NOT NULL; None: neither
    default: Sequence[Token] | None = None
    comment: str = ""
    visible: bool = True
    generated: bool = False
    auto_increment: bool = False
    primary: bool = False
    unique: bool = False
    period: str = ""  # START or END of a system versioned row

    @property
    def described(self) -> Column:
        """The column."""
        assert self.column is not None
        return self.column


def read_column(part: TokenCursor, *, charset: str, dialect: Dialect) -> ColumnDefinition:
    """Consume a column's name, type and attributes, up to FIRST, AFTER or the end, and return the column.

    ``charset``: the table's default, "" if unknown; the charset of a text column without its own is then "".
    Raises: Unreadable - with the reason.
    """
    found = ColumnDefinition(part.name(), charset=charset)
    base, arguments = _type(part, found, dialect)
    while not part.done and part.word() not in ("FIRST", "AFTER"):
        _attribute(part, found)
    if base == "json" and dialect.mariadb:
        base, arguments, found.charset = "longtext", (), "utf8mb4"
    found.column = _column(found, base, arguments)
    return found


def _type(part: TokenCursor, found: ColumnDefinition, dialect: Dialect) -> tuple[str, Sequence[Token]]:
    """Consume a type. Return its main name and the tokens in its brackets."""
    national = part.take("NATIONAL")
    base = part.word().lower()
    part.at += 1
    if base in ("nchar", "nvarchar"):
        national, base = True, base[1:]
    if base == "double":
        part.take("PRECISION")
    if base in ("char", "character") and (part.take("VARYING") or part.take("VARCHAR")):
        base = "varchar"
    if base == "long":
        base = _long(part)
    if base == "real":
        if dialect.real_is_float is None:
            refuse(f"type real of column {found.name} depends on sql_mode, which is not known")
        base = "float" if dialect.real_is_float else "double"
    if base == "serial":
        found.unsigned = found.auto_increment = found.unique = True
        base, found.sets_null = "bigint", False
    if national:
        found.charset = "utf8mb3"
    base = _ALIASES.get(base, base)
    arguments = bracketed(part) if part.word() == "(" else ()
    if base in ("bool", "boolean"):
        base, arguments = "tinyint", (Token("1", "1", True),)
    return base, arguments


def _long(part: TokenCursor) -> str:
    if part.take("VARBINARY"):
        return "mediumblob"
    part.take("VARCHAR") or part.take("VARCHARACTER") or part.take("CHAR", "VARYING") or part.take(
        "CHARACTER", "VARYING"
    )
    return "mediumtext"


def _attribute(part: TokenCursor, found: ColumnDefinition) -> None:
    if not (_type_attribute(part, found) or _value_attribute(part, found) or _other_attribute(part, found)):
        refuse(f"{part.rest()[0].text} of column {found.name} is not known")


def _type_attribute(part: TokenCursor, found: ColumnDefinition) -> bool:
    if part.take("UNSIGNED"):
        found.unsigned = True
    elif part.take("ZEROFILL"):
        found.unsigned = found.zerofill = True
    elif part.take("CHARACTER", "SET") or part.take("CHARSET"):
        found.charset = charset_name(part.name())
    elif part.take("COLLATE"):
        part.take("=")
        found.charset = charset_of_collation(part.name(), found.charset)
    elif part.take("ASCII"):
        found.charset = "latin1"
    elif part.take("UNICODE"):
        found.charset = "ucs2"
    elif part.take("BYTE"):
        found.charset = "binary"
    elif part.take("COMPRESSED"):
        if part.take("="):
            part.at += 1
        found.compressed = True
    else:
        return False
    return True


def _value_attribute(part: TokenCursor, found: ColumnDefinition) -> bool:
    if part.take("NOT", "NULL"):
        found.sets_null = False
    elif part.take("NULL"):
        found.sets_null = True
    elif part.take("DEFAULT"):
        found.default = _value(part)
    elif part.take("AUTO_INCREMENT"):
        found.auto_increment = True
    elif part.take("GENERATED", "ALWAYS", "AS") or part.take("AS"):
        if part.take("ROW"):
            found.period = part.word()
            found.sets_null = False
            part.at += 1
        else:
            bracketed(part)
            found.generated = True
    elif part.take("ON", "UPDATE"):
        _value(part)
    else:
        return False
    return True


def _other_attribute(part: TokenCursor, found: ColumnDefinition) -> bool:
    if part.take("COMMENT"):
        found.comment = literal_of(part)
    elif part.take("INVISIBLE"):
        found.visible = False
    elif part.take("PRIMARY", "KEY") or part.take("KEY"):
        found.primary = True
    elif part.take("UNIQUE"):
        part.take("KEY")
        found.unique = True
    elif part.take("CONSTRAINT"):
        if part.word() != "CHECK":
            part.name()
    elif part.take("CHECK"):
        bracketed(part)
        part.take("NOT", "ENFORCED")
    elif part.take("REFERENCES"):
        _reference(part)
    elif part.take("SRID") or part.take("COLUMN_FORMAT") or part.take("STORAGE"):
        part.at += 1
    elif part.take("REF_SYSTEM_ID") or part.take("ENGINE_ATTRIBUTE") or part.take("SECONDARY_ENGINE_ATTRIBUTE"):
        part.take("=")
        part.at += 1
    else:
        ignored = part.take("WITHOUT", "SYSTEM", "VERSIONING") or part.take("NOT", "SECONDARY")
        return bool(ignored or part.take_any(_WITHOUT_EFFECT))
    return True


def _reference(part: TokenCursor) -> None:
    """Consume the rest of REFERENCES t (c) ON DELETE SET NULL: it changes no column."""
    part.name()
    if part.take("."):
        part.name()
    if part.word() == "(":
        bracketed(part)
    while part.take("ON", "DELETE") or part.take("ON", "UPDATE") or part.take("MATCH"):
        part.take("SET") or part.take("NO")
        part.at += 1


def _value(part: TokenCursor) -> Sequence[Token]:
    """Consume and return a default: a literal, a function, or an expression in brackets."""
    start = part.at
    part.take("-") or part.take("+")
    if part.word() == "(":
        bracketed(part)
        return part.tokens[start : part.at]
    introduces = part.word().startswith("_") or part.word() in ("DATE", "TIME", "TIMESTAMP", ".")
    part.at += 1
    if introduces and not part.done and (part.word() or "0").isdigit():
        part.at += 1
    if part.word() == "(":
        bracketed(part)
    return part.tokens[start : part.at]


def may_be_not_null(definition: ColumnDefinition, dialect: Dialect) -> bool:
    """Return whether the column can be NOT NULL although its definition does not say so.

    Without explicit_defaults_for_timestamp, TIMESTAMP means NOT NULL. With DEFAULT NULL, only MariaDB accepts that.
    """
    is_open = definition.described.kind is Kind.TIMESTAMP and definition.sets_null is None and not definition.generated
    defaults_to_null = [token.word for token in definition.default or ()] == ["NULL"]
    return is_open and not dialect.explicit_timestamps and not (defaults_to_null and dialect.mariadb is False)


# --- the column ---


def _column(found: ColumnDefinition, base: str, arguments: Sequence[Token]) -> Column:
    name, charset = found.name, found.charset
    kind = KINDS.get(base)
    if kind is None:
        refuse(f"type {base or '?'} of column {name} is not known")
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
        base, kind, numbers = ("float", Kind.FLOAT, []) if numbers[0] <= 24 else ("double", Kind.DOUBLE, [])
    if found.unsigned and kind not in _NUMBERS:
        refuse(f"column {name} cannot be unsigned")
    if numbers and base in ("text", "blob"):
        base, numbers = _text_of(base, numbers[0], charset if kind is Kind.TEXT else "binary", name), []
    length, precision, scale, fsp, numbers = _sizes(name, base, kind, numbers, charset)
    return Column(
        name,
        kind,
        _type_text(found, base, numbers, labels),
        unsigned=found.unsigned,
        nullable=not (found.sets_null is False or found.primary or found.auto_increment),
        length=length,
        precision=precision,
        scale=scale,
        fsp=fsp,
        charset=charset if kind in TEXTS else "",
        labels=labels,
        comment=found.comment,
        generated=found.generated,
        visible=found.visible,
        auto_increment=found.auto_increment,
    )


def _type_text(found: ColumnDefinition, base: str, numbers: Sequence[int], labels: Sequence[str]) -> str:
    inside = ",".join(_quoted(label) for label in labels) or ",".join(map(str, numbers))
    text = f"{base}({inside})" if inside else base
    text += " unsigned" * found.unsigned + " zerofill" * found.zerofill
    return text + " /*M!100301 COMPRESSED*/" * found.compressed


def _text_of(base: str, length: int, charset: str, name: str) -> str:
    """Return the type that the server chooses for TEXT(n) and BLOB(n): the smallest one that has n characters."""
    if not charset:
        refuse(f"the type of column {name} depends on the default character set, which is not known")
    for size, most in TEXT_BYTES.items():
        if length * MOST_BYTES.get(charset, 1) <= most:
            return f"{size}{base}"
    refuse(f"column {name} is too long")


def _sizes(name: str, base: str, kind: Kind, numbers: list[int], charset: str) -> tuple[int, int, int, int, list[int]]:
    """Return length, precision, scale, fractional digits of seconds, and the numbers as SHOW COLUMNS prints them."""
    if kind in (Kind.TEXT, Kind.BLOB):
        if numbers:
            refuse(f"{base} of column {name} has a length, from which the server chooses another type")
        length = TEXT_BYTES[base[:-4]]
        return length // LEAST_BYTES.get(charset, 1) if kind is Kind.TEXT else length, 0, 0, 0, []
    if kind is Kind.DECIMAL:
        precision, scale = (*numbers, *((10, 0)[len(numbers) :]))
        return 0, precision or 10, scale, 0, [precision or 10, scale]
    if kind in (Kind.VARCHAR, Kind.VARBINARY) and not numbers:
        refuse(f"column {name} has no length")
    if kind in (Kind.CHAR, Kind.BINARY, Kind.BIT):
        numbers = numbers or [1]
    if kind is Kind.VECTOR:
        numbers = numbers or [2048]
    if kind in (Kind.CHAR, Kind.BINARY, Kind.BIT, Kind.VECTOR, Kind.VARCHAR, Kind.VARBINARY):
        if numbers[0] > _LARGEST.get(kind, 65535):
            refuse(f"column {name} is so long that the server may choose another type")
        return numbers[0], 0, 0, 0, numbers
    if kind in _FRACTIONS:
        fsp = numbers[0] if numbers else 0
        return 0, 0, 0, fsp, [fsp] if fsp else []
    return 0, 0, 0, 0, numbers


# --- parts of definitions ---


def charset_name(name: str) -> str:
    """Return MySQL's name of a character set. Raises: Unreadable - it is unknown."""
    found = {"utf8": "utf8mb3"}.get(name.lower(), name.lower())
    if found != "binary" and found not in charset_names():
        refuse(f"character set {name} is not known")
    return found


def charset_of_collation(name: str, default: str) -> str:
    """Return the character set of a collation; ``default`` if MariaDB's name does not contain it (uca1400_ai_ci)."""
    first = name.lower().partition("_")[0]
    if first == "uca1400" and default:
        return default
    return charset_name(first)


def _labels(arguments: Sequence[Token], name: str) -> Iterator[str]:
    for part in specifications(arguments):
        label = literal_of(part)
        if not part.done:
            refuse(f"a label of column {name} is not a plain text")
        yield label


def _numbers(arguments: Sequence[Token], name: str) -> list[int]:
    numbers = []
    for part in specifications(arguments) if arguments else ():
        text = part.name()
        if not part.done or not text.isdecimal():
            refuse(f"the length of column {name} is not a number")
        numbers.append(int(text))
    return numbers


def _quoted(label: str) -> str:
    return "'" + "".join(_ESCAPED.get(character, character) for character in label) + "'"
