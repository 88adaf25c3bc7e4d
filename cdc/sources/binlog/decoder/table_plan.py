"""The plan for the rows of one table, schema and mapping: how each column is decoded. It is made once.

``plan_table`` checks that the schema describes the rows. ``row_events`` runs the kernels with the plan, and calls its
functions for the columns of which Python makes the arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from cdc.errors import SchemaMismatch
from cdc.model.batch import RequiredColumns
from cdc.model.schema import DELETED, SEQUENCE, Column, Kind, TableSchema
from cdc.mysql.charsets import Charset
from cdc.mysql.values import json_text, text, times
from cdc.mysql.values import numbers as numeric
from cdc.mysql.values.arrow_message import ArrowMessage
from cdc.sources.binlog.decoder import row_layout as layout
from cdc.sources.binlog.decoder import table_map as tables
from cdc.sources.binlog.decoder.events import Malformed
from cdc.sources.binlog.decoder.table_map import MappedColumn, TableMap

_SCRATCH_OFFSETS = 16384  # offsets and lengths of a chunk take 256 KiB, which fits in a core's second-level cache
_FEWEST_ROWS = 64
_ODD = 9  # added to a power of two, which would map offsets to the same cache lines and halve the speed of wide tables
_RESYNC = "Run `cdc snapshot` for the table."
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

# makes the array of a column: (buffer, starts, lengths) -> array
Finish = Callable[[np.ndarray, np.ndarray, np.ndarray], pa.Array]


@dataclass(slots=True)
class ColumnDecoding:
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
class TableDecoding:
    """The plan for the rows of a mapped table with one schema and one layout. It is made once."""

    table_map: TableMap
    schema: TableSchema
    columns: list[ColumnDecoding]
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


def plan_table(table_map: TableMap, schema: TableSchema, reads: RequiredColumns) -> TableDecoding:
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
    plans: list[ColumnDecoding] = []
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
    return TableDecoding(
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


def _plan(column: Column, mapped: MappedColumn, schema: TableSchema) -> ColumnDecoding:
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
        return ColumnDecoding(column, arrow, op, arrow.bit_width // 8)
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return ColumnDecoding(column, arrow, numeric.COPY_4 if kind is Kind.FLOAT else numeric.COPY_8, mapped.width)
    if kind is Kind.DECIMAL:
        return _plan_decimal(column, mapped)
    if kind is Kind.BIT:
        op = numeric.BITS_I64 if column.length < 64 else numeric.BITS_DECIMAL
        return ColumnDecoding(column, arrow, op, arrow.bit_width // 8, mapped.width)
    if kind is Kind.YEAR:
        return ColumnDecoding(column, arrow, numeric.YEAR_I16, 2)
    if kind is Kind.DATE:
        return ColumnDecoding(column, arrow, times.DATE_3, 4)
    if kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME):
        fsp = mapped.meta & 0xFF
        plan = ColumnDecoding(column, arrow, _OLD_TIMES[mapped.type], 8, fsp)
        if kind is Kind.TIME:
            plan.post = lambda values, valid: times.time_text_array(values, valid, fsp)
        return plan
    if kind is Kind.ENUM:
        op = numeric.INDEX_1 if mapped.width == 1 else numeric.INDEX_2
        labels = column.labels
        return ColumnDecoding(
            column, arrow, op, 4, post=lambda values, valid: text.enum_array(values, valid, labels), block_type=np.int32
        )
    if kind is Kind.SET:
        labels = column.labels
        return ColumnDecoding(
            column, arrow, numeric.MASK, 8, mapped.width,
            post=lambda values, valid: text.set_array(values.view(np.uint64), valid, labels),
        )  # fmt: skip
    if mapped.type not in _COMPRESSED:
        if kind in (Kind.VARBINARY, Kind.BLOB, Kind.GEOMETRY):
            return ColumnDecoding(column, arrow, layout.BYTES_AS_THEY_ARE, 4)
        if kind in (Kind.CHAR, Kind.VARCHAR, Kind.TEXT) and Charset(column.charset or "utf8mb4").is_utf8:
            return ColumnDecoding(column, arrow, layout.TEXT, 4)
    return ColumnDecoding(column, arrow, layout.OFFSETS, 8, finish=_finish(column, mapped))


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


def _plan_decimal(column: Column, mapped: MappedColumn) -> ColumnDecoding:
    precision, scale = column.precision, column.scale
    if precision <= 18:
        return ColumnDecoding(column, column.arrow, numeric.DECIMAL_64, 16, precision, scale)
    if precision <= 38:
        return ColumnDecoding(column, column.arrow, numeric.DECIMAL_128, 16, precision, scale)

    def finish(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> pa.Array:
        array = numeric.decimal_text_array(data, starts, lengths, precision, scale)
        if isinstance(array, int):
            raise Malformed(f"a DECIMAL value of column {column.name} has invalid digits")
        return array

    return ColumnDecoding(column, column.arrow, layout.OFFSETS, 8, mapped.width, finish=finish)


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
