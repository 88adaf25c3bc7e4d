"""Recorded change events of Debezium, written as Avro by another library, give the rows of the JSON messages."""

from __future__ import annotations

import json
import pickle
import random
import struct
from pathlib import Path

import pytest

from cdc.errors import SchemaMismatch, SourceActionRequired, SourceUnavailable
from cdc.model.schema import DELETED
from cdc.sources.kafka.formats.debezium_avro import DebeziumAvro
from cdc.sources.kafka.formats.debezium_json import DebeziumJson
from cdc.sources.kafka.schema_registry import SchemaRegistry
from tests.emulators.schema_registry import RegistryEmulator
from tests.support.avro_messages import avro_message, avro_schema, avro_value
from tests.support.kafka_messages import MappedTables, block_of, rows_of
from tests.support.seeds import seed_of

GOLDEN = Path(__file__).parents[5] / "data/kafka/debezium.jsonl"


def golden(schemas):
    lines = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    return [line for line in lines if line.get("topic") == "srv.s.t" and line["schemas"] is schemas]


def parsed(text):
    return json.loads(text) if isinstance(text, str) else text


WITH_SCHEMA = parsed(golden(True)[0]["value"])["schema"]
KEY_SCHEMA = parsed(golden(True)[0]["key"])["schema"]
COLUMNS = tuple(field["field"] for field in WITH_SCHEMA["fields"][0]["fields"] if field["field"] != "g")


def do_not_wait(seconds):
    pass


@pytest.fixture(scope="module")
def registry():
    with RegistryEmulator() as found:
        found.schemas = {7: avro_schema(WITH_SCHEMA), 8: avro_schema(KEY_SCHEMA, "Key")}
        yield found


@pytest.fixture
def decoder(registry):
    registry.answers, registry.requests = [], []
    return DebeziumAvro(MappedTables(columns=COLUMNS), SchemaRegistry(registry.url, wait=do_not_wait))


def encoded(value, number=7, schema=WITH_SCHEMA):
    return avro_message(number, avro_schema(schema), avro_value(schema, value))


def golden_block(wrap):
    """Return the golden messages, as Avro or (``wrap``) as JSON with the recorded schema."""
    values, keys = [], []
    for line in golden(False):
        value, key = parsed(line["value"]), parsed(line["key"])
        if wrap:
            values.append(None if value is None else json.dumps({"schema": WITH_SCHEMA, "payload": value}))
            keys.append(json.dumps({"schema": KEY_SCHEMA, "payload": key}))
        else:
            values.append(None if value is None else encoded(value))
            keys.append(avro_message(8, avro_schema(KEY_SCHEMA, "Key"), avro_value(KEY_SCHEMA, key)))
    return block_of(values, keys)


def test_golden_messages_give_the_rows_of_json(decoder, registry):
    expected = DebeziumJson(MappedTables(columns=COLUMNS)).decode(golden_block(True))
    found = decoder.decode(golden_block(False))
    assert not found.faults and not expected.faults and len(rows_of(expected)) >= 9
    assert rows_of(found) == rows_of(expected)
    schemas, others = ([table.schema for table in each.tables] for each in (found, expected))
    assert [one.key for one in schemas] == [one.key for one in others] == [("id",)]
    for one, other in zip(schemas, others, strict=True):
        assert [column for column in one.columns if column.name != "g"] == list(other.columns[:-1])
    assert [table.message.tolist() for table in found.tables] == [table.message.tolist() for table in expected.tables]
    assert found.source_time_us.tolist() == expected.source_time_us.tolist()
    assert sorted(registry.requests) == ["/schemas/ids/7", "/schemas/ids/8"]
    decoder.decode(golden_block(False))
    assert len(registry.requests) == 2
    assert not pickle.loads(pickle.dumps(decoder)).decode(golden_block(False)).faults


def test_mapped_geometry_is_refused_with_its_column(registry):
    with pytest.raises(SchemaMismatch, match="column g") as caught:
        DebeziumAvro(MappedTables(), SchemaRegistry(registry.url)).decode(golden_block(False))
    assert caught.value.context["table"] == "s.t"


def small(*fields, names=("db", "table", "ts_ms")):
    """Return the Connect schema of an envelope with rows of ``fields``."""
    row = {"type": "struct", "optional": True, "fields": [{"field": name, **field} for name, field in fields]}
    source = [{"field": name, "type": "int64" if name == "ts_ms" else "string"} for name in names]
    return {
        "type": "struct",
        "fields": [
            {**row, "field": "before"}, {**row, "field": "after"},
            {"field": "source", "type": "struct", "fields": source}, {"field": "op", "type": "string"},
        ],
    }  # fmt: skip


def event(op, before, after):
    return {"before": before, "after": after, "op": op, "source": {"db": "s", "table": "t", "ts_ms": 1_700_000_000_123}}


OLD = small(("id", {"type": "int64"}), ("v", {"type": "string", "optional": True}))
NEW = small(("id", {"type": "int64"}), ("n", {"type": "int32", "optional": True, "default": 5}),
            ("v", {"type": "string", "optional": True}))  # fmt: skip


