"""Canal's protobuf messages give the rows of their entries, with the message of each row."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from pathlib import Path

import pytest

from cdc.model.schema import DELETED
from cdc.sources.canal.protocol_pb2 import Column, Entry, EventKind, Header, Messages, Packet, RowChange, RowData
from cdc.sources.kafka.formats.canal_json import CanalJson
from cdc.sources.kafka.formats.canal_protobuf import CanalProtobuf
from tests.emulators.canal_frames import recorded
from tests.support.kafka_messages import MappedTables, block_of, rows_of

GOLDEN = Path(__file__).parents[5] / "data/canal/golden.jsonl"
SHANGHAI_US = 8 * 3600 * 1_000_000  # the time zone of the recorded server
TYPES = {"id": "bigint unsigned", "a": "varchar(20)"}


def packet(*entries, **fields):
    body = Messages(batch_id=7, messages=[*entries]).SerializeToString()
    return Packet(**{"kind": Packet.MESSAGES, "body": body, **fields}).SerializeToString()


def columns(row):
    return [
        Column(index=at, name=name, mysql_type=kind, is_key=name == "id", value=row[name] or "",
               is_null=row[name] is None)
        for at, (name, kind) in enumerate(TYPES.items())
        if name in row
    ]  # fmt: skip


def entry(*rows, kind=EventKind.INSERT, table="t", sql="", ddl=False):
    """Return an entry. Each row is (before, after)."""
    data = [RowData(before_columns=columns(before), after_columns=columns(after)) for before, after in rows]
    change = RowChange(event_kind=kind, rows=data, sql=sql, is_ddl=ddl)
    header = Header(database="shop", table=table, execute_time_ms=1_700_000_000_000)
    return Entry(header=header, kind=2, store_value=change.SerializeToString()).SerializeToString()


def decoded(*values, tables=None, **options):
    return CanalProtobuf(tables or MappedTables(), **options).decode(block_of(list(values)))


def test_golden_entries_give_the_rows_of_their_flat_messages():
    pairs = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    pairs = [(base64.b64decode(one["entry"]), one["flat"]) for one in pairs if one.get("flat")]
    compared = 0
    for bytes_, flat in pairs:
        found = decoded(packet(bytes_), zone_us=SHANGHAI_US)
        if found.faults:
            continue  # a MINIMAL image
        rows = rows_of(CanalJson(MappedTables(), zone_us=SHANGHAI_US).decode(block_of([flat])))
        assert rows_of(found) == rows
        compared += len(rows)
    assert compared >= 18


def test_golden_entries_in_one_message_and_in_several_give_the_same_statements_and_rows():
    lines = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    entries = [base64.b64decode(one["entry"]) for one in lines if one.get("flat")]
    full = []
    for each in entries:  # without MINIMAL images
        if not decoded(packet(each), zone_us=SHANGHAI_US).faults:
            full.append(each)
    one, several = decoded(packet(*full)), decoded(*map(packet, full))
    assert len(rows_of(several)) >= 18 and sorted(map(str, rows_of(one))) == sorted(map(str, rows_of(several)))
    assert [each.text for each in one.statements] == [each.text for each in several.statements]
    assert "create database shop" in [each.text for each in one.statements]
    assert {int(number) for table in one.tables for number in table.message} == {0}


def test_packets_recorded_from_a_server_are_decoded():
    frames = [Packet.FromString(one.data[4:]) for one in recorded() if one.from_server and one.kind == "MESSAGES"]
    filled = [one for one in frames if Messages.FromString(one.body).messages]
    assert filled
    found = decoded(*(one.SerializeToString() for one in filled), tables=MappedTables(only=("no.table",)))
    assert not found.faults and not found.tables


def test_rows_have_their_messages_and_key_changes():
    old, new = {"id": "1", "a": "x"}, {"id": "2", "a": "x"}
    found = decoded(
        packet(entry(({}, old)), entry(({}, old), table="u")),
        None,
        packet(entry((old, new), (new, {"id": "2", "a": None}), kind=EventKind.UPDATE)),
        packet(entry((new, {}), kind=EventKind.DELETE)),
    )
    assert not found.faults and found.source_time_us.tolist() == [
        1_700_000_000_000_000,
        -1,
        *[1_700_000_000_000_000] * 2,
    ]
    first, other = found.tables
    assert [first.schema.name, other.schema.name] == ["shop.t", "shop.u"]
    assert first.message.tolist() == [0, 2, 2, 2, 3] and other.message.tolist() == [0]
    assert first.key_change.tolist() == [False, True, True, False, False]
    assert [(int(row["id"]), row["a"], row[DELETED]) for row in first.rows.to_pylist()] == [
        (1, "x", False), (1, "x", True), (2, "x", False), (2, None, False), (2, "x", True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"data": []}', "not a packet"),
        (b"", "not a packet"),
        (packet(kind=Packet.ACK), "not a packet"),
        (packet(compression=2), "not a packet"),
        (packet(entry(({}, {"id": "x", "a": "b"}))), "(column id)"),
        (packet(entry(kind=EventKind.UPDATE, sql="update t set a = 1")), "binlog_format is not ROW"),
        (packet(b"\xff\xff"), "valid protobuf"),
    ],
)
def test_bad_message_is_a_fault_and_the_others_are_decoded(value, reason):
    good = packet(entry(({}, {"id": "5", "a": "b"})))
    found = decoded(good, value, good)
    assert [(each.message, reason in each.reason) for each in found.faults] == [(1, True)], found.faults
    assert [row["id"] for row in rows_of(found)] == [Decimal(5)] * 2
    assert found.tables[0].message.tolist() == [0, 2]


def test_every_truncation_is_a_fault_or_fewer_bytes_of_an_unknown_field():
    whole = packet(entry(({}, {"id": "5", "a": "b"})))
    for size in range(len(whole)):
        found = decoded(whole, whole[:size], whole)
        assert [each.message for each in found.faults] == [1]
        assert len(rows_of(found)) == 2


def test_row_without_a_mapped_column_names_the_table():
    types = MappedTables(columns=("id", "a"))
    full = packet(entry(({}, {"id": "1", "a": "b"})))
    lacking = packet(entry(({"id": "1"}, {"id": "5", "a": "b"}), kind=EventKind.UPDATE))
    found = decoded(full, lacking, tables=types)
    assert [(one.message, one.table) for one in found.faults] == [(1, "shop.t")] and len(rows_of(found)) == 1


def packet_of(body):
    return Packet(kind=Packet.MESSAGES, body=body).SerializeToString()


def test_body_that_was_cut_off_does_not_continue_in_the_next_message():
    good = packet(entry(({}, {"id": "2", "a": "y"})))
    whole = Messages(batch_id=7, messages=[entry(({}, {"id": "1", "a": "x"}))]).SerializeToString()
    for cut in range(1, len(whole)):
        found = decoded(packet_of(whole[:-cut]), good)
        assert [row["id"] for row in rows_of(found)] == [Decimal(2)]
        assert {fault.message for fault in found.faults} <= {0}
    # the two bytes that are missing are as many as those of the next batch id
    assert [fault.message for fault in decoded(packet_of(whole[:-2]), good).faults] == [0]


@pytest.mark.parametrize("ending", [b"\x12\x00", b"\x10\x7f", b"\x15abcd", b"\x12"])
def test_entry_without_content_does_not_affect_other_messages(ending):
    good = packet(entry(({}, {"id": "2", "a": "y"})))
    found = decoded(good, packet_of(b"\x08\x07" + ending))
    assert [row["id"] for row in rows_of(found)] == [Decimal(2)]
    assert {fault.message for fault in found.faults} <= {1}
