"""Values of existing rows in an added column, as Arrow."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

from cdc.model.schema import Column


def fill_scalar(column: Column, value: bytes) -> pa.Scalar:
    """Return ``value``, as ``Fill.text`` has it, in the type of ``column``.

    Raises: ValueError - the text is no value of the column.
    """
    arrow = column.arrow
    if pa.types.is_binary(arrow):
        return pa.scalar(value, arrow)
    text = value.decode()
    if pa.types.is_string(arrow):
        return pa.scalar(text, arrow)
    if pa.types.is_decimal(arrow):
        return pa.scalar(Decimal(text), arrow)
    if pa.types.is_timestamp(arrow):
        return pa.scalar(text).cast(pa.timestamp("us")).cast(arrow)
    return pa.scalar(text).cast(arrow)