def test_schemas_that_alternate_keep_the_order_and_key_changes(decoder, registry):
    registry.schemas |= {21: avro_schema(OLD), 22: avro_schema(NEW)}
    decoder.tables = MappedTables(key=("id",))
    block = block_of([
        encoded(event("c", None, {"id": 1, "v": "a"}), 21, OLD),
        encoded(event("u", {"id": 1, "n": 1, "v": "a"}, {"id": 2, "n": None, "v": None}), 22, NEW),
        encoded(event("r", None, {"id": -(1 << 63), "v": "ü"}), 21, OLD),
        encoded(event("t", None, None), 22, NEW),
    ])  # fmt: skip
    found = decoder.decode(block)
    assert not found.faults and [table.message.tolist() for table in found.tables] == [[0, 2], [1, 1]]
    assert found.tables[1].key_change.tolist() == [True, True]
    assert rows_of(found)[1:3] == [
        {"id": 1, "n": 1, "v": "a", DELETED: True}, {"id": 2, "n": None, "v": None, DELETED: False},
    ]  # fmt: skip
    assert [each.text for each in found.statements] == ["TRUNCATE TABLE s.t"]
    assert decoder.columns_with_default(block) == ("n",)


def test_every_truncation_and_random_bytes_are_faults_or_the_same_rows(decoder):
    whole = encoded(parsed(golden(False)[0]["value"]))
    expected = rows_of(decoder.decode(block_of([whole])))
    for size in range(len(whole)):
        found = decoder.decode(block_of([whole, whole[:size], whole]))
        assert [each.message for each in found.faults] == [1] and rows_of(found) == expected * 2
    chance = random.Random(seed_of())
    decoder.tables = MappedTables(columns=("id",), only=("s.t",))
    for _ in range(300):  # must neither crash nor raise; the buffer after the message is not read
        damaged = bytearray(whole)
        for _ in range(4):
            damaged[chance.randrange(5, len(damaged))] = chance.randrange(256)
        found = decoder.decode(block_of([whole, bytes(damaged), whole]))
        assert {each.message for each in found.faults} <= {1}
        assert [row for row in rows_of(found) if row["id"] == expected[0]["id"]][:1]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{}", "does not begin with the number of a schema"),
        (b"", "does not begin with the number of a schema"),
        (struct.pack(">bI", 0, 31), "its schema 31 cannot be read: it has no `before`"),
        (struct.pack(">bI", 0, 32), "its schema 32 cannot be read: it is not a record"),
        (struct.pack(">bI", 0, 33), "type map is not supported"),
    ],
)
def test_bad_message_is_a_fault_and_the_others_are_decoded(decoder, registry, value, reason):
    rows = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}]}
    envelope = avro_schema(OLD)
    envelope["fields"][2]["type"] = {"type": "map", "values": "string"}
    registry.schemas |= {21: avro_schema(OLD), 31: rows, 32: "string", 33: envelope}
    decoder.tables = MappedTables(key=("id",))
    good = encoded(event("c", None, {"id": 5, "v": None}), 21, OLD)
    found = decoder.decode(block_of([good, value, good]))
    assert [(each.message, reason in each.reason) for each in found.faults] == [(1, True)], found.faults
    assert [row["id"] for row in rows_of(found)] == [5, 5]


def test_records_of_the_connector_without_rows_are_skipped(decoder, registry):
    registry.schemas[40] = {
        "type": "record", "name": "Heartbeat", "namespace": "io.debezium.connector.common",
        "fields": [{"name": "ts_ms", "type": "long"}],
    }  # fmt: skip
    found = decoder.decode(block_of([struct.pack(">bIb", 0, 40, 2), None]))
    assert not found.faults and not found.tables


def test_unknown_id_is_requested_again_and_then_named(decoder, registry):
    with pytest.raises(SourceActionRequired, match="does not have schema 99"):
        decoder.decode(block_of([struct.pack(">bI", 0, 99)]))
    assert registry.requests == ["/schemas/ids/99"] * 5
    registry.answers = [404, 404]
    registry.schemas[98] = "string"
    assert len(decoder.decode(block_of([struct.pack(">bI", 0, 98)])).faults) == 1


@pytest.mark.parametrize(("status", "kind"), [(500, SourceUnavailable), (429, SourceUnavailable),
                                              (403, SourceActionRequired), (302, SourceActionRequired)])  # fmt: skip
def test_status_of_the_registry_decides_whether_the_job_retries(decoder, registry, status, kind):
    registry.answers = [status]
    with pytest.raises(kind, match=str(status)):
        decoder.decode(golden_block(False))
    assert not decoder.decode(golden_block(False)).faults


def test_registry_that_is_away_is_unavailable():
    with RegistryEmulator() as gone:
        url = gone.url
    with pytest.raises(SourceUnavailable, match="does not answer"):
        DebeziumAvro(MappedTables(), SchemaRegistry(url)).decode(golden_block(False))


def test_login_of_the_registry_is_sent_and_never_shown():
    with RegistryEmulator("cdc:s3cret") as found:
        found.schemas[1] = "string"
        assert SchemaRegistry(found.url, "cdc", "s3cret").schema(1) == "string"
        with pytest.raises(SourceActionRequired, match="401") as caught:
            SchemaRegistry(found.url, "cdc", "wr0ng").schema(1)
        assert "wr0ng" not in str(caught.value)
