"""Kernels that parse decimals, without a Python object per value. Arguments: see ``value_kernels``."""

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import inlined, kernel
from cdc.sources.canal.value_kernels import NO_EXPONENT, POWERS, exponent_at, fetch_ahead

_ONES = np.uint64(0xFFFFFFFFFFFFFFFF)
_LOW_HALF = np.uint64(0xFFFFFFFF)


@inlined
def _short_decimal(data, at, end, digits, scale):  # type: ignore[no-untyped-def]
    """Return a plain decimal as a number of its smallest units, or -1: it is longer, or none, or exceeds ``digits``."""
    value = np.uint64(0)
    point = np.int64(-1)  # its offset; -1: there is none yet
    first = at
    while at < end:
        digit = data[at] - np.uint8(0x30)
        if digit <= 9:
            value = value * np.uint64(10) + np.uint64(digit)
        elif data[at] == 0x2E and point < 0:
            point = at
        else:
            return np.int64(-1)
        at += 1
    count = end - first - (point >= 0)
    missing = scale - (end - 1 - point if point >= 0 else 0)
    if count == 0 or missing < 0 or count + missing > 18:
        return np.int64(-1)
    number = np.int64(value * POWERS[missing])
    return number if digits > 18 or number < np.int64(POWERS[digits]) else np.int64(-1)


@inlined
def _decimal_form(data, at, end):  # type: ignore[no-untyped-def]
    """Return the number of digits before the exponent, or -1: the text is not a decimal; then the offset of the point
    or -1, the offset after the digits, and the exponent.
    """
    count = 0
    point = np.int64(-1)
    exponent = np.int64(0)
    while at < end:
        byte = data[at]
        if byte - np.uint8(0x30) <= 9:
            count += 1
        elif byte == 0x2E and point < 0:
            point = at
        else:
            break
        at += 1
    if at < end:
        exponent = exponent_at(data, at, end)
        if exponent == NO_EXPONENT:
            count = -1
    return np.int64(count), point, at, exponent


@inlined
def _appended(low, high, part, count):  # type: ignore[no-untyped-def]
    """Return (low, high) with ``count`` more digits, at most nine, whose number is ``part``."""
    power = POWERS[count]
    first = (low & _LOW_HALF) * power + part  # half words, because a product of whole ones overflows
    second = (low >> np.uint64(32)) * power + (first >> np.uint64(32))
    return (second << np.uint64(32)) | (first & _LOW_HALF), high * power + (second >> np.uint64(32))


@kernel
def decimals(data, starts, lengths, digits, scale, out):  # type: ignore[no-untyped-def]
    """Parse decimals of at most 38 digits to two 64-bit words (low, high), with ``scale`` fractional digits.

    A decimal may have an exponent: Java's BigDecimal.toString() prints zero with 8 fractional digits as ``0E-8``.

    Return -1, or the first row that is not a decimal, has more than ``digits`` digits, or more than ``scale``
    fractional digits that are not zero.
    """
    for row in range(starts.size):
        fetch_ahead(data, starts, row)
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
        if end - at <= 19 and scale <= 18:
            number = _short_decimal(data, at, end, digits, scale)
            if number >= 0:
                out[row, 0] = np.uint64(-number if negative else number)
                out[row, 1] = _ONES if negative and number else np.uint64(0)
                continue
        count, point, at_exponent, exponent = _decimal_form(data, at, end)
        if count < 1:
            return row
        # of all digits, the last ones that the scale has no place for must be zeros; missing ones are zeros
        shift = scale + exponent - (at_exponent - 1 - point if point >= 0 else 0)
        kept = count + min(shift, 0)
        low = np.uint64(0)
        high = np.uint64(0)
        part = np.uint64(0)  # up to nine digits that are not in (high, low) yet
        in_part = 0
        seen = 0
        significant = 0
        while seen < count or (significant and seen < count + shift):
            digit = np.uint8(0)
            if seen < count:
                if at == point:
                    at += 1
                digit = data[at] - np.uint8(0x30)
                at += 1
                if seen >= kept:
                    if digit:
                        return row
                    seen += 1
                    continue
            seen += 1
            if significant or digit:
                significant += 1
                if significant > digits:
                    return row
            part = part * np.uint64(10) + np.uint64(digit)
            in_part += 1
            if in_part == 9:
                low, high = _appended(low, high, part, in_part)
                part = np.uint64(0)
                in_part = 0
        low, high = _appended(low, high, part, in_part)
        if negative:
            low = ~low + np.uint64(1)
            high = ~high + (np.uint64(1) if low == 0 else np.uint64(0))
        out[row, 0] = low
        out[row, 1] = high
    return -1
