"""Write the text of one scalar of MySQL's binary JSON: strings, numbers, decimals, temporal values, base64.

These are parts of the kernel of ``json_text``. A negative result is a fault.

Source: mysql-server sql-common/json_binary.h for the format; the text as MySQL 9.7 prints it.
"""

from __future__ import annotations

import numpy as np

from cdc.mysql.values.arrow_arrays import NOT_UTF8, valid_utf8
from cdc.mysql.values.double_format import put_double, put_unsigned
from cdc.mysql.values.kernels import load_u64, part, store_64

SLACK = 128  # free bytes that the buffer always has for a small write

_MOST_DIGITS = 81  # of a decimal in the server's arithmetic; a column has at most 65, a literal at most 72

FULL = -10  # kernel result: the output buffer is full
BAD = -11  # kernel result: the document is damaged

_ONES = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
WORDS = np.frombuffer(b"nulltruefalse", np.uint8)
_DECIMAL_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], np.int64)  # by number of digits
_SHORT_ESCAPES = np.zeros(32, np.uint8)  # by control character: the letter of its short escape
for _byte, _letter in ((8, "b"), (9, "t"), (10, "n"), (12, "f"), (13, "r")):
    _SHORT_ESCAPES[_byte] = ord(_letter)


@part
def number(data, at, width):  # type: ignore[no-untyped-def]
    """Return the unsigned little-endian number of 2 or 4 bytes at ``at``."""
    value = np.int64(data[at]) | np.int64(data[at + 1]) << 8
    if width == 4:
        value |= np.int64(data[at + 2]) << 16 | np.int64(data[at + 3]) << 24
    return value


@part
def _put_escaped(out, at, byte):  # type: ignore[no-untyped-def]
    if byte == 0x22 or byte == 0x5C:
        out[at] = 0x5C
        out[at + 1] = byte
        return at + 2
    if byte >= 0x20:
        out[at] = byte
        return at + 1
    out[at] = 0x5C
    short = _SHORT_ESCAPES[byte]
    if short:
        out[at + 1] = short
        return at + 2
    out[at + 1] = 0x75
    out[at + 2] = 0x30
    out[at + 3] = 0x30
    out[at + 4] = 0x30 + (byte >> 4)
    out[at + 5] = _HEX[byte & 15]
    return at + 6


@part
def put_string(data, start, length, out, at):  # type: ignore[no-untyped-def]
    """Write ``data[start:start + length]`` in quotes. The range must be inside ``data``."""
    end = start + length
    if at + length + SLACK > out.size:
        return np.int64(FULL)
    out[at] = 0x22
    at += 1
    seen = np.uint64(0)
    position = start
    while position < end:
        if position + 8 <= data.size:
            word = load_u64(data, position)
            left = end - position
            if left < 8:
                # bytes after the end of the string are spaces: they need no escape, and are overwritten later
                mask = (np.uint64(1) << np.uint64(8 * left)) - np.uint64(1)
                word = (word & mask) | (_SPACES & ~mask)
            quotes, slashes = word ^ _QUOTES, word ^ _BACKSLASHES
            special = (word - _SPACES) & ~word
            special |= (quotes - _ONES) & ~quotes
            special |= (slashes - _ONES) & ~slashes
            if not special & _HIGH_BITS:
                store_64(out, at, word)
                seen |= word
                step = min(left, 8)
                at += step
                position += step
                continue
        stop = min(position + 8, end)
        while position < stop:
            seen |= np.uint64(data[position])
            at = _put_escaped(out, at, data[position])
            position += 1
        if at + (end - position) + SLACK > out.size:
            return np.int64(FULL)
    if seen & _HIGH_BITS and not valid_utf8(data, start, end):
        return np.int64(NOT_UTF8)
    out[at] = 0x22
    return at + 1


