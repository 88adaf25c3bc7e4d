"""Maxwell's messages give typed rows; what has another form is named."""

from __future__ import annotations

import base64
import datetime
import json
from decimal import Decimal

import pytest

from cdc.errors import SchemaMismatch
from cdc.model.schema import DELETED
from cdc.sources.kafka.formats.fields import schema_of_types
from cdc.sources.kafka.formats.maxwell import Maxwell
from tests.support.kafka_messages import MappedTables, block_of, rows_of

TYPES = {"id": "bigint unsigned not null", "a": "varchar(20)", "b": "int"}


def tables_of(types, key=("id",), **options):
    return MappedTables(schemas=(schema_of_types("shop", "t", types, key),), only=("shop.t",), **options)


def message(data, kind="insert", **fields):
    return {"database": "shop", "table": "t", "type": kind, "ts": 1_700_000_000, "xid": 5, "commit": True,
            "data": data, **fields}  # fmt: skip


def decoded(*values, tables=None, **options):
    return Maxwell(tables or tables_of(TYPES), **options).decode(block_of(list(values)))


def value_of(kind, value, **options):
    found = decoded(message({"id": 1, "v": value}), tables=tables_of({"id": "int", "v": kind}), **options)
    assert not found.faults, found.faults
    return rows_of(found)[0]["v"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("tinyint", -128, -128),
        ("bigint unsigned", 18446744073709551615, Decimal(18446744073709551615)),
        ("decimal(20,4)", 12345.6700, Decimal("12345.6700")),
        ("decimal(18,8)", "0E-8", Decimal("0.00000000")),
        ("decimal(18,8)", "1E-8", Decimal("0.00000001")),
        ("decimal(45,10)", "0E-10", "0.0000000000"),
        ("decimal(45,10)", "-1.5E-9", "-0.0000000015"),
        ("decimal(45,0)", "1E+44", "1" + "0" * 44),
        ("double", 1e-7, 1e-7),
        ("year", 1999, 1999),
        ("date", "2024-02-29", datetime.date(2024, 2, 29)),
        ("datetime(6)", "2024-02-29 01:02:03.456789", datetime.datetime(2024, 2, 29, 1, 2, 3, 456789)),
        ("time(3)", "-838:59:59.123", "-838:59:59.123"),
        ("varchar(20)", 'q"\\\u00e9\U0001f600', 'q"\\\u00e9\U0001f600'),
        ("varbinary(8)", base64.b64encode(b"\x00\xff").decode(), b"\x00\xff"),
        ("enum('x','y')", "y", "y"),
        ("set('x','y','q\"z')", [], ""),
        ("set('x','y','q\"z')", ["x"], "x"),
        ("set('x','y','q\"z')", ["x", 'q"z'], 'x,q"z'),
        ("set('q\"','y')", ['q"', "y"], 'q",y'),
        ("json", {"b": [1, "x, y: z"], "a": None}, '{"b": [1, "x, y: z"], "a": null}'),
        ("json", 'te"xt', '"te\\"xt"'),
        ("json", 5, "5"),
        ("json", True, "true"),
        ("bit(1)", 1, 1),
        ("int", None, None),
    ],
)
def test_value_has_its_type(kind, value, expected):
    assert value_of(kind, value) == expected


def test_timestamp_is_in_the_zone_of_the_jvm():
    found = value_of("timestamp(3)", "2024-02-29 09:00:00.500", zone_us=8 * 3600 * 1_000_000)
    assert found.astimezone(datetime.UTC) == datetime.datetime(2024, 2, 29, 1, 0, 0, 500000, datetime.UTC)


def test_insert_update_and_delete_give_rows():
    found = decoded(
        message({"id": 1, "a": "x", "b": 2}),
        None,
        message({"id": 1, "a": "y", "b": None}, "update", old={"a": "x", "b": 2}),
        message({"id": 1, "a": "y", "b": None}, "delete"),
        message({"id": 9, "a": "", "b": 0}, "bootstrap-insert"),
    )
    assert [(int(row["id"]), row["a"], row["b"], row[DELETED]) for row in rows_of(found)] == [
        (1, "x", 2, False), (1, "y", None, False), (1, "y", None, True), (9, "", 0, False),
    ]  # fmt: skip
    assert not found.faults and found.tables[0].message.tolist() == [0, 2, 3, 4]
    assert found.source_time_us.tolist() == [1_700_000_000_000_000, -1, *[1_700_000_000_000_000] * 3]


