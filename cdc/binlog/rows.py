"""Row events of one table to Changes: the plan made once per table and mapping, and the drive of the walk kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from cdc.batch import Changes, Reads
from cdc.binlog import json, json_diff, numeric, tables, temporal, text, walk
from cdc.binlog.charsets import Charset
from cdc.binlog.events import Malformed
from cdc.binlog.tables import MappedColumn, TableMap
from cdc.errors import CdcError, DecodeError, SchemaMismatch, UnsupportedImage
from cdc.schema import DELETED, SEQUENCE, Column, Kind, TableSchema

_ALIGN = 64
_RESYNC = "Take a new snapshot of the table: cdc snapshot."
_IMAGE_MEND = "Set binlog_row_image to FULL on the server for every session that writes, then take a new snapshot."

# a column's places become its array: (buffer, starts, lengths) -> array
Finish = Callable[[np.ndarray, np.ndarray, np.ndarray], pa.Array]


@dataclass(slots=True)
class ColumnPlan:
    """How one wanted column is decoded."""

    column: Column
    arrow: pa.DataType
    op: int
    size: int  # bytes of a value in the block
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
    key_steps: np.ndarray
    keys: np.ndarray
    json_columns: np.ndarray
    arrow: pa.Schema
    row_bytes: float = 64.0  # of an output row, as seen last: sizes the next block
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
    count = len(schema.columns)
    steps = np.full((count, walk.STEP_FIELDS), -1, np.int64)
    key_steps = steps.copy()
    plans: list[ColumnPlan] = []
    keys: list[int] = []
    for i, (column, mapped) in enumerate(zip(schema.columns, table_map.columns, strict=True)):
        steps[i, walk.WIDTH] = key_steps[i, walk.WIDTH] = mapped.width
        if column.name.casefold() in wanted:
            steps[i, walk.READ] = len(plans)
            plans.append(_plan(column, mapped, schema))
        if column.name.casefold() in key:
            key_steps[i, walk.READ] = len(keys)
            keys.append(i)
    _find_runs(steps)
    _find_runs(key_steps)
    fields = [pa.field(plan.column.name, plan.arrow) for plan in plans]
    fields += [pa.field(DELETED, pa.bool_()), pa.field(SEQUENCE, pa.int64())]
    return Slot(
        table_map,
        schema,
        plans,
        frozenset(schema.columns[i].name for i in keys),
        steps,
        key_steps,
        np.array(keys, np.int64),
        np.array([mapped.type == tables.JSON for mapped in table_map.columns], np.uint8),
        pa.schema(fields),
    )


class Scratch:
    """Places of one chunk's values, shared by all tables of a decoder: with thousands of tables each would hold its own."""

    def __init__(self) -> None:
        self._starts = np.zeros((16, walk.CHUNK), np.int64)
        self._lengths = np.zeros((16, walk.CHUNK), np.int32)

    def of(self, columns: int) -> tuple[np.ndarray, np.ndarray]:
        """Starts and lengths for that many columns."""
        if columns > len(self._starts):
            self._starts = np.zeros((columns, walk.CHUNK), np.int64)
            self._lengths = np.zeros((columns, walk.CHUNK), np.int32)
        return self._starts[:columns], self._lengths[:columns]


