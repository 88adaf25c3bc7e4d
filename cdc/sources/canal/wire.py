"""Parts of kernels that read protobuf's wire format, and hash texts in it. ``kernels`` and ``column_frames`` use them.

Source: Protocol Buffers documentation, "Encoding".
"""

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import inlined, load_u64, part

_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, with about as many ones as zeros
_HALF = np.uint64(32)


@inlined
def read_varint(data, at, end):  # type: ignore[no-untyped-def]
    """Return a number and the offset after it; offset -1: the number does not end before ``end``."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = data[at]
        at += 1
        if shift < np.uint64(64):
            value |= np.uint64(byte & np.uint8(0x7F)) << shift
        if byte < 0x80:
            return np.int64(value), at
        shift += np.uint64(7)
    return np.int64(0), -1


@part
def read_field(data, at, end):  # type: ignore[no-untyped-def]
    """Return the field at ``at``: number, value (start offset if length-delimited), length, offset after it."""
    tag, at = read_varint(data, at, end)
    if at < 0:
        return 0, 0, 0, -1
    number = tag >> 3
    wire = tag & 7
    if wire == 0:
        value, at = read_varint(data, at, end)
        return number, value, 0, at
    if wire == 2:
        length, at = read_varint(data, at, end)
        if at < 0 or length < 0 or length > end - at:
            return 0, 0, 0, -1
        return number, at, length, at + length
    width = 8 if wire == 1 else 4
    if (wire != 1 and wire != 5) or end - at < width:
        return 0, 0, 0, -1
    return number, 0, 0, at + width


@inlined
def mix(value, number):  # type: ignore[no-untyped-def]
    """Return the hash ``value`` of what was hashed before, and ``number``."""
    value = (value ^ number) * _MIX
    return value ^ (value >> _HALF)


@part
def hash_text(data, start, length, value):  # type: ignore[no-untyped-def]
    """Return ``value`` mixed with a text and its length, so that "ab","c" and "a","bc" differ."""
    at = start
    end = start + length
    while at + 8 <= end:
        value = mix(value, load_u64(data, at))
        at += 8
    rest = np.uint64(0)
    while at < end:
        rest = (rest << np.uint64(8)) | np.uint64(data[at])
        at += 1
    return mix(mix(value, rest), np.uint64(length))
