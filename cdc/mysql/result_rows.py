"""Convert rows of a prepared statement to Arrow: one kernel finds the values, one kernel per column converts them.

The result is byte for byte equal to the one of the binlog decoder. Text is sent in the charset of its column and
converted with the same tables. ENUM and SET are sent as numbers and get their labels here.

Source: MySQL manual, "Binary Protocol Resultset"; MySQL source, sql/protocol_classic.cc (Protocol_binary).
"""

# mypy: disable-error-code="return-value,assignment,no-any-return,arg-type"
# (kernels declare Python's int for numpy integers)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc.errors import DecodeError
from cdc.model.schema import Column, Kind
from cdc.mysql.catalog import quoted_column
from cdc.mysql.charsets import Charset
from cdc.mysql.values import numbers, text
from cdc.mysql.values.arrow_arrays import not_null_bits
from cdc.mysql.values.kernels import kernel, load_u16, load_u32, load_u64, store_64
from cdc.mysql.values.times import day_number, microseconds_of, time_text_array

WHOLE, FULL, ENDED, REFUSED, LARGE, BROKEN = range(6)  # how ``find_rows`` ended
STATE_SIZE = 2
AT, LENGTH_CODED, TEMPORAL = 0, 0, -1  # AT: index in the state; the others: values that begin with their length

_LARGEST_PACKET = 0xFFFFFF
_DAMAGED = "The reply was damaged in the network; the job retries automatically."
_WIDTHS = {1: 1, 2: 2, 13: 2, 3: 4, 9: 4, 8: 8, 4: 4, 5: 8}  # TINY, SHORT, YEAR, LONG, INT24, LONGLONG, FLOAT, DOUBLE
_TEMPORAL_TYPES = (7, 10, 11, 12)


def size_of(type_code: int) -> int:
    """Return the size of a result column's values: a number of bytes, LENGTH_CODED or TEMPORAL."""
    return TEMPORAL if type_code in _TEMPORAL_TYPES else _WIDTHS.get(type_code, LENGTH_CODED)


@kernel
def find_rows(data, end, sizes, starts, lengths, rows, whole_until, state):  # type: ignore[no-untyped-def]
    """Find the values of the packets from ``state[0]`` on: fill ``starts`` and ``lengths``, -1 for NULL.

    Return (number of rows, reason of the end). ``whole_until`` > 0: the first packet was joined and ends there.
    """
    columns = sizes.size
    bitmap = (columns + 9) // 8
    at = state[0]
    while True:
        if rows == starts.shape[1]:
            return rows, FULL
        if at + 4 > end:
            return rows, WHOLE
        payload = at + 4
        until = whole_until
        if until <= 0:
            size = np.int64(load_u32(data, at) & np.uint64(0xFFFFFF))
            if size == _LARGEST_PACKET:
                return rows, LARGE
            until = payload + size
            if until > end:
                return rows, WHOLE
        whole_until = 0
        if until - payload < 1:
            return rows, BROKEN
        head = data[payload]
        if head == 0xFE and until - payload < 9:
            return rows, ENDED
        if head == 0xFF:
            return rows, REFUSED
        nulls = payload + 1
        position = nulls + bitmap
        if head != 0 or position > until:
            return rows, BROKEN
        for column in range(columns):
            bit = column + 2
            if (data[nulls + (bit >> 3)] >> (bit & 7)) & 1:
                starts[column, rows] = -1
                lengths[column, rows] = -1
                continue
            length = np.int64(sizes[column])
            if length <= 0:
                if position >= until:
                    return rows, BROKEN
                first = np.int64(data[position])
                position += 1
                if length == TEMPORAL or first < 0xFB:
                    length = first
                elif first == 0xFC:
                    length = np.int64(load_u16(data, position))
                    position += 2
                elif first == 0xFD:
                    length = np.int64(load_u32(data, position) & np.uint64(0xFFFFFF))
                    position += 3
                elif first == 0xFE:
                    length = np.int64(load_u64(data, position))
                    position += 8
                else:
                    return rows, BROKEN
            if length < 0 or length > until - position:
                return rows, BROKEN
            starts[column, rows] = position
            lengths[column, rows] = length
            position += length
        if position != until:
            return rows, BROKEN
        rows += 1
        at = until
        state[0] = at


