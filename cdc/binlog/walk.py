"""The walk over row images: where each of a table's values begins, chunk by chunk.

Never: reads outside the buffer. Every length is checked against the event's end before anything behind it is touched;
loads of a whole word may reach into the slack behind the buffer's last byte.
"""

# mypy: disable-error-code="return-value,assignment,no-any-return,arg-type"
# (numbers in kernels are numpy's where Python's are declared)

from __future__ import annotations

import numpy as np

from cdc.binlog.framing import BITMAPS_AT, COLUMNS, END, KIND, read_pint
from cdc.binlog.kernels import inlined, kernel, load_u32, load_u64, part, peek, poke, same_bytes, trailing_zeros
from cdc.binlog.layout import (
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
    OP,
    OVERRUN,
    PLACE,
    PLACES,
    PREFIX,
    SOURCE,
    VARIABLE_PLACE,
    WORD,
)

PARTIAL_UPDATE = 39  # the event's type
ABSENT_COLUMN = -(1 << 40)


@inlined
def _missing(bits: int, widths: np.ndarray, word: int) -> int:
    """Bytes that the columns whose ``bits`` are set would take."""
    size = np.int64(0)
    while bits:
        size += peek(widths, 64 * word + trailing_zeros(bits))
        bits &= bits - np.uint64(1)
    return size


@inlined
def walk_image(data: np.ndarray, at: int, end: int, steps: np.ndarray, widths: np.ndarray, places: np.ndarray,
          sizes: np.ndarray, words: np.ndarray, width: int, row: int) -> int:  # fmt: skip
    """Note where the stretches and the variable values of one complete image begin, and its null bits.

    The offset behind it, or -1 - column where it overruns.
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
        poke(places, steps[step, PLACE] + row, at)
        at += steps[step, BYTES]
        absent = word & np.uint64(steps[step, MASK])
        if absent:
            at -= _missing(absent, widths, loaded)
        prefix = steps[step, PREFIX]
        if at > end:
            return np.int64(-1 - steps[step, COLUMN])
        if prefix:
            own = steps[step, VARIABLE_PLACE] + row
            if word & np.uint64(steps[step, BIT]):
                poke(places, own, np.int64(-1))
                poke(sizes, own, np.int64(-1))
            else:
                # up to 4 bytes of the slack behind the buffer; a length cut off by the end leads beyond it
                length = np.int64(load_u32(data, at)) & ((np.int64(1) << (8 * prefix)) - 1)
                at += prefix
                poke(places, own, at)
                poke(sizes, own, length)
                at += length
                if at > end:
                    return np.int64(-1 - steps[step, LAST])
    return np.int64(at)


@part
def walk_sparse_image(data: np.ndarray, at: int, end: int, present_at: int, reads: np.ndarray, widths: np.ndarray,
                 json_columns: np.ndarray, partial_at: int, documents: np.ndarray, control: np.ndarray,
                 places: np.ndarray, sizes: np.ndarray, width: int, row: int) -> int:  # fmt: skip
    """Note where every wanted value of an image begins that may lack columns, or has JSON differences.

    Differences (``partial_at`` >= 0) were made into documents before: the next of ``documents`` (start, length) takes
    their place. -2^40 - column: a wanted column is absent.
    """
    count = widths.shape[0]
    present = 0
    for column in range(count):
        present += data[present_at + (column >> 3)] >> (column & 7) & 1
    bits_at = at
    at += (present + 7) >> 3
    if at > end:
        return np.int64(-1)
    place = 0
    json_place = -1
    for column in range(count):
        wanted = reads[column]
        own = wanted * width + row
        if json_columns[column]:
            json_place += 1
        if not data[present_at + (column >> 3)] >> (column & 7) & 1:
            if wanted >= 0:
                return np.int64(ABSENT_COLUMN - column)
            continue
        is_null = data[bits_at + (place >> 3)] >> (place & 7) & 1
        place += 1
        if is_null:
            if wanted >= 0:
                places[own] = -1
                sizes[own] = -1
            continue
        length = widths[column]
        if length < 0:
            prefix = -length
            if at + prefix > end:
                return np.int64(-1 - column)
            length = np.int64(load_u32(data, at)) & ((np.int64(1) << (8 * prefix)) - 1)
            at += prefix
        if wanted >= 0:
            places[own] = at
            sizes[own] = length
        at += length
        if at > end:
            return np.int64(-1 - column)
        if json_columns[column] and partial_at >= 0 and wanted >= 0:  # noqa: SIM102 (bits exist for JSON columns only)
            if data[partial_at + (json_place >> 3)] >> (json_place & 7) & 1:
                if control[DOCUMENT] >= documents.shape[0]:
                    return np.int64(-1 - column)
                places[own] = documents[control[DOCUMENT], 0]
                sizes[own] = documents[control[DOCUMENT], 1]
                control[DOCUMENT] += 1
    return np.int64(at)


@inlined
def is_full(data: np.ndarray, at: int, count: int) -> bool:
    """Whether the first ``count`` bits are all set."""
    for i in range(count >> 3):
        if data[at + i] != 255:
            return False
    rest = count & 7
    mask = (1 << rest) - 1
    return rest == 0 or (data[at + (count >> 3)] & mask) == mask


@inlined
def _place(explicit: bool, wanted: np.ndarray, column: int, places: np.ndarray, words: np.ndarray, widths: np.ndarray,
           width: int, row: int) -> int:  # fmt: skip
    """Where one value of a wanted column begins; -1: NULL."""
    if explicit:
        return peek(places, column * width + row)
    start = peek(places, wanted[column, FROM] + row)
    if wanted[column, OP] >= PLACES and wanted[column, FIRST] == 0:
        return start
    word = np.uint64(peek(words, wanted[column, NULL_WORD] * width + row))
    if word & np.uint64(wanted[column, NULL_BIT]):
        return np.int64(-1)
    earlier = word & np.uint64(wanted[column, EARLIER])
    return start + wanted[column, DISTANCE] - _missing(earlier, widths, wanted[column, NULL_WORD])


@inlined
def differs(data: np.ndarray, explicit: bool, wanted: np.ndarray, keys: np.ndarray, places: np.ndarray,
             sizes: np.ndarray, words: np.ndarray, widths: np.ndarray, width: int, before: int,
             after: int) -> bool:  # fmt: skip
    """Whether a key column's bytes differ between the images in rows ``before`` and ``after`` of the scratch."""
    for k in range(keys.shape[0]):
        column = keys[k]
        old = _place(explicit, wanted, column, places, words, widths, width, before)
        new = _place(explicit, wanted, column, places, words, widths, width, after)
        if old < 0 or new < 0:
            if old != new:
                return True
            continue
        size = widths[wanted[column, SOURCE]]
        if size < 0:
            own = column * width if explicit else wanted[column, FROM]
            size = peek(sizes, own + before)
            if size != peek(sizes, own + after):
                return True
        if not same_bytes(data, old, data, new, size):
            return True
    return False


