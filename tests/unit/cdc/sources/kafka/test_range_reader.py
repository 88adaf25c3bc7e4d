"""Ranges on an executor without a broker: tombstones of Debezium, and where the driver must decide."""

from __future__ import annotations

import json

import pytest

from cdc.model.kafka_position import PartitionOffset
from cdc.sources.base import RangeTable, RangeTables
from cdc.sources.kafka.batches import OrderRules
from cdc.sources.kafka.formats.debezium_json import DebeziumJson
from cdc.sources.kafka.formats.debezium_types import DebeziumModes
from cdc.sources.kafka.formats.fields import schema_of_types
from cdc.sources.kafka.range_reader import KafkaRangeReader, RangeEnded, ReadTables, _Reading
from tests.support.kafka_messages import MappedTables, block_of

SCHEMA = schema_of_types("s", "t", {"id": "bigint not null", "v": "text"}, ("id",))
TABLES = RangeTables((RangeTable(SCHEMA, 0, {"id": "id"}),), frozenset({"s.elsewhere"}))
KEY_FIELDS = [{"type": "int64", "optional": False, "field": "id"}]


class Create:
    """Creates the decoder for tables of a range."""

    def __call__(self, *, tables):
        return DebeziumJson(tables, modes=DebeziumModes())


def reading(topic, tables=TABLES, at=100, names=frozenset()):
    job = MappedTables(only=("s.t", "s.elsewhere", "s.new", "s.order-items"))
    partition = (topic, 0)
    return _Reading(
        KafkaRangeReader(
            None, Create(), ReadTables(job, tables, names), {partition: PartitionOffset(at)}, {partition: 900}, OrderRules(),
            frozenset(), frozenset(), {}, 0,
        )
    )  # fmt: skip


def key_of(value, table="t"):
    schema = {"type": "struct", "fields": KEY_FIELDS, "name": f"srv.s.{table}.Key"}
    return json.dumps({"schema": schema, "payload": {"id": value}})


def rows(found, key, offset, topic="srv.s.t"):
    block = block_of([None], [key], topic, offset)
    return [one for batch in found._decode(block, {}) for one in batch.rows.to_pylist()]


def test_executor_deletes_the_row_of_a_lone_tombstone():
    (row,) = rows(reading("srv.s.t"), key_of(5), 150)
    assert row["id"] == 5 and row["__deleted"]


def test_unreadable_tombstone_ends_a_range_only_after_a_gap():
    found = reading("srv.s.t")
    assert rows(found, b"Struct{id=5}", 100) == [] and rows(found, b"Struct{id=5}", 101) == []
    with pytest.raises(RangeEnded, match=r"srv.s.t\[0\]:103: it is a tombstone, and its key cannot be read"):
        rows(found, b"Struct{id=5}", 103)


def test_tombstone_of_a_table_that_is_not_loaded_ends_the_range():
    with pytest.raises(RangeEnded, match=r"a tombstone of s.new, which is not loaded yet"):
        rows(reading("srv.s.new"), key_of(5, "new"), 150, "srv.s.new")


def test_tombstone_of_a_table_that_an_earlier_run_has_read_ends_the_range():
    found = reading("srv.s.order_items", names=frozenset({"s.order-items"}))
    with pytest.raises(RangeEnded, match=r"a tombstone of s.order-items, which is not loaded yet"):
        rows(found, key_of(5, "order_items"), 150, "srv.s.order_items")


@pytest.mark.parametrize("table", ["elsewhere", "unmapped"])
def test_tombstone_of_a_table_of_another_reader_or_of_none_is_ignored(table):
    topic = f"srv.s.{table}"
    assert rows(reading(topic), key_of(5, table), 150, topic) == []
    assert rows(reading(topic, RangeTables((), frozenset(), True)), key_of(5, table), 150, topic) == []
