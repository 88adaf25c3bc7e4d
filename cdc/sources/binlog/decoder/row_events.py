"""Row events of one table to Changes.

``make_slot`` plans once per table, schema and mapping how rows are decoded. ``decode`` runs the kernels of ``columns``
for the events of a slot, and makes the Arrow arrays of columns that kernels cannot make.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from cdc.errors import GAP_HINT, CdcError, DecodeError, SchemaMismatch, UnsupportedRowFormat
from cdc.model.batch import Changes, RequiredColumns
from cdc.model.schema import DELETED, SEQUENCE, Column, Kind, TableSchema
from cdc.mysql.charsets import Charset
from cdc.mysql.values import json_text, text, times
from cdc.mysql.values import numbers as numeric
from cdc.mysql.values.arrow_arrays import NOT_UTF8_TEXT
from cdc.mysql.values.arrow_message import ArrowMessage
from cdc.mysql.values.kernels import SLACK_BYTES
from cdc.sources.binlog.decoder import columns as fill
from cdc.sources.binlog.decoder import partial_json, row_images
from cdc.sources.binlog.decoder import row_layout as layout
from cdc.sources.binlog.decoder import table_map as tables
from cdc.sources.binlog.decoder.events import Malformed
from cdc.sources.binlog.decoder.framing import BITMAPS_AT, END
from cdc.sources.binlog.decoder.table_map import MappedColumn, TableMap

log = logging.getLogger(__name__)

_SCRATCH_OFFSETS = 16384  # offsets and lengths of a chunk take 256 KiB, which fits in a core's second-level cache
_FEWEST_ROWS = 64
_ODD = 9  # added to a power of two, which would map offsets to the same cache lines and halve the speed of wide tables
_MOST_HELD = 16 << 20
_MARGIN = 1.1  # room for rows in the next block, relative to the last one
_RESYNC = "Run `cdc snapshot` for the table."
_IMAGE_HINT = f"Set binlog_row_image=FULL on the server and in every session that writes. {GAP_HINT}"

# makes the array of a column: (buffer, starts, lengths) -> array
Finish = Callable[[np.ndarray, np.ndarray, np.ndarray], pa.Array]


@dataclass(slots=True)
class ColumnPlan:
    """How one requested column is decoded."""

    column: Column
    arrow: pa.DataType
    op: int
    size: int  # bytes of a value, or of its offset
    first: int = 0
    second: int = 0
    finish: Finish | None = None  # makes the array of values of variable size
    post: Callable[[np.ndarray, np.ndarray], pa.Array] | None = None  # (values, valid) -> array: labels, TIME
    block_type: type = np.int64  # type of the values that ``post`` gets


@dataclass(slots=True)
class TablePlan:
    """The plan for the rows of a mapped table with one schema and one layout. It is made once."""

    table_map: TableMap
    schema: TableSchema
    columns: list[ColumnPlan]
    key_columns: frozenset[str]
    steps: np.ndarray
    reads: np.ndarray  # by table column: its index in ``columns``, or -1
    widths: np.ndarray  # by table column: bytes of a value; negative: bytes of its length prefix
    keys: np.ndarray
    json_columns: np.ndarray
    needed: np.ndarray
    offset_count: int
    width: int  # rows of the scratch
    arrow: pa.Schema
    message: ArrowMessage
    row_bytes: float = 0.0  # source bytes per output row in the last block, to size the next one; 0: no block yet
    text_bytes: np.ndarray | None = None  # text bytes per output row, by requested column
    invalid_dates: dict[str, int] = field(default_factory=dict)  # by column: dates that became NULL


@dataclass(slots=True)
class DecodeFault:
    """Why and where decoding stopped. ``batch_cutting`` adds file, offset and event."""

    error: type[CdcError]
    message: str
    hint: str
    event: int  # index into the events
    column: str = ""


def make_slot(table_map: TableMap, schema: TableSchema, reads: RequiredColumns) -> TablePlan:
    """Plan the decoding of a table. Raises: SchemaMismatch - the schema does not describe these rows."""
    if len(schema.columns) != len(table_map.columns):
        raise SchemaMismatch(
            f"The rows have {len(table_map.columns)} columns, the known schema has {len(schema.columns)}.",
            hint=_RESYNC,
            table=schema.name,
        )
    needed = {name.casefold() for name in reads.columns | reads.key}
    key = {name.casefold() for name in reads.key}
    columns = np.full(len(schema.columns), -1, np.int64)
    plans: list[ColumnPlan] = []
    keys: list[int] = []
    for i, (column, mapped) in enumerate(zip(schema.columns, table_map.columns, strict=True)):
        if column.name.casefold() in needed:
            columns[i] = len(plans)
            plans.append(_plan(column, mapped, schema))
        if column.name.casefold() in key:
            keys.append(i)
    widths = np.array([mapped.width for mapped in table_map.columns], np.int64)
    needed_fields = np.zeros((len(plans), layout.NEEDED_FIELDS), np.int64)
    for row, plan in zip(needed_fields, plans, strict=True):
        row[[layout.OP, layout.SIZE, layout.FIRST, layout.SECOND]] = plan.op, plan.size, plan.first, plan.second
        row[layout.HELD] = plan.finish is not None or plan.post is not None
    steps, offset_count, width = _steps(widths, columns, needed_fields)
    fields = [pa.field(plan.column.name, plan.arrow) for plan in plans]
    own = [pa.field(DELETED, pa.bool_()), pa.field(SEQUENCE, pa.int64())]
    direct = [made for made, plan in zip(fields, plans, strict=True) if plan.finish is None and plan.post is None]
    return TablePlan(
        table_map,
        schema,
        plans,
        frozenset(schema.columns[i].name for i in keys),
        steps,
        columns,
        widths,
        columns[np.array(keys, np.int64)],
        np.array([mapped.type == tables.JSON for mapped in table_map.columns], np.uint8),
        needed_fields,
        offset_count,
        width,
        pa.schema(fields + own),
        ArrowMessage.of(pa.schema(direct + own)),
    )


def _steps(widths: np.ndarray, reads: np.ndarray, needed_fields: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Return the steps through a complete image, the number of offsets per row, and the rows of the scratch memory.

    Also fills the columns FROM, DISTANCE, EARLIER, SOURCE and NULL_* of ``needed_fields``.
    """
    steps: list[list[int]] = []
    sizes, count, i, offsets = widths.tolist(), len(widths), 0, 0
    while i < count:
        first, mask, size, word = i, 0, 0, i >> 6
        step = [0] * layout.STEP_FIELDS
        step[layout.COLUMN], step[layout.WORD], step[layout.OFFSET], step[layout.VARIABLE_OFFSET] = first, word, -1, -1
        while i < count and i >> 6 == word and sizes[i] >= 0:
            if reads[i] >= 0:
                if step[layout.OFFSET] < 0:
                    step[layout.OFFSET], offsets = offsets, offsets + 1
                row = needed_fields[reads[i]]
                row[layout.FROM], row[layout.DISTANCE], row[layout.EARLIER] = step[layout.OFFSET], size, _signed(mask)
            mask |= 1 << (i & 63)
            size += sizes[i]
            i += 1
        step[layout.MASK], step[layout.BYTES], step[layout.LAST] = _signed(mask), size, i - 1
        if i < count and i >> 6 == word:
            step[layout.PREFIX], step[layout.BIT], step[layout.LAST] = -sizes[i], _signed(1 << (i & 63)), i
            if reads[i] >= 0:
                needed_fields[reads[i], layout.FROM] = step[layout.VARIABLE_OFFSET] = offsets
                offsets += 1
            i += 1
        steps.append(step)
    for column, needed in enumerate(reads.tolist()):
        if needed >= 0:
            needed_fields[needed, layout.SOURCE], needed_fields[needed, layout.NULL_WORD] = column, column >> 6
            needed_fields[needed, layout.NULL_BIT] = _signed(1 << (column & 63))
    made = np.array(steps, np.int64).reshape(-1, layout.STEP_FIELDS)
    count = max(
        offsets + 1, len(needed_fields)
    )  # one more: offsets of columns that are not read go there without a branch
    width = max(_FEWEST_ROWS, min(layout.CHUNK, _SCRATCH_OFFSETS // count)) + _ODD
    for offset in (layout.OFFSET, layout.VARIABLE_OFFSET):
        made[:, offset] = np.where(made[:, offset] < 0, offsets, made[:, offset]) * width
    needed_fields[:, layout.FROM] *= width
    return made, count, width


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits


class Scratch:
    """Memory for the offsets of one chunk. All tables of a decoder share it, because there may be thousands."""

    def __init__(self) -> None:
        self._numbers = np.zeros(0, np.int64)
        self._held = np.zeros(0, np.uint8)

    def of(self, slot: TablePlan) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
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
    tables.DATETIME: times.DATETIME_OLD, tables.TIMESTAMP: times.TIMESTAMP_OLD, tables.TIME: times.TIME_OLD,
    tables.DATETIME2: times.DATETIME_2, tables.TIMESTAMP2: times.TIMESTAMP_2, tables.TIME2: times.TIME_2,
}  # fmt: skip


def _plan(column: Column, mapped: MappedColumn, schema: TableSchema) -> ColumnPlan:
    kind, arrow = column.kind, column.arrow
    if mapped.type not in _TYPES_OF_KIND.get(kind, _BYTE_TYPES) or not _is_matching(column, mapped):
        raise SchemaMismatch(
            f"The rows have column type {mapped.type} with metadata {mapped.meta:#x}, the schema has {column.type}.",
            hint=_RESYNC,
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
        return ColumnPlan(column, arrow, times.DATE_3, 4)
    if kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME):
        fsp = mapped.meta & 0xFF
        plan = ColumnPlan(column, arrow, _OLD_TIMES[mapped.type], 8, fsp)
        if kind is Kind.TIME:
            plan.post = lambda values, valid: times.time_text_array(values, valid, fsp)
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
    return ColumnPlan(column, arrow, layout.OFFSETS, 8, finish=_finish(column, mapped))


def _is_matching(column: Column, mapped: MappedColumn) -> bool:
    """Return whether sizes agree, as far as the metadata of the rows has them."""
    low, high = mapped.meta & 0xFF, mapped.meta >> 8
    if column.kind is Kind.DECIMAL:
        return (column.precision, column.scale) == (low, high)
    if mapped.type in (tables.DATETIME2, tables.TIMESTAMP2, tables.TIME2):
        return column.fsp == low
    if mapped.type in (tables.DATETIME, tables.TIMESTAMP, tables.TIME):
        return column.fsp == 0  # the old format may have a fraction, but the metadata does not have its size
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
            raise Malformed(f"a DECIMAL value of column {column.name} has invalid digits")
        return array

    return ColumnPlan(column, column.arrow, layout.OFFSETS, 8, mapped.width, finish=finish)


def _finish(column: Column, mapped: MappedColumn) -> Finish:
    finish = _finish_plain(column)
    if mapped.type not in _COMPRESSED:
        return finish
    return lambda data, starts, lengths: finish(*text.uncompress(data, starts, lengths))


def _finish_plain(column: Column) -> Finish:
    kind = column.kind
    if kind is Kind.JSON:
        return json_text.text_array
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
    """Rows of one slot that have no sequences yet."""

    slot: TablePlan
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
        return Changes(slot.schema, rows)


def decode(
    slot: TablePlan,
    data: np.ndarray,
    events: np.ndarray,
    order: np.ndarray,
    event_rows: np.ndarray,
    documents: np.ndarray,
    scratch: Scratch,
) -> Decoded | DecodeFault:
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
    return _impossible_key(slot, needed, order) or Decoded(slot, order, needed, block, made, control, rows)


def _first_capacity(slot: TablePlan, needed: np.ndarray, source_bytes: int) -> int:
    """Return an estimate of the number of rows, and write to ``needed`` the room for their text."""
    if slot.text_bytes is not None:
        capacity = int(source_bytes / slot.row_bytes * _MARGIN) + 16
        needed[:, layout.TEXT_LIMIT] = slot.text_bytes * (_MARGIN * capacity) + 256
        return capacity
    texts = max(int((needed[:, layout.OP] > layout.OFFSETS).sum()), 1)
    needed[:, layout.TEXT_LIMIT] = source_bytes if texts == 1 else 2 * source_bytes // texts + 4096
    return source_bytes // (len(slot.widths) // 8 + 1 + int(np.abs(slot.widths).sum()) // 2) + 16


def _made(
    slot: TablePlan, data: np.ndarray, needed: np.ndarray, held: np.ndarray, capacity: int, rows: int
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


def _impossible_key(slot: TablePlan, needed: np.ndarray, order: np.ndarray) -> DecodeFault | None:
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
    slot: TablePlan, control: np.ndarray, order: np.ndarray, event_rows: np.ndarray | None = None
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
    slot: TablePlan, data: np.ndarray, events: np.ndarray, order: np.ndarray
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
