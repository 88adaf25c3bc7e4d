"""Start positions: one inside a transaction is rejected by the first event that the server sends after it."""

from __future__ import annotations

import struct
import time
import uuid
from types import SimpleNamespace

import pytest
import zstandard

from cdc.errors import ConfigError, PositionLost, SourceUnavailable
from cdc.model.position import BinlogPosition
from cdc.sources.binlog import event_scan, start_position
from cdc.sources.binlog.decoder import events
from cdc.sources.binlog.receiver import BinlogReceiver
from cdc.sources.binlog.transport import files_start
from tests.support.decoding import Everything, decode


class Stream:
    """A dump that sends an event of each kind, without bodies."""

    def __init__(self, kinds):
        sent = [struct.pack("<IBIIIH", 0, kind, 1, 19, 0, 0) for kind in kinds]
        self.left = b"".join((len(event) + 1).to_bytes(3, "little") + b"\0\0" + event for event in sent)

    def dump(self, position, **options):
        pass

    def receive(self, room, wait_s):
        count, room[: len(self.left)], self.left = len(self.left), self.left, b""
        return count

    def close(self):
        pass


@pytest.mark.parametrize(
    "kind",
    [
        *(events.TABLE_MAP, events.BEGIN_LOAD_QUERY, events.EXECUTE_LOAD_QUERY),
        *(events.ROWS_QUERY, events.TRANSACTION_PAYLOAD, events.INTVAR),
    ],
)
@pytest.mark.parametrize("heads", [[], [events.GTID_LIST], [events.START_ENCRYPTION]])
def test_resolve_start_inside_a_transaction_raises(heads, kind, monkeypatch):
    kinds = [events.ROTATE, events.FORMAT_DESCRIPTION, *heads, kind]
    monkeypatch.setattr(event_scan, "BinlogStream", lambda *_, **__: Stream(kinds))
    server = SimpleNamespace(
        identity="a", mariadb=True, endpoint="db:3306", files=lambda: {"b.000001": 9999}, gtids_at=lambda *_: "0-1-5"
    )
    with pytest.raises(ConfigError, match=events.name_of(kind)):
        start_position.resolve_start(server, {"file": "b.000001", "offset": 9000}, None)


UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
FROM_BACKUP = f"{UUID}:1-1000"


@pytest.mark.parametrize(
    ("logged", "expected"), [(f"{UUID}:1001-1020", f"{UUID}:1-1020"), ("", FROM_BACKUP), (f"{UUID}:1-1010", None)]
)
def test_start_set_has_the_transactions_from_the_backup_of_the_server(logged, expected, monkeypatch):
    """PREVIOUS_GTIDS of a server that was made from a backup begins after the backup; gtid_purged has the others."""
    monkeypatch.setattr(start_position, "scan", lambda server, head, end, identity: BinlogPosition(*end_of, logged))
    monkeypatch.setattr(start_position, "created_at", lambda *_: 7)
    end_of = "b.000002", 900, "a"
    server = SimpleNamespace(
        identity="a", mariadb=False, gtids=True, purged=lambda: FROM_BACKUP, locked_position=lambda: None,
        position=lambda: BinlogPosition(*end_of),
    )  # fmt: skip
    found = start_position.resolve_start(server, "latest", None)
    assert found == BinlogPosition(*end_of, expected or logged)


