"""The decoder on hand-written events: framing, faults, positions, and values of the MySQL reference."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from cdc.errors import DecodeError
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.mysql.connection import ServerError
from cdc.mysql.values import numbers, times
from cdc.sources.binlog.decoder import events as ev
from cdc.sources.binlog.decoder import framing as fr
from cdc.sources.binlog.decoder.checksum import crc32
from cdc.sources.binlog.decoder.table_map import decimal_bytes
from cdc.sources.binlog.decoder.table_map_cache import TableMapCache
from tests.support.decoding import Everything, Outcome, Schemas, decode, decode_into

SCHEMA = TableSchema(
    "shop", "t", (Column("id", Kind.INT, "int"), Column("v", Kind.VARCHAR, "varchar(9)", charset="utf8mb4")), ("id",)
)
TABLE_MAP = struct.pack("<IHH", 7, 0, 0) + b"\x04shop\0\x01t\0\x02\x03\x0f\x02\x24\x00\x02"
ROWS = struct.pack("<IHHH", 7, 0, 1, 2) + b"\x02\xff"
ROW = b"\x00\x05\x00\x00\x00\x02hi"


def event(kind, body, *, flags=0, checksum=True, log_pos=0):
    size = 19 + len(body) + 4 * checksum
    raw = struct.pack("<IBIIIH", 1700000000, kind, 1, size, log_pos, flags) + body
    return raw + (struct.pack("<I", zlib.crc32(raw)) if checksum else b"")


def format_description(checksum=True, version=b"9.7.4", in_the_file=True):
    """``in_the_file``: False if a dump begins after it, and the server sends a copy without a position."""
    body = struct.pack("<H50sIB", 4, version, 0, 19) + bytes(41) + bytes([checksum])
    return event(15, body, log_pos=4 + 19 + len(body) + 4 if in_the_file else 0)


def query(sql, status=b""):
    return event(2, struct.pack("<IIBHH", 1, 0, 4, 0, len(status)) + status + b"shop\0" + sql)


GTID = event(33, b"\x00" + bytes(range(16)) + struct.pack("<Q", 5) + b"\x02" + bytes(16))
XID = event(16, bytes(8))
EVENTS = (GTID, query(b"BEGIN"), event(19, TABLE_MAP), event(30, ROWS + ROW), XID)
TRANSACTION = b"".join(EVENTS)


def file_of(*events):
    return b"\xfebin" + format_description() + b"".join(events)


def packets(*events):
    return b"".join(len(e).to_bytes(3, "little") + b"\0" + e for e in (b"\0" + e for e in events))


def run(data, **options):
    return decode(data, Everything("shop"), schemas=[SCHEMA], **options)


def failing(data, error, **options):
    outcome = Outcome()
    with pytest.raises(error) as caught:
        decode_into(outcome, data, Everything("shop"), schemas=[SCHEMA], **options)
    return outcome, caught.value


@pytest.mark.parametrize("piece", [1, 7, 100, None])
def test_decoder_input_in_pieces_of_any_size_returns_equal_rows(piece):
    outcome = run(file_of(TRANSACTION, TRANSACTION), piece=piece)
    assert [(row["id"], row["v"], row["__sequence"]) for row in outcome.rows()] == [(5, "hi", 1), (5, "hi", 2)]
    assert outcome.decoder.position.offset == len(file_of(TRANSACTION, TRANSACTION))
    assert sum(batch.entries for batch in outcome.batches) == 10


def test_decoder_adds_gtids_to_the_start_set():
    uuid = "00010203-0405-0607-0809-0a0b0c0d0e0f"
    start = BinlogPosition("binlog.000001", 4, gtid_set=f"{uuid}:1-4")
    assert run(file_of(TRANSACTION), start=start).decoder.position.gtid_set == f"{uuid}:1-5"


def prepared_xa(gtrid):
    prepare = event(38, struct.pack("<BIII", 0, 1, 1, 0) + gtrid)
    return GTID + query(b"XA START X'31',X'',1") + event(19, TABLE_MAP) + event(30, ROWS + ROW) + prepare


def test_open_xa_holds_the_position_when_file_names_grow():
    rotation = event(4, struct.pack("<Q", 4) + b"binlog.1000000")
    data = file_of(prepared_xa(b"1"), rotation) + file_of(prepared_xa(b"2"), TRANSACTION)
    outcome = run(data, start=BinlogPosition("binlog.999999", 4))
    assert len(outcome.decoder.open_xa) == 2 and len(outcome.rows()) == 1
    assert {batch.last.file for batch in outcome.batches} == {"binlog.999999"}


def test_table_map_cache_after_many_ddl_statements_stays_small():
    registry = TableMapCache.empty(Everything("shop"), Schemas([SCHEMA]))
    contents = [TABLE_MAP[6:], TABLE_MAP[6:].replace(b"shop", b"else")]
    for _ in range(4000):
        for number, content in enumerate(contents):
            if number == 0 or not (registry.known[:, fr.KNOWN_SLOT] == fr.SKIPPED).any():
                registry.add(content, number, mariadb=False, since=BinlogPosition("binlog.000001", 4))
        registry.forget_schemas()
    assert len(registry.arena) == 1 << 16
    offset, length = registry.known[0, [fr.OFFSET, fr.LENGTH]]
    assert registry.arena[offset : offset + length].tobytes() == contents[1]


def test_error_packet_is_raised_after_the_earlier_batches():
    error = b"\xff" + struct.pack("<H", 1236) + b"#HY000no such file"
    data = packets(format_description(), TRANSACTION[: len(GTID)])
    whole = packets(format_description(), *EVENTS)
    outcome, raised = failing(whole + len(error).to_bytes(3, "little") + b"\0" + error, ServerError, framed=True)
    assert (raised.code, raised.sql_state, raised.text) == (1236, "HY000", "no such file")
    assert len(outcome.rows()) == 1
    assert run(data, framed=True).rows() == []


def test_end_packet_sets_ended():
    assert run(packets(format_description()) + b"\x05\0\0\0\xfe\0\0\0\0", framed=True).decoder.ended


def test_wrong_checksum_error_has_event_and_offset():
    damaged = bytearray(file_of(TRANSACTION))
    damaged[-1] ^= 1
    _, raised = failing(bytes(damaged), DecodeError)
    assert raised.context["event"] == "XID"
    assert raised.context["offset"] == len(damaged) - len(XID)


@pytest.mark.parametrize(
    ("rows", "column"),
    [(ROW[:3], "id"), (ROW + b"\x00", "id"), (b"\x00\x05\x00\x00\x00\x09hi", "v"), (b"\x01\xff", "v")],
)
def test_row_longer_than_its_event_error_has_the_column(rows, column):
    data = file_of(TRANSACTION, GTID, query(b"BEGIN"), event(19, TABLE_MAP), event(30, ROWS + rows), XID)
    outcome, raised = failing(data, DecodeError)
    assert (raised.context["table"], raised.context["column"], raised.context["event"]) == (
        "shop.t",
        column,
        "WRITE_ROWS",
    )
    assert len(outcome.rows()) == 1  # the transaction before it was returned


def test_rows_without_a_table_map_raise():
    _, raised = failing(file_of(GTID, query(b"BEGIN"), event(30, ROWS + ROW)), DecodeError)
    assert raised.message == "A row event has a table id without a table map."


def test_incident_raises_and_new_event_types_are_skipped(caplog):
    _, raised = failing(file_of(TRANSACTION, event(26, b"\x01\x00\x04lost")), DecodeError)
    assert "incident 1: lost" in raised.message
    failing(file_of(event(20, b"")), DecodeError)
    outcome = run(file_of(event(100, b"x"), event(100, b"x"), event(12, b"", flags=0x80), TRANSACTION))
    assert outcome.decoder.skipped_types == {100: 2, 12: 1}
    assert ["type 100 " in caplog.messages[0], "type 12 " in caplog.messages[1], len(caplog.messages)] == [
        True,
        True,
        2,
    ]
    assert len(outcome.rows()) == 1


def test_row_event_in_fragments_raises():
    _, raised = failing(file_of(TRANSACTION, event(172, bytes(20))), DecodeError)
    assert raised.context["event"] == "PARTIAL_ROW_DATA"
    assert "fragments" in raised.message


def encryption_begins(log_pos):
    return event(164, b"\x01" + struct.pack("<I", 1) + bytes(12), flags=0x80, log_pos=log_pos)


def test_encrypted_file_raises():
    _, raised = failing(file_of(encryption_begins(4)), DecodeError)
    assert "encrypted" in raised.message


def test_stream_of_an_encrypted_file_is_decoded():
    head = format_description(version=b"10.11.8-MariaDB")
    begins = encryption_begins(4 + len(head) + 40)
    outcome = run(packets(head, begins, *EVENTS), framed=True)
    assert len(outcome.rows()) == 1
    assert outcome.decoder.position.offset == 4 + len(head) + len(begins) + len(TRANSACTION)


def test_stream_from_inside_an_encrypted_file_keeps_the_offset():
    head = format_description(version=b"10.11.8-MariaDB", in_the_file=False)
    start = BinlogPosition("binlog.000001", 9000)
    outcome = run(packets(head, encryption_begins(0), *EVENTS), framed=True, start=start)
    assert [batch.first.offset for batch in outcome.batches] == [9000]
    assert outcome.decoder.position.offset == 9000 + len(TRANSACTION)


def charset(collation):
    return b"\x04" + struct.pack("<HHH", collation, 8, 8)


def mariadb_file(*events):
    return b"\xfebin" + format_description(version=b"11.8.2-MariaDB") + b"".join(events)


@pytest.mark.parametrize(
    ("status", "raw"),
    [
        (charset(2304), "é".encode()),
        (charset(1024 + 45), "é".encode()),
        (charset(8), b"\xe9"),
        (b"\x83\x02" + bytes(8) + charset(8), b"\xe9"),  # character_set_collations precede the client's charset
        (b"\x82\x04" + bytes(8) + charset(8), b"\xe9"),
        (b"\x0b\x02me\x01%" + charset(8), b"\xe9"),
        (charset(65000), "é".encode()),
    ],
)
def test_statement_is_decoded_in_the_client_charset(status, raw):
    drop = mariadb_gtid(1), query(b"DROP TABLE " + raw, status)
    outcome = decode(mariadb_file(*drop), Everything("shop"))
    assert [statement.sql for statement in outcome.statements] == ["DROP TABLE é"]


def test_alter_in_two_phases_is_reported_at_its_commit_only():
    start, commit, rollback = b"\x82\x02", b"\x82\x04" + bytes(8), b"\x82\x08" + bytes(8)
    phases = [
        (mariadb_gtid(1), query(b"ALTER TABLE t ADD x INT", status)) for status in (start, commit, start, rollback)
    ]
    data = mariadb_file(*(event for phase in phases for event in phase))
    outcome = decode(data, Everything("shop"))
    (told,) = outcome.statements
    assert told.before.offset == len(mariadb_file(*phases[0])) and told.after.offset == len(
        mariadb_file(*phases[0], *phases[1])
    )
    assert outcome.decoder.position.offset == len(data)


def test_load_data_file_events_are_skipped():
    load = event(18, struct.pack("<IIBHHIIIB", 1, 0, 4, 0, 0, 1, 9, 12, 0) + b"shop\0LOAD DATA INFILE 'f' INTO TABLE x")
    file = event(17, b"\x01\0\0\0first"), event(9, b"\x01\0\0\0second"), event(11, b"\x01\0\0\0")
    data = file_of(GTID, query(b"BEGIN"), *file, load, XID, TRANSACTION)
    outcome = run(data)
    assert [(told.sql, told.dml) for told in outcome.statements] == [("LOAD DATA INFILE 'f' INTO TABLE x", True)]
    assert len(outcome.rows()) == 1 and outcome.decoder.position.offset == len(data)
    assert not outcome.decoder.skipped_types


def mariadb_gtid(flags, *parts):
    return event(162, struct.pack("<QIB", 5, 0, flags) + b"".join(parts))


@pytest.mark.parametrize("start", [9000, (1 << 32) - 100, 5 << 30])
def test_position_after_xa_prepare_includes_unsent_events(start):
    """MariaDB does not send ANNOTATE_ROWS events. From 11.4 only a transaction's last event has log_pos."""
    xid = struct.pack("<IBB", 1, 1, 0) + b"1"
    rows = event(23, struct.pack("<IHH", 7, 0, 1) + b"\x02\xff" + ROW)
    sent = [mariadb_gtid(4 | 64, xid), event(19, TABLE_MAP), rows, query(b"XA END X'31',X'',1")]
    prepare = struct.pack("<BIII", 0, 1, 1, 0) + b"1"
    end = start + sum(map(len, sent)) + 50 + len(event(38, prepare))
    sent.append(event(38, prepare, log_pos=end & 0xFFFFFFFF))
    head = format_description(version=b"11.4.2-MariaDB", in_the_file=False)
    outcome = run(packets(head, *sent), framed=True, start=BinlogPosition("binlog.000001", start))
    assert outcome.decoder.position.offset == end


