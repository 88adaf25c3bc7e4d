"""Kernels that find values in JSON texts, without a Python object per message or value.

A value is (start, length, kind) in the buffer. Every scan stops at the end of its message: a load of 8 bytes may
read the padding after the last message, and what it finds beyond the end is ignored.

Source: RFC 8259, "The JavaScript Object Notation (JSON) Data Interchange Format".
"""

# mypy: disable-error-code="assignment,possibly-undefined"
# (kernels mix Python's int with numpy integers)

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import kernel, load_u64, part, same_bytes
from cdc.sources.kafka.formats.json_scan import (
    ABSENT,
    ARRAY,
    CUT,
    DEEP,
    ESCAPED,
    FALSE,
    MALFORMED,
    NOT_OBJECT,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    SURROGATE,
    TRAILING,
    TRUE,
    blanks,
    byte_at,
    composite_end,
    scalar,
    string_end,
    unescape,
)

__all__ = [
    "ABSENT",
    "ARRAY",
    "CUT",
    "DEEP",
    "ESCAPED",
    "FALSE",
    "FULL",
    "LISTS",
    "MALFORMED",
    "MEMO",
    "NOT_OBJECT",
    "NULL",
    "NUMBER",
    "OBJECT",
    "ONE",
    "ONE_OR_ABSENT",
    "STRING",
    "SURROGATE",
    "TRAILING",
    "TRUE",
    "bare_values",
    "slice_objects",
    "unescape_values",
]

# inputs of slice_objects
LISTS, ONE, ONE_OR_ABSENT = range(3)

FULL = -1  # result of slice_objects: the arrays have not enough columns for all rows
MEMO = 64  # keys of an object that are compared with those of the object before, besides the requested ones


@kernel
def unescape_values(data, starts, lengths, kinds, out, new_starts, new_lengths):  # type: ignore[no-untyped-def]
    """Copy values to ``out``, without escapes. Return the first row that has half a surrogate pair, or -1."""
    to = 0
    for row in range(starts.size):
        new_starts[row] = to
        size = np.int64(lengths[row])
        new_lengths[row] = lengths[row]
        if size <= 0:
            continue
        if kinds[row] == ESCAPED:
            after = unescape(data, starts[row], size, out, to)
            if after < 0:
                return row
            new_lengths[row] = after - to
            to = after
        else:
            for i in range(size):
                out[to + i] = data[starts[row] + i]
            to += size
    return -1


@part
def _slot_of(data, at, size, escaped, names, name_ends, scratch):  # type: ignore[no-untyped-def]
    """Return the number of the requested name that the key equals, or -1."""
    source = data
    if escaped:
        if size + 8 > scratch.size:  # no requested name is so long
            return np.int64(-1)
        size = unescape(data, at, size, scratch, 0)
        source = scratch
        at = np.int64(0)
    begin = 0
    for slot in range(name_ends.size):
        end = name_ends[slot]
        if end - begin == size and same_bytes(source, at, names, begin, size):
            return np.int64(slot)
        begin = end
    return np.int64(-1)


@part
def _object(data, at, end, names, name_ends, scratch, memo, starts, lengths, kinds, row):  # type: ignore[no-untyped-def]
    """Read the object at ``at`` into column ``row``. Return the offset after it, or a negative fault.

    ``memo`` has key offset, key length, slot, value offset and value length of each key of the object before, because
    the next object has nearly always the same keys, and often the same descriptions of types.
    """
    for slot in range(name_ends.size):
        kinds[slot, row] = ABSENT
        lengths[slot, row] = -1
        starts[slot, row] = at
    number = 0
    at = blanks(data, at + 1, end)
    if at < end and byte_at(data, at) == 0x7D:
        return np.int64(at + 1)
    while True:
        if at >= end:
            return np.int64(-CUT)
        if byte_at(data, at) != 0x22:
            return np.int64(-MALFORMED)
        at += 1
        known = number < memo.shape[0] and memo[number, 1] >= 0
        if known:
            size = memo[number, 1]
            known = (
                at + size < end
                and byte_at(data, at + size) == 0x22
                and same_bytes(data, at, data, memo[number, 0], size)
            )
        if known:
            slot = memo[number, 2]
            close = at + size
        else:
            close, escaped = string_end(data, at, end)
            if close < 0:
                return close
            slot = _slot_of(data, at, close - at, escaped, names, name_ends, scratch)
            if number < memo.shape[0]:
                memo[number, 0] = at
                memo[number, 1] = close - at
                memo[number, 2] = slot
                memo[number, 4] = -1
        at = close + 1
        if at < end and byte_at(data, at) == 0x3A:
            at += 1
        else:
            at = blanks(data, at, end)
            if at >= end:
                return np.int64(-CUT)
            if byte_at(data, at) != 0x3A:
                return np.int64(-MALFORMED)
            at += 1
        at = blanks(data, at, end)
        if at >= end:
            return np.int64(-CUT)
        byte = byte_at(data, at)
        if byte == 0x7B or byte == 0x5B:
            start = at
            kind = OBJECT if byte == 0x7B else ARRAY
            after = np.int64(-1)
            if number < memo.shape[0] and memo[number, 4] > 0:
                size = memo[number, 4]
                if at + size <= end and same_bytes(data, at, data, memo[number, 3], size):
                    after = at + size
            if after < 0:
                after = composite_end(data, at, end)
                if after < 0:
                    return after
                if number < memo.shape[0]:
                    memo[number, 3] = at
                    memo[number, 4] = after - at
            size = after - start
        else:
            after, start, size, kind = scalar(data, at, end)
            if after < 0:
                return after
        if slot >= 0:
            starts[slot, row] = start
            lengths[slot, row] = -1 if kind == NULL else size
            kinds[slot, row] = kind
        at = after
        number += 1
        at = blanks(data, at, end)
        if at >= end:
            return np.int64(-CUT)
        byte = byte_at(data, at)
        if byte == 0x7D:
            return np.int64(at + 1)
        if byte != 0x2C:
            return np.int64(-MALFORMED)
        at = blanks(data, at + 1, end)


