"""Canal's entries to Changes: rows from the protobuf bytes into Arrow columns, without Python objects per row.

``transactions`` calls ``EntryDecoder.changes``. ``kernels`` finds the values in the bytes, and ``value_parsers``
makes the arrays of their text.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError as ProtobufError

from cdc.errors import GAP_HINT, CdcError, DecodeError, SchemaMismatch, TargetMismatch, UnsupportedRowFormat
from cdc.model.batch import Changes
from cdc.model.schema import DELETED, SEQUENCE, Column, TableSchema
from cdc.model.table_names import table_text
from cdc.sources.canal import kernels
from cdc.sources.canal.layout import Layout, layout_of
from cdc.sources.canal.protocol_pb2 import RowData
from cdc.sources.canal.value_parsers import RESYNC_HINT, Parser, value_parser

if TYPE_CHECKING:
    from cdc.model.table_filter import TableFilter

log = logging.getLogger(__name__)


class CanalTableSource(Protocol):
    """The source of schemas."""

    def schema(self, database: str, table: str, layout: Layout) -> TableSchema:
        """Return the table whose rows have the columns ``layout``. Raises: SchemaMismatch, UnsupportedRowFormat."""


class Entries:
    """The entries of one server batch: a buffer, and an index of the offsets in it."""

    def __init__(self, body: bytes | memoryview) -> None:
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
        return bytes(self.body[at : at + length]).decode("utf-8", "replace")

    def position(self, entry: int) -> str:
        """Return ``file:offset`` of an entry."""
        return f"{self.text(entry, kernels.FILE_AT)}:{self.index[entry, kernels.OFFSET]}"

    def event(self, entry: int) -> tuple[str, int]:
        """Return file and offset of an entry."""
        return self.text(entry, kernels.FILE_AT), int(self.index[entry, kernels.OFFSET])

    def has_rows(self, entry: int) -> bool:
        """Return whether an entry has row images."""
        fields = self.index[entry]
        return bool(fields[kernels.KIND] == kernels.ROW_DATA and fields[kernels.ROWS])


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How rows of one table and layout are read."""

    schema: TableSchema
    columns: tuple[Column, ...]  # the columns to read, in table order
    parse: tuple[Parser, ...]  # a parser for each of them
    requested: np.ndarray  # their numbers in the layout
    keys: np.ndarray  # numbers of the key columns in the layout
    key_names: frozenset[str]
    indexes: np.ndarray  # of all columns of the layout: their numbers in the table
    arrow: pa.Schema


@dataclass(frozen=True, slots=True)
class EntryRows:
    """The rows of entries of one table and layout, in order of the entries."""

    plan: RowPlan
    arrays: list[pa.Array]  # the columns of the plan, then ``__deleted``
    entries: np.ndarray  # their numbers


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
        raw = (bytes(body[at : at + size]), bytes(body[table_at : table_at + table_size]))
        if raw not in self._mapped:
            name = (raw[0].decode("utf-8", "replace"), raw[1].decode("utf-8", "replace"))
            self._mapped[raw] = name if self._table_filter.maps(*name) else None
        return self._mapped[raw]

    def changes(self, entries: Entries, first: int, last: int, sequence: int) -> tuple[tuple[Changes, ...], int]:
        """Return the rows of the entries from ``first`` up to, not including, ``last``, and the number of rows.

        The rows are numbered from ``sequence`` + 1 on.
        Raises: DecodeError, SchemaMismatch, UnsupportedRowFormat; ``context`` has the position.
        """
        decoded, counts = self.rows(entries, first, last)
        bases = sequence + np.cumsum(counts) - counts
        numbered = tuple(_numbered(one, counts, bases) for one in decoded)
        return numbered, int(counts.sum())

    def rows(self, entries: Entries, first: int, last: int) -> tuple[list[EntryRows], np.ndarray]:
        """Return the rows of the entries from ``first`` up to, not including, ``last``, and their number by entry.

        Raises: as ``changes``.
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
                decoded.append(self._decode(entries, key, members, counts))
            except (UnsupportedRowFormat, DecodeError) as error:
                newest_ms = int(entries.index[members, kernels.TIME_MS].max())
                if not self._omits(error, [table_text(*name)], newest_ms):
                    raise
                counts[members] = 0
        return [one for one in decoded if len(one.arrays[0])], counts

    def _decode(
        self, entries: Entries, key: tuple[str, str, int], members: np.ndarray, counts: np.ndarray
    ) -> EntryRows:
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
        return EntryRows(plan, arrays, members)

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
            layout = layout_of(RowData.FromString(bytes(entries.body[at : at + size])))
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
                value_parser(column, layout[position], schema, self._zone_us)
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
        array, invalid = parsed
        if invalid:
            if column.name.casefold() in plan.key_names:
                raise DecodeError(
                    "A zero or invalid date in a key column has no value in the target.",
                    hint=f"Correct these rows in the source, or choose a key without this column. {GAP_HINT}",
                )
            if (plan.schema.name, column.name) not in self.invalid_dates:
                log.warning("zero or invalid dates of %s.%s become NULL (logged once)", plan.schema.name, column.name)
            self.invalid_dates[plan.schema.name, column.name] += invalid
        return array


def _without_position(fault: int, table: str, at: str) -> CdcError:
    if fault == kernels.COLUMNS_MISSING:
        return UnsupportedRowFormat(
            "A row image is not FULL: it lacks columns of the table.",
            hint=f"Set binlog_row_image=FULL on the server and in every session that writes. {GAP_HINT}",
            table=table,
            at=at,
        )
    return DecodeError("A row from Canal is not a valid protobuf message.", hint=RESYNC_HINT, table=table, at=at)


def _grouped(members: np.ndarray, keys: np.ndarray) -> list[np.ndarray]:
    """Return ``members`` grouped by key. The groups are in the order of their first members."""
    order = np.argsort(keys, kind="stable")
    cuts = np.flatnonzero(np.diff(keys[order])) + 1
    groups = np.split(members[order], cuts) if len(members) else []
    return sorted(groups, key=lambda group: int(group[0]))


def _numbered(rows: EntryRows, counts: np.ndarray, bases: np.ndarray) -> Changes:
    """Return Changes with ``__sequence``, in the order of the entries over all tables."""
    numbers = counts[rows.entries]
    ends = np.cumsum(numbers)
    sequence = np.arange(1, ends[-1] + 1, dtype=np.int64) + np.repeat(bases[rows.entries] - (ends - numbers), numbers)
    batch = pa.RecordBatch.from_arrays([*rows.arrays, pa.array(sequence)], schema=rows.plan.arrow)
    return Changes(rows.plan.schema, batch)