@pytest.mark.parametrize("start", [400, (1 << 32) - 100])
@pytest.mark.parametrize("kind", ["statement", "XA"])
def test_transaction_after_skipped_ones_begins_at_its_own_offset(start, kind):
    """A MariaDB server that is asked by GTID skips transactions silently: the next event's log_pos shows it."""
    xid = struct.pack("<IBB", 1, 1, 0) + b"1"
    body = struct.pack("<QIB", 5, 0, 1 if kind == "statement" else 4 | 64) + (b"" if kind == "statement" else xid)
    begins = start + 5000
    gtid = event(162, body, log_pos=(begins + len(event(162, body))) & 0xFFFFFFFF)
    head = format_description(version=b"11.4.2-MariaDB", in_the_file=False)
    position = BinlogPosition("binlog.000001", start, gtid_set="0-1-4")
    if kind == "statement":
        outcome = run(packets(head, gtid, query(b"DROP TABLE t")), framed=True, start=position)
        assert outcome.statements[0].before.offset == begins
        return
    rows = event(23, struct.pack("<IHH", 7, 0, 1) + b"\x02\xff" + ROW)
    prepare = event(38, struct.pack("<BIII", 0, 1, 1, 0) + b"1")
    outcome = run(packets(head, gtid, event(19, TABLE_MAP), rows, prepare), framed=True, start=position)
    assert [xa.since.offset for xa in outcome.decoder.open_xa] == [begins]


