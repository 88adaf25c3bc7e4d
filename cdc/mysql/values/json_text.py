"""Convert MySQL's binary JSON to the text of the server's ``CAST(column AS CHAR)``.

One kernel reads every document of a column with its own stack, and writes to one buffer. Every offset is checked
against its container. In a damaged document many offsets may point to the same bytes. Therefore the length of the text
is limited to the longest text of a valid document of this size, which also limits the time.

Source: mysql-server sql-common/json_binary.h for the format; the text as MySQL 9.7 prints it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cdc.errors import GAP_HINT, DecodeError
from cdc.mysql.values.arrow_arrays import LARGEST, NOT_UTF8, array_of_buffers, fault, measure, too_large, valid_utf8
from cdc.mysql.values.double_format import put_double, put_unsigned
from cdc.mysql.values.kernels import kernel, load_u64, part, store_64

_DEEPEST = 128  # levels; the limit of the server is 100
_SLACK = 128  # free bytes that the buffer always has for a small write
_GROWTH = 8  # longest text per byte of a valid document: 6 bytes for a control character, and punctuation

_MOST_DIGITS = 81  # of a decimal in the server's arithmetic; a column has at most 65, a literal at most 72

_FULL = -10  # kernel result: the output buffer is full
_BAD = -11  # kernel result: the document is damaged

_ONES = np.uint64(0x0101010101010101)
_HIGH_BITS = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_WORDS = np.frombuffer(b"nulltruefalse", np.uint8)
_DECIMAL_BYTES = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], np.int64)  # by number of digits
_SHORT_ESCAPES = np.zeros(32, np.uint8)  # by control character: the letter of its short escape
for _byte, _letter in ((8, "b"), (9, "t"), (10, "n"), (12, "f"), (13, "r")):
    _SHORT_ESCAPES[_byte] = ord(_letter)


@part
def _number(data, at, width):  # type: ignore[no-untyped-def]
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
def _put_string(data, start, length, out, at):  # type: ignore[no-untyped-def]
    """Write ``data[start:start + length]`` in quotes. The range must be inside ``data``."""
    end = start + length
    if at + length + _SLACK > out.size:
        return np.int64(_FULL)
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
        if at + (end - position) + _SLACK > out.size:
            return np.int64(_FULL)
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
        return np.int64(_BAD)
    precision, scale = np.int64(data[at]), np.int64(data[at + 1])
    whole = precision - scale
    if precision < 1 or precision > _MOST_DIGITS or whole < 0:
        return np.int64(_BAD)
    head, tail = whole % 9, scale % 9
    size = _DECIMAL_BYTES[head] + whole // 9 * 4 + scale // 9 * 4 + _DECIMAL_BYTES[tail]
    at += 2
    if end - at != size:
        return np.int64(_BAD)
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
            return np.int64(_BAD)
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
        return np.int64(_BAD)
    if kind == 11:
        hours = whole >> 12
        if hours > 999:
            return np.int64(_BAD)
        to = _put_clock(out, to, hours, whole, fraction)
    else:
        day = whole >> 17
        months = day >> 5
        if months // 13 > 9999:
            return np.int64(_BAD)
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
    if to + groups * 4 + groups // 19 * 2 + _SLACK > out.size:
        return np.int64(_FULL)
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
    """Read a length of 7 bits per byte. Return (length or _BAD, the offset after it)."""
    value = np.int64(0)
    for i in range(5):
        if at >= limit:
            return np.int64(_BAD), at
        byte = np.int64(data[at])
        at += 1
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at
    return np.int64(_BAD), at


@part
def _put_scalar(data, kind, at, limit, out, to):  # type: ignore[no-untyped-def]
    """Write the scalar at ``at``, which must end before ``limit``. Return the offset after its text, or a fault."""
    if kind == 0x0C:
        length, at = _length_at(data, at, limit)
        if length < 0 or length > limit - at:
            return np.int64(_BAD)
        return _put_string(data, at, length, out, to)
    if kind == 0x04:
        if at >= limit or data[at] > 2:
            return np.int64(_BAD)
        literal = data[at]
        first = np.int64(literal) * 4
        for i in range(first, first + (5 if literal == 2 else 4)):
            out[to] = _WORDS[i]
            to += 1
        return to
    if kind == 0x0F:
        if at >= limit:
            return np.int64(_BAD)
        column = np.int64(data[at])
        length, at = _length_at(data, at + 1, limit)
        if length < 0 or length > limit - at:
            return np.int64(_BAD)
        if column == 246:
            return _put_decimal(data, at, at + length, out, to)
        if column == 7 or 10 <= column <= 12:
            if length != 8:
                return np.int64(_BAD)
            return _put_temporal(column, np.int64(load_u64(data, at)), out, to)
        return _put_base64(data, at, at + length, column, out, to)
    if kind == 0x05 or kind == 0x06:
        width = 2
    elif kind == 0x07 or kind == 0x08:
        width = 4
    elif 0x09 <= kind <= 0x0B:
        width = 8
    else:
        return np.int64(_BAD)
    if limit - at < width:
        return np.int64(_BAD)
    if width == 8:
        bits = load_u64(data, at)
        if kind == 0x0B:
            if bits >> np.uint64(52) & np.uint64(0x7FF) == np.uint64(0x7FF):
                return np.int64(_BAD)
            return put_double(out, to, bits)
        if kind == 0x0A:
            return put_unsigned(out, to, bits)
        signed = np.int64(bits)
    else:
        signed = _number(data, at, width)
        if kind == 0x05 and signed >= 1 << 15:
            signed -= 1 << 16
        elif kind == 0x07 and signed >= 1 << 31:
            signed -= 1 << 32
    if signed < 0:
        out[to] = 0x2D
        return put_unsigned(out, to + 1, np.uint64(0) - np.uint64(signed))
    return put_unsigned(out, to, np.uint64(signed))


@part
def _put_document(data, start, end, out, to, stack):  # type: ignore[no-untyped-def]
    """Write the document ``data[start:end]``. Return the offset after its text, or a fault.

    ``stack`` has a row per open container: first byte, end, large, object, count, next entry.
    """
    most = to + _GROWTH * (end - start) + 64
    depth = 0
    kind = np.int64(data[start])
    at = start + 1
    limit = end
    while True:
        if to + _SLACK > out.size:
            return np.int64(_FULL)
        if kind <= 3:
            wide = 4 if kind & 1 else 2
            if depth == _DEEPEST or limit - at < 2 * wide:
                return np.int64(_BAD)
            count = _number(data, at, wide)
            size = _number(data, at + wide, wide)
            is_object = kind < 2
            entries = 2 * wide + count * (1 + wide + (wide + 2 if is_object else 0))
            if size > limit - at or entries > size:
                return np.int64(_BAD)
            stack[depth, 0] = at
            stack[depth, 1] = at + size
            stack[depth, 2] = wide
            stack[depth, 3] = is_object
            stack[depth, 4] = count
            stack[depth, 5] = 0
            depth += 1
            out[to] = 0x7B if is_object else 0x5B
            to += 1
        else:
            to = _put_scalar(data, kind, at, limit, out, to)
            if to < 0:
                return to
            if to + _SLACK > out.size:
                return np.int64(_FULL)
        while depth and stack[depth - 1, 5] == stack[depth - 1, 4]:
            depth -= 1
            out[to] = 0x7D if stack[depth, 3] else 0x5D
            to += 1
            if to + _SLACK > out.size:
                return np.int64(_FULL)
        if to > most:
            return np.int64(_BAD)
        if depth == 0:
            return to
        base, limit, wide, is_object = (
            stack[depth - 1, 0],
            stack[depth - 1, 1],
            stack[depth - 1, 2],
            stack[depth - 1, 3],
        )
        entry = stack[depth - 1, 5]
        stack[depth - 1, 5] += 1
        if entry:
            out[to] = 0x2C
            out[to + 1] = 0x20
            to += 2
        values = base + 2 * wide
        if is_object:
            name = values + entry * (wide + 2)
            length = _number(data, name + wide, 2)
            name = base + _number(data, name, wide)
            if name > limit or length > limit - name:
                return np.int64(_BAD)
            to = _put_string(data, name, length, out, to)
            if to < 0:
                return to
            out[to] = 0x3A
            out[to + 1] = 0x20
            to += 2
            values += stack[depth - 1, 4] * (wide + 2)
        slot = values + entry * (1 + wide)
        kind = np.int64(data[slot])
        at = slot + 1
        if 4 <= kind <= 6 or (wide == 4 and 7 <= kind <= 8):
            limit = at + wide
        else:
            at = base + _number(data, at, wide)
            if at >= limit:
                return np.int64(_BAD)


@part
def _put_documents(data, starts, lengths, first, offsets, out, stack):  # type: ignore[no-untyped-def]
    """Write documents from row ``first`` on. Return (0 or a fault, its row)."""
    at = np.int64(offsets[first])
    for row in range(first, starts.size):
        length = np.int64(lengths[row])
        if length == 0:  # without strict mode, an INSERT of NULL into a NOT NULL column stores an empty value
            if at + _SLACK > out.size:
                return _FULL, row
            for i in range(4):
                out[at + i] = _WORDS[i]
            at += 4
        elif length > 0:
            end = _put_document(data, starts[row], starts[row] + length, out, at, stack)
            if end < 0:
                return end, row
            at = end
        offsets[row + 1] = at
    return 0, starts.size


@kernel
def _documents(data, starts, lengths, first, offsets, out):  # type: ignore[no-untyped-def]
    stack = np.empty((_DEEPEST, 6), np.int64)
    return _put_documents(data, starts, lengths, first, offsets, out, stack)


def text_array(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.StringArray:
    """Return documents as the text that the server prints. An empty value becomes the JSON value null.

    Raises: DecodeError - a document is damaged, or is outside ``data``; with its row.
    """
    offsets = np.empty(len(starts) + 1, np.int32)
    total, row, nulls = measure(starts, lengths, data.size, offsets)
    if total < 0:
        raise fault(total, row, data, starts, lengths)
    out = np.empty(total + total // 2 + 32 * len(starts) + 2 * _SLACK, np.uint8)
    offsets[0] = 0
    row = 0
    while True:
        code, row = _documents(data, starts, lengths, row, offsets, out)
        if code != _FULL:
            break
        if out.size > LARGEST + _SLACK:
            raise too_large(row)
        larger = np.empty(min(2 * out.size, LARGEST + 2 * _SLACK), np.uint8)
        larger[: offsets[row]] = out[: offsets[row]]
        out = larger
    if code == NOT_UTF8:
        raise fault(NOT_UTF8, row, data, starts, lengths)
    if code < 0:
        raise _damaged(row, data, starts, lengths)
    return array_of_buffers(pa.string(), offsets, out, int(offsets[-1]), lengths, nulls)


def _damaged(row: int, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> DecodeError:
    start, length = int(starts[row]), int(lengths[row])
    return DecodeError(
        "a JSON document that does not follow the binary format",
        hint=f"Update the value in the source (MySQL 5.7 could log damaged documents). {GAP_HINT}",
        row=row,
        length=length,
        bytes=data[start : start + min(length, 24)].tobytes().hex(" "),
    )
