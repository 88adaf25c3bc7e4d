"""The walk over row images: from the row events of one table to the places of its values, and on into Arrow buffers.

``decode_rows`` takes up to CHUNK rows at a time: first it notes where each wanted value begins, row by row, then it
turns these places into values, column by column, while they are in the cache. Values of fixed size land in their final
buffers; of variable ones, start and length are left for the bulk conversions of ``text`` and ``json``.

Never: reads outside the buffer. Every length is checked against the event's end before anything behind it is touched;
loads of a whole word may reach into the slack behind the buffer's last byte.
"""

# mypy: disable-error-code="return-value,assignment,no-any-return,arg-type"
# (numbers in kernels are numpy's where Python's are declared)

from __future__ import annotations

import numpy as np

from cdc.binlog import numeric, temporal
from cdc.binlog.framing import BITMAPS_AT, COLUMNS, END, KIND, read_pint
from cdc.binlog.gather import valid_utf8
from cdc.binlog.kernels import (
    copy_32,
    inlined,
    kernel,
    load_u32,
    load_u64,
    part,
    peek,
    poke,
    same_bytes,
    store_32,
    store_64,
    trailing_zeros,
)
from cdc.binlog.numeric import put_16, put_32, put_64, put_decimal_64, put_decimal_128, put_small, put_wide
from cdc.binlog.temporal import put_date, put_moment

CHUNK = 512  # rows at most
SPARE = 1  # rows of the scratch behind a chunk's: the image before, until it is compared

# columns of ``steps``, a row each stretch of columns of fixed size and the variable one behind it, within 64 columns
MASK, BYTES, WORD, PLACE, PREFIX, BIT, VARIABLE_PLACE, COLUMN, LAST = range(9)
STEP_FIELDS = 9
# columns of ``wanted``, a row each column that is read
(
    OP,  # what turns its places into values
    SIZE,  # bytes of a value
    FIRST, SECOND,  # of the op
    FROM,  # where in ``places`` the starts of its stretch are, or its own
    DISTANCE,  # bytes from the stretch's start, where nothing before is NULL
    EARLIER,  # null bits of the columns before it in its stretch
    NULL_BIT,
    NULL_WORD,
    HELD,  # 1: its values stay in ``held``, where Python makes the array
    TEXT_ROOM,  # bytes for its text
    VALIDITY_AT, VALUES_AT, TEXT_AT,  # offsets in the block
    NULLS,  # so many of its values are NULL,
    BAD,  # and so many of these were impossible dates
    TEXT_USED,
    SOURCE,  # the table's column
) = range(18)  # fmt: skip
WANTED_FIELDS = 18
PLACES, TEXT, BYTES_AS_THEY_ARE = 64, 65, 66  # ops: start and length of each value; the value itself, UTF-8 or not

# control: why and where a walk stopped, and what it found
EVENT, ROWS, DELETES, DELETED_AT, FAULT, FAULT_COLUMN, FAULT_ROW, DOCUMENT, SEQUENCE_AT, BODY_END, HELD_END = range(11)
CONTROL_SIZE = 16

ALL_DONE, MORE_ROOM, FAILED = 0, 1, 2
OVERRUN, COLUMN_COUNT, ABSENT, BAD_DIGITS, NO_PROGRESS, BAD_BITMAP, NO_BASE, BAD_TEXT = range(1, 9)

_PARTIAL = 39
_UPDATES = (24, 31, 39)
_DELETES = (25, 32)
_ALIGN = 64
_ABSENT = -(1 << 40)
_HIGH_BITS = np.uint64(0x8080808080808080)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


@inlined
def _missing(bits: int, widths: np.ndarray, word: int) -> int:
    """Bytes that the columns whose ``bits`` are set would take."""
    size = np.int64(0)
    while bits:
        size += peek(widths, 64 * word + trailing_zeros(bits))
        bits &= bits - np.uint64(1)
    return size


