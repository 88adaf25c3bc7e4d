"""Canal's flat messages give the rows of the entries that they were made from, and name what they cannot give."""

from __future__ import annotations

import base64
import json
import pickle
import random
from decimal import Decimal
from pathlib import Path

import pytest

from cdc.errors import SchemaMismatch, UnsupportedRowFormat
from cdc.model.schema import DELETED, SEQUENCE, Kind
from cdc.sources.canal.entries import Entries, EntryDecoder
from cdc.sources.canal.layout import LayoutColumn, schema_of
from cdc.sources.canal.protocol_pb2 import Messages
from cdc.sources.kafka.formats.canal_json import CanalJson
from tests.support.kafka_messages import MappedTables, block_of, rows_of
from tests.support.seeds import seed_of

GOLDEN = Path(__file__).parents[5] / "data/canal/golden.jsonl"
SHANGHAI_US = 8 * 3600 * 1_000_000  # the time zone of the recorded server
TYPES = {"id": "bigint unsigned", "a": "varchar(20)", "b": "int"}


def golden():
    """Return the pairs (entry, flat message) with rows."""
    lines = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    return [(base64.b64decode(line["entry"]), line["flat"]) for line in lines if line.get("flat")]


def message(data, kind="INSERT", old=None, **fields):
    return {
        "data": data, "database": "shop", "es": 1_700_000_000_000, "gtid": "", "id": 1, "isDdl": False,
        "mysqlType": TYPES, "old": old, "pkNames": ["id"], "sql": "", "sqlType": {}, "table": "t", "ts": 5,
        "type": kind, **fields,
    }  # fmt: skip


def decoded(*values, tables=None, **options):
    return CanalJson(tables or MappedTables(), **options).decode(block_of(list(values)))


class FromRows:
    def schema(self, database, table, layout):
        return schema_of(database, table, layout)


def rows_of_entry(entry):
    decoder = EntryDecoder(MappedTables(), FromRows(), zone_us=SHANGHAI_US)
    entries = Entries(Messages(batch_id=7, messages=[entry]).SerializeToString())
    changes, _ = decoder.changes(entries, 0, 1, 0)
    rows = [row for each in changes for row in each.rows.to_pylist()]
    return [{name: value for name, value in row.items() if name != SEQUENCE} for row in rows]


def test_golden_messages_give_the_rows_of_their_entries():
    compared = 0
    for entry, flat in golden():
        found = decoded(flat, zone_us=SHANGHAI_US)
        assert not found.faults
        if flat["data"] is None:
            assert not found.tables
            continue
        try:
            expected = rows_of_entry(entry)
        except UnsupportedRowFormat:
            continue  # a MINIMAL image
        assert rows_of(found) == expected
        assert [table.rows.schema for table in found.tables] == [found.tables[0].rows.schema]
        compared += len(expected)
    assert compared >= 18


def test_golden_messages_in_one_block_keep_their_order_and_layouts():
    flats = [
        flat for _, flat in golden() if flat["data"] is None or ("k" in flat["data"][0] and "b" in flat["data"][0])
    ]
    found = decoded(*flats, zone_us=SHANGHAI_US)
    assert not found.faults
    apart = [row for flat in flats for row in rows_of(decoded(flat, zone_us=SHANGHAI_US))]
    assert rows_of(found) == apart and len(apart) > 8
    assert {table.schema.name for table in found.tables} == {"shop.t", "shop.t2", "shop.decs"}
    assert [each.text for each in found.statements][:2] == ["drop database if exists shop", "create database shop"]
    assert set(found.source_time_us.tolist()) == {1_700_000_000_000_000}


def test_golden_ddl_messages_are_statements_with_their_tables():
    found = decoded(*(flat for _, flat in golden() if flat["isDdl"]))
    tables = {each.text.split("(")[0].strip(): each.table for each in found.statements}
    assert tables["create table types"] == "types" and tables["rename table t to t2"] == "t2"
    assert {each.database for each in found.statements} <= {"shop", "nothere", ""}


@pytest.mark.parametrize("kind", ["UPDATE", "DELETE"])
def test_minimal_image_names_the_table_and_the_column(kind):
    known = MappedTables(schemas=(schema_of("shop", "t", layout(TYPES)),))
    row = {"id": "1", "b": "2"}
    for types in (TYPES, {"id": TYPES["id"], "b": "int"}):
        full = message([{"id": "7", "a": "x", "b": "1"}])
        found = decoded(message([row], kind, old=[{}], mysqlType=types), full, tables=known)
        assert [(one.message, one.table, "column a" in one.reason) for one in found.faults] == [(0, "shop.t", True)]
        assert [one["id"] for one in rows_of(found)] == [Decimal(7)]


