"""The StarRocks types of a mapping's columns, and the conversions of its fields.

Source: StarRocks, ``ScalarType.java``, ``json_scanner.cpp``; its manual, "Primary Key table".
"""

from __future__ import annotations

from channels.sinks.base import TargetColumn
from channels.sinks.stream_load.types import ColumnType, TypeSystem, digits_type, required_type
from channels.sinks.stream_load.types import parsed as parsed_type

LONGEST_VARCHAR = 1048576  # bytes
_STRING_BYTES = 65533  # STRING is a VARCHAR of this length, which is too short for MySQL's TEXT

_STARROCKS = TypeSystem(
    "StarRocks",
    LONGEST_VARCHAR,
    ColumnType("VARCHAR", (LONGEST_VARCHAR,)),
    has_datetime_digits=False,
    bytes_type=ColumnType("VARBINARY"),
)


def starrocks_type(column: TargetColumn, *, key: bool) -> ColumnType:
    """Return the type for ``column``, exact for every value. In keys, decimals with a scale and bytes become text.

    Raises: TypeError - StarRocks has no type for it, or none for a key.
    """
    found = required_type(column, _STARROCKS)
    if not key:
        return found
    if found.base == "DECIMAL":
        digits, scale = found.parameters
        # the digits, a sign, a point, and a zero before the point if no digit is there
        return ColumnType("VARCHAR", (digits + 2 + (digits == scale),)) if scale else ColumnType("LARGEINT")
    if found.base == "VARBINARY":
        return digits_type(column.source_type.lower(), _STARROCKS)
    if found.base == "JSON":
        return ColumnType("VARCHAR", (LONGEST_VARCHAR,))
    if found.base in ("FLOAT", "DOUBLE") or found.base.startswith("ARRAY"):
        raise TypeError(f"column {column.name}: StarRocks does not support {found} in a key")
    return found


def parsed(text: str) -> ColumnType:
    """Return the type in the text of SHOW."""
    found = parsed_type(text)
    if found.base == "STRING":
        return ColumnType("VARCHAR", (_STRING_BYTES,))
    return ColumnType(found.base) if found.base in ("VARBINARY", "DATETIME") else found


def conversion(kind: ColumnType, field: str) -> str | None:
    """Return the expression that converts the text in ``field`` to ``kind``; None if a cast is sufficient.

    A cast would not accept bytes, and would store a JSON text as a JSON string. For JSON, see ``documents``.
    """
    if kind.base == "VARBINARY":
        return f"to_binary({field}, 'hex')"
    if kind.base == "JSON":
        return f"json_query(parse_json({field}), '$[0]')"
    if kind.base.startswith("ARRAY"):
        return f"cast({field} as {kind})"
    return None