def test_start_set_is_complete_although_the_server_syncs_its_log_late(monkeypatch):
    """With sync_binlog=1 the reported end can be some transactions after the end of what a dump sends."""
    sent = iter([(500, f"{UUID}:1-3"), (500, f"{UUID}:1-3"), (900, f"{UUID}:1-5")])
    monkeypatch.setattr(
        start_position,
        "scan",
        lambda *_: (lambda offset, gtids: BinlogPosition("b.000002", offset, "a", gtids))(*next(sent)),
    )
    monkeypatch.setattr(start_position, "created_at", lambda *_: 7)
    monkeypatch.setattr(start_position.time, "sleep", lambda _: None)
    server = SimpleNamespace(
        identity="a", mariadb=False, gtids=True, purged=lambda: "", locked_position=lambda: None, endpoint="db:3306",
        position=lambda: BinlogPosition("b.000002", 900, "a"),
    )  # fmt: skip
    assert start_position.resolve_start(server, "latest", None).gtid_set == f"{UUID}:1-5"
    monkeypatch.setattr(start_position, "scan", lambda *_: BinlogPosition("b.000002", 500, "a"))
    with pytest.raises(SourceUnavailable):
        start_position.resolve_start(server, "latest", None)


def test_position_with_a_domain_that_the_server_deleted_is_not_lost(monkeypatch):
    """FLUSH BINARY LOGS DELETE_DOMAIN_ID=(7): BINLOG_GTID_POS of the next files has no such domain."""
    monkeypatch.setattr(start_position, "created_at", lambda *_: 7)
    server = SimpleNamespace(
        identity="mariadb-1", mariadb=True, gtids=True, files=lambda: {"b.000002": 999}, endpoint="db:3306",
        gtids_at=lambda *_: "0-1-9", executed=lambda: "0-2-5,0-1-9",
    )  # fmt: skip
    position = BinlogPosition("b.000002", 900, "mariadb-1", "0-1-9,7-1-3", 7)
    assert start_position.resume_point(server, position).position == position
    server.executed = lambda: "0-1-9,7-1-3"
    with pytest.raises(PositionLost):
        start_position.resume_point(server, position)


class Binlog:
    """A binlog file of small transactions, and the dump of it: each transaction compressed, or not."""

    def __init__(self, *, compressed, transactions=100):
        self.size, self.ends, self._packets = 4, [], []
        self._add(events.ROTATE, struct.pack("<Q", 4) + b"b.000001", is_artificial=True)
        self._add(events.FORMAT_DESCRIPTION, _FORMAT)
        self._add(events.PREVIOUS_GTIDS, struct.pack("<Q", 0))
        for number in range(1, transactions + 1):
            self._add(events.GTID, b"\0" + uuid.UUID(UUID).bytes + struct.pack("<QBQQ", number, 2, 0, 0))
            inner = [(events.QUERY, struct.pack("<IIBHH", 1, 0, 0, 0, 0) + b"\0BEGIN")]
            inner += [(events.ROWS_QUERY, b"\x08SELECT 1")] * 50 + [(events.XID, bytes(8))]
            if compressed:
                self._add(events.TRANSACTION_PAYLOAD, _payload(b"".join(_event(*one) for one in inner)))
            else:
                for one in inner:
                    self._add(*one)
            self.ends.append(self.size)

    def _add(self, kind, body, *, is_artificial=False):
        event = _event(kind, body, 0 if is_artificial else self.size, is_artificial)
        self.size += 0 if is_artificial else len(event)
        self._packets.append((len(event) + 1).to_bytes(3, "little") + b"\0\0" + event)

    def stream(self):
        stream = Stream(())
        stream.left = b"".join(self._packets)

        def receive(room, wait_s):
            count = min(len(room), len(stream.left), 4096)
            room[:count], stream.left = stream.left[:count], stream.left[count:]
            return count

        stream.receive = receive
        return stream


_FORMAT = struct.pack("<H", 4) + b"8.0.36".ljust(50, b"\0") + struct.pack("<IB", 0, 19) + bytes(46)


def _event(kind, body, offset=0, is_artificial=False):
    size = 19 + len(body)
    return struct.pack("<IBIIIH", 0, kind, 1, size, offset and offset + size, 0x20 * is_artificial) + body


