"""Plan the chunks of a table: split its key range until the optimizer estimates few enough rows per chunk.

Only the rows at the ends of chunks are read. A split costs a few index lookups: take a value between the ends of the
range, read the existing key next to it, and ask EXPLAIN for the number of rows on both sides. Estimates may be wrong by
some factor. The limits of the reader, not the estimates, bound what one step reads.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pymysql

from cdc.errors import DecodeError
from cdc.model.snapshot import Bound, Chunk
from cdc.mysql.connection import translated
from cdc.mysql.key_order import MARK, KeyColumn, KeyOrder
from cdc.mysql.server import Server

CHUNK_ROWS = 400_000  # as estimated by the optimizer: about one data file of a Delta table
CHUNK_BYTES = 128 << 20
MOST_CHUNKS = 400  # every checkpoint saves the open chunks; larger tables get larger chunks
_PARTS = (0.5, 0.25, 0.75, 0.1, 0.9, 0.02, 0.98)  # split points to try, as fractions of the range
_EVEN = 5  # a split is even enough if the smaller half has more than 1/5 of the rows
_SPLITS = 3  # how often a chunk that is too slow is halved
_USUAL = string.printable[:95]  # characters of most text keys


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """The chunks of a table."""

    chunks: tuple[Chunk, ...]  # in key order; () for an empty table
    estimated_rows: int


@dataclass(frozen=True, slots=True)
class _Range:
    above: Bound | None  # the last key before it
    low: Bound  # its first key
    high: Bound  # its last key
    rows: int  # estimate


class Chunker:
    """Splits one table. Calls: one thread. ``configure_session`` must have configured the connection of ``server``."""

    def __init__(
        self,
        server: Server,
        order: KeyOrder,
        *,
        where: str | None = None,
        chunk_rows: int = CHUNK_ROWS,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """Set the sizes of chunks. ``where``: the condition of the snapshot; it does not change the ends of chunks."""
        self._server = server
        self._order = order
        self._where = where
        self._chunk_rows = chunk_rows
        self._chunk_bytes = chunk_bytes
        self._alphabets: dict[str, str] = {}

    def plan(self, *, row_bytes: int = 0, whole: bool = False) -> ChunkPlan:
        """Return the chunks of the table. ``row_bytes``: size of an average row, 0 if unknown.

        ``whole``: the last chunk has no upper end. Else it ends at the current last key, because the stream delivers
        rows that are inserted after it.
        """
        if not self._order.columns:
            rows = self._estimate(Chunk(0, None, None))
            return ChunkPlan((Chunk(0, None, None, rows),), rows)
        low, high = self._key(None), self._key(None, last=True)
        if low is None or high is None:
            return ChunkPlan((Chunk(0, None, None),) if whole else (), 0)
        rows = self._estimate(Chunk(0, None, None))
        ranges = self._split(_Range(None, low, high, rows), row_bytes)
        # MySQL doubles its estimates of ranges, so only the estimate of the whole table is realistic
        share = rows / max(1, sum(each.rows for each in ranges))
        chunks = [
            Chunk(number, each.above, each.high, max(1, round(each.rows * share))) for number, each in enumerate(ranges)
        ]
        if whole or any(column.is_approximate for column in self._order.columns):
            chunks[-1] = replace(chunks[-1], upto=None)
        return ChunkPlan(tuple(chunks), sum(chunk.estimated_rows for chunk in chunks))

    def split(self, chunk: Chunk, number: int) -> tuple[Chunk, ...]:
        """Return at most 8 parts of ``chunk`` with the same rows; only ``chunk`` if it cannot be split.

        The first part has the number of ``chunk``, the others ``number`` and the numbers after it.
        """
        low, high = self._key(chunk), self._key(chunk, last=True)
        if low is None or high is None:
            return (chunk,)
        ranges = [_Range(chunk.above, low, high, self._estimate(chunk))]
        for _ in range(_SPLITS):
            ranges = [part for each in ranges for part in self._halves(each) or (each,)]
        if len(ranges) == 1:
            return (chunk,)
        share = chunk.estimated_rows / sum(each.rows for each in ranges)
        parts = [
            Chunk(
                number + index - 1 if index else chunk.number, each.above, each.high, max(1, round(each.rows * share))
            )
            for index, each in enumerate(ranges)
        ]
        return (*parts[:-1], replace(parts[-1], upto=chunk.upto))

    def _split(self, whole: _Range, row_bytes: int) -> list[_Range]:
        least = whole.rows // MOST_CHUNKS
        limit = max(self._chunk_rows, least)
        if row_bytes:
            limit = min(limit, max(self._chunk_bytes // row_bytes, least, 1))
        ranges, whole_for_good = [whole], set[_Range]()
        while len(ranges) < MOST_CHUNKS:
            index = max(range(len(ranges)), key=lambda i: 0 if ranges[i] in whole_for_good else ranges[i].rows)
            largest = ranges[index]
            if largest in whole_for_good or largest.rows <= limit:
                break
            halves = self._halves(largest)
            if halves is None:
                whole_for_good.add(largest)
            else:
                ranges[index : index + 1] = halves
        return ranges

    def _halves(self, whole: _Range) -> tuple[_Range, _Range] | None:
        """Return the range split in two, the most even of several attempts; None if it cannot be split."""
        best: tuple[_Range, _Range] | None = None
        for middle in self._guesses(whole):
            # in the order of the index, the guess may be before the first key of the range or after its last one
            high = self._key(Chunk(0, whole.above, middle), last=True)
            low = self._key(Chunk(0, middle, whole.high)) if high is not None else None
            if high is None or low is None:
                continue
            left, right = Chunk(0, whole.above, high), Chunk(0, high, whole.high)
            pair = (
                _Range(whole.above, whole.low, high, self._estimate(left)),
                _Range(high, low, whole.high, self._estimate(right)),
            )
            if best is None or min(half.rows for half in pair) > min(half.rows for half in best):
                best = pair
            if min(half.rows for half in pair) * _EVEN > whole.rows:
                break
        return best

    def _guesses(self, whole: _Range) -> Iterator[Bound]:
        columns = self._order.columns
        differs = next((i for i, (a, b) in enumerate(zip(whole.low, whole.high, strict=True)) if a != b), None)
        if differs is None or not columns[differs].splits:
            return
        column, low, high = columns[differs], whole.low[differs], whole.high[differs]
        alphabet = self._alphabet(column, low, high)
        seen = set()
        for part in _PARTS:
            middle = column.midpoint(low, high, part, alphabet)
            if middle is not None and middle not in seen:
                seen.add(middle)
                yield (*whole.low[:differs], middle)
        yield whole.low[: differs + 1]  # rows with the value of the first key on one side, all others on the other

    def _alphabet(self, column: KeyColumn, low: str, high: str) -> str:
        """Return the likely characters of keys in the order of the column's collation; "" if it is not a text."""
        if not column.collation:
            return ""
        try:
            own = {*column.characters(low), *column.characters(high)}
        except (ValueError, LookupError):
            return ""
        if not own <= set(self._alphabets.get(column.name, "")):
            self._alphabets[column.name] = self._sorted({*own, *_USUAL, *self._alphabets.get(column.name, "")}, column)
        return self._alphabets[column.name]

    def _sorted(self, characters: set[str], column: KeyColumn) -> str:
        each = sorted(characters)
        charset = column.column.charset
        rows = " UNION ALL ".join(f"SELECT {i} AS i, CONVERT({MARK} USING {charset}) AS c" for i in range(len(each)))
        found = self._rows(f"SELECT i FROM ({rows}) AS each_one ORDER BY c COLLATE {column.collation}, i", each)
        return "".join(each[i] for (i,) in found)

    def _key(self, chunk: Chunk | None, *, last: bool = False) -> Bound | None:
        """Return the first or the last key of a chunk; None if it is empty. Raises: DecodeError - it cannot be a bound.

        A bound that the server converts to NULL or to another value would exclude rows without an error.
        """
        columns = self._order.columns
        literals = ", ".join(column.sql_literal for column in columns)
        is_bound = " AND ".join(f"({column.returns})" for column in columns)
        tail, bounds = self._order.tail(chunk or Chunk(0, None, None), descending=last)
        rows = self._rows(f"SELECT {literals}, {is_bound}{tail} LIMIT 1", bounds)
        if not rows:
            return None
        *values, can_be_bound = rows[0]
        if not can_be_bound:
            raise DecodeError(
                "A key of the table cannot be used as the end of a range of rows.",
                hint="Correct this row in the source, or exclude the table. Its key may have bytes that its character "
                "set does not allow.",
                table=self._order.table,
                column=", ".join(self._order.names),
            )
        return tuple(_text(value) for value in values)

    def _estimate(self, chunk: Chunk) -> int:
        columns = ", ".join(column.name for column in self._order.columns) or "1"
        tail, bounds = self._order.tail(chunk)
        form = "" if self._server.mariadb else "FORMAT=TRADITIONAL "  # explain_format of the server may be TREE
        # with FORCE INDEX the server may skip the estimate
        sql = f"EXPLAIN {form}SELECT {columns}{tail}".replace(" FORCE INDEX (", " USE INDEX (", 1)
        rows = self._rows(sql, bounds, named=True)
        return max(1, int(rows[0].get("rows") or 0))

    def _rows(self, sql: str, bounds: list[str], *, named: bool = False) -> Any:
        cursor_class = pymysql.cursors.DictCursor if named else pymysql.cursors.Cursor
        try:
            with self._server.connection.cursor(cursor_class) as cursor:
                cursor.execute(sql.replace("%", "%%").replace(MARK, "%s"), bounds)
                return cursor.fetchall()
        except (pymysql.err.MySQLError, OSError) as error:
            raise translated(error, self._server.endpoint) from error


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