@part
def find_places(wanted: np.ndarray, column: int, explicit: bool, seen: np.ndarray, places: np.ndarray,
                 words: np.ndarray, widths: np.ndarray, width: int, count: int, own: np.ndarray) -> bool:  # fmt: skip
    """The places of one column of fixed size in a chunk, into ``own``; whether there are NULLs (-1) among them."""
    if explicit:
        nulls = False
        for i in range(count):
            own[i] = peek(places, column * width + i)
            nulls |= own[i] < 0
        return nulls
    first = wanted[column, FROM]
    distance = wanted[column, DISTANCE]
    word = wanted[column, NULL_WORD]
    earlier = np.uint64(wanted[column, EARLIER])
    bit = np.uint64(wanted[column, NULL_BIT])
    for i in range(count):
        own[i] = peek(places, first + i) + distance
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
    """List the wanted JSON differences of partial updates: start and length of the document before, and of the diffs.

    How many there are, also beyond the room in ``found``; -1: an image overruns or lacks its base (``control``).
    """
    count = widths.shape[0]
    bitmap = (count + 7) >> 3
    starts = np.zeros((count, 2), np.int64)
    lengths = np.zeros((count, 2), np.int64)
    places, sizes = starts.reshape(2 * count), lengths.reshape(2 * count)
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
                                   control, places, sizes, np.int64(2), np.int64(0))  # fmt: skip
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
                                   nothing, control, places, sizes, np.int64(2), np.int64(1))  # fmt: skip
            if at < 0 or at == image:
                control[FAULT] = NO_BASE if at <= ABSENT_COLUMN else OVERRUN
                return -1
            place = -1
            for column in range(count):
                if not json_columns[column]:
                    continue
                place += 1
                if partial_at < 0 or not data[partial_at + (place >> 3)] >> (place & 7) & 1:
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
