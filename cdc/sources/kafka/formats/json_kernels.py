"""Kernels that find values in JSON texts, without a Python object per message or value.

A value is (start, length, kind) in the buffer. Every scan stops at the end of its message: a load of 8 bytes may
read the padding after the last message, and what it finds beyond the end is ignored.

Source: RFC 8259, "The JavaScript Object Notation (JSON) Data Interchange Format".
"""

# mypy: disable-error-code="assignment,possibly-undefined"
# (kernels mix Python's int with numpy integers)

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import inlined, kernel, load_u8, load_u64, part, same_bytes, trailing_zeros

# kinds of a value
ABSENT, NULL, STRING, ESCAPED, NUMBER, TRUE, FALSE, OBJECT, ARRAY = range(9)

# faults of a text
MALFORMED, CUT, NOT_OBJECT, TRAILING, DEEP, SURROGATE = range(1, 7)

# inputs of slice_objects
LISTS, ONE, ONE_OR_ABSENT = range(3)

FULL = -1  # result of slice_objects: the arrays have not enough columns for all rows
MEMO = 64  # keys of an object that are compared with those of the object before, besides the requested ones

_ONES = np.uint64(0x0101010101010101)
_HIGH = np.uint64(0x8080808080808080)
_QUOTES = np.uint64(0x2222222222222222)
_BACKSLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_SPACES = np.uint64(0x2020202020202020)
_DEPTH = 64  # bits of the stack


@inlined
def _byte(data, at):  # type: ignore[no-untyped-def]
    return np.int64(load_u8(data, at))


@inlined
def _blanks(data, at, end):  # type: ignore[no-untyped-def]
    """Return the offset of the first byte that is no blank, or ``end``."""
    while at < end:
        byte = _byte(data, at)
        if byte > 0x20 or (byte != 0x20 and byte != 0x0A and byte != 0x0D and byte != 0x09):
            return at
        at += 1
    return at


@part
def _hex4(data, at):  # type: ignore[no-untyped-def]
    """Return the number of four hexadecimal digits, or -1."""
    value = np.int64(0)
    for i in range(4):
        digit = _byte(data, at + i)
        if 0x30 <= digit <= 0x39:
            digit -= 0x30
        elif 0x41 <= digit <= 0x46:
            digit -= 0x37
        elif 0x61 <= digit <= 0x66:
            digit -= 0x57
        else:
            return np.int64(-1)
        value = value << 4 | digit
    return value


