"""Kernels that parse Canal's protobuf bytes, without a Python object per entry or row.

``entries`` uses them, and ``value_kernels`` parses the values that they find. Each length is checked against the range
around it before it is used, so no input can lead to a read outside the buffer.

Source: Protocol Buffers documentation, "Encoding"; protocol.proto beside this file.
"""

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import inlined, kernel, part, same_bytes
from cdc.sources.canal.column_frames import (
    BEFORE_SIZE,
    FRAME_FIELDS,
    MOST_COLUMNS,
    find_value,
    framed_value,
    layout_hash,
)
from cdc.sources.canal.wire import hash_text, read_field

# fields of an entry in the index, one int64 each; the field after a *_AT is its length
START, SIZE = 0, 1
KIND, EVENT = 2, 3
OFFSET, EVENT_LENGTH, TIME_MS = 4, 5, 6
FILE_AT, DATABASE_AT, TABLE_AT, STORE_AT, GTID_AT, SQL_AT, DDL_DATABASE_AT = 7, 9, 11, 13, 15, 17, 19
IS_DDL = 21
ROWS = 22  # RowData messages
LAYOUT = 23  # hash of the first image's column names, types and key flags; 0: no rows
FIRST_ROW_AT = 24
GROUP = 26  # hash of database, table and layout: such rows are read in the same way
ENTRY_FIELDS = 27

# kinds of an entry and of an event, as in protocol.proto
BEGIN, ROW_DATA, END = 1, 2, 3
INSERT, UPDATE, DELETE = 1, 2, 3
MESSAGES = 7  # kind of a packet

# return values below 0 are faults
MALFORMED = -1
COLUMNS_MISSING = -2  # an image without some of the table's columns

_BASIS = np.uint64(0xCBF29CE484222325)


@kernel
def count_entries(data):  # type: ignore[no-untyped-def]
    """Return the number of entries of a Messages body, or MALFORMED."""
    at = 0
    count = 0
    while at < data.size:
        number, _value, _length, at = read_field(data, at, data.size)
        if at < 0:
            return MALFORMED
        if number == 2:
            count += 1
    return count


@inlined
def _keep(entry, field, at, length):  # type: ignore[no-untyped-def]
    """Write offset and length of a text or a message to the index."""
    entry[field] = at
    entry[field + 1] = length


@part
def _row_change(data, at, end, entry, frames, last):  # type: ignore[no-untyped-def]
    """Write the fields of a RowChange to the index. Return False if it is malformed."""
    event = np.int64(UPDATE)
    while at < end:
        number, value, length, at = read_field(data, at, end)
        if at < 0:
            return False
        if number == 2:
            event = value
        elif number == 10:
            entry[IS_DDL] = value
        elif number == 11:
            _keep(entry, SQL_AT, value, length)
        elif number == 14:
            _keep(entry, DDL_DATABASE_AT, value, length)
        elif number == 12:
            if entry[ROWS] == 0:
                _keep(entry, FIRST_ROW_AT, value, length)
            entry[ROWS] += 1
    entry[EVENT] = event
    if entry[ROWS]:
        start = entry[FIRST_ROW_AT]
        image = 2 if event == INSERT else 1
        entry[LAYOUT] = layout_hash(data, start, start + entry[FIRST_ROW_AT + 1], image, frames, last)
    return True


@kernel
def index_entries(data, index):  # type: ignore[no-untyped-def]
    """Fill ``index``, which has one row of ENTRY_FIELDS per entry. Return the number of entries, or MALFORMED."""
    index[:, :] = 0
    frames = np.zeros((MOST_COLUMNS, FRAME_FIELDS), np.int64)
    last = np.zeros(2, np.int64)
    at = 0
    count = 0
    while at < data.size:
        number, start, length, at = read_field(data, at, data.size)
        if at < 0:
            return MALFORMED
        if number != 2:
            continue
        if start + length != at:
            return MALFORMED  # a number instead of a message: nothing says where it is
        entry = index[count]
        count += 1
        entry[START] = start
        entry[SIZE] = length
        entry[KIND] = ROW_DATA
        inner = start
        end = start + length
        while inner < end:
            field, value, size, inner = read_field(data, inner, end)
            if inner < 0:
                return MALFORMED
            if field == 2:
                entry[KIND] = value
            elif field == 3:
                _keep(entry, STORE_AT, value, size)
            elif field == 1:
                position = value
                stop = value + size
                while position < stop:
                    name, value_at, width, position = read_field(data, position, stop)
                    if position < 0:
                        return MALFORMED
                    if name == 2:
                        _keep(entry, FILE_AT, value_at, width)
                    elif name == 3:
                        entry[OFFSET] = value_at
                    elif name == 6:
                        entry[TIME_MS] = value_at
                    elif name == 8:
                        _keep(entry, DATABASE_AT, value_at, width)
                    elif name == 9:
                        _keep(entry, TABLE_AT, value_at, width)
                    elif name == 10:
                        entry[EVENT_LENGTH] = value_at
                    elif name == 13:
                        _keep(entry, GTID_AT, value_at, width)
        if entry[KIND] == ROW_DATA and entry[STORE_AT + 1]:
            start = entry[STORE_AT]
            if not _row_change(data, start, start + entry[STORE_AT + 1], entry, frames, last):
                return MALFORMED
            group = hash_text(data, entry[DATABASE_AT], entry[DATABASE_AT + 1], _BASIS ^ np.uint64(entry[LAYOUT]))
            entry[GROUP] = np.int64(hash_text(data, entry[TABLE_AT], entry[TABLE_AT + 1], group))
    return count


