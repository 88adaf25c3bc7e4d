"""Kernels that parse the text of Canal's values, without a Python object per value.

``value_parsers`` uses them. Each kernel gets the buffer, and the offset and the length of each value; a negative length
is NULL. The kernels of ``kernels`` find these values and check that they are inside the buffer.
"""

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import inlined, kernel, same_bytes
from cdc.mysql.values.times import day_number, microseconds_of


@kernel
def integers(data, starts, lengths, low, high, out):  # type: ignore[no-untyped-def]
    """Parse decimal integers within [low, high]. Return the first row that is not such a number, or -1."""
    for row in range(starts.size):
        size = lengths[row]
        if size < 0:
            out[row] = 0
            continue
        at = starts[row]
        end = at + size
        negative = size > 0 and data[at] == 0x2D
        if negative:
            at += 1
        if at == end or end - at > 19:
            return row
        value = np.uint64(0)
        while at < end:
            digit = data[at] - np.uint8(0x30)
            if digit > 9:
                return row
            value = value * np.uint64(10) + np.uint64(digit)
            at += 1
        if value > np.uint64(0x7FFFFFFFFFFFFFFF) and not (negative and value == np.uint64(0x8000000000000000)):
            return row
        number = -np.int64(value) if negative else np.int64(value)
        if number < low or number > high:
            return row
        out[row] = number
    return -1


@kernel
def decimals(data, starts, lengths, digits, scale, out):  # type: ignore[no-untyped-def]
    """Parse plain decimals of at most 38 digits to two 64-bit words (low, high), with ``scale`` fractional digits.

    Return -1, or the first row that is not a decimal, has more than ``digits`` digits, or more than ``scale``
    fractional digits that are not zero.
    """
    ten = np.uint64(10)
    low_half = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    for row in range(starts.size):
        out[row, 0] = 0
        out[row, 1] = 0
        size = lengths[row]
        if size < 0:
            continue
        at = starts[row]
        end = at + size
        negative = size > 0 and data[at] == 0x2D
        if negative:
            at += 1
        low = np.uint64(0)
        high = np.uint64(0)
        seen = 0
        after = -1  # digits after the point so far; -1: no point yet
        significant = 0
        while True:
            if at < end:
                byte = data[at]
                at += 1
                if byte == 0x2E and after < 0:
                    after = 0
                    continue
                digit = byte - np.uint8(0x30)
                if digit > 9:
                    return row
                seen += 1
                if after >= 0:
                    if after == scale:
                        if digit != 0:
                            return row
                        continue
                    after += 1
            else:
                if seen == 0:
                    return row
                if after < 0:
                    after = 0
                if after == scale:
                    break
                digit = np.uint8(0)
                after += 1
            if significant or digit:
                significant += 1
                if significant > digits:
                    return row
            # (high, low) * 10 + digit, computed with half words
            first = (low & low_half) * ten + np.uint64(digit)
            second = (low >> half) * ten + (first >> half)
            low = (second << half) | (first & low_half)
            high = high * ten + (second >> half)
        if negative:
            low = ~low + np.uint64(1)
            high = ~high + (np.uint64(1) if low == 0 else np.uint64(0))
        out[row, 0] = low
        out[row, 1] = high
    return -1


@inlined
def _number(data, at, count):  # type: ignore[no-untyped-def]
    """Return the number of ``count`` digits at ``at``, or -1."""
    value = np.int64(0)
    for i in range(at, at + count):
        digit = data[i] - np.uint8(0x30)
        if digit > 9:
            return np.int64(-1)
        value = value * 10 + np.int64(digit)
    return value


@inlined
def _date(data, at):  # type: ignore[no-untyped-def]
    """Return year, month and day of the ten characters at ``at``; year -1: they are not a date."""
    year = _number(data, at, 4)
    month = _number(data, at + 5, 2)
    day = _number(data, at + 8, 2)
    if month < 0 or day < 0 or data[at + 4] != 0x2D or data[at + 7] != 0x2D:
        year = np.int64(-1)
    return year, month, day


@kernel
def dates(data, starts, lengths, out, valid):  # type: ignore[no-untyped-def]
    """Parse dates to days. Return (first row that is not a date or -1, number of zero and invalid dates).

    Zero and invalid dates become NULL: ``valid`` is False.
    """
    invalid = 0
    for row in range(starts.size):
        out[row] = 0
        valid[row] = False
        if lengths[row] < 0:
            continue
        if lengths[row] != 10:
            return row, invalid
        year, month, day = _date(data, starts[row])
        if year < 0:
            return row, invalid
        days = day_number(year, month, day)
        if days < -(1 << 39):
            invalid += 1
            continue
        out[row] = days
        valid[row] = True
    return -1, invalid


