"""Canal's entries to Changes: rows from the protobuf bytes into Arrow columns, without Python objects per row.

The Arrow types and values equal those of the binlog decoder. Canal sends every value as text, in its own forms: bytes
as Latin-1, ENUM as a number, SET as a bit mask, decimals without trailing zeros, times in the server's time zone.
``transactions`` calls ``EntryDecoder.changes``; ``kernels`` parses the bytes.

Source: alibaba/canal 1.1.8, RowsLogBuffer and LogEventConvert.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError as ProtobufError

from cdc.errors import GAP_HINT, CdcError, DecodeError, SchemaMismatch, TargetMismatch, UnsupportedRowFormat
from cdc.model.batch import Changes
from cdc.model.schema import DELETED, SEQUENCE, Column, Kind, TableSchema
from cdc.model.table_names import table_text
from cdc.mysql.values import text
from cdc.sources.canal import kernels
from cdc.sources.canal.layout import Layout, LayoutColumn, layout_of
from cdc.sources.canal.protocol_pb2 import RowData

if TYPE_CHECKING:
    from cdc.model.table_filter import TableFilter

log = logging.getLogger(__name__)

_RESYNC = f"{GAP_HINT} If the error repeats, use a binlog source."
_BINLOG_HINT = "Remove the column from the mapping, or use a binlog source."
_CHARSET_HINT = "Remove the column from the mapping, convert it to utf8mb4, or use a binlog source."
_UNREADABLE = (Kind.UUID, Kind.INET4, Kind.INET6, Kind.VECTOR)  # Canal reads their bytes as text, or stops
NOT_ASCII = ("ucs2", "utf16", "utf16le", "utf32", "swe7")  # charsets in which ASCII characters have other bytes
_INTEGERS = {
    Kind.TINYINT: 8,
    Kind.SMALLINT: 16,
    Kind.MEDIUMINT: 24,
    Kind.INT: 32,
    Kind.BIGINT: 64,
}

Values = tuple[np.ndarray, np.ndarray, np.ndarray]  # buffer, starts, lengths (-1: NULL)


class CanalTableSource(Protocol):
    """The source of schemas."""

    def schema(self, database: str, table: str, layout: Layout) -> TableSchema:
        """Return the table whose rows have the columns ``layout``. Raises: SchemaMismatch, UnsupportedRowFormat."""


class Entries:
    """The entries of one server batch: a buffer, and an index of the offsets in it."""

    def __init__(self, body: bytes) -> None:
        """``body``: a protobuf message Messages, as received. Raises: DecodeError."""
        self.body = body
        self.data = np.frombuffer(body, np.uint8)
        count = kernels.count_entries(self.data)
        self.index = np.empty((max(count, 0), kernels.ENTRY_FIELDS), np.int64)
        if count < 0 or kernels.index_entries(self.data, self.index) < 0:
            raise DecodeError(
                "A Canal batch is not a valid protobuf message.", hint="Check the Canal server's version."
            )

    def __len__(self) -> int:
        return len(self.index)

    def text(self, entry: int, field: int) -> str:
        """Return a text field of an entry, for example FILE_AT."""
        at, length = self.index[entry, field : field + 2]
        return self.body[at : at + length].decode("utf-8", "replace")

    def position(self, entry: int) -> str:
        """Return ``file:offset`` of an entry."""
        return f"{self.text(entry, kernels.FILE_AT)}:{self.index[entry, kernels.OFFSET]}"

    def has_rows(self, entry: int) -> bool:
        """Return whether an entry has row images."""
        fields = self.index[entry]
        return bool(fields[kernels.KIND] == kernels.ROW_DATA and fields[kernels.ROWS])


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How rows of one table and layout are read."""

    schema: TableSchema
    columns: tuple[Column, ...]  # the columns to read, in table order
    parse: tuple[Callable[[Values], pa.Array], ...]  # a parser for each of them
    requested: np.ndarray  # their numbers in the layout
    keys: np.ndarray  # numbers of the key columns in the layout
    key_names: frozenset[str]
    indexes: np.ndarray  # of all columns of the layout: their numbers in the table
    arrow: pa.Schema


