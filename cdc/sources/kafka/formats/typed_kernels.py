"""Kernels that parse values of plain JSON and of Debezium: base64, moments in ISO 8601, blanks of JSON texts.

Each kernel gets the buffer, and offset and length of each value; a negative length is NULL.

Source: RFC 4648; ISO 8601; Debezium documentation, "Temporal types" and "Decimal types".
"""

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import kernel, part
from cdc.mysql.values.times import day_number, microseconds_of


def _base64_table() -> np.ndarray:
    table = np.full(256, 255, np.uint8)
    for value, letter in enumerate(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):
        table[letter] = value
    return table


_BASE64 = _base64_table()


@kernel
def base64_bytes(data, starts, lengths, out, new_starts, new_lengths):  # type: ignore[no-untyped-def]
    """Convert base64 with padding to bytes. Return the first row that is not base64, or -1."""
    to = 0
    for row in range(starts.size):
        new_starts[row] = to
        size = np.int64(lengths[row])
        new_lengths[row] = size
        if size < 0:
            continue
        if size & 3:
            return row
        at = starts[row]
        for group in range(0, size, 4):
            padding = 0
            if group + 4 == size and data[at + group + 3] == 0x3D:
                padding = 2 if data[at + group + 2] == 0x3D else 1
            word = np.int64(0)
            for i in range(4):
                value = np.int64(0)
                if i < 4 - padding:
                    value = np.int64(_BASE64[data[at + group + i]])
                    if value > 63:
                        return row
                word = word << 6 | value
            if word & ((1 << 8 * padding) - 1):
                return row
            for i in range(3 - padding):
                out[to] = (word >> (16 - 8 * i)) & 0xFF
                to += 1
        new_lengths[row] = to - new_starts[row]
    return -1


@kernel
def big_endian_words(data, starts, lengths, out):  # type: ignore[no-untyped-def]
    """Read two's complement numbers of 1 to 16 bytes to (low, high) words. Return the first other row, or -1."""
    for row in range(starts.size):
        low = np.uint64(0)
        high = np.uint64(0)
        size = np.int64(lengths[row])
        if size == 0 or size > 16:
            return row
        if size > 0:
            at = starts[row]
            if data[at] & 0x80:
                low = ~low
                high = ~high
            for i in range(size):
                high = high << np.uint64(8) | low >> np.uint64(56)
                low = low << np.uint64(8) | np.uint64(data[at + i])
        out[row, 0] = low
        out[row, 1] = high
    return -1


@kernel
def little_endian_words(data, starts, lengths, bits, out):  # type: ignore[no-untyped-def]
    """Read unsigned numbers of at most ``bits`` bits. Return the first row that has more, or -1."""
    for row in range(starts.size):
        value = np.uint64(0)
        for i in range(lengths[row]):
            byte = np.uint64(data[starts[row] + i])
            if i > 7:
                if byte:
                    return row
                continue
            value |= byte << np.uint64(8 * i)
        if bits < 64 and value >> np.uint64(bits):
            return row
        out[row] = value
    return -1


@part
def _digits(data, at, count):  # type: ignore[no-untyped-def]
    value = np.int64(0)
    for i in range(at, at + count):
        digit = np.int64(data[i]) - 0x30
        if digit < 0 or digit > 9:
            return np.int64(-1)
        value = value * 10 + digit
    return value


@part
def _zone(data, at, end):  # type: ignore[no-untyped-def]
    """Return the microseconds of a zone ``Z``, ``+hh:mm``, ``+hhmm`` or ``+hh``; 2^62: it is none of these."""
    wrong = np.int64(1 << 62)
    size = end - at
    if size == 1 and (data[at] == 0x5A or data[at] == 0x7A):
        return np.int64(0)
    if (size != 3 and size != 5 and size != 6) or (data[at] != 0x2B and data[at] != 0x2D):
        return wrong
    if size == 6 and data[at + 3] != 0x3A:
        return wrong
    hours = _digits(data, at + 1, 2)
    minutes = np.int64(0) if size == 3 else _digits(data, end - 2, 2)
    if hours < 0 or hours > 18 or minutes < 0 or minutes > 59:
        return wrong
    micros = (hours * 60 + minutes) * 60_000_000
    return -micros if data[at] == 0x2D else micros


