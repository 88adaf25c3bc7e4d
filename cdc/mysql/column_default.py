"""The value that existing rows get in a column that ALTER TABLE adds.

A literal is converted as the column stores it: '007' in an INT column is 7. A value that is not certain is BY_ROW: the
rows are then read again. So a conversion that is missing here costs time and is never wrong.

Source: MySQL manual, "Data Type Default Values" and "Numeric Literals"; observed with MySQL 9.7 and MariaDB 10.11.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext

from cdc.model.schema import Column, Kind
from cdc.model.schema_change import Fill, FillKind
from cdc.mysql.column_definition import ColumnDefinition, Dialect, may_be_not_null
from cdc.mysql.ddl_tokens import Token, text_of
from cdc.mysql.statement_time import offset_of

BY_ROW = Fill(FillKind.BY_ROW)
_NOW = ("NOW", "CURRENT_TIMESTAMP", "LOCALTIME", "LOCALTIMESTAMP")
_BITS = {Kind.TINYINT: 8, Kind.SMALLINT: 16, Kind.MEDIUMINT: 24, Kind.INT: 32, Kind.BIGINT: 64}
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_DATE = r"(\d{4})-(\d\d)-(\d\d)"
_TIME = r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?"
_DATETIME = re.compile(rf"{_DATE}(?:[ T]{_TIME})?", re.ASCII)
_DURATION = re.compile(r"(-?)(\d{2,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?", re.ASCII)
# the charsets in which Python's codec has exactly the characters of the server's charset
_CODECS = {"utf8mb4": "utf-8", "latin1": "cp1252", "ascii": "ascii", "utf16": "utf-16", "utf16le": "utf-16-le"}
# in the literals of other charsets, ASCII bytes can be other characters: _utf16'ab' is one character
_INTRODUCERS = ("_UTF8MB4", "_UTF8MB3", "_UTF8", "_LATIN1", "_ASCII", "_BINARY")
_NOT_ASCII = ("swe7", "binary")  # an ASCII character may be another byte, or the text has no characters


class _Uncertain(Exception):
    """The value that the column stores is not certain."""


def fill_of(definition: ColumnDefinition, column: Column, dialect: Dialect) -> Fill:
    """Return the value of existing rows in the added ``column``, which has the nullability of the changed table."""
    if definition.generated or definition.auto_increment or definition.period:
        return BY_ROW
    default = definition.default
    tokens = without_brackets(default or ())
    has_no_value = [token.word for token in tokens] in ([], ["NULL"])
    if has_no_value and may_be_not_null(definition, dialect):
        return Fill(FillKind.NULL_OR_TIME)  # the time of the statement, or a zero date
    try:
        if default is None:
            return Fill() if column.nullable else _literal_fill(_type_default(column))
        if has_no_value:
            return Fill() if column.nullable else BY_ROW
        if _is_statement_time(tokens, column):
            return Fill(FillKind.STATEMENT_TIME)
        return _literal_fill(_stored(tokens, column, dialect))
    except _Uncertain:
        return BY_ROW


def _literal_fill(text: bytes | None) -> Fill:
    return Fill() if text is None else Fill(FillKind.LITERAL, text)


def without_brackets(tokens: Sequence[Token]) -> Sequence[Token]:
    """Return an expression without the brackets around it as a whole."""
    while len(tokens) > 2 and tokens[0].word == "(" and tokens[-1].word == ")":
        depth = 0
        for token in tokens[:-1]:
            depth += (token.word == "(") - (token.word == ")")
            if depth == 0:  # (a) + (b)
                return tokens
        tokens = tokens[1:-1]
    return tokens


def _is_statement_time(tokens: Sequence[Token], column: Column) -> bool:
    words = [token.word for token in tokens]
    if column.kind is Kind.DATE and words in (["CURRENT_DATE"], ["CURRENT_DATE", "(", ")"], ["CURDATE", "(", ")"]):
        return True
    if column.kind not in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP) or words[0] not in _NOW:
        return False
    digits = words[2] if len(words) == 4 else "0"
    is_call = words[1:] in ([], ["(", ")"], ["(", digits, ")"])
    return is_call and (column.kind is Kind.DATE or digits == str(column.fsp))


def _type_default(column: Column) -> bytes | None:
    """Return the value of a NOT NULL column without a default; None: a zero date, which has no value."""
    kind = column.kind
    if kind in _BITS or kind is Kind.BIT:
        return b"0"
    if kind is Kind.DECIMAL:
        return _decimal_text(Decimal(0), column.scale)
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return _decimal_text(Decimal(0), _digits_of_float(column) or 0)
    if kind is Kind.TIME:
        return b"00:00:00" + _fraction("", column.fsp)
    if kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP):
        return None
    if kind is Kind.ENUM:
        return column.labels[0].encode()
    found = {Kind.YEAR: b"0000", Kind.BINARY: bytes(column.length), Kind.JSON: b"null"}.get(kind)
    if found is not None:
        return found
    if kind in (Kind.CHAR, Kind.VARCHAR, Kind.TEXT, Kind.VARBINARY, Kind.BLOB, Kind.SET):
        return b""
    raise _Uncertain


# --- literals ---


class _Literal:
    """A literal of SQL: a text, a number, or bytes in hexadecimal or binary digits."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        words = [token.word for token in tokens]
        self.text = self.number = None if tokens else ""
        self.data: bytes | None = None
        self.is_quoted_hex = False
        if words[0] in ("DATE", "TIME", "TIMESTAMP") or (words[0].startswith("_") and len(tokens) == 2):
            self.is_introduced = words[0].startswith("_")
            if self.is_introduced and words[0] not in _INTRODUCERS:
                raise _Uncertain
            tokens = tokens[1:]
        else:
            self.is_introduced = False
        if len(tokens) == 1 and tokens[0].literal is not None:
            self.text = text_of(tokens[0].literal)
        elif len(tokens) == 1 and tokens[0].digits and not self.is_introduced:
            self.data = _bytes_of(tokens[0])
            self.is_quoted_hex = tokens[0].digits == "quoted hex"
        elif words in (["TRUE"], ["FALSE"]):
            self.number = str(int(words == ["TRUE"]))
        elif all(words) and _NUMBER.fullmatch("".join(words)) and not self.is_introduced:
            self.number = "".join(words)
        else:
            raise _Uncertain

    def decimal(self) -> Decimal:
        """Return the number, of a text too. Raises: _Uncertain."""
        if self.is_quoted_hex:
            raise _Uncertain  # X'31' is the number 49 for MySQL, and the text '1' for MariaDB
        if self.data is not None:
            return Decimal(int.from_bytes(self.data))
        text = self.number or self.text or ""
        if not _NUMBER.fullmatch(text):
            raise _Uncertain
        digits, _, exponent = text.lower().partition("e")
        if exponent and (len(digits.strip("+-.0")) > 15 or abs(int(exponent)) > 60):
            raise _Uncertain  # it is a double
        return Decimal(text)