def test_partial_json_is_a_fault():
    types = {"id": "int", "j": "json"}
    partial = message([{"id": "1", "j": "JSON_REPLACE(`j`, '$.a', 1)"}], mysqlType=types)
    found = decoded(message([{"id": "2", "j": "{}"}], mysqlType=types), partial)
    assert [(one.message, "PARTIAL_JSON" in one.reason) for one in found.faults] == [(1, True)]
    assert [one["id"] for one in rows_of(found)] == [2]


@pytest.mark.parametrize("kind", ["INSERT", "UPDATE", "DELETE"])
@pytest.mark.parametrize(("table", "is_fault"), [("", True), ("t", True), ("other", False)])
def test_change_logged_as_a_statement_is_a_fault_unless_unmapped(kind, table, is_fault):
    statement = message(None, kind, table=table, sql="UPDATE t SET b = 1", mysqlType=None, pkNames=None)
    row = message([{"id": "1", "a": "x", "b": "1"}])
    found = decoded(row, statement, row, tables=MappedTables(only=("shop.t",)))
    reasons = [(one.message, "binlog_format is not ROW" in one.reason) for one in found.faults]
    assert reasons == ([(1, True)] if is_fault else []) and len(rows_of(found)) == 2


def test_rows_with_their_statement_are_rows():
    (table,) = decoded(message([{"id": "1", "a": "x", "b": "1"}], sql="INSERT INTO t VALUES (1)")).tables
    assert table.rows.num_rows == 1


def layout(types):
    return tuple(LayoutColumn(index, name, kind, name == "id") for index, (name, kind) in enumerate(types.items()))


def test_unmapped_columns_may_be_absent():
    found = decoded(message([{"id": "1"}]), tables=MappedTables(columns=("id",)))
    assert rows_of(found) == [{"id": Decimal(1), DELETED: False}]


def test_absent_null_and_empty_differ():
    rows = [{"id": "1", "a": None, "b": "2"}, {"id": "2", "a": "", "b": None}]
    assert [(row["a"], row["b"]) for row in rows_of(decoded(message(rows)))] == [(None, 2), ("", None)]


def test_update_changes_the_key_only_if_the_value_differs():
    rows = [{"id": "1", "a": "x", "b": "1"}, {"id": "9", "a": "y", "b": "2"}, {"id": "3", "a": "z", "b": "3"}]
    old = [{"a": "o"}, {"id": "2", "a": "p"}, {"id": "3"}]
    found = decoded(message(rows, "UPDATE", old=old))
    assert [(int(row["id"]), row["a"], row["b"], row[DELETED]) for row in rows_of(found)] == [
        (1, "x", 1, False), (2, "p", 2, True), (9, "y", 2, False), (3, "z", 3, False),
    ]  # fmt: skip
    assert found.tables[0].key_change.tolist() == [False, True, True, False]
    assert found.tables[0].message.tolist() == [0, 0, 0, 0]


def test_update_key_of_the_channel_decides_on_key_changes():
    row = {"id": "1", "a": "new", "b": "1"}
    tables = MappedTables(key=("a",))
    found = decoded(message([row], "UPDATE", old=[{"a": "old"}]), message([row], "UPDATE", old=[{"b": "2"}]),
                    tables=tables)  # fmt: skip
    assert [(each["a"], each[DELETED]) for each in rows_of(found)] == [("old", True), ("new", False), ("new", False)]


@pytest.mark.parametrize("old", [None, [], [{}, {}], [1], "x"])
def test_update_without_its_old_rows_is_a_fault(old):
    row = {"id": "1", "a": "x", "b": "1"}
    found = decoded(message([row]), message([row], "UPDATE", old=old), message([row]))
    assert [fault.message for fault in found.faults] == [1] and "`old`" in found.faults[0].reason
    assert found.tables[0].message.tolist() == [0, 2]


def test_bad_value_drops_its_whole_message_and_no_other():
    good = {"id": "1", "a": "x", "b": "1"}
    bad = {"id": "2", "a": "x", "b": "1x"}
    found = decoded(message([good]), message([good, bad, good]), message([good]), message([good, {**good, "id": None}]))
    assert [fault.message for fault in found.faults] == [1, 3]
    assert "column b" in found.faults[0].reason and "1x" in found.faults[0].reason
    assert "id" in found.faults[1].reason and "NULL" in found.faults[1].reason
    assert found.tables[0].message.tolist() == [0, 2] and len(rows_of(found)) == 2


