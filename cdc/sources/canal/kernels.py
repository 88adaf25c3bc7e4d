"""Kernels that parse Canal's protobuf bytes, without a Python object per entry or row.

``entries`` uses them, and ``value_kernels`` parses the values that they find. Each length is checked against the range
around it before it is used, so no input can lead to a read outside the buffer.

Source: Protocol Buffers documentation, "Encoding"; protocol.proto beside this file.
"""

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import kernel, same_bytes

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

_FNV = np.uint64(0x100000001B3)
_BASIS = np.uint64(0xCBF29CE484222325)


@kernel
def _varint(data, at, end):  # type: ignore[no-untyped-def]
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


@kernel
def _field(data, at, end):  # type: ignore[no-untyped-def]
    """Return the field at ``at``: number, value (start offset if length-delimited), length, offset after it."""
    tag, at = _varint(data, at, end)
    if at < 0:
        return 0, 0, 0, -1
    number = tag >> 3
    wire = tag & 7
    if wire == 0:
        value, at = _varint(data, at, end)
        return number, value, 0, at
    if wire == 2:
        length, at = _varint(data, at, end)
        if at < 0 or length < 0 or length > end - at:
            return 0, 0, 0, -1
        return number, at, length, at + length
    width = 8 if wire == 1 else 4
    if (wire != 1 and wire != 5) or end - at < width:
        return 0, 0, 0, -1
    return number, 0, 0, at + width


@kernel
def count_entries(data):  # type: ignore[no-untyped-def]
    """Return the number of entries of a Messages body, or MALFORMED."""
    at = 0
    count = 0
    while at < data.size:
        number, _value, _length, at = _field(data, at, data.size)
        if at < 0:
            return MALFORMED
        if number == 2:
            count += 1
    return count


@kernel
def _hashed(data, start, length, value):  # type: ignore[no-untyped-def]
    for i in range(start, start + length):
        value = (value ^ np.uint64(data[i])) * _FNV
    return (value ^ np.uint64(0x100)) * _FNV  # so that "ab","c" and "a","bc" differ


@kernel
def _layout(data, at, end, image_field):  # type: ignore[no-untyped-def]
    """Return a hash of an image's column names, types and key flags; 0: the RowData has no such image."""
    value = _BASIS
    columns = 0
    while at < end:
        number, start, length, at = _field(data, at, end)
        if at < 0:
            return np.int64(0)
        if number != image_field:
            continue
        columns += 1
        inner = start
        stop = start + length
        while inner < stop:
            field, position, size, inner = _field(data, inner, stop)
            if inner < 0:
                return np.int64(0)
            if field == 3 or field == 10:
                value = _hashed(data, position, size, value)
            elif field == 1 or field == 4:
                value = (value ^ np.uint64(position)) * _FNV
    if columns == 0:
        return np.int64(0)
    return np.int64(value | np.uint64(1))


@kernel
def _keep(entry, field, at, length):  # type: ignore[no-untyped-def]
    """Write offset and length of a text or a message to the index."""
    entry[field] = at
    entry[field + 1] = length


@kernel
def _row_change(data, at, end, entry):  # type: ignore[no-untyped-def]
    """Write the fields of a RowChange to the index. Return False if it is malformed."""
    event = np.int64(UPDATE)
    while at < end:
        number, value, length, at = _field(data, at, end)
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
        entry[LAYOUT] = _layout(data, start, start + entry[FIRST_ROW_AT + 1], image)
    return True


@kernel
def index_entries(data, index):  # type: ignore[no-untyped-def]
    """Fill ``index``, which has one row of ENTRY_FIELDS per entry. Return the number of entries, or MALFORMED."""
    index[:, :] = 0
    at = 0
    count = 0
    while at < data.size:
        number, start, length, at = _field(data, at, data.size)
        if at < 0:
            return MALFORMED
        if number != 2:
            continue
        entry = index[count]
        count += 1
        entry[START] = start
        entry[SIZE] = length
        entry[KIND] = ROW_DATA
        inner = start
        end = start + length
        while inner < end:
            field, value, size, inner = _field(data, inner, end)
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
                    name, value_at, width, position = _field(data, position, stop)
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
            if not _row_change(data, start, start + entry[STORE_AT + 1], entry):
                return MALFORMED
            group = _hashed(data, entry[DATABASE_AT], entry[DATABASE_AT + 1], _BASIS ^ np.uint64(entry[LAYOUT]))
            entry[GROUP] = np.int64(_hashed(data, entry[TABLE_AT], entry[TABLE_AT + 1], group))
    return count


@kernel
def file_changes(data, index, changed):  # type: ignore[no-untyped-def]
    """Mark the entries whose file name differs from that of the entry before. The mark of the first is not changed."""
    for entry in range(1, len(index)):
        at, size = index[entry, FILE_AT], index[entry, FILE_AT + 1]
        before, before_size = index[entry - 1, FILE_AT], index[entry - 1, FILE_AT + 1]
        changed[entry] = size != before_size or not same_bytes(data, at, data, before, size)


@kernel
def _image(data, at, end, image_field, indexes, starts, lengths):  # type: ignore[no-untyped-def]
    """Write the offsets and lengths of an image's values. Return the number of columns, or a fault."""
    columns = 0
    while at < end:
        number, start, length, at = _field(data, at, end)
        if at < 0:
            return MALFORMED
        if number != image_field:
            continue
        if columns >= indexes.size:
            return COLUMNS_MISSING
        inner = start
        stop = start + length
        position = np.int64(0)
        null = False
        value_at = start
        size = np.int64(0)
        while inner < stop:
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
                        return MALFORMED
            else:
                field, value, width, inner = _field(data, inner, stop)
                if inner < 0:
                    return MALFORMED
            if field == 8:
                value_at = value
                size = width
            elif field == 6:
                null = value != 0
            elif field == 1:
                position = value
        if position != indexes[columns]:
            return COLUMNS_MISSING
        starts[columns] = value_at
        lengths[columns] = -1 if null else size
        columns += 1
    return columns


@kernel
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
    row = 0
    for which in range(entries.size):
        entry = index[entries[which]]
        event = entry[EVENT]
        first = row
        at = entry[STORE_AT]
        end = at + entry[STORE_AT + 1]
        while at < end:
            number, start, length, at = _field(data, at, end)
            if at < 0:
                return MALFORMED, which
            if number != 12:
                continue
            stop = start + length
            if event != INSERT:
                found = _image(data, start, stop, 1, indexes, before_at, before_size)
                if found != columns:
                    return (MALFORMED if found == MALFORMED else COLUMNS_MISSING), which
            if event != DELETE:
                found = _image(data, start, stop, 2, indexes, after_at, after_size)
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
            number, value, length, here = _field(data, here, end)
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
    """Copy the bodies to ``out``, one after the other."""
    to = 0
    for row in range(starts.size):
        for at in range(starts[row], starts[row] + lengths[row]):
            out[to] = data[at]
            to += 1
