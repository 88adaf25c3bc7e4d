"""Kernels that walk over row images and record the offset of each value, one chunk of rows at a time.

``columns`` calls them and converts the values. Never: reads outside the buffer. Every length is checked against the
event's end before the bytes after it are read. A load of a whole word may read slack bytes after the buffer.
"""

# mypy: disable-error-code="return-value,assignment,no-any-return,arg-type"
# (kernels use numpy's numbers where Python's are declared)

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import inlined, kernel, load_u32, load_u64, part, peek, poke, same_bytes, trailing_zeros
from cdc.sources.binlog.decoder.event_fields import read_pint
from cdc.sources.binlog.decoder.framing import BITMAPS_AT, COLUMNS, END, KIND
from cdc.sources.binlog.decoder.row_layout import (
    BAD_BITMAP,
    BIT,
    BYTES,
    COLUMN,
    DISTANCE,
    DOCUMENT,
    EARLIER,
    EVENT,
    FAULT,
    FIRST,
    FROM,
    LAST,
    MASK,
    NO_BASE,
    NULL_BIT,
    NULL_WORD,
    OFFSET,
    OFFSETS,
    OP,
    OVERRUN,
    PREFIX,
    SOURCE,
    VARIABLE_OFFSET,
    WORD,
)

PARTIAL_UPDATE = 39  # the event's type
ABSENT_COLUMN = -(1 << 40)


@inlined
def _missing(bits: int, widths: np.ndarray, word: int) -> int:
    """Return the size of the columns whose ``bits`` are set: a NULL has no bytes in the image."""
    size = np.int64(0)
    while bits:
        size += peek(widths, 64 * word + trailing_zeros(bits))
        bits &= bits - np.uint64(1)
    return size


@inlined
def walk_image(data: np.ndarray, at: int, end: int, steps: np.ndarray, widths: np.ndarray, offsets: np.ndarray,
          sizes: np.ndarray, words: np.ndarray, width: int, row: int) -> int:  # fmt: skip
    """Record the offsets of the groups and the variable values of one complete image, and its null bits.

    Return the offset after the image, or -1 - column if that column exceeds the event.
    """
    bits_at = at
    count = widths.shape[0]
    at += (count + 7) >> 3
    if at > end:
        return np.int64(-1)
    loaded = np.int64(-1)
    word = np.uint64(0)
    for step in range(steps.shape[0]):
        if steps[step, WORD] != loaded:
            loaded = steps[step, WORD]
            word = load_u64(data, bits_at + 8 * loaded)
            poke(words, loaded * width + row, np.int64(word))
        poke(offsets, steps[step, OFFSET] + row, at)
        at += steps[step, BYTES]
        absent = word & np.uint64(steps[step, MASK])
        if absent:
            at -= _missing(absent, widths, loaded)
        prefix = steps[step, PREFIX]
        if at > end:
            return np.int64(-1 - steps[step, COLUMN])
        if prefix:
            own = steps[step, VARIABLE_OFFSET] + row
            if word & np.uint64(steps[step, BIT]):
                poke(offsets, own, np.int64(-1))
                poke(sizes, own, np.int64(-1))
            else:
                # May read 4 slack bytes after the buffer. A length that is cut off leads to an offset after ``end``.
                length = np.int64(load_u32(data, at)) & ((np.int64(1) << (8 * prefix)) - 1)
                at += prefix
                poke(offsets, own, at)
                poke(sizes, own, length)
                at += length
                if at > end:
                    return np.int64(-1 - steps[step, LAST])
    return np.int64(at)