@part
def _put_padded(out, at, value, width):  # type: ignore[no-untyped-def]
    """Write ``value`` with ``width`` digits and leading zeros."""
    for i in range(width - 1, -1, -1):
        out[at + i] = 0x30 + value % 10
        value //= 10
    return at + width


@part
def _put_decimal(data, at, end, out, to):  # type: ignore[no-untyped-def]
    """Write the opaque decimal in ``data[at:end]``: precision, scale, digits in the format of columns."""
    if end - at < 3:
        return np.int64(BAD)
    precision, scale = np.int64(data[at]), np.int64(data[at + 1])
    whole = precision - scale
    if precision < 1 or precision > _MOST_DIGITS or whole < 0:
        return np.int64(BAD)
    head, tail = whole % 9, scale % 9
    size = _DECIMAL_BYTES[head] + whole // 9 * 4 + scale // 9 * 4 + _DECIMAL_BYTES[tail]
    at += 2
    if end - at != size:
        return np.int64(BAD)
    negative = data[at] < 0x80
    flip = np.int64(0xFF) if negative else np.int64(0)
    if negative:
        out[to] = 0x2D
        to += 1
    top = np.int64(0x80)  # the sign bit is in the first byte
    started = False
    groups = (1 if head else 0) + whole // 9 + scale // 9 + (1 if tail else 0)
    fraction_from = (1 if head else 0) + whole // 9
    for group in range(groups):
        digits = np.int64(9)
        if group == 0 and head:
            digits = head
        elif group == groups - 1 and tail:
            digits = tail
        value = np.int64(0)
        for _ in range(_DECIMAL_BYTES[digits]):
            value = value << 8 | (np.int64(data[at]) ^ flip ^ top)
            top = np.int64(0)
            at += 1
        if value < 0 or value >= 10**digits:
            return np.int64(BAD)
        if group == fraction_from:
            if not started:
                out[to] = 0x30
                to += 1
            out[to] = 0x2E
            to += 1
        if group >= fraction_from:
            to = _put_padded(out, to, value, digits)
        elif started:
            to = _put_padded(out, to, value, 9)
        elif value:
            to = put_unsigned(out, to, np.uint64(value))
            started = True
    if scale == 0 and not started:
        out[to] = 0x30
        to += 1
    return to


@part
def _put_clock(out, to, hours, packed, fraction):  # type: ignore[no-untyped-def]
    to = _put_padded(out, to, hours, 3 if hours > 99 else 2)
    out[to] = 0x3A
    to = _put_padded(out, to + 1, packed >> 6 & 63, 2)
    out[to] = 0x3A
    to = _put_padded(out, to + 1, packed & 63, 2)
    out[to] = 0x2E
    return _put_padded(out, to + 1, fraction, 6)