def test_begin_file_after_an_incomplete_event_raises():
    outcome = run(file_of(TRANSACTION)[:-1])
    with pytest.raises(DecodeError):
        outcome.decoder.begin_file("binlog.000002")


@pytest.mark.parametrize("piece", [1, 7, 100, 1000])
def test_begin_file_at_an_offset_never_reports_a_position_before_it(piece):
    """The position of an event that is dropped was reported, and saved, if a read ended behind it."""
    data, offset = file_of(TRANSACTION, TRANSACTION, TRANSACTION), len(file_of(TRANSACTION, TRANSACTION))
    start = BinlogPosition("binlog.000001", offset)
    outcome = run(b"", start=start)
    outcome.decoder.begin_file("binlog.000001", offset)
    for at in range(0, len(data), piece):
        part = data[at : at + piece]
        outcome.decoder.free_space()[: len(part)] = part
        outcome.decoder.feed(len(part))
        while (batch := outcome.decoder.next()) is not None:
            outcome.batches.append(batch)
    assert len(outcome.rows()) == 1 and outcome.decoder.position.offset == len(data)
    assert [batch.last.offset for batch in outcome.batches if batch.last.offset < offset] == []


def test_crc32_equals_zlib():
    data = np.random.default_rng(1).integers(0, 256, 5000, dtype=np.uint8)
    for size in [*range(200), 1000, 4097]:
        assert crc32(data, 3, 3 + size) == zlib.crc32(data[3 : 3 + size].tobytes())