@kernel
def slice_objects(  # type: ignore[no-untyped-def]
    data, at, sizes, shape, names, name_ends, starts, lengths, kinds, source, faults
):
    """Find the values of the requested names in JSON texts.

    ``at``, ``sizes``: the texts; a negative size is no text. ``names``: UTF-8 of the names, one after the other, that
    end at ``name_ends``. ``shape``: LISTS - each text is an object or an array of objects; ONE - an object;
    ONE_OR_ABSENT - any JSON value, and all names are absent if it is no object.

    Fills ``starts``, ``lengths`` (-1: null or absent) and ``kinds``, shape (names, rows); ``source``, the number of the
    text of each row; and ``faults`` by text, 0 if there is none. A faulty text has no rows. Return the number of rows,
    or FULL.
    """
    longest = 0
    begin = 0
    for slot in range(name_ends.size):
        longest = max(longest, name_ends[slot] - begin)
        begin = name_ends[slot]
    scratch = np.empty(6 * longest + 16, np.uint8)
    memo = np.empty((name_ends.size + MEMO, 5), np.int64)
    memo[:, 1] = -1
    row = 0
    for number in range(at.size):
        faults[number] = 0
        position = at[number]
        end = position + sizes[number]
        first = row
        if sizes[number] < 0 and shape != ONE_OR_ABSENT:
            continue
        if row >= source.size:
            return FULL
        if sizes[number] >= 3 and load_u64(data, position) & np.uint64(0xFFFFFF) == np.uint64(0xBFBBEF):
            position += 3  # a byte order mark
        position = blanks(data, position, end)
        byte = byte_at(data, position) if position < end else np.int64(0)
        if byte == 0x7B:
            position = _object(data, position, end, names, name_ends, scratch, memo, starts, lengths, kinds, row)
            source[row] = number
            row += 1
        elif shape == ONE_OR_ABSENT:
            for slot in range(name_ends.size):
                kinds[slot, row] = ABSENT
                lengths[slot, row] = -1
                starts[slot, row] = 0
            source[row] = number
            row += 1
            continue
        elif position >= end:
            position = np.int64(-CUT)
        elif byte != 0x5B or shape == ONE:
            position = np.int64(-NOT_OBJECT)
        else:
            position = blanks(data, position + 1, end)
            if position < end and byte_at(data, position) == 0x5D:
                position += 1
            else:
                while True:
                    if position >= end:
                        position = np.int64(-CUT)
                        break
                    if byte_at(data, position) != 0x7B:
                        position = np.int64(-NOT_OBJECT)
                        break
                    if row >= source.size:
                        return FULL
                    position = _object(
                        data, position, end, names, name_ends, scratch, memo, starts, lengths, kinds, row
                    )
                    if position < 0:
                        break
                    source[row] = number
                    row += 1
                    position = blanks(data, position, end)
                    if position >= end:
                        position = np.int64(-CUT)
                        break
                    byte = byte_at(data, position)
                    position += 1
                    if byte == 0x5D:
                        break
                    if byte != 0x2C:
                        position = np.int64(-MALFORMED)
                        break
                    position = blanks(data, position, end)
        if position >= 0 and blanks(data, position, end) < end:
            position = np.int64(-TRAILING)
        if position < 0:
            faults[number] = -position
            row = first
    return row


@kernel
def bare_values(data, at, sizes, starts, lengths, kinds):  # type: ignore[no-untyped-def]
    """Read texts that are JSON texts, numbers or literals; other texts are STRING as they are, objects are ABSENT."""
    for row in range(at.size):
        size = np.int64(sizes[row])
        starts[row] = at[row]
        lengths[row] = -1
        kinds[row] = ABSENT
        if size < 0 or (size and (data[at[row]] == 0x7B or data[at[row]] == 0x5B)):
            continue
        lengths[row] = size
        kinds[row] = STRING
        if size:
            after, start, length, kind = scalar(data, at[row], at[row] + size)
            if after == at[row] + size:
                starts[row] = start
                lengths[row] = -1 if kind == NULL else length
                kinds[row] = kind
