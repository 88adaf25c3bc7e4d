"""Plain rows as JSON: typed columns, paths, tombstones, and a fault for each value that its type cannot hold."""

from __future__ import annotations

import base64
import datetime
import json
import pickle
import random
from decimal import Decimal

import pytest

from cdc.errors import ConfigError
from cdc.model.schema import DELETED
from cdc.sources.kafka.formats.fields import schema_of_fields
from cdc.sources.kafka.formats.plain_json import PlainJson
from tests.support.kafka_messages import MappedTables, block_of, rows_of
from tests.support.seeds import seed_of

FIELDS = {
    "id": "BIGINT NOT NULL", "n": "INT", "flag": "BOOLEAN", "price": "DECIMAL(10,2)", "w": "DOUBLE", "f": "FLOAT",
    "name": "STRING", "day": "DATE", "at": "TIMESTAMP(3)", "local": "TIMESTAMP_NTZ", "raw": "BINARY",
}  # fmt: skip
UTC = datetime.UTC


def tables_of(fields=FIELDS, key=("id",), paths=None):
    return MappedTables(schemas=(schema_of_fields("shop", "orders", fields, key),), paths=paths)


def decoded(*values, keys=None, fields=FIELDS, key=("id",), paths=None, **options):
    return PlainJson(tables_of(fields, key, paths), **options).decode(block_of(list(values), keys))


def test_values_of_every_type():
    value = {
        "name": "x😀\n", "id": -5, "n": "7", "flag": True, "price": "12.5", "w": 1e300, "f": 1.5, "day": "2024-02-29",
        "at": "2024-02-29T23:00:00.123456-02:00", "local": "2024-02-29 01:02", "raw": base64.b64encode(b"\0\xff").decode(),
    }  # fmt: skip
    found = decoded(value, {"id": "9"}, {"id": 1, "n": None, "flag": 0, "price": -3, "unknown": {"x": [1]}})
    first, second, third = rows_of(found)
    assert first == {
        "id": -5, "n": 7, "flag": 1, "price": Decimal("12.50"), "w": 1e300, "f": 1.5, "name": "x😀\n",
        "day": datetime.date(2024, 2, 29), "at": datetime.datetime(2024, 3, 1, 1, 0, 0, 123456, tzinfo=UTC),
        "local": datetime.datetime(2024, 2, 29, 1, 2), "raw": b"\0\xff", DELETED: False,
    }  # fmt: skip
    assert second == dict.fromkeys(FIELDS) | {"id": 9, DELETED: False}
    assert (third["n"], third["flag"], third["price"]) == (None, 0, Decimal("-3.00"))
    assert not found.faults and found.source_time_us.tolist() == [-1] * 3
    assert [column.nullable for column in found.tables[0].schema.columns][:2] == [False, True]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", None), ("id", 1.5), ("id", "x"), ("id", 1 << 63), ("id", {"a": 1}), ("n", 1 << 31), ("n", 1e3),
        ("flag", 128), ("price", "1e8"), ("price", 123456789), ("price", 0.001), ("w", "x"), ("w", True), ("w", [1]),
        ("day", "29.02.2024"), ("day", 19782), ("at", "2024-02-29"), ("at", 1700000000), ("at", "2024-02-29T25:00:00"),
        ("at", "2024-02-29T01:02:03.1234567"), ("at", "2024-02-29T01:02:03X"), ("at", "2024-02-29T01:02:03+1"),
        ("local", "2024-02-29T01:02:03Z"), ("raw", "AA"), ("raw", "A==="), ("raw", "AB=="), ("raw", "A*AA"),
    ],
)  # fmt: skip
def test_value_that_its_type_cannot_hold_is_a_fault(field, value):
    found = decoded({"id": 1}, {"id": 2, field: value}, {"id": 3})
    assert [fault.message for fault in found.faults] == [1] and f"column {field}" in found.faults[0].reason
    assert [row["id"] for row in rows_of(found)] == [1, 3]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("DECIMAL(18,8)", b"0E-8", Decimal("0.00000000")), ("DECIMAL(18,8)", b"1e-8", Decimal("0.00000001")),
        ("DECIMAL(18,8)", b'"-1.5E-7"', Decimal("-0.00000015")), ("DECIMAL(18,8)", b"1E+2", Decimal("100.00000000")),
    ],
)  # fmt: skip
def test_decimal_with_an_exponent(kind, value, expected):
    found = decoded(b'{"id":1,"v":' + value + b"}", fields={"id": "BIGINT NOT NULL", "v": kind})
    assert not found.faults and rows_of(found)[0]["v"] == expected


def test_text_field_holds_numbers_and_objects_as_json():
    values = [{"id": 1, "name": value} for value in (1.50, True, {"a": [1, "ü"]}, [None], "t")]
    assert [row["name"] for row in rows_of(decoded(*values))] == [
        "1.5", "true", '{"a": [1, "\\u00fc"]}', "[null]", "t",
    ]  # fmt: skip


def test_zero_date_becomes_null_and_is_counted_but_not_in_a_key():
    format_ = PlainJson(tables_of())
    found = format_.decode(block_of([{"id": 1, "day": "0000-00-00"}, {"id": 2, "at": "2023-02-29T00:00:00"}]))
    assert not found.faults and [(row["day"], row["at"]) for row in rows_of(found)] == [(None, None)] * 2
    assert format_.invalid_dates == {("shop.orders", "day"): 1, ("shop.orders", "at"): 1}
    assert len(decoded({"id": 1, "day": "0000-00-00"}, key=("day",)).faults) == 1


