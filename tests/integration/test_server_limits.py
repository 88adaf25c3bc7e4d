"""Limits that a server sets for its users do not truncate results."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.demo.local_servers import Kind, LocalServer, obtain
from cdc.mysql.server import Server
from tests.support.receiving import endpoint


@pytest.mark.parametrize(
    ("kind", "limit"), [("mysql", "max_execution_time = 1"), ("mariadb", "max_statement_time = 0.001")]
)
def test_query_results_are_complete_despite_server_limits(tmp_path: Path, kind: Kind, limit: str) -> None:
    """A truncated chunk would look like the end of the table, and later rows would look deleted."""
    with LocalServer.start(obtain(kind), tmp_path) as server:
        server_endpoint = endpoint(server)
        server.execute("SET GLOBAL sql_select_limit = 10", "SET GLOBAL max_join_size = 10", f"SET GLOBAL {limit}")
        with Server(server_endpoint) as asked:
            columns = "SELECT a.TABLE_NAME FROM information_schema.COLUMNS a JOIN information_schema.COLLATIONS b"
            assert len(asked.ask(f"{columns} LIMIT 20000")) == 20000