class EntryDecoder:
    """Decode row entries of mapped tables to Changes.

    Calls: one thread. ``zone_us``: how far the server's clock is ahead of UTC, for TIMESTAMP values.
    """

    def __init__(
        self,
        table_filter: TableFilter,
        tables: CanalTableSource,
        *,
        zone_us: int = 0,
        omits: Callable[[CdcError, Collection[str], int], bool] = lambda error, tables, time_ms: False,
    ) -> None:
        """``omits``: returns whether to omit unreadable changes, by their error, tables and time in ms."""
        self._omits = omits
        self.invalid_dates: Counter[tuple[str, str]] = Counter()  # became NULL, by table and column
        self._table_filter = table_filter
        self._tables = tables
        self._zone_us = zone_us
        self._plans: dict[tuple[str, str, int], RowPlan] = {}
        self._mapped: dict[tuple[bytes, bytes], tuple[str, str] | None] = {}

    def forget(self) -> None:
        """Look up every schema again, because a table may have changed."""
        self._plans.clear()

    def maps(self, entries: Entries, entry: int) -> tuple[str, str] | None:
        """Return database and table of a row entry if a channel reads it, else None."""
        fields, body = entries.index[entry], entries.body
        at, size, table_at, table_size = (int(each) for each in fields[kernels.DATABASE_AT : kernels.TABLE_AT + 2])
        raw = (body[at : at + size], body[table_at : table_at + table_size])
        if raw not in self._mapped:
            name = (raw[0].decode("utf-8", "replace"), raw[1].decode("utf-8", "replace"))
            self._mapped[raw] = name if self._table_filter.maps(*name) else None
        return self._mapped[raw]

    def changes(self, entries: Entries, first: int, last: int, sequence: int) -> tuple[tuple[Changes, ...], int]:
        """Return the rows of the entries from ``first`` up to, not including, ``last``, and the number of rows.

        The rows are numbered from ``sequence`` + 1 on.
        Raises: DecodeError, SchemaMismatch, UnsupportedRowFormat; ``context`` has the position.
        """
        counts = np.zeros(len(entries), np.int64)
        rows = (entries.index[:, kernels.KIND] == kernels.ROW_DATA) & (entries.index[:, kernels.ROWS] > 0)
        candidates = first + np.flatnonzero(rows[first:last])
        decoded = []
        for members in _grouped(candidates, entries.index[candidates, kernels.GROUP]):
            name = self.maps(entries, int(members[0]))
            if name is None:
                continue
            key = (*name, int(entries.index[members[0], kernels.LAYOUT]))
            try:
                if key not in self._plans and not self._can_plan(entries, key, int(members[0])):
                    continue
                decoded.append((*self._decode(entries, key, members, counts), members))
            except (UnsupportedRowFormat, DecodeError) as error:
                newest_ms = int(entries.index[members, kernels.TIME_MS].max())
                if not self._omits(error, [table_text(*name)], newest_ms):
                    raise
                counts[members] = 0
        bases = sequence + np.cumsum(counts) - counts
        numbered = tuple(_numbered(*each, counts, bases) for each in decoded if len(each[1][0]))
        return numbered, int(counts.sum())

    def _decode(
        self, entries: Entries, key: tuple[str, str, int], members: np.ndarray, counts: np.ndarray
    ) -> tuple[RowPlan, list[pa.Array]]:
        plan = self._plans[key]
        fields = entries.index[members]
        images = np.where(fields[:, kernels.EVENT] == kernels.UPDATE, 2, 1)
        capacity = int((fields[:, kernels.ROWS] * images).sum())
        starts = np.empty((len(plan.requested), capacity), np.int64)
        lengths = np.empty((len(plan.requested), capacity), np.int32)
        deleted = np.empty(capacity, np.bool_)
        row_counts = np.zeros(len(members), np.int64)
        rows, which = kernels.locate_rows(
            entries.data,
            entries.index,
            members,
            plan.indexes,
            plan.requested,
            plan.keys,
            starts,
            lengths,
            deleted,
            row_counts,
        )
        if rows < 0:
            raise _without_position(rows, plan.schema.name, entries.position(int(members[which])))
        counts[members] = row_counts
        arrays = []
        for slot, column in enumerate(plan.columns):
            values = (entries.data, starts[slot, :rows], lengths[slot, :rows])
            try:
                arrays.append(self._checked(plan, column, plan.parse[slot](values)))
            except CdcError as error:
                row = error.context.pop("row", 0)
                assert isinstance(row, int)
                entry = members[np.searchsorted(np.cumsum(row_counts), row, "right")]
                error.context |= {"table": plan.schema.name, "column": column.name, "at": entries.position(int(entry))}
                raise
        arrays.append(pa.array(deleted[:rows]))
        return plan, arrays

    def _can_plan(self, entries: Entries, key: tuple[str, str, int], entry: int) -> bool:
        """Plan how a table's rows are read. Return False if the table is omitted."""
        database, table, _ = key
        try:
            self._plans[key] = self._planned(entries, key, entry)
        except (SchemaMismatch, TargetMismatch) as error:
            if not self._table_filter.leave_out(database, table, error):
                raise
            self._mapped.clear()
            return False
        return True

    def _planned(self, entries: Entries, key: tuple[str, str, int], entry: int) -> RowPlan:
        database, table, _ = key
        at, size = entries.index[entry, kernels.FIRST_ROW_AT : kernels.FIRST_ROW_AT + 2]
        try:
            layout = layout_of(RowData.FromString(entries.body[at : at + size]))
        except ProtobufError as error:
            raise _without_position(kernels.MALFORMED, f"{database}.{table}", entries.position(entry)) from error
        try:
            schema = self._tables.schema(database, table, layout)
            reads = self._table_filter.reads(schema)
            return self._plan(schema, layout, reads.columns | reads.key, reads.key)
        except CdcError as error:
            error.context.setdefault("table", f"{database}.{table}")
            error.context.setdefault("at", entries.position(entry))
            raise

    def _plan(self, schema: TableSchema, layout: Layout, read: frozenset[str], key: frozenset[str]) -> RowPlan:
        numbers = {column.name.casefold(): number for number, column in enumerate(layout)}
        requested = {name.casefold() for name in read}
        columns = tuple(column for column in schema.columns if column.name.casefold() in requested)
        missing = [column.name for column in columns if column.name.casefold() not in numbers]
        if missing:
            raise UnsupportedRowFormat(
                f"The rows do not have column {missing[0]}, which the mapping reads.",
                hint=f"Set binlog_row_image=FULL on the server, and remove field filters from Canal. {GAP_HINT}",
                column=missing[0],
            )
        positions = [numbers[column.name.casefold()] for column in columns]
        fields = [pa.field(column.name, column.arrow) for column in columns]
        fields += [pa.field(DELETED, pa.bool_()), pa.field(SEQUENCE, pa.int64())]
        return RowPlan(
            schema,
            columns,
            tuple(
                self._parser(column, layout[position], schema)
                for column, position in zip(columns, positions, strict=True)
            ),
            np.array(positions, np.int64),
            np.array([numbers[name.casefold()] for name in sorted(key)], np.int64),
            frozenset(name.casefold() for name in key),
            np.array([column.index for column in layout], np.int64),
            pa.schema(fields),
        )

    def _checked(self, plan: RowPlan, column: Column, parsed: pa.Array | tuple[pa.Array, int]) -> pa.Array:
        if not isinstance(parsed, tuple):
            return parsed
        array, impossible = parsed
        if impossible:
            if column.name.casefold() in plan.key_names:
                raise DecodeError(
                    "A zero or invalid date in a key column has no value in the target.",
                    hint=f"Correct these rows in the source, or choose a key without this column. {GAP_HINT}",
                )
            if (plan.schema.name, column.name) not in self.invalid_dates:
                log.warning("zero or invalid dates of %s.%s become NULL (logged once)", plan.schema.name, column.name)
            self.invalid_dates[plan.schema.name, column.name] += impossible
        return array

    def _parser(self, column: Column, received: LayoutColumn, schema: TableSchema) -> Callable[[Values], pa.Array]:
        kind = column.kind
        if kind in _UNREADABLE:
            raise SchemaMismatch(
                f"Canal cannot read {kind.value.upper()} columns.",
                hint=_BINLOG_HINT,
                table=schema.name,
                column=column.name,
            )
        if kind in _INTEGERS or kind in (Kind.BIT, Kind.YEAR):
            return _integer_parser(column)
        if kind is Kind.DECIMAL:
            if column.precision > 38:
                return lambda values: _decimal_texts(values, column.scale)
            return lambda values: _decimals(values, column.precision, column.scale)
        if kind in (Kind.FLOAT, Kind.DOUBLE):
            return lambda values: _floats(values, column.arrow)
        if kind is Kind.DATE:
            return _dates
        if kind in (Kind.DATETIME, Kind.TIMESTAMP):
            zone_us = self._zone_us if kind is Kind.TIMESTAMP else 0
            return lambda values: _moments(values, zone_us, column.arrow)
        if kind is Kind.ENUM:
            return lambda values: text.enum_array(_whole(values, 0, 65535), values[2] >= 0, column.labels)
        if kind is Kind.SET:
            return lambda values: text.set_array(*_bit_masks(values), column.labels)
        if kind in (Kind.BINARY, Kind.VARBINARY, Kind.BLOB, Kind.GEOMETRY):
            width = column.length if kind is Kind.BINARY else None
            return lambda values: text.binary_array(*_as_bytes(values), width)
        if kind is Kind.JSON:
            return _json
        if kind is Kind.TEXT and received.as_bytes:
            return lambda values: text.utf8_array(*_as_bytes(values))
        if kind in (Kind.CHAR, Kind.VARCHAR, Kind.TEXT) and column.charset not in ("utf8mb4", "utf8mb3", "ascii"):
            if column.charset in NOT_ASCII:
                raise SchemaMismatch(
                    f"Canal reads every text as UTF-8, but {column.charset} has other bytes even for ASCII characters.",
                    hint=_CHARSET_HINT,
                    table=schema.name,
                    column=column.name,
                )
            return _undamaged
        return lambda values: text.utf8_array(*values)