@kernel
def iso_moments(data, starts, lengths, zones, minus_us, out, valid):  # type: ignore[no-untyped-def]
    """Parse ``YYYY-MM-DD[T ]HH:MM[:SS[.f]][zone]`` to microseconds. At most nine digits follow the point.

    ``zones``: whether a zone is allowed; a moment without a zone is ``minus_us`` later than UTC. Digits after the sixth
    must be zero. Zero and invalid dates become NULL: ``valid`` is False. Return (first row that is no moment or -1,
    number of zero and invalid dates).
    """
    invalid = 0
    for row in range(starts.size):
        out[row] = 0
        valid[row] = False
        size = np.int64(lengths[row])
        if size < 0:
            continue
        at = starts[row]
        end = at + size
        if size < 16 or (data[at + 10] != 0x54 and data[at + 10] != 0x20):
            return row, invalid
        year, month, day = _digits(data, at, 4), _digits(data, at + 5, 2), _digits(data, at + 8, 2)
        hour, minute = _digits(data, at + 11, 2), _digits(data, at + 14, 2)
        if year < 0 or month < 0 or day < 0 or hour < 0 or minute < 0:
            return row, invalid
        if data[at + 4] != 0x2D or data[at + 7] != 0x2D or data[at + 13] != 0x3A:
            return row, invalid
        at += 16
        second = np.int64(0)
        micro = np.int64(0)
        if at < end and data[at] == 0x3A:
            second = _digits(data, at + 1, 2) if end - at > 2 else np.int64(-1)
            if second < 0:
                return row, invalid
            at += 3
            if at < end and data[at] == 0x2E:
                at += 1
                digits = 0
                while at < end and 0x30 <= data[at] <= 0x39:
                    if digits < 6:
                        micro = micro * 10 + (np.int64(data[at]) - 0x30)
                    elif digits > 8 or data[at] != 0x30:
                        return row, invalid
                    digits += 1
                    at += 1
                if digits == 0:
                    return row, invalid
                for _ in range(digits, 6):
                    micro *= 10
        shift = np.int64(minus_us)
        if at < end:
            if not zones:
                return row, invalid
            shift = _zone(data, at, end)
            if shift == np.int64(1 << 62):
                return row, invalid
        moment = microseconds_of(year, month, day, hour, minute, second, micro)
        if moment < -(1 << 62):
            if hour > 23 or minute > 59 or second > 59:
                return row, invalid
            invalid += 1
            continue
        out[row] = moment - shift
        valid[row] = True
    return -1, invalid


@kernel
def spaced_json(data, starts, lengths, out, new_starts, new_lengths):  # type: ignore[no-untyped-def]
    """Copy JSON texts without blanks, with one blank after each comma and colon, as MySQL prints documents.

    ``out`` must have twice the bytes of the values.
    """
    to = 0
    for row in range(starts.size):
        new_starts[row] = to
        size = np.int64(lengths[row])
        new_lengths[row] = size
        if size < 0:
            continue
        inside = False
        skip = False
        for at in range(starts[row], starts[row] + size):
            byte = data[at]
            if inside:
                if skip:
                    skip = False
                elif byte == 0x5C:
                    skip = True
                elif byte == 0x22:
                    inside = False
            elif byte == 0x22:
                inside = True
            elif byte == 0x20 or byte == 0x0A or byte == 0x0D or byte == 0x09:
                continue
            out[to] = byte
            to += 1
            if not inside and (byte == 0x2C or byte == 0x3A):
                out[to] = 0x20
                to += 1
        new_lengths[row] = to - new_starts[row]


@kernel
def days_in_range(days):  # type: ignore[no-untyped-def]
    """Return the first row whose number of days since 1970 is not from year 0 to 9999, or -1."""
    low = day_number(0, 1, 1)
    high = day_number(9999, 12, 31)
    for row in range(days.size):
        if days[row] < low or days[row] > high:
            return row
    return -1
