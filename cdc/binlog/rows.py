"""Row events of one table to Changes: the plan made once per table and mapping, and the drive of the walk kernels."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from cdc.batch import Changes, Reads
from cdc.binlog import fill, json, json_diff, layout, numeric, tables, temporal, text, walk
from cdc.binlog.charsets import Charset
from cdc.binlog.events import Malformed
from cdc.binlog.framing import BITMAPS_AT, END
from cdc.binlog.gather import NOT_UTF8_TEXT
from cdc.binlog.kernels import SLACK_BYTES
from cdc.binlog.message import Message
from cdc.binlog.tables import MappedColumn, TableMap
from cdc.errors import LEAVE_OUT, CdcError, DecodeError, SchemaMismatch, UnsupportedImage
from cdc.schema import DELETED, SEQUENCE, Column, Kind, TableSchema

log = logging.getLogger(__name__)

_SCRATCH_PLACES = 16384  # values in flight: 256 KiB, within a core's second-level cache
_FEWEST_ROWS = 64
_ODD = 9  # more, so that places do not fall on the same cache lines: powers of two make wide tables half as fast
_MOST_HELD = 16 << 20
_MARGIN = 1.1  # rows of the next block over what was seen last
_RESYNC = "Take a new snapshot of the table: cdc snapshot."
_IMAGE_MEND = f"Set binlog_row_image=FULL on the server and in every session that writes. {LEAVE_OUT}"

# a column's places become its array: (buffer, starts, lengths) -> array
Finish = Callable[[np.ndarray, np.ndarray, np.ndarray], pa.Array]


@dataclass(slots=True)
class ColumnPlan:
    """How one wanted column is decoded."""

    column: Column
    arrow: pa.DataType
    op: int
    size: int  # bytes of a value, or of its offset
    first: int = 0
    second: int = 0
    finish: Finish | None = None  # of variable values
    post: Callable[[np.ndarray, np.ndarray], pa.Array] | None = None  # (values, valid) -> array: labels, TIME
    block_type: type = np.int64  # of the values ``post`` gets


@dataclass(slots=True)
class Slot:
    """A mapped table under one schema and one layout of its rows: what decoding needs, made once."""

    table_map: TableMap
    schema: TableSchema
    columns: list[ColumnPlan]
    key_columns: frozenset[str]
    steps: np.ndarray
    reads: np.ndarray  # by table column: which of ``columns`` it is, or -1
    widths: np.ndarray  # by table column: bytes of a value, or less than 0: those of its length
    keys: np.ndarray
    json_columns: np.ndarray
    wanted: np.ndarray
    place_count: int
    width: int  # rows of the scratch
    arrow: pa.Schema
    message: Message
    row_bytes: float = 0.0  # of the source for an output row, as seen last: sizes the next block; 0: never seen
    text_bytes: np.ndarray | None = None  # by wanted column, of an output row
    impossible_dates: dict[str, int] = field(default_factory=dict)  # by column, turned into NULL


@dataclass(slots=True)
class Fault:
    """Why and where a walk stopped, for the decoder to put file, offset and event to it."""

    error: type[CdcError]
    message: str
    mend: str
    event: int  # index into the events
    column: str = ""


def make_slot(table_map: TableMap, schema: TableSchema, reads: Reads) -> Slot:
    """Plan the decoding of a table. Raises: SchemaMismatch - the schema does not describe these rows."""
    if len(schema.columns) != len(table_map.columns):
        raise SchemaMismatch(
            f"Rows have {len(table_map.columns)} columns, the schema known has {len(schema.columns)}",
            mend=_RESYNC,
            table=schema.name,
        )
    wanted = {name.casefold() for name in reads.columns | reads.key}
    key = {name.casefold() for name in reads.key}
    columns = np.full(len(schema.columns), -1, np.int64)
    plans: list[ColumnPlan] = []
    keys: list[int] = []
    for i, (column, mapped) in enumerate(zip(schema.columns, table_map.columns, strict=True)):
        if column.name.casefold() in wanted:
            columns[i] = len(plans)
            plans.append(_plan(column, mapped, schema))
        if column.name.casefold() in key:
            keys.append(i)
    widths = np.array([mapped.width for mapped in table_map.columns], np.int64)
    wants = np.zeros((len(plans), layout.WANTED_FIELDS), np.int64)
    for row, plan in zip(wants, plans, strict=True):
        row[[layout.OP, layout.SIZE, layout.FIRST, layout.SECOND]] = plan.op, plan.size, plan.first, plan.second
        row[layout.HELD] = plan.finish is not None or plan.post is not None
    steps, place_count, width = _steps(widths, columns, wants)
    fields = [pa.field(plan.column.name, plan.arrow) for plan in plans]
    ours = [pa.field(DELETED, pa.bool_()), pa.field(SEQUENCE, pa.int64())]
    direct = [made for made, plan in zip(fields, plans, strict=True) if plan.finish is None and plan.post is None]
    return Slot(
        table_map,
        schema,
        plans,
        frozenset(schema.columns[i].name for i in keys),
        steps,
        columns,
        widths,
        columns[np.array(keys, np.int64)],
        np.array([mapped.type == tables.JSON for mapped in table_map.columns], np.uint8),
        wants,
        place_count,
        width,
        pa.schema(fields + ours),
        Message.of(pa.schema(direct + ours)),
    )


def _steps(widths: np.ndarray, reads: np.ndarray, wants: np.ndarray) -> tuple[np.ndarray, int, int]:
    """The way through a complete image, number of places to note and rows of the scratch; fills ``wants``."""
    steps: list[list[int]] = []
    sizes, count, i, places = widths.tolist(), len(widths), 0, 0
    while i < count:
        first, mask, size, word = i, 0, 0, i >> 6
        step = [0] * layout.STEP_FIELDS
        step[layout.COLUMN], step[layout.WORD], step[layout.PLACE], step[layout.VARIABLE_PLACE] = first, word, -1, -1
        while i < count and i >> 6 == word and sizes[i] >= 0:
            if reads[i] >= 0:
                if step[layout.PLACE] < 0:
                    step[layout.PLACE], places = places, places + 1
                row = wants[reads[i]]
                row[layout.FROM], row[layout.DISTANCE], row[layout.EARLIER] = step[layout.PLACE], size, _signed(mask)
            mask |= 1 << (i & 63)
            size += sizes[i]
            i += 1
        step[layout.MASK], step[layout.BYTES], step[layout.LAST] = _signed(mask), size, i - 1
        if i < count and i >> 6 == word:
            step[layout.PREFIX], step[layout.BIT], step[layout.LAST] = -sizes[i], _signed(1 << (i & 63)), i
            if reads[i] >= 0:
                wants[reads[i], layout.FROM] = step[layout.VARIABLE_PLACE] = places
                places += 1
            i += 1
        steps.append(step)
    for column, wanted in enumerate(reads.tolist()):
        if wanted >= 0:
            wants[wanted, layout.SOURCE], wants[wanted, layout.NULL_WORD] = column, column >> 6
            wants[wanted, layout.NULL_BIT] = _signed(1 << (column & 63))
    made = np.array(steps, np.int64).reshape(-1, layout.STEP_FIELDS)
    count = max(places + 1, len(wants))  # what is not read is noted in a place of its own, which costs no branch
    width = max(_FEWEST_ROWS, min(layout.CHUNK, _SCRATCH_PLACES // count)) + _ODD
    for place in (layout.PLACE, layout.VARIABLE_PLACE):
        made[:, place] = np.where(made[:, place] < 0, places, made[:, place]) * width
    wants[:, layout.FROM] *= width
    return made, count, width


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


class Scratch:
    """Places of one chunk's values, shared by all tables of a decoder, of which there may be thousands."""

    def __init__(self) -> None:
        self._numbers = np.zeros(0, np.int64)
        self._held = np.zeros(0, np.uint8)

    def of(self, slot: Slot) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts, lengths and null bits for the slot."""
        one, bits = slot.place_count * slot.width, (len(slot.widths) + 63) // 64 * slot.width
        if 2 * one + bits > len(self._numbers):
            self._numbers = np.zeros(2 * one + bits, np.int64)
        numbers = self._numbers
        return numbers[:one], numbers[one : 2 * one], numbers[2 * one : 2 * one + bits]

    def held(self, size: int) -> np.ndarray:
        """Room for values from which Python makes arrays; good until the next call."""
        if size > len(self._held) or len(self._held) > max(8 * size, _MOST_HELD):
            self._held = np.empty(size, np.uint8)
        return self._held


_SIGNED = {
    Kind.TINYINT: (numeric.COPY_1, numeric.U8_I16),
    Kind.SMALLINT: (numeric.COPY_2, numeric.U16_I32),
    Kind.MEDIUMINT: (numeric.I24_I32, numeric.U24_I32),
    Kind.INT: (numeric.COPY_4, numeric.U32_I64),
    Kind.BIGINT: (numeric.COPY_8, numeric.U64_DECIMAL),
}
_TYPES_OF_KIND = {
    Kind.TINYINT: {tables.TINY}, Kind.SMALLINT: {tables.SHORT}, Kind.MEDIUMINT: {tables.INT24}, Kind.INT: {tables.LONG},
    Kind.BIGINT: {tables.LONGLONG}, Kind.FLOAT: {tables.FLOAT}, Kind.DOUBLE: {tables.DOUBLE},
    Kind.DECIMAL: {tables.NEWDECIMAL}, Kind.BIT: {tables.BIT}, Kind.YEAR: {tables.YEAR}, Kind.DATE: {tables.DATE},
    Kind.DATETIME: {tables.DATETIME2, tables.DATETIME}, Kind.TIMESTAMP: {tables.TIMESTAMP2, tables.TIMESTAMP},
    Kind.TIME: {tables.TIME2, tables.TIME}, Kind.ENUM: {tables.ENUM}, Kind.SET: {tables.SET},
    Kind.JSON: {tables.JSON}, Kind.GEOMETRY: {tables.GEOMETRY}, Kind.VECTOR: {tables.VECTOR, tables.VARCHAR},
}  # fmt: skip
_BYTE_TYPES = {
    tables.STRING, tables.VARCHAR, tables.VAR_STRING, tables.BLOB, tables.MARIADB_BLOB_COMPRESSED,
    tables.MARIADB_VARCHAR_COMPRESSED,
}  # fmt: skip
_COMPRESSED = (tables.MARIADB_BLOB_COMPRESSED, tables.MARIADB_VARCHAR_COMPRESSED)
_OLD_TIMES = {
    tables.DATETIME: temporal.DATETIME_OLD, tables.TIMESTAMP: temporal.TIMESTAMP_OLD, tables.TIME: temporal.TIME_OLD,
    tables.DATETIME2: temporal.DATETIME_2, tables.TIMESTAMP2: temporal.TIMESTAMP_2, tables.TIME2: temporal.TIME_2,
}  # fmt: skip


def _plan(column: Column, mapped: MappedColumn, schema: TableSchema) -> ColumnPlan:
    kind, arrow = column.kind, column.arrow
    if mapped.type not in _TYPES_OF_KIND.get(kind, _BYTE_TYPES) or not _fits(column, mapped):
        raise SchemaMismatch(
            f"Rows carry column type {mapped.type}, metadata {mapped.meta:#x}, where the schema says {column.type}",
            mend=_RESYNC,
            table=schema.name,
            column=column.name,
        )
    if kind in _SIGNED:
        op = _SIGNED[kind][column.unsigned]
        return ColumnPlan(column, arrow, op, arrow.bit_width // 8)
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return ColumnPlan(column, arrow, numeric.COPY_4 if kind is Kind.FLOAT else numeric.COPY_8, mapped.width)
    if kind is Kind.DECIMAL:
        return _plan_decimal(column, mapped)
    if kind is Kind.BIT:
        op = numeric.BITS_I64 if column.length < 64 else numeric.BITS_DECIMAL
        return ColumnPlan(column, arrow, op, arrow.bit_width // 8, mapped.width)
    if kind is Kind.YEAR:
        return ColumnPlan(column, arrow, numeric.YEAR_I16, 2)
    if kind is Kind.DATE:
        return ColumnPlan(column, arrow, temporal.DATE_3, 4)
    if kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME):
        fsp = mapped.meta & 0xFF
        plan = ColumnPlan(column, arrow, _OLD_TIMES[mapped.type], 8, fsp)
        if kind is Kind.TIME:
            plan.post = lambda values, valid: temporal.time_text_array(values, valid, fsp)
        return plan
    if kind is Kind.ENUM:
        op = numeric.INDEX_1 if mapped.width == 1 else numeric.INDEX_2
        labels = column.labels
        return ColumnPlan(
            column, arrow, op, 4, post=lambda values, valid: text.enum_array(values, valid, labels), block_type=np.int32
        )
    if kind is Kind.SET:
        labels = column.labels
        return ColumnPlan(
            column, arrow, numeric.MASK, 8, mapped.width,
            post=lambda values, valid: text.set_array(values.view(np.uint64), valid, labels),
        )  # fmt: skip
    if mapped.type not in _COMPRESSED:
        if kind in (Kind.VARBINARY, Kind.BLOB, Kind.GEOMETRY):
            return ColumnPlan(column, arrow, layout.BYTES_AS_THEY_ARE, 4)
        if kind in (Kind.CHAR, Kind.VARCHAR, Kind.TEXT) and Charset(column.charset or "utf8mb4").is_utf8:
            return ColumnPlan(column, arrow, layout.TEXT, 4)
    return ColumnPlan(column, arrow, layout.PLACES, 8, finish=_finish(column, mapped))


def _fits(column: Column, mapped: MappedColumn) -> bool:
    """Whether sizes agree, as far as the rows' metadata tells them."""
    low, high = mapped.meta & 0xFF, mapped.meta >> 8
    if column.kind is Kind.DECIMAL:
        return (column.precision, column.scale) == (low, high)
    if mapped.type in (tables.DATETIME2, tables.TIMESTAMP2, tables.TIME2):
        return column.fsp == low
    if mapped.type in (tables.DATETIME, tables.TIMESTAMP, tables.TIME):
        return column.fsp == 0  # the old form carries a fraction without saying so; its size cannot be known
    if column.kind is Kind.BIT:
        return column.length == high * 8 + low
    return True