def _without_position(fault: int, table: str, at: str) -> CdcError:
    if fault == kernels.COLUMNS_MISSING:
        return UnsupportedRowFormat(
            "A row image is not FULL: it lacks columns of the table.",
            hint=f"Set binlog_row_image=FULL on the server and in every session that writes. {GAP_HINT}",
            table=table,
            at=at,
        )
    return DecodeError("A row from Canal is not a valid protobuf message.", hint=_RESYNC, table=table, at=at)


def _grouped(members: np.ndarray, keys: np.ndarray) -> list[np.ndarray]:
    """Return ``members`` grouped by key. The groups are in the order of their first members."""
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    groups = np.split(members[order], cuts) if len(members) else []
    return sorted(groups, key=lambda group: int(group[0]))


def _numbered(
    plan: RowPlan, arrays: list[pa.Array], members: np.ndarray, counts: np.ndarray, bases: np.ndarray
) -> Changes:
    """Return Changes with ``__sequence``, in the order of the entries over all tables."""
    rows = counts[members]
    ends = np.cumsum(rows)
    sequence = np.arange(1, ends[-1] + 1, dtype=np.int64) + np.repeat(bases[members] - (ends - rows), rows)
    return Changes(plan.schema, pa.RecordBatch.from_arrays([*arrays, pa.array(sequence)], schema=plan.arrow))


