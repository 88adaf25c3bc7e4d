"""Row events of one table to Changes.

``decode`` runs the kernels of ``columns`` for the events of a table, as its ``TableDecoding`` says, and makes the Arrow
arrays of columns that kernels cannot make.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from cdc.errors import GAP_HINT, CdcError, DecodeError, UnsupportedRowFormat
from cdc.model.batch import Changes
from cdc.mysql.values.arrow_arrays import NOT_UTF8_TEXT
from cdc.mysql.values.kernels import SLACK_BYTES
from cdc.sources.binlog.decoder import columns as fill
from cdc.sources.binlog.decoder import partial_json, row_images
from cdc.sources.binlog.decoder import row_layout as layout
from cdc.sources.binlog.decoder.framing import BITMAPS_AT, END
from cdc.sources.binlog.decoder.table_plan import TableDecoding

log = logging.getLogger(__name__)

_MOST_HELD = 16 << 20
_MARGIN = 1.1  # room for rows in the next block, relative to the last one
_IMAGE_HINT = f"Set binlog_row_image=FULL on the server and in every session that writes. {GAP_HINT}"


@dataclass(slots=True)
class DecodeFault:
    """Why and where decoding stopped. ``batch_cutting`` adds file, offset and event."""

    error: type[CdcError]
    message: str
    hint: str
    event: int  # index into the events
    column: str = ""


class Scratch:
    """Memory for the offsets of one chunk. All tables of a decoder share it, because there may be thousands."""

    def __init__(self) -> None:
        self._numbers = np.zeros(0, np.int64)
        self._held = np.zeros(0, np.uint8)

    def of(self, slot: TableDecoding) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return arrays for starts, lengths and null bits of the slot."""
        one, bits = slot.offset_count * slot.width, (len(slot.widths) + 63) // 64 * slot.width
        if 2 * one + bits > len(self._numbers):
            self._numbers = np.zeros(2 * one + bits, np.int64)
        numbers = self._numbers
        return numbers[:one], numbers[one : 2 * one], numbers[2 * one : 2 * one + bits]

    def held(self, size: int) -> np.ndarray:
        """Return memory for values of which Python makes arrays. It is valid until the next call."""
        if size > len(self._held) or len(self._held) > max(8 * size, _MOST_HELD):
            self._held = np.empty(size, np.uint8)
        return self._held


@dataclass(slots=True)
class UnnumberedRows:
    """Rows of one slot that have no sequences yet."""

    slot: TableDecoding
    order: np.ndarray
    needed: np.ndarray
    block: np.ndarray
    made: list[pa.Array]  # the arrays that Python made of the values in ``held``
    control: np.ndarray
    rows: int

    def numbered(self, event_rows: np.ndarray, event_base: np.ndarray) -> Changes:
        """Return the rows with ``__sequence``: the rows of event e are numbered from ``event_base[e]`` on."""
        slot, message, block, control = self.slot, self.slot.message, self.block, self.control
        layout.number_rows(self.order, event_rows, event_base, block, control[layout.SEQUENCE_AT])
        layout.describe(
            self.needed, self.rows, len(message.head), block, message.length_at, message.body_length_at,
            message.nodes_at, message.buffers_at, control,
        )  # fmt: skip
        rows = message.arrays(block)
        if self.made:
            direct, made = iter(rows.columns), iter(self.made)
            held = [*self.needed[:, layout.HELD].tolist(), 0, 0]
            rows = pa.RecordBatch.from_arrays([next(made if h else direct) for h in held], schema=slot.arrow)
        return Changes(slot.schema, rows, rows.get_total_buffer_size())


def decode(
    slot: TableDecoding,
    data: np.ndarray,
    events: np.ndarray,
    order: np.ndarray,
    event_rows: np.ndarray,
    documents: np.ndarray,
    scratch: Scratch,
) -> UnnumberedRows | DecodeFault:
    """Decode the events in ``order``, which all belong to ``slot``. Write the rows of each event to ``event_rows``."""
    source_bytes = int((events[order, END] - events[order, BITMAPS_AT]).sum())
    control = np.zeros(layout.CONTROL_SIZE, np.int64)
    needed = slot.needed.copy()
    offsets, sizes, words = scratch.of(slot)
    head = slot.message.head
    capacity = _first_capacity(slot, needed, source_bytes)
    while True:
        layout.lay_out(needed, capacity, len(head), control)
        block = np.empty(int(control[layout.BODY_END]) + SLACK_BYTES, np.uint8)
        block[: len(head)] = head
        held = scratch.held(int(control[layout.HELD_END]) + SLACK_BYTES)
        answer = fill.decode_rows(
            data, events, order, slot.steps, slot.reads, slot.widths, slot.keys, slot.json_columns, documents, needed,
            offsets, sizes, words, slot.width, held, block, capacity, event_rows, control,
        )  # fmt: skip
        if answer != layout.TOO_SMALL:
            break
        capacity *= 2
        needed[:, layout.TEXT_LIMIT] = 2 * needed[:, layout.TEXT_LIMIT] + 1024
        event_rows[order] = 0
    if answer == layout.FAILED:
        return _fault(slot, control, order, event_rows)
    rows = int(control[layout.ROWS])
    slot.row_bytes = max(source_bytes / max(rows, 1), 1.0)
    slot.text_bytes = needed[:, layout.TEXT_USED] / max(rows, 1)
    made = _made(slot, data, needed, held, capacity, rows)
    return _invalid_key_date(slot, needed, order) or UnnumberedRows(slot, order, needed, block, made, control, rows)


