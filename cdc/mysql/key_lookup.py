"""Look up rows of the source by their keys: SELECT statements over the index that orders the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.schema import Column, Kind
from cdc.model.snapshot import Chunk
from cdc.mysql.connection import Endpoint
from cdc.mysql.key_order import KeyOrder
from cdc.mysql.query_stream import ReadCancelled, Select, refuse_part
from cdc.mysql.result_rows import selected

_LOOKUP_VALUES = 10_000  # of one statement: the server does not use the index for lists that need more than 8 MiB
LEAST_RANGE = 10_000  # keys; one statement looks up fewer
_WHOLE = (Kind.TINYINT, Kind.SMALLINT, Kind.MEDIUMINT, Kind.INT, Kind.BIGINT)
_TEXTS = (Kind.CHAR, Kind.VARCHAR)
_UTF8 = ("utf8mb4", "utf8mb3", "utf8")
_ASCII_COMPATIBLE = (*_UTF8, "ascii", "latin1")


@dataclass(frozen=True, slots=True)
class KeyLookup:
    """One SELECT for some keys."""

    keys: pa.Table
    sql: str
    bounds: list[str]
    columns: tuple[Column, ...]  # that it returns

    def read(self, endpoint: Endpoint, is_over: Callable[[], bool]) -> list[pa.RecordBatch]:
        """Return the rows of the source. A key that compares equal in its collation is found too.

        Raises: SourceUnavailable, SchemaMismatch; ReadCancelled - ``is_over`` has returned True.
        """
        if is_over():
            raise ReadCancelled
        with Select(endpoint, self.sql, self.bounds, self.columns) as select:
            found = [rows.batch for rows in select.rows(is_over)]
            refuse_part(select)
        return found


def key_lookups(
    order: KeyOrder, key: Sequence[Column], keys: pa.Table, columns: Sequence[Column]
) -> list[KeyLookup] | None:
    """Return the statements that read ``columns`` of the rows with ``keys``; None if they cannot be looked up.

    ``key`` are the columns of ``keys``, in order. Only types with an unambiguous text are looked up, because a row
    whose key is not found is deleted from the target.
    """
    names = [column.name.casefold() for column in key]
    if sorted(names) != sorted(one.column.name.casefold() for one in order.columns):
        return None
    values = []
    for one in order.columns:
        texts = _texts(one.column, keys.column(names.index(one.column.name.casefold())))
        if texts is None:
            return None
        values.append(texts)
    at_once = _LOOKUP_VALUES // len(values)
    equal = "(" + " AND ".join(f"{one.name} = {one.bound}" for one in order.columns) + ")"
    head = "SELECT " + ", ".join(selected(column) for column in columns)
    head += f" FROM {order.table} FORCE INDEX ({order.index}) WHERE "
    found = []
    for at in range(0, keys.num_rows, at_once):
        rows = list(zip(*(texts[at : at + at_once] for texts in values), strict=True))
        sql = head + " OR ".join([equal] * len(rows))
        if len(values) == 1:
            (one,) = order.columns
            sql = f"{head}{one.name} IN ({', '.join([one.bound] * len(rows))})"
        bounds = [text for row in rows for text in row]
        found.append(KeyLookup(keys.slice(at, at_once), sql, bounds, tuple(columns)))
    return found


def key_range(order: KeyOrder, key: Sequence[Column], keys: pa.Table) -> Chunk | None:
    """Return the range of the index with all ``keys``; None if they are too few, or do not begin with whole numbers.

    ``key`` are the columns of ``keys``, in order. To read such a range is many times faster than to look up its keys,
    if the source has few other keys in it.
    """
    first = order.columns[0].column if order.columns else None
    names = [column.name.casefold() for column in key]
    if first is None or first.name.casefold() not in names or keys.num_rows < LEAST_RANGE:
        return None
    values = keys.column(names.index(first.name.casefold()))
    if first.kind not in _WHOLE or not pa.types.is_integer(values.type):
        return None
    least, greatest = pc.min_max(values).as_py().values()
    # an unsigned column has no negative value, and the server would read one as a very large number
    least_of_column = 0 if first.unsigned else -(1 << 63)
    if greatest < least_of_column:
        return None
    above = None if least <= least_of_column else (str(least - 1),)
    return Chunk(0, above, (str(greatest),))


def _texts(column: Column, values: pa.ChunkedArray) -> list[str] | None:
    """Return bounds (see ``KeyColumn.bound``) of values; None if they might differ from the stored values."""
    if column.kind in _WHOLE and pa.types.is_integer(values.type):
        return [str(value) for value in values.to_pylist()]
    if column.kind is Kind.DECIMAL and pa.types.is_decimal(values.type):
        return [format(value, "f") for value in values.to_pylist()]
    if column.kind in _TEXTS and column.charset in _ASCII_COMPATIBLE:
        texts = values.to_pylist()
        if column.charset in _UTF8 or all(text.isascii() for text in texts):
            return [text.encode().hex() for text in texts]
    return None
