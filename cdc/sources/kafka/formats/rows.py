"""Values of messages to the typed columns of one table. A value that cannot be read makes its message a Fault."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cdc.errors import CdcError, DecodeError, SchemaMismatch, TargetMismatch, UnsupportedRowFormat
from cdc.model.batch import RequiredColumns
from cdc.model.schema import DELETED, Column, TableSchema
from cdc.sources.kafka.formats import json_kernels as kernels
from cdc.sources.kafka.formats.base import DecodedRows, Faults, KafkaTables
from cdc.sources.kafka.formats.json_slices import Slices, Texts, shown
from cdc.sources.kafka.messages import MessageBlock

log = logging.getLogger(__name__)

# returns the array of a column, or the array and the number of zero and invalid dates that became NULL
Parser = Callable[[Texts], pa.Array | tuple[pa.Array, int]]

PRODUCER_HINT = "Correct the value in the source, or the settings of the program that sends the messages."
TEXT_KINDS = (kernels.STRING, kernels.ESCAPED)
_KIND_NAMES = ("an absent value", "null", "text", "text", "a number", "true", "false", "an object", "an array")


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """How the values of a column are read."""

    column: Column
    parse: Parser  # raises DecodeError with ``row``
    kinds: tuple[int, ...] = (*TEXT_KINDS, kernels.NUMBER)  # accepted kinds of JSON values besides null


@dataclass(frozen=True, slots=True)
class TablePlan:
    """How the rows of one table and layout are read."""

    schema: TableSchema
    columns: tuple[ColumnPlan, ...]  # the needed columns, in table order
    key: frozenset[str]  # folded names of the key columns

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns in the messages."""
        return tuple(plan.column.name for plan in self.columns)

    @property
    def key_slots(self) -> list[int]:
        """Numbers of the key columns in ``columns``."""
        return [slot for slot, plan in enumerate(self.columns) if plan.column.name.casefold() in self.key]


def needed_columns(schema: TableSchema, reads: RequiredColumns) -> tuple[Column, ...]:
    """Return the columns that a channel reads, in table order."""
    requested = {name.casefold() for name in reads.columns | reads.key}
    return tuple(column for column in schema.columns if column.name.casefold() in requested)


def omit_table(tables: KafkaTables, database: str, table: str, error: CdcError, at: str = "") -> None:
    """Leave out a table whose rows cannot be read, or raise ``error``. ``at``: the position of its message."""
    error.context.setdefault("table", f"{database}.{table}")
    if at:
        error.context.setdefault("at", at)
    if not isinstance(error, (SchemaMismatch, TargetMismatch)) or not tables.leave_out(database, table, error):
        raise error


class RowParser:
    """Reads rows of tables to Arrow. Keeps only counts between calls."""

    def __init__(self) -> None:
        self.invalid_dates: Counter[tuple[str, str]] = Counter()  # became NULL, by table and column

    def read(
        self,
        block: MessageBlock,
        plan: TablePlan,
        slices: Slices,
        deleted: NDArray[np.bool_],
        message: NDArray[np.int32],
        key_change: NDArray[np.bool_],
        faults: Faults,
        *,
        optional: NDArray[np.bool_] | None = None,
    ) -> DecodedRows | None:
        """Return the typed rows; None if every row belongs to a faulty message. Add reasons to ``faults``.

        ``slices`` has one slot per column of ``plan``. ``optional``: rows in which columns may be absent.
        """
        bad = np.zeros(len(message), np.bool_)  # rows of faulty messages
        known = len(faults)
        arrays = []
        for slot, each in enumerate(plan.columns):
            texts = slices[slot]
            absent = (texts.kinds == kernels.ABSENT) & ~bad
            if optional is not None:
                absent &= ~optional
            _reject_absent(absent, each.column.name, message, bad, faults)
            is_key = each.column.name.casefold() in plan.key
            if not (is_key or each.column.nullable):
                _reject_nulls((texts.lengths < 0) & ~deleted & ~bad, each.column.name, message, bad, faults)
            arrays.append(self._column(each, texts, message, bad, faults, plan.schema.name, is_key))
        faults.note_table(known, plan.schema.name)
        fields = [pa.field(each.column.name, each.column.arrow) for each in plan.columns]
        batch = pa.RecordBatch.from_arrays(
            [*arrays, pa.array(deleted)], schema=pa.schema([*fields, pa.field(DELETED, pa.bool_())])
        )
        if bad.any():
            keep = ~bad
            batch = batch.filter(pa.array(keep))
            message, key_change = message[keep], key_change[keep]
        return DecodedRows(plan.schema, batch, message.astype(np.int32), key_change) if batch.num_rows else None

    def _column(
        self,
        each: ColumnPlan,
        texts: Texts,
        message: NDArray[np.int32],
        bad: NDArray[np.bool_],
        faults: Faults,
        table: str,
        is_key: bool,
    ) -> pa.Array:
        name = each.column.name
        null = texts.lengths < 0
        if is_key and (null & ~bad).any():
            _reject(null & ~bad, message, bad, faults, lambda row: f"column {name} of the key is NULL or absent")
        accepts = np.zeros(len(_KIND_NAMES), np.bool_)
        accepts[[*each.kinds, kernels.NULL, kernels.ABSENT]] = True
        accepted = accepts[texts.kinds]
        if not accepted.all():
            _reject(
                ~accepted & ~bad, message, bad, faults,
                lambda row: f"column {name} has {_KIND_NAMES[texts.kinds[row]]}: {shown(texts.bytes(row))}",
            )  # fmt: skip
        while True:
            try:
                parsed = each.parse(unescaped(without(texts, bad)))
            except (DecodeError, UnsupportedRowFormat) as error:
                row = error.context.get("row", 0)
                assert isinstance(row, int)
                if bad[row]:
                    raise  # a parser refuses a NULL: it would be repeated for ever
                reason = f"column {name}: {error.message.rstrip('.')} ({shown(texts.bytes(row))})"
                faults.setdefault(int(message[row]), reason)
                bad |= message == message[row]
                continue
            array, invalid = parsed if isinstance(parsed, tuple) else (parsed, 0)
            if not invalid:
                return array
            became_null = np.asarray(array.is_null()) & ~null & ~bad
            if is_key and became_null.any():
                _reject(became_null, message, bad, faults, lambda _: f"column {name} of the key has an invalid date")
            elif became_null.any():
                if (table, name) not in self.invalid_dates:
                    log.warning("zero or invalid dates of %s.%s become NULL (logged once)", table, name)
                self.invalid_dates[table, name] += int(became_null.sum())
            return array


