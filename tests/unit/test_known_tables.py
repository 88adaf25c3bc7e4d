"""What is known of the tables of a binlog without full row metadata, and how another server is gone on with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import cdc.receiver.start
import cdc.receiver.tables
from cdc.batch import Reads
from cdc.binlog.events import Statement
from cdc.binlog.tables import MappedColumn, TableMap
from cdc.errors import WrongServer
from cdc.position import BinlogPosition, GtidSet
from cdc.receiver.start import continuation
from cdc.receiver.tables import KnownTables, Resumption
from cdc.schema import Column, Kind, TableSchema

OURS, THEIRS = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa", "bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb"


def at(offset, server="u"):
    return BinlogPosition("b.000001", offset, server)


def table(*names, since=None):
    return TableSchema("shop", "t", tuple(Column(name, Kind.INT, "int") for name in names), ("id",), since=since)


class StubServer:
    """Without full metadata; ``today`` is what its information_schema says."""

    full_metadata = folds_case = False

    def __init__(self, today):
        self.today = today

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def position(self):
        return at(999)


@pytest.fixture
def today(monkeypatch):
    today = {}
    monkeypatch.setattr(cdc.receiver.tables, "table_schemas", lambda server, names, leave_out=None: {n: today[n] for n in names if n in today})  # fmt: skip
    monkeypatch.setattr(cdc.receiver.tables, "is_sequence", lambda server, name: False)
    return today


def known_tables(today):
    selection = SimpleNamespace(
        maps=lambda database, name: True,
        leave_out=lambda database, name, error: False,
        reads=lambda schema: Reads(frozenset(column.name for column in schema.columns), frozenset(["id"])),
    )
    agreed = Resumption(behind_ddl=True, past_ddl=True)
    return KnownTables(selection, lambda: StubServer(today), lambda server, since, end, look: since, agreed)


@pytest.mark.parametrize("create", ["CREATE TABLE t", "CREATE TABLE IF NOT EXISTS t"])
def test_a_table_that_is_dropped_and_made_anew_has_its_new_columns(today, create):
    known = known_tables(today)
    known.begin(at(100), (table("id", "net", "gross"),))
    known.place = lambda: at(300)
    known.on_statement(Statement("shop", "DROP TABLE t", at(100), at(200), 0, False, False))
    assert known.current("shop", "t") is None
    assert known.at(at(150)) and not known.at(at(200)), "a start behind the drop knows nothing of the table"
    today["shop", "t"] = table("id", "gross", "net")
    sql = f"{create} (id INT PRIMARY KEY, gross INT, net INT)"
    known.on_statement(Statement("shop", sql, at(210), at(300), 0, False, False))
    rows = TableMap("shop", "t", 0, tuple(MappedColumn(3, 0, True, unsigned=False) for _ in range(3)), None, False)
    assert [column.name for column in known.schema(rows).columns] == ["id", "gross", "net"]
    assert [[column.name for column in each.columns] for each in known.at(at(300))] == [["id", "gross", "net"]]


def test_what_was_saved_holds_at_the_start_whatever_server_it_was_learnt_from(today):
    known = known_tables(today)
    known.begin(at(100, "new"), (table("id", since=at(50, "old")),))
    assert [each.table for each in known.at(at(200, "new"))] == ["t"]


def test_a_server_that_was_accepted_is_not_refused_at_the_next_connect():
    server = SimpleNamespace(
        identity=THEIRS, mariadb=False, gtids=True, endpoint="db:3306", files=lambda: {"b.000001": 9999},
        executed=lambda: f"{OURS}:1-90,{THEIRS}:1-5", purged=lambda: "",
        has_done=lambda asked: GtidSet.parse(server.executed()).contains(asked),
    )  # fmt: skip
    seen = BinlogPosition("a.000007", 500, OURS, f"{OURS}:1-100:105")
    with pytest.raises(WrongServer):
        continuation(server, seen)
    found = continuation(server, seen, accept_server=True)
    assert found.by_gtid and found.position.gtid_set == f"{OURS}:1-90"
    assert continuation(server, found.position).position.gtid_set == f"{OURS}:1-90"


@pytest.mark.parametrize(("offset", "by_gtid"), [((1 << 32) - 1, False), (1 << 32, True)])
def test_a_place_that_the_dump_command_cannot_name_is_gone_on_from_by_gtids(offset, by_gtid, monkeypatch):
    monkeypatch.setattr(cdc.receiver.start, "created_at", lambda *_: 7)
    server = SimpleNamespace(
        identity=OURS, mariadb=False, gtids=True, endpoint="db:3306", files=lambda: {"b.000007": 5 << 30},
        purged=lambda: f"{OURS}:1-10", has_done=lambda asked: True,
    )  # fmt: skip
    found = continuation(server, BinlogPosition("b.000007", offset, OURS, f"{OURS}:1-100"))
    assert found.by_gtid is by_gtid and found.position.gtid_set == f"{OURS}:1-100"
    server.gtids = False
    assert not continuation(server, BinlogPosition("b.000007", offset, OURS)).by_gtid


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("1-100:105", "1-90", "1-90"),
        ("1-10:20-30", "5-25", "5-10:20-25"),
        ("1-5", "6-9", ""),
        ("1-5:tag:1-3", "2:tag:3-9", "2:tag:3"),
    ],
)
def test_intersection_of_gtid_sets(one, other, both):
    found = GtidSet.parse(f"{OURS}:{one}").intersection(GtidSet.parse(f"{OURS}:{other}"))
    assert str(found) == (f"{OURS}:{both}" if both else "")
    assert not found.intersection(GtidSet.parse(f"{THEIRS}:1-9"))