def _payload(inner):
    packed = zstandard.ZstdCompressor().compress(inner)
    size = b"\xfc" + struct.pack("<H", len(packed))
    return b"\2\1\0" + b"\1" + bytes([len(size)]) + size + b"\0" + packed


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("number", [1, 50, 99])
def test_start_set_ends_at_the_start_position(compressed, number, monkeypatch):
    """A larger set makes a failover by GTID leave out transactions that the job has not read."""
    binlog = Binlog(compressed=compressed)
    monkeypatch.setattr(event_scan, "BinlogStream", lambda *_, **__: binlog.stream())
    monkeypatch.setattr(start_position, "created_at", lambda *_: 7)
    server = SimpleNamespace(
        identity="a", mariadb=False, gtids=True, purged=lambda: "", locked_position=lambda: None, endpoint="db:3306",
        position=lambda: BinlogPosition("b.000001", binlog.ends[number - 1], "a"),
    )  # fmt: skip
    found = start_position.resolve_start(server, "latest", None)
    assert (found.offset, found.gtid_set) == (binlog.ends[number - 1], f"{UUID}:1-{number}".removesuffix("-1"))


@pytest.mark.parametrize(("reached", "is_exact"), [(("b.000001", 901), False), (("b.000002", 4), True)])
def test_start_set_of_a_later_position_is_refused(reached, is_exact, monkeypatch):
    """At the end of a file, the next event is the first one of the next file."""
    monkeypatch.setattr(start_position, "scan", lambda *_: BinlogPosition(*reached, "a", f"{UUID}:1-5"))
    monkeypatch.setattr(start_position, "created_at", lambda *_: 7)
    server = SimpleNamespace(
        identity="a", mariadb=False, gtids=True, purged=lambda: "", locked_position=lambda: None, endpoint="db:3306",
        position=lambda: BinlogPosition("b.000001", 900, "a"),
    )  # fmt: skip
    if is_exact:
        assert start_position.resolve_start(server, "latest", None).gtid_set == f"{UUID}:1-5"
        return
    with pytest.raises(SourceUnavailable, match="cannot be read"):
        start_position.resolve_start(server, "latest", None)


class NoBytes:
    """A ByteSource without events."""

    framed, ended = True, False

    def __init__(self):
        self.begun = []

    def begin(self, position, tables):
        self.begun.append(position.by_gtid)
        return start_position.ResumePoint(position, by_gtid=False)

    def read_into(self, decoder, wait_s):
        time.sleep(0.01)
        return 0

    def close(self):
        pass


def test_positions_after_a_read_by_gtid_are_marked_until_the_next_open(monkeypatch):
    """A replay by offset sees transactions that the server did not send then: it must not count rows."""
    known = BinlogPosition("a.000001", 900, "a", f"{UUID}:1-5")
    server = SimpleNamespace(
        identity="b", mariadb=False, gtids=True, endpoint="db:3306", has_done=lambda _: True, purged=lambda: "",
        files=lambda: {"b.000001": 9999},
    )  # fmt: skip
    by_gtid = start_position.resume_point(server, known).position
    assert (by_gtid.file, by_gtid.by_gtid) == ("", True)

    binlog = Binlog(compressed=True, transactions=3)
    batches = decode(binlog.stream().left, Everything("shop"), framed=True, start=by_gtid).batches
    assert batches and all(batch.last.by_gtid for batch in batches)

    feed = NoBytes()
    receiver = BinlogReceiver(feed, Everything("shop"))
    receiver.open(batches[-1].last, (), 0)
    assert not receiver._reader.safe.by_gtid, "the stream is read by offset"
    receiver.rollback(batches[-1].last)
    assert feed.begun == [False, False]
    receiver.close()


def test_files_begin_with_the_first_one(tmp_path):
    """This source has no `start`: an offset inside a transaction cannot be requested."""
    with pytest.raises(PositionLost) as raised:
        files_start(str(tmp_path / "bin.*"))
    assert "source.start" not in raised.value.hint
    for name in ("bin.000010", "bin.000009", "bin.index"):
        (tmp_path / name).touch()
    assert files_start(str(tmp_path / "bin.*")) == BinlogPosition("bin.000009", 4)