def _bad(values: Values, row: int, what: str) -> DecodeError:
    data, starts, lengths = values
    shown = data[starts[row] : starts[row] + min(lengths[row], 60)].tobytes().decode("utf-8", "replace")
    return DecodeError(f"The text {shown!r} from Canal is not {what}.", hint=_RESYNC, row=row)


def _whole(values: Values, low: int, high: int) -> np.ndarray:
    out = np.empty(len(values[1]), np.int64)
    row = kernels.integers(*values, low, high, out)
    if row >= 0:
        raise _bad(values, row, f"an integer from {low} to {high}")
    return out


def _integer_parser(column: Column) -> Callable[[Values], pa.Array]:
    bits = column.length if column.kind is Kind.BIT else _INTEGERS.get(column.kind, 16)
    unsigned = column.unsigned or column.kind in (Kind.BIT, Kind.YEAR)
    if bits == 64 and unsigned:
        return lambda values: _decimals(values, 20, 0)
    low, high = (0, (1 << bits) - 1) if unsigned else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    kind = column.arrow
    store = kind.to_pandas_dtype()

    def parse(values: Values) -> pa.Array:
        return pa.array(_whole(values, low, high).astype(store), kind, mask=_mask(values))

    return parse


def _mask(values: Values) -> np.ndarray | None:
    null = values[2] < 0
    return null if null.any() else None


