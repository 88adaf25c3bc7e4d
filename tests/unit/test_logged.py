"""What a server's binlog lacks, told from its answers."""

from __future__ import annotations

import pytest

from cdc.errors import SourceBlocked
from cdc.receiver.logged import refuse_unlogged


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


def test_a_binlog_within_the_engine_is_refused_before_anything_else_is_asked():
    with pytest.raises(SourceBlocked, match="binlog_storage_engine is InnoDB") as raised:
        refuse_unlogged(StubServer(binlog_storage_engine="InnoDB"), maps)
    assert "Remove binlog_storage_engine" in raised.value.mend


def test_a_server_with_files_goes_on():
    refuse_unlogged(StubServer(binlog_storage_engine=""), maps)


def test_a_list_of_databases_that_are_logged_leaves_out_all_others():
    server = StubServer()
    server.only = frozenset({"shop"})
    with pytest.raises(SourceBlocked, match="Database crm is not in the binlog: the server logs shop alone"):
        refuse_unlogged(server, maps)
