"""Pages of the keys of a Delta table, read from the key columns of the data files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from channels.sinks.base import TargetTable
from channels.sinks.delta.storage import StorePath
from channels.sinks.delta.table_files import TableFile, live_rows, open_data_file, table_files
from channels.sinks.key_pages import key_page


def smallest_keys(
    found: DeltaTable | None, folder: StorePath, table: TargetTable, after: pa.Table | None, limit: int
) -> pa.Table:
    """Return the ``limit`` smallest keys greater than ``after``; see ``Sink.keys``.

    Memory: the keys of one file and twice ``limit``.
    """
    types = {column.name: column.arrow for column in table.columns}
    schema = pa.schema([pa.field(name, types[name]) for name in table.key])
    page = schema.empty_table()
    for file, least in _files_in_order(found, schema, after) if found is not None else ():
        if page.num_rows == limit and least is not None and least > page.column(0)[limit - 1].as_py():
            break
        with open_data_file(folder / file.path) as opened:
            keys = opened.read(schema.names).select(schema.names)
        if (live := live_rows(folder, file, keys.num_rows)) is not None:
            keys = keys.filter(pa.array(live))
        page = key_page(pa.concat_tables([page, key_page(keys.cast(schema), after, limit)]), None, limit)
    return page


def _files_in_order(table: DeltaTable, key: pa.Schema, after: pa.Table | None) -> Iterator[tuple[TableFile, Any]]:
    """Yield the files that may have keys greater than ``after``, with the smallest value of the first key column.

    They are ordered by that value. Files without a known value are first, with None.
    """
    first, kind = after.column(0)[0].as_py() if after is not None else None, key.types[0]
    found = []
    for file in table_files(table, key.names):
        greatest = bound_value(file.high[0], kind)
        if first is None or greatest is None or greatest >= first:
            found.append((file, bound_value(file.low[0], kind)))
    unknown = [pair for pair in found if pair[1] is None]
    yield from unknown
    yield from sorted((pair for pair in found if pair[1] is not None), key=lambda pair: pair[1])


def bound_value(bound: pa.Scalar, kind: pa.DataType) -> Any:
    """Return a bound of the log as a value of the column; None: not known."""
    try:
        return bound.cast(kind).as_py()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, OverflowError):
        return None