@kernel
def moments(data, starts, lengths, minus_us, out, valid):  # type: ignore[no-untyped-def]
    """Parse ``YYYY-MM-DD HH:MM:SS[.f]`` to microseconds, minus ``minus_us``. Return as ``dates``."""
    invalid = 0
    day_at = np.int64(-1)  # of the previous date: most values have the same day
    midnight = np.int64(0)
    for row in range(starts.size):
        out[row] = 0
        valid[row] = False
        size = lengths[row]
        if size < 0:
            continue
        at = starts[row]
        if size < 19 or size > 26 or size == 20 or data[at + 10] != 0x20:
            return row, invalid
        if day_at < 0 or not same_bytes(data, at, data, day_at, 10):
            year, month, day = _date(data, at)
            if year < 0:
                return row, invalid
            midnight = np.int64(microseconds_of(year, month, day, 0, 0, 0, np.int64(0)))
            day_at = at
        hour = _number(data, at + 11, 2)
        minute = _number(data, at + 14, 2)
        second = _number(data, at + 17, 2)
        if hour < 0 or minute < 0 or second < 0 or data[at + 13] != 0x3A or data[at + 16] != 0x3A:
            return row, invalid
        micros = np.int64(0)
        if size > 19:
            digits = size - 20
            micros = _number(data, at + 20, digits)
            if data[at + 19] != 0x2E or micros < 0:
                return row, invalid
            for _ in range(6 - digits):
                micros *= 10
        if midnight < -(1 << 62) or hour > 23 or minute > 59 or second > 59:
            invalid += 1
            continue
        out[row] = midnight + ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros - minus_us
        valid[row] = True
    return -1, invalid


@kernel
def latin1_bytes(data, starts, lengths, out, new_starts, new_lengths):  # type: ignore[no-untyped-def]
    """Convert UTF-8 characters up to U+00FF to single bytes. Return the first row with another character, or -1."""
    position = 0
    for row in range(starts.size):
        new_starts[row] = position
        size = lengths[row]
        new_lengths[row] = size
        if size < 0:
            continue
        at = starts[row]
        end = at + size
        while at < end:
            byte = data[at]
            if byte < 0x80:
                at += 1
            else:
                if (byte != 0xC2 and byte != 0xC3) or at + 1 >= end or data[at + 1] & 0xC0 != 0x80:
                    return row
                byte = np.uint8((byte << 6) & 0xC0) | (data[at + 1] & np.uint8(0x3F))
                at += 2
            out[position] = byte
            position += 1
        new_lengths[row] = position - new_starts[row]
    return -1


@kernel
def differing(data, starts, lengths, other_starts, other_lengths, compared, out):  # type: ignore[no-untyped-def]
    """Set ``out`` for the rows, among those of ``compared``, in which two values have different bytes."""
    for row in range(starts.size):
        if not compared[row]:
            continue
        size = np.int64(lengths[row])
        same = size == other_lengths[row]
        if not same or (size > 0 and not same_bytes(data, starts[row], data, other_starts[row], size)):
            out[row] = True


DOUBLE_POWERS = 10.0 ** np.arange(23)  # powers of ten that are exact in the type
FLOAT_POWERS = DOUBLE_POWERS[:11].astype(np.float32)


@kernel
def floats(data, starts, lengths, out, powers, exact, slow):  # type: ignore[no-untyped-def]
    """Parse numbers to ``out``, which is float32 or float64. ``powers``: powers of ten that are exact in its type.

    A number of at most ``exact`` whole units with a power in ``powers`` needs one multiplication or division, which
    rounds correctly. Other rows are set in ``slow``. Return (number of these, first row that is no number or -1).
    """
    many = 0
    for row in range(starts.size):
        out[row] = 0
        slow[row] = False
        size = np.int64(lengths[row])
        if size < 0:
            continue
        at = starts[row]
        end = at + size
        negative = size > 0 and data[at] == 0x2D
        if negative:
            at += 1
        value = np.int64(0)
        digits = 0
        scale = 0
        point = False
        while at < end:
            byte = np.int64(data[at])
            if byte == 0x2E and not point:
                point = True
            elif 0x30 <= byte <= 0x39:
                digits += 1
                if value <= exact:
                    value = value * 10 + (byte - 0x30)
                    scale += point
                else:
                    slow[row] = True
            else:
                break
            at += 1
        if digits == 0:
            return many, row
        power = np.int64(0)
        if at < end:
            if data[at] | 0x20 != 0x65:
                return many, row
            at += 1
            minus = at < end and data[at] == 0x2D
            if at < end and (minus or data[at] == 0x2B):
                at += 1
            if at >= end or end - at > 6:
                return many, row
            while at < end:
                byte = np.int64(data[at])
                if byte < 0x30 or byte > 0x39:
                    return many, row
                power = power * 10 + (byte - 0x30)
                at += 1
            if minus:
                power = -power
        power -= scale
        if slow[row] or value > exact or power >= powers.size or -power >= powers.size:
            slow[row] = True
            many += 1
            continue
        out[row] = value
        if power < 0:
            out[row] = out[row] / powers[-power]
        else:
            out[row] = out[row] * powers[power]
        if negative:
            out[row] = -out[row]
    return many, -1
