"""Limits that a server gives its users do not cut short what a job reads of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.binlog.server import Server
from cdc.local_servers import Kind, LocalServer, obtain
from tests.receiving import endpoint


@pytest.mark.parametrize(
    ("kind", "limit"), [("mysql", "max_execution_time = 1"), ("mariadb", "max_statement_time = 0.001")]
)
def test_results_are_whole_whatever_limits_a_server_sets(tmp_path: Path, kind: Kind, limit: str) -> None:
    """A chunk that was cut short would be taken for a table's end, and rows behind it for rows that are gone."""
    with LocalServer.start(obtain(kind), tmp_path) as server:
        place = endpoint(server)
        server.execute("SET GLOBAL sql_select_limit = 10", "SET GLOBAL max_join_size = 10", f"SET GLOBAL {limit}")
        with Server(place) as asked:
            columns = "SELECT a.TABLE_NAME FROM information_schema.COLUMNS a JOIN information_schema.COLLATIONS b"
            assert len(asked.ask(f"{columns} LIMIT 20000")) == 20000
