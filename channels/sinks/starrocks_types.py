"""StarRocks' types for a mapping's columns, and what its rows need on the way into them.

Source: StarRocks, ``ScalarType.java``, ``json_scanner.cpp``; its manual, "Primary Key table".
"""

from __future__ import annotations

from channels.sinks.base import TargetColumn
from channels.sinks.column_types import ColumnType, Dialect, digits_type, wanted_type
from channels.sinks.column_types import parsed as parsed_type

LONGEST_VARCHAR = 1048576  # bytes
_STRING_BYTES = 65533  # STRING is a VARCHAR of this length, too short for MySQL's TEXT

_STARROCKS = Dialect(
    "StarRocks",
    LONGEST_VARCHAR,
    ColumnType("VARCHAR", (LONGEST_VARCHAR,)),
    has_datetime_digits=False,
    bytes_type=ColumnType("VARBINARY"),
)


def starrocks_type(column: TargetColumn, *, key: bool) -> ColumnType:
    """The type for ``column``, exact for every value. Of keys, numbers with a point and bytes become text.

    Raises: TypeError - StarRocks has no type for it, or none that a key may have.
    """
    found = wanted_type(column, _STARROCKS)
    if not key:
        return found
    if found.base == "DECIMAL":
        digits, scale = found.parameters
        # beside the digits a sign and a point, and a zero before it where no digit is
        return ColumnType("VARCHAR", (digits + 2 + (digits == scale),)) if scale else ColumnType("LARGEINT")
    if found.base == "VARBINARY":
        return digits_type(column.source_type.lower(), _STARROCKS)
    if found.base == "JSON":
        return ColumnType("VARCHAR", (LONGEST_VARCHAR,))
    if found.base in ("FLOAT", "DOUBLE") or found.base.startswith("ARRAY"):
        raise TypeError(f"column {column.name}: StarRocks takes no {found} as a key")
    return found


def parsed(text: str) -> ColumnType:
    """The type that SHOW printed."""
    found = parsed_type(text)
    if found.base == "STRING":
        return ColumnType("VARCHAR", (_STRING_BYTES,))
    return ColumnType(found.base) if found.base in ("VARBINARY", "DATETIME") else found


def conversion(kind: ColumnType, field: str) -> str | None:
    """The expression that makes a value of ``kind`` out of the text in ``field``; None where a cast does.

    Without it bytes could not be sent at all, and a JSON text would become a JSON string that holds the text.
    """
    if kind.base == "VARBINARY":
        return f"to_binary({field}, 'hex')"
    if kind.base == "JSON":
        return f"parse_json({field})"
    if kind.base.startswith("ARRAY"):
        return f"cast({field} as {kind})"
    return None
