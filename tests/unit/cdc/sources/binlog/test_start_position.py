"""Start positions: one inside a transaction is rejected by the first event that the server sends after it."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import pytest

from cdc.errors import ConfigError, PositionLost, SourceUnavailable
from cdc.model.position import BinlogPosition
from cdc.sources.binlog import event_scan, start_position
from cdc.sources.binlog.decoder import events


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
