"""Debezium's recorded messages give the values that the statements wrote; unsafe settings and bad values are refused."""

from __future__ import annotations

import base64
import datetime
import json
import pickle
import struct
from decimal import Context, Decimal
from pathlib import Path

import pytest

from cdc.errors import SchemaMismatch
from cdc.model.schema import DELETED, Kind
from cdc.sources.canal.layout import LayoutColumn, schema_of
from cdc.sources.kafka.formats.debezium_json import DebeziumJson
from cdc.sources.kafka.formats.debezium_types import DebeziumModes
from tests.support.kafka_messages import MappedTables, block_of, rows_of

GOLDEN = Path(__file__).parents[5] / "data/kafka/debezium.jsonl"
UTC = datetime.UTC
TYPES = {
    "id": "bigint unsigned", "ti": "tinyint", "b1": "tinyint(1)", "bi": "bit(1)", "b12": "bit(12)", "f": "float",
    "d": "double", "de": "decimal(30,10)", "dt": "date", "t0": "time", "t6": "time(6)", "dt0": "datetime",
    "dt3": "datetime(3)", "dt6": "datetime(6)", "ts0": "timestamp", "ts6": "timestamp(6)", "y": "year", "c": "char(5)",
    "v": "varchar(50)", "tx": "text", "bn": "binary(4)", "vb": "varbinary(10)", "bl": "blob", "e": "enum('a','b,c')",
    "st": "set('x','y')", "j": "json", "g": "point",
}  # fmt: skip
FIRST = {  # as SELECT returns it, with geometries in MySQL's form
    "id": Decimal(2**64 - 1), "ti": -1, "b1": 1, "bi": 1, "b12": 0b100000000001, "f": 1.5, "d": 2.25,
    "de": Decimal("12345678901234567890.0123456789"), "dt": datetime.date(2024, 2, 29), "t0": "-12:34:56",
    "t6": "838:59:58.000001", "dt0": datetime.datetime(2024, 2, 29, 1, 2, 3),
    "dt3": datetime.datetime(2024, 2, 29, 1, 2, 3, 456000),
    "dt6": datetime.datetime(9999, 12, 31, 23, 59, 59, 999999),
    "ts0": datetime.datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC),
    "ts6": datetime.datetime(2024, 2, 29, 1, 2, 3, 456789, tzinfo=UTC), "y": 2024, "c": "x", "v": 'g"ü😀\n\\', "tx": "",
    "bn": b"\x01\xff\0\0", "vb": b"\0\xff\x80", "bl": b"\xde\xad\xbe\xef", "e": "b,c", "st": "x,y",
    "j": '{"a": [1, null, "ü"]}', "g": struct.pack("<IBIdd", 0, 1, 1, 1, 2), DELETED: False,
}  # fmt: skip


def table_of(types, table="t", key=("id",)):
    layout = tuple(LayoutColumn(at, name, kind, name in key) for at, (name, kind) in enumerate(types.items()))
    return schema_of("s", table, layout)


MODES = DebeziumModes()
KNOWN = (table_of(TYPES), table_of({"a": "int", "b": "varchar(9)"}, "n", key=()))


def golden(topic=None, schemas=False):
    lines = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    return [line for line in lines if "topic" in line and line["schemas"] is schemas and topic in (None, line["topic"])]


def decoded(lines, known=KNOWN, modes=MODES, **options):
    tables = MappedTables(schemas=known, **options)
    return DebeziumJson(tables, modes=modes).decode(
        block_of([each["value"] for each in lines], [each["key"] for each in lines])
    )


def change(op, before=None, after=None, **source):
    source = {"db": "s", "table": "t", "ts_ms": 1_700_000_000_123, **source}
    return {
        "key": None,
        "value": json.dumps({"before": before, "after": after, "source": source, "op": op, "ts_ms": 5}),
    }


