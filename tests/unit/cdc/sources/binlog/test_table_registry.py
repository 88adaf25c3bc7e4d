"""Schemas of a binlog without full row metadata, and the position at which another server continues."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

import cdc.mysql.visibility
import cdc.sources.binlog.start_position
import cdc.sources.binlog.table_registry
import cdc.sources.schema_history
from cdc.errors import ServerMismatch, SourceUnavailable
from cdc.model.batch import RequiredColumns
from cdc.model.gtid import GtidSet
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.sources.binlog.column_changes import ColumnChangeSearch
from cdc.sources.binlog.ddl_handler import DdlHandler
from cdc.sources.binlog.decoder.events import Statement
from cdc.sources.binlog.decoder.table_map import MappedColumn, TableMap
from cdc.sources.binlog.omission_rules import OmissionRules
from cdc.sources.binlog.start_position import resume_point
from cdc.sources.binlog.table_registry import TableRegistry
from cdc.sources.schema_history import ResumeOptions, SchemaHistory

OURS, THEIRS = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa", "bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb"


def at(offset, server="u"):
    return BinlogPosition("b.000001", offset, server)


def table(*names, since=None):
    return TableSchema("shop", "t", tuple(Column(name, Kind.INT, "int") for name in names), ("id",), since=since)


class StubServer:
    """A server without full row metadata; ``today`` is the content of its information_schema."""

    full_metadata = folds_case = False
    endpoint = "127.0.0.1:3306"

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
    for module in (cdc.sources.binlog.table_registry, cdc.mysql.visibility, cdc.sources.schema_history):
        monkeypatch.setattr(module, "table_schemas", lambda server, names, leave_out=None: {n: today[n] for n in names if n in today})  # fmt: skip
    monkeypatch.setattr(cdc.mysql.visibility, "is_visible", lambda server, position: today.get("is_visible", True))
    monkeypatch.setattr(cdc.sources.binlog.table_registry, "is_sequence", lambda server, name: False)
    return today


def known_tables(today):
    table_filter = SimpleNamespace(
        maps=lambda database, name: True,
        may_map=lambda database, name: True,
        leave_out=lambda database, name, error: False,
        reads=lambda schema: RequiredColumns(frozenset(column.name for column in schema.columns), frozenset(["id"])),
    )
    accepted = ResumeOptions(acknowledged={at(100): True})
    history = SchemaHistory(table_filter, lambda: StubServer(today))
    search = ColumnChangeSearch(history, lambda server, since, end, look: since)
    rules = OmissionRules(is_accepted=False, has_server=True)
    tables = TableRegistry(table_filter, history, search, rules)
    return tables, DdlHandler(table_filter, tables, accepted)


@pytest.mark.parametrize("create", ["CREATE TABLE t", "CREATE TABLE IF NOT EXISTS t"])
def test_registry_after_drop_and_create_returns_the_new_columns(today, create):
    known, ddl = known_tables(today)
    known.begin((table("id", "net", "gross"),))
    known.rules.progress = SimpleNamespace(position=at(300), inside_xa=False, is_ahead=False)
    ddl.handle(Statement("shop", "DROP TABLE t", at(100), at(200), 0, False, False))
    assert known.history.current(("shop", "t")) is None
    assert known.history.at(at(150)) and not known.history.at(at(200)), "after the DROP the table is not known"
    assert known.history.removed == {"shop.t"} and not known.history.created
    today["shop", "t"] = table("id", "gross", "net")
    sql = f"{create} (id INT PRIMARY KEY, gross INT, net INT)"
    ddl.handle(Statement("shop", sql, at(210), at(300), 0, False, False))
    is_new = "IF NOT" not in create  # with IF NOT EXISTS, the table can have rows that this account could not see
    assert known.history.created == ({"shop.t"} if is_new else set()) and not known.history.removed
    known.history.begin_run()
    assert not known.history.created
    rows = TableMap("shop", "t", 0, tuple(MappedColumn(3, 0, True, unsigned=False) for _ in range(3)), None, False)
    assert [column.name for column in known.schema(rows).columns] == ["id", "gross", "net"]
    assert [[column.name for column in each.columns] for each in known.history.at(at(300))] == [["id", "gross", "net"]]


def test_registry_hidden_table_after_an_accepted_alter_is_not_removed(today):
    """The server shows no table without a privilege."""
    known, ddl = known_tables(today)
    known.begin((table("id", "net"),))
    known.rules.progress = SimpleNamespace(position=at(300), inside_xa=False, is_ahead=False)
    ddl.handle(Statement("shop", "ALTER TABLE t MODIFY net BIGINT", at(100), at(200), 0, False, False))
    assert not known.history.removed


def test_registry_begin_accepts_schemas_of_another_server(today):
    known, _ = known_tables(today)
    known.begin((table("id", since=at(50, "old")),))
    assert [each.table for each in known.history.at(at(200, "new"))] == ["t"]


def test_continuation_accepted_server_passes_at_the_next_connect():
    server = SimpleNamespace(
        identity=THEIRS, mariadb=False, gtids=True, endpoint="db:3306", files=lambda: {"b.000001": 9999},
        executed=lambda: f"{OURS}:1-90,{THEIRS}:1-5", purged=lambda: "",
        has_done=lambda asked: GtidSet.parse(server.executed()).contains(asked),
    )  # fmt: skip
    seen = BinlogPosition("a.000007", 500, OURS, f"{OURS}:1-100:105")
    with pytest.raises(ServerMismatch):
        resume_point(server, seen)
    found = resume_point(server, seen, accept_server=True)
    assert found.by_gtid and found.position.gtid_set == f"{OURS}:1-90"
    assert resume_point(server, found.position).position.gtid_set == f"{OURS}:1-90"


@pytest.mark.parametrize(("offset", "by_gtid"), [((1 << 32) - 1, False), (1 << 32, True)])
def test_continuation_from_4_gib_uses_gtids(offset, by_gtid, monkeypatch):
    monkeypatch.setattr(cdc.sources.binlog.start_position, "created_at", lambda *_: 7)
    server = SimpleNamespace(
        identity=OURS, mariadb=False, gtids=True, endpoint="db:3306", files=lambda: {"b.000007": 5 << 30},
        purged=lambda: f"{OURS}:1-10", has_done=lambda asked: True,
    )  # fmt: skip
    found = resume_point(server, BinlogPosition("b.000007", offset, OURS, f"{OURS}:1-100"))
    assert found.by_gtid is by_gtid and found.position.gtid_set == f"{OURS}:1-100"
    server.gtids = False
    assert not resume_point(server, BinlogPosition("b.000007", offset, OURS)).by_gtid


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("1-100:105", "1-90", "1-90"),
        ("1-10:20-30", "5-25", "5-10:20-25"),
        ("1-5", "6-9", ""),
        ("1-5:tag:1-3", "2:tag:3-9", "2:tag:3"),
    ],
)
def test_gtid_set_intersection_keeps_common_transactions(one, other, both):
    found = GtidSet.parse(f"{OURS}:{one}").intersection(GtidSet.parse(f"{OURS}:{other}"))
    assert str(found) == (f"{OURS}:{both}" if both else "")
    assert not found.intersection(GtidSet.parse(f"{THEIRS}:1-9"))


@pytest.mark.parametrize(
    ("received", "now", "expected"),
    [
        (Column("a", Kind.DATETIME, "datetime(6)", fsp=6), Column("a", Kind.DATETIME, "datetime(3)", fsp=3), "datetime(6)"),
        (Column("a", Kind.VARCHAR, "varchar(9)", length=9), Column("a", Kind.VARCHAR, "varchar(5)", length=5), "varchar(9)"),
        (Column("a", Kind.TINYINT, "tinyint"), Column("a", Kind.TINYINT, "tinyint(1)"), "tinyint(1)"),
    ],
)  # fmt: skip
def test_described_type_that_changed_since_is_that_of_the_rows(today, received, now, expected):
    registry, _ = known_tables(today)
    registry.history.catalog = {("d", "later"): TableSchema("d", "later", (replace(now, comment="text"),), key=("a",))}
    found = registry.described(TableSchema("d", "later", (received,), key=("a",)), at(1))
    assert (found.columns[0].type, found.columns[0].comment) == (expected, "text")


@pytest.mark.parametrize("full", [False, True], ids=["minimal", "full"])
def test_columns_after_a_statement_are_not_those_of_a_later_one(today, full, monkeypatch):
    """The setting of the server is today's: rows between the statements may have been written without metadata."""
    monkeypatch.setattr(StubServer, "full_metadata", full)
    known, ddl = known_tables(today)
    known.begin((table("id", "e"),))
    today["shop", "t"] = table("id", "e", "c")
    added = Statement("shop", "ALTER TABLE t ADD c INT", at(100), at(200), 0, False, False)
    later = Statement("shop", "ALTER TABLE t MODIFY e ENUM('z','a','b')", at(800), at(900), 0, False, False)
    effect = known.history.effect(added.sql, "shop")
    known.search._scan = lambda server, since, end, look: look(later)
    ddl._renew(added, effect)
    assert known.history.current(("shop", "t")) is None
    known.search._scan = lambda server, since, end, look: None
    ddl._renew(added, effect)
    assert [one.name for one in known.history.current(("shop", "t")).columns] == ["id", "e", "c"]


