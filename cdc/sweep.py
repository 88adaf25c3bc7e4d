"""The sweep behind a table that was loaded again: rows of the target that the source no longer has become deletes.

Both sides' keys are compared where the stream stands: what the target shows there and the source does not have was
deleted while nobody told, or is about to be deleted by the stream, which then finds nothing left to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cdc.batch import LoadName
from cdc.binlog.connection import Endpoint
from cdc.binlog.result_rows import selected
from cdc.schema import DELETED, SEQUENCE, Column, TableSchema
from cdc.snapshot.chunks import Chunk
from cdc.snapshot.keys import Order
from cdc.snapshot.select import Select
from channels.channel import Channel
from channels.mapping import Mapping
from channels.sinks.base import TargetTable
from channels.task import Task
from spark.newest import KeyIndex

_COMPARED_ROWS = 1 << 20  # of the source at a time
_TASK_ROWS = 1 << 20


def swept_columns(channel: Channel, schema: TableSchema) -> tuple[Column, ...] | None:
    """The source columns that the target's key copies; None where it is made of anything else."""
    copies = channel.mapping.copies(schema)
    key = channel.target.key
    return tuple(copies[name] for name in key) if all(name in copies for name in key) else None


def surplus(endpoint: Endpoint, order: Order, columns: Sequence[Column], target_keys: pa.Table) -> pa.Table:
    """Those of ``target_keys`` that the source does not have. Blocks while all keys of the source are read."""
    seen = np.zeros(target_keys.num_rows, np.bool_)
    for keys in _source_keys(endpoint, order, columns):
        seen |= KeyIndex(keys.columns).find(target_keys.columns) >= 0
    return target_keys.filter(pa.array(~seen))


def _source_keys(endpoint: Endpoint, order: Order, columns: Sequence[Column]) -> Iterator[pa.Table]:
    tail, bounds = order.tail(Chunk(0, None, None))
    sql = "SELECT " + ", ".join(selected(column) for column in columns) + tail
    held: list[pa.RecordBatch] = []
    with Select(endpoint, sql, bounds, columns) as select:
        for rows in select.rows():
            held.append(rows.batch)
            if sum(batch.num_rows for batch in held) >= _COMPARED_ROWS:
                yield pa.Table.from_batches(held)
                held = []
    if held:
        yield pa.Table.from_batches(held)


def deletes(
    name: LoadName, source: str, target: TargetTable, schema: TableSchema, keys: pa.Table, sequence: int
) -> Task:
    """A Task that deletes the rows of ``keys``, which has the target's key columns."""
    arrays = [
        keys.column(column.name).combine_chunks()
        if column.name in target.key
        else pa.nulls(keys.num_rows, column.arrow)
        for column in target.columns
    ]
    arrays += [pa.repeat(pa.scalar(True), keys.num_rows), pa.repeat(pa.scalar(sequence, pa.int64()), keys.num_rows)]
    names = [*(column.name for column in target.columns), DELETED, SEQUENCE]
    # rows that bear the target's names already: a source that has just these columns
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
