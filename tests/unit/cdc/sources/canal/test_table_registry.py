"""Statements that Canal sends: which server's syntax they have."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from cdc.errors import DdlStop
from cdc.model.position import CanalPosition
from cdc.sources.canal.change_reader import CanalStatement
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
