"""Tombstones of Debezium: one without its delete event deletes the row of its key, in each form of the messages."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import numpy as np
import pytest

from cdc.errors import DecodeError
from cdc.model.kafka_position import KafkaPosition, PartitionOffset
from cdc.model.schema import DELETED
from cdc.sources.kafka.batches import BatchMaker, OrderRules
from cdc.sources.kafka.formats.debezium_avro import DebeziumAvro
from cdc.sources.kafka.formats.debezium_json import DebeziumJson
from cdc.sources.kafka.formats.debezium_tombstones import lone_tombstones
from cdc.sources.kafka.formats.debezium_types import DebeziumModes
from cdc.sources.kafka.formats.fields import schema_of_types
from cdc.sources.kafka.layouts import Layouts
from cdc.sources.kafka.schema_registry import SchemaRegistry
from cdc.sources.schema_history import SchemaHistory
from tests.emulators.schema_registry import RegistryEmulator
from tests.support.avro_messages import avro_message, avro_schema, avro_value
from tests.support.kafka_messages import MappedTables, block_of, rows_of

TOPIC = "srv.s.t"
ID = {"type": "int64", "optional": False, "field": "id"}
ROW = [ID, {"type": "string", "optional": True, "field": "v"}]
SOURCE = [{"field": "db", "type": "string"}, {"field": "table", "type": "string"}, {"field": "ts_ms", "type": "int64"}]
ENVELOPE = {
    "type": "struct",
    "fields": [
        {"type": "struct", "fields": ROW, "optional": True, "field": "before"},
        {"type": "struct", "fields": ROW, "optional": True, "field": "after"},
        {"type": "struct", "fields": SOURCE, "field": "source"}, {"field": "op", "type": "string"},
    ],
}  # fmt: skip
DESCRIBED = schema_of_types("s", "t", {"id": "bigint not null", "v": "text"}, ("id",))


def event(op, key, value="a", table="t"):
    row = {"id": key, "v": value}
    images = {"before": row if op in "ud" else None, "after": row if op != "d" else None}
    return {**images, "source": {"db": "s", "table": table, "ts_ms": 1}, "op": op}


class WithoutSchema:
    """JSON without schemas: the job file describes the table."""

    def decoder(self, only=("s.t",), **options):
        return DebeziumJson(MappedTables(schemas=(DESCRIBED,), only=only, **options), modes=DebeziumModes())

    def key(self, key, name=TOPIC):
        return json.dumps({"id": key} if not isinstance(key, dict) else key)

    def value(self, change):
        return json.dumps(change)


class WithSchema(WithoutSchema):
    """JSON with schemas, which describe the table and its key."""

    def decoder(self, only=("s.t",), **options):
        return DebeziumJson(MappedTables(only=only, **options))

    def key(self, key, name=TOPIC):
        row = key if isinstance(key, dict) else {"id": key}
        fields = [{**ID, "field": column} for column in row]
        return json.dumps(
            {"schema": {"type": "struct", "fields": fields, "name": f"{name}.Key"}, "payload": row}
        )  # fmt: skip

    def value(self, change):
        return json.dumps({"schema": ENVELOPE, "payload": change})


class Avro(WithSchema):
    """Avro with a registry."""

    def __init__(self, registry):
        self._registry = registry
        registry.schemas = {1: avro_schema(ENVELOPE)}

    def decoder(self, only=("s.t",), **options):
        return DebeziumAvro(MappedTables(only=only, **options), SchemaRegistry(self._registry.url))

    def key(self, key, name=TOPIC):
        row = key if isinstance(key, dict) else {"id": key}
        schema = avro_schema({"type": "struct", "fields": [{**ID, "field": column} for column in row]}, "Key", name)
        number = next((one for one, known in self._registry.schemas.items() if known == schema), 0)
        if not number:
            number = len(self._registry.schemas) + 1
            self._registry.schemas[number] = schema
        return avro_message(number, schema, row)

    def value(self, change):
        return avro_message(1, avro_schema(ENVELOPE), avro_value(ENVELOPE, change))


@pytest.fixture(scope="module")
def registry():
    with RegistryEmulator() as found:
        yield found


@pytest.fixture(params=["without", "with", "avro"])
def form(request, registry):
    return {"without": WithoutSchema, "with": WithSchema}.get(request.param, lambda: Avro(registry))()


def block(form, *messages, topic=TOPIC, first_offset=100):
    """Return a block of (key, change); a change that is None is a tombstone."""
    keys = [key if key is None or isinstance(key, str | bytes) else form.key(key) for key, _ in messages]
    return block_of([None if one is None else form.value(one) for _, one in messages], keys, topic, first_offset)


def knows(decoder, *schemas):
    decoder.key_deletes.known = lambda: {(one.database, one.table): one for one in schemas}
    return decoder


def found_rows(decoded):
    return [(row["id"], row["v"], row[DELETED]) for row in rows_of(decoded)]


def test_lone_tombstone_deletes_the_row_of_its_key(form):
    found = form.decoder().decode(block(form, (1, event("c", 1)), (2, None), (3, event("c", 3)), (1, None)))
    assert not found.faults and len(found.tables) == 1 and found.tables[0].message.tolist() == [0, 1, 2, 3]
    assert found_rows(found) == [(1, "a", False), (2, None, True), (3, "a", False), (1, None, True)]
    assert not found.tables[0].key_change.any()


def test_tombstone_after_its_delete_event_adds_no_row(form):
    messages = [(1, event("d", 1)), (1, None), (2, event("d", 2)), (3, None), (2, event("u", 2)), (2, None)]
    found = form.decoder().decode(block(form, *messages))
    assert not found.faults
    assert found_rows(found) == [(1, "a", True), (2, "a", True), (3, None, True), (2, "a", False), (2, None, True)]


def test_lone_tombstone_is_a_delete_if_an_earlier_run_has_read_rows(form):
    decoder = form.decoder()
    (known,) = (table.schema for table in decoder.decode(block(form, (1, event("c", 1)))).tables)
    later = knows(form.decoder(), known).decode(block(form, (7, None), (8, None)))
    assert not later.faults and found_rows(later) == [(7, None, True), (8, None, True)]


def test_first_tombstone_of_a_table_without_rows_is_ignored(form, caplog):
    if isinstance(form, WithSchema):
        with caplog.at_level(logging.WARNING):
            found = form.decoder().decode(block(form, (7, None), (8, None)))
        assert not found.faults and not found.tables
        assert "tombstones of s.t are ignored: this job has read no row" in caplog.text
        decoder = form.decoder()
        decoder.key_deletes.refuses_unknown = True  # as on an executor
        found = decoder.decode(block(form, (7, None), (8, None)))
        assert [fault.message for fault in found.faults] == [0, 1] and "not loaded yet" in found.faults[0].reason
    else:  # the job file has its columns
        assert found_rows(form.decoder().decode(block(form, (7, None)))) == [(7, None, True)]


def test_tombstone_of_an_unmapped_table_is_ignored(form):
    decoder = knows(form.decoder(), DESCRIBED)
    for key in (form.key(1, "srv.s.other"), b"\xff"):
        found = decoder.decode(block(form, (key, None), topic="srv.s.other"))
        assert not found.faults and not found.tables
    if isinstance(form, WithSchema):  # tables with one topic
        found = decoder.decode(block(form, (1, event("c", 1)), (form.key(2, "srv.s.other"), None)))
        assert not found.faults and found_rows(found) == [(1, "a", False)]
    decoder.key_deletes.known = lambda: {("s", "t"): DESCRIBED, ("s", "other"): None}  # of another reader
    assert not decoder.decode(block(form, (form.key(1, "srv.s.other"), None), topic="srv.s.other")).faults


def test_tombstone_without_a_key_is_ignored(form):
    found = knows(form.decoder(), DESCRIBED).decode(block(form, (None, None)))
    assert not found.faults and not found.tables


@pytest.mark.parametrize("key", [b"Struct{id=5}", b"", b"\0\0\0", {"other": 5}, {}])
def test_tombstone_whose_key_cannot_be_read_is_a_fault(form, key):
    key = form.key(key) if isinstance(key, dict) else key
    decoder = knows(form.decoder(), DESCRIBED)
    found = decoder.decode(block(form, (1, event("c", 1)), (key, None), (2, event("c", 2))))
    assert [fault.message for fault in found.faults] == [1] and found.faults[0].is_tombstone
    assert [row[0] for row in found_rows(found)] == [1, 2]


def test_topic_whose_name_is_not_that_of_its_table_gives_a_fault(form):
    keys = [form.key(number, "renamed") for number in (1, 2)]
    decoder = knows(form.decoder(), DESCRIBED)
    found = decoder.decode(block(form, (keys[0], event("c", 1)), (keys[1], None), topic="renamed"))
    assert [(fault.message, "its table is not known" in fault.reason) for fault in found.faults] == [(1, True)]


@pytest.mark.parametrize("name", ["srv.s.order_items", "srv.s.order-items", "srv.s.order_u002ditems", "s.order-items"])
def test_name_of_a_table_with_replaced_characters_is_found(name):
    form = WithSchema()
    table = replace(DESCRIBED, table="order-items")
    found = knows(form.decoder(only=("s.order-items",)), table).decode(
        block(form, (form.key(4, name), None), topic="x")
    )
    assert not found.faults and found_rows(found) == [(4, None, True)]


def test_name_of_two_known_tables_is_a_fault():
    form = WithSchema()
    decoder = knows(form.decoder(only=()), replace(DESCRIBED, table="a-b"), replace(DESCRIBED, table="a_b"))
    found = decoder.decode(block(form, (form.key(4, "srv.s.a_b"), None), topic="srv.s.a_b"))
    assert "each of several tables" in found.faults[0].reason and not found.tables


def test_wrapped_null_is_a_tombstone():
    form = WithSchema()
    lines = [form.value(event("d", 1)), '{"schema":null,"payload":null}', '{"schema":null,"payload":null}']
    found = form.decoder().decode(block_of(lines, [form.key(1), form.key(1), form.key(2)], TOPIC))
    assert not found.faults and found_rows(found) == [(1, "a", True), (2, None, True)]


def test_tombstone_has_the_layout_of_the_rows_before_it():
    form = WithSchema()
    wide = json.loads(json.dumps(ENVELOPE))
    for image in wide["fields"][:2]:
        image["fields"].append({"type": "int32", "optional": True, "field": "n"})
    change = event("c", 2)
    change["after"]["n"] = 5
    lines = [None, form.value(event("c", 1)), None, json.dumps({"schema": wide, "payload": change}), None]
    found = form.decoder().decode(block_of(lines, [form.key(number) for number in (7, 1, 8, 2, 9)], TOPIC))
    assert [table.message.tolist() for table in found.tables] == [[0, 1, 2], [3, 4]] and not found.faults


def test_only_the_message_before_in_the_partition_is_compared():
    keys = [b"a", b"b", b"a", b"b", b"a", b"aa", None]
    found = replace(
        block_of([b"1", b"1", None, None, None, None, None], keys), partition=np.array([0, 1, 0, 1, 0, 1, 0], np.int32)
    )
    is_delete = np.array([True, True, False, False, False, False, False])
    assert lone_tombstones(found, found.value_size < 0, is_delete).tolist() == [4, 5]
    assert not len(lone_tombstones(found, np.zeros(7, np.bool_), is_delete))


def test_unusable_tombstone_stops_the_job_only_after_a_gap(form):
    decoder = form.decoder(key=("id",))  # message.key.columns has another column
    tables = decoder.tables
    history = SchemaHistory(tables, None)
    history.begin(())
    decoder.key_deletes.known = history.known_schemas
    maker = BatchMaker(decoder, tables, Layouts(history, tables, {}), OrderRules())
    at = KafkaPosition.of("c", {TOPIC: "id"}, {(TOPIC, 0): PartitionOffset(100)})
    maker.begin(at, at)
    key = form.key({"other": 5})
    assert [one.rows for one in maker.read(block(form, (key, event("d", 1))), {})] == [1]
    assert [one.rows for one in maker.read(block(form, (key, None), first_offset=101), {})] == [0]
    with pytest.raises(DecodeError, match="column id"):
        list(maker.read(block(form, (key, None), first_offset=103), {}))
    assert maker.offsets[TOPIC, 0].next == 103