def test_golden_rows_without_schema_have_the_written_values():
    found = decoded(golden("srv.s.t"))
    assert not found.faults and not found.statements
    rows = rows_of(found)
    assert rows[0] == FIRST
    assert [(int(row["id"]), row["v"], row["vb"], row["ti"], row[DELETED]) for row in rows[1:]] == [
        (1, None, None, None, False),
        (2, None, None, None, False),
        (1, "n", b"\xc3\xbc", None, False),
        (2, None, None, None, True),
        (3, None, None, None, False),
        (1, "m", b"\xc3\xbc", 5, False),
        (3, "m", None, None, False),
        (3, "m", None, None, True),
    ]
    assert {value for name, value in rows[1].items() if name not in ("id", DELETED)} == {None}
    assert found.source_time_us[0] == 1795420330509844 and not found.tables[0].key_change.any()


def test_golden_row_with_schema_has_the_same_values_but_for_what_the_schema_lacks():
    lines = golden("srv.s.t", schemas=True)
    found = decoded(lines[:1], known=())
    lost = {"id": -1, "t0": "-12:34:56.000000", "bi": 1}  # no sign of BIGINT, no digits of TIME
    assert rows_of(found)[0] == {**FIRST, **lost}
    schema = found.tables[0].schema
    assert schema.key == ("id",) and schema.column("e").labels == ("a", "b,c") and schema.column("de").scale == 10
    assert schema.column("b12").length == 12 and not schema.column("id").nullable
    assert rows_of(decoded(lines[:1]))[0] == FIRST


def test_golden_tables_without_a_key_and_other_topics():
    found = decoded(golden("srv.s.n"), key=("a",))
    assert [(row["a"], row["b"], row[DELETED]) for row in rows_of(found)] == [
        (1, "k", False), (1, "k", False), (1, "z", False), (1, "z", False), (1, "z", True), (1, "z", True),
        (2, "q", False),
    ]  # fmt: skip
    for topic in ("srv", "srv.transaction", "__debezium-heartbeat.srv"):
        lines = golden(topic)
        other = decoded(lines)
        assert lines and not other.tables and not other.faults and not other.statements


def test_null_in_a_column_with_a_default_arrives_as_the_default():
    known = (table_of({"a": "int", "b": "varchar(9)", "c": "int"}, "n", key=()),)
    row = rows_of(decoded(golden("srv.s.n")[-1:], known=known, key=("a",)))[0]
    assert row["c"] == 7  # NULL was written: the message does not show it


def test_operations():
    row = {"id": 1, "ti": 2}
    known = (table_of({"id": "int", "ti": "tinyint"}),)
    lines = [
        change("c", after=row), change("r", after=row), change("u", row, {"id": 1, "ti": 3}), change("t"), change("m"),
        {"key": '{"id":1}', "value": None}, change("d", row),
    ]  # fmt: skip
    found = decoded(lines, known=known)
    assert [(each["ti"], each[DELETED]) for each in rows_of(found)] == [(2, False), (2, False), (3, False), (2, True)]
    assert [(each.message, each.text) for each in found.statements] == [(3, "TRUNCATE TABLE s.t")]
    assert found.tables[0].message.tolist() == [0, 1, 2, 6] and not found.faults
    assert found.source_time_us.tolist() == [1_700_000_000_123_000] * 5 + [-1] + [1_700_000_000_123_000]


def test_update_that_changes_the_key_of_the_channel_gives_a_delete_and_a_row():
    known = (table_of({"id": "int", "ti": "tinyint"}),)
    lines = [change("u", {"id": 1, "ti": 2}, {"id": 1, "ti": 3}), change("u", {"id": 1, "ti": 3}, {"id": 2, "ti": 3})]
    found = decoded(lines, known=known, key=("ti",))
    assert [(row["id"], row["ti"], row[DELETED]) for row in rows_of(found)] == [
        (1, 2, True), (1, 3, False), (2, 3, False),
    ]  # fmt: skip
    assert found.tables[0].key_change.tolist() == [True, True, False]


