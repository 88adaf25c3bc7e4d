"""Changes that Canal's statements make: what a receiver attaches to DdlStop, and where reading continues after it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cdc.errors import DdlStop, SchemaMismatch
from cdc.model.position import CanalPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import ChangeKind, FillKind
from cdc.mysql.connection import Endpoint
from cdc.sources.canal import change_reader, receiver, table_registry
from cdc.sources.canal.receiver import CanalReceiver
from tests.support.canal_script import FILE, Log, Scripted
from tests.support.receiving import Collector, Mapped

CURSOR = CanalPosition("", 0)
BEFORE = TableSchema(
    "shop",
    "orders",
    (Column("id", Kind.INT, "int", nullable=False), Column("a", Kind.INT, "int"), Column("b", Kind.INT, "int")),
    ("id",),
    charset="utf8mb4",
)


def columns(**values):
    return {"id": ("int", 1), **{name: ("int", value) for name, value in values.items()}}


class Catalog:
    """A MySQL server with the table shop.orders, as ``schema`` describes it now."""

    def __init__(self, monkeypatch, schema):
        self.schema = schema
        for module in (change_reader, table_registry):
            monkeypatch.setattr(module, "table_schemas", self._found)
        monkeypatch.setattr(table_registry, "mapped_tables", lambda server, maps: [("shop", "orders")])
        monkeypatch.setattr("cdc.sources.schema_history.table_schemas", self._found)
        server = SimpleNamespace(folds_case=False, mariadb=False)
        monkeypatch.setattr(receiver, "Server", lambda endpoint: nullcontext(server))

    def _found(self, server, names, leave_out=None):
        return {("shop", "orders"): self.schema} if self.schema is not None else {}


@pytest.fixture
def opened():
    receivers = []

    def open_(*batches, start=CURSOR, schemas=(), **options):
        client = Scripted(*[[batch] for batch in batches])
        receivers.append(CanalReceiver(lambda: client, Mapped("shop"), **options))
        receivers[-1].open(start, schemas, 0)
        return Collector(receivers[-1])

    yield open_
    for each in receivers:
        each.close()


def stop_of(taker):
    with pytest.raises(DdlStop) as caught:
        taker.collect(lambda _: False, 60)
    return caught.value


MYSQL = {"mysql": Endpoint("localhost", 1, "cdc", "")}


def test_change_of_a_statement_begins_and_ends_at_its_event(opened):
    log = Log()
    first, ddl, later = log.row(**columns(a=1)), log.ddl("ALTER TABLE orders ADD c INT DEFAULT '07'"), log.offset
    taker = opened(first + ddl)
    change = stop_of(taker).change
    assert change.first == taker.batches[-1].last
    assert (change.first.file, change.first.offset, change.first.entry) == (FILE, later - 100, 0)
    assert (change.last.offset, change.last.entry, change.last.newest_ms) == (later, 0, 1_700_000_000_000 + later - 100)
    (table,) = change.tables
    assert [column.name for column in table.after.columns] == ["id", "a", "c"]
    (added,) = table.columns
    assert (added.kind, added.fill.kind, added.fill.text) == (ChangeKind.ADD_COLUMN, FillKind.LITERAL, b"7")

    # the server sends everything again: what is at or before the change is dropped, the statement too
    row = log.row(**columns(a=2, c=3))
    again = opened(first + ddl, row, start=change.last, schemas=(table.after,)).collect_rows(1)
    assert [(one["a"], one["c"]) for one in again.rows] == [(2, 3)]
    assert again.batches[0].first == change.last


def test_change_is_read_at_the_paused_position_again(opened):
    log = Log()
    entries = log.row(**columns(a=1)) + log.ddl("ALTER TABLE orders ADD c INT")
    taker = opened(entries)
    stop_of(taker)
    paused, schemas = taker.batches[-1].last, taker.receiver.schemas()
    change = stop_of(opened(entries, start=paused, schemas=schemas)).change
    assert change.first == paused


@pytest.mark.parametrize(("mysql", "charset"), [(False, "utf8mb4"), (True, "latin1")])
def test_added_text_has_the_charset_of_the_catalog_or_of_rows(opened, monkeypatch, mysql, charset):
    log = Log()
    entries = log.row(**columns(a=1, b=1)) + log.ddl("ALTER TABLE orders ADD c VARCHAR(9) DEFAULT 'x'")
    added = Column("c", Kind.VARCHAR, "varchar(9)", length=9, charset="latin1")
    catalog = Catalog(monkeypatch, replace(BEFORE, charset="latin1"))
    taker = opened(entries[:3], entries[3:], **(MYSQL if mysql else {})).collect_rows(1)
    catalog.schema = replace(BEFORE, charset="latin1", columns=(*BEFORE.columns, added))
    (table,) = stop_of(taker).change.tables
    assert table.after.column("c").charset == charset == table.columns[0].new.charset


def test_changed_text_without_charset_and_without_server_is_refused(opened):
    log = Log()
    text = {**columns(), "c": ("varchar(9)", "x")}
    stop = stop_of(opened(log.row(**text) + log.ddl("ALTER TABLE orders MODIFY c VARCHAR(20)")))
    assert stop.change is None and "the character set of column c is not known" in stop.message


@pytest.mark.parametrize("default", ["CURRENT_TIMESTAMP", "'2024-02-29 10:20:30'"])
def test_timestamp_of_the_session_needs_a_snapshot(opened, default):
    log = Log()
    sql = f"ALTER TABLE orders ADD t TIMESTAMP NULL DEFAULT {default}"
    (table,) = stop_of(opened(log.row(**columns(a=1)) + log.ddl(sql))).change.tables
    assert table.columns[0].fill.kind in (FillKind.STATEMENT_TIME, FillKind.BY_ROW)


def test_change_of_a_table_without_rows_needs_the_catalog(opened, monkeypatch):
    ddl = Log().ddl("ALTER TABLE orders DROP COLUMN b")
    assert "before the statement are not known" in stop_of(opened(ddl)).message
    catalog = Catalog(monkeypatch, BEFORE)
    taker = opened(ddl, **MYSQL)
    catalog.schema = replace(BEFORE, columns=BEFORE.columns[:2])
    (table,) = stop_of(taker).change.tables
    assert (table.before.columns, table.after.columns) == (BEFORE.columns, BEFORE.columns[:2])


def test_later_statement_leaves_the_computed_columns(opened, monkeypatch):
    log = Log()
    entries = log.row(**columns(a=1, b=2)) + log.ddl("ALTER TABLE orders RENAME COLUMN b TO c")
    Catalog(monkeypatch, replace(BEFORE, columns=(*BEFORE.columns[:2], Column("d", Kind.INT, "int"))))
    (table,) = stop_of(opened(entries, schemas=(BEFORE,), **MYSQL)).change.tables
    assert [column.name for column in table.after.columns] == ["id", "a", "c"]


def test_statement_after_one_that_the_user_passed_is_refused_until_rows(opened):
    log = Log()
    first = log.row(**columns(a=1)) + log.ddl("ALTER TABLE orders ADD c INT")
    taker = opened(first)
    stop_of(taker)
    start, schemas = taker.batches[-1].last, taker.receiver.schemas()
    options = {"start": start, "schemas": schemas, "resume_options": table_registry.ResumeOptions(after_ddl=True)}
    second = log.ddl("ALTER TABLE orders ADD d INT")
    assert "before the statement are not known" in stop_of(opened(first + second, **options)).message


# --- names of another time ---


def test_exchange_of_names_is_followed_if_rows_had_the_old_ones(opened):
    log = Log()
    exchange = "ALTER TABLE orders RENAME COLUMN a TO b, RENAME COLUMN b TO a"
    (table,) = stop_of(opened(log.row(**columns(a=1, b=2)) + log.ddl(exchange), schemas=(BEFORE,))).change.tables
    assert [column.name for column in table.after.columns] == ["id", "b", "a"]


@pytest.mark.parametrize("mysql", [False, True])
def test_rows_with_the_names_after_an_exchange_raise(opened, monkeypatch, mysql):
    late = log_of_late_names()
    Catalog(monkeypatch, replace(BEFORE, columns=(BEFORE.columns[0], BEFORE.columns[2], BEFORE.columns[1])))
    taker = opened(late, schemas=(BEFORE,), **(MYSQL if mysql else {}))
    with pytest.raises(SchemaMismatch, match="in the order id, b, a"):
        taker.collect(lambda _: False, 60)
    assert taker.rows == []


def test_rename_after_rows_with_later_names_is_refused(opened, monkeypatch):
    log = Log()
    entries = log.row(**columns(a=1, c=2)) + log.ddl("ALTER TABLE orders RENAME COLUMN b TO c")
    Catalog(monkeypatch, replace(BEFORE, columns=(*BEFORE.columns[:2], Column("c", Kind.INT, "int"))))
    stop = stop_of(opened(entries, schemas=(BEFORE,), **MYSQL))
    assert stop.change is None


def log_of_late_names():
    """Return the entries of a Canal server without TSDB that reads a row after two columns have exchanged their names.

    The row was written before.
    """
    log = Log()
    return log.row(**columns(b=1, a=2)) + log.ddl("ALTER TABLE orders RENAME COLUMN a TO b, RENAME COLUMN b TO a")
