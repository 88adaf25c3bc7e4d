"""Statements that Canal sends: which server's syntax they have, and the key after one that was passed."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cdc.errors import DdlStop
from cdc.model.position import CanalPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.sources.canal.change_reader import CanalStatement
from cdc.sources.canal.layout import LayoutColumn
from cdc.sources.canal.table_registry import CanalTables
from cdc.sources.schema_history import ResumeOptions
from channels.mapping import Mapping
from channels.routes import Routes

STATEMENT = CanalStatement(
    database="shop",
    sql="ALTER TABLE orders ADD INDEX i (price) /*M! , DROP COLUMN price */",
    before=CanalPosition("b.000001", 100),
    after=CanalPosition("b.000001", 200),
    dml=False,
    time_ms=1_700_000_000_000,
)


def tables_of(mariadb):
    server = SimpleNamespace(folds_case=False, mariadb=mariadb, ask=lambda *words: [])
    connect = None if mariadb is None else lambda: nullcontext(server)
    tables = CanalTables(Routes([Mapping("shop.orders", "ods.orders")]), connect, ResumeOptions())
    tables.begin(CanalPosition("b.000001", 4), ())
    return tables


def test_mariadb_comment_from_a_mysql_server_is_no_code():
    assert not tables_of(mariadb=False).on_statement(STATEMENT)


@pytest.mark.parametrize("mariadb", [True, None])
def test_mariadb_comment_from_another_server_pauses_the_job(mariadb):
    with pytest.raises(DdlStop):
        tables_of(mariadb).on_statement(STATEMENT)


@pytest.mark.parametrize("has_server", [True, False])
def test_new_key_is_in_the_checkpoints_before_the_next_rows(monkeypatch, has_server):
    columns = (Column("a", Kind.INT, "int", nullable=False), Column("b", Kind.INT, "int", nullable=False))
    old, new = TableSchema("shop", "orders", columns, ("a",)), TableSchema("shop", "orders", columns, ("b",))
    before = STATEMENT.before
    statement = replace(STATEMENT, sql="ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (b)")
    server = SimpleNamespace(folds_case=False, mariadb=False, ask=lambda *words: [])
    connect = (lambda: nullcontext(server)) if has_server else None
    routes, options = Routes([Mapping("shop.orders", "ods.orders")]), ResumeOptions(acknowledged={before: True})
    tables = CanalTables(routes, connect, options)
    tables.begin(before, [old])
    monkeypatch.setattr("cdc.sources.schema_history.table_schemas", lambda *_: {("shop", "orders"): new})
    assert tables.on_statement(statement)
    saved = tables.history.at(CanalPosition("b.000001", 300))
    assert [one.key for one in tables.history.at(before)] == [("a",)]
    layout = (LayoutColumn(0, "a", "int", is_key=False), LayoutColumn(1, "b", "int", is_key=True))
    restarted = CanalTables(routes, connect, options)
    restarted.begin(CanalPosition("b.000001", 300), saved)
    for each in (tables, restarted):
        assert each.schema("shop", "orders", layout).key == ("b",)
