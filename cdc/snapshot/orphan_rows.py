"""Orphan rows: after a table was loaded again, delete rows of the target that the source no longer has.

A step compares the keys of target and source at the position of the stream. A key that only the target has was deleted
without a row event, or the stream will deliver its delete, which then has no effect. The keys of the target are read in
pages in key order, within the time of a snapshot step. The last compared key is saved with the deletes. The next step
continues after it, even if rows were written in between.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cdc.model.batch import LoadName
from cdc.model.row_keys import KeyIndex
from cdc.model.schema import DELETED, SEQUENCE, Column, TableSchema
from cdc.model.snapshot import Chunk
from cdc.mysql.connection import Endpoint
from cdc.mysql.key_lookup import key_lookups, key_range
from cdc.mysql.key_order import KeyOrder
from cdc.mysql.query_stream import ReadCancelled, Select, refuse_part
from cdc.mysql.result_rows import selected
from channels.channel import Channel
from channels.mapping import Mapping
from channels.sinks.base import TargetTable
from channels.task import Task

PAGE_KEYS = 200_000  # of the target at a time
MOST_ORPHANS = 1 << 20  # of one step: they are in memory until their Task has written them
_COMPARED_ROWS = 1 << 20  # of the source at a time
_TASK_ROWS = 1 << 20
_RANGE_FACTOR = 4  # a range with more keys for each key of the target is not read


def _never() -> bool:
    return False


@dataclass(slots=True)
class OrphanSearch:
    """The progress of the search for orphan rows of one table."""

    last: str | None  # the last compared key, as ``key_text``; None: no key was compared yet
    is_done: bool = False
    is_cancelled: bool = False  # set by another thread: end without the current page
    is_possible: bool = True  # False: the target's keys cannot be listed, or are no copies of source columns

    def run(
        self,
        page_after: Callable[[pa.Table | None], pa.Table],
        missing: Callable[[pa.Table], pa.Table],
        seconds: float,
    ) -> pa.Table:
        """Compare pages for ``seconds``, at least one, or up to the target's last key. Return the keys of orphan rows.

        ``page_after`` returns the next keys of the target; ``missing`` those of a page that the source does not have.
        It may raise ReadCancelled after ``is_cancelled`` is set.
        """
        began, found = time.monotonic(), list[pa.Table]()
        while True:
            page = page_after(key_of(self.last) if self.last is not None else None)
            if not page.num_rows:
                self.is_done = True
            else:
                try:
                    orphans = missing(page)
                except ReadCancelled:
                    return pa.concat_tables(found) if found else page.slice(0, 0)
                if orphans.num_rows:  # an empty table would keep a page of memory in the heap
                    found.append(orphans)
                self.last = key_text(page.slice(page.num_rows - 1))
            is_over = (
                self.is_cancelled
                or time.monotonic() - began >= seconds
                or sum(one.num_rows for one in found) >= MOST_ORPHANS
            )
            if self.is_done or is_over:
                return pa.concat_tables(found) if found else page.slice(0, 0)


def key_text(key: pa.Table) -> str:
    """Return a key, a table of one row, as text for the saved state."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, key.schema) as writer:
        writer.write_table(key.combine_chunks())
    return base64.b64encode(sink.getvalue()).decode()


def key_of(text: str) -> pa.Table:
    """Return the key of a text from ``key_text``."""
    return pa.ipc.open_stream(base64.b64decode(text)).read_all()


def key_columns(channel: Channel, schema: TableSchema) -> tuple[Column, ...] | None:
    """Return the source columns that the target's key copies; None if a key column is not a copy."""
    copies = channel.mapping.copies(schema)
    key = channel.target.key
    return tuple(copies[name] for name in key) if all(name in copies for name in key) else None


