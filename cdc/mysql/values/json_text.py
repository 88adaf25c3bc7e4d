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
from cdc.mysql.values.arrow_arrays import LARGEST, NOT_UTF8, array_of_buffers, fault, measure, too_large
from cdc.mysql.values.json_scalars import BAD, FULL, SLACK, WORDS, number, put_scalar, put_string
from cdc.mysql.values.kernels import kernel, part

_DEEPEST = 128  # levels; the limit of the server is 100
_GROWTH = 8  # longest text per byte of a valid document: 6 bytes for a control character, and punctuation


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
        if to + SLACK > out.size:
            return np.int64(FULL)
        if kind <= 3:
            wide = 4 if kind & 1 else 2
            if depth == _DEEPEST or limit - at < 2 * wide:
                return np.int64(BAD)
            count = number(data, at, wide)
            size = number(data, at + wide, wide)
            is_object = kind < 2
            entries = 2 * wide + count * (1 + wide + (wide + 2 if is_object else 0))
            if size > limit - at or entries > size:
                return np.int64(BAD)
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
            to = put_scalar(data, kind, at, limit, out, to)
            if to < 0:
                return to
            if to + SLACK > out.size:
                return np.int64(FULL)
        while depth and stack[depth - 1, 5] == stack[depth - 1, 4]:
            depth -= 1
            out[to] = 0x7D if stack[depth, 3] else 0x5D
            to += 1
            if to + SLACK > out.size:
                return np.int64(FULL)
        if to > most:
            return np.int64(BAD)
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
            length = number(data, name + wide, 2)
            name = base + number(data, name, wide)
            if name > limit or length > limit - name:
                return np.int64(BAD)
            to = put_string(data, name, length, out, to)
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
            at = base + number(data, at, wide)
            if at >= limit:
                return np.int64(BAD)


@part
def _put_documents(data, starts, lengths, first, offsets, out, stack):  # type: ignore[no-untyped-def]
    """Write documents from row ``first`` on. Return (0 or a fault, its row)."""
    at = np.int64(offsets[first])
    for row in range(first, starts.size):
        length = np.int64(lengths[row])
        if length == 0:  # without strict mode, an INSERT of NULL into a NOT NULL column stores an empty value
            if at + SLACK > out.size:
                return FULL, row
            for i in range(4):
                out[at + i] = WORDS[i]
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
    out = np.empty(total + total // 2 + 32 * len(starts) + 2 * SLACK, np.uint8)
    offsets[0] = 0
    row = 0
    while True:
        code, row = _documents(data, starts, lengths, row, offsets, out)
        if code != FULL:
            break
        if out.size > LARGEST + SLACK:
            raise too_large(row)
        larger = np.empty(min(2 * out.size, LARGEST + 2 * SLACK), np.uint8)
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
