"""The kernel ``decode_rows``: row events of one table to Arrow buffers, at most CHUNK rows at a time.

For each chunk, ``row_images`` records the offset of each value, row by row. Then the values are converted column by
column, while the offsets are in the processor's cache. Values of fixed size and plain text go to their final buffers.
For other values, start and length are kept, and ``cdc.mysql.values`` converts the column afterwards.
"""

# mypy: disable-error-code="return-value,assignment,no-any-return,arg-type"
# (kernels use numpy's numbers where Python's are declared)

from __future__ import annotations

import numpy as np

from cdc.mysql.values import numbers, times
from cdc.mysql.values.arrow_arrays import valid_utf8
from cdc.mysql.values.kernels import copy_32, inlined, kernel, load_u64, part, peek, store_32, store_64
from cdc.mysql.values.numbers import put_16, put_32, put_64, put_decimal_64, put_decimal_128, put_small, put_wide
from cdc.mysql.values.times import put_date, put_moment
from cdc.sources.binlog.decoder.event_fields import read_pint
from cdc.sources.binlog.decoder.framing import BITMAPS_AT, COLUMNS, END, KIND
from cdc.sources.binlog.decoder.row_images import (
    ABSENT_COLUMN,
    PARTIAL_UPDATE,
    differs,
    find_offsets,
    is_full,
    walk_image,
    walk_sparse_image,
)
from cdc.sources.binlog.decoder.row_layout import (
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
    NO_PROGRESS,
    NULLS,
    OFFSETS,
    OP,
    OVERRUN,
    ROWS,
    SECOND,
    SIZE,
    SPARE,
    TEXT,
    TEXT_AT,
    TEXT_LIMIT,
    TEXT_USED,
    TOO_SMALL,
    VALIDITY_AT,
    VALUES_AT,
)

_UPDATES = (24, 31, 39)
_DELETES = (25, 32)
_HIGH_BITS = np.uint64(0x8080808080808080)


@part
def _put_validity(own: np.ndarray, count: int, block: np.ndarray, base: int, row: int) -> int:
    """Clear the validity bits of NULLs from ``row`` on. Return the number of NULLs."""
    nulls = np.int64(0)
    bits = np.int64(block[base + (row >> 3)]) & ((np.int64(1) << (row & 7)) - 1)
    for i in range(count):
        offset = row + i
        there = np.int64(1) if own[i] >= 0 else np.int64(0)
        nulls += 1 - there
        bits |= there << (offset & 7)
        if offset & 7 == 7:
            block[base + (offset >> 3)] = np.uint8(bits)
            bits = np.int64(0)
    after = (row + count) & 7
    if after:
        block[base + ((row + count) >> 3)] = np.uint8(bits | (np.int64(0xFF) << after) & 0xFF)
    return nulls


