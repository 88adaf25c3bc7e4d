"""How the rows of one table lie in memory: the numbers by which Python and the kernels speak of it, and its kernels.

``steps`` and ``wanted`` say how images are walked and what becomes of their values; a block holds the Arrow buffers of
all columns that are read, in the form of an Arrow IPC message.
"""

# mypy: disable-error-code="return-value,assignment,no-any-return,arg-type"
# (numbers in kernels are numpy's where Python's are declared)

from __future__ import annotations

import numpy as np

from cdc.binlog.kernels import kernel, store_64

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

_ALIGN = 64


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
