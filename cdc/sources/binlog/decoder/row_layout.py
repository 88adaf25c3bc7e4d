"""The layout of the rows of one table in memory: column numbers of the arrays that Python and the kernels share.

``steps`` describes the bytes of a row image. ``needed`` describes the columns that are read, and how their values are
converted. A block has the Arrow buffers of all these columns, as an Arrow IPC message. ``row_events`` fills the arrays.
"""

# mypy: disable-error-code="return-value,assignment,no-any-return,arg-type"
# (kernels use numpy's numbers where Python's are declared)

from __future__ import annotations

import numpy as np

from cdc.mysql.values.kernels import kernel, store_64

CHUNK = 512  # largest number of rows in a chunk
SPARE = 1  # rows of the scratch memory after the chunk: the before image, until it is compared

# columns of ``steps``: one row per group of adjacent columns of fixed size and the variable one after it, of at most 64
MASK, BYTES, WORD, OFFSET, PREFIX, BIT, VARIABLE_OFFSET, COLUMN, LAST = range(9)
STEP_FIELDS = 9
# columns of ``needed``, which has one row per column that is read
(
    OP,  # how offsets are converted to values
    SIZE,  # bytes of a value
    FIRST, SECOND,  # parameters of the op
    FROM,  # index in ``offsets`` of the start offsets of its group, or of its own
    DISTANCE,  # bytes from the start of the group, if no column before it is NULL
    EARLIER,  # null bits of the columns before it in its group
    NULL_BIT,
    NULL_WORD,
    HELD,  # 1: its values stay in ``held``, and Python makes the array
    TEXT_LIMIT,  # bytes reserved for its text
    VALIDITY_AT, VALUES_AT, TEXT_AT,  # offsets in the block
    NULLS,  # number of NULL values,
    BAD,  # of which so many were invalid dates
    TEXT_USED,
    SOURCE,  # number of the table's column
) = range(18)  # fmt: skip
NEEDED_FIELDS = 18
OFFSETS, TEXT, BYTES_AS_THEY_ARE = 64, 65, 66  # ops: keep start and length of each value; copy UTF-8 text; copy bytes

# ``control``: why and where decoding stopped, and its results
EVENT, ROWS, DELETES, DELETED_AT, FAULT, FAULT_COLUMN, FAULT_ROW, DOCUMENT, SEQUENCE_AT, BODY_END, HELD_END = range(11)
CONTROL_SIZE = 16

ALL_DONE, TOO_SMALL, FAILED = 0, 1, 2
OVERRUN, COLUMN_COUNT, ABSENT, BAD_DIGITS, NO_PROGRESS, BAD_BITMAP, NO_BASE, BAD_TEXT = range(1, 9)

_ALIGN = 64


@kernel
def group_events(events: np.ndarray, first: int, last: int, slots: int, order: np.ndarray, bounds: np.ndarray) -> None:
    """Sort events by slot and keep their order in each: slot s has ``order[bounds[s]:bounds[s + 1]]``."""
    for slot in range(slots + 1):
        bounds[slot] = 0
    for event in range(first, last):
        bounds[events[event, 0] + 1] += 1
    for slot in range(slots):
        bounds[slot + 1] += bounds[slot]
    offset = bounds.copy()
    for event in range(first, last):
        slot = events[event, 0]
        order[offset[slot]] = event
        offset[slot] += 1


@kernel
def lay_out(needed: np.ndarray, capacity: int, body_at: int, control: np.ndarray) -> None:
    """Assign memory for ``capacity`` rows to every column, in the block from ``body_at`` on, or in ``held``."""
    ends = np.zeros(2, np.int64)
    ends[0] = body_at
    bits = (capacity + 7 + _ALIGN) // _ALIGN * _ALIGN // 8 + _ALIGN
    bits = bits // _ALIGN * _ALIGN
    for column in range(needed.shape[0]):
        where = needed[column, HELD]
        needed[column, VALIDITY_AT] = ends[where]
        ends[where] += bits
        needed[column, VALUES_AT] = ends[where]
        size = 12 if needed[column, OP] == OFFSETS else needed[column, SIZE]
        ends[where] += ((capacity + 1) * size + 2 * _ALIGN) // _ALIGN * _ALIGN
        if needed[column, OP] > OFFSETS:
            needed[column, TEXT_AT] = ends[where]
            ends[where] += (needed[column, TEXT_LIMIT] + 2 * _ALIGN) // _ALIGN * _ALIGN
        needed[column, NULLS] = 0
        needed[column, BAD] = 0
        needed[column, TEXT_USED] = 0
    control[:] = 0
    control[DELETED_AT] = ends[0]
    control[SEQUENCE_AT] = ends[0] + bits
    control[BODY_END] = ends[0] + bits + capacity * 8
    control[HELD_END] = ends[1]


@kernel
def number_rows(order: np.ndarray, event_rows: np.ndarray, event_base: np.ndarray, block: np.ndarray,
                at: int) -> None:  # fmt: skip
    """Write the sequences of one table's rows to the block at ``at``. Those of event e begin at ``event_base[e]``."""
    for i in range(order.shape[0]):
        event = order[i]
        first = event_base[event]
        for row in range(event_rows[event]):
            store_64(block, at + 8 * row, first + row)
        at += 8 * event_rows[event]


@kernel
def describe(needed: np.ndarray, rows: int, body_at: int, block: np.ndarray, length_at: int, body_length_at: int,
             nodes_at: int, buffers_at: int, control: np.ndarray) -> None:  # fmt: skip
    """Write lengths and offsets of the body into the block's head, an Arrow IPC message prepared by the slot."""
    store_64(block, length_at, rows)
    store_64(block, body_length_at, control[BODY_END] - body_at)
    node = nodes_at
    buffer = buffers_at
    bits = (rows + 7) >> 3
    for column in range(needed.shape[0]):
        if needed[column, HELD]:
            continue
        nulls = needed[column, NULLS]
        store_64(block, node, rows)
        store_64(block, node + 8, nulls)
        node += 16
        store_64(block, buffer, needed[column, VALIDITY_AT] - body_at)
        store_64(block, buffer + 8, bits if nulls else np.int64(0))
        store_64(block, buffer + 16, needed[column, VALUES_AT] - body_at)
        if needed[column, OP] > OFFSETS:
            store_64(block, buffer + 24, 4 * (rows + 1))
            store_64(block, buffer + 32, needed[column, TEXT_AT] - body_at)
            store_64(block, buffer + 40, needed[column, TEXT_USED])
            buffer += 48
        else:
            store_64(block, buffer + 24, rows * needed[column, SIZE])
            buffer += 32
    for offset in range(2):
        store_64(block, node, rows)
        store_64(block, node + 8, np.int64(0))
        node += 16
        store_64(block, buffer, np.int64(0))
        store_64(block, buffer + 8, np.int64(0))
        store_64(block, buffer + 16, (control[SEQUENCE_AT] if offset else control[DELETED_AT]) - body_at)
        store_64(block, buffer + 24, 8 * rows if offset else bits)
        buffer += 32