@inlined
def _string_end(data, at, end):  # type: ignore[no-untyped-def]
    """Return (offset of the closing quote or a negative fault, whether there are escapes); ``at``: after the quote."""
    escaped = False
    while at < end:
        word = load_u64(data, at)
        quotes = word ^ _QUOTES
        slashes = word ^ _BACKSLASHES
        # The lowest flag of each test is exact: a borrow sets wrong flags only above a right one.
        found = (((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes) | ((word - _SPACES) & ~word)) & _HIGH
        if found == np.uint64(0):
            at += 8
            continue
        at += trailing_zeros(found) >> 3
        if at >= end:
            break
        byte = _byte(data, at)
        if byte == 0x22:
            return at, escaped
        if byte != 0x5C:
            return np.int64(-MALFORMED), escaped  # a control character
        escaped = True
        if at + 1 >= end:
            break
        byte = _byte(data, at + 1)
        if byte == 0x75:
            if at + 6 > end:
                break
            if _hex4(data, at + 2) < 0:
                return np.int64(-MALFORMED), escaped
            at += 6
        elif (
            byte == 0x22 or byte == 0x5C or byte == 0x2F or byte == 0x62
            or byte == 0x66 or byte == 0x6E or byte == 0x72 or byte == 0x74
        ):  # fmt: skip
            at += 2
        else:
            return np.int64(-MALFORMED), escaped
    return np.int64(-CUT), escaped


@part
def _digits(data, at, end):  # type: ignore[no-untyped-def]
    while at < end:
        byte = _byte(data, at)
        if byte < 0x30 or byte > 0x39:
            break
        at += 1
    return at


@part
def _number_end(data, at, end):  # type: ignore[no-untyped-def]
    """Return the offset after a number, or a negative fault."""
    if _byte(data, at) == 0x2D:
        at += 1
        if at >= end:
            return np.int64(-CUT)
    after = _digits(data, at, end)
    if after == at or (after > at + 1 and _byte(data, at) == 0x30):
        return np.int64(-MALFORMED)
    at = after
    if at < end and _byte(data, at) == 0x2E:
        after = _digits(data, at + 1, end)
        if after == at + 1:
            return np.int64(-CUT if after >= end else -MALFORMED)
        at = after
    if at < end and (_byte(data, at) | 0x20) == 0x65:
        at += 1
        if at < end and (_byte(data, at) == 0x2B or _byte(data, at) == 0x2D):
            at += 1
        after = _digits(data, at, end)
        if after == at:
            return np.int64(-CUT if after >= end else -MALFORMED)
        at = after
    return np.int64(at)


@inlined
def _scalar(data, at, end):  # type: ignore[no-untyped-def]
    """Read a value that is no object and no array. Return (offset after it or a fault, start, length, kind)."""
    byte = _byte(data, at)
    if byte == 0x22:
        close, escaped = _string_end(data, at + 1, end)
        if close < 0:
            return close, at, np.int64(0), STRING
        return close + 1, at + 1, close - at - 1, (ESCAPED if escaped else STRING)
    if byte == 0x2D or 0x30 <= byte <= 0x39:
        after = _number_end(data, at, end)
        return after, at, after - at, NUMBER
    word = load_u64(data, at)
    if word & np.uint64(0xFFFFFFFF) == np.uint64(0x6C6C756E):
        after, kind = at + 4, NULL
    elif word & np.uint64(0xFFFFFFFF) == np.uint64(0x65757274):
        after, kind = at + 4, TRUE
    elif word & np.uint64(0xFFFFFFFFFF) == np.uint64(0x65736C6166):
        after, kind = at + 5, FALSE
    else:
        return np.int64(-MALFORMED), at, np.int64(0), NULL
    if after > end:
        after = np.int64(-CUT)
    return np.int64(after), at, np.int64(after - at), kind


@part
def _composite_end(data, at, end):  # type: ignore[no-untyped-def]
    """Return the offset after the object or array at ``at``, or a negative fault."""
    stack = np.uint64(0)  # the lowest bit: the innermost value is an object
    depth = 0
    first = False
    key = False
    while True:
        at = _blanks(data, at, end)
        if at >= end:
            return np.int64(-CUT)
        byte = _byte(data, at)
        if first and byte == (0x7D if key else 0x5D):
            at += 1
            depth -= 1
            stack >>= np.uint64(1)
        elif key:
            if byte != 0x22:
                return np.int64(-MALFORMED)
            close, _ = _string_end(data, at + 1, end)
            if close < 0:
                return close
            at = _blanks(data, close + 1, end)
            if at >= end:
                return np.int64(-CUT)
            if _byte(data, at) != 0x3A:
                return np.int64(-MALFORMED)
            at += 1
            first = False
            key = False
            continue
        elif byte == 0x7B or byte == 0x5B:
            if depth == _DEPTH:
                return np.int64(-DEEP)
            key = byte == 0x7B
            stack = stack << np.uint64(1) | (np.uint64(1) if key else np.uint64(0))
            depth += 1
            first = True
            at += 1
            continue
        else:
            at, _, _, _ = _scalar(data, at, end)
            if at < 0:
                return at
        first = False
        while True:
            if depth == 0:
                return np.int64(at)
            at = _blanks(data, at, end)
            if at >= end:
                return np.int64(-CUT)
            byte = _byte(data, at)
            at += 1
            is_object = stack & np.uint64(1) != np.uint64(0)
            if byte == 0x2C:
                key = is_object
                break
            if byte != (0x7D if is_object else 0x5D):
                return np.int64(-MALFORMED)
            depth -= 1
            stack >>= np.uint64(1)


@part
def _put_utf8(code, out, at):  # type: ignore[no-untyped-def]
    if code < 0x80:
        out[at] = code
        return at + 1
    if code < 0x800:
        out[at] = 0xC0 | code >> 6
        out[at + 1] = 0x80 | code & 0x3F
        return at + 2
    if code < 0x10000:
        out[at] = 0xE0 | code >> 12
        out[at + 1] = 0x80 | code >> 6 & 0x3F
        out[at + 2] = 0x80 | code & 0x3F
        return at + 3
    out[at] = 0xF0 | code >> 18
    out[at + 1] = 0x80 | code >> 12 & 0x3F
    out[at + 2] = 0x80 | code >> 6 & 0x3F
    out[at + 3] = 0x80 | code & 0x3F
    return at + 4


@part
def _unescape(data, at, size, out, to):  # type: ignore[no-untyped-def]
    """Write a string without its escapes. Return the offset after it in ``out``, or -1: it has half a pair."""
    end = at + size
    while at < end:
        byte = _byte(data, at)
        if byte != 0x5C:
            out[to] = byte
            to += 1
            at += 1
            continue
        byte = _byte(data, at + 1)
        at += 2
        if byte == 0x75:
            code = _hex4(data, at)
            at += 4
            if 0xD800 <= code < 0xE000:
                low = np.int64(0)
                if code < 0xDC00 and at + 6 <= end and _byte(data, at) == 0x5C and _byte(data, at + 1) == 0x75:
                    low = _hex4(data, at + 2)
                if low < 0xDC00 or low > 0xDFFF:
                    return -1
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                at += 6
            to = _put_utf8(code, out, to)
            continue
        if byte == 0x62:
            byte = np.int64(8)
        elif byte == 0x66:
            byte = np.int64(12)
        elif byte == 0x6E:
            byte = np.int64(10)
        elif byte == 0x72:
            byte = np.int64(13)
        elif byte == 0x74:
            byte = np.int64(9)
        out[to] = byte
        to += 1
    return to


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
            after = _unescape(data, starts[row], size, out, to)
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
        size = _unescape(data, at, size, scratch, 0)
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
    at = _blanks(data, at + 1, end)
    if at < end and _byte(data, at) == 0x7D:
        return np.int64(at + 1)
    while True:
        if at >= end:
            return np.int64(-CUT)
        if _byte(data, at) != 0x22:
            return np.int64(-MALFORMED)
        at += 1
        known = number < memo.shape[0] and memo[number, 1] >= 0
        if known:
            size = memo[number, 1]
            known = (
                at + size < end and _byte(data, at + size) == 0x22 and same_bytes(data, at, data, memo[number, 0], size)
            )
        if known:
            slot = memo[number, 2]
            close = at + size
        else:
            close, escaped = _string_end(data, at, end)
            if close < 0:
                return close
            slot = _slot_of(data, at, close - at, escaped, names, name_ends, scratch)
            if number < memo.shape[0]:
                memo[number, 0] = at
                memo[number, 1] = close - at
                memo[number, 2] = slot
                memo[number, 4] = -1
        at = close + 1
        if at < end and _byte(data, at) == 0x3A:
            at += 1
        else:
            at = _blanks(data, at, end)
            if at >= end:
                return np.int64(-CUT)
            if _byte(data, at) != 0x3A:
                return np.int64(-MALFORMED)
            at += 1
        at = _blanks(data, at, end)
        if at >= end:
            return np.int64(-CUT)
        byte = _byte(data, at)
        if byte == 0x7B or byte == 0x5B:
            start = at
            kind = OBJECT if byte == 0x7B else ARRAY
            after = np.int64(-1)
            if number < memo.shape[0] and memo[number, 4] > 0:
                size = memo[number, 4]
                if at + size <= end and same_bytes(data, at, data, memo[number, 3], size):
                    after = at + size
            if after < 0:
                after = _composite_end(data, at, end)
                if after < 0:
                    return after
                if number < memo.shape[0]:
                    memo[number, 3] = at
                    memo[number, 4] = after - at
            size = after - start
        else:
            after, start, size, kind = _scalar(data, at, end)
            if after < 0:
                return after
        if slot >= 0:
            starts[slot, row] = start
            lengths[slot, row] = -1 if kind == NULL else size
            kinds[slot, row] = kind
        at = after
        number += 1
        at = _blanks(data, at, end)
        if at >= end:
            return np.int64(-CUT)
        byte = _byte(data, at)
        if byte == 0x7D:
            return np.int64(at + 1)
        if byte != 0x2C:
            return np.int64(-MALFORMED)
        at = _blanks(data, at + 1, end)


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
        position = _blanks(data, position, end)
        byte = _byte(data, position) if position < end else np.int64(0)
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
            position = _blanks(data, position + 1, end)
            if position < end and _byte(data, position) == 0x5D:
                position += 1
            else:
                while True:
                    if position >= end:
                        position = np.int64(-CUT)
                        break
                    if _byte(data, position) != 0x7B:
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
                    position = _blanks(data, position, end)
                    if position >= end:
                        position = np.int64(-CUT)
                        break
                    byte = _byte(data, position)
                    position += 1
                    if byte == 0x5D:
                        break
                    if byte != 0x2C:
                        position = np.int64(-MALFORMED)
                        break
                    position = _blanks(data, position, end)
        if position >= 0 and _blanks(data, position, end) < end:
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
            after, start, length, kind = _scalar(data, at[row], at[row] + size)
            if after == at[row] + size:
                starts[row] = start
                lengths[row] = -1 if kind == NULL else length
                kinds[row] = kind


@part
def _mixed(data, at, size, value):  # type: ignore[no-untyped-def]
    """Return a hash of bytes, mixed into ``value``."""
    done = 0
    while done + 8 <= size:
        value = (value ^ load_u64(data, at + done)) * np.uint64(0x9E3779B97F4A7C15)
        value ^= value >> np.uint64(29)
        done += 8
    while done < size:
        value = (value ^ load_u8(data, at + done)) * np.uint64(0x100000001B3)
        done += 1
    return (value ^ np.uint64(size + 1)) * np.uint64(0x9E3779B97F4A7C15)


@part
def _same_values(data, starts, lengths, row, other):  # type: ignore[no-untyped-def]
    for slot in range(starts.shape[0]):
        size = lengths[slot, row]
        if size != lengths[slot, other]:
            return False
        if size > 0 and not same_bytes(data, starts[slot, row], data, starts[slot, other], np.int64(size)):
            return False
    return True


@kernel
def group_rows(data, starts, lengths, groups, firsts):  # type: ignore[no-untyped-def]
    """Number the rows by their values: equal texts in all slots give equal numbers, in order of the first row.

    Fills ``groups`` by row, and ``firsts``, the first row of each group. Return the number of groups.
    """
    rows = groups.size
    size = 16
    while size < 2 * rows:
        size *= 2
    table = np.full(size, -1, np.int64)
    mask = np.uint64(size - 1)
    count = 0
    for row in range(rows):
        if row and _same_values(data, starts, lengths, row, row - 1):
            groups[row] = groups[row - 1]
            continue
        value = np.uint64(0x2545F4914F6CDD1D)
        for slot in range(starts.shape[0]):
            value = _mixed(data, starts[slot, row], np.int64(max(lengths[slot, row], 0)), value)
        place = (value ^ value >> np.uint64(32)) & mask
        while True:
            group = table[np.int64(place)]
            if group < 0:
                table[np.int64(place)] = count
                firsts[count] = row
                groups[row] = count
                count += 1
                break
            if _same_values(data, starts, lengths, row, firsts[group]):
                groups[row] = group
                break
            place = (place + np.uint64(1)) & mask
    return count


@kernel
def words_of(data, starts, lengths, words, word_ends, out):  # type: ignore[no-untyped-def]
    """Fill ``out`` with the number of the word that each value equals; -1: none, -2: null or absent."""
    for row in range(starts.size):
        out[row] = -1
        size = np.int64(lengths[row])
        if size < 0:
            out[row] = -2
            continue
        begin = 0
        for word in range(word_ends.size):
            end = word_ends[word]
            if end - begin == size and same_bytes(data, starts[row], words, begin, size):
                out[row] = word
                break
            begin = end
