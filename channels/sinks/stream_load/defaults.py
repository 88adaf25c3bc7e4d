"""The value of existing rows in an added column, as the literal of its DEFAULT clause.

Source: Doris, ``LogicalPlanBuilder.java`` (``toStringValue`` reads no escapes), ``ColumnDefinition.java``; StarRocks,
``AstBuilder.java``; ``column_reader.cpp`` of both, which reads the default ``NULL`` as no value.
"""

from __future__ import annotations

import datetime
import decimal

import pyarrow as pa

from channels.sinks.stream_load.encoding import text_of
from channels.sinks.stream_load.types import ColumnType

LONGEST_DEFAULT = 65533  # bytes
_NUMBERS = ("TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT", "DECIMAL", "FLOAT", "DOUBLE")
_OTHERS = ("BOOLEAN", "DATE", "DATETIME", "CHAR", "VARCHAR", "STRING")
_BOOLEANS = {"TRUE": "1", "FALSE": "0"}
_SPECIAL = ("NULL", "\\N")  # a column with such a default reads NULL


def default_text(fill: pa.Scalar | None) -> str | None:
    """Return the text that the cluster casts to ``fill``; None for NULL."""
    if fill is None or not fill.is_valid:
        return None
    text = str(text_of(pa.array([fill.as_py()], fill.type))[0].as_py())
    if pa.types.is_timestamp(fill.type) and "." in text:
        return text.rstrip("0").rstrip(".")  # a DATETIME without digits accepts no fraction
    return text


def default_problem(kind: ColumnType, text: str | None, *, reads_escapes: bool) -> str | None:
    """Return why a column of type ``kind`` cannot have the default ``text``, or None."""
    if text is None:
        return None
    if kind.base not in _NUMBERS + _OTHERS:
        return f"a column of type {kind} can have no default but NULL"
    if text in _SPECIAL or text.upper().startswith("CURRENT_") or "\0" in text:
        return f"the text {text[:40]!r} has a special meaning in a default"
    if kind.base in ("FLOAT", "DOUBLE") and text.strip("+-").lower() in ("nan", "inf"):
        return f"{text} cannot be a default"
    length = len(text.encode())
    longest = min(
        LONGEST_DEFAULT, (kind.parameters or (1,))[0] if kind.base in ("CHAR", "VARCHAR") else LONGEST_DEFAULT
    )
    if length > longest:
        return f"its value has {length} bytes, and a default can have {longest}"
    if not reads_escapes and ("\\" in text or ('"' in text and "'" in text)):
        return "its value has a backslash or both kinds of quotes, which not all versions read in a default"
    return None


def default_literal(text: str, *, reads_escapes: bool) -> str:
    """Return ``text`` in quotes. ``default_problem`` has returned None for it."""
    if reads_escapes:
        text = text.replace("\\", "\\\\")
    mark = "'" if '"' in text and "'" not in text else '"'
    return mark + text.replace(mark, 2 * mark) + mark


def is_same_default(kind: ColumnType, one: str | None, other: str | None) -> bool:
    """Return True if both texts are the same value of type ``kind``: servers can print ``5`` as ``5.00``."""
    if one is None or other is None or one == other:
        return one == other
    try:
        if kind.base in _NUMBERS:
            return decimal.Decimal(one) == decimal.Decimal(other)
        if kind.base == "DATETIME":
            return datetime.datetime.fromisoformat(one) == datetime.datetime.fromisoformat(other)
    except (ValueError, decimal.InvalidOperation):
        return False
    if kind.base == "BOOLEAN":
        return _BOOLEANS.get(one.upper(), one) == _BOOLEANS.get(other.upper(), other)
    return False