@pytest.mark.parametrize(
    ("fsp", "raw", "text"),
    [
        (0, "7fef7d", "-01:02:03"),
        (1, "7fef7cf6", "-01:02:03.1"),
        (3, "7fef7cfb32", "-01:02:03.123"),
        (6, "7fffffffffff", "-00:00:00.000001"),
        (0, "b46efb", "838:59:59"),
    ],
)
def test_time_of_the_reference_is_decoded(fsp, raw, text):
    assert decoded_value(Column("x", Kind.TIME, "time", fsp=fsp), 19, bytes([fsp]), bytes.fromhex(raw)) == text


@pytest.mark.parametrize(
    ("precision", "scale", "raw", "text"),
    [(10, 4, "7ffb2de9d1", "-1234.5678"), (10, 4, "8000000001", "0.0001"), (5, 0, "81869f", "99999")],
)
def test_decimal_of_the_reference_is_decoded(precision, scale, raw, text):
    column = Column("x", Kind.DECIMAL, "decimal", precision=precision, scale=scale)
    meta = bytes([precision, scale])
    assert decimal_bytes(precision, scale) == len(raw) // 2
    assert str(decoded_value(column, 246, meta, bytes.fromhex(raw))) == text


def test_invalid_date_becomes_null_and_is_logged_once(caplog):
    schema = TableSchema("shop", "x", (Column("id", Kind.INT, "int"), Column("d", Kind.DATE, "date")), ("id",))
    table = struct.pack("<IHH", 9, 0, 0) + b"\x04shop\0\x01x\0\x02\x03\x0a\x00\x02"
    rows = struct.pack("<IHHH", 9, 0, 1, 2) + b"\x02\xff" + b"\x00\x05\x00\x00\x00" + bytes(3)
    transaction = (GTID, query(b"BEGIN"), event(19, table), event(30, rows), XID)
    outcome = decode(file_of(*transaction, *transaction), Everything("shop"), schemas=[schema])
    assert [row["d"] for row in outcome.rows()] == [None, None]
    assert caplog.messages == ["zero or invalid dates of shop.x.d become NULL (logged once)"]


