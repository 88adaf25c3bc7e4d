"""Messages and schemas with values that no type can hold are faults or pause the job. None is retried for ever."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from cdc.errors import CdcError, ErrorAction, SchemaMismatch, action_for
from cdc.sources.kafka.formats.canal_json import CanalJson
from cdc.sources.kafka.formats.debezium_avro import DebeziumAvro
from cdc.sources.kafka.formats.debezium_json import DebeziumJson
from cdc.sources.kafka.formats.maxwell import Maxwell
from cdc.sources.kafka.schema_registry import SchemaRegistry
from tests.emulators.schema_registry import RegistryEmulator
from tests.support.kafka_messages import MappedTables, block_of, rows_of

HALF = "\ud800"  # half a surrogate pair: JSON can have it, UTF-8 and so the state store cannot


@pytest.fixture
def registry():
    with RegistryEmulator() as found:
        yield found


def avro_envelope(kind: Any, after: Any = "Row") -> dict[str, Any]:
    """Return the Avro schema of change events with the columns ``id`` and ``v``, which has the type ``kind``."""
    row = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}, {"name": "v", "type": kind}]}
    source = {"type": "record", "name": "S", "fields": [{"name": one, "type": "string"} for one in ("db", "table")]}
    return {
        "type": "record", "name": "E",
        "fields": [
            {"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", after]},
            {"name": "op", "type": "string"}, {"name": "source", "type": source},
        ],
    }  # fmt: skip


def multiplied(levels: int) -> dict[str, Any]:
    """Return a record whose named records multiply: ten of the level below in each level."""
    found: dict[str, Any] = {"type": "record", "name": "B0", "fields": [{"name": "f", "type": "long"}]}
    for level in range(1, levels):
        others = [{"name": f"f{number}", "type": f"B{level - 1}"} for number in range(1, 10)]
        found = {"type": "record", "name": f"B{level}", "fields": [{"name": "f0", "type": found}, *others]}
    return found


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (avro_envelope({"type": "fixed", "name": "F", "size": 1 << 63}), "the size of F is not from 0 to"),
        (avro_envelope({"type": "fixed", "name": "F", "size": -5}), "the size of F is not from 0 to"),
        (avro_envelope({"type": "fixed", "name": "F", "size": 2.5}), "the size of F is not from 0 to"),
        (avro_envelope({"type": "fixed", "name": "F", "size": float("inf")}), "the size of F is not from 0 to"),
        (avro_envelope("int", {"type": "record", "name": "O", "fields": []}), "its `after` does not have id"),
        (avro_envelope(multiplied(8)), "it is too large"),
        ({**avro_envelope("int"), "fields": [{"name": one, "type": ["null"]} for one in
                                             ("before", "after", "op", "source")]}, "its `before` is not a record"),
    ],
)  # fmt: skip
def test_avro_schema_that_no_message_can_have_is_a_fault(registry, schema, reason):
    registry.schemas = {1: schema}
    decoder = DebeziumAvro(MappedTables(key=("id",)), SchemaRegistry(registry.url))
    found = decoder.decode(block_of([struct.pack(">bI", 0, 1) + bytes(9)] * 2))
    assert [fault.message for fault in found.faults] == [0, 1] and not found.tables
    assert all(reason in fault.reason for fault in found.faults), found.faults


@pytest.mark.parametrize("text", ["[" * 100_000, json.dumps(avro_envelope({"type": "string", "connect.name": HALF}))])
def test_avro_schema_that_cannot_be_parsed_pauses(registry, text):
    class Registry(SchemaRegistry):
        def _get(self, path: str) -> tuple[int, bytes]:
            return 200, json.dumps({"schema": text}).encode()

    with pytest.raises(CdcError, match="cannot be read") as caught:
        DebeziumAvro(MappedTables(), Registry("http://x")).decode(block_of([struct.pack(">bI", 0, 1)]))
    assert action_for(caught.value) is ErrorAction.PAUSE


@pytest.mark.parametrize("fields", [None, [None], [{}], "x"])
def test_avro_schema_of_a_key_without_fields_names_no_key(registry, fields):
    from tests.support.avro_messages import avro_message

    schema = avro_envelope("int")
    registry.schemas = {1: schema, 2: {"type": "record", "name": "K", "fields": fields}}
    value = {"before": None, "after": {"id": 5, "v": 6}, "op": "c", "source": {"db": "s", "table": "t"}}
    block = block_of([avro_message(1, schema, value)], [struct.pack(">bI", 0, 2)])
    found = DebeziumAvro(MappedTables(key=("id",)), SchemaRegistry(registry.url)).decode(block)
    assert [row["id"] for row in rows_of(found)] == [5]


def canal(**fields: Any) -> dict[str, Any]:
    return {
        "data": [{"id": "1"}], "old": None, "database": "shop", "table": "t", "es": 1, "isDdl": False,
        "mysqlType": {"id": "int"}, "pkNames": ["id"], "sql": "", "type": "INSERT", **fields,
    }  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [{"database": HALF}, {"table": HALF}, {"mysqlType": {HALF: "int"}}, {"mysqlType": {"id": f"enum('{HALF}')"}},
     {"isDdl": True, "sql": f"ALTER TABLE {HALF}"}, {"isDdl": True, "sql": "DROP TABLE t", "table": HALF}],
)  # fmt: skip
def test_canal_name_with_half_a_surrogate_pair_is_a_fault(fields):
    found = CanalJson(MappedTables()).decode(block_of([canal(), canal(**fields), canal()]))
    assert [fault.message for fault in found.faults] == [1] and "surrogate" in found.faults[0].reason
    assert len(rows_of(found)) == 2 and not found.statements


@pytest.mark.parametrize("kind", ["bit(999)", "decimal(999999999999,99999)", "decimal(5,9)", "datetime(99)",
                                  f"varchar({'9' * 5000})"])  # fmt: skip
def test_canal_type_that_mysql_does_not_have_pauses(kind):
    with pytest.raises(SchemaMismatch, match="is not known"):
        CanalJson(MappedTables()).decode(block_of([canal(mysqlType={"id": kind})]))


@pytest.mark.parametrize("fields", [{"database": HALF}, {"sql": HALF, "type": "table-alter"}])
def test_maxwell_name_with_half_a_surrogate_pair_is_a_fault(fields):
    message = {"database": "shop", "table": "t", "type": "insert", "ts": 1, "data": {"id": 1}, **fields}
    found = Maxwell(MappedTables(only=("shop.o",))).decode(block_of([message]))
    assert "surrogate" in found.faults[0].reason and not found.statements


def debezium(parameters: dict[str, Any], name: str = "v", database: str = "s") -> str:
    """Return a message with a DECIMAL column ``name``."""
    column = {"field": name, "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "optional": True,
              "parameters": parameters}  # fmt: skip
    rows = [{"field": one, "type": "struct", "fields": [{"field": "id", "type": "int64"}, column]} for one in
            ("before", "after")]  # fmt: skip
    source = {"db": database, "table": "t"}
    payload = {"before": None, "after": {"id": 1, name: None}, "op": "c", "source": source}
    return json.dumps({"schema": {"fields": rows}, "payload": payload}).replace("Infinity", "1e999")


@pytest.mark.parametrize(
    "parameters",
    [{"scale": float("inf")}, {"connect.decimal.precision": float("inf")},
     {"scale": 10**10, "connect.decimal.precision": 10**11}],
)  # fmt: skip
def test_debezium_decimal_with_impossible_digits_pauses(parameters):
    with pytest.raises(SchemaMismatch, match="column v in the messages cannot be read"):
        DebeziumJson(MappedTables()).decode(block_of([debezium(parameters)]))


@pytest.mark.parametrize("names", [{"name": HALF}, {"database": HALF}])
def test_debezium_name_with_half_a_surrogate_pair_is_a_fault(names):
    found = DebeziumJson(MappedTables()).decode(block_of([debezium({"scale": "2"}, **names)]))
    assert "surrogate" in found.faults[0].reason and not found.tables
