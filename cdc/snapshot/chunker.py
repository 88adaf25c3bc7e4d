"""Chunks of a table: its key range split until the optimizer's estimates are small enough.

No row is read for it but those at the ends of chunks. Every split costs a few descents of the index, wherever the
keys lie: a value between the ends of a range is guessed, the index tells the key next to it, and EXPLAIN how many rows
lie on either side. Estimates may be wrong by some factor; what is read at once is bounded by the reader, not by them.
"""

from __future__ import annotations

import string
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pymysql

from cdc.binlog.connection import translated
from cdc.binlog.server import Server
from cdc.snapshot.chunks import Bound, Chunk
from cdc.snapshot.keys import MARK, KeyColumn, Order

CHUNK_ROWS = 400_000  # as the optimizer guesses: about a leaf of a Delta table
CHUNK_BYTES = 128 << 20
MOST_CHUNKS = 400  # every checkpoint saves those that are left; larger tables get larger chunks
_PARTS = (0.5, 0.25, 0.75, 0.1, 0.9, 0.02, 0.98)  # where a value between is guessed, until halves are even enough
_EVEN = 5  # the smaller half is at least this part of both
_USUAL = string.printable[:95]  # characters of most keys that are text


@dataclass(frozen=True, slots=True)
class Plan:
    """How a table is to be read."""

    chunks: tuple[Chunk, ...]  # in key order; () where it is empty
    estimated_rows: int


@dataclass(frozen=True, slots=True)
class _Range:
    above: Bound | None  # the last key before it
    low: Bound  # its first and last key
    high: Bound
    rows: int  # as estimated


class Chunker:
    """Splits one table. Calls: one thread, over ``server``'s connection, which ``settle_session`` has prepared."""

    def __init__(
        self,
        server: Server,
        order: Order,
        *,
        where: str | None = None,
        chunk_rows: int = CHUNK_ROWS,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """``where``: rows that are wanted; it does not change where chunks end."""
        self._server = server
        self._order = order
        self._where = where
        self._chunk_rows = chunk_rows
        self._chunk_bytes = chunk_bytes
        self._alphabets: dict[str, str] = {}

    def plan(self, *, row_bytes: int = 0, whole: bool = False) -> Plan:
        """The table's chunks. ``row_bytes``: of an average row, 0: not known.

        ``whole``: from no lower end to no upper end; else from the first key to the last one that is there now: what
        comes behind it later comes through the stream.
        """
        if not self._order.columns:
            rows = self._estimate(Chunk(0, None, None))
            return Plan((Chunk(0, None, None, rows),), rows)
        low, high = self._key(None), self._key(None, last=True)
        if low is None or high is None:
            return Plan((Chunk(0, None, None),) if whole else (), 0)
        rows = self._estimate(Chunk(0, None, None))
        ranges = self._split(_Range(None, low, high, rows), row_bytes)
        # MySQL doubles what it guesses of a range, so that only the whole table's number is near the truth
        share = rows / max(1, sum(each.rows for each in ranges))
        chunks = [
            Chunk(number, each.above, each.high, max(1, round(each.rows * share))) for number, each in enumerate(ranges)
        ]
        if whole or any(column.is_approximate for column in self._order.columns):
            chunks[-1] = replace(chunks[-1], upto=None)
        return Plan(tuple(chunks), sum(chunk.estimated_rows for chunk in chunks))

    def _split(self, whole: _Range, row_bytes: int) -> list[_Range]:
        least = whole.rows // MOST_CHUNKS
        wanted = max(self._chunk_rows, least)
        if row_bytes:
            wanted = min(wanted, max(self._chunk_bytes // row_bytes, least, 1))
        ranges, whole_for_good = [whole], set[_Range]()
        while len(ranges) < MOST_CHUNKS:
            place = max(range(len(ranges)), key=lambda i: 0 if ranges[i] in whole_for_good else ranges[i].rows)
            largest = ranges[place]
            if largest in whole_for_good or largest.rows <= wanted:
                break
            halves = self._halves(largest)
            if halves is None:
                whole_for_good.add(largest)
            else:
                ranges[place : place + 1] = halves
        return ranges

    def _halves(self, whole: _Range) -> tuple[_Range, _Range] | None:
        """The range in two, the most even pair of some."""
        best: tuple[_Range, _Range] | None = None
        for middle in self._guesses(whole):
            # the guess may lie before the range's first key, or behind its last, in the index's own order
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
            middle = column.between(low, high, part, alphabet)
            if middle is not None and middle not in seen:
                seen.add(middle)
                yield (*whole.low[:differs], middle)
        yield whole.low[: differs + 1]  # rows with the first one's value on one side, all others on the other

    def _alphabet(self, column: KeyColumn, low: str, high: str) -> str:
        """Characters that keys may be made of, in the order of the column's collation; "" where it is no text."""
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
        """The first key of a chunk, or the last one."""
        told = ", ".join(column.told for column in self._order.columns)
        tail, bounds = self._order.tail(chunk or Chunk(0, None, None), descending=last)
        rows = self._rows(f"SELECT {told}{tail} LIMIT 1", bounds)
        return tuple(_text(value) for value in rows[0]) if rows else None

    def _estimate(self, chunk: Chunk) -> int:
        columns = ", ".join(column.name for column in self._order.columns) or "1"
        tail, bounds = self._order.tail(chunk)
        form = "" if self._server.mariadb else "FORMAT=TRADITIONAL "  # a server may be set to explain as a tree
        # an index that is forced is used unseen, without an estimate
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