def test_changed_key_is_a_delete_of_the_old_image_and_an_upsert():
    found = decoded(
        message({"id": 2, "a": "y", "b": 2}, "update", old={"id": 1, "a": "x"}),
        message({"id": 2, "a": "z", "b": 2}, "update", old={"id": 2, "a": "y"}),
    )
    assert [(int(row["id"]), row["a"], row["b"], row[DELETED]) for row in rows_of(found)] == [
        (1, "x", 2, True), (2, "y", 2, False), (2, "z", 2, False),
    ]  # fmt: skip
    assert found.tables[0].key_change.tolist() == [True, True, False]


def test_ddl_is_a_statement_and_marks_are_skipped():
    found = decoded(
        message(None, "bootstrap-start"),
        message(None, "bootstrap-complete"),
        {"type": "table-alter", "database": "shop", "table": "t", "old": {}, "def": {}, "ts": 5,
         "sql": "alter table t add c int"},
        {"type": "database-create", "database": "new", "ts": 5, "sql": "create database new"},
    )  # fmt: skip
    assert not found.faults and not found.tables
    assert [(each.message, each.database, each.table, each.text) for each in found.statements] == [
        (2, "shop", "t", "alter table t add c int"), (3, "new", "", "create database new"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "ends too early"),
        (message({"id": 1}, "unknown"), "no known `type` of Maxwell: 'unknown'"),
        ({"before": None, "after": {"id": 1}, "op": "c"}, "no known `type`"),
        (message(None), "needs `data`"),
        (message({"id": 1, "a": "b", "b": 3}, "update"), "needs `old`"),
        (message({"id": None, "a": "b", "b": 3}), "column id of the key is NULL"),
        (message({"id": 1, "a": "b", "b": "x"}), "column b"),
        (message({"id": 1, "a": "b", "b": 1 << 40}), "column b"),
        (message({"id": 1, "a": ["b"], "b": 1}, database=5), "no database"),
        ({"type": "table-drop", "database": "shop", "table": "t"}, "DDL without a statement"),
    ],
)
def test_bad_message_is_a_fault_and_the_others_are_decoded(value, reason):
    good = message({"id": 5, "a": "b", "b": 1})
    found = decoded(good, value, good)
    assert [(each.message, reason in each.reason) for each in found.faults] == [(1, True)], found.faults
    assert [int(row["id"]) for row in rows_of(found)] == [5, 5]


@pytest.mark.parametrize("precision", [18, 45])
@pytest.mark.parametrize("value", ["hello", "1.12345678901", "1E+40", "-1E-11", "1e", "NaN", "1_0", ""])
def test_text_that_is_not_a_decimal_of_the_column_is_a_fault(value, precision):
    tables = tables_of({"id": "int", "v": f"decimal({precision},10)"})
    lines = [message({"id": number, "v": each}) for number, each in enumerate((None, value, "1E-10"))]
    found = decoded(*lines, tables=tables)
    assert [fault.message for fault in found.faults] == [1] and [row["id"] for row in rows_of(found)] == [0, 2]
    assert f"The text {value!r} is not a DECIMAL({precision},10)" in found.faults[0].reason


def test_every_truncation_is_a_fault():
    whole = json.dumps(message({"id": 5, "a": 'q"\\', "b": 1})).encode()
    for size in range(len(whole)):
        found = decoded(whole, whole[:size], whole)
        assert [each.message for each in found.faults] == [1] and len(rows_of(found)) == 2


def test_absent_column_names_output_nulls():
    (fault,) = decoded(message({"id": 1, "a": "x"})).faults
    assert (fault.message, fault.table) == (0, "shop.t") and "column b" in fault.reason


def test_table_without_fields_is_refused():
    with pytest.raises(SchemaMismatch, match="types of the columns are not known") as caught:
        decoded(message({"id": 1}), tables=MappedTables())
    assert "fields" in caught.value.hint
