"""Repair: load the rows of keys that differ again, and delete rows that the source does not have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cdc.model.batch import LoadName
from cdc.model.row_keys import KeyIndex
from cdc.mysql.connection import Endpoint
from cdc.snapshot.orphan_rows import delete_task
from cdc.verify.planner import ComparedTable
from channels.chunk_compare import KeyDifferences, source_rows
from channels.task import RunIdentity, Task


def repair_tasks(
    run: RunIdentity,
    endpoint: Endpoint,
    planned: ComparedTable,
    differences: Sequence[KeyDifferences],
    orphans: Callable[[pa.Table], pa.Table],
    checkpoint: int,
    is_over: Callable[[], bool],
) -> list[Task]:
    """Return the Tasks that make the rows of these keys equal to the source. The rows are read now.

    As in a snapshot step, they are as new as the position of the step or newer, and later changes are committed after
    them. ``orphans`` returns the keys that the source does not have.
    Raises: SourceUnavailable, SchemaMismatch; ReadCancelled - ``is_over`` has returned True.
    """
    compare, channel, target = planned.compare, planned.channel, planned.channel.target
    raw = replace(compare, read=replace(compare.read, copies=None, expressions=None))
    names = [column.name for column in compare.key_columns]
    batches: list[pa.RecordBatch] = []
    absent: list[pa.Table] = []
    for one in differences:
        if one.part is None:
            absent.append(orphans(one.keys))  # a row that the source has again arrives with the stream
            continue
        index, seen = KeyIndex(one.keys.columns), np.zeros(one.count, np.bool_)
        for batch in source_rows(endpoint, raw, one, is_over):
            numbers = index.find([batch.column(name) for name in names])
            seen[numbers[numbers >= 0]] = True
            batches.append(batch.filter(pa.array(numbers >= 0)))
        absent.append(one.keys.filter(pa.array(~seen[index.numbers])))
    name = LoadName(run.job, run.incarnation, run.fence, checkpoint, target.name, task=0)
    tasks = []
    rows = sum(batch.num_rows for batch in batches)
    if rows:
        size, sequence = sum(batch.nbytes for batch in batches), compare.read.sequence
        tasks.append(Task(name, target, channel.mapping, planned.schema, tuple(batches), rows, size, rows, 0, sequence))
    keys = pa.concat_tables(absent)
    if keys.num_rows:
        tasks.append(
            delete_task(replace(name, task=1), planned.name, target, planned.schema, keys, compare.read.sequence)
        )
    return tasks
