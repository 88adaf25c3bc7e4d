"""Parts of kernels that find where a JSON value ends. Every scan stops at the end of its message.

Source: RFC 8259, "The JavaScript Object Notation (JSON) Data Interchange Format".
"""

# mypy: disable-error-code="assignment,possibly-undefined"
# (kernels mix Python's int with numpy integers)

from __future__ import annotations

import numpy as np

from cdc.mysql.charsets import put_utf8
from cdc.mysql.values.kernels import inlined, load_u8, load_u64, part, trailing_zeros

# kinds of a value
ABSENT, NULL, STRING, ESCAPED, NUMBER, TRUE, FALSE, OBJECT, ARRAY = range(9)

# faults of a text
MALFORMED, CUT, NOT_OBJECT, TRAILING, DEEP, SURROGATE = range(1, 7)

_ONES = np.uint64(0x0101010101010101)
_HIGH = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_DEPTH = 64  # bits of the stack


@inlined
def byte_at(data, at):  # type: ignore[no-untyped-def]
    """Return the byte at ``at``."""
    return np.int64(load_u8(data, at))


@inlined
def blanks(data, at, end):  # type: ignore[no-untyped-def]
    """Return the offset of the first byte that is no blank, or ``end``."""
    while at < end:
        byte = byte_at(data, at)
        if byte > 0x20 or (byte != 0x20 and byte != 0x0A and byte != 0x0D and byte != 0x09):
            return at
        at += 1
    return at


@part
def _hex4(data, at):  # type: ignore[no-untyped-def]
    """Return the number of four hexadecimal digits, or -1."""
    value = np.int64(0)
    for i in range(4):
        digit = byte_at(data, at + i)
        if 0x30 <= digit <= 0x39:
            digit -= 0x30
        elif 0x41 <= digit <= 0x46:
            digit -= 0x37
        elif 0x61 <= digit <= 0x66:
            digit -= 0x57
        else:
            return np.int64(-1)
        value = value << 4 | digit
    return value


