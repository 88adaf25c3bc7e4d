"""Dates and times: kernels that convert the row values of a column to its Arrow buffer, without time zones.

Zero and invalid dates (2024-00-00, 2023-02-30) have no Arrow value: they become NULL and are counted.

Source: MySQL source, mysys/my_time.cc; days from civil dates after Howard Hinnant, "chrono-Compatible Low-Level Date
Algorithms".
"""

# mypy: disable-error-code="return-value,assignment,no-any-return,arg-type"
# (kernels declare Python's int for numpy integers)

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cdc.mysql.values.kernels import kernel, load_u32, load_u64, part, store_32, store_64, swap_bytes
from cdc.mysql.values.numbers import validity_of

DATE_3, DATETIME_2, TIMESTAMP_2, TIME_2, DATETIME_OLD, TIMESTAMP_OLD, TIME_OLD = range(32, 39)

_MONTH_DAYS = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_SECOND = 1_000_000
_DAY = 86_400 * _SECOND


@part
def day_number(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 in the proleptic Gregorian calendar; -2^40 for an invalid date."""
    if month < 1 or month > 12 or day < 1 or year > 9999 or day > _MONTH_DAYS[month]:
        return np.int64(-(1 << 40))
    if month == 2 and day == 29 and not (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)):
        return np.int64(-(1 << 40))
    shifted = year - (1 if month <= 2 else 0) + 400  # plus 400 years, so that it is positive
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return np.int64((era - 1) * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468)


@part
def microseconds_of(year: int, month: int, day: int, hour: int, minute: int, second: int, micro: int) -> int:
    """Return the microseconds since 1970; -2^63 for an invalid date or time."""
    days = day_number(year, month, day)
    midnight = days * _DAY if days > -(1 << 39) else np.int64(-(1 << 62)) * 2
    return _later(midnight, hour, minute, second, micro)


@part
def _later(midnight: int, hour: int, minute: int, second: int, micro: int) -> int:
    """Return the microseconds since 1970 of a time on the day that begins at ``midnight``; -2^63 if one is invalid."""
    nothing = np.int64(-(1 << 62)) * 2
    if midnight == nothing or hour > 23 or minute > 59 or second > 59 or micro > 999999:
        return nothing
    return midnight + ((hour * 60 + minute) * 60 + second) * _SECOND + micro


@part
def put_date(data: np.ndarray, starts: np.ndarray, count: int, block: np.ndarray, out: int) -> int:
    """Convert DATE to date32. An invalid date becomes NULL in ``starts``. Return the number of invalid dates."""
    bad = 0
    for i in range(count):
        at = starts[i]
        value = np.int64(0)
        if at >= 0:
            word = np.int64(load_u32(data, at) & np.uint64(0xFFFFFF))
            days = day_number(word >> 9, (word >> 5) & 15, word & 31)
            if days < -(1 << 39):
                starts[i] = -1
                bad += 1
            else:
                value = days
        store_32(block, out + 4 * i, value)
    return bad


@part
def put_moment(op: int, fsp: int, data: np.ndarray, starts: np.ndarray, count: int, block: np.ndarray,
               out: int) -> int:  # fmt: skip
    """Convert DATETIME, TIMESTAMP and TIME to (signed) microseconds. See ``put_date``."""
    bad = 0
    fraction_bytes = (fsp + 1) // 2
    fraction_bits = np.uint64(8 * fraction_bytes)
    fraction_mask = (np.uint64(1) << fraction_bits) - np.uint64(1)
    unit = np.int64(1)
    for _ in range(6 - 2 * fraction_bytes):
        unit *= 10
    nothing = np.int64(-(1 << 62)) * 2
    if op == DATETIME_2:
        shift = np.uint64(64) - np.uint64(40) - fraction_bits
    elif op == TIMESTAMP_2:
        shift = np.uint64(64) - np.uint64(32) - fraction_bits
    else:
        shift = np.uint64(64) - np.uint64(24) - fraction_bits
    day = np.int64(-1)  # of the previous value: most values have the same day
    midnight = nothing
    for i in range(count):
        at = starts[i]
        if at < 0:
            store_64(block, out + 8 * i, np.int64(0))
            continue
        word = swap_bytes(load_u64(data, at)) >> shift
        value = nothing
        if op == DATETIME_2:
            micro = np.int64(word & fraction_mask) * unit
            packed = np.int64(word >> fraction_bits) - 0x8000000000
            if packed >= 0:
                if packed >> 17 != day:
                    day = packed >> 17
                    months = packed >> 22
                    midnight = microseconds_of(months // 13, months % 13, day & 31, 0, 0, 0, np.int64(0))
                value = _later(midnight, (packed >> 12) & 31, (packed >> 6) & 63, packed & 63, micro)
        elif op == TIMESTAMP_2:
            micro = np.int64(word & fraction_mask) * unit
            seconds = np.int64(word >> fraction_bits)
            if micro < _SECOND and (seconds or micro):
                value = seconds * _SECOND + micro
        elif op == TIME_2:
            signed = np.int64(word) - (np.int64(0x800000) << np.int64(fraction_bits))
            size = abs(signed)
            packed = size >> np.int64(fraction_bits)
            micro = (size & np.int64(fraction_mask)) * unit
            value = ((packed >> 12) * 3600 + ((packed >> 6) & 63) * 60 + (packed & 63)) * _SECOND + micro
            if signed < 0:
                value = -value
        elif op == DATETIME_OLD:
            number = np.int64(load_u64(data, at))
            if 0 < number < 100000000000000:
                date, time = number // 1000000, number % 1000000
                value = microseconds_of(date // 10000, date // 100 % 100, date % 100,
                                time // 10000, time // 100 % 100, time % 100, np.int64(0))  # fmt: skip
        elif op == TIMESTAMP_OLD:
            seconds = np.int64(load_u32(data, at))
            if seconds:
                value = seconds * _SECOND
        else:
            number = np.int64(load_u32(data, at) & np.uint64(0xFFFFFF))
            number = (number ^ 0x800000) - 0x800000
            size = abs(number)
            value = (size // 10000 * 3600 + size // 100 % 100 * 60 + size % 100) * _SECOND
            if number < 0:
                value = -value
        if value == nothing:
            starts[i] = -1
            bad += 1
            value = np.int64(0)
        store_64(block, out + 8 * i, value)
    return bad


@part
def _put_digits(out: np.ndarray, at: int, number: int, count: int) -> int:
    for position in range(at + count - 1, at - 1, -1):
        out[position] = 48 + number % 10
        number //= 10
    return at + count


@kernel
def _time_text(values: np.ndarray, valid: np.ndarray, fsp: int, out: np.ndarray, offsets: np.ndarray) -> None:
    end = np.int64(0)
    for i in range(values.shape[0]):
        offsets[i] = end
        if not valid[i]:
            continue
        value = values[i]
        if value < 0:
            out[end] = 45
            end += 1
            value = -value
        micro = value % _SECOND
        seconds = value // _SECOND
        hours = seconds // 3600
        end = _put_digits(out, end, hours, 3 if hours > 99 else 2)
        out[end] = 58
        end = _put_digits(out, end + 1, seconds // 60 % 60, 2)
        out[end] = 58
        end = _put_digits(out, end + 1, seconds % 60, 2)
        if fsp:
            out[end] = 46
            for _ in range(6 - fsp):
                micro //= 10
            end = _put_digits(out, end + 1, micro, fsp)
    offsets[values.shape[0]] = end


def time_text_array(values: np.ndarray, valid: np.ndarray, fsp: int) -> pa.StringArray:
    """Return TIME values (signed microseconds) as the server prints them: ``[-]hh:mm:ss`` and ``fsp`` digits.

    Shape: one string per value; NULL if ``valid`` (bool or uint8) is false.
    """
    out = np.empty(len(values) * 18 + 1, np.uint8)
    offsets = np.empty(len(values) + 1, np.int32)
    valid = np.ascontiguousarray(valid, np.uint8)
    _time_text(values, valid, fsp, out, offsets)
    lengths = valid.astype(np.int32) - 1
    return pa.StringArray.from_buffers(
        len(values), pa.py_buffer(offsets), pa.py_buffer(out), validity_of(lengths), int((lengths < 0).sum())
    )
