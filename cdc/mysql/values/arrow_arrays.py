"""Copy bytes that are scattered over a source buffer to the contiguous buffers of an Arrow array.

Values are ``starts`` (int64) and ``lengths`` (int32, -1 = NULL) in the source buffer. Every range is checked against
the buffer before it is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from cdc.errors import GAP_HINT, DecodeError
from cdc.mysql.values.kernels import kernel, load_u64, part, prefetch, store_64

SLACK = 8  # bytes after the end of an output buffer, so that whole words can be written
LARGEST = 2**31 - 1  # Arrow's 32-bit offsets

OUTSIDE = -1  # a kernel result below 0 is a fault; the second result is its row
TOO_LARGE = -2
NOT_UTF8 = -3

NOT_UTF8_TEXT = (
    "Text that is not UTF-8",
    f"Correct the value in the source (MariaDB accepts lone surrogates), or omit its column. {GAP_HINT}",
)
_FAULTS = {
    OUTSIDE: ("a value ends after the end of its buffer", f"The binlog is damaged. {GAP_HINT}"),
    TOO_LARGE: (
        "the values of one column in a block exceed 2 GiB",
        "Reduce the batch size of the decoder, so that a block has fewer rows.",
    ),
    NOT_UTF8: NOT_UTF8_TEXT,
}

_AHEAD = 12  # rows to prefetch: a cache miss takes as long as about 12 short copies
_HIGH_BITS = np.uint64(0x8080808080808080)


def fault(code: int, row: int, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> DecodeError:
    """Return the error for a fault of a kernel: the fault, its row, and the first bytes of the value."""
    message, hint = _FAULTS[code]
    start, length = int(starts[row]), int(lengths[row])
    where: dict[str, Any] = {"row": row, "length": length}
    if code != OUTSIDE:
        shown = data[start : start + min(length, 24)].tobytes()
        where["bytes"] = shown.hex(" ") + (" ..." if length > 24 else "")
    return DecodeError(message, hint=hint, **where)


def too_large(row: int) -> DecodeError:
    """Return the error for values that exceed an Arrow array at ``row``."""
    message, hint = _FAULTS[TOO_LARGE]
    return DecodeError(message, hint=hint, row=row)


@kernel
def measure(starts, lengths, size, offsets):  # type: ignore[no-untyped-def]
    """Fill ``offsets``. Return (total bytes or a fault, row of the fault, number of NULLs)."""
    total = np.int64(0)
    nulls = 0
    offsets[0] = 0
    for row in range(starts.size):
        length = np.int64(lengths[row])
        if length < 0:
            nulls += 1
        else:
            start = starts[row]
            if start < 0 or start > size - length:
                return OUTSIDE, row, nulls
            total += length
            if total > LARGEST:
                return TOO_LARGE, row, nulls
        offsets[row + 1] = total
    return total, 0, nulls


@kernel
def not_null_bits(lengths):  # type: ignore[no-untyped-def]
    """Return Arrow's validity bitmap of ``lengths``."""
    bits = np.zeros((lengths.size + 7) // 8, np.uint8)
    for row in range(lengths.size):
        if lengths[row] >= 0:
            bits[row >> 3] |= np.uint8(1 << (row & 7))
    return bits


@part
def valid_utf8(data, start, end):  # type: ignore[no-untyped-def]
    """Return whether ``data[start:end]`` is well-formed: no overlong forms, surrogates or values above U+10FFFF."""
    at = start
    while at < end:
        first = data[at]
        if first < 0x80:
            at += 1
            while at + 8 <= end and not load_u64(data, at) & _HIGH_BITS:
                at += 8
        elif first < 0xC2:
            return False
        elif first < 0xE0:
            if at + 1 >= end or data[at + 1] & 0xC0 != 0x80:
                return False
            at += 2
        elif first < 0xF0:
            if at + 2 >= end:
                return False
            second = data[at + 1]
            if second & 0xC0 != 0x80 or data[at + 2] & 0xC0 != 0x80:
                return False
            if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
                return False
            at += 3
        elif first < 0xF5:
            if at + 3 >= end:
                return False
            second = data[at + 1]
            if second & 0xC0 != 0x80 or data[at + 2] & 0xC0 != 0x80 or data[at + 3] & 0xC0 != 0x80:
                return False
            if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
                return False
            at += 4
        else:
            return False
    return True


@part
def copy_bytes(data, start, length, out, at):  # type: ignore[no-untyped-def]
    """Copy to ``out[at:]``, which must have 8 more bytes at its end. Return the OR of all bytes as a word.

    The source range must be inside ``data``. Near the end of ``data`` single bytes are copied instead of words.
    """
    seen = np.uint64(0)
    done = np.int64(0)
    if start + length + 8 <= data.size:
        while done + 8 <= length:
            word = load_u64(data, start + done)
            store_64(out, at + done, word)
            seen |= word
            done += 8
        if done < length:
            word = load_u64(data, start + done)
            store_64(out, at + done, word)
            seen |= word & ((np.uint64(1) << np.uint64(8 * (length - done))) - np.uint64(1))
        return seen
    while done < length:
        byte = data[start + done]
        out[at + done] = byte
        seen |= np.uint64(byte)
        done += 1
    return seen


@kernel
def _copy_values(data, starts, lengths, offsets, out, utf8):  # type: ignore[no-untyped-def]
    """Copy every value. Return the first row that is not UTF-8, or -1."""
    ahead_until = starts.size - _AHEAD
    for row in range(starts.size):
        if row < ahead_until:
            prefetch(data, starts[row + _AHEAD])
        length = np.int64(lengths[row])
        if length <= 0:
            continue
        start = starts[row]
        seen = copy_bytes(data, start, length, out, np.int64(offsets[row]))
        if utf8 and seen & _HIGH_BITS and not valid_utf8(data, start, start + length):
            return row
    return -1


def array_of_buffers(
    kind: pa.DataType, offsets: np.ndarray, out: np.ndarray, total: int, lengths: np.ndarray, nulls: int
) -> pa.Array:
    """Return an Arrow string or binary array over filled buffers."""
    validity = pa.py_buffer(not_null_bits(lengths)) if nulls else None
    values = pa.py_buffer(out).slice(0, total)
    return pa.Array.from_buffers(kind, len(lengths), [validity, pa.py_buffer(offsets), values], nulls)


def arrow_array(kind: pa.DataType, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.Array:
    """Return the values as an Arrow array of ``kind``: string, with checked UTF-8, or binary. Raises: DecodeError."""
    offsets = np.empty(len(starts) + 1, np.int32)
    total, row, nulls = measure(starts, lengths, data.size, offsets)
    if total < 0:
        raise fault(total, row, data, starts, lengths)
    out = np.empty(total + SLACK, np.uint8)
    row = _copy_values(data, starts, lengths, offsets, out, pa.types.is_string(kind))
    if row >= 0:
        raise fault(NOT_UTF8, row, data, starts, lengths)
    return array_of_buffers(kind, offsets, out, total, lengths, nulls)


@kernel
def _pad(data, starts, lengths, width, out):  # type: ignore[no-untyped-def]
    for row in range(starts.size):
        length = np.int64(lengths[row])
        if length > width:
            return row
        if length > 0:
            start = starts[row]
            if start < 0 or start > data.size - length:
                return row
            out[row * width : row * width + length] = data[start : start + length]
    return -1


def padded(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray:
    """Return a buffer with ``width`` bytes per value. Short values are padded with zeros; NULL is all zeros."""
    out = np.zeros(len(starts) * width + SLACK, np.uint8)
    row = _pad(data, starts, lengths, width, out)
    if row >= 0:
        raise fault(OUTSIDE, row, data, starts, lengths)
    return out
