"""The text of Canal's values to Arrow arrays: one parser per column, planned once per table and layout.

Canal sends every value as text, in its own forms: bytes as Latin-1, ENUM as a number, SET as a bit mask, decimals
without trailing zeros, times in the server's time zone. The Arrow types and values equal those of the binlog decoder.

Source: alibaba/canal 1.1.8, RowsLogBuffer and LogEventConvert.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Context, Decimal, Inexact, InvalidOperation

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import GAP_HINT, DecodeError, SchemaMismatch, UnsupportedRowFormat
from cdc.model.schema import Column, Kind, TableSchema
from cdc.mysql.charsets import Charset
from cdc.mysql.values import text
from cdc.sources.canal import decimal_kernels, value_kernels
from cdc.sources.canal.layout import NO_SERVER_CHARSET, LayoutColumn

RESYNC_HINT = f"{GAP_HINT} If the error repeats, use a binlog source."
_BINLOG_HINT = "Remove the column from the mapping, or use a binlog source."
_CHARSET_HINT = "Remove the column from the mapping, convert it to utf8mb4, or use a binlog source."
_UNREADABLE = (Kind.UUID, Kind.INET4, Kind.INET6, Kind.VECTOR)  # Canal reads their bytes as text, or stops
NOT_ASCII = ("ucs2", "utf16", "utf16le", "utf32", "swe7")  # charsets in which ASCII characters have other bytes
_DECIMAL = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,6})?", re.ASCII)
_INTEGERS = {
    Kind.TINYINT: 8,
    Kind.SMALLINT: 16,
    Kind.MEDIUMINT: 24,
    Kind.INT: 32,
    Kind.BIGINT: 64,
}

Values = tuple[np.ndarray, np.ndarray, np.ndarray]  # buffer, starts, lengths (-1: NULL)
# returns the array of a column, or the array and the number of zero and invalid dates that became NULL
Parser = Callable[[Values], pa.Array | tuple[pa.Array, int]]


def value_parser(column: Column, received: LayoutColumn, schema: TableSchema, zone_us: int) -> Parser:
    """Return the parser of a column's values. Raises: SchemaMismatch - Canal damages values of this type or charset.

    ``zone_us``: how far the server's clock is ahead of UTC, for TIMESTAMP values.
    """
    kind = column.kind
    if kind in _UNREADABLE:
        raise SchemaMismatch(
            f"Canal cannot read {kind.value.upper()} columns.",
            hint=_BINLOG_HINT,
            table=schema.name,
            column=column.name,
        )
    if kind in _INTEGERS or kind in (Kind.BIT, Kind.YEAR):
        return _integer_parser(column)
    if kind is Kind.DECIMAL:
        if column.precision > 38:
            return lambda values: _decimal_texts(values, column.precision, column.scale)
        return lambda values: _decimals(values, column.precision, column.scale)
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return lambda values: _floats(values, column.arrow)
    if kind is Kind.DATE:
        return _dates
    if kind in (Kind.DATETIME, Kind.TIMESTAMP):
        minus_us = zone_us if kind is Kind.TIMESTAMP else 0
        return lambda values: _moments(values, minus_us, column.arrow)
    if kind is Kind.ENUM:
        return lambda values: text.enum_array(_whole(values, 0, 65535), values[2] >= 0, column.labels)
    if kind is Kind.SET:
        return lambda values: text.set_array(*_bit_masks(values), column.labels)
    if kind in (Kind.BINARY, Kind.VARBINARY, Kind.BLOB, Kind.GEOMETRY):
        width = column.length if kind is Kind.BINARY else None
        return lambda values: text.binary_array(*_as_bytes(values), width)
    if kind is Kind.JSON:
        return _json
    if kind is Kind.TEXT and received.as_bytes:
        charset = Charset(column.charset or NO_SERVER_CHARSET)  # Canal has not decoded these bytes
        return lambda values: text.text_array(*_as_bytes(values), charset)
    if kind in (Kind.CHAR, Kind.VARCHAR, Kind.TEXT) and column.charset not in ("utf8mb4", "utf8mb3", "ascii"):
        if column.charset in NOT_ASCII:
            raise SchemaMismatch(
                f"Canal reads every text as UTF-8, but {column.charset} has other bytes even for ASCII characters.",
                hint=_CHARSET_HINT,
                table=schema.name,
                column=column.name,
            )
        return _undamaged
    return lambda values: text.utf8_array(*values)


def _bad(values: Values, row: int, what: str) -> DecodeError:
    data, starts, lengths = values
    shown = data[starts[row] : starts[row] + min(lengths[row], 60)].tobytes().decode("utf-8", "replace")
    return DecodeError(f"The text {shown!r} is not {what}.", hint=RESYNC_HINT, row=row)


def _whole(values: Values, low: int, high: int) -> np.ndarray:
    out = np.empty(len(values[1]), np.int64)
    row = value_kernels.integers(*values, low, high, out)
    if row >= 0:
        raise _bad(values, row, f"an integer from {low} to {high}")
    return out


def _integer_parser(column: Column) -> Parser:
    bits = column.length if column.kind is Kind.BIT else _INTEGERS.get(column.kind, 16)
    unsigned = column.unsigned or column.kind in (Kind.BIT, Kind.YEAR)
    if bits == 64 and unsigned:
        return lambda values: _decimals(values, 20, 0)
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    kind = column.arrow
    store = kind.to_pandas_dtype()

    def parse(values: Values) -> pa.Array:
        return pa.array(_whole(values, low, high).astype(store), kind, mask=_mask(values))

    return parse


def _mask(values: Values) -> np.ndarray | None:
    null = values[2] < 0
    return null if null.any() else None


def _decimals(values: Values, precision: int, scale: int) -> pa.Array:
    count = len(values[1])
    out = np.empty((count, 2), np.uint64)
    row = decimal_kernels.decimals(*values, precision, scale, out)
    if row >= 0:
        raise _bad(values, row, f"a DECIMAL({precision},{scale})")
    null = _mask(values)
    validity = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(pa.decimal128(precision, scale), count, [validity, pa.py_buffer(out)])


def _decimal_texts(values: Values, precision: int, scale: int) -> pa.Array:
    """Return DECIMALs of more than 38 digits as text. This is Python work per value, but such columns are rare."""
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    found: list[str | None] = []
    for row, each in enumerate(text.utf8_array(*values).to_pylist()):
        try:
            found.append(None if each is None else _scaled(each, scale, context))
        except (ArithmeticError, ValueError) as error:
            raise _bad(values, row, f"a DECIMAL({precision},{scale})") from error
    return pa.array(found, pa.string())


def _scaled(number: str, scale: int, context: Context) -> str:
    """Return a decimal without exponent, with ``scale`` fractional digits.

    Raises: ValueError, ArithmeticError - it is not a decimal, or it has more digits than ``context`` or the scale.
    """
    if _DECIMAL.fullmatch(number) is None:  # Decimal also reads blanks, underscores, NaN and other digits than ASCII
        raise ValueError(number)
    mantissa = Decimal(number)
    # a zero can have an exponent that the context does not have
    exact = mantissa.quantize(Decimal(1).scaleb(-scale), context=context) if mantissa else Decimal((0, (0,), -scale))
    return f"{exact:f}"


def _floats(values: Values, kind: pa.DataType) -> pa.Array:
    single = kind == pa.float32()
    out = np.empty(len(values[1]), np.float32 if single else np.float64)
    powers = value_kernels.FLOAT_POWERS if single else value_kernels.DOUBLE_POWERS
    slow = np.empty(len(out), np.bool_)
    many, row = value_kernels.floats(*values, out, powers, 1 << (24 if single else 53), slow)
    if row >= 0:
        raise _bad(values, row, "a number")
    if many:
        data, starts, lengths = values
        out[slow] = pc.cast(text.utf8_array(data, starts[slow], lengths[slow]), kind).to_numpy()
    return pa.array(out, kind, mask=_mask(values))


def _dates(values: Values) -> tuple[pa.Array, int]:
    out = np.empty(len(values[1]), np.int32)
    valid = np.empty(len(values[1]), np.bool_)
    row, invalid = value_kernels.dates(*values, out, valid)
    if row >= 0:
        raise _bad(values, row, "a date")
    return pa.array(out, pa.date32(), mask=None if valid.all() else ~valid), invalid


def _moments(values: Values, minus_us: int, kind: pa.DataType) -> tuple[pa.Array, int]:
    out = np.empty(len(values[1]), np.int64)
    valid = np.empty(len(values[1]), np.bool_)
    row, invalid = value_kernels.moments(*values, minus_us, out, valid)
    if row >= 0:
        raise _bad(values, row, "a date and time")
    return pa.array(out, kind, mask=None if valid.all() else ~valid), invalid


def _bit_masks(values: Values) -> tuple[np.ndarray, np.ndarray]:
    """Return SET values as bit masks. 64 members need all bits of an unsigned word."""
    out = np.empty((len(values[1]), 2), np.uint64)
    row = decimal_kernels.decimals(*values, 20, 0, out)
    if row >= 0:
        raise _bad(values, row, "a bit mask")
    return out[:, 0].copy(), values[2] >= 0


def _as_bytes(values: Values) -> Values:
    """Return the bytes that Canal sent as characters U+0000 to U+00FF."""
    data, starts, lengths = values
    out = np.empty(int(np.maximum(lengths, 0).sum()), np.uint8)
    new_starts, new_lengths = np.empty_like(starts), np.empty_like(lengths)
    row = value_kernels.latin1_bytes(data, starts, lengths, out, new_starts, new_lengths)
    if row >= 0:
        raise _bad(values, row, "bytes written as Latin-1")
    return out, new_starts, new_lengths


def _json(values: Values) -> pa.Array:
    """Return JSON text. A document without bytes is the server's JSON null."""
    array = text.utf8_array(*values)
    # For a partial update, Canal sends an expression such as JSON_REPLACE(col, '$.a', 1) instead of the document.
    row = _first(pc.starts_with(array, "JSON_"))
    if row is not None:
        raise UnsupportedRowFormat(
            "A JSON value is logged as a change of the earlier value (PARTIAL_JSON).",
            hint=f"Set binlog_row_value_options='' on the server. {GAP_HINT}",
            row=row,
        )
    empty = values[2] == 0
    return pc.if_else(pa.array(empty), "null", array) if empty.any() else array


def _undamaged(values: Values) -> pa.Array:
    """Return text of a charset that Canal reads as UTF-8. Only ASCII characters have the same bytes in both."""
    array = text.utf8_array(*values)
    row = _first(pc.invert(pc.string_is_ascii(array)))
    if row is not None:
        raise DecodeError(
            "Canal has damaged a text that is not ASCII, because it reads every charset as UTF-8.",
            hint=_CHARSET_HINT,
            row=row,
        )
    return array


def _first(mask: pa.Array) -> int | None:
    """Return the first row that is true, or None."""
    row = pc.index(mask, True).as_py()
    return None if row < 0 else int(row)
