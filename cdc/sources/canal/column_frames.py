"""Parts of kernels that find the value in the bytes of a column of Canal, mostly by comparing them with an earlier row.

An image repeats name, type and flags of each column. ``frames`` keeps where these bytes were last: comparing them costs
less than parsing.
"""

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import inlined, part, same_bytes
from cdc.sources.canal.wire import hash_text, mix, read_field

# How the image of a column was encoded last, with a value and as NULL. Most rows differ in their values alone, and the
# same bytes around a value mean the same.
BEFORE_AT, BEFORE_SIZE = 0, 1  # the bytes up to the length of the value; size 0: not known
AFTER_AT, AFTER_SIZE = 2, 3  # the bytes after the value
NULL_AT, NULL_SIZE = 4, 5  # all bytes of a NULL; size 0: not known
FRAME_FIELDS = 6
MOST_COLUMNS = 4096  # of a table, in MySQL
_VALUE_TAG = 0x42  # field 8, length-delimited
_BASIS = np.uint64(0xCBF29CE484222325)


@inlined
def framed_value(data, start, stop, frames, column):  # type: ignore[no-untyped-def]
    """Return offset and length (-1: NULL) of a value that is encoded as ``frames`` says; offset -1: it is not."""
    before = frames[column, BEFORE_SIZE]
    if 0 < before < stop - start and same_bytes(data, start, data, frames[column, BEFORE_AT], before):
        at = start + before
        size = np.int64(data[at])
        at += 1
        if size >= 0x80 and at < stop and data[at] < 0x80:
            size = (size & 0x7F) | (np.int64(data[at]) << 7)
            at += 1
        elif size >= 0x80:
            return np.int64(-1), np.int64(0)
        after = frames[column, AFTER_SIZE]
        if stop - at - size == after and same_bytes(data, at + size, data, frames[column, AFTER_AT], after):
            return at, size
    size = frames[column, NULL_SIZE]
    if 0 < size == stop - start and same_bytes(data, start, data, frames[column, NULL_AT], size):
        return start, np.int64(-1)
    return np.int64(-1), np.int64(0)


@part
def find_value(data, start, stop, frames, column):  # type: ignore[no-untyped-def]
    """Return number, offset and length (-1: NULL) of a column's value; number -1: malformed. Writes ``frames``."""
    inner = start
    position = np.int64(0)
    null = False
    value_at = start
    size = np.int64(0)
    before = np.int64(0)  # length of the bytes before the length of the value
    while inner < stop:
        tag_at = inner
        tag = data[inner]
        if tag < 0x80 and stop - inner > 1 and data[inner + 1] < 0x80 and (tag & 7 == 0 or tag & 7 == 2):
            # Fast path: tag and number (or length) have one byte each, as in nearly every field of a column.
            field = np.int64(tag >> 3)
            value = np.int64(data[inner + 1])
            inner += 2
            width = np.int64(0)
            if tag & 7 == 2:
                width = value
                value = inner
                inner += width
                if inner > stop:
                    return np.int64(-1), value_at, size
        else:
            field, value, width, inner = read_field(data, inner, stop)
            if inner < 0:
                return np.int64(-1), value_at, size
        if field == 8:
            value_at = value
            size = width
            before = tag_at + 1 - start if tag == _VALUE_TAG else np.int64(0)
        elif field == 6:
            null = value != 0
        elif field == 1:
            position = value
    if null:
        frames[column, NULL_AT] = start
        frames[column, NULL_SIZE] = stop - start
        return position, value_at, np.int64(-1)
    if before:
        frames[column, BEFORE_AT] = start
        frames[column, BEFORE_SIZE] = before
        frames[column, AFTER_AT] = value_at + size
        frames[column, AFTER_SIZE] = stop - value_at - size
    return position, value_at, size


@part
def _hashed_layout(data, at, end, image_field):  # type: ignore[no-untyped-def]
    """Return a hash of an image's column names, types and key flags; 0: the RowData has no such image."""
    value = _BASIS
    columns = 0
    while at < end:
        number, start, length, at = read_field(data, at, end)
        if at < 0:
            return np.int64(0)
        if number != image_field:
            continue
        columns += 1
        inner = start
        stop = start + length
        while inner < stop:
            field, position, size, inner = read_field(data, inner, stop)
            if inner < 0:
                return np.int64(0)
            if field == 3 or field == 10:
                value = hash_text(data, position, size, value)
            elif field == 1 or field == 4:
                value = mix(value, np.uint64(position))
    if columns == 0:
        return np.int64(0)
    return np.int64(value | np.uint64(1))


@part
def _is_framed(data, at, end, image_field, frames, count):  # type: ignore[no-untyped-def]
    """Return whether an image has ``count`` columns, and all are encoded as ``frames`` says."""
    columns = 0
    while at < end:
        number, start, length, at = read_field(data, at, end)
        if at < 0:
            return False
        if number == image_field:
            if columns >= count or framed_value(data, start, start + length, frames, columns)[0] < 0:
                return False
            columns += 1
    return columns == count


@part
def layout_hash(data, at, end, image_field, frames, last):  # type: ignore[no-untyped-def]
    """Return the hash of an image's layout. ``last``: number of columns and hash of the previous one, with ``frames``.

    Hashing costs more than comparing, and the next image mostly has the same layout.
    """
    if 0 < last[0] <= MOST_COLUMNS and _is_framed(data, at, end, image_field, frames, last[0]):
        return last[1]
    value = _hashed_layout(data, at, end, image_field)
    if value != last[1]:
        frames[: last[0], :] = 0  # a column may still have the bytes of another layout
    last[0] = 0
    last[1] = value
    while value and at < end:
        number, start, length, at = read_field(data, at, end)
        if number == image_field:
            if last[0] == MOST_COLUMNS:  # no table has so many
                frames[:, :] = 0
                last[0] = 0
                return value
            find_value(data, start, start + length, frames, last[0])
            last[0] += 1
    return value
