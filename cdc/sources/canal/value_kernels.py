"""Kernels that parse the text of Canal's values, without a Python object per value.

``value_parsers`` uses them. Each kernel gets the buffer, and the offset and the length of each value; a negative length
is NULL. The kernels of ``kernels`` find these values and check that they are inside the buffer.
"""

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import inlined, kernel, load_u64, prefetch, same_bytes
from cdc.mysql.values.times import day_number, microseconds_of

_AHEAD = 12  # rows to prefetch, because each value of another row costs a cache miss
_ZEROS = np.uint64(0x3030303030303030)  # eight characters "0"
_TO_HIGH_BIT = np.uint64(0x7676767676767676)  # added to bytes: those above 9 get their high bit
_HIGH_BITS = np.uint64(0x8080808080808080)
_TIME = np.uint64(0x30303A30303A3030)  # "00:00:00"
_COLONS = np.uint64(0x0000FF0000FF0000)  # its third and its sixth byte
_BYTE = np.uint64(0xFF)
POWERS = 10 ** np.arange(19, dtype=np.uint64)
NO_EXPONENT = np.int64(1 << 40)


@inlined
def exponent_at(data, at, end):  # type: ignore[no-untyped-def]
    """Return the number in an exponent such as ``e-8`` at ``at``, which is before ``end``; ``NO_EXPONENT``: it is none.

    It has at most six digits.
    """
    minus = at + 1 < end and data[at + 1] == 0x2D
    first = at + 2 if minus or (at + 1 < end and data[at + 1] == 0x2B) else at + 1
    if data[at] | 0x20 != 0x65 or first >= end or end - first > 6:
        return NO_EXPONENT
    number = np.int64(0)
    for digit_at in range(first, end):
        digit = np.int64(data[digit_at]) - 0x30
        if digit < 0 or digit > 9:
            return NO_EXPONENT
        number = number * 10 + digit
    return -number if minus else number


@inlined
def fetch_ahead(data, starts, row):  # type: ignore[no-untyped-def]
    """Prefetch the value of a later row."""
    if row + _AHEAD < starts.size:
        prefetch(data, starts[row + _AHEAD])


@inlined
def _number(data, at, count):  # type: ignore[no-untyped-def]
    """Return the number of the digits at ``at``, 1 to 8 of them, or -1."""
    end = at + count
    if count < 4 or end < 8:
        value = np.int64(0)
        for i in range(at, end):
            digit = data[i] - np.uint8(0x30)
            if digit > 9:
                return np.int64(-1)
            value = value * 10 + np.int64(digit)
        return value
    # The word ends with the last digit, in its highest byte. The bytes before the first digit become zero.
    before = np.uint64(64 - 8 * count)
    word = ((load_u64(data, end - 8) ^ _ZEROS) >> before) << before
    if ((word + _TO_HIGH_BIT) | word) & _HIGH_BITS:
        return np.int64(-1)
    # pairs of digits, then of pairs, then of fours
    word = (word * np.uint64(10) + (word >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    word = (word * np.uint64(100) + (word >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    word = (word * np.uint64(10000) + (word >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return np.int64(word)


@kernel
def integers(data, starts, lengths, low, high, out):  # type: ignore[no-untyped-def]
    """Parse decimal integers within [low, high]. Return the first row that is not such a number, or -1."""
    for row in range(starts.size):
        fetch_ahead(data, starts, row)
        size = np.int64(lengths[row])
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
            count = min(end - at, 8)
            digits = _number(data, at, count)
            if digits < 0:
                return row
            value = value * POWERS[count] + np.uint64(digits)
            at += count
        if value > np.uint64(0x7FFFFFFFFFFFFFFF) and not (negative and value == np.uint64(0x8000000000000000)):
            return row
        number = -np.int64(value) if negative else np.int64(value)
        if number < low or number > high:
            return row
        out[row] = number
    return -1


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
        fetch_ahead(data, starts, row)
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
        fetch_ahead(data, starts, row)
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
        time = load_u64(data, at + 11) ^ _TIME  # every digit is now a byte
        if (((time + _TO_HIGH_BIT) | time) & _HIGH_BITS) | (time & _COLONS):
            return row, invalid
        pairs = time * np.uint64(10) + (time >> np.uint64(8))
        hour = np.int64(pairs & _BYTE)
        minute = np.int64((pairs >> np.uint64(24)) & _BYTE)
        second = np.int64((pairs >> np.uint64(48)) & _BYTE)
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
        fetch_ahead(data, starts, row)
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
            power = exponent_at(data, at, end)
            if power == NO_EXPONENT:
                return many, row
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