@pytest.fixture
def far(today, monkeypatch):
    """A registry that is connected at offset 100 of a file, while the server writes another one."""
    name = ("shop", "t")
    monkeypatch.setattr(cdc.sources.binlog.table_registry, "mapped_tables", lambda *_: [name])
    known, ddl = known_tables(today)
    monkeypatch.setattr(known.rules, "note_server", lambda server: None)
    today[name] = table("id", "a")
    server = StubServer(today)
    server.full_metadata, server.position = True, lambda: BinlogPosition("b.000002", 200, "u")
    known.begin(())
    known.prepare(server, at(100))
    known.rules.progress = SimpleNamespace(position=at(100), read_to=at(100), inside_xa=False, is_ahead=False)
    return known, ddl


def test_description_of_the_server_is_unsure_until_its_position_is_read(far):
    """A statement between the position and the end of the binlog may have changed the table meanwhile."""
    known, name = far[0], ("shop", "t")
    for read_to in (BinlogPosition("", 0, "u", f"{OURS}:1-5"), BinlogPosition("b.000002", 150, "u")):
        known.rules.progress.read_to = read_to
        known.note_read()
        known.note_read()  # in a pause of the stream
        assert known.is_unsure(name) and not known.history.at(at(100))
    # the head of a new file has no transaction, so the position before it remains
    known.rules.progress.read_to = BinlogPosition("b.000002", 200, "u")
    known.note_read()
    assert not known.is_unsure(name) and [one.name for one in known.history.at(at(100))] == ["shop.t"]