@part
def walk_sparse_image(data: np.ndarray, at: int, end: int, present_at: int, reads: np.ndarray, widths: np.ndarray,
                 json_columns: np.ndarray, partial_at: int, documents: np.ndarray, control: np.ndarray,
                 offsets: np.ndarray, sizes: np.ndarray, width: int, row: int) -> int:  # fmt: skip
    """Record the offset of every requested value of an image that may lack columns or have JSON differences.

    JSON differences (``partial_at`` >= 0) were applied before: the next of ``documents`` (start, length) is the value.
    Return the offset after the image; -1 - column if that column exceeds the event; -2^40 - column if it is absent.
    """
    count = widths.shape[0]
    present = 0
    for column in range(count):
        present += data[present_at + (column >> 3)] >> (column & 7) & 1
    bits_at = at
    at += (present + 7) >> 3
    if at > end:
        return np.int64(-1)
    offset = 0
    json_offset = -1
    for column in range(count):
        needed = reads[column]
        own = needed * width + row
        if json_columns[column]:
            json_offset += 1
        if not data[present_at + (column >> 3)] >> (column & 7) & 1:
            if needed >= 0:
                return np.int64(ABSENT_COLUMN - column)
            continue
        is_null = data[bits_at + (offset >> 3)] >> (offset & 7) & 1
        offset += 1
        if is_null:
            if needed >= 0:
                offsets[own] = -1
                sizes[own] = -1
            continue
        length = widths[column]
        if length < 0:
            prefix = -length
            if at + prefix > end:
                return np.int64(-1 - column)
            length = np.int64(load_u32(data, at)) & ((np.int64(1) << (8 * prefix)) - 1)
            at += prefix
        if needed >= 0:
            offsets[own] = at
            sizes[own] = length
        at += length
        if at > end:
            return np.int64(-1 - column)
        if json_columns[column] and partial_at >= 0 and needed >= 0:  # noqa: SIM102 (bits exist for JSON columns only)
            if data[partial_at + (json_offset >> 3)] >> (json_offset & 7) & 1:
                if control[DOCUMENT] >= documents.shape[0]:
                    return np.int64(-1 - column)
                offsets[own] = documents[control[DOCUMENT], 0]
                sizes[own] = documents[control[DOCUMENT], 1]
                control[DOCUMENT] += 1
    return np.int64(at)


@inlined
def is_full(data: np.ndarray, at: int, count: int) -> bool:
    """Return whether the first ``count`` bits are all set."""
    for i in range(count >> 3):
        if data[at + i] != 255:
            return False
    rest = count & 7
    mask = (1 << rest) - 1
    return rest == 0 or (data[at + (count >> 3)] & mask) == mask


@inlined
def _offset_of(explicit: bool, needed: np.ndarray, column: int, offsets: np.ndarray, words: np.ndarray,
               widths: np.ndarray, width: int, row: int) -> int:  # fmt: skip
    """Return the offset of one value of a requested column; -1: NULL."""
    if explicit:
        return peek(offsets, column * width + row)
    start = peek(offsets, needed[column, FROM] + row)
    if needed[column, OP] >= OFFSETS and needed[column, FIRST] == 0:
        return start
    word = np.uint64(peek(words, needed[column, NULL_WORD] * width + row))
    if word & np.uint64(needed[column, NULL_BIT]):
        return np.int64(-1)
    earlier = word & np.uint64(needed[column, EARLIER])
    return start + needed[column, DISTANCE] - _missing(earlier, widths, needed[column, NULL_WORD])


@inlined
def differs(data: np.ndarray, explicit: bool, needed: np.ndarray, keys: np.ndarray, offsets: np.ndarray,
             sizes: np.ndarray, words: np.ndarray, widths: np.ndarray, width: int, before: int,
             after: int) -> bool:  # fmt: skip
    """Return whether a key column's bytes differ between the images in rows ``before`` and ``after`` of the scratch."""
    for k in range(keys.shape[0]):
        column = keys[k]
        old = _offset_of(explicit, needed, column, offsets, words, widths, width, before)
        new = _offset_of(explicit, needed, column, offsets, words, widths, width, after)
        if old < 0 or new < 0:
            if old != new:
                return True
            continue
        size = widths[needed[column, SOURCE]]
        if size < 0:
            own = column * width if explicit else needed[column, FROM]
            size = peek(sizes, own + before)
            if size != peek(sizes, own + after):
                return True
        if not same_bytes(data, old, data, new, size):
            return True
    return False


