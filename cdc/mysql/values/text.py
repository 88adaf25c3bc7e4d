"""Convert variable-length values to Arrow: text, binary, ENUM and SET, MariaDB's UUID, INET and compressed columns.

Values are ``starts`` (int64) and ``lengths`` (int32, -1 = NULL) in a source buffer. A kernel fills the buffers of the
Arrow arrays. Only compressed columns create a Python object per value, because zlib has no bulk call.

A lone surrogate (``ed a0 80``), which MariaDB stores and MySQL refuses, has no UTF-8 form. It raises an error with the
row, and is never replaced by another character.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from cdc.errors import GAP_HINT, DecodeError
from cdc.mysql.charsets import Charset, transcoded
from cdc.mysql.values.arrow_arrays import (
    LARGEST,
    OUTSIDE,
    SLACK,
    TOO_LARGE,
    array_of_buffers,
    arrow_array,
    fault,
    padded,
    too_large,
)
from cdc.mysql.values.kernels import kernel, part


def utf8_array(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.StringArray:
    """Return UTF-8 text as Arrow. Raises: DecodeError - a value is not UTF-8, or is outside ``data``."""
    return arrow_array(pa.string(), data, starts, lengths)


def text_array(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, charset: Charset) -> pa.StringArray:
    """Return text of any charset as Arrow, converted like the server converts it to utf8mb4.

    Raises: DecodeError - a value is not well-formed in its charset, or is outside ``data``.
    """
    if charset.is_utf8:
        return utf8_array(data, starts, lengths)
    return transcoded(data, starts, lengths, charset)


def binary_array(
    data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, pad_to: int | None = None
) -> pa.BinaryArray:
    """Return bytes as Arrow. ``pad_to``: the width of BINARY(n), because the binlog omits trailing zeros."""
    if not pad_to:
        return arrow_array(pa.binary(), data, starts, lengths)
    if len(starts) * pad_to > LARGEST:
        raise too_large(0)
    out = padded(data, starts, lengths, pad_to)
    offsets = np.arange(len(starts) + 1, dtype=np.int32) * np.int32(pad_to)
    return array_of_buffers(pa.binary(), offsets, out, len(starts) * pad_to, lengths, int((lengths < 0).sum()))


def enum_array(indexes: np.ndarray, valid: np.ndarray, labels: Sequence[str]) -> pa.StringArray:
    """Return the labels of ENUM values. Index 1 is the first label; 0 is "", which MySQL stores for invalid values."""
    beyond = valid & ((indexes < 0) | (indexes > len(labels)))
    if beyond.any():
        raise _unknown_label("ENUM", int(np.argmax(beyond)), int(indexes[np.argmax(beyond)]), labels)
    members = pa.array(["", *labels], pa.string())
    return members.take(pa.array(indexes.astype(np.int32), mask=~valid))


@kernel
def _set_offsets(bitmasks, valid, sizes, offsets):  # type: ignore[no-untyped-def]
    total = np.int64(0)
    offsets[0] = 0
    for row in range(bitmasks.size):
        if valid[row]:
            bits = bitmasks[row]
            if sizes.size < 64 and bits >> np.uint64(sizes.size):
                return OUTSIDE, row
            parts = 0
            for member in range(sizes.size):
                if (bits >> np.uint64(member)) & np.uint64(1):
                    total += sizes[member]
                    parts += 1
            if parts > 1:
                total += parts - 1
            if total > LARGEST:
                return TOO_LARGE, row
        offsets[row + 1] = total
    return total, 0


@kernel
def _set_text(bitmasks, valid, sizes, names, out):  # type: ignore[no-untyped-def]
    at = 0
    for row in range(bitmasks.size):
        if not valid[row]:
            continue
        bits = bitmasks[row]
        first = True
        position = 0
        for member in range(sizes.size):
            if (bits >> np.uint64(member)) & np.uint64(1):
                if not first:
                    out[at] = 0x2C
                    at += 1
                first = False
                for i in range(sizes[member]):
                    out[at] = names[position + i]
                    at += 1
            position += sizes[member]


def set_array(bitmasks: np.ndarray, valid: np.ndarray, labels: Sequence[str]) -> pa.StringArray:
    """Return the labels of SET values in member order, with commas. ``bitmasks``: uint64, bit 0 is the first member."""
    names = [label.encode() for label in labels]
    sizes = np.array([len(name) for name in names], np.int64)
    bitmasks = bitmasks.astype(np.uint64)
    offsets = np.empty(len(bitmasks) + 1, np.int32)
    total, row = _set_offsets(bitmasks, valid, sizes, offsets)
    if total == TOO_LARGE:
        raise too_large(row)
    if total < 0:
        raise _unknown_label("SET", row, int(bitmasks[row]), labels)
    out = np.empty(total + SLACK, np.uint8)
    _set_text(bitmasks, valid, sizes, np.frombuffer(b"".join(names), np.uint8), out)
    present = np.where(valid, np.int32(0), np.int32(-1))
    return array_of_buffers(pa.string(), offsets, out, total, present, int((~valid).sum()))


def _unknown_label(kind: str, row: int, value: int, labels: Sequence[str]) -> DecodeError:
    return DecodeError(
        f"a {kind} value has a number for which its {len(labels)} labels have no entry",
        hint=f"The table was changed after its schema was read. {GAP_HINT}",
        row=row,
        value=value,
    )


_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


@kernel
def _uuid_text(values, row_count, out):  # type: ignore[no-untyped-def]
    at = 0
    for row in range(row_count):
        for i in range(16):
            if i == 4 or i == 6 or i == 8 or i == 10:
                out[at] = 0x2D
                at += 1
            byte = values[row * 16 + i]
            out[at] = _HEX[byte >> 4]
            out[at + 1] = _HEX[byte & 15]
            at += 2


def uuid_array(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.StringArray:
    """Return MariaDB's UUID values as the server prints them: 36 characters, lower case."""
    values = padded(data, starts, lengths, 16)
    out = np.empty(len(starts) * 36, np.uint8)
    _uuid_text(values, len(starts), out)
    offsets = np.arange(len(starts) + 1, dtype=np.int32) * np.int32(36)
    return array_of_buffers(pa.string(), offsets, out, out.size, lengths, int((lengths < 0).sum()))