@inlined
def string_end(data, at, end):  # type: ignore[no-untyped-def]
    """Return (offset of the closing quote or a negative fault, whether there are escapes); ``at``: after the quote."""
    escaped = False
    while at < end:
        word = load_u64(data, at)
        quotes = word ^ _QUOTES
        slashes = word ^ _BACKSLASHES
        # The lowest flag of each test is exact: a borrow sets wrong flags only above a right one.
        found = (((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes) | ((word - _SPACES) & ~word)) & _HIGH
        if found == np.uint64(0):
            at += 8
            continue
        at += trailing_zeros(found) >> 3
        if at >= end:
            break
        byte = byte_at(data, at)
        if byte == 0x22:
            return at, escaped
        if byte != 0x5C:
            return np.int64(-MALFORMED), escaped  # a control character
        escaped = True
        if at + 1 >= end:
            break
        byte = byte_at(data, at + 1)
        if byte == 0x75:
            if at + 6 > end:
                break
            if _hex4(data, at + 2) < 0:
                return np.int64(-MALFORMED), escaped
            at += 6
        elif (
            byte == 0x22 or byte == 0x5C or byte == 0x2F or byte == 0x62
            or byte == 0x66 or byte == 0x6E or byte == 0x72 or byte == 0x74
        ):  # fmt: skip
            at += 2
        else:
            return np.int64(-MALFORMED), escaped
    return np.int64(-CUT), escaped


@part
def _digits(data, at, end):  # type: ignore[no-untyped-def]
    while at < end:
        byte = byte_at(data, at)
        if byte < 0x30 or byte > 0x39:
            break
        at += 1
    return at


@part
def _number_end(data, at, end):  # type: ignore[no-untyped-def]
    """Return the offset after a number, or a negative fault."""
    if byte_at(data, at) == 0x2D:
        at += 1
        if at >= end:
            return np.int64(-CUT)
    after = _digits(data, at, end)
    if after == at or (after > at + 1 and byte_at(data, at) == 0x30):
        return np.int64(-MALFORMED)
    at = after
    if at < end and byte_at(data, at) == 0x2E:
        after = _digits(data, at + 1, end)
        if after == at + 1:
            return np.int64(-CUT if after >= end else -MALFORMED)
        at = after
    if at < end and (byte_at(data, at) | 0x20) == 0x65:
        at += 1
        if at < end and (byte_at(data, at) == 0x2B or byte_at(data, at) == 0x2D):
            at += 1
        after = _digits(data, at, end)
        if after == at:
            return np.int64(-CUT if after >= end else -MALFORMED)
        at = after
    return np.int64(at)


@inlined
def scalar(data, at, end):  # type: ignore[no-untyped-def]
    """Read a value that is no object and no array. Return (offset after it or a fault, start, length, kind)."""
    byte = byte_at(data, at)
    if byte == 0x22:
        close, escaped = string_end(data, at + 1, end)
        if close < 0:
            return close, at, np.int64(0), STRING
        return close + 1, at + 1, close - at - 1, (ESCAPED if escaped else STRING)
    if byte == 0x2D or 0x30 <= byte <= 0x39:
        after = _number_end(data, at, end)
        return after, at, after - at, NUMBER
    word = load_u64(data, at)
    if word & np.uint64(0xFFFFFFFF) == np.uint64(0x6C6C756E):
        after, kind = at + 4, NULL
    elif word & np.uint64(0xFFFFFFFF) == np.uint64(0x65757274):
        after, kind = at + 4, TRUE
    elif word & np.uint64(0xFFFFFFFFFF) == np.uint64(0x65736C6166):
        after, kind = at + 5, FALSE
    else:
        return np.int64(-MALFORMED), at, np.int64(0), NULL
    if after > end:
        after = np.int64(-CUT)
    return np.int64(after), at, np.int64(after - at), kind


@part
def composite_end(data, at, end):  # type: ignore[no-untyped-def]
    """Return the offset after the object or array at ``at``, or a negative fault."""
    stack = np.uint64(0)  # the lowest bit: the innermost value is an object
    depth = 0
    first = False
    key = False
    while True:
        at = blanks(data, at, end)
        if at >= end:
            return np.int64(-CUT)
        byte = byte_at(data, at)
        if first and byte == (0x7D if key else 0x5D):
            at += 1
            depth -= 1
            stack >>= np.uint64(1)
        elif key:
            if byte != 0x22:
                return np.int64(-MALFORMED)
            close, _ = string_end(data, at + 1, end)
            if close < 0:
                return close
            at = blanks(data, close + 1, end)
            if at >= end:
                return np.int64(-CUT)
            if byte_at(data, at) != 0x3A:
                return np.int64(-MALFORMED)
            at += 1
            first = False
            key = False
            continue
        elif byte == 0x7B or byte == 0x5B:
            if depth == _DEPTH:
                return np.int64(-DEEP)
            key = byte == 0x7B
            stack = stack << np.uint64(1) | (np.uint64(1) if key else np.uint64(0))
            depth += 1
            first = True
            at += 1
            continue
        else:
            at, _, _, _ = scalar(data, at, end)
            if at < 0:
                return at
        first = False
        while True:
            if depth == 0:
                return np.int64(at)
            at = blanks(data, at, end)
            if at >= end:
                return np.int64(-CUT)
            byte = byte_at(data, at)
            at += 1
            is_object = stack & np.uint64(1) != np.uint64(0)
            if byte == 0x2C:
                key = is_object
                break
            if byte != (0x7D if is_object else 0x5D):
                return np.int64(-MALFORMED)
            depth -= 1
            stack >>= np.uint64(1)


@part
def unescape(data, at, size, out, to):  # type: ignore[no-untyped-def]
    """Write a string without its escapes. Return the offset after it in ``out``, or -1: it has half a pair."""
    end = at + size
    while at < end:
        byte = byte_at(data, at)
        if byte != 0x5C:
            out[to] = byte
            to += 1
            at += 1
            continue
        byte = byte_at(data, at + 1)
        at += 2
        if byte == 0x75:
            code = _hex4(data, at)
            at += 4
            if 0xD800 <= code < 0xE000:
                low = np.int64(0)
                if code < 0xDC00 and at + 6 <= end and byte_at(data, at) == 0x5C and byte_at(data, at + 1) == 0x75:
                    low = _hex4(data, at + 2)
                if low < 0xDC00 or low > 0xDFFF:
                    return -1
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                at += 6
            to = put_utf8(out, to, code)
            continue
        if byte == 0x62:
            byte = np.int64(8)
        elif byte == 0x66:
            byte = np.int64(12)
        elif byte == 0x6E:
            byte = np.int64(10)
        elif byte == 0x72:
            byte = np.int64(13)
        elif byte == 0x74:
            byte = np.int64(9)
        out[to] = byte
        to += 1
    return to
