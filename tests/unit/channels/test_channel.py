"""Channels buffer rows and number Tasks; labels are repeatable; the newest row of a key remains."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.model.batch import Changes, LoadName
from cdc.model.row_keys import KeyIndex, newest_rows
from cdc.model.schema import DELETED, SEQUENCE, Column, Kind, TableSchema
from channels.channel import Channel
from channels.mapping import Mapping
from channels.sinks.labels import label_for, label_prefix
from channels.task import RunIdentity

SCHEMA = TableSchema("shop", "orders", (Column("id", Kind.INT, "int", nullable=False),), ("id",))
WIDER = replace(SCHEMA, columns=(*SCHEMA.columns, Column("note", Kind.TEXT, "text")))
RUN = RunIdentity("shop", "0badcafe", 3)


def changes(schema: TableSchema, *ids: int, first: int = 1, deleted: bool = False) -> Changes:
    data = {column.name: pa.nulls(len(ids), column.arrow) for column in schema.columns}
    data["id"] = pa.array(ids, pa.int32())
    data[DELETED] = pa.array([deleted] * len(ids), pa.bool_())
    data[SEQUENCE] = pa.array(range(first, first + len(ids)), pa.int64())
    return Changes(schema, pa.RecordBatch.from_pydict(data))


def test_task_for_returns_all_buffered_rows() -> None:
    channel = Channel(Mapping("shop.orders", "ods.orders"), SCHEMA)
    channel.add(changes(SCHEMA, 1, 2))
    channel.add(changes(SCHEMA, 3, first=3, deleted=True))
    assert channel.buffered_rows == 3 and channel.buffered_bytes > 0
    task = channel.task_for(RUN, 7)
    assert task is not None
    assert (task.row_count, task.upserts, task.deletes, task.last_sequence) == (3, 2, 1, 3)
    assert task.name == LoadName("shop", "0badcafe", 3, 7, "ods.orders", 0)
    assert (channel.buffered_rows, channel.buffered_bytes, channel.task_for(RUN, 7)) == (0, 0, None)


def test_task_for_numbers_tasks_within_checkpoint() -> None:
    channel = Channel(Mapping("shop.orders", "ods.orders"), SCHEMA)
    numbers = []
    for checkpoint in (1, 1, 2):
        channel.add(changes(SCHEMA, 1))
        task = channel.task_for(RUN, checkpoint)
        assert task is not None
        numbers.append((task.name.checkpoint, task.name.task))
    assert numbers == [(1, 0), (1, 1), (2, 0)]


def test_task_for_separates_schemas() -> None:
    channel = Channel(Mapping("shop.orders", "ods.orders"), SCHEMA)
    channel.add(changes(SCHEMA, 1))
    channel.add(changes(replace(SCHEMA, since=None), 2))
    channel.add(changes(WIDER, 3))
    tasks = [channel.task_for(RUN, 1), channel.task_for(RUN, 1), channel.task_for(RUN, 1)]
    assert [task and (task.row_count, len(task.target.columns)) for task in tasks] == [(2, 1), (1, 2), None]


def test_drop_discards_rows_and_numbers() -> None:
    channel = Channel(Mapping("shop.orders", "ods.orders"), SCHEMA)
    channel.add(changes(SCHEMA, 1))
    assert channel.task_for(RUN, 1) is not None
    channel.add(changes(SCHEMA, 2))
    channel.drop()
    assert channel.buffered_rows == 0 and channel.task_for(RUN, 1) is None
    channel.add(changes(SCHEMA, 2))
    task = channel.task_for(RUN, 1)
    assert task is not None and task.name.task == 0


def test_label_for_is_repeatable_unique_and_valid() -> None:
    values = itertools.product(
        ["shop", "a" * 40], [1, 10**9], [1, 11], ["ods.a_b", "ods.a.b", "é" * 64 + "." + "x" * 64]
    )
    names = [LoadName(job, "0badcafe", fence, 1, channel, task, 3, 2) for job, fence, task, channel in values]
    labels = [label_for(name) for name in names]
    assert len(set(labels)) == len(names)
    assert all(re.fullmatch(r"[-_A-Za-z0-9]{1,128}", label) for label in labels)
    assert labels == [label_for(name) for name in names]
    prefixes = [label_prefix(name.job, name.incarnation, name.fence, 1) for name in names]
    assert all(label.startswith(prefix) for label, prefix in zip(labels, prefixes, strict=True))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["a", "b", ""]), st.booleans()), max_size=40))
def test_newest_rows_keeps_newest_row_of_key(rows: list[tuple[int, str, bool]]) -> None:
    numbers = list(range(len(rows)))
    table = pa.table(
        {
            "a": pa.array([a for a, _, _ in rows], pa.int32()),
            "b": pa.array([b for _, b, _ in rows], pa.string()),
            DELETED: pa.array([deleted for _, _, deleted in rows], pa.bool_()),
            SEQUENCE: pa.array(numbers, pa.int64()),
        }
    )
    last = {(a, b): number for number, (a, b, _) in enumerate(rows)}
    for given_rows in (table, table.take(pa.array(numbers[::-1], pa.int64()))):
        assert newest_rows(given_rows, ["a", "b"]).column(SEQUENCE).to_pylist() == sorted(last.values())


@pytest.mark.parametrize("width", [1, 2, 3])
def test_key_index_finds_only_its_keys(width: int) -> None:
    keys = list(itertools.product([1, 5, 2**60], repeat=width))
    columns = [pa.array([key[number] for key in keys], pa.int64()) for number in range(width)]
    index = KeyIndex(columns)
    assert index.count == len(keys)
    assert index.find(columns).tolist() == list(range(len(keys)))
    others = [pa.array([7, 1, 5], pa.int64())] + [pa.array([1, 7, 5], pa.int64())] * (width - 1)
    expected = [-1, 0 if width == 1 else -1, keys.index((5,) * width)]
    assert index.find(others).tolist() == expected