@kernel
def _integers(data, starts, width, signed, out):  # type: ignore[no-untyped-def]
    shift = np.uint64(64 - 8 * width)
    for row in range(starts.size):
        at = starts[row]
        value = np.int64(0)
        if at >= 0:
            word = load_u64(data, at) << shift
            value = np.int64(word) >> np.int64(shift) if signed else np.int64(word >> shift)
        out[row] = value


@kernel
def _decimals(data, starts, lengths, scale, out):  # type: ignore[no-untyped-def]
    """Convert text to decimal128. Return the first row that is not a number with ``scale`` decimals, or -1."""
    low_half = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    ten = np.uint64(10)
    for row in range(starts.size):
        low = np.uint64(0)
        high = np.uint64(0)
        negative = False
        if lengths[row] >= 0:
            at = starts[row]
            end = at + lengths[row]
            if at < end and data[at] == 0x2D:
                negative = True
                at += 1
            after = np.int64(-1)
            while at < end:
                byte = data[at]
                at += 1
                if byte == 0x2E and after < 0:
                    after = np.int64(0)
                    continue
                digit = np.uint64(byte) - np.uint64(48)
                if digit > np.uint64(9):
                    return row
                if after >= 0:
                    after += 1
                if high == 0 and low < np.uint64(1 << 60):
                    low = low * ten + digit
                    continue
                lower = (low & low_half) * ten + digit
                upper = (low >> half) * ten + (lower >> half)
                low = (upper << half) | (lower & low_half)
                high = high * ten + (upper >> half)
            if max(after, 0) != scale:
                return row
        if negative:
            low = ~low + np.uint64(1)
            high = ~high + (np.uint64(1) if low == 0 else np.uint64(0))
        store_64(out, 16 * row, np.int64(low))
        store_64(out, 16 * row + 8, np.int64(high))
    return -1


@kernel
def _dates(data, starts, lengths, out):  # type: ignore[no-untyped-def]
    """Convert to days since 1970. Dates that do not exist become NULL, as in the decoder."""
    for row in range(starts.size):
        out[row] = 0
        if lengths[row] < 0:
            continue
        days = np.int64(-(1 << 40))
        at = starts[row]
        if lengths[row] >= 4:
            days = day_number(np.int64(load_u16(data, at)), np.int64(data[at + 2]), np.int64(data[at + 3]))
        if days < -(1 << 39):
            lengths[row] = -1
        else:
            out[row] = days


@kernel
def _moments(data, starts, lengths, out):  # type: ignore[no-untyped-def]
    """Convert DATETIME and TIMESTAMP to microseconds since 1970. Values that do not exist become NULL."""
    nothing = np.int64(-(1 << 62)) * 2
    for row in range(starts.size):
        out[row] = 0
        length = lengths[row]
        if length < 0:
            continue
        value = nothing
        at = starts[row]
        if length >= 4:
            hour = minute = second = micro = np.int64(0)
            if length >= 7:
                hour, minute, second = np.int64(data[at + 4]), np.int64(data[at + 5]), np.int64(data[at + 6])
            if length >= 11:
                micro = np.int64(load_u32(data, at + 7))
            year, month, day = np.int64(load_u16(data, at)), np.int64(data[at + 2]), np.int64(data[at + 3])
            value = microseconds_of(year, month, day, hour, minute, second, micro)
        if value == nothing:
            lengths[row] = -1
        else:
            out[row] = value


@kernel
def _times(data, starts, lengths, out):  # type: ignore[no-untyped-def]
    """Convert TIME to signed microseconds."""
    for row in range(starts.size):
        value = np.int64(0)
        at = starts[row]
        if lengths[row] >= 8:
            hours = np.int64(load_u32(data, at + 1)) * 24 + np.int64(data[at + 5])
            value = ((hours * 60 + np.int64(data[at + 6])) * 60 + np.int64(data[at + 7])) * 1_000_000
            if lengths[row] >= 12:
                value += np.int64(load_u32(data, at + 8))
            if data[at]:
                value = -value
        out[row] = value


Make = Callable[[np.ndarray, np.ndarray, np.ndarray], pa.Array]


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """The type of a result column, as the server reports it."""

    type: int
    unsigned: bool

    @property
    def size(self) -> int:
        """See ``size_of``."""
        return size_of(self.type)


def has_odd_labels(column: Column) -> bool:
    """Return whether a label may be wrong: information_schema has ? for characters outside the basic plane."""
    return any("?" in label for label in column.labels)


