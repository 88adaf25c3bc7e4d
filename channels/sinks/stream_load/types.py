"""Column types of Doris and StarRocks: parse them, compare them, and choose them for Arrow columns.

Source: Doris, ``Column.java``, ``ColumnType.java``, ``ScalarType.java``; StarRocks, the classes of the same names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from channels.sinks.base import TargetColumn

_PLAIN = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
}
_SYNONYMS = {
    "STRING": "STRING", "TEXT": "STRING", "DECIMALV3": "DECIMAL", "DECIMALV2": "DECIMAL", "DATEV2": "DATE",
    "DATETIMEV2": "DATETIME", "JSONB": "JSON", "INTEGER": "INT", "BOOL": "BOOLEAN",
}  # fmt: skip
_INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT")
_DIGITS = {
    "TINYINT": 3,
    "SMALLINT": 5,
    "INT": 10,
    "BIGINT": 19,
    "LARGEINT": 20,
}  # of the largest source value
_BYTES_PER_CHARACTER = 4  # utf8mb4; both products count bytes
_TEXT_LENGTHS = {"time": 17, "uuid": 36, "inet4": 15, "inet6": 45}


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A type, for example ``DECIMAL`` with (12, 2), ``VARCHAR`` with (160,), ``ARRAY<FLOAT>`` with ()."""

    base: str
    parameters: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.base + (f"({', '.join(map(str, self.parameters))})" if self.parameters else "")

    @property
    def is_text(self) -> bool:
        """Return True for types that accept any text."""
        return self.base in ("CHAR", "VARCHAR", "STRING")

    def holds(self, other: ColumnType) -> bool:
        """Return True if a column of this type stores every value of ``other`` exactly."""
        if self.base == "STRING":
            return other.is_text or other.base == "JSON"
        if self.base in ("VARCHAR", "CHAR"):
            return other.base in ("VARCHAR", "CHAR") and (self.parameters or (1,))[0] >= (other.parameters or (1,))[0]
        if self.base in _INTEGERS and other.base in _INTEGERS:
            return _INTEGERS.index(self.base) >= _INTEGERS.index(other.base)
        if self.base == "DECIMAL" and (other.base in _INTEGERS or other.base == "DECIMAL"):
            whole, scale = _decimal(self)
            other_whole, other_scale = _decimal(other)
            return whole >= other_whole and scale >= other_scale
        if self.base == "DATETIME" and other.base in ("DATETIME", "DATE"):
            return (self.parameters or (0,))[0] >= (other.parameters or (0,))[0]
        if self.base == "DOUBLE" and other.base in ("FLOAT", "TINYINT", "SMALLINT", "INT"):
            return True
        if other.base == "BOOLEAN" and self.base in _INTEGERS:
            return True
        return self.base == other.base


def parsed(text: str) -> ColumnType:
    """Return the type in the text of SHOW: ``decimalv3(12, 2)``, ``varchar(40)``, ``int(11)``, ``array<float>``."""
    text = re.sub(r"\s", "", text).upper()
    found = re.fullmatch(r"(\w+)(?:\((.*)\))?", text)
    if found is None:
        return ColumnType(text)
    base = _SYNONYMS.get(found[1], found[1])
    parameters = tuple(int(part) for part in (found[2] or "").split(",") if part.isdecimal())
    if base in _INTEGERS or base in ("DATE", "STRING", "BOOLEAN"):
        parameters = ()  # int(11) has only a display width
    if base == "DATETIME" and parameters == (0,):
        parameters = ()
    return ColumnType(base, parameters)


@dataclass(frozen=True, slots=True)
class TypeSystem:
    """The types of one product."""

    product: str
    longest_varchar: int  # bytes
    long_text: ColumnType  # for text without a length, or with a larger one
    has_datetime_digits: bool
    bytes_type: ColumnType | None  # None: bytes are stored as hexadecimal digits


def required_type(column: TargetColumn, dialect: TypeSystem) -> ColumnType:
    """Return the type for ``column`` outside the key, exact for every value. Raises: TypeError - there is none."""
    kind, source = column.arrow, column.source_type.lower()
    if kind in _PLAIN:
        if pa.types.is_int64(kind) and source.startswith("bit(1)"):
            return ColumnType("BOOLEAN")
        return ColumnType(_PLAIN[kind])
    if pa.types.is_decimal128(kind):
        if kind.scale == 0 and (source.startswith(("bigint", "bit")) or kind.precision > 38):
            return ColumnType("LARGEINT")
        return ColumnType("DECIMAL", (kind.precision, kind.scale))
    if pa.types.is_timestamp(kind):
        digits = _length(source) if source.startswith(("datetime", "timestamp")) else 6
        return ColumnType("DATETIME", (digits,) if digits and dialect.has_datetime_digits else ())
    if pa.types.is_list(kind) and kind.value_type in _PLAIN:
        return ColumnType(f"ARRAY<{_PLAIN[kind.value_type]}>")
    if pa.types.is_string(kind):
        return _text(source, dialect)
    if pa.types.is_binary(kind):
        return dialect.bytes_type or digits_type(source, dialect)
    raise TypeError(f"column {column.name}: {dialect.product} has no type for Arrow's {kind}")


def digits_type(source: str, dialect: TypeSystem) -> ColumnType:
    """Return the text type for bytes as hexadecimal digits."""
    length = _length(source) * 2
    if source.startswith(("binary", "varbinary")) and 0 < length <= dialect.longest_varchar:
        return ColumnType("VARCHAR", (length,))
    return dialect.long_text


def _text(source: str, dialect: TypeSystem) -> ColumnType:
    if source.startswith("json"):
        return ColumnType("JSON")
    word = re.match(r"[a-z0-9]*", source)
    name = word[0] if word else ""
    if name in _TEXT_LENGTHS:
        return ColumnType("VARCHAR", (_TEXT_LENGTHS[name],))
    if name in ("char", "varchar"):
        length = max(_length(source), 1) * _BYTES_PER_CHARACTER
        return ColumnType("VARCHAR", (length,)) if length <= dialect.longest_varchar else dialect.long_text
    return dialect.long_text


def _length(source: str) -> int:
    found = re.search(r"\((\d+)\)", source)
    return int(found[1]) if found else (1 if source.startswith(("char", "binary")) else 0)


def _decimal(found: ColumnType) -> tuple[int, int]:
    if found.base in _INTEGERS:
        return _DIGITS[found.base], 0
    precision, scale = (*found.parameters, 9, 0)[:2] if len(found.parameters) != 1 else (found.parameters[0], 0)
    return precision - scale, scale
