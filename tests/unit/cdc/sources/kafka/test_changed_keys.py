"""A primary key that changes without a change of the columns stops the job, exactly before the message."""

from __future__ import annotations

import json

import pytest

from cdc.errors import DdlStop
from cdc.model.batch import RequiredColumns
from cdc.model.kafka_position import KafkaPosition, PartitionOffset
from cdc.model.schema import TableSchema
from cdc.sources.base import RangeTable, RangeTables
from cdc.sources.kafka.batches import BatchMaker, OrderRules
from cdc.sources.kafka.cluster import KafkaSettings
from cdc.sources.kafka.formats.debezium_avro import DebeziumAvro
from cdc.sources.kafka.formats.debezium_json import DebeziumJson
from cdc.sources.kafka.layouts import Layouts, column_difference
from cdc.sources.kafka.messages import MessageBlock
from cdc.sources.kafka.range_reader import KafkaRangeReader, RangeEnded, ReadTables, _Reading
from cdc.sources.kafka.schema_registry import SchemaRegistry
from cdc.sources.schema_history import SchemaHistory
from channels.mapping import Mapping
from channels.routes import Routes
from tests.emulators.schema_registry import RegistryEmulator
from tests.support.avro_messages import avro_message, avro_schema, avro_value
from tests.support.kafka_messages import MappedTables, block_of

INT = {"type": "int32", "optional": False}
ROW = {"type": "struct", "optional": True, "fields": [{"field": "a", **INT}, {"field": "b", **INT}]}
SOURCE = {
    "type": "struct",
    "field": "source",
    "fields": [{"field": name, "type": "string"} for name in ("db", "table")],
}
OPERATION = {"field": "op", "type": "string"}
EVENT = {"type": "struct", "fields": [{**ROW, "field": "before"}, {**ROW, "field": "after"}, SOURCE, OPERATION]}
KEYS = {names: {"type": "struct", "fields": [{"field": name, **INT} for name in names]} for names in ("a", "ab")}
START = KafkaPosition.of("c", {"o": "id"}, {("o", 0): PartitionOffset(100)})


class Tables(MappedTables):
    """Tables of routes; the messages describe them."""

    def __init__(self, key: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.routes = Routes([Mapping("s.t", "ods.t", key)])

    def reads(self, schema: TableSchema) -> RequiredColumns:
        return self.routes.reads(schema)


def change(a: int, b: int) -> dict[str, object]:
    return {"op": "c", "before": None, "after": {"a": a, "b": b}, "source": {"db": "s", "table": "t"}}


TRUNCATE = {"op": "t", "before": None, "after": None, "source": {"db": "s", "table": "t"}}


def json_block(*events: tuple[str, dict[str, object]], first_offset: int = 100) -> MessageBlock:
    """Return messages of pairs (names of the key columns, event)."""
    keys = [json.dumps({"schema": KEYS[names], "payload": {}}) if names else None for names, _ in events]
    values = [json.dumps({"schema": EVENT, "payload": event}) for _, event in events]
    return block_of([*values], [*keys], topic="o", first_offset=first_offset)


def avro_block(*events: tuple[str, dict[str, object]], first_offset: int = 100) -> MessageBlock:
    keys = []
    for names, _ in events:
        schema = KEYS[names] if names else None
        text = schema and avro_message(8 + len(names), avro_schema(schema, "Key"), {"a": 1, "b": 2})
        keys.append(text)
    values = [avro_message(7, avro_schema(EVENT), avro_value(EVENT, event)) for _, event in events]
    return block_of([*values], [*keys], topic="o", first_offset=first_offset)


@pytest.fixture(params=["json", "avro"])
def form(request):
    """Return a function that creates a decoder, and one that creates a block."""
    if request.param == "json":
        yield DebeziumJson, json_block
        return
    with RegistryEmulator() as registry:
        keys = {8 + len(names): avro_schema(schema, "Key") for names, schema in KEYS.items()}
        registry.schemas = {7: avro_schema(EVENT), **keys}
        yield (lambda tables: DebeziumAvro(tables, SchemaRegistry(registry.url))), avro_block


def maker_of(decoder, tables):
    maker = BatchMaker(decoder, tables, Layouts(SchemaHistory(tables, None), tables, {}), OrderRules())
    maker.begin(START, START)
    return maker


def test_key_that_grows_within_a_block_stops_before_its_message(form):
    create, block = form
    tables = Tables()
    batches = maker_of(create(tables), tables).read(
        block(("a", change(1, 1)), ("a", change(2, 2)), ("ab", change(2, 3)), ("ab", change(2, 4))), {}
    )
    first = next(batches)
    assert (first.rows, first.last.offsets["o", 0].next) == (2, 102)
    with pytest.raises(DdlStop, match="the key was a, is a, b") as caught:
        next(batches)
    assert caught.value.context["position"].offsets["o", 0].next == 102


def test_key_that_grows_between_blocks_stops_before_its_message(form):
    create, block = form
    tables = Tables()
    maker = maker_of(create(tables), tables)
    assert [one.rows for one in maker.read(block(("a", change(1, 1))), {})] == [1]
    with pytest.raises(DdlStop, match="the key was a, is a, b"):
        list(maker.read(block(("ab", change(1, 2)), first_offset=101), {}))


def test_key_of_the_channel_is_not_a_change_of_the_key(form):
    create, block = form
    tables = Tables(key=("a", "b"))
    maker = maker_of(create(tables), tables)
    (batch,) = maker.read(block(("a", change(1, 1)), ("ab", change(1, 2))), {})
    assert batch.rows == 2


def test_truncate_without_a_key_is_a_statement(form):
    create, block = form
    tables = Tables()
    maker = maker_of(create(tables), tables)
    batches = maker.read(block(("a", change(1, 1)), ("", TRUNCATE)), {})
    assert next(batches).rows == 1
    with pytest.raises(DdlStop, match="TRUNCATE"):
        next(batches)


def test_key_that_grows_ends_the_range_of_an_executor():
    tables = Tables()
    (known,) = (one.schema for one in DebeziumJson(tables).decode(json_block(("a", change(1, 1)))).tables)
    partition = ("o", 0)
    plan = KafkaRangeReader(
        KafkaSettings(("localhost:1",), ("o",), "test"), DebeziumJson,
        ReadTables(tables, RangeTables((RangeTable(known, 0, {"a": "a", "b": "b"}),))), {partition: PartitionOffset(100)},
        {partition: 101}, OrderRules(), frozenset(), frozenset(), {}, 0,
    )  # fmt: skip
    with pytest.raises(RangeEnded, match="the key was a, is a, b"):
        list(_Reading(plan)._decode(json_block(("ab", change(1, 2))), {}))


def test_column_difference_without_a_change_is_empty():
    tables = Tables()
    (known,) = (one.schema for one in DebeziumJson(tables).decode(json_block(("a", change(1, 1)))).tables)
    (again,) = (one.schema for one in DebeziumJson(tables).decode(json_block(("a", change(5, 5)))).tables)
    assert known is not again and column_difference(tables, known, again) == ""
