"""The walk over row images: from the row events of one table to the places of its values, and on into Arrow buffers.

``decode_rows`` takes up to CHUNK rows at a time: first it notes where each wanted value begins, row by row, then it turns
these places into values, column by column, while they are in the cache. Values of fixed size land in their final
buffers; of variable ones, start and length are left for the bulk conversions of ``text`` and ``json``.

Never: reads outside the buffer. Every length is checked against the event's end before anything behind it is touched;
loads of a whole word may reach into the slack behind the buffer's last byte.
"""

from __future__ import annotations

import numpy as np

from cdc.binlog import numeric, temporal
from cdc.binlog.framing import BITMAPS_AT, COLUMNS, END, KIND, read_pint
from cdc.binlog.kernels import kernel, load_u8, load_u16, load_u32, load_u64, part, store_32, store_64
from cdc.binlog.numeric import put_16, put_32, put_64, put_decimal_64, put_decimal_128, put_small, put_wide
from cdc.binlog.temporal import put_date, put_moment

CHUNK = 512

# columns of ``steps``, a row each table column: how to get past it
WIDTH, READ, RUN, RUN_BYTES, RUN_MASK = range(5)
STEP_FIELDS = 5
# columns of ``wanted``, a row each column that is read
OP, SIZE, FIRST, SECOND, VALUES_AT, VALIDITY_AT, NULLS, BAD = range(8)
WANTED_FIELDS = 8
PLACES = 64  # op: start and length of each value go to the block
IN_KEY = 1

# control: where a walk stands, so that it can go on in a larger block
EVENT, OFFSET, ROWS, DELETES, DELETED_AT, FAULT, FAULT_COLUMN, FAULT_ROW, DOCUMENT = range(9)
CONTROL_SIZE = 16

ALL_DONE, MORE_ROOM, FAILED = 0, 1, 2
OVERRUN, COLUMN_COUNT, ABSENT, BAD_DIGITS, NO_PROGRESS, BAD_BITMAP, NO_BASE = range(1, 8)

_PARTIAL = 39
_UPDATES = (24, 31, 39)
_DELETES = (25, 32)


@part
def _prefix(data: np.ndarray, at: int, width: int) -> int:
    """The length that precedes a value: ``-width`` bytes."""
    if width == -1:
        return np.int64(load_u8(data, at))
    if width == -2:
        return np.int64(load_u16(data, at))
    if width == -3:
        return np.int64(load_u32(data, at) & np.uint64(0xFFFFFF))
    return np.int64(load_u32(data, at))


@part
def _walk(data: np.ndarray, at: int, end: int, steps: np.ndarray, starts: np.ndarray, lengths: np.ndarray, row: int,
          nulls: np.ndarray) -> int:  # fmt: skip
    """Note the places of one complete image's values; the offset behind it, or -1 - column where it overruns."""
    count = steps.shape[0]
    bits_at = at
    at += (count + 7) >> 3
    if at > end:
        return np.int64(-1)
    column = 0
    word = np.uint64(0)
    loaded = -1
    while column < count:
        if column >> 6 != loaded:
            loaded = column >> 6
            word = load_u64(data, bits_at + 8 * loaded)
        run = steps[column, RUN]
        if run and not word & np.uint64(steps[column, RUN_MASK]):
            at += steps[column, RUN_BYTES]
            column += run
            if at > end:
                return np.int64(-column)
            continue
        wanted = steps[column, READ]
        if word >> np.uint64(column & 63) & np.uint64(1):
            if wanted >= 0:
                starts[wanted, row] = -1
                lengths[wanted, row] = -1
                nulls[wanted] = 1
        else:
            width = steps[column, WIDTH]
            if width > 0:
                if wanted >= 0:
                    starts[wanted, row] = at
                at += width
            else:
                if at - width > end:
                    return np.int64(-1 - column)
                length = _prefix(data, at, width)
                at -= width
                if wanted >= 0:
                    starts[wanted, row] = at
                    lengths[wanted, row] = length
                at += length
            if at > end:
                return np.int64(-1 - column)
        column += 1
    return np.int64(at)


