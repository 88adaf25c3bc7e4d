"""The request for a binlog dump."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

from cdc.model.position import BinlogPosition
from cdc.sources.binlog import replication_stream
from cdc.sources.binlog.decoder.decoder import BinlogDecoder
from cdc.sources.binlog.event_scan import NoTables
from cdc.sources.binlog.replication_stream import BinlogStream, ReaderIdentity
from tests.unit.cdc.sources.binlog.decoder.test_decoder import event, format_description, packets

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


@pytest.fixture
def requests(monkeypatch):
    """The commands that a stream sends, with their bodies."""
    sent = []
    connection = SimpleNamespace(_execute_command=lambda command, body: sent.append((command, body)))
    monkeypatch.setattr(replication_stream, "connect", lambda endpoint: connection)
    monkeypatch.setattr(BinlogStream, "_declare", lambda self, heartbeat_s: None)
    return sent


@pytest.mark.parametrize("by_gtid", [True, False])
def test_dump_by_gtid_asks_for_heartbeats_with_long_offsets(by_gtid, requests):
    stream = BinlogStream(None, ReaderIdentity(7, UUID, "job"), mariadb=False)
    stream.dump(BinlogPosition("b.000001", 4, "a", f"{UUID}:1-5"), by_gtid=by_gtid)
    ((_, body),) = requests
    (flags,) = struct.unpack_from("<H", body, 0 if by_gtid else 4)
    assert flags == (2 if by_gtid else 0)


FILE = b"b.000001"
OF_MYSQL = b"\x01" + bytes([len(FILE)]) + FILE + b"\x02\x09\xfe" + struct.pack("<Q", 5 << 30) + b"\x00"
OF_MARIADB = struct.pack("<Q", 5 << 30) + FILE  # the offset in the head of the event is 0


@pytest.mark.parametrize(
    ("kind", "body", "gtids"), [(41, OF_MYSQL, f"{UUID}:1-5"), (27, OF_MARIADB, "0-1-5")], ids=["mysql", "mariadb"]
)
def test_offset_after_a_long_heartbeat_exceeds_4_gib(kind, body, gtids):
    start = BinlogPosition("", 0, "a", gtids)
    decoder = BinlogDecoder(
        table_filter=NoTables(), tables=NoTables(), on_statement=lambda _: None, start=start, sequence=0, framed=True
    )
    rotation = event(4, struct.pack("<Q", 4) + FILE, flags=0x20)
    data = packets(rotation, format_description(), event(kind, body))
    decoder.free_space()[: len(data)] = data
    decoder.feed(len(data))
    batch = decoder.next()
    assert batch.last == BinlogPosition("b.000001", 5 << 30, "a", gtids)
