"""The Doris types of a mapping's columns.

Source: Doris, ``Column.java``, ``ColumnType.java``, ``ScalarType.java``; the type table of its MySQL catalogue.
"""

from __future__ import annotations

from channels.sinks.base import TargetColumn
from channels.sinks.stream_load.types import ColumnType, TypeSystem, required_type

LONGEST_VARCHAR = 65533  # bytes

_DORIS = TypeSystem("Doris", LONGEST_VARCHAR, ColumnType("STRING"), has_datetime_digits=True, bytes_type=None)


def doris_type(column: TargetColumn, *, key: bool) -> ColumnType:
    """Return the type for ``column``, exact for every value. STRING becomes VARCHAR in keys.

    Raises: TypeError - Doris has no type for it, or none for a key.
    """
    found = required_type(column, _DORIS)
    if not key:
        return found
    if found.base == "STRING" or found.base == "JSON":
        return ColumnType("VARCHAR", (LONGEST_VARCHAR,))
    if found.base in ("FLOAT", "DOUBLE") or found.base.startswith("ARRAY"):
        raise TypeError(f"column {column.name}: Doris does not support {found} in a key")
    return found