def _plan_decimal(column: Column, mapped: MappedColumn) -> ColumnPlan:
    precision, scale = column.precision, column.scale
    if precision <= 18:
        return ColumnPlan(column, column.arrow, numeric.DECIMAL_64, 16, precision, scale)
    if precision <= 38:
        return ColumnPlan(column, column.arrow, numeric.DECIMAL_128, 16, precision, scale)

    def finish(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.Array:
        array = numeric.decimal_text_array(data, starts, lengths, precision, scale)
        if isinstance(array, int):
            raise Malformed(f"a DECIMAL with impossible digits in column {column.name}")
        return array

    return ColumnPlan(column, column.arrow, layout.PLACES, 8, mapped.width, finish=finish)


def _finish(column: Column, mapped: MappedColumn) -> Finish:
    finish = _finish_plain(column)
    if mapped.type not in _COMPRESSED:
        return finish
    return lambda data, starts, lengths: finish(*text.uncompress(data, starts, lengths))


def _finish_plain(column: Column) -> Finish:
    kind = column.kind
    if kind is Kind.JSON:
        return json.text_array
    if kind is Kind.UUID:
        return text.uuid_array
    if kind is Kind.INET4:
        return text.inet4_array
    if kind is Kind.INET6:
        return text.inet6_array
    if kind is Kind.VECTOR:
        return numeric.vector_array
    if kind is Kind.BINARY:
        width = column.length
        return lambda data, starts, lengths: text.binary_array(data, starts, lengths, width)
    if kind in (Kind.VARBINARY, Kind.BLOB, Kind.GEOMETRY):
        return text.binary_array
    charset = Charset(column.charset or "utf8mb4")
    return lambda data, starts, lengths: text.text_array(data, starts, lengths, charset)


@dataclass(slots=True)
class Decoded:
    """Rows of one slot before they have sequences."""

    slot: Slot
    order: np.ndarray
    wanted: np.ndarray
    block: np.ndarray
    made: list[pa.Array]  # what Python made of the values held
    control: np.ndarray
    rows: int

    def numbered(self, event_rows: np.ndarray, event_base: np.ndarray) -> Changes:
        """With ``__sequence``: rows of event e are numbered from ``event_base[e]`` on."""
        slot, message, block, control = self.slot, self.slot.message, self.block, self.control
        layout.number_rows(self.order, event_rows, event_base, block, control[layout.SEQUENCE_AT])
        layout.describe(
            self.wanted, self.rows, len(message.head), block, message.length_at, message.body_length_at,
            message.nodes_at, message.buffers_at, control,
        )  # fmt: skip
        rows = message.arrays(block)
        if self.made:
            direct, made = iter(rows.columns), iter(self.made)
            held = [*self.wanted[:, layout.HELD].tolist(), 0, 0]
            rows = pa.RecordBatch.from_arrays([next(made if h else direct) for h in held], schema=slot.arrow)
        return Changes(slot.schema, rows)


def decode(
    slot: Slot,
    data: np.ndarray,
    events: np.ndarray,
    order: np.ndarray,
    event_rows: np.ndarray,
    documents: np.ndarray,
    scratch: Scratch,
) -> Decoded | Fault:
    """Decode the events that ``order`` names, all of ``slot``; fills ``event_rows`` with rows per event."""
    source_bytes = int((events[order, END] - events[order, BITMAPS_AT]).sum())
    control = np.zeros(layout.CONTROL_SIZE, np.int64)
    wanted = slot.wanted.copy()
    places, sizes, words = scratch.of(slot)
    head = slot.message.head
    capacity = _first_capacity(slot, wanted, source_bytes)
    while True:
        layout.lay_out(wanted, capacity, len(head), control)
        block = np.empty(int(control[layout.BODY_END]) + SLACK_BYTES, np.uint8)
        block[: len(head)] = head
        held = scratch.held(int(control[layout.HELD_END]) + SLACK_BYTES)
        answer = fill.decode_rows(
            data, events, order, slot.steps, slot.reads, slot.widths, slot.keys, slot.json_columns, documents, wanted,
            places, sizes, words, slot.width, held, block, capacity, event_rows, control,
        )  # fmt: skip
        if answer != layout.MORE_ROOM:
            break
        capacity *= 2
        wanted[:, layout.TEXT_ROOM] = 2 * wanted[:, layout.TEXT_ROOM] + 1024
        event_rows[order] = 0
    if answer == layout.FAILED:
        return _fault(slot, control, order, event_rows)
    rows = int(control[layout.ROWS])
    slot.row_bytes = max(source_bytes / max(rows, 1), 1.0)
    slot.text_bytes = wanted[:, layout.TEXT_USED] / max(rows, 1)
    made = _made(slot, data, wanted, held, capacity, rows)
    return _impossible_key(slot, wanted, order) or Decoded(slot, order, wanted, block, made, control, rows)


def _first_capacity(slot: Slot, wanted: np.ndarray, source_bytes: int) -> int:
    """Rows to make room for, and in ``wanted`` room for their text."""
    if slot.text_bytes is not None:
        capacity = int(source_bytes / slot.row_bytes * _MARGIN) + 16
        wanted[:, layout.TEXT_ROOM] = slot.text_bytes * (_MARGIN * capacity) + 256
        return capacity
    texts = max(int((wanted[:, layout.OP] > layout.PLACES).sum()), 1)
    wanted[:, layout.TEXT_ROOM] = source_bytes if texts == 1 else 2 * source_bytes // texts + 4096
    return source_bytes // (len(slot.widths) // 8 + 1 + int(np.abs(slot.widths).sum()) // 2) + 16


def _made(
    slot: Slot, data: np.ndarray, wanted: np.ndarray, held: np.ndarray, capacity: int, rows: int
) -> list[pa.Array]:
    """The arrays of the columns whose values were held."""
    arrays = []
    for i in np.flatnonzero(wanted[:, layout.BAD]).tolist():
        name = slot.columns[i].column.name
        if name not in slot.impossible_dates and name not in slot.key_columns:
            log.warning("zero or impossible dates of %s.%s become NULL; told once", slot.schema.name, name)
        slot.impossible_dates[name] = slot.impossible_dates.get(name, 0) + int(wanted[i, layout.BAD])
    for i in np.flatnonzero(wanted[:, layout.HELD]).tolist():
        plan, at = slot.columns[i], int(wanted[i, layout.VALUES_AT])
        if plan.finish is not None:
            starts = held[at : at + 8 * rows].view(np.int64)
            at += 8 * capacity
            arrays.append(plan.finish(data, starts, held[at : at + 4 * rows].view(np.int32)))
        elif plan.post is not None:
            values: np.ndarray = held[at : at + plan.size * rows].view(plan.block_type)
            valid = np.ones(rows, np.bool_)
            if wanted[i, layout.NULLS]:
                validity_at = int(wanted[i, layout.VALIDITY_AT])
                packed = held[validity_at : validity_at + (rows + 7) // 8]
                valid = np.unpackbits(packed, count=rows, bitorder="little").view(np.bool_)
            arrays.append(plan.post(values, valid))
    return arrays


def _impossible_key(slot: Slot, wanted: np.ndarray, order: np.ndarray) -> Fault | None:
    for plan, bad in zip(slot.columns, wanted[:, layout.BAD], strict=True):
        if bad and plan.column.name in slot.key_columns:
            return Fault(
                DecodeError,
                "A zero or impossible date in a key column has no value in the target",
                f"Mend these rows in the source, or choose a key without this column. {LEAVE_OUT}",
                int(order[0]),
                plan.column.name,
            )
    return None


def _fault(slot: Slot, control: np.ndarray, order: np.ndarray, event_rows: np.ndarray | None = None) -> Fault:
    event = int(order[control[layout.EVENT]])
    code, column = int(control[layout.FAULT]), int(control[layout.FAULT_COLUMN])
    if code in (layout.BAD_DIGITS, layout.BAD_TEXT):
        assert event_rows is not None
        behind = np.cumsum(event_rows[order])
        event = int(order[int(np.searchsorted(behind, control[layout.FAULT_ROW], "right"))])
        name = slot.columns[column].column.name
        if code == layout.BAD_TEXT:
            message, mend = NOT_UTF8_TEXT
            return Fault(DecodeError, message, mend, event, name)
        return Fault(DecodeError, "A DECIMAL with impossible digits", LEAVE_OUT, event, name)
    name = slot.schema.columns[column].name if column < len(slot.schema.columns) else ""
    if code in (layout.ABSENT, layout.NO_BASE):
        message = (
            "A row image lacks a column that the mapping reads"
            if code == layout.ABSENT
            else "A partial JSON update without the document before it"
        )
        return Fault(UnsupportedImage, message, _IMAGE_MEND, event, name if code == layout.ABSENT else "")
    messages = {
        layout.OVERRUN: "A row reaches beyond its event",
        layout.COLUMN_COUNT: "Rows and their table map differ in the number of columns",
        layout.NO_PROGRESS: "A row without bytes",
        layout.BAD_BITMAP: "The event ends within its bitmaps",
    }
    return Fault(DecodeError, messages[code], LEAVE_OUT, event, name if code == layout.OVERRUN else "")


def json_documents(
    slot: Slot, data: np.ndarray, events: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | Fault:
    """Apply the JSON differences of partial updates: the documents' bytes, and (start, length) of each in them."""
    control = np.zeros(layout.CONTROL_SIZE, np.int64)
    found = np.zeros((1024, 4), np.int64)
    while True:
        count = walk.find_differences(data, events, order, slot.reads, slot.widths, slot.json_columns, found, control)
        if count < 0:
            return _fault(slot, control, order)
        if count <= len(found):
            break
        found = np.zeros((count, 4), np.int64)
    found = np.ascontiguousarray(found[:count].T)
    return json_diff.apply_diffs(data, found[0], found[1].astype(np.int32), data, found[2], found[3].astype(np.int32))