def _find_runs(steps: np.ndarray) -> None:
    """Runs of unread columns of fixed size are stepped over at once where none of them is NULL."""
    steps[:, walk.RUN] = steps[:, walk.RUN_BYTES] = steps[:, walk.RUN_MASK] = 0
    masks = steps.view(np.uint64)
    for i in range(len(steps)):
        end = i
        mask = size = 0
        while end < len(steps) and end >> 6 == i >> 6 and steps[end, walk.READ] < 0 and steps[end, walk.WIDTH] > 0:
            mask |= 1 << (end & 63)
            size += int(steps[end, walk.WIDTH])
            end += 1
        if end - i > 1:
            steps[i, walk.RUN], steps[i, walk.RUN_BYTES] = end - i, size
            masks[i, walk.RUN_MASK] = mask


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
    return ColumnPlan(column, arrow, walk.PLACES, 12, finish=_finish(column, mapped))


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

    return ColumnPlan(column, column.arrow, walk.PLACES, 12, mapped.width, finish=finish)


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
    arrays: list[pa.Array]  # of the wanted columns, then ``__deleted``
    rows: int

    def numbered(self, event_rows: np.ndarray, event_base: np.ndarray) -> Changes:
        """With ``__sequence``: rows of event e are numbered from ``event_base[e]`` on."""
        sequence = np.empty(self.rows, np.int64)
        walk.number_rows(self.order, event_rows, event_base, sequence)
        numbers = pa.Array.from_buffers(pa.int64(), self.rows, [None, pa.py_buffer(sequence)], 0)
        return Changes(
            self.slot.schema, pa.RecordBatch.from_arrays([*self.arrays, numbers], schema=self.slot.arrow)
        )


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
    source_bytes = int((events[order, 4] - events[order, 3]).sum())
    capacity = int(source_bytes / slot.row_bytes * 1.1) + 8
    control = np.zeros(walk.CONTROL_SIZE, np.int64)
    wanted, block = _block(slot, capacity, control)
    starts, lengths = scratch.of(len(slot.columns))
    while True:
        answer = walk.decode_rows(
            data, events, order, slot.steps, slot.key_steps, slot.keys, slot.json_columns, documents, wanted,
            starts, lengths, block, capacity, event_rows, control,
        )  # fmt: skip
        if answer != walk.MORE_ROOM:
            break
        done = control.copy()
        new_capacity = max(2 * capacity, 64)
        larger, new_block = _block(slot, new_capacity, control)
        _move(slot, wanted, block, capacity, int(done[walk.DELETED_AT]), larger, new_block, new_capacity, control)
        wanted, block, capacity = larger, new_block, new_capacity
    if answer == walk.FAILED:
        return _fault(slot, control, order)
    rows = int(control[walk.ROWS])
    slot.row_bytes = max(source_bytes / max(rows, 1), 1.0)
    fault = _impossible_key(slot, wanted, order)
    return fault or Decoded(slot, order, _arrays(slot, data, wanted, block, capacity, rows, control), rows)


