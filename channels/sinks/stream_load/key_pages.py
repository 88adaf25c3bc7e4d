"""Pages of the keys of a table in Doris or StarRocks, read over the SQL port.

Each page is one SELECT after the last key of the page before it, so neither server nor client keeps anything between
two pages. Keys are compared with those of the source by their exact values. The order of the cluster only decides which
page a key is in, so no collation of the source matters. A page that is not strictly in order, or that has a value that
this job did not write, raises an error: from such a page a row could be missed.

Source: the manuals of both, "SELECT", "SYNC" and "Session variables".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import TargetMismatch
from channels.sinks.base import TargetTable
from channels.sinks.stream_load.encoding import text_of
from channels.sinks.stream_load.frontend import FrontendSql
from channels.sinks.stream_load.messages import SqlError
from channels.sinks.stream_load.statements import escape_percent, quoted, quoted_table
from channels.sinks.stream_load.types import ColumnType, parsed

ANSWER_KEYS = 50_000  # of one SELECT
ANSWER_BYTES = 64 << 20  # of the values of one SELECT, at their declared length
QUERY_S = 100  # the server ends a query before the client stops waiting for it
_NUMBERS = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "LARGEINT")
_NUMBER_BYTES = 40  # of the longest number or time as text
_HINT = (
    "Delete this row from the target if another program wrote it. If the column has another type than the one that "
    "`cdc ddl JOB.yaml` prints, create the table again. Then run `cdc resume`."
)


class KeyPages:
    """Reads the keys of target tables. Calls: one thread at a time."""

    def __init__(self, sql: FrontendSql) -> None:
        self._sql = sql

    def page(self, table: TargetTable, after: pa.Table | None, limit: int) -> pa.Table:
        """See ``KeyLister.keys``. Raises also TargetMismatch - the keys cannot be read exactly."""
        types = stored_types(self._sql, table, table.key)
        most = max(1, min(ANSWER_KEYS, ANSWER_BYTES // sum(map(_bytes, types))))
        pages, count = [_schema(table).empty_table()], 0
        while count < limit:
            size = min(most, limit - count)
            page = self._read(table, types, after, size)
            pages.append(page)
            count += page.num_rows
            if page.num_rows < size:
                break
            after = page.slice(page.num_rows - 1)
        return pa.concat_tables(pages)

    def _read(self, table: TargetTable, types: Sequence[ColumnType], after: pa.Table | None, size: int) -> pa.Table:
        names = [escape_percent(quoted(name)) for name in table.key]
        where, values = "", None
        if after is not None:
            condition, values = beyond(names, types, [text_of_one(column) for column in after.columns])
            where = f" WHERE {condition}"
        columns = ", ".join(names)
        sql = (
            f"SELECT /*+ SET_VAR(query_timeout = {QUERY_S}) */ {columns} "
            f"FROM {escape_percent(quoted_table(table.name))}{where} ORDER BY {columns} LIMIT {size}"
        )
        try:
            rows = self._sql.texts(sql, values)
        except SqlError as error:
            raise refused(self._sql, error, table) from error
        found = [*zip(*rows, strict=True)] or [()] * len(names)
        return _decoded(table, types, [pa.chunked_array([pa.array(one, pa.string())]) for one in found], after)


def stored_types(sql: FrontendSql, table: TargetTable, names: Sequence[str]) -> list[ColumnType]:
    """Return the types that the columns ``names`` have in the cluster. Raises: TargetMismatch - one is missing."""
    try:
        rows = sql.columns(table.name)
    except SqlError as error:
        raise refused(sql, error, table) from error
    found = {str(row["Field"]): parsed(str(row["Type"])) for row in rows}
    missing = [name for name in names if name not in found]
    if missing:
        raise TargetMismatch(
            f"{table.name} has no column {missing[0]}.", hint="Restore the column in the target.", table=table.name
        )
    return [found[name] for name in names]


def refused(sql: FrontendSql, error: SqlError, table: TargetTable) -> Exception:
    """Return the error for a refused query. Raises: the error that the refusal means, if a retry cannot succeed."""
    sql.raise_refused(error, table.name)
    return sql.messages.refused(error, table=table.name)


def _schema(table: TargetTable) -> pa.Schema:
    types = {column.name: column.arrow for column in table.columns}
    return pa.schema([pa.field(name, types[name]) for name in table.key])


def _bytes(kind: ColumnType) -> int:
    return kind.parameters[0] if kind.is_text and kind.parameters else _NUMBER_BYTES


def text_of_one(value: pa.ChunkedArray) -> str:
    """Return the text of a column of one value, as a load sends it."""
    return str(text_of(value.combine_chunks())[0].as_py())


def beyond(
    names: Sequence[str], types: Sequence[ColumnType], texts: Sequence[str], sign: str = ">", last: str = ">"
) -> tuple[str, tuple[Any, ...]]:
    """Return the condition that a key is greater than ``texts``, and its values in order.

    ``names``: escaped columns. ``sign``, ``last``: "<" and "<=" for keys that are not greater.
    """
    bounds = [_bound(kind, text) for kind, text in zip(types, texts, strict=True)]
    terms: list[str] = []
    values: list[Any] = []
    for count, name in enumerate(names):
        equal = [f"{other} = {bound[0]}" for other, bound in zip(names[:count], bounds, strict=False)]
        compare = last if count == len(names) - 1 else sign
        terms.append("(" + " AND ".join([*equal, f"{name} {compare} {bounds[count][0]}"]) + ")")
        values += [value for _, value in bounds[: count + 1]]
    if len(terms) == 1:
        return terms[0], tuple(values)
    # the first column alone once more, because not every version finds the range in the alternatives
    return f"{names[0]} {sign}= {bounds[0][0]} AND ({' OR '.join(terms)})", (bounds[0][1], *values)


def _bound(kind: ColumnType, text: str) -> tuple[str, Any]:
    """Return an expression of the type ``kind`` and the value that is bound to it."""
    if kind.base in _NUMBERS:
        return "%s", int(text)
    return ("%s" if kind.is_text else f"CAST(%s AS {kind})"), text


def _decoded(
    table: TargetTable, types: Sequence[ColumnType], texts: Sequence[pa.ChunkedArray], after: pa.Table | None
) -> pa.Table:
    """Return the keys of ``texts``, one per column.

    Raises: TargetMismatch - a value is not exact, or the rows are not in order.
    """
    found = []
    compared: list[pa.ChunkedArray] = []
    for field, kind, text in zip(_schema(table), types, texts, strict=True):
        values = typed_values(table, field, text)
        if kind.is_text and not _texts(values).equals(text):
            raise _inexact(table, field)
        found.append(values)
        before = after.column(field.name) if after is not None else values.slice(0, 0)
        with_before = pa.chunked_array([*before.chunks, *values.chunks], field.type)
        # in the cluster, a text has the order of its bytes, also one that contains a number
        compared.append(_texts(with_before) if kind.is_text else with_before)
    if not _rises(compared):
        raise TargetMismatch(
            f"The keys of {table.name} are not in the order of their values.",
            hint="Create the table with the key columns that `cdc ddl JOB.yaml` prints, then run `cdc resume`.",
            table=table.name,
        )
    return pa.table(found, schema=_schema(table))


def _texts(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([text_of(chunk) for chunk in values.chunks], pa.string())


def typed_values(
    table: TargetTable, field: pa.Field, text: pa.ChunkedArray, *, can_be_null: bool = False
) -> pa.ChunkedArray:
    """Return ``text`` as values of the type of ``field``. Raises: TargetMismatch - a text is no such value."""
    kind = field.type
    try:
        if text.null_count and not can_be_null:
            raise ValueError("NULL")
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            values = [None if one is None else bytes.fromhex(one) for one in text.to_pylist()]
            return pa.chunked_array([pa.array(values, kind)], kind)
        if pa.types.is_timestamp(kind):
            return text.cast(pa.timestamp(kind.unit)).cast(kind)
        return text.cast(kind)
    except (pa.ArrowInvalid, ValueError) as error:
        raise _inexact(table, field) from error


def _inexact(table: TargetTable, field: pa.Field) -> TargetMismatch:
    return TargetMismatch(
        f"A row of {table.name} has a value in column {field.name} that is no value of the source's type.",
        hint=_HINT,
        table=table.name,
        column=field.name,
        type=str(field.type),
    )


def _rises(columns: Sequence[pa.ChunkedArray]) -> bool:
    """Return whether each row is greater than the row before it."""
    greater: Any = pa.scalar(False)
    equal: Any = pa.scalar(True)
    for column in columns:
        values = column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column
        values = values.combine_chunks()
        first, second = values.slice(0, max(0, len(values) - 1)), values.slice(1)
        greater = pc.or_(greater, pc.and_(equal, pc.greater(second, first)))
        equal = pc.and_(equal, pc.equal(second, first))
    return bool(pc.all(greater, min_count=0).as_py())