def selected(column: Column) -> str:
    """Return the SQL expression that selects a column in the form that ``maker`` converts."""
    name = quoted_column(column.name)
    if column.kind is Kind.BIT or (column.kind in (Kind.ENUM, Kind.SET) and not has_odd_labels(column)):
        return f"CAST({name} AS UNSIGNED)"
    if column.kind is Kind.DECIMAL and "zerofill" in column.type:
        return f"CAST({name} AS DECIMAL({column.precision},{column.scale}))"
    return name


_NUMBERS = {
    Kind.TINYINT, Kind.SMALLINT, Kind.MEDIUMINT, Kind.INT, Kind.BIGINT, Kind.FLOAT, Kind.DOUBLE, Kind.BIT, Kind.YEAR,
    Kind.ENUM, Kind.SET,
}  # fmt: skip
_TEMPORALS = {Kind.DATE: (10,), Kind.DATETIME: (12,), Kind.TIMESTAMP: (7,), Kind.TIME: (11,)}


def maker(column: Column, result: ResultColumn) -> Make | None:
    """Return the function that converts a column's values to Arrow; None if the server sends another type."""
    kind, arrow = column.kind, column.arrow
    if kind in _NUMBERS and not (column.labels and result.size == LENGTH_CODED):
        return _number_maker(column, result) if result.size > 0 else None
    if kind in _TEMPORALS:
        return _temporal_maker(column) if result.type in _TEMPORALS[kind] else None
    if result.size != LENGTH_CODED:
        return None
    if kind is Kind.DECIMAL:
        return text.utf8_array if pa.types.is_string(arrow) else lambda *values: _decimal_array(column, *values)
    if kind is Kind.VECTOR:
        return numbers.vector_array
    if pa.types.is_binary(arrow):
        return text.binary_array
    charset = Charset(column.charset or "utf8mb4")
    return lambda data, starts, lengths: text.text_array(data, starts, lengths, charset)


def _number_maker(column: Column, result: ResultColumn) -> Make | None:
    kind, arrow, width = column.kind, column.arrow, result.size
    signed = not result.unsigned and kind not in (Kind.FLOAT, Kind.DOUBLE)
    if kind in (Kind.FLOAT, Kind.DOUBLE) and result.type != (4 if kind is Kind.FLOAT else 5):
        return None

    def make(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.Array:
        values = np.empty(len(starts), np.int64)
        _integers(data, starts, width, signed, values)
        if kind is Kind.ENUM:
            return text.enum_array(values, lengths >= 0, column.labels)
        if kind is Kind.SET:
            return text.set_array(values.view(np.uint64), lengths >= 0, column.labels)
        if pa.types.is_decimal(arrow):
            values = np.stack([values, np.zeros(len(values), np.int64)], axis=1)
        elif arrow.bit_width < 64:
            values = values.astype(f"i{arrow.bit_width // 8}")
        return _fixed(arrow, values, lengths)

    return make


def _temporal_maker(column: Column) -> Make:
    kind, arrow, fsp = column.kind, column.arrow, column.fsp

    def make(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.Array:
        if kind is Kind.DATE:
            days = np.empty(len(starts), np.int32)
            _dates(data, starts, lengths, days)
            return _fixed(arrow, days, lengths)
        values = np.empty(len(starts), np.int64)
        if kind is Kind.TIME:
            _times(data, starts, lengths, values)
            return time_text_array(values, lengths >= 0, fsp)
        _moments(data, starts, lengths, values)
        return _fixed(arrow, values, lengths)

    return make


def _decimal_array(column: Column, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.Array:
    out = np.empty(16 * len(starts), np.uint8)
    row = _decimals(data, starts, lengths, column.scale, out)
    if row >= 0:
        value = data[starts[row] : starts[row] + lengths[row]].tobytes()
        raise DecodeError(f"not a {column.type}: {value!r}", hint=_DAMAGED, column=column.name)
    return _fixed(column.arrow, out, lengths)


def _fixed(arrow: pa.DataType, values: np.ndarray, lengths: np.ndarray) -> pa.Array:
    nulls = int((lengths < 0).sum())
    validity = pa.py_buffer(not_null_bits(lengths)) if nulls else None
    return pa.Array.from_buffers(arrow, len(lengths), [validity, pa.py_buffer(values)], nulls)