@pytest.mark.parametrize(
    "value",
    [
        b"", b"[]", b"{}", b'{"op":"x"}', b'{"id":1}', b'{"op":"c","source":{"db":"s"},"after":{"id":1}}',
        b'{"op":"c","source":{"db":"s","table":"t"},"after":null}', b'{"op":"d","source":{"db":"s","table":"t"}}',
        b'{"op":"u","after":{"id":1},"source":{"db":"s","table":"t"}}',
        b'{"schema":{"type":"struct","fields":7},"payload":{"op":"c","after":{},"source":{"db":"s","table":"t"}}}',
        b'{"type":"INSERT","data":[],"database":"s","table":"t"}', b'{"ts_ms":5,"note":"\xff"}',
        b'{"schema":null,"payload":{"ts_ms":5},"payload":7}',
    ],
)  # fmt: skip
def test_unreadable_message_is_a_fault(value):
    known = (table_of({"id": "int"}),)
    found = decoded([change("c", after={"id": 1}), {"key": None, "value": value}], known=known)
    assert [fault.message for fault in found.faults] == [1] and len(rows_of(found)) == 1


@pytest.mark.parametrize(
    "row",
    [
        {"id": 1, "status": "paid"}, {"id": "a", "status": "END"}, {"id": 1, "status": "END", "event_count": 2},
        {"id": 2, "ddl": None}, {"id": 2, "ddl": "x", "source": "shop"}, {"source": {}, "ddl": 5},
        {"id": 3, "ts_ms": 5}, {"ts_ms": 5, "before": None}, {"ts_ms": 5, "op": None},
    ],
)  # fmt: skip
def test_row_without_envelope_is_a_fault(row):
    for value in (row, {"schema": None, "payload": row}):
        found = decoded([{"key": None, "value": json.dumps(value)}])
        assert [fault.message for fault in found.faults] == [0]


def test_control_messages_are_skipped_with_and_without_schema():
    messages = [json.loads(line["value"]) for line in golden("srv") + golden("srv.transaction")]
    messages += [{"ts_ms": 5}, {"ts_ms": 5, "ts_us": 5000, "ts_ns": 5000000}, {**messages[0], "ddl": None}]
    for found in (
        decoded([{"key": None, "value": json.dumps(one)} for one in messages]),
        decoded([{"key": None, "value": json.dumps({"schema": {}, "payload": one})} for one in messages]),
    ):
        assert not found.faults and not found.tables and not found.statements


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", "1"), ("int", 2**31), ("bigint unsigned", 2**63), ("decimal(4,2)", 12.5), ("decimal(4,2)", "AYag"),
        ("decimal(4,2)", ""), ("decimal(30,2)", "A" * 24), ("bit(4)", "EA=="), ("date", "2024-01-01"),
        ("date", 10**7), ("datetime", "2024-01-01T00:00:00"), ("datetime(6)", 10**18), ("time", 10**15),
        ("timestamp", 1700000000), ("timestamp", "2024-01-01"), ("blob", "é"), ("json", {"a": 1}), ("varchar(9)", 5),
        ("point", {"x": 1.0}), ("point", "AQ=="), ("double", "1.5"),
    ],
)  # fmt: skip
def test_value_that_its_type_cannot_hold_is_a_fault(kind, value):
    known = (table_of({"id": "int", "x": kind}),)
    lines = [change("c", after={"id": number, "x": each}) for number, each in enumerate((None, value, None))]
    found = decoded(lines, known=known)
    assert [fault.message for fault in found.faults] == [1] and "column x" in found.faults[0].reason
    assert [row["id"] for row in rows_of(found)] == [0, 2]