@inlined
def _walk(data: np.ndarray, at: int, end: int, steps: np.ndarray, widths: np.ndarray, places: np.ndarray,
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
def _walk_sparse(data: np.ndarray, at: int, end: int, present_at: int, reads: np.ndarray, widths: np.ndarray,
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
                return np.int64(_ABSENT - column)
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
def _differs(data: np.ndarray, explicit: bool, wanted: np.ndarray, keys: np.ndarray, places: np.ndarray,
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
def _find_places(wanted: np.ndarray, column: int, explicit: bool, seen: np.ndarray, places: np.ndarray,
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


@part
def _put_validity(own: np.ndarray, count: int, block: np.ndarray, base: int, row: int) -> int:
    """Clear the bits of NULLs from ``row`` on; how many there are."""
    nulls = np.int64(0)
    bits = np.int64(block[base + (row >> 3)]) & ((np.int64(1) << (row & 7)) - 1)
    for i in range(count):
        place = row + i
        there = np.int64(1) if own[i] >= 0 else np.int64(0)
        nulls += 1 - there
        bits |= there << (place & 7)
        if place & 7 == 7:
            block[base + (place >> 3)] = np.uint8(bits)
            bits = np.int64(0)
    behind = (row + count) & 7
    if behind:
        block[base + ((row + count) >> 3)] = np.uint8(bits | (np.int64(0xFF) << behind) & 0xFF)
    return nulls


@part
def _put_text(data: np.ndarray, own: np.ndarray, lengths: np.ndarray, count: int, block: np.ndarray, offsets_at: int,
              text_at: int, used: int, utf8: bool) -> int:  # fmt: skip
    """Copy the values of a chunk behind ``used`` bytes of text: how many these are now; -1 - i: i is not UTF-8.

    Words of 32 bytes: what is written beyond a value is written over by the next.
    """
    at = text_at + used
    for i in range(count):
        start = max(own[i], 0)
        length = max(lengths[i], 0)
        copy_32(data, start, block, at)
        done = np.int64(32)
        while done < length:
            copy_32(data, start + done, block, at + done)
            done += 32
        at += length
        store_32(block, offsets_at + 4 * i + 4, at - text_at)
    if utf8:
        bits = np.uint64(0)
        place = text_at + used
        while place + 8 <= at:
            bits |= load_u64(block, place)
            place += 8
        while place < at:
            bits |= np.uint64(block[place])
            place += 1
        if bits & _HIGH_BITS:
            for i in range(count):
                start = max(own[i], 0)
                if not valid_utf8(data, start, start + max(lengths[i], 0)):
                    return np.int64(-1 - i)
    return np.int64(at - text_at)


@part
def _has_room(wanted: np.ndarray, explicit: bool, sizes: np.ndarray, width: int, count: int) -> bool:
    """Whether the text of a chunk fits behind what there is."""
    for column in range(wanted.shape[0]):
        if wanted[column, OP] > PLACES:
            first = column * width if explicit else wanted[column, FROM]
            size = np.int64(0)
            for i in range(count):
                size += max(peek(sizes, first + i), 0)
            if wanted[column, TEXT_USED] + size > wanted[column, TEXT_ROOM]:
                return False
    return True


@part
def _flush(data: np.ndarray, explicit: bool, wanted: np.ndarray, widths: np.ndarray, places: np.ndarray,
           sizes: np.ndarray, words: np.ndarray, width: int, seen: np.ndarray, own: np.ndarray, count: int,
           held: np.ndarray, block: np.ndarray, capacity: int, control: np.ndarray) -> int:  # fmt: skip
    """Turn ``count`` places of every wanted column into values, behind the rows there are; as ``decode_rows``."""
    row = np.int64(control[ROWS])
    if not _has_room(wanted, explicit, sizes, width, count):
        return MORE_ROOM
    if not explicit:
        for word in range(seen.shape[0]):
            bits = np.uint64(0)
            for i in range(count):
                bits |= np.uint64(peek(words, word * width + i))
            seen[word] = bits
    for column in range(wanted.shape[0]):
        op = wanted[column, OP]
        size = wanted[column, SIZE]
        first = wanted[column, FIRST]
        second = wanted[column, SECOND]
        target = held if wanted[column, HELD] else block
        at = wanted[column, VALUES_AT] + row * size
        if op >= PLACES and first == 0:
            base = column * width if explicit else wanted[column, FROM]
            starts = places[base : base + count]
            lengths = sizes[base : base + count]
            if op == PLACES:
                length_at = wanted[column, VALUES_AT] + capacity * 8 + row * 4
                for i in range(count):
                    store_64(target, at + 8 * i, starts[i])
                    store_32(target, length_at + 4 * i, lengths[i])
                continue
            used = _put_text(data, starts, lengths, count, block, at, wanted[column, TEXT_AT],
                             wanted[column, TEXT_USED], op == TEXT)  # fmt: skip
            if used < 0:
                control[FAULT] = BAD_TEXT
                control[FAULT_COLUMN] = column
                control[FAULT_ROW] = row - 1 - used
                return FAILED
            wanted[column, TEXT_USED] = used
            nulls = False
            for i in range(count):
                nulls |= starts[i] < 0
            if nulls:
                wanted[column, NULLS] += _put_validity(starts, count, block, wanted[column, VALIDITY_AT], row)
            continue
        nulls = _find_places(wanted, column, explicit, seen, places, words, widths, width, count, own)
        bad = np.int64(0)
        digits = np.int64(-1)
        if op == PLACES:
            length_at = wanted[column, VALUES_AT] + capacity * 8 + row * 4
            for i in range(count):
                store_64(target, at + 8 * i, own[i])
                store_32(target, length_at + 4 * i, first if own[i] >= 0 else np.int64(-1))
            continue
        if op == temporal.DATE_3:
            bad = put_date(data, own, count, target, at)
        elif op >= temporal.DATE_3:
            bad = put_moment(op, first, data, own, count, target, at)
        elif size == 1:
            put_small(data, own, count, target, at)
        elif size == 2:
            put_16(op, data, own, count, target, at)
        elif size == 4:
            put_32(op, data, own, count, target, at)
        elif size == 8:
            put_64(op, first, data, own, count, target, at)
        elif op == numeric.DECIMAL_64:
            digits = put_decimal_64(first, second, data, own, count, target, at)
        elif op == numeric.DECIMAL_128:
            digits = put_decimal_128(first, second, data, own, count, target, at)
        else:
            put_wide(op, data, own, count, target, at)
        if digits >= 0:
            control[FAULT] = BAD_DIGITS
            control[FAULT_COLUMN] = column
            control[FAULT_ROW] = row + digits
            return FAILED
        if bad or nulls:
            wanted[column, BAD] += bad
            wanted[column, NULLS] += _put_validity(own, count, target, wanted[column, VALIDITY_AT], row)
    control[ROWS] = row + count
    return ALL_DONE


@kernel
def lay_out(wanted: np.ndarray, capacity: int, body_at: int, control: np.ndarray) -> None:
    """Give every column its place for ``capacity`` rows, in the block from ``body_at`` on, or in ``held``."""
    ends = np.zeros(2, np.int64)
    ends[0] = body_at
    bits = (capacity + 7 + _ALIGN) // _ALIGN * _ALIGN // 8 + _ALIGN
    bits = bits // _ALIGN * _ALIGN
    for column in range(wanted.shape[0]):
        where = wanted[column, HELD]
        wanted[column, VALIDITY_AT] = ends[where]
        ends[where] += bits
        wanted[column, VALUES_AT] = ends[where]
        size = 12 if wanted[column, OP] == PLACES else wanted[column, SIZE]
        ends[where] += ((capacity + 1) * size + 2 * _ALIGN) // _ALIGN * _ALIGN
        if wanted[column, OP] > PLACES:
            wanted[column, TEXT_AT] = ends[where]
            ends[where] += (wanted[column, TEXT_ROOM] + 2 * _ALIGN) // _ALIGN * _ALIGN
        wanted[column, NULLS] = 0
        wanted[column, BAD] = 0
        wanted[column, TEXT_USED] = 0
    control[:] = 0
    control[DELETED_AT] = ends[0]
    control[SEQUENCE_AT] = ends[0] + bits
    control[BODY_END] = ends[0] + bits + capacity * 8
    control[HELD_END] = ends[1]


@inlined
def _mark_deleted(block: np.ndarray, control: np.ndarray, taken: int) -> None:
    row = control[ROWS] + taken
    block[control[DELETED_AT] + (row >> 3)] |= np.uint8(1 << (row & 7))
    control[DELETES] += 1


@part
def _decode_rows(data: np.ndarray, events: np.ndarray, order: np.ndarray, steps: np.ndarray, reads: np.ndarray,
                widths: np.ndarray, keys: np.ndarray, json_columns: np.ndarray, documents: np.ndarray,
                wanted: np.ndarray, places: np.ndarray, sizes: np.ndarray, words: np.ndarray, width: int,
                held: np.ndarray, block: np.ndarray, capacity: int, event_rows: np.ndarray,
                control: np.ndarray, seen: np.ndarray, own: np.ndarray) -> int:  # fmt: skip
    """As ``decode_rows``; ``seen`` and ``own`` are scratch."""
    count = widths.shape[0]
    bitmap = (count + 7) >> 3
    bits = (capacity + 7) >> 3
    for column in range(wanted.shape[0]):
        target = held if wanted[column, HELD] else block
        base = wanted[column, VALIDITY_AT]
        target[base : base + bits] = 255
        if wanted[column, OP] > PLACES:
            store_32(block, wanted[column, VALUES_AT], np.int64(0))
    deleted_at = control[DELETED_AT]
    block[deleted_at : deleted_at + bits] = 0
    limit = np.int64(width - SPARE - 2)
    spare = np.int64(width - SPARE)
    taken = np.int64(0)  # rows in the chunk
    explicit = count < 0  # the chunk has the place of every value, not of stretches; a constant would compile twice
    turn = np.int64(0)
    event = np.int64(0)
    at = np.int64(0)
    end = np.int64(0)
    before_at = np.int64(0)
    after_at = np.int64(0)
    update = False
    delete = False
    partial = False
    sparse = False
    while True:
        while at >= end and turn < order.shape[0]:
            event = order[turn]
            control[EVENT] = turn
            turn += 1
            kind = events[event, KIND]
            end = events[event, END]
            before_at = events[event, BITMAPS_AT]
            update = kind == _UPDATES[0] or kind == _UPDATES[1] or kind == _UPDATES[2]
            delete = kind == _DELETES[0] or kind == _DELETES[1]
            partial = kind == _PARTIAL
            after_at = before_at + bitmap if update else before_at
            if events[event, COLUMNS] != count:
                control[FAULT] = COLUMN_COUNT
                return FAILED
            at = after_at + bitmap
            if at > end:
                control[FAULT] = BAD_BITMAP
                return FAILED
            sparse = partial or not is_full(data, before_at, count) or not is_full(data, after_at, count)
        done = at >= end
        if taken and (done or taken >= limit or explicit != sparse or control[ROWS] + taken + 2 > capacity):
            answer = _flush(data, explicit, wanted, widths, places, sizes, words, width, seen, own, taken, held, block,
                            capacity, control)  # fmt: skip
            if answer != ALL_DONE:
                return answer
            taken = np.int64(0)
        if done:
            return ALL_DONE
        if control[ROWS] + taken + 2 > capacity:
            return MORE_ROOM
        explicit = sparse
        image = at
        behind = at
        partial_at = np.int64(-1)
        side = 0 if update else 1  # the image before, the one after
        while side < 2 and at >= 0:
            row = taken if side else spare
            if side and partial:
                options, at = read_pint(data, at, end)
                if at >= 0 and options & 1:
                    total = 0
                    for column in range(count):
                        total += json_columns[column]
                    partial_at = at
                    at += (total + 7) >> 3
                if at < 0 or at > end:
                    at = np.int64(-1)
                    break
            behind = at
            if sparse:
                at = _walk_sparse(data, at, end, after_at if side else before_at, reads, widths, json_columns,
                                  partial_at, documents, control, places, sizes, width, row)  # fmt: skip
            else:
                at = _walk(data, at, end, steps, widths, places, sizes, words, width, row)
            side += 1
        if at < 0 or at == image:
            if at == image:
                control[FAULT] = NO_PROGRESS
            elif at <= _ABSENT:
                control[FAULT] = ABSENT
                control[FAULT_COLUMN] = _ABSENT - at
            else:
                control[FAULT] = OVERRUN
                control[FAULT_COLUMN] = -at - 1
            control[FAULT_ROW] = behind
            return FAILED
        if update and _differs(data, explicit, wanted, keys, places, sizes, words, widths, width, spare, taken):
            # the row moves: the after image goes one down, the whole before image takes its place
            for base in range(0, places.shape[0], width):
                places[base + taken + 1] = places[base + taken]
                sizes[base + taken + 1] = sizes[base + taken]
                places[base + taken] = places[base + spare]
                sizes[base + taken] = sizes[base + spare]
            for base in range(0, words.shape[0], width):
                words[base + taken + 1] = words[base + taken]
                words[base + taken] = words[base + spare]
            _mark_deleted(block, control, taken)
            taken += 1
            event_rows[event] += 1
        if delete:
            _mark_deleted(block, control, taken)
        taken += 1
        event_rows[event] += 1


@kernel
def decode_rows(data: np.ndarray, events: np.ndarray, order: np.ndarray, steps: np.ndarray, reads: np.ndarray,
                widths: np.ndarray, keys: np.ndarray, json_columns: np.ndarray, documents: np.ndarray,
                wanted: np.ndarray, places: np.ndarray, sizes: np.ndarray, words: np.ndarray, width: int,
                held: np.ndarray, block: np.ndarray, capacity: int, event_rows: np.ndarray,
                control: np.ndarray) -> int:  # fmt: skip
    """Decode the events ``order`` names into ``block``, as ``lay_out`` has it, with room for ``capacity`` rows.

    ALL_DONE; MORE_ROOM: begin again with a larger block; FAILED: ``control`` says why and where.
    """
    seen = np.zeros((widths.shape[0] + 63) >> 6, np.uint64)
    own = np.empty(width, np.int64)
    return _decode_rows(data, events, order, steps, reads, widths, keys, json_columns, documents, wanted, places, sizes,
                        words, width, held, block, capacity, event_rows, control, seen, own)  # fmt: skip


@kernel
def describe(wanted: np.ndarray, rows: int, body_at: int, block: np.ndarray, length_at: int, body_length_at: int,
             nodes_at: int, buffers_at: int, control: np.ndarray) -> None:  # fmt: skip
    """Write into the block's head what its body holds: an Arrow IPC message, whose form the slot made once."""
    store_64(block, length_at, rows)
    store_64(block, body_length_at, control[BODY_END] - body_at)
    node = nodes_at
    buffer = buffers_at
    bits = (rows + 7) >> 3
    for column in range(wanted.shape[0]):
        if wanted[column, HELD]:
            continue
        nulls = wanted[column, NULLS]
        store_64(block, node, rows)
        store_64(block, node + 8, nulls)
        node += 16
        store_64(block, buffer, wanted[column, VALIDITY_AT] - body_at)
        store_64(block, buffer + 8, bits if nulls else np.int64(0))
        store_64(block, buffer + 16, wanted[column, VALUES_AT] - body_at)
        if wanted[column, OP] > PLACES:
            store_64(block, buffer + 24, 4 * (rows + 1))
            store_64(block, buffer + 32, wanted[column, TEXT_AT] - body_at)
            store_64(block, buffer + 40, wanted[column, TEXT_USED])
            buffer += 48
        else:
            store_64(block, buffer + 24, rows * wanted[column, SIZE])
            buffer += 32
    for place in range(2):
        store_64(block, node, rows)
        store_64(block, node + 8, np.int64(0))
        node += 16
        store_64(block, buffer, np.int64(0))
        store_64(block, buffer + 8, np.int64(0))
        store_64(block, buffer + 16, (control[SEQUENCE_AT] if place else control[DELETED_AT]) - body_at)
        store_64(block, buffer + 24, 8 * rows if place else bits)
        buffer += 32


@kernel
def number_rows(order: np.ndarray, event_rows: np.ndarray, event_base: np.ndarray, block: np.ndarray,
                at: int) -> None:  # fmt: skip
    """Sequences of one table's rows, into the block from ``at`` on: those of event e begin at ``event_base[e]``."""
    for i in range(order.shape[0]):
        event = order[i]
        first = event_base[event]
        for row in range(event_rows[event]):
            store_64(block, at + 8 * row, first + row)
        at += 8 * event_rows[event]


@kernel
def group_events(events: np.ndarray, first: int, last: int, slots: int, order: np.ndarray, bounds: np.ndarray) -> None:
    """Sort the events ``first`` to ``last`` by slot, in source order within one: ``order[bounds[s]:bounds[s + 1]]``."""
    for slot in range(slots + 1):
        bounds[slot] = 0
    for event in range(first, last):
        bounds[events[event, 0] + 1] += 1
    for slot in range(slots):
        bounds[slot + 1] += bounds[slot]
    place = bounds.copy()
    for event in range(first, last):
        slot = events[event, 0]
        order[place[slot]] = event
        place[slot] += 1


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
        if events[event, KIND] != _PARTIAL:
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
            at = _walk_sparse(data, at, end, before_at, every, widths, json_columns, np.int64(-1), nothing, control,
                              places, sizes, np.int64(2), np.int64(0))  # fmt: skip
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
            at = _walk_sparse(data, at, end, before_at + bitmap, every, widths, json_columns, np.int64(-1), nothing,
                              control, places, sizes, np.int64(2), np.int64(1))  # fmt: skip
            if at < 0 or at == image:
                control[FAULT] = NO_BASE if at <= _ABSENT else OVERRUN
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