def _bytes_of(token: Token) -> bytes:
    base = 2 if token.digits == "bit" else 16
    if not token.text:
        return b""
    return int(token.text, base).to_bytes(-(-len(token.text) * (4 if base == 16 else 1) // 8))


def _stored(tokens: Sequence[Token], column: Column, dialect: Dialect) -> bytes | None:
    kind = column.kind
    if kind is Kind.JSON:
        return _json(tokens)
    literal = _Literal(tokens)
    if kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP):
        return _moment(literal, column, dialect)
    convert = _CONVERT.get(kind)
    if convert is None:
        raise _Uncertain
    return convert(literal, column)


def _json(tokens: Sequence[Token]) -> bytes:
    """Return a document of which the server's text is certain."""
    words = [token.word for token in tokens]
    if words[1:] == ["(", ")"] and words[0] in ("JSON_OBJECT", "JSON_ARRAY"):
        return b"{}" if words[0] == "JSON_OBJECT" else b"[]"
    if len(tokens) == 1 and tokens[0].literal is not None:
        text = text_of(tokens[0].literal)
        if text in ("{}", "[]", "null", "true", "false") or re.fullmatch(r"0|[1-9]\d{0,8}", text, re.ASCII):
            return text.encode()
    raise _Uncertain


def _integer(literal: _Literal, column: Column) -> bytes:
    found = literal.decimal()
    if "e" in (literal.number or "").lower() and found % 1:
        raise _Uncertain  # a double is rounded in another way
    value = int(found.to_integral_value(ROUND_HALF_UP))
    bits = _BITS[column.kind]
    least, most = (0, (1 << bits) - 1) if column.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if not least <= value <= most:
        raise _Uncertain
    return str(value).encode()


def _decimal(literal: _Literal, column: Column) -> bytes:
    with localcontext(prec=200):
        value = literal.decimal().quantize(Decimal(1).scaleb(-column.scale), ROUND_HALF_UP)
    if abs(value) >= 10 ** (column.precision - column.scale) or (value < 0 and column.unsigned):
        raise _Uncertain
    return _decimal_text(value, column.scale)


def _decimal_text(value: Decimal, scale: int) -> bytes:
    return f"{abs(value) if value == 0 else value:.{scale}f}".encode()


def _digits_of_float(column: Column) -> int | None:
    """Return D of FLOAT(M,D); None if the type has no fixed number of digits."""
    found = re.search(r"\(\d+,(\d+)\)", column.type)
    return int(found[1]) if found else None


def _float(literal: _Literal, column: Column) -> bytes:
    """Return a number with so few digits that SELECT prints all of them."""
    value, scale = literal.decimal(), _digits_of_float(column)
    most = 6 if column.kind is Kind.FLOAT else 15
    digits = len(value.as_tuple().digits)
    small, large = Decimal("0.0001"), Decimal(10) ** (most - 1)
    if digits > most or (value and not small <= abs(value) < large) or (value.is_signed() and not value):
        raise _Uncertain
    if value < 0 and column.unsigned:
        raise _Uncertain
    if scale is None:
        text = f"{value:f}"
        return (text.rstrip("0").rstrip(".") if "." in text else text).encode()
    if max(0, -int(value.as_tuple().exponent)) > scale or value.adjusted() + 1 + scale > most:
        raise _Uncertain
    return f"{value:.{scale}f}".encode()


def _bit(literal: _Literal, column: Column) -> bytes:
    if literal.text is not None:
        raise _Uncertain  # the bytes of the text
    value = literal.decimal()
    if value % 1 or not 0 <= value < 1 << column.length:
        raise _Uncertain
    return str(int(value)).encode()


def _year(literal: _Literal, column: Column) -> bytes:
    text = literal.number or literal.text or ""
    if re.fullmatch(r"19\d\d|20\d\d|0000", text, re.ASCII) and 1901 <= (int(text) or 1901) <= 2155:
        return text.encode() if int(text) or literal.text else b"0000"
    if literal.number == "0":
        return b"0000"
    raise _Uncertain


def _moment(literal: _Literal, column: Column, dialect: Dialect) -> bytes | None:
    found = _DATETIME.fullmatch(literal.text or "") if literal.text is not None and not literal.is_introduced else None
    if found is None:
        raise _Uncertain
    year, month, day = int(found[1]), int(found[2]), int(found[3])
    fraction = found[7] or ""
    if month == 0 or day == 0:
        return None  # a zero date has no value
    try:
        moment = datetime(year, month, day, int(found[4] or 0), int(found[5] or 0), int(found[6] or 0))
    except ValueError as error:
        raise _Uncertain from error
    if column.kind is Kind.DATE:
        if found[4] and (int(found[4]), int(found[5]), int(found[6] or 0), fraction.strip("0")) != (0, 0, 0, ""):
            raise _Uncertain
        return f"{year:04}-{month:02}-{day:02}".encode()
    if column.kind is Kind.TIMESTAMP:
        moment -= _offset(dialect.time_zone)
    return moment.isoformat(" ").encode() + _fraction(fraction, column.fsp)


def _offset(time_zone: str) -> timedelta:
    """Return the offset of a time zone from UTC. Named zones may have changes that the server does not know."""
    offset = offset_of(time_zone)
    if offset is None:
        raise _Uncertain
    return offset


def _fraction(digits: str, fsp: int) -> bytes:
    if digits[fsp:].strip("0"):
        raise _Uncertain  # MySQL rounds, MariaDB truncates, and sql_mode can change both
    return f".{digits[:fsp]:0<{fsp}}".encode() if fsp else b""


def _duration(literal: _Literal, column: Column) -> bytes:
    if literal.number == "0":
        return b"00:00:00" + _fraction("", column.fsp)
    found = _DURATION.fullmatch(literal.text or "")
    if found is None or int(found[2]) > 838 or int(found[3]) > 59 or int(found[4]) > 59:
        raise _Uncertain
    if int(found[2]) == 838 and (found[3], found[4]) == ("59", "59") and (found[5] or "").strip("0"):
        raise _Uncertain
    if found[1] and not (int(found[2]) or int(found[3]) or int(found[4]) or (found[5] or "").strip("0")):
        raise _Uncertain  # -00:00:00
    hours = f"{int(found[2]):02}"
    return f"{found[1]}{hours}:{found[3]}:{found[4]}".encode() + _fraction(found[5] or "", column.fsp)


def _characters(literal: _Literal, column: Column) -> str:
    """Return the text of a literal in a column with a charset."""
    if literal.data is not None:
        if not literal.data.isascii() or column.charset in (*_NOT_ASCII, "", "ucs2", "utf16", "utf16le", "utf32"):
            raise _Uncertain
        return literal.data.decode("ascii")
    if literal.text is None:
        return _number_text(literal)
    text = literal.text
    if text.isascii():
        if column.charset in _NOT_ASCII:
            raise _Uncertain
        return text
    if literal.is_introduced:
        raise _Uncertain
    if column.charset in ("utf8mb3", "ucs2") and max(text) <= "\uffff":
        return text
    try:
        text.encode(_CODECS[column.charset])
    except (KeyError, UnicodeEncodeError) as error:
        raise _Uncertain from error
    return text


def _number_text(literal: _Literal) -> str:
    number = literal.number or ""
    if not re.fullmatch(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", number, re.ASCII) or (number[0] == "-" and not float(number)):
        raise _Uncertain  # for example -0, which is stored as 0
    return number


def _text(literal: _Literal, column: Column) -> bytes:
    text = _characters(literal, column)
    if column.kind is Kind.CHAR:
        text = text.rstrip(" ")
    if len(text) > column.length:
        raise _Uncertain
    return text.encode()


def _binary(literal: _Literal, column: Column) -> bytes:
    data = literal.data
    if data is None:
        text = literal.text if literal.text is not None else _number_text(literal)
        if not text.isascii():
            raise _Uncertain  # its bytes are those of the client's charset
        data = text.encode()
    if len(data) > column.length:
        raise _Uncertain
    return data.ljust(column.length, b"\0") if column.kind is Kind.BINARY else data


def _enum(literal: _Literal, column: Column) -> bytes:
    if literal.text is None or not literal.text.isascii():
        raise _Uncertain
    return _label(literal.text, column).encode()


def _set(literal: _Literal, column: Column) -> bytes:
    if literal.text is None or not literal.text.isascii():
        raise _Uncertain
    members = {_label(member, column) for member in literal.text.split(",")} if literal.text else set()
    return ",".join(label for label in column.labels if label in members).encode()


def _label(text: str, column: Column) -> str:
    """Return the label that a text means: in another case too, or the server refuses the statement."""
    found = [label for label in column.labels if label.lower() == text.lower()]
    if text in column.labels:
        return text
    if len(found) != 1:
        raise _Uncertain
    return found[0]


_CONVERT: dict[Kind, Callable[[_Literal, Column], bytes]] = {
    **dict.fromkeys(_BITS, _integer),
    Kind.DECIMAL: _decimal,
    Kind.FLOAT: _float,
    Kind.DOUBLE: _float,
    Kind.BIT: _bit,
    Kind.YEAR: _year,
    Kind.TIME: _duration,
    **dict.fromkeys((Kind.CHAR, Kind.VARCHAR, Kind.TEXT), _text),
    **dict.fromkeys((Kind.BINARY, Kind.VARBINARY, Kind.BLOB), _binary),
    Kind.ENUM: _enum,
    Kind.SET: _set,
}