@part
def _put_quad(values, position, out, at):  # type: ignore[no-untyped-def]
    for i in range(4):
        byte = np.int64(values[position + i])
        if i:
            out[at] = 0x2E
            at += 1
        if byte >= 100:
            out[at] = 0x30 + byte // 100
            at += 1
        if byte >= 10:
            out[at] = 0x30 + byte // 10 % 10
            at += 1
        out[at] = 0x30 + byte % 10
        at += 1
    return at


@kernel
def _inet4_text(values, lengths, offsets, out):  # type: ignore[no-untyped-def]
    at = 0
    offsets[0] = 0
    for row in range(lengths.size):
        if lengths[row] >= 0:
            at = _put_quad(values, row * 4, out, at)
        offsets[row + 1] = at
    return at


@kernel
def _inet6_text(values, lengths, offsets, out):  # type: ignore[no-untyped-def]
    """Write addresses. The longest run of zero groups becomes ``::``, even a run of one; IPv4 forms keep their dots."""
    groups = np.empty(8, np.int64)
    at = 0
    offsets[0] = 0
    for row in range(lengths.size):
        if lengths[row] >= 0:
            position = row * 16
            run = 0
            gap = 8
            gap_length = 0
            for i in range(8):
                groups[i] = np.int64(values[position + 2 * i]) << 8 | np.int64(values[position + 2 * i + 1])
                run = run + 1 if groups[i] == 0 else 0
                if run > gap_length:
                    gap_length = run
                    gap = i + 1 - run
            leading = gap_length if gap == 0 else 0
            dotted = (leading == 6) or (leading == 5 and groups[5] == 0xFFFF)
            i = 0
            while i < 8:
                if i == gap:
                    out[at] = 0x3A
                    at += 1
                    i += gap_length
                    if i == 8:
                        out[at] = 0x3A
                        at += 1
                    continue
                if i:
                    out[at] = 0x3A
                    at += 1
                if dotted and i == 6:
                    at = _put_quad(values, position + 12, out, at)
                    break
                shift = 12
                while shift and not groups[i] >> shift:
                    shift -= 4
                while shift >= 0:
                    out[at] = _HEX[(groups[i] >> shift) & 15]
                    at += 1
                    shift -= 4
                i += 1
        offsets[row + 1] = at
    return at