@part
def _walk_sparse(data: np.ndarray, at: int, end: int, present_at: int, steps: np.ndarray, json_columns: np.ndarray,
                 partial_at: int, documents: np.ndarray, control: np.ndarray, starts: np.ndarray,
                 lengths: np.ndarray, row: int, nulls: np.ndarray) -> int:  # fmt: skip
    """As ``_walk`` for images that lack columns, or whose JSON values are differences (``partial_at`` >= 0).

    Differences were made into documents before: the next of ``documents`` (start, length) takes their place.
    -2^40 - column: a wanted column is absent.
    """
    count = steps.shape[0]
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
        wanted = steps[column, READ]
        if json_columns[column]:
            json_place += 1
        if not data[present_at + (column >> 3)] >> (column & 7) & 1:
            if wanted >= 0:
                return np.int64(-(1 << 40) - column)
            continue
        is_null = data[bits_at + (place >> 3)] >> (place & 7) & 1
        place += 1
        if is_null:
            if wanted >= 0:
                starts[wanted, row] = -1
                lengths[wanted, row] = -1
                nulls[wanted] = 1
            continue
        width = steps[column, WIDTH]
        length = np.int64(0)
        if width < 0:
            if at - width > end:
                return np.int64(-1 - column)
            length = _prefix(data, at, width)
            at -= width
        if wanted >= 0:
            starts[wanted, row] = at
            lengths[wanted, row] = length
        at += width if width > 0 else length
        if at > end:
            return np.int64(-1 - column)
        if json_columns[column] and partial_at >= 0 and wanted >= 0:  # noqa: SIM102 (bits exist for JSON columns only)
            if data[partial_at + (json_place >> 3)] >> (json_place & 7) & 1:
                if control[DOCUMENT] >= documents.shape[0]:
                    return np.int64(-1 - column)
                starts[wanted, row] = documents[control[DOCUMENT], 0]
                lengths[wanted, row] = documents[control[DOCUMENT], 1]
                control[DOCUMENT] += 1
    return np.int64(at)


@part
def is_full(data: np.ndarray, at: int, count: int) -> bool:
    """Whether the first ``count`` bits are all set."""
    for i in range(count >> 3):
        if data[at + i] != 255:
            return False
    rest = count & 7
    mask = (1 << rest) - 1
    return rest == 0 or (data[at + (count >> 3)] & mask) == mask


@part
def _differs(data: np.ndarray, steps: np.ndarray, keys: np.ndarray, key_starts: np.ndarray, key_lengths: np.ndarray,
             starts: np.ndarray, lengths: np.ndarray, row: int) -> bool:  # fmt: skip
    """Whether a key column's bytes differ between the before image (``key_starts``) and the after image."""
    for k in range(keys.shape[0]):
        column = keys[k]
        wanted = steps[column, READ]
        old = key_starts[k, 0]
        new = starts[wanted, row]
        if old < 0 or new < 0:
            if old != new:
                return True
            continue
        width = steps[column, WIDTH]
        if width < 0:
            width = np.int64(key_lengths[k, 0])
            if width != np.int64(lengths[wanted, row]):
                return True
        done = 0
        while done + 8 <= width:
            if load_u64(data, old + done) != load_u64(data, new + done):
                return True
            done += 8
        while done < width:
            if data[old + done] != data[new + done]:
                return True
            done += 1
    return False