def decoded_value(column, code, meta, raw):
    schema = TableSchema("shop", "x", (Column("id", Kind.TINYINT, "tinyint"), column), ("id",))
    table = struct.pack("<IHH", 9, 0, 0) + b"\x04shop\0\x01x\0\x02\x01" + bytes([code, len(meta)]) + meta + b"\x02"
    rows = struct.pack("<IHHH", 9, 0, 1, 2) + b"\x02\xff\x00\x01" + raw
    data = file_of(GTID, query(b"BEGIN"), event(19, table), event(30, rows), XID)
    (row,) = decode(data, Everything("shop"), schemas=[schema]).rows()
    return row["x"]


def test_time_and_wide_decimal_arrays_are_text():
    valid = np.array([True, False])
    assert times.time_text_array(np.array([-1, 0]), valid, 6).to_pylist() == ["-00:00:00.000001", None]
    zero = np.frombuffer(b"\x80" + bytes(60), np.uint8)
    array = numbers.decimal_text_array(zero, np.zeros(1, np.int64), np.array([20], np.int32), 40, 2)
    assert array.to_pylist() == ["0.00"]


def test_gtid_set_encoding_keeps_tags():
    text = "11111111-2222-3333-4444-555555555555:1-5:9:abc_tag:1-3"
    raw = ev.encode_gtid_set(ev.GtidSet.parse(text))
    assert raw[7] == 1
    assert str(ev.parse_gtid_set(raw)) == text
    plain = ev.encode_gtid_set(ev.GtidSet.parse("11111111-2222-3333-4444-555555555555:1-5"))
    assert plain[:8] == b"\x01" + bytes(7)


@pytest.mark.parametrize(
    ("variables", "microseconds", "zone"),
    [
        (b"", None, ""),
        (b"\x05\x06SYSTEM\x0c\x02shop\0crm\0\x0d\x40\xe2\x01", 123_456, "SYSTEM"),  # MySQL lists changed databases
        (b"\x05\x06+05:30\x0c\xfe\x0d\x01\x00\x00", 1, "+05:30"),  # too many of them
        (b"\x80\x3f\x42\x0f", 999_999, ""),  # MariaDB
        (b"\x05\x03UTC\xf0\x0d\x01\x00\x00", None, "UTC"),  # an unknown variable ends the known ones
    ],
)
def test_parse_query_reads_time_and_zone_of_the_session(variables, microseconds, zone):
    body = struct.pack("<IIBHH", 1, 0, 4, 0, len(variables)) + variables + b"shop\0ALTER TABLE t ADD a INT"
    found = ev.parse_query(body)
    assert (found.microseconds, found.time_zone, found.database) == (microseconds, zone, "shop")


@pytest.mark.parametrize(("variables", "explicit"), [(b"\x10\x00", False), (b"\x10\x01", True), (b"\x05\x03UTC", None)])
def test_parse_query_reads_explicit_defaults_for_timestamp(variables, explicit):
    body = struct.pack("<IIBHH", 1, 0, 4, 0, len(variables)) + variables + b"shop\0ALTER TABLE t ADD a TIMESTAMP"
    assert ev.parse_query(body).explicit_timestamps is explicit


def test_parse_query_with_a_name_without_end_is_malformed():
    variables = b"\x0c\x01shop"
    with pytest.raises(ev.Malformed):
        ev.parse_query(struct.pack("<IIBHH", 1, 0, 4, 0, len(variables)) + variables + b"shop\0SELECT 1")