def inet4_array(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.StringArray:
    """Return MariaDB's INET4 values as the server prints them."""
    values = padded(data, starts, lengths, 4)
    offsets = np.empty(len(starts) + 1, np.int32)
    out = np.empty(len(starts) * 15 + SLACK, np.uint8)
    total = _inet4_text(values, lengths, offsets, out)
    return array_of_buffers(pa.string(), offsets, out, total, lengths, int((lengths < 0).sum()))


def inet6_array(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.StringArray:
    """Return MariaDB's INET6 values as the server prints them, which is not always the shortest form."""
    values = padded(data, starts, lengths, 16)
    offsets = np.empty(len(starts) + 1, np.int32)
    out = np.empty(len(starts) * 45 + SLACK, np.uint8)
    total = _inet6_text(values, lengths, offsets, out)
    return array_of_buffers(pa.string(), offsets, out, total, lengths, int((lengths < 0).sum()))


def uncompress(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Decompress MariaDB's COMPRESSED values. Return a new buffer with starts and lengths, for other functions here.

    It calls zlib once per value in Python: these columns are rare, and inflating takes longer than the loop.
    """
    pieces = []
    new_lengths = lengths.copy()
    for row in np.flatnonzero(lengths > 0):
        start, length = int(starts[row]), int(lengths[row])
        if start < 0 or start + length > data.size:
            raise fault(OUTSIDE, int(row), data, starts, lengths)
        piece = _inflated(data[start : start + length].tobytes(), int(row))
        pieces.append(piece)
        new_lengths[row] = len(piece)
    counted = np.maximum(new_lengths, 0).astype(np.int64)
    return np.frombuffer(b"".join(pieces), np.uint8), np.cumsum(counted) - counted, new_lengths


def _inflated(value: bytes, row: int) -> bytes:
    """Return a decompressed value: after a header byte and the length (big-endian) is a zlib or raw deflate stream."""
    header = value[0]
    if header == 0:
        return value[1:]
    size_bytes = header & 7
    if header >> 4 != 8 or not size_bytes or len(value) < 1 + size_bytes:
        raise _bad_compression(f"an unknown compression header 0x{header:02x}", row)
    size = int.from_bytes(value[1 : 1 + size_bytes], "big")
    if size > LARGEST:
        raise _bad_compression(f"a declared size of {size} bytes", row)
    inflater = zlib.decompressobj(-zlib.MAX_WBITS if header & 8 else zlib.MAX_WBITS)
    try:
        # a limit of one byte more than declared detects a longer stream without inflating all of it
        plain = inflater.decompress(value[1 + size_bytes :], size + 1)
    except zlib.error as error:
        raise _bad_compression(f"a broken stream ({error})", row) from error
    if len(plain) != size:
        raise _bad_compression(f"{len(plain)} bytes where {size} are declared", row)
    return plain


def _bad_compression(what: str, row: int) -> DecodeError:
    return DecodeError(f"a COMPRESSED value has {what}", hint=f"The binlog is damaged. {GAP_HINT}", row=row)