@part
def _flush(data: np.ndarray, wanted: np.ndarray, starts: np.ndarray, lengths: np.ndarray, nulls: np.ndarray,
           count: int, row: int, block: np.ndarray, capacity: int, control: np.ndarray) -> bool:  # fmt: skip
    """Turn ``count`` places of every wanted column into values, from ``row`` on in the block."""
    for column in range(wanted.shape[0]):
        op = wanted[column, OP]
        size = wanted[column, SIZE]
        first = wanted[column, FIRST]
        second = wanted[column, SECOND]
        at = wanted[column, VALUES_AT] + row * size
        places = starts[column]
        bad = np.int64(0)
        digits = np.int64(-1)
        if op == PLACES:
            length_at = wanted[column, VALUES_AT] + capacity * 8 + row * 4
            sizes = lengths[column]
            for i in range(count):
                place = places[i]
                store_64(block, at + 8 * i, place)
                length = np.int64(sizes[i])
                if first > 0:
                    length = first if place >= 0 else np.int64(-1)
                store_32(block, length_at + 4 * i, length)
        elif op >= temporal.DATE_3:
            if op == temporal.DATE_3:
                bad = put_date(data, places, count, block, at)
            else:
                bad = put_moment(op, first, data, places, count, block, at)
        elif size == 1:
            put_small(data, places, count, block, at)
        elif size == 2:
            put_16(op, data, places, count, block, at)
        elif size == 4:
            put_32(op, data, places, count, block, at)
        elif size == 8:
            put_64(op, first, data, places, count, block, at)
        elif op == numeric.DECIMAL_64:
            digits = put_decimal_64(first, second, data, places, count, block, at)
        elif op == numeric.DECIMAL_128:
            digits = put_decimal_128(first, second, data, places, count, block, at)
        else:
            put_wide(op, data, places, count, block, at)
        if digits >= 0:
            control[FAULT] = BAD_DIGITS
            control[FAULT_COLUMN] = column
            control[FAULT_ROW] = row + digits
            return False
        if bad or nulls[column]:
            wanted[column, BAD] += bad
            nulls[column] = 0
            base = wanted[column, VALIDITY_AT]
            for i in range(count):
                if places[i] < 0:
                    wanted[column, NULLS] += 1
                    bit = row + i
                    block[base + (bit >> 3)] &= np.uint8(~(1 << (bit & 7)) & 255)
    return True


@kernel
def decode_rows(data: np.ndarray, events: np.ndarray, order: np.ndarray, steps: np.ndarray, key_steps: np.ndarray,
                keys: np.ndarray, json_columns: np.ndarray, documents: np.ndarray, wanted: np.ndarray,
                starts: np.ndarray, lengths: np.ndarray, block: np.ndarray, capacity: int, event_rows: np.ndarray,
                control: np.ndarray) -> int:  # fmt: skip
    """Decode the events ``order`` names into ``block``, which has room for ``capacity`` rows.

    ALL_DONE; MORE_ROOM: call again with a larger block; FAILED: ``control`` says why and where.
    """
    nulls = np.zeros(wanted.shape[0], np.uint8)
    key_starts = np.zeros((max(keys.shape[0], 1), 1), np.int64)
    key_lengths = np.zeros((max(keys.shape[0], 1), 1), np.int32)
    key_nulls = np.zeros(max(keys.shape[0], 1), np.uint8)
    count = steps.shape[0]
    bitmap = (count + 7) >> 3
    taken = 0  # rows in the chunk
    while control[EVENT] < order.shape[0]:
        event = order[control[EVENT]]
        kind = events[event, KIND]
        end = events[event, END]
        before_at = events[event, BITMAPS_AT]
        update = kind == _UPDATES[0] or kind == _UPDATES[1] or kind == _UPDATES[2]
        delete = kind == _DELETES[0] or kind == _DELETES[1]
        after_at = before_at + bitmap if update else before_at
        at = control[OFFSET]
        if at == 0:
            if events[event, COLUMNS] != count:
                control[FAULT] = COLUMN_COUNT
                return FAILED
            at = after_at + bitmap
            if at > end:
                control[FAULT] = BAD_BITMAP
                return FAILED
        before_full = is_full(data, before_at, count)
        after_full = is_full(data, after_at, count) and kind != _PARTIAL
        while at < end:
            room = min(np.int64(CHUNK), capacity - control[ROWS])
            if taken + 2 > room:
                if not _flush(data, wanted, starts, lengths, nulls, taken, control[ROWS], block, capacity, control):
                    return FAILED
                control[ROWS] += taken
                taken = 0
                if capacity - control[ROWS] < 2:
                    control[OFFSET] = at
                    return MORE_ROOM
            image = at
            if update:
                if before_full:
                    at = _walk(data, at, end, key_steps, key_starts, key_lengths, 0, key_nulls)
                else:
                    at = _walk_sparse(data, at, end, before_at, key_steps, json_columns, np.int64(-1), documents,
                                      control, key_starts, key_lengths, 0, key_nulls)  # fmt: skip
            partial_at = np.int64(-1)
            behind = at
            if kind == _PARTIAL and at >= 0:
                options, at = read_pint(data, at, end)
                if at >= 0 and options & 1:
                    total = 0
                    for column in range(count):
                        total += json_columns[column]
                    partial_at = at
                    at += (total + 7) >> 3
                    if at > end:
                        at = np.int64(-1)
            if at >= 0:
                behind = at
                if after_full:
                    at = _walk(data, at, end, steps, starts, lengths, taken, nulls)
                else:
                    at = _walk_sparse(data, at, end, after_at, steps, json_columns, partial_at, documents, control,
                                      starts, lengths, taken, nulls)  # fmt: skip
            if (
                at >= 0
                and update
                and _differs(data, steps, keys, key_starts, key_lengths, starts, lengths, taken)
            ):
                # the row moves: the after image goes one down, the whole before image takes its place
                for column in range(wanted.shape[0]):
                    starts[column, taken + 1] = starts[column, taken]
                    lengths[column, taken + 1] = lengths[column, taken]
                if before_full:
                    gone = _walk(data, image, end, steps, starts, lengths, taken, nulls)
                else:
                    gone = _walk_sparse(data, image, end, before_at, steps, json_columns, np.int64(-1), documents,
                                        control, starts, lengths, taken, nulls)  # fmt: skip
                if gone < 0:
                    at = gone
                else:
                    block[control[DELETED_AT] + control[ROWS] + taken] = 1
                    control[DELETES] += 1
                    taken += 1
                    event_rows[event] += 1
            if at < 0 or at == image:
                if at == image:
                    control[FAULT] = NO_PROGRESS
                elif at <= -(1 << 40):
                    control[FAULT] = ABSENT
                    control[FAULT_COLUMN] = -at - (1 << 40)
                else:
                    control[FAULT] = OVERRUN
                    control[FAULT_COLUMN] = -at - 1
                control[FAULT_ROW] = behind
                return FAILED
            block[control[DELETED_AT] + control[ROWS] + taken] = 1 if delete else 0
            if delete:
                control[DELETES] += 1
            taken += 1
            event_rows[event] += 1
        control[OFFSET] = 0
        control[EVENT] += 1
    if not _flush(data, wanted, starts, lengths, nulls, taken, control[ROWS], block, capacity, control):
        return FAILED
    control[ROWS] += taken
    return ALL_DONE


