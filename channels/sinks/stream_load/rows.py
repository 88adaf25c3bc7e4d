"""Rows of a table in Doris or StarRocks by key, read over the SQL port as texts and converted to Arrow.

Each answer is one SELECT after the last key of the answer before it, as for ``key_pages``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from channels.sinks.base import TargetTable
from channels.sinks.row_ranges import KeyRange
from channels.sinks.stream_load.checksums import ChecksumProbe, ClusterChecksums, Terms
from channels.sinks.stream_load.encoding import text_of
from channels.sinks.stream_load.frontend import FrontendSql
from channels.sinks.stream_load.key_pages import (
    ANSWER_BYTES,
    QUERY_S,
    beyond,
    refused,
    stored_types,
    text_of_one,
    typed_values,
)
from channels.sinks.stream_load.messages import SqlError
from channels.sinks.stream_load.statements import escape_percent, quoted, quoted_table
from channels.sinks.stream_load.types import ColumnType

_ANSWER_ROWS = 20_000
_USUAL_BYTES = 64  # of a value without a declared length
_LOOKUP_VALUES = 2_000  # of one statement


class ClusterRows:
    """See ``RowReader``. A call holds its rows, and the texts of one answer."""

    rounds_floats = True

    def __init__(self, sql: FrontendSql, probe: ChecksumProbe, table: TargetTable, columns: Sequence[str]) -> None:
        """Read the types of the columns. Raises: SinkUnavailable, TargetMismatch."""
        self._sql, self._table = sql, table
        types = {column.name: column.arrow for column in table.columns}
        self._schema = pa.schema([pa.field(name, types[name]) for name in columns])
        self._stored = dict(zip(columns, stored_types(sql, table, columns), strict=True))
        self.checksums = self._checksums(probe)

    def _checksums(self, probe: ChecksumProbe) -> ClusterChecksums | None:
        """Return the checksums of the columns that can be part of them; None: no use, as without a key column."""
        included = [field for field in self._schema if probe.has(self._stored[field.name], field.type)]
        names = {field.name for field in included}
        if not names.issuperset(self._table.key) or len(names) == len(self._table.key) < len(self._schema):
            return None
        kinds = [self._stored[field.name] for field in included]
        return ClusterChecksums(self._sql, self._table.name, pa.schema(included), kinds, self._range_terms)

    def has_order_of(self, columns: Sequence[str]) -> bool:
        """See ``RowReader``. Numbers and times that are stored as text have another order; bytes in hex have theirs."""
        kinds = [(self._stored[name], self._schema.field(name).type) for name in columns]
        return all(not stored.is_text or pa.types.is_binary(kind) for stored, kind in kinds)

    def between(self, range: KeyRange, columns: Sequence[str] | None = None) -> pa.Table:
        """See ``RowReader``."""
        return self._pages(self._range_terms(range), columns or self._schema.names)

    def _range_terms(self, range: KeyRange) -> Terms:
        terms: Terms = []
        for bound, sign, last in ((range.above, ">", ">"), (range.upto, "<", "<=")):
            if bound is not None:
                texts = [text_of_one(pa.chunked_array([pa.array([value.as_py()], value.type)])) for value in bound]
                terms.append(self._condition(range.columns, texts, sign, last))
        return terms

    def of_keys(self, keys: pa.Table) -> pa.Table:
        """See ``RowReader``."""
        key = self._table.key
        texts = [text_of(keys.column(name).combine_chunks()).to_pylist() for name in key]
        types = [self._stored[name] for name in key]
        at_once = max(1, _LOOKUP_VALUES // len(key))
        found = [self._schema.empty_table()]
        names = [escape_percent(quoted(name)) for name in key]
        for at in range(0, keys.num_rows, at_once):
            rows = list(zip(*(column[at : at + at_once] for column in texts), strict=True))
            pairs = [equal_to(names, types, row) for row in rows]
            condition = " OR ".join(pair[0] for pair in pairs)
            values = tuple(value for pair in pairs for value in pair[1])
            found.append(self._pages([(f"({condition})", values)], self._schema.names))
        return pa.concat_tables(found)

    def _pages(self, terms: Terms, columns: Sequence[str]) -> pa.Table:
        schema = pa.schema([self._schema.field(name) for name in columns])
        row_bytes = sum(_bytes(self._stored[name]) for name in columns)
        most = max(1, min(_ANSWER_ROWS, ANSWER_BYTES // row_bytes))
        found, after = [schema.empty_table()], None
        while True:
            page = self._page(schema, terms if after is None else [*terms, after], most)
            found.append(page)
            if page.num_rows < most:
                return pa.concat_tables(found)
            last = page.slice(page.num_rows - 1)
            key = self._table.key
            after = self._condition(key, [text_of_one(last.column(name)) for name in key], ">", ">")

    def _page(self, schema: pa.Schema, terms: Terms, most: int) -> pa.Table:
        selected = ", ".join(self._selected(name) for name in schema.names)
        where = f" WHERE {' AND '.join(f'({term})' for term, _ in terms)}" if terms else ""
        order = ", ".join(escape_percent(quoted(name)) for name in self._table.key)
        sql = (
            f"SELECT /*+ SET_VAR(query_timeout = {QUERY_S}) */ {selected} "
            f"FROM {escape_percent(quoted_table(self._table.name))}{where} ORDER BY {order} LIMIT {most}"
        )
        values = tuple(value for _, some in terms for value in some)
        try:
            rows = self._sql.texts(sql if values else sql.replace("%%", "%"), values or None)
        except SqlError as error:
            raise refused(self._sql, error, self._table) from error
        columns = [*zip(*rows, strict=True)] or [()] * len(schema)
        arrays = [
            self._typed(field, pa.chunked_array([pa.array(one, pa.string())]))
            for field, one in zip(schema, columns, strict=True)
        ]
        return pa.table(arrays, schema=schema)

    def _selected(self, name: str) -> str:
        column = escape_percent(quoted(name))
        return f"hex({column})" if self._stored[name].base == "VARBINARY" else column

    def _condition(
        self, names: Sequence[str], texts: Sequence[str], sign: str, last: str
    ) -> tuple[str, tuple[Any, ...]]:
        types = [self._stored[name] for name in names]
        return beyond([escape_percent(quoted(name)) for name in names], types, texts, sign, last)

    def _typed(self, field: pa.Field, text: pa.ChunkedArray) -> pa.ChunkedArray:
        kind = field.type
        if pa.types.is_list(kind):
            values = [None if one is None else json.loads(one) for one in text.to_pylist()]  # vectors are rare
            return pa.chunked_array([pa.array(values, kind)], kind)
        return typed_values(self._table, field, text, can_be_null=True)


def equal_to(names: Sequence[str], types: Sequence[ColumnType], texts: Sequence[str]) -> tuple[str, tuple[Any, ...]]:
    """Return the condition that a key is equal to ``texts``, and its values in order."""
    terms = [beyond([name], [kind], [text], "=", "=") for name, kind, text in zip(names, types, texts, strict=True)]
    return "(" + " AND ".join(term for term, _ in terms) + ")", tuple(value for _, some in terms for value in some)


def _bytes(kind: ColumnType) -> int:
    return min(kind.parameters[0], 1024) if kind.is_text and kind.parameters else _USUAL_BYTES