def lacks_column(column: str) -> str:
    """Return the reason of a message whose rows lack a column that the mapping reads."""
    return (
        f"its rows do not have column {column}, which the mapping reads: binlog_row_image is not FULL, or the producer "
        "filters columns"
    )


def _reject_nulls(
    rows: NDArray[np.bool_], name: str, message: NDArray[np.int32], bad: NDArray[np.bool_], faults: Faults
) -> None:
    if rows.any():
        _reject(rows, message, bad, faults, lambda _: f"column {name} is NOT NULL, but it is null or absent")


def _reject_absent(
    rows: NDArray[np.bool_], name: str, message: NDArray[np.int32], bad: NDArray[np.bool_], faults: Faults
) -> None:
    if rows.any():
        _reject(rows, message, bad, faults, lambda _: lacks_column(name))


def _reject(
    rows: NDArray[np.bool_],
    message: NDArray[np.int32],
    bad: NDArray[np.bool_],
    faults: Faults,
    reason: Callable[[int], str],
) -> None:
    """Make faults of the messages of ``rows``, each with the reason of its first one."""
    chosen = np.flatnonzero(rows)
    numbers, first = np.unique(message[chosen], return_index=True)
    for number, at in zip(numbers.tolist(), first.tolist(), strict=True):
        faults.setdefault(number, reason(int(chosen[at])))
    bad |= np.isin(message, numbers)


def without(texts: Texts, bad: NDArray[np.bool_]) -> Texts:
    """Return the values with NULL in the rows ``bad``."""
    if not bad.any():
        return texts
    lengths = np.where(bad, np.int32(-1), texts.lengths)
    return Texts(texts.data, texts.starts, lengths, np.where(bad, np.uint8(kernels.NULL), texts.kinds))


def unescaped(texts: Texts) -> Texts:
    """Return the values without JSON escapes. Raises: DecodeError with ``row`` - half a surrogate pair."""
    if not (texts.kinds == kernels.ESCAPED).any():
        return texts
    out = np.empty(int(np.maximum(texts.lengths, 0).sum(dtype=np.int64)) + 8, np.uint8)
    starts, lengths = np.empty_like(texts.starts), np.empty_like(texts.lengths)
    row = kernels.unescape_values(texts.data, texts.starts, texts.lengths, texts.kinds, out, starts, lengths)
    if row >= 0:
        raise DecodeError("A text has half a surrogate pair, which is not a character.", hint=PRODUCER_HINT, row=row)
    return Texts(out, starts, lengths, texts.kinds)


def in_order(tables: Sequence[DecodedRows | None]) -> tuple[DecodedRows, ...]:
    """Return the tables in order of their first rows."""
    return tuple(sorted((table for table in tables if table is not None), key=lambda table: int(table.message[0])))


class TextFormat:
    """What formats with values as text have in common: their tables, the clock of the sender, and the row parser."""

    def __init__(self, tables: KafkaTables, *, zone_us: int = 0) -> None:
        """``zone_us``: how far the clock of the sender, or a moment without a zone, is ahead of UTC, for TIMESTAMP."""
        self._tables = tables
        self._zone_us = zone_us
        self._reader = RowParser()

    @property
    def invalid_dates(self) -> Counter[tuple[str, str]]:
        """The number of zero and invalid dates that became NULL, by table and column."""
        return self._reader.invalid_dates