def _first_capacity(slot: TableDecoding, needed: np.ndarray, source_bytes: int) -> int:
    """Return an estimate of the number of rows, and write to ``needed`` the room for their text."""
    if slot.text_bytes is not None:
        capacity = int(source_bytes / slot.row_bytes * _MARGIN) + 16
        needed[:, layout.TEXT_LIMIT] = slot.text_bytes * (_MARGIN * capacity) + 256
        return capacity
    texts = max(int((needed[:, layout.OP] > layout.OFFSETS).sum()), 1)
    needed[:, layout.TEXT_LIMIT] = source_bytes if texts == 1 else 2 * source_bytes // texts + 4096
    return source_bytes // (len(slot.widths) // 8 + 1 + int(np.abs(slot.widths).sum()) // 2) + 16


def _made(
    slot: TableDecoding, data: np.ndarray, needed: np.ndarray, held: np.ndarray, capacity: int, rows: int
) -> list[pa.Array]:
    """Return the arrays of the columns whose values are in ``held``. Count and log invalid dates."""
    arrays = []
    for i in np.flatnonzero(needed[:, layout.BAD]).tolist():
        name = slot.columns[i].column.name
        if name not in slot.invalid_dates and name not in slot.key_columns:
            log.warning("zero or invalid dates of %s.%s become NULL (logged once)", slot.schema.name, name)
        slot.invalid_dates[name] = slot.invalid_dates.get(name, 0) + int(needed[i, layout.BAD])
    for i in np.flatnonzero(needed[:, layout.HELD]).tolist():
        plan, at = slot.columns[i], int(needed[i, layout.VALUES_AT])
        if plan.finish is not None:
            starts = held[at : at + 8 * rows].view(np.int64)
            at += 8 * capacity
            arrays.append(plan.finish(data, starts, held[at : at + 4 * rows].view(np.int32)))
        elif plan.post is not None:
            values: np.ndarray = held[at : at + plan.size * rows].view(plan.block_type)
            valid = np.ones(rows, np.bool_)
            if needed[i, layout.NULLS]:
                validity_at = int(needed[i, layout.VALIDITY_AT])
                packed = held[validity_at : validity_at + (rows + 7) // 8]
                valid = np.unpackbits(packed, count=rows, bitorder="little").view(np.bool_)
            arrays.append(plan.post(values, valid))
    return arrays


def _invalid_key_date(slot: TableDecoding, needed: np.ndarray, order: np.ndarray) -> DecodeFault | None:
    for plan, bad in zip(slot.columns, needed[:, layout.BAD], strict=True):
        if bad and plan.column.name in slot.key_columns:
            return DecodeFault(
                DecodeError,
                "A zero or invalid date in a key column has no value in the target.",
                f"Correct these rows in the source, or choose a key without this column. {GAP_HINT}",
                int(order[0]),
                plan.column.name,
            )
    return None


def _fault(
    slot: TableDecoding, control: np.ndarray, order: np.ndarray, event_rows: np.ndarray | None = None
) -> DecodeFault:
    event = int(order[control[layout.EVENT]])
    code, column = int(control[layout.FAULT]), int(control[layout.FAULT_COLUMN])
    if code in (layout.BAD_DIGITS, layout.BAD_TEXT):
        assert event_rows is not None
        after = np.cumsum(event_rows[order])
        event = int(order[int(np.searchsorted(after, control[layout.FAULT_ROW], "right"))])
        name = slot.columns[column].column.name
        if code == layout.BAD_TEXT:
            message, hint = NOT_UTF8_TEXT
            return DecodeFault(DecodeError, message, hint, event, name)
        return DecodeFault(DecodeError, "A DECIMAL value has invalid digits.", GAP_HINT, event, name)
    name = slot.schema.columns[column].name if column < len(slot.schema.columns) else ""
    if code in (layout.ABSENT, layout.NO_BASE):
        message = (
            "A row image does not have a column that the mapping reads."
            if code == layout.ABSENT
            else "A partial JSON update does not have the document that it changes."
        )
        return DecodeFault(UnsupportedRowFormat, message, _IMAGE_HINT, event, name if code == layout.ABSENT else "")
    messages = {
        layout.OVERRUN: "A row is longer than its event.",
        layout.COLUMN_COUNT: "A row event and its table map have different numbers of columns.",
        layout.NO_PROGRESS: "A row has no bytes.",
        layout.BAD_BITMAP: "A row event ends inside its column bitmaps.",
    }
    return DecodeFault(DecodeError, messages[code], GAP_HINT, event, name if code == layout.OVERRUN else "")


def json_documents(
    slot: TableDecoding, data: np.ndarray, events: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | DecodeFault:
    """Apply the JSON differences of partial updates. Return the documents' bytes, and (start, length) of each one."""
    control = np.zeros(layout.CONTROL_SIZE, np.int64)
    found = np.zeros((1024, 4), np.int64)
    while True:
        count = row_images.find_differences(
            data, events, order, slot.reads, slot.widths, slot.json_columns, found, control
        )
        if count < 0:
            return _fault(slot, control, order)
        if count <= len(found):
            break
        found = np.zeros((count, 4), np.int64)
    found = np.ascontiguousarray(found[:count].T)
    return partial_json.apply_diffs(
        data, found[0], found[1].astype(np.int32), data, found[2], found[3].astype(np.int32)
    )
