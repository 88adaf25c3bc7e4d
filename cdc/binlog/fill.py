"""From row events into Arrow buffers: up to CHUNK rows are walked, then their values are taken, column by column.

First it is noted where each wanted value begins, row by row; then these places turn into values while they are in the
cache. Values of fixed size land in their final buffers; of variable ones, start and length are left for the bulk
conversions of ``text`` and ``json``.
"""

# mypy: disable-error-code="return-value,assignment,no-any-return,arg-type"
# (numbers in kernels are numpy's where Python's are declared)

from __future__ import annotations

import numpy as np

from cdc.binlog import numeric, temporal
from cdc.binlog.framing import BITMAPS_AT, COLUMNS, END, KIND, read_pint
from cdc.binlog.gather import valid_utf8
from cdc.binlog.kernels import copy_32, inlined, kernel, load_u64, part, peek, store_32, store_64
from cdc.binlog.layout import (
    ABSENT,
    ALL_DONE,
    BAD,
    BAD_BITMAP,
    BAD_DIGITS,
    BAD_TEXT,
    COLUMN_COUNT,
    DELETED_AT,
    DELETES,
    EVENT,
    FAILED,
    FAULT,
    FAULT_COLUMN,
    FAULT_ROW,
    FIRST,
    FROM,
    HELD,
    MORE_ROOM,
    NO_PROGRESS,
    NULLS,
    OP,
    OVERRUN,
    PLACES,
    ROWS,
    SECOND,
    SIZE,
    SPARE,
    TEXT,
    TEXT_AT,
    TEXT_ROOM,
    TEXT_USED,
    VALIDITY_AT,
    VALUES_AT,
)
from cdc.binlog.numeric import put_16, put_32, put_64, put_decimal_64, put_decimal_128, put_small, put_wide
from cdc.binlog.temporal import put_date, put_moment
from cdc.binlog.walk import ABSENT_COLUMN, PARTIAL_UPDATE, differs, find_places, is_full, walk_image, walk_sparse_image

_UPDATES = (24, 31, 39)
_DELETES = (25, 32)
_HIGH_BITS = np.uint64(0x8080808080808080)


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
        nulls = find_places(wanted, column, explicit, seen, places, words, widths, width, count, own)
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
            partial = kind == PARTIAL_UPDATE
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
                at = walk_sparse_image(data, at, end, after_at if side else before_at, reads, widths, json_columns,
                                       partial_at, documents, control, places, sizes, width, row)  # fmt: skip
            else:
                at = walk_image(data, at, end, steps, widths, places, sizes, words, width, row)
            side += 1
        if at < 0 or at == image:
            if at == image:
                control[FAULT] = NO_PROGRESS
            elif at <= ABSENT_COLUMN:
                control[FAULT] = ABSENT
                control[FAULT_COLUMN] = ABSENT_COLUMN - at
            else:
                control[FAULT] = OVERRUN
                control[FAULT_COLUMN] = -at - 1
            control[FAULT_ROW] = behind
            return FAILED
        if update and differs(data, explicit, wanted, keys, places, sizes, words, widths, width, spare, taken):
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