@part
def _put_text(data: np.ndarray, own: np.ndarray, lengths: np.ndarray, count: int, block: np.ndarray, offsets_at: int,
              text_at: int, used: int, utf8: bool) -> int:  # fmt: skip
    """Copy the values of a chunk after ``used`` bytes of text. Return the new ``used``; -1 - i: value i is not UTF-8.

    Copies 32 bytes at a time: the next value overwrites the bytes after a value.
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
        offset = text_at + used
        while offset + 8 <= at:
            bits |= load_u64(block, offset)
            offset += 8
        while offset < at:
            bits |= np.uint64(block[offset])
            offset += 1
        if bits & _HIGH_BITS:
            for i in range(count):
                start = max(own[i], 0)
                if not valid_utf8(data, start, start + max(lengths[i], 0)):
                    return np.int64(-1 - i)
    return np.int64(at - text_at)


@part
def _can_add(needed: np.ndarray, explicit: bool, sizes: np.ndarray, width: int, count: int) -> bool:
    """Return whether there is room for the text of a chunk."""
    for column in range(needed.shape[0]):
        if needed[column, OP] > OFFSETS:
            first = column * width if explicit else needed[column, FROM]
            size = np.int64(0)
            for i in range(count):
                size += max(peek(sizes, first + i), 0)
            if needed[column, TEXT_USED] + size > needed[column, TEXT_LIMIT]:
                return False
    return True


@part
def _flush(data: np.ndarray, explicit: bool, needed: np.ndarray, widths: np.ndarray, offsets: np.ndarray,
           sizes: np.ndarray, words: np.ndarray, width: int, seen: np.ndarray, own: np.ndarray, count: int,
           held: np.ndarray, block: np.ndarray, capacity: int, control: np.ndarray) -> int:  # fmt: skip
    """Convert ``count`` values of every requested column, after the rows already decoded. Return as ``decode_rows``."""
    row = np.int64(control[ROWS])
    if not _can_add(needed, explicit, sizes, width, count):
        return TOO_SMALL
    if not explicit:
        for word in range(seen.shape[0]):
            bits = np.uint64(0)
            for i in range(count):
                bits |= np.uint64(peek(words, word * width + i))
            seen[word] = bits
    for column in range(needed.shape[0]):
        op = needed[column, OP]
        size = needed[column, SIZE]
        first = needed[column, FIRST]
        second = needed[column, SECOND]
        target = held if needed[column, HELD] else block
        at = needed[column, VALUES_AT] + row * size
        if op >= OFFSETS and first == 0:
            base = column * width if explicit else needed[column, FROM]
            starts = offsets[base : base + count]
            lengths = sizes[base : base + count]
            if op == OFFSETS:
                length_at = needed[column, VALUES_AT] + capacity * 8 + row * 4
                for i in range(count):
                    store_64(target, at + 8 * i, starts[i])
                    store_32(target, length_at + 4 * i, lengths[i])
                continue
            used = _put_text(data, starts, lengths, count, block, at, needed[column, TEXT_AT],
                             needed[column, TEXT_USED], op == TEXT)  # fmt: skip
            if used < 0:
                control[FAULT] = BAD_TEXT
                control[FAULT_COLUMN] = column
                control[FAULT_ROW] = row - 1 - used
                return FAILED
            needed[column, TEXT_USED] = used
            nulls = False
            for i in range(count):
                nulls |= starts[i] < 0
            if nulls:
                needed[column, NULLS] += _put_validity(starts, count, block, needed[column, VALIDITY_AT], row)
            continue
        nulls = find_offsets(needed, column, explicit, seen, offsets, words, widths, width, count, own)
        bad = np.int64(0)
        digits = np.int64(-1)
        if op == OFFSETS:
            length_at = needed[column, VALUES_AT] + capacity * 8 + row * 4
            for i in range(count):
                store_64(target, at + 8 * i, own[i])
                store_32(target, length_at + 4 * i, first if own[i] >= 0 else np.int64(-1))
            continue
        if op == times.DATE_3:
            bad = put_date(data, own, count, target, at)
        elif op >= times.DATE_3:
            bad = put_moment(op, first, data, own, count, target, at)
        elif size == 1:
            put_small(data, own, count, target, at)
        elif size == 2:
            put_16(op, data, own, count, target, at)
        elif size == 4:
            put_32(op, data, own, count, target, at)
        elif size == 8:
            put_64(op, first, data, own, count, target, at)
        elif op == numbers.DECIMAL_64:
            digits = put_decimal_64(first, second, data, own, count, target, at)
        elif op == numbers.DECIMAL_128:
            digits = put_decimal_128(first, second, data, own, count, target, at)
        else:
            put_wide(op, data, own, count, target, at)
        if digits >= 0:
            control[FAULT] = BAD_DIGITS
            control[FAULT_COLUMN] = column
            control[FAULT_ROW] = row + digits
            return FAILED
        if bad or nulls:
            needed[column, BAD] += bad
            needed[column, NULLS] += _put_validity(own, count, target, needed[column, VALIDITY_AT], row)
    control[ROWS] = row + count
    return ALL_DONE


@inlined
def _mark_deleted(block: np.ndarray, control: np.ndarray, added: int) -> None:
    row = control[ROWS] + added
    block[control[DELETED_AT] + (row >> 3)] |= np.uint8(1 << (row & 7))
    control[DELETES] += 1


@part
def _decode_rows(data: np.ndarray, events: np.ndarray, order: np.ndarray, steps: np.ndarray, reads: np.ndarray,
                widths: np.ndarray, keys: np.ndarray, json_columns: np.ndarray, documents: np.ndarray,
                needed: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, words: np.ndarray, width: int,
                held: np.ndarray, block: np.ndarray, capacity: int, event_rows: np.ndarray,
                control: np.ndarray, seen: np.ndarray, own: np.ndarray) -> int:  # fmt: skip
    """Do the same as ``decode_rows``; ``seen`` and ``own`` are scratch memory."""
    count = widths.shape[0]
    bitmap = (count + 7) >> 3
    bits = (capacity + 7) >> 3
    for column in range(needed.shape[0]):
        target = held if needed[column, HELD] else block
        base = needed[column, VALIDITY_AT]
        target[base : base + bits] = 255
        if needed[column, OP] > OFFSETS:
            store_32(block, needed[column, VALUES_AT], np.int64(0))
    deleted_at = control[DELETED_AT]
    block[deleted_at : deleted_at + bits] = 0
    limit = np.int64(width - SPARE - 2)
    spare = np.int64(width - SPARE)
    added = np.int64(0)  # rows in the chunk
    explicit = count < 0  # the chunk has one offset per value, not per group; False, but a constant would compile twice
    event_number = np.int64(0)
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
        while at >= end and event_number < order.shape[0]:
            event = order[event_number]
            control[EVENT] = event_number
            event_number += 1
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
        if added and (done or added >= limit or explicit != sparse or control[ROWS] + added + 2 > capacity):
            answer = _flush(data, explicit, needed, widths, offsets, sizes, words, width, seen, own, added, held, block,
                            capacity, control)  # fmt: skip
            if answer != ALL_DONE:
                return answer
            added = np.int64(0)
        if done:
            return ALL_DONE
        if control[ROWS] + added + 2 > capacity:
            return TOO_SMALL
        explicit = sparse
        image = at
        after = at
        partial_at = np.int64(-1)
        side = 0 if update else 1  # 0: the before image; 1: the after image
        while side < 2 and at >= 0:
            row = added if side else spare
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
            after = at
            if sparse:
                at = walk_sparse_image(data, at, end, after_at if side else before_at, reads, widths, json_columns,
                                       partial_at, documents, control, offsets, sizes, width, row)  # fmt: skip
            else:
                at = walk_image(data, at, end, steps, widths, offsets, sizes, words, width, row)
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
            control[FAULT_ROW] = after
            return FAILED
        if update and differs(data, explicit, needed, keys, offsets, sizes, words, widths, width, spare, added):
            # The key changed: insert the before image as a deleted row in front of the after image.
            for base in range(0, offsets.shape[0], width):
                offsets[base + added + 1] = offsets[base + added]
                sizes[base + added + 1] = sizes[base + added]
                offsets[base + added] = offsets[base + spare]
                sizes[base + added] = sizes[base + spare]
            for base in range(0, words.shape[0], width):
                words[base + added + 1] = words[base + added]
                words[base + added] = words[base + spare]
            _mark_deleted(block, control, added)
            added += 1
            event_rows[event] += 1
        if delete:
            _mark_deleted(block, control, added)
        added += 1
        event_rows[event] += 1


@kernel
def decode_rows(data: np.ndarray, events: np.ndarray, order: np.ndarray, steps: np.ndarray, reads: np.ndarray,
                widths: np.ndarray, keys: np.ndarray, json_columns: np.ndarray, documents: np.ndarray,
                needed: np.ndarray, offsets: np.ndarray, sizes: np.ndarray, words: np.ndarray, width: int,
                held: np.ndarray, block: np.ndarray, capacity: int, event_rows: np.ndarray,
                control: np.ndarray) -> int:  # fmt: skip
    """Decode the events of ``order`` into ``block``, which ``lay_out`` divided for ``capacity`` rows.

    Return ALL_DONE; TOO_SMALL: begin again with a larger block; FAILED: ``control`` has fault and position.
    """
    seen = np.zeros((widths.shape[0] + 63) >> 6, np.uint64)
    own = np.empty(width, np.int64)
    return _decode_rows(data, events, order, steps, reads, widths, keys, json_columns, documents, needed, offsets,
                        sizes, words, width, held, block, capacity, event_rows, control, seen, own)  # fmt: skip