def test_decimals_of_all_sizes_and_signs():
    for digits, scale in ((4, 2), (18, 0), (19, 3), (38, 38), (65, 30)):
        known = (table_of({"id": "int", "x": f"decimal({digits},{scale})"}),)
        numbers = [0, 1, -1, 127, 128, -128, -129, 255, 9999, 10**digits - 1, 1 - 10**digits]
        lines = [
            change("c", after={"id": 1, "x": base64.b64encode(number.to_bytes(
                max(1, (number.bit_length() + 8) // 8), "big", signed=True)).decode()})
            for number in numbers
        ]  # fmt: skip
        found = decoded(lines, known=known)
        exact = Context(prec=80)
        assert not found.faults
        assert [Decimal(str(row["x"])) for row in rows_of(found)] == [
            Decimal(number).scaleb(-scale, exact) for number in numbers
        ]


def test_absent_column_names_the_table():
    known = (table_of({"id": "int", "x": "int"}),)
    found = decoded([change("c", after={"id": 1, "x": 1}), change("c", after={"id": 1})], known=known)
    assert [(one.message, one.table, "column x" in one.reason) for one in found.faults] == [(1, "s.t", True)]
    assert len(rows_of(found)) == 1


def test_time_with_a_schema_has_six_digits_unless_fields_has_fewer():
    line = schema_message({"type": "int64", "name": "io.debezium.time.MicroTime"}, 45_296_000_000)
    for known, expected in (((), "12:34:56.000000"), ((table_of({"id": "int", "x": "time"}),), "12:34:56")):
        (row,) = rows_of(decoded([line], known=known, key=("id",)))
        assert row["x"] == expected


def schema_message(field, value, key=True):
    fields = [{"type": "int32", "optional": False, "field": "id"}, {"optional": True, "field": "x", **field}]
    image = {"type": "struct", "fields": fields, "optional": True, "field": "after"}
    payload = json.loads(change("c", after={"id": 1, "x": value})["value"])
    return {"key": None, "value": json.dumps({"schema": {"type": "struct", "fields": [image]}, "payload": payload})}


@pytest.mark.parametrize(
    "field",
    [
        {"type": "int64", "name": "io.debezium.time.NanoTimestamp"},
        {"type": "string", "name": "io.debezium.time.IsoTimestamp"},
        {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"},
        {"type": "struct", "name": "io.debezium.data.VariableScaleDecimal"},
    ],
)
def test_unsafe_modes_are_refused(field):
    with pytest.raises(SchemaMismatch, match="cannot be read exactly") as caught:
        decoded([schema_message(field, None)], known=())
    assert caught.value.context["table"] == "s.t" and caught.value.context["column"] == "x"
    assert rows_of(decoded([schema_message(field, None)], known=(), columns=("id",)))


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        ("decimal(10,2)", {"type": "double"}),
        ("decimal(10,2)", {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "3"}}),
        ("datetime(6)", {"type": "int64", "name": "io.debezium.time.Timestamp"}),
        ("int", {"type": "string"}),
        ("blob", {"type": "string"}),
    ],
)  # fmt: skip
def test_schema_that_differs_from_the_known_table_is_refused(kind, field):
    with pytest.raises(SchemaMismatch, match="olumn x"):
        decoded([schema_message(field, None)], known=(table_of({"id": "int", "x": kind}),))


def test_decimals_as_texts_are_read_with_a_schema():
    known = (table_of({"id": "int", "x": "decimal(10,2)"}),)
    (row,) = rows_of(decoded([schema_message({"type": "string"}, "-12.5")], known=known))
    assert row["x"] == Decimal("-12.50")


def test_boolean_of_tinyint_one_and_wrapped_tombstone():
    known = (table_of({"id": "int", "x": "tinyint(1)"}),)
    lines = [schema_message({"type": "boolean"}, True), schema_message({"type": "boolean"}, None),
             {"key": None, "value": '{"schema":null,"payload":null}'}]  # fmt: skip
    found = decoded(lines, known=known)
    assert [row["x"] for row in rows_of(found)] == [1, None] and not found.faults


def test_messages_without_schema_raise_unless_types_and_modes_are_declared():
    known = (table_of({"id": "int"}),)
    for declared in ({"known": ()}, {"known": known, "modes": None}):
        with pytest.raises(SchemaMismatch, match="no schema") as caught:
            decoded([change("c", after={"id": 1})], **declared)
        assert caught.value.context["table"] == "s.t" and "source.connector" in caught.value.hint
    assert rows_of(decoded([change("c", after={"id": 1})], known=known))
    assert rows_of(decoded([schema_message({"type": "int32"}, 1)], known=(), modes=None))


def test_decimals_as_texts_are_read_if_the_mode_is_declared():
    known = (table_of({"id": "int", "x": "decimal(10,2)"}),)
    lines = [change("c", after={"id": 1, "x": "-12.5"})]
    (row,) = rows_of(decoded(lines, known=known, modes=DebeziumModes("string")))
    assert row["x"] == Decimal("-12.50")
    assert decoded(lines, known=known).faults


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("decimal(18,8)", "0E-8", Decimal("0.00000000")), ("decimal(18,8)", "1E-8", Decimal("0.00000001")),
        ("decimal(45,10)", "0E-10", "0.0000000000"), ("decimal(45,10)", "-1.5E-9", "-0.0000000015"),
        ("decimal(45,10)", "1E+2", "100.0000000000"), ("decimal(18,8)", "-1.5E-9", None), ("decimal(45,10)", "x", None),
        ("decimal(45,10)", "1E+35", None),
    ],
)  # fmt: skip
def test_decimal_text_with_an_exponent(kind, value, expected):
    found = decoded([change("c", after={"id": 1, "x": value})], known=(table_of({"id": "int", "x": kind}),),
                    modes=DebeziumModes("string"))  # fmt: skip
    assert [row["x"] for row in rows_of(found)] == ([] if expected is None else [expected])
    assert len(found.faults) == (expected is None)


def test_unsigned_bigint_is_read_if_the_schema_has_its_type():
    parameters = {"parameters": {"__debezium.source.column.type": "BIGINT UNSIGNED"}}
    (row,) = rows_of(decoded([schema_message({"type": "int64", **parameters}, -1)], known=()))
    assert row["x"] == 2**64 - 1


def test_schema_change_in_a_block_gives_rows_per_layout():
    lines = [
        schema_message({"type": "int32"}, 1),
        schema_message({"type": "int64"}, 2),
        schema_message({"type": "int32"}, 3),
    ]
    found = decoded(lines, known=())
    assert [table.message.tolist() for table in found.tables] == [[0, 2], [1]]
    assert [table.schema.column("x").kind for table in found.tables] == [Kind.INT, Kind.BIGINT]


def test_format_can_be_pickled():
    copy = pickle.loads(
        pickle.dumps(DebeziumJson(MappedTables(schemas=(table_of({"id": "int"}),)), modes=DebeziumModes()))
    )
    assert rows_of(copy.decode(block_of([change("c", after={"id": 1})["value"]])))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "x"}},
        {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": [1]}},
        {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "50"}},
        {"type": "bytes", "name": "io.debezium.data.Bits", "parameters": {"length": "99999"}},
        {"type": "int64", "parameters": [1]},
        {"type": "int64", "parameters": "x"},
    ],
)
def test_schema_with_unreadable_parameters_names_the_column(schema):
    image = {"type": "struct", "fields": [{**schema, "field": "id", "optional": False}]}
    fields = [{**image, "field": "before"}, {**image, "field": "after"}]
    payload = {"before": None, "after": {"id": 1}, "op": "c", "source": {"db": "s", "table": "t", "ts_ms": 1}}
    message = json.dumps({"schema": {"type": "struct", "fields": fields}, "payload": payload})
    with pytest.raises(SchemaMismatch, match="schema of column id in the messages cannot be read"):
        DebeziumJson(MappedTables(key=("id",))).decode(block_of([message]))