@part
def find_offsets(needed: np.ndarray, column: int, explicit: bool, seen: np.ndarray, offsets: np.ndarray,
                 words: np.ndarray, widths: np.ndarray, width: int, count: int, own: np.ndarray) -> bool:  # fmt: skip
    """Write the offsets of one column of fixed size to ``own``; -1: NULL. Return whether the chunk has NULLs."""
    if explicit:
        nulls = False
        for i in range(count):
            own[i] = peek(offsets, column * width + i)
            nulls |= own[i] < 0
        return nulls
    first = needed[column, FROM]
    distance = needed[column, DISTANCE]
    word = needed[column, NULL_WORD]
    earlier = np.uint64(needed[column, EARLIER])
    bit = np.uint64(needed[column, NULL_BIT])
    for i in range(count):
        own[i] = peek(offsets, first + i) + distance
    if seen[word] & earlier:
        for i in range(count):
            absent = np.uint64(peek(words, word * width + i)) & earlier
            if absent:
                own[i] -= _missing(absent, widths, word)
    if seen[word] & bit:
        for i in range(count):
            if np.uint64(peek(words, word * width + i)) & bit:
                own[i] = np.int64(-1)
        return True
    return False


@kernel
def find_differences(data: np.ndarray, events: np.ndarray, order: np.ndarray, reads: np.ndarray,
                     widths: np.ndarray, json_columns: np.ndarray, found: np.ndarray,
                     control: np.ndarray) -> int:  # fmt: skip
    """List the JSON differences of partial updates: start and length of the document before, and of the differences.

    Return their number, which may be larger than ``found``; -1: an image is damaged or lacks its base (``control``).
    """
    count = widths.shape[0]
    bitmap = (count + 7) >> 3
    starts = np.zeros((count, 2), np.int64)
    lengths = np.zeros((count, 2), np.int64)
    offsets, sizes = starts.reshape(2 * count), lengths.reshape(2 * count)
    every = np.full(count, -1, np.int64)
    total = 0
    for column in range(count):
        if json_columns[column]:
            every[column] = column
        total += json_columns[column]
    nothing = np.zeros((0, 2), np.int64)
    listed = 0
    for i in range(order.shape[0]):
        event = order[i]
        if events[event, KIND] != PARTIAL_UPDATE:
            continue
        control[EVENT] = i
        before_at = events[event, BITMAPS_AT]
        end = events[event, END]
        at = before_at + 2 * bitmap
        if events[event, COLUMNS] != count or at > end:
            control[FAULT] = BAD_BITMAP
            return -1
        if not is_full(data, before_at, count):
            control[FAULT] = NO_BASE
            return -1
        while at < end:
            image = at
            at = walk_sparse_image(data, at, end, before_at, every, widths, json_columns, np.int64(-1), nothing,
                                   control, offsets, sizes, np.int64(2), np.int64(0))  # fmt: skip
            options = np.int64(0)
            partial_at = np.int64(-1)
            if at >= 0:
                options, at = read_pint(data, at, end)
            if at >= 0 and options & 1:
                partial_at = at
                at += (total + 7) >> 3
            if at < 0 or at > end:
                control[FAULT] = OVERRUN
                return -1
            for column in range(count):
                starts[column, 1] = -1
            at = walk_sparse_image(data, at, end, before_at + bitmap, every, widths, json_columns, np.int64(-1),
                                   nothing, control, offsets, sizes, np.int64(2), np.int64(1))  # fmt: skip
            if at < 0 or at == image:
                control[FAULT] = NO_BASE if at <= ABSENT_COLUMN else OVERRUN
                return -1
            offset = -1
            for column in range(count):
                if not json_columns[column]:
                    continue
                offset += 1
                if partial_at < 0 or not data[partial_at + (offset >> 3)] >> (offset & 7) & 1:
                    continue
                if reads[column] < 0 or starts[column, 1] < 0:
                    continue
                if starts[column, 0] < 0:
                    control[FAULT] = NO_BASE
                    return -1
                if listed < found.shape[0]:
                    found[listed, 0] = starts[column, 0]
                    found[listed, 1] = lengths[column, 0]
                    found[listed, 2] = starts[column, 1]
                    found[listed, 3] = lengths[column, 1]
                listed += 1
    return listed