@pytest.mark.parametrize(
    ("types", "value"),
    [
        ("int", "2147483648"), ("int unsigned", "-1"), ("date", "2024-1-1"), ("datetime", "2024-01-01"),
        ("double", "x"), ("double", "1.0E"), ("decimal(4,2)", "100.00"), ("enum('a')", "2"), ("set('a')", "2"),
        ("blob", "中"), ("int", {"a": 1}), ("int", True), ("int", [1]),
    ],
)  # fmt: skip
def test_value_that_its_type_cannot_hold_is_a_fault(types, value):
    kinds = {"id": "int", "v": types}
    values = [message([{"id": "1", "v": each}], mysqlType=kinds) for each in (None, value, None)]
    found = decoded(*values)
    assert [fault.message for fault in found.faults] == [1] and "column v" in found.faults[0].reason
    assert found.tables[0].message.tolist() == [0, 2]


def test_text_with_half_a_surrogate_pair_is_a_fault():
    raw = json.dumps(message([{"id": "1", "a": "HERE", "b": "1"}]))
    found = decoded(raw, raw.replace("HERE", "\\ud83d"), raw.replace("HERE", "\\ud83d\\ude00 \\u0000"))
    assert [fault.message for fault in found.faults] == [1] and "surrogate" in found.faults[0].reason
    assert [row["a"] for row in rows_of(found)] == ["HERE", "😀 \0"]


def test_text_that_is_not_utf8_is_a_fault():
    raw = json.dumps(message([{"id": "1", "a": "HERE", "b": "1"}])).encode()
    found = decoded(raw.replace(b"HERE", b"\xff"), raw)
    assert [fault.message for fault in found.faults] == [0] and len(rows_of(found)) == 1


def test_binary_columns_are_latin1_without_trailing_zeros():
    every = bytes(range(256))
    row = {"id": "1", "b": "ab", "v": every.decode("latin-1"), "l": "\x00ÿ", "t": "ÿ"}
    types = {"id": "int", "b": "binary(4)", "v": "varbinary(300)", "l": "longblob", "t": "text"}
    for ascii_only in (True, False):
        raw = json.dumps(message([row], mysqlType=types), ensure_ascii=ascii_only)
        (found,) = rows_of(decoded(raw))
        assert (found["b"], found["v"], found["l"], found["t"]) == (b"ab\0\0", every, b"\0\xff", "ÿ")


def test_enum_set_bit_and_float_are_read_from_numbers():
    types = {"id": "int", "e": "enum('x','it''s, 2')", "s": "set('a','b','c')", "b": "bit(33)", "f": "float"}
    values = {"id": "1", "e": "2", "s": "5", "b": "4294967297", "f": "1.0E10"}
    found = decoded(message([values, {**values, "e": "0", "s": "0"}], mysqlType=types))
    first, second = rows_of(found)
    assert (first["e"], first["s"], first["b"], first["f"]) == ("it's, 2", "a,c", 4294967297, 1e10)
    assert (second["e"], second["s"]) == ("", "")
    assert found.tables[0].schema.column("e").labels == ("x", "it's, 2")


def test_numbers_are_accepted_as_texts():
    row = {"id": 18446744073709551615, "a": "x", "b": -5}
    assert [(row["id"], row["b"]) for row in rows_of(decoded(message([row])))] == [(Decimal(2**64 - 1), -5)]


def test_keys_in_another_order_with_escapes_and_twice():
    raw = (
        '{"type":"INSERT", "table":"t","n":{"x":[1,{}]},"mysqlType":{"id":"int","n\\u00e4me":"varchar(9)"},'
        '"data":[{"n\\u00e4me":"1","id":"0"},{ "id" : "2" , "näme":"old","n\\u00e4me":"new"}],"pkNames":["id"],'
        '"database":"sh\\u006fp","es":"1700000000000","isDdl":false}'
    )
    found = decoded(raw, "\ufeff" + raw)
    assert [(row["id"], row["näme"]) for row in rows_of(found)] == [(0, "1"), (2, "new")] * 2
    assert found.tables[0].schema.name == "shop.t" and len(found.tables) == 1


def test_messages_without_rows_are_skipped():
    skipped = [message(None, kind, table="") for kind in ("QUERY", "XACOMMIT", "TIDB_WATERMARK")]
    found = decoded(None, *skipped, message([], "INSERT"))
    assert not found.tables and not found.faults and not found.statements
    assert found.source_time_us.tolist() == [-1] + [1_700_000_000_000_000] * 4


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"{}", b'{"op":"c"}', b'{"type":"OTHER"}'])
def test_unreadable_message_is_a_fault(value):
    found = decoded(message([{"id": "1", "a": "x", "b": "1"}]), value)
    assert [fault.message for fault in found.faults] == [1] and len(rows_of(found)) == 1
    assert len(found.faults[0].reason) < 400