def test_description_before_a_statement_is_not_saved(far, today):
    known, ddl = far
    known.search.on_server = lambda *_: {("shop", "t"): None}  # one more statement follows
    ddl.handle(Statement("shop", "ALTER TABLE t ADD COLUMN a INT", at(100), at(200), 0, False, False))
    assert known.is_unsure(("shop", "t"))
    known.rules.progress.read_to = BinlogPosition("b.000002", 200, "u")
    known.note_read()
    assert not known.is_unsure(("shop", "t")) and not known.history.at(at(300))


def test_description_at_the_start_waits_for_the_statement_before_it(today, monkeypatch):
    monkeypatch.setattr(cdc.sources.binlog.table_registry, "mapped_tables", lambda *_: [("shop", "t")])
    today |= {("shop", "t"): table("id"), "is_visible": False}
    known, _ = known_tables(today)
    monkeypatch.setattr(known.rules, "note_server", lambda server: None)
    with pytest.raises(SourceUnavailable, match="before a statement that it has logged"):
        known.prepare(StubServer(today), at(999))
    assert not known.history.has(("shop", "t"))
    today["is_visible"] = True
    known.prepare(StubServer(today), at(999))
    assert known.history.has(("shop", "t"))


def test_changed_table_of_a_near_position_is_unsure(today, monkeypatch):
    name = ("shop", "t")
    monkeypatch.setattr(cdc.sources.binlog.table_registry, "mapped_tables", lambda *_: [name, ("shop", "u")])
    known, _ = known_tables(today)
    monkeypatch.setattr(known.rules, "note_server", lambda server: None)
    monkeypatch.setattr(known.search, "on_server", lambda *_: {name: None})
    today[name], today["shop", "u"] = table("id"), replace(table("id"), table="u")
    known.prepare(StubServer(today), at(100))
    assert known.is_unsure(name) and not known.is_unsure(("shop", "u"))
