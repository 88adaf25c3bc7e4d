"""The Arrow type of each column type, as in docs/reference/types.md."""

from __future__ import annotations

import pyarrow as pa

from cdc.model.kind import Kind

_INTEGERS = {
    Kind.TINYINT: (pa.int8(), pa.int16()),
    Kind.SMALLINT: (pa.int16(), pa.int32()),
    Kind.MEDIUMINT: (pa.int32(), pa.int32()),
    Kind.INT: (pa.int32(), pa.int64()),
    Kind.BIGINT: (pa.int64(), pa.decimal128(20, 0)),
}
_PLAIN = {
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.YEAR: pa.int16(),
    Kind.DATE: pa.date32(),
    Kind.DATETIME: pa.timestamp("us"),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
    Kind.BINARY: pa.binary(),
    Kind.VARBINARY: pa.binary(),
    Kind.BLOB: pa.binary(),
    Kind.GEOMETRY: pa.binary(),
    Kind.VECTOR: pa.list_(pa.float32()),
}


def arrow_type(kind: Kind, unsigned: bool, length: int, precision: int, scale: int) -> pa.DataType:
    """Return the Arrow type of the values of a column. The parameters are fields of ``cdc.model.schema.Column``."""
    if kind in _INTEGERS:
        return _INTEGERS[kind][unsigned]
    if kind is Kind.DECIMAL:
        # decimal128 has at most 38 digits; longer values are the exact text of the server
        return pa.decimal128(precision, scale) if precision <= 38 else pa.string()
    if kind is Kind.BIT:
        return pa.int64() if length < 64 else pa.decimal128(20, 0)
    return _PLAIN.get(kind, pa.string())


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether every value of ``old`` is the same value in ``new``, which is another type."""
    if pa.types.is_integer(old) and pa.types.is_integer(new):
        return bool(old.bit_width < new.bit_width)
    if pa.types.is_decimal(new) and (pa.types.is_integer(old) or pa.types.is_decimal(old)):
        digits, scale = (
            (old.precision, old.scale) if pa.types.is_decimal(old) else (len(str(1 << old.bit_width - 1)), 0)
        )
        return bool(new.scale >= scale and new.precision - new.scale >= digits - scale and old != new)
    return bool(old == pa.float32() and new == pa.float64())
