"""How one table is compared: its rows in a key range, and what is shown of rows that differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from cdc.model.schema import Column, Kind
from cdc.model.snapshot import Bound, Chunk
from cdc.model.verify import DifferenceKind, RowDifference, ValueDifference
from cdc.mysql.key_order import KeyOrder
from channels.chunk_reader import TableRead
from channels.row_compare import RowComparison, compare_rows, unequal_columns
from channels.sinks.row_ranges import KeyRange, RangeChecksums, RowReader

_VALUE_CHARACTERS = 200  # of a value that is shown
_HIDDEN = "***"
_KINDS = (DifferenceKind.MISSING, DifferenceKind.EXTRA, DifferenceKind.DIFFERENT)  # by code of ``row_compare``
# kinds whose values have the order of the index in Arrow and in the sinks too
_ORDERED = (
    Kind.TINYINT, Kind.SMALLINT, Kind.MEDIUMINT, Kind.INT, Kind.BIGINT, Kind.YEAR, Kind.BIT, Kind.DECIMAL, Kind.DATE,
    Kind.DATETIME, Kind.TIMESTAMP, Kind.BINARY, Kind.VARBINARY,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TableCompare:
    """How one table is compared."""

    read: TableRead
    key: tuple[str, ...]  # of the target
    key_columns: tuple[Column, ...]  # source columns that ``key`` copies
    columns: tuple[str, ...]  # target columns to compare, the key included
    hidden: frozenset[str]  # of ``columns``: their values are not shown
    json_columns: frozenset[str]
    range_columns: tuple[str, ...] | None  # target columns of ``read.order``; None: the target has another order
    open_rows: Callable[[], RowReader] = field(repr=False)


def range_columns(order: KeyOrder, copies: Mapping[str, Column]) -> tuple[str, ...] | None:
    """Return the target columns of the index ``order``; None if they do not have its order.

    ``copies``: target column -> source column.
    """
    targets = {column.name.casefold(): name for name, column in copies.items()}
    found = [targets.get(one.column.name.casefold()) for one in order.columns]
    ordered = all(one.column.kind in _ORDERED and not pa.types.is_string(one.column.arrow) for one in order.columns)
    return tuple(name for name in found if name is not None) if found and None not in found and ordered else None


def compare(table: TableCompare, source: pa.Table, target: pa.Table, rows: RowReader) -> RowComparison:
    """Return what differs between ``source`` and ``target``, which ``rows`` has read. See ``compare_rows``."""
    return compare_rows(source, target, table.key, json_columns=table.json_columns, rounds_floats=rows.rounds_floats)


def compare_range(table: TableCompare, source: pa.Table, part: Chunk, rows: RowReader) -> RowComparison:
    """Compare ``source``, the rows of ``part``, with those of the target.

    If the target computes checksums and they are equal, only columns that are not part of them are read, with the key.
    Raises: see ``RowReader.between``.
    """
    range, checksums = _key_range(table, part), rows.checksums
    if checksums is None or not _has_equal_checksums(source, range, checksums):
        return compare(table, source, rows.between(range), rows)
    rest = [name for name in source.column_names if name not in checksums.columns]
    source = source.select([*table.key, *rest])
    if not rest:
        return compare(table, source.slice(0, 0), source.slice(0, 0), rows)
    return compare(table, source, rows.between(range, source.column_names), rows)


def _has_equal_checksums(source: pa.Table, range: KeyRange, checksums: RangeChecksums) -> bool:
    here = checksums.of_rows(source)
    return here is not None and here == checksums.of_range(range)


def _key_range(table: TableCompare, part: Chunk) -> KeyRange:
    columns = table.read.order.columns
    assert table.range_columns is not None

    def values(bound: Bound | None) -> tuple[pa.Scalar, ...] | None:
        if bound is None:
            return None
        return tuple(_scalar(text, one.column) for text, one in zip(bound, columns, strict=True))

    return KeyRange(table.range_columns, values(part.above), values(part.upto))


def _scalar(text: str, column: Column) -> pa.Scalar:
    kind = column.arrow
    if pa.types.is_binary(kind):
        return pa.scalar(bytes.fromhex(text), kind)
    if pa.types.is_timestamp(kind):
        return pa.array([text]).cast(pa.timestamp(kind.unit)).cast(kind)[0]
    return pa.array([text]).cast(kind)[0]


def row_details(
    name: str,
    table: TableCompare,
    found: RowComparison,
    source: pa.Table,
    target: pa.Table,
    rows: RowReader,
    shown: int,
) -> tuple[RowDifference, ...]:
    """Return the first ``shown`` rows of ``found`` with their values."""
    details = []
    for number in range(min(shown, found.keys.num_rows)):
        kind = _KINDS[found.kinds[number]]
        key = {column: _shown(table, column, found.keys.column(column)[number]) or "" for column in table.key}
        values: tuple[ValueDifference, ...] = ()
        if kind is DifferenceKind.DIFFERENT:
            one = source.slice(int(found.source_rows[number]), 1)
            other = target.slice(int(found.target_rows[number]), 1)
            values = tuple(
                ValueDifference(column, *(_shown(table, column, side.column(column)[0]) for side in (one, other)))
                for column in unequal_columns(
                    one, other, json_columns=table.json_columns, rounds_floats=rows.rounds_floats
                )
            )
        details.append(RowDifference(name, kind, key, values))
    return tuple(details)


def _shown(table: TableCompare, column: str, value: pa.Scalar) -> str | None:
    """Return a value as a short text; None for NULL."""
    if not value.is_valid:
        return None
    if column in table.hidden:
        return _HIDDEN
    try:
        found = value.as_py()
    except (ValueError, OverflowError):
        found = value.cast(pa.string()).as_py()  # the year 0
    text = found.hex() if isinstance(found, bytes) else str(found)
    return text if len(text) <= _VALUE_CHARACTERS else f"{text[:_VALUE_CHARACTERS]}..."