def test_ddl_without_a_statement_is_a_fault():
    found = decoded(message(None, "ALTER", isDdl=True, sql=""), message(None, "ALTER", isDdl=True, sql="ALTER TABLE t"))
    assert [fault.message for fault in found.faults] == [0]
    assert [(each.message, each.database, each.table, each.text) for each in found.statements] == [
        (1, "shop", "t", "ALTER TABLE t")
    ]


def test_layout_change_in_a_block_gives_rows_per_layout():
    wide = {**TYPES, "c": "int"}
    row = {"id": "1", "a": "x", "b": "1"}
    found = decoded(message([row]), message([{**row, "c": "7"}], mysqlType=wide), message([row]))
    assert [[column.name for column in table.schema.columns] for table in found.tables] == [
        ["id", "a", "b"], ["id", "a", "b", "c"],
    ]  # fmt: skip
    assert [table.message.tolist() for table in found.tables] == [[0, 2], [1]]


def test_known_schema_is_used_if_the_rows_match_it():
    known = schema_of("shop", "t", layout(TYPES))
    row = {"id": "1", "a": "x", "b": "1"}
    assert decoded(message([row]), tables=MappedTables(schemas=(known,))).tables[0].schema is known
    changed = decoded(message([row], mysqlType={**TYPES, "b": "bigint"}), tables=MappedTables(schemas=(known,)))
    assert changed.tables[0].schema.column("b").kind is Kind.BIGINT
    untyped = decoded(message([row], mysqlType=None, pkNames=None), tables=MappedTables(schemas=(known,)))
    assert rows_of(untyped) == [{"id": Decimal(1), "a": "x", "b": 1, DELETED: False}]


def test_messages_without_types_and_without_a_known_table_raise():
    with pytest.raises(SchemaMismatch, match="mysqlType") as caught:
        decoded(message([{"id": "1"}], mysqlType=None))
    assert caught.value.context["table"] == "shop.t"


def test_omitted_and_unmapped_tables_have_no_rows():
    tables = MappedTables()
    tables.omits = True
    found = decoded(message([{"id": "1"}], mysqlType=None), tables=tables)
    assert not found.tables and not found.faults and "shop.t" in tables.omitted[0]
    assert not decoded(message([{"id": "1", "a": "x", "b": "1"}]), tables=MappedTables(only=("shop.other",))).tables


def test_unreadable_types_are_a_fault():
    found = decoded(message([{"id": "1"}], mysqlType={"id": 5}), message([{"id": "1"}], mysqlType="int"))
    assert [fault.message for fault in found.faults] == [0, 1]


def test_message_with_50000_rows():
    rows = [{"id": str(number), "a": "x" * (number % 7), "b": None} for number in range(50_000)]
    found = decoded(message(rows), message(rows[:3]))
    assert found.tables[0].rows.num_rows == 50_003 and found.tables[0].message[-1] == 1
    assert found.tables[0].rows["id"].to_pylist()[:50_000] == [Decimal(number) for number in range(50_000)]


def test_random_blocks_equal_their_messages_one_by_one():
    rng = random.Random(seed_of())
    values = []
    for _ in range(300):
        rows = [
            {"id": str(rng.randrange(9)), "a": rng.choice(("x", 'q"', None, "é")), "b": rng.choice(("1", None, "bad"))}
            for _ in range(rng.randrange(4))
        ]
        kind = rng.choice(("INSERT", "UPDATE", "DELETE"))
        old = [{name: str(rng.randrange(9)) for name in rng.sample(list(row), rng.randrange(3))} for row in rows]
        types = rng.choice((TYPES, {**TYPES, "b": "bigint"}))
        values.append(message(rows, kind, old if kind == "UPDATE" else None, mysqlType=types, table=rng.choice("tu")))
    together = decoded(*values)
    apart = [decoded(value) for value in values]
    assert [row for each in apart for row in rows_of(each)] == rows_of(together)
    assert [number for number, each in enumerate(apart) if each.faults] == [fault.message for fault in together.faults]
    assert 20 < len(together.faults) < 280


def test_format_can_be_pickled():
    copy = pickle.loads(pickle.dumps(CanalJson(MappedTables())))
    assert rows_of(copy.decode(block_of([message([{"id": "1", "a": "x", "b": "1"}])])))