def _decimals(values: Values, precision: int, scale: int) -> pa.Array:
    count = len(values[1])
    out = np.empty((count, 2), np.uint64)
    row = kernels.decimals(*values, precision, scale, out)
    if row >= 0:
        raise _bad(values, row, f"a DECIMAL({precision},{scale})")
    null = _mask(values)
    validity = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(pa.decimal128(precision, scale), count, [validity, pa.py_buffer(out)])


def _decimal_texts(values: Values, scale: int) -> pa.Array:
    """Return DECIMALs of more than 38 digits as text. This is Python work per value, but such columns are rare."""
    texts = text.utf8_array(*values).to_pylist()
    return pa.array([each if each is None else _scaled(each, scale) for each in texts], pa.string())


def _scaled(number: str, scale: int) -> str:
    whole, _, after = number.partition(".")
    return f"{whole}.{after[:scale]:0<{scale}}" if scale else whole


def _floats(values: Values, kind: pa.DataType) -> pa.Array:
    try:
        return pc.cast(text.utf8_array(*values), kind)
    except pa.ArrowInvalid as error:
        raise DecodeError(f"A text from Canal is not a {kind}: {error}.", hint=_RESYNC, row=0) from error


def _dates(values: Values) -> tuple[pa.Array, int]:
    out = np.empty(len(values[1]), np.int32)
    valid = np.empty(len(values[1]), np.bool_)
    row, impossible = kernels.dates(*values, out, valid)
    if row >= 0:
        raise _bad(values, row, "a date")
    return pa.array(out, pa.date32(), mask=None if valid.all() else ~valid), impossible


def _moments(values: Values, minus_us: int, kind: pa.DataType) -> tuple[pa.Array, int]:
    out = np.empty(len(values[1]), np.int64)
    valid = np.empty(len(values[1]), np.bool_)
    row, impossible = kernels.moments(*values, minus_us, out, valid)
    if row >= 0:
        raise _bad(values, row, "a date and time")
    return pa.array(out, kind, mask=None if valid.all() else ~valid), impossible


def _bit_masks(values: Values) -> tuple[np.ndarray, np.ndarray]:
    """Return SET values as bit masks. 64 members need all bits of an unsigned word."""
    out = np.empty((len(values[1]), 2), np.uint64)
    row = kernels.decimals(*values, 20, 0, out)
    if row >= 0:
        raise _bad(values, row, "a bit mask")
    return out[:, 0].copy(), values[2] >= 0


def _as_bytes(values: Values) -> Values:
    """Return the bytes that Canal sent as characters U+0000 to U+00FF."""
    data, starts, lengths = values
    out = np.empty(int(np.maximum(lengths, 0).sum()), np.uint8)
    new_starts, new_lengths = np.empty_like(starts), np.empty_like(lengths)
    row = kernels.latin1_bytes(data, starts, lengths, out, new_starts, new_lengths)
    if row >= 0:
        raise _bad(values, row, "bytes written as Latin-1")
    return out, new_starts, new_lengths


def _json(values: Values) -> pa.Array:
    """Return JSON text. A document without bytes is the server's JSON null."""
    array = text.utf8_array(*values)
    # For a partial update, Canal sends an expression such as JSON_REPLACE(col, '$.a', 1) instead of the document.
    row = _first(pc.starts_with(array, "JSON_"))
    if row is not None:
        raise UnsupportedRowFormat(
            "A JSON value is logged as a change of the earlier value (PARTIAL_JSON).",
            hint=f"Set binlog_row_value_options='' on the server. {GAP_HINT}",
            row=row,
        )
    empty = values[2] == 0
    return pc.if_else(pa.array(empty), "null", array) if empty.any() else array


def _undamaged(values: Values) -> pa.Array:
    """Return text of a charset that Canal reads as UTF-8. Only ASCII characters have the same bytes in both."""
    array = text.utf8_array(*values)
    row = _first(pc.invert(pc.string_is_ascii(array)))
    if row is not None:
        raise DecodeError(
            "Canal has damaged a text that is not ASCII, because it reads every charset as UTF-8.",
            hint=_CHARSET_HINT,
            row=row,
        )
    return array


def _first(mask: pa.Array) -> int | None:
    """Return the first row that is true, or None."""
    row = pc.index(mask, True).as_py()
    return None if row < 0 else int(row)