def test_moments_without_a_zone_are_in_the_configured_one():
    (row,) = rows_of(decoded({"id": 1, "at": "2024-01-01 08:00:00", "local": "2024-01-01 08:00:00"},
                             zone_us=8 * 3_600_000_000))  # fmt: skip
    assert row["at"] == datetime.datetime(2024, 1, 1, tzinfo=UTC)
    assert row["local"] == datetime.datetime(2024, 1, 1, 8)


def test_paths_read_nested_fields():
    fields = {"id": "BIGINT", "city": "STRING", "zip": "INT", "odd": "STRING"}
    paths = {"city": "$.address.city", "zip": "$.address.more.zip", "odd": "$['a.b'].c"}
    values = [
        {"id": 1, "address": {"city": "Köln", "more": {"zip": 50667}}, "a.b": {"c": "y"}},
        {"id": 2, "address": {"more": None}, "city": "top"},
        {"id": 3, "address": "text"},
        {"id": 4},
    ]
    found = decoded(*values, fields=fields, paths=paths)
    assert [(row["city"], row["zip"], row["odd"]) for row in rows_of(found)] == [("Köln", 50667, "y")] + [
        (None,) * 3
    ] * 3


def test_null_in_a_not_null_column_is_a_fault_unless_the_row_is_deleted():
    fields = {"id": "BIGINT NOT NULL", "n": "INT NOT NULL"}
    found = decoded({"id": 1, "n": 1}, {"id": 2}, {"id": 3, "n": None}, None, keys=[None] * 3 + [b"4"], fields=fields)
    assert [fault.message for fault in found.faults] == [1, 2] and "column n" in found.faults[0].reason
    assert [row["id"] for row in rows_of(found)] == [1, 4]


def test_tombstone_deletes_the_key_of_its_message():
    found = decoded({"id": 1, "n": 1}, None, {"id": 3}, None, None, keys=[b"x", {"id": 2, "n": 5}, None, b"4", b'"5"'])
    assert [(row["id"], row["n"], row[DELETED]) for row in rows_of(found)] == [
        (1, 1, False), (2, None, True), (3, None, False), (4, None, True), (5, None, True),
    ]  # fmt: skip
    assert found.tables[0].message.tolist() == [0, 1, 2, 3, 4]


def test_tombstone_without_its_key_is_a_fault():
    found = decoded({"id": 1}, None, None, None, None, keys=[None, None, b"{", b'{"n":1}', b"null"])
    assert [fault.message for fault in found.faults] == [1, 2, 3, 4] and len(rows_of(found)) == 1


def test_tombstone_of_a_text_key():
    fields = {"id": "STRING", "k": "INT"}
    keys = [b"plain", b'"q\\u0075"', b"\xff", b""]
    found = decoded(*[None] * 4, keys=keys, fields=fields)
    assert [row["id"] for row in rows_of(found)] == ["plain", "qu", ""] and found.faults[0].message == 2
    several = decoded(None, None, keys=[{"id": "a", "k": 2}, b"a"], fields=fields, key=("id", "k"))
    assert [(row["id"], row["k"]) for row in rows_of(several)] == [("a", 2)] and several.faults[0].message == 1


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'{"id":1}{"id":2}', b"text"])
def test_unreadable_message_is_a_fault(value):
    found = decoded({"id": 1}, value, {"id": 2})
    assert [fault.message for fault in found.faults] == [1] and len(rows_of(found)) == 2


def test_topic_without_fields_raises_and_unmapped_topic_has_no_rows():
    with pytest.raises(ConfigError, match="types"):
        PlainJson(MappedTables()).decode(block_of([{"id": 1}]))
    assert not PlainJson(MappedTables(only=("a.b",))).decode(block_of([{"id": 1}])).tables
    schema = schema_of_fields("", "orders", {"id": "INT"}, ("id",))
    assert rows_of(PlainJson(MappedTables(schemas=(schema,))).decode(block_of([{"id": 1}], topic="orders")))


def test_random_rows_equal_json():
    rng = random.Random(seed_of())
    fields = {"a": "BIGINT", "b": "STRING", "c": "DOUBLE"}
    values = [
        {
            name: value
            for name, value in (
                ("a", rng.choice((None, rng.getrandbits(62), -1))),
                ("b", rng.choice((None, "", 'x\\"\u0001é😀' * rng.randrange(3), "plain"))),
                ("c", rng.choice((None, rng.uniform(-1e9, 1e9), 0.1, 1e-300, 5))),
            )
            if rng.random() < 0.8
        }
        for _ in range(2000)
    ]
    found = decoded(*[json.dumps(value, ensure_ascii=rng.random() < 0.5) for value in values], fields=fields, key=())
    assert not found.faults
    assert rows_of(found) == [{**dict.fromkeys(fields), **value, DELETED: False} for value in values]


def test_empty_block_and_pickle():
    assert not decoded().tables
    assert rows_of(pickle.loads(pickle.dumps(PlainJson(tables_of()))).decode(block_of([{"id": 1}])))