@kernel
def file_changes(data, index, changed):  # type: ignore[no-untyped-def]
    """Mark the entries whose file name differs from that of the entry before. The mark of the first is not changed."""
    for entry in range(1, len(index)):
        at, size = index[entry, FILE_AT], index[entry, FILE_AT + 1]
        before, before_size = index[entry - 1, FILE_AT], index[entry - 1, FILE_AT + 1]
        changed[entry] = size != before_size or not same_bytes(data, at, data, before, size)


@part
def _image(data, at, end, image_field, indexes, frames, starts, lengths):  # type: ignore[no-untyped-def]
    """Write the offsets and lengths of an image's values. Return the number of columns, or a fault.

    ``frames``: how each column was encoded last, with FRAME_FIELDS. Most rows differ in their values alone.
    """
    columns = 0
    tag = np.uint8(image_field << 3 | 2)
    while at < end:
        if data[at] == tag and end - at > 2 and data[at + 1] < 0x80 and data[at + 1] <= end - at - 2:
            # as nearly every column: its tag and its length have one byte each
            start = at + 2
            length = np.int64(data[at + 1])
            at = start + length
        else:
            number, start, length, at = read_field(data, at, end)
            if at < 0:
                return MALFORMED
            if number != image_field:
                continue
        if columns >= indexes.size:
            return COLUMNS_MISSING
        stop = start + length
        value_at, size = framed_value(data, start, stop, frames, columns)
        if value_at < 0:
            position, value_at, size = find_value(data, start, stop, frames, columns)
            if position < 0:
                return MALFORMED
            if position != indexes[columns]:
                frames[columns, BEFORE_SIZE] = 0
                return COLUMNS_MISSING
        starts[columns] = value_at
        lengths[columns] = size
        columns += 1
    return columns


@part
def _differs(data, starts, sizes, other_starts, other_sizes, key_columns):  # type: ignore[no-untyped-def]
    """Return whether two images have different values in a key column."""
    for k in range(key_columns.size):
        column = key_columns[k]
        if sizes[column] != other_sizes[column]:
            return True
        for i in range(sizes[column]):
            if data[starts[column] + i] != data[other_starts[column] + i]:
                return True
    return False


@kernel
def locate_rows(  # type: ignore[no-untyped-def]
    data, index, entries, indexes, requested, key_columns, starts, lengths, deleted, row_counts
):
    """Find the values of the rows of ``entries``, for the columns ``requested`` (numbers in ``indexes``).

    Fills ``starts`` and ``lengths`` (one row per requested column), ``deleted``, and ``row_counts`` (by entry). An
    update that changes a key column makes two rows. Return (number of rows or a fault, entry of the fault).
    """
    columns = indexes.size
    before_at = np.empty(columns, np.int64)
    before_size = np.empty(columns, np.int32)
    after_at = np.empty(columns, np.int64)
    after_size = np.empty(columns, np.int32)
    frames = np.zeros((columns, FRAME_FIELDS), np.int64)
    row = 0
    for which in range(entries.size):
        entry = index[entries[which]]
        event = entry[EVENT]
        first = row
        at = entry[STORE_AT]
        end = at + entry[STORE_AT + 1]
        while at < end:
            number, start, length, at = read_field(data, at, end)
            if at < 0:
                return MALFORMED, which
            if number != 12:
                continue
            stop = start + length
            if event != INSERT:
                found = _image(data, start, stop, 1, indexes, frames, before_at, before_size)
                if found != columns:
                    return (MALFORMED if found == MALFORMED else COLUMNS_MISSING), which
            if event != DELETE:
                found = _image(data, start, stop, 2, indexes, frames, after_at, after_size)
                if found != columns:
                    return (MALFORMED if found == MALFORMED else COLUMNS_MISSING), which
            if event == DELETE or (
                event == UPDATE and _differs(data, before_at, before_size, after_at, after_size, key_columns)
            ):
                for slot in range(requested.size):
                    starts[slot, row] = before_at[requested[slot]]
                    lengths[slot, row] = before_size[requested[slot]]
                deleted[row] = True
                row += 1
            if event != DELETE:
                for slot in range(requested.size):
                    starts[slot, row] = after_at[requested[slot]]
                    lengths[slot, row] = after_size[requested[slot]]
                deleted[row] = False
                row += 1
        row_counts[which] = row - first
    return row, 0


@kernel
def locate_bodies(data, at, sizes, starts, lengths):  # type: ignore[no-untyped-def]
    """Find the Messages body of each packet; a value of size -1 has an empty one.

    Return the first value that is not an uncompressed packet of the kind MESSAGES, or -1.
    """
    for row in range(at.size):
        starts[row], lengths[row] = at[row], 0
        if sizes[row] < 0:
            continue
        here, end = at[row], at[row] + sizes[row]
        kind, compression, found = np.int64(0), np.int64(0), False
        while here < end:
            number, value, length, here = read_field(data, here, end)
            if here < 0:
                return row
            if number == 3:
                kind = value
            elif number == 4:
                compression = value
            elif number == 5:
                starts[row], lengths[row] = value, length
                found = True
        if kind != MESSAGES or compression > 1 or not found:
            return row
    return -1


@kernel
def join_bodies(data, starts, lengths, out):  # type: ignore[no-untyped-def]
    """Copy the bodies to ``out``, one after the other. Return the first one that is malformed, or -1.

    The last field of a body that was cut off would else end in the next body.
    """
    to = 0
    for row in range(starts.size):
        here, end = starts[row], starts[row] + lengths[row]
        while here < end:
            _number, _value, _length, here = read_field(data, here, end)
            if here < 0:
                return row
        for at in range(starts[row], starts[row] + lengths[row]):
            out[to] = data[at]
            to += 1
    return -1