def find_orphan_rows(
    endpoint: Endpoint,
    order: KeyOrder,
    columns: Sequence[Column],
    target_keys: pa.Table,
    is_over: Callable[[], bool] = _never,
) -> pa.Table:
    """Return those of ``target_keys`` that the source does not have.

    ``order`` is the index over ``columns``. At least 10,000 keys that begin with a whole number are compared with those
    that the source has in their range. Else keys of whole numbers, decimals and text are looked up. For other types, or
    without an index, all keys of the source are read. Raises: ReadCancelled - ``is_over`` has returned True.
    """
    found = _keys_in_range(endpoint, order, columns, target_keys, is_over)
    if found is not None:
        return _not_in(target_keys, found)
    lookups = key_lookups(order, columns, target_keys, columns)
    if lookups is not None:
        return pa.concat_tables(_not_in(one.keys, one.read(endpoint, is_over)) for one in lookups)
    seen = np.zeros(target_keys.num_rows, np.bool_)
    for keys in _source_keys(endpoint, order, columns, is_over):
        seen |= KeyIndex(keys.columns).find(target_keys.columns) >= 0
    return target_keys.filter(pa.array(~seen))


def _keys_in_range(
    endpoint: Endpoint, order: KeyOrder, columns: Sequence[Column], keys: pa.Table, is_over: Callable[[], bool]
) -> list[pa.RecordBatch] | None:
    """Return the keys that the source has in the range of ``keys``; None if they have no range, or it has too many."""
    chunk = key_range(order, columns, keys)
    if chunk is None:
        return None
    rest, bounds = order.rows_of(chunk)
    sql = "SELECT " + ", ".join(selected(column) for column in columns) + rest
    batches: list[pa.RecordBatch] = []
    with Select(endpoint, sql, bounds, columns) as select:
        for rows in select.rows(is_over):
            batches.append(rows.batch)
            if sum(batch.num_rows for batch in batches) > _RANGE_FACTOR * keys.num_rows:
                return None
        refuse_part(select)
    return batches


def _not_in(page: pa.Table, batches: list[pa.RecordBatch]) -> pa.Table:
    if not batches:
        return page
    keys = pa.Table.from_batches(batches)
    return page.filter(pa.array(KeyIndex(keys.columns).find(page.columns) < 0))


def _source_keys(
    endpoint: Endpoint, order: KeyOrder, columns: Sequence[Column], is_over: Callable[[], bool]
) -> Iterator[pa.Table]:
    tail, bounds = order.tail(Chunk(0, None, None))
    sql = "SELECT " + ", ".join(selected(column) for column in columns) + tail
    held: list[pa.RecordBatch] = []
    with Select(endpoint, sql, bounds, columns) as select:
        for rows in select.rows(is_over):
            held.append(rows.batch)
            if sum(batch.num_rows for batch in held) >= _COMPARED_ROWS:
                yield pa.Table.from_batches(held)
                held = []
        refuse_part(select)
    if held:
        yield pa.Table.from_batches(held)


def delete_task(
    name: LoadName, source: str, target: TargetTable, schema: TableSchema, keys: pa.Table, sequence: int
) -> Task:
    """Return a Task that deletes the rows of ``keys``, a table of the target's key columns."""
    arrays = [
        keys.column(column.name).combine_chunks()
        if column.name in target.key
        else pa.nulls(keys.num_rows, column.arrow)
        for column in target.columns
    ]
    arrays += [pa.repeat(pa.scalar(True), keys.num_rows), pa.repeat(pa.scalar(sequence, pa.int64()), keys.num_rows)]
    names = [*(column.name for column in target.columns), DELETED, SEQUENCE]
    # the rows have the names of the target, so the Task gets a schema with these columns
    like = schema.columns[0]
    named = replace(schema, columns=tuple(replace(like, name=column.name) for column in target.columns), key=target.key)
    rows = pa.Table.from_arrays(arrays, names=names).to_batches(max_chunksize=_TASK_ROWS)
    return Task(
        name,
        target,
        Mapping(source, target.name, target.key),
        named,
        tuple(rows),
        keys.num_rows,
        sum(batch.nbytes for batch in rows),
        0,
        keys.num_rows,
        sequence,
    )
