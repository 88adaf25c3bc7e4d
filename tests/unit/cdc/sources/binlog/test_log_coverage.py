"""Settings of a server that keep changes out of its binlog."""

from __future__ import annotations

import pytest

from cdc.errors import SourceActionRequired
from cdc.sources.binlog.log_coverage import check_log_coverage


class StubServer:
    endpoint = "127.0.0.1:3306"
    logs_replicated = True
    only: frozenset[str] = frozenset()

    def __init__(self, **settings):
        self.settings = settings

    def log_filter(self):
        return self.only, frozenset()

    def ask(self, _sql):
        return [{"d": "shop", "t": "orders"}, {"d": "crm", "t": "people"}]


def maps(_database, _table):
    return True


def test_coverage_of_a_binlog_in_the_engine_raises_first():
    with pytest.raises(SourceActionRequired, match="binlog_storage_engine is InnoDB") as raised:
        check_log_coverage(StubServer(binlog_storage_engine="InnoDB"), maps)
    assert "Remove binlog_storage_engine" in raised.value.hint


def test_coverage_of_a_binlog_in_files_passes():
    check_log_coverage(StubServer(binlog_storage_engine=""), maps)


def test_coverage_with_binlog_do_db_names_unlogged_databases():
    server = StubServer()
    server.only = frozenset({"shop"})
    with pytest.raises(SourceActionRequired, match="Database crm is not in the binlog: the server logs only shop"):
        check_log_coverage(server, maps)