@kernel
def number_rows(order: np.ndarray, event_rows: np.ndarray, event_base: np.ndarray, out: np.ndarray) -> None:
    """Sequences of one table's rows: those of event e begin at ``event_base[e]``."""
    at = 0
    for i in range(order.shape[0]):
        event = order[i]
        for row in range(event_rows[event]):
            out[at] = event_base[event] + row
            at += 1


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
def find_differences(data: np.ndarray, events: np.ndarray, order: np.ndarray, steps: np.ndarray,
                     json_columns: np.ndarray, found: np.ndarray, control: np.ndarray) -> int:  # fmt: skip
    """List the wanted JSON differences of partial updates: start and length of the document before, and of the diffs.

    How many there are, also beyond the room in ``found``; -1: an image overruns or lacks its base (``control``).
    """
    count = steps.shape[0]
    bitmap = (count + 7) >> 3
    starts = np.zeros((count, 2), np.int64)
    lengths = np.zeros((count, 2), np.int32)
    flags = np.zeros(count, np.uint8)
    every = steps.copy()
    total = 0
    for column in range(count):
        every[column, READ] = column if json_columns[column] else -1
        every[column, RUN] = 0
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
            at = _walk(data, at, end, every, starts, lengths, 0, flags)
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
            if is_full(data, before_at + bitmap, count):
                at = _walk(data, at, end, every, starts, lengths, 1, flags)
            else:
                at = _walk_sparse(data, at, end, before_at + bitmap, every, json_columns, np.int64(-1), nothing,
                                  control, starts, lengths, 1, flags)  # fmt: skip
            if at < 0 or at == image:
                control[FAULT] = NO_BASE if at <= -(1 << 40) else OVERRUN
                return -1
            place = -1
            for column in range(count):
                if not json_columns[column]:
                    continue
                place += 1
                if partial_at < 0 or not data[partial_at + (place >> 3)] >> (place & 7) & 1:
                    continue
                if steps[column, READ] < 0 or starts[column, 1] < 0:
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
