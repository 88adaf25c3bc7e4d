"""Kernels that parse Canal's protobuf bytes and the text of its values, without a Python object per entry or value.

``entries`` uses them. Each length is checked against the range around it before it is used, so no input can lead to a
read outside the buffer.

Source: Protocol Buffers documentation, "Encoding"; protocol.proto beside this file.
"""

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import kernel, same_bytes
from cdc.mysql.values.times import day_number, microseconds_of

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
def integers(data, starts, lengths, low, high, out):  # type: ignore[no-untyped-def]
    """Parse decimal integers within [low, high]. Return the first row that is not such a number, or -1."""
    for row in range(starts.size):
        size = lengths[row]
        if size < 0:
            out[row] = 0
            continue
        at = starts[row]
        end = at + size
        negative = size > 0 and data[at] == 0x2D
        if negative:
            at += 1
        if at == end or end - at > 19:
            return row
        value = np.uint64(0)
        while at < end:
            digit = data[at] - np.uint8(0x30)
            if digit > 9:
                return row
            value = value * np.uint64(10) + np.uint64(digit)
            at += 1
        if value > np.uint64(0x7FFFFFFFFFFFFFFF) and not (negative and value == np.uint64(0x8000000000000000)):
            return row
        number = -np.int64(value) if negative else np.int64(value)
        if number < low or number > high:
            return row
        out[row] = number
    return -1


@kernel
def decimals(data, starts, lengths, digits, scale, out):  # type: ignore[no-untyped-def]
    """Parse plain decimals of at most 38 digits to two 64-bit words (low, high), with ``scale`` fractional digits.

    Return -1, or the first row that is not a decimal, has more than ``digits`` digits, or more than ``scale``
    fractional digits that are not zero.
    """
    ten = np.uint64(10)
    low_half = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    for row in range(starts.size):
        out[row, 0] = 0
        out[row, 1] = 0
        size = lengths[row]
        if size < 0:
            continue
        at = starts[row]
        end = at + size
        negative = size > 0 and data[at] == 0x2D
        if negative:
            at += 1
        low = np.uint64(0)
        high = np.uint64(0)
        seen = 0
        after = -1  # digits after the point so far; -1: no point yet
        significant = 0
        while True:
            if at < end:
                byte = data[at]
                at += 1
                if byte == 0x2E and after < 0:
                    after = 0
                    continue
                digit = byte - np.uint8(0x30)
                if digit > 9:
                    return row
                seen += 1
                if after >= 0:
                    if after == scale:
                        if digit != 0:
                            return row
                        continue
                    after += 1
            else:
                if seen == 0:
                    return row
                if after < 0:
                    after = 0
                if after == scale:
                    break
                digit = np.uint8(0)
                after += 1
            if significant or digit:
                significant += 1
                if significant > digits:
                    return row
            # (high, low) * 10 + digit, computed with half words
            first = (low & low_half) * ten + np.uint64(digit)
            second = (low >> half) * ten + (first >> half)
            low = (second << half) | (first & low_half)
            high = high * ten + (second >> half)
        if negative:
            low = ~low + np.uint64(1)
            high = ~high + (np.uint64(1) if low == 0 else np.uint64(0))
        out[row, 0] = low
        out[row, 1] = high
    return -1


@kernel
def _number(data, at, count):  # type: ignore[no-untyped-def]
    """Return the number of ``count`` digits at ``at``, or -1."""
    value = np.int64(0)
    for i in range(at, at + count):
        digit = data[i] - np.uint8(0x30)
        if digit > 9:
            return np.int64(-1)
        value = value * 10 + np.int64(digit)
    return value


@kernel
def _date(data, at):  # type: ignore[no-untyped-def]
    """Return year, month and day of the ten characters at ``at``; year -1: they are not a date."""
    year = _number(data, at, 4)
    month = _number(data, at + 5, 2)
    day = _number(data, at + 8, 2)
    if month < 0 or day < 0 or data[at + 4] != 0x2D or data[at + 7] != 0x2D:
        year = np.int64(-1)
    return year, month, day


@kernel
def dates(data, starts, lengths, out, valid):  # type: ignore[no-untyped-def]
    """Parse dates to days. Return (first row that is not a date or -1, number of zero and invalid dates).

    Zero and invalid dates become NULL: ``valid`` is False.
    """
    impossible = 0
    for row in range(starts.size):
        out[row] = 0
        valid[row] = False
        if lengths[row] < 0:
            continue
        if lengths[row] != 10:
            return row, impossible
        year, month, day = _date(data, starts[row])
        if year < 0:
            return row, impossible
        days = day_number(year, month, day)
        if days < -(1 << 39):
            impossible += 1
            continue
        out[row] = days
        valid[row] = True
    return -1, impossible


@kernel
def moments(data, starts, lengths, minus_us, out, valid):  # type: ignore[no-untyped-def]
    """Parse ``YYYY-MM-DD HH:MM:SS[.f]`` to microseconds, minus ``minus_us``. Return as ``dates``."""
    impossible = 0
    for row in range(starts.size):
        out[row] = 0
        valid[row] = False
        size = lengths[row]
        if size < 0:
            continue
        at = starts[row]
        if size < 19 or size > 26 or size == 20 or data[at + 10] != 0x20:
            return row, impossible
        year, month, day = _date(data, at)
        hour = _number(data, at + 11, 2)
        minute = _number(data, at + 14, 2)
        second = _number(data, at + 17, 2)
        if year < 0 or hour < 0 or minute < 0 or second < 0 or data[at + 13] != 0x3A or data[at + 16] != 0x3A:
            return row, impossible
        micros = np.int64(0)
        if size > 19:
            digits = size - 20
            micros = _number(data, at + 20, digits)
            if data[at + 19] != 0x2E or micros < 0:
                return row, impossible
            for _ in range(6 - digits):
                micros *= 10
        moment = microseconds_of(year, month, day, hour, minute, second, micros)
        if moment < -(1 << 62):
            impossible += 1
            continue
        out[row] = moment - minus_us
        valid[row] = True
    return -1, impossible


@kernel
def latin1_bytes(data, starts, lengths, out, new_starts, new_lengths):  # type: ignore[no-untyped-def]
    """Convert UTF-8 characters up to U+00FF to single bytes. Return the first row with another character, or -1."""
    position = 0
    for row in range(starts.size):
        new_starts[row] = position
        size = lengths[row]
        new_lengths[row] = size
        if size < 0:
            continue
        at = starts[row]
        end = at + size
        while at < end:
            byte = data[at]
            if byte < 0x80:
                at += 1
            else:
                if (byte != 0xC2 and byte != 0xC3) or at + 1 >= end or data[at + 1] & 0xC0 != 0x80:
                    return row
                byte = np.uint8((byte << 6) & 0xC0) | (data[at + 1] & np.uint8(0x3F))
                at += 2
            out[position] = byte
            position += 1
        new_lengths[row] = position - new_starts[row]
    return -1