@part
def _put_temporal(kind, packed, out, to):  # type: ignore[no-untyped-def]
    """Write an opaque DATE (10), TIME (11), DATETIME (12) or TIMESTAMP (7) in quotes."""
    out[to] = 0x22
    to += 1
    if kind == 11 and packed < 0:
        out[to] = 0x2D
        to += 1
        packed = -packed
    fraction = packed & 0xFFFFFF
    whole = packed >> 24
    if packed < 0 or fraction > 999_999:
        return np.int64(BAD)
    if kind == 11:
        hours = whole >> 12
        if hours > 999:
            return np.int64(BAD)
        to = _put_clock(out, to, hours, whole, fraction)
    else:
        day = whole >> 17
        months = day >> 5
        if months // 13 > 9999:
            return np.int64(BAD)
        to = _put_padded(out, to, months // 13, 4)
        out[to] = 0x2D
        to = _put_padded(out, to + 1, months % 13, 2)
        out[to] = 0x2D
        to = _put_padded(out, to + 1, day & 31, 2)
        if kind != 10:
            out[to] = 0x20
            to = _put_clock(out, to + 1, whole >> 12 & 31, whole, fraction)
    out[to] = 0x22
    return to + 1


@part
def _put_base64(data, at, end, kind, out, to):  # type: ignore[no-untyped-def]
    """Write another opaque value as ``base64:type15:...``, with an escaped line feed after every 76 characters."""
    groups = (end - at + 2) // 3
    if to + groups * 4 + groups // 19 * 2 + SLACK > out.size:
        return np.int64(FULL)
    for byte in b'"base64:type':
        out[to] = byte
        to += 1
    to = put_unsigned(out, to, np.uint64(kind))
    out[to] = 0x3A
    to += 1
    for group in range(groups):
        if group and group % 19 == 0:
            out[to] = 0x5C
            out[to + 1] = 0x6E
            to += 2
        left = end - at
        bits = np.int64(data[at]) << 16
        if left > 1:
            bits |= np.int64(data[at + 1]) << 8
        if left > 2:
            bits |= np.int64(data[at + 2])
        out[to] = _BASE64[bits >> 18]
        out[to + 1] = _BASE64[bits >> 12 & 63]
        out[to + 2] = _BASE64[bits >> 6 & 63] if left > 1 else 0x3D
        out[to + 3] = _BASE64[bits & 63] if left > 2 else 0x3D
        at += 3
        to += 4
    out[to] = 0x22
    return to + 1


@part
def _length_at(data, at, limit):  # type: ignore[no-untyped-def]
    """Read a length of 7 bits per byte. Return (length or BAD, the offset after it)."""
    value = np.int64(0)
    for i in range(5):
        if at >= limit:
            return np.int64(BAD), at
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at
    return np.int64(BAD), at


@part
def put_scalar(data, kind, at, limit, out, to):  # type: ignore[no-untyped-def]
    """Write the scalar at ``at``, which must end before ``limit``. Return the offset after its text, or a fault."""
    if kind == 0x0C:
        length, at = _length_at(data, at, limit)
        if length < 0 or length > limit - at:
            return np.int64(BAD)
        return put_string(data, at, length, out, to)
    if kind == 0x04:
        if at >= limit or data[at] > 2:
            return np.int64(BAD)
        literal = data[at]
        first = np.int64(literal) * 4
        for i in range(first, first + (5 if literal == 2 else 4)):
            out[to] = WORDS[i]
            to += 1
        return to
    if kind == 0x0F:
        if at >= limit:
            return np.int64(BAD)
        column = np.int64(data[at])
        length, at = _length_at(data, at + 1, limit)
        if length < 0 or length > limit - at:
            return np.int64(BAD)
        if column == 246:
            return _put_decimal(data, at, at + length, out, to)
        if column == 7 or 10 <= column <= 12:
            if length != 8:
                return np.int64(BAD)
            return _put_temporal(column, np.int64(load_u64(data, at)), out, to)
        return _put_base64(data, at, at + length, column, out, to)
    if kind == 0x05 or kind == 0x06:
        width = 2
    elif kind == 0x07 or kind == 0x08:
        width = 4
    elif 0x09 <= kind <= 0x0B:
        width = 8
    else:
        return np.int64(BAD)
    if limit - at < width:
        return np.int64(BAD)
    if width == 8:
        bits = load_u64(data, at)
        if kind == 0x0B:
            if bits >> np.uint64(52) & np.uint64(0x7FF) == np.uint64(0x7FF):
                return np.int64(BAD)
            return put_double(out, to, bits)
        if kind == 0x0A:
            return put_unsigned(out, to, bits)
        signed = np.int64(bits)
    else:
        signed = number(data, at, width)
        if kind == 0x05 and signed >= 1 << 15:
            signed -= 1 << 16
        elif kind == 0x07 and signed >= 1 << 31:
            signed -= 1 << 32
    if signed < 0:
        out[to] = 0x2D
        return put_unsigned(out, to + 1, np.uint64(0) - np.uint64(signed))
    return put_unsigned(out, to, np.uint64(signed))
