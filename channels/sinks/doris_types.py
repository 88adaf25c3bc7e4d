"""Doris's types: from a mapping's columns, out of what SHOW prints, and whether one holds what another holds.

Source: Doris, ``Column.java``, ``ColumnType.java``, ``ScalarType.java``; the type table of its MySQL catalogue.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pyarrow as pa

from channels.sinks.base import TargetColumn

LONGEST_VARCHAR = 65533  # bytes
_BYTES_PER_CHARACTER = 4  # utf8mb4; Doris counts bytes

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
_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19, "LARGEINT": 38}
_TEXT_LENGTHS = {"time": 17, "uuid": 36, "inet4": 15, "inet6": 45}


@dataclass(frozen=True, slots=True)
class DorisType:
    """A type: ``DECIMAL`` with (12, 2), ``VARCHAR`` with (160,), ``ARRAY<FLOAT>`` with ()."""

    base: str
    parameters: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.base + (f"({', '.join(map(str, self.parameters))})" if self.parameters else "")

    @property
    def is_text(self) -> bool:
        """Whether it takes any text."""
        return self.base in ("CHAR", "VARCHAR", "STRING")

    def holds(self, other: DorisType) -> bool:
        """Whether every value of ``other`` has its place here, exactly, and means the same."""
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


def doris_type(column: TargetColumn, *, key: bool) -> DorisType:
    """The type for ``column``, exact for every value. Keys cannot be STRING, and are VARCHAR then.

    Raises: TypeError - Doris has no type for it, or none that a key may have.
    """
    found = _wanted(column)
    if not key:
        return found
    if found.base == "STRING" or found.base == "JSON":
        return DorisType("VARCHAR", (LONGEST_VARCHAR,))
    if found.base in ("FLOAT", "DOUBLE") or found.base.startswith("ARRAY"):
        raise TypeError(f"column {column.name}: Doris takes no {found} as a key")
    return found


def parsed(text: str) -> DorisType:
    """The type that SHOW printed: ``decimalv3(12, 2)``, ``varchar(40)``, ``int(11)``, ``array<float>``."""
    text = re.sub(r"\s", "", text).upper()
    found = re.fullmatch(r"(\w+)(?:\((.*)\))?", text)
    if found is None:
        return DorisType(text)
    base = _SYNONYMS.get(found[1], found[1])
    parameters = tuple(int(part) for part in (found[2] or "").split(",") if part.isdecimal())
    if base in _INTEGERS or base in ("DATE", "STRING", "BOOLEAN"):
        parameters = ()  # int(11): a width for display
    if base == "DATETIME" and parameters == (0,):
        parameters = ()
    return DorisType(base, parameters)


def _wanted(column: TargetColumn) -> DorisType:
    kind, source = column.arrow, column.source_type.lower()
    if kind in _PLAIN:
        if pa.types.is_int64(kind) and source.startswith("bit(1)"):
            return DorisType("BOOLEAN")
        return DorisType(_PLAIN[kind])
    if pa.types.is_decimal128(kind):
        if kind.scale == 0 and (source.startswith(("bigint", "bit")) or kind.precision > 38):
            return DorisType("LARGEINT")
        return DorisType("DECIMAL", (kind.precision, kind.scale))
    if pa.types.is_timestamp(kind):
        digits = _length(source) if source.startswith(("datetime", "timestamp")) else 6
        return DorisType("DATETIME", (digits,) if digits else ())
    if pa.types.is_list(kind):
        return DorisType(f"ARRAY<{_PLAIN[kind.value_type]}>")
    if pa.types.is_string(kind):
        return _text(source)
    if pa.types.is_binary(kind):
        length = _length(source) * 2  # two hexadecimal digits a byte
        if source.startswith(("binary", "varbinary")) and 0 < length <= LONGEST_VARCHAR:
            return DorisType("VARCHAR", (length,))
        return DorisType("STRING")
    raise TypeError(f"column {column.name}: Doris has no type for Arrow's {kind}")


def _text(source: str) -> DorisType:
    if source.startswith("json"):
        return DorisType("JSON")
    word = re.match(r"[a-z0-9]*", source)
    name = word[0] if word else ""
    if name in _TEXT_LENGTHS:
        return DorisType("VARCHAR", (_TEXT_LENGTHS[name],))
    if name in ("char", "varchar"):
        length = max(_length(source), 1) * _BYTES_PER_CHARACTER
        return DorisType("VARCHAR", (length,)) if length <= LONGEST_VARCHAR else DorisType("STRING")
    return DorisType("STRING")


def _length(source: str) -> int:
    found = re.search(r"\((\d+)\)", source)
    return int(found[1]) if found else (1 if source.startswith(("char", "binary")) else 0)


def _decimal(found: DorisType) -> tuple[int, int]:
    if found.base in _INTEGERS:
        return _DIGITS[found.base], 0
    precision, scale = (*found.parameters, 9, 0)[:2] if len(found.parameters) != 1 else (found.parameters[0], 0)
    return precision - scale, scale