def _block(slot: Slot, capacity: int, control: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One allocation for all columns of ``capacity`` rows; where each has its place goes into ``wanted``."""
    wanted = np.zeros((len(slot.columns), walk.WANTED_FIELDS), np.int64)
    bits = _aligned((capacity + 7) // 8)
    at = bits * len(slot.columns)  # validity bitmaps first, all ones
    for i, plan in enumerate(slot.columns):
        wanted[i] = (plan.op, 8 if plan.op == walk.PLACES else plan.size, plan.first, plan.second, at, i * bits, 0, 0)
        at += _aligned(capacity * plan.size + _ALIGN)
    control[walk.DELETED_AT] = at
    block = np.empty(at + _aligned(capacity), np.uint8)
    block[: bits * len(slot.columns)] = 0xFF
    return wanted, block


def _aligned(size: int) -> int:
    return (size + _ALIGN - 1) // _ALIGN * _ALIGN


def _move(
    slot: Slot, old: np.ndarray, old_block: np.ndarray, old_capacity: int, old_deleted: int,
    new: np.ndarray, new_block: np.ndarray, new_capacity: int, control: np.ndarray,
) -> None:  # fmt: skip
    """Copy the rows so far into a larger block."""
    rows = int(control[walk.ROWS])
    for i, plan in enumerate(slot.columns):
        new[i, walk.NULLS :] = old[i, walk.NULLS :]
        bits = (rows + 7) // 8
        a, b = int(old[i, walk.VALIDITY_AT]), int(new[i, walk.VALIDITY_AT])
        new_block[b : b + bits] = old_block[a : a + bits]
        a, b = int(old[i, walk.VALUES_AT]), int(new[i, walk.VALUES_AT])
        width = 8 if plan.op == walk.PLACES else plan.size
        new_block[b : b + rows * width] = old_block[a : a + rows * width]
        if plan.op == walk.PLACES:
            a, b = a + 8 * old_capacity, b + 8 * new_capacity
            new_block[b : b + rows * 4] = old_block[a : a + rows * 4]
    deleted = int(control[walk.DELETED_AT])
    new_block[deleted : deleted + rows] = old_block[old_deleted : old_deleted + rows]


def _arrays(
    slot: Slot, data: np.ndarray, wanted: np.ndarray, block: np.ndarray, capacity: int, rows: int, control: np.ndarray
) -> list[pa.Array]:
    buffer = pa.py_buffer(block)
    arrays = []
    layout = wanted.tolist()
    bits = (rows + 7) // 8
    for plan, (_, size, _, _, at, validity_at, nulls, bad) in zip(slot.columns, layout, strict=True):
        if bad:
            name = plan.column.name
            slot.impossible_dates[name] = slot.impossible_dates.get(name, 0) + bad
        if plan.finish is not None:
            starts = block[at : at + 8 * rows].view(np.int64)
            at += 8 * capacity
            arrays.append(plan.finish(data, starts, block[at : at + 4 * rows].view(np.int32)))
        elif plan.post is not None:
            values = block[at : at + size * rows].view(plan.block_type)
            if nulls:
                packed = block[validity_at : validity_at + bits]
                valid = np.unpackbits(packed, count=rows, bitorder="little").view(np.bool_)
            else:
                valid = np.ones(rows, np.bool_)
            arrays.append(plan.post(values, valid))
        else:
            validity = buffer.slice(validity_at, bits) if nulls else None
            arrays.append(
                pa.Array.from_buffers(plan.arrow, rows, [validity, buffer.slice(at, size * rows)], nulls)
            )
    if control[walk.DELETES]:
        deleted = int(control[walk.DELETED_AT])
        flags = np.packbits(block[deleted : deleted + rows], bitorder="little")
    else:
        flags = np.zeros(bits, np.uint8)
    arrays.append(pa.Array.from_buffers(pa.bool_(), rows, [None, pa.py_buffer(flags)], 0))
    return arrays


def _impossible_key(slot: Slot, wanted: np.ndarray, order: np.ndarray) -> Fault | None:
    for plan, bad in zip(slot.columns, wanted[:, walk.BAD], strict=True):
        if bad and plan.column.name in slot.key_columns:
            return Fault(
                DecodeError,
                "A zero or impossible date in a key column has no value in the target",
                "Mend these rows in the source, or choose a key without this column.",
                int(order[0]),
                plan.column.name,
            )
    return None


def _fault(slot: Slot, control: np.ndarray, order: np.ndarray) -> Fault:
    event = int(order[control[walk.EVENT]])
    code, column = int(control[walk.FAULT]), int(control[walk.FAULT_COLUMN])
    if code == walk.BAD_DIGITS:
        return Fault(DecodeError, "A DECIMAL with impossible digits", _RESYNC, event, slot.columns[column].column.name)
    name = slot.schema.columns[column].name if column < len(slot.schema.columns) else ""
    if code in (walk.ABSENT, walk.NO_BASE):
        message = (
            "A row image lacks a column that the mapping reads"
            if code == walk.ABSENT
            else "A partial JSON update without the document before it"
        )
        return Fault(UnsupportedImage, message, _IMAGE_MEND, event, name if code == walk.ABSENT else "")
    messages = {
        walk.OVERRUN: "A row reaches beyond its event",
        walk.COLUMN_COUNT: "Rows and their table map differ in the number of columns",
        walk.NO_PROGRESS: "A row without bytes",
        walk.BAD_BITMAP: "The event ends within its bitmaps",
    }
    return Fault(DecodeError, messages[code], _RESYNC, event, name if code == walk.OVERRUN else "")


def json_documents(
    slot: Slot, data: np.ndarray, events: np.ndarray, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | Fault:
    """Apply the JSON differences of partial updates: the documents' bytes, and (start, length) of each in them."""
    control = np.zeros(walk.CONTROL_SIZE, np.int64)
    found = np.zeros((1024, 4), np.int64)
    while True:
        count = walk.find_differences(data, events, order, slot.steps, slot.json_columns, found, control)
        if count < 0:
            return _fault(slot, control, order)
        if count <= len(found):
            break
        found = np.zeros((count, 4), np.int64)
    found = np.ascontiguousarray(found[:count].T)
    return json_diff.apply_diffs(
        data, found[0], found[1].astype(np.int32), data, found[2], found[3].astype(np.int32)
    )
