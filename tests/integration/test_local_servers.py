"""Servers that the tests start keep their data after a crash, and stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.demo.local_servers import LocalServer, obtain
from cdc.errors import PrerequisiteError


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_local_server_restarts_after_kill_on_its_port(kind: str, tmp_path: Path) -> None:
    with LocalServer.start(obtain(kind), tmp_path) as server:
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1), (2)")
        port = server.port

        server.kill()
        server.launch()

        with server.connect("d") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*), @@port FROM t")
            assert cursor.fetchone() == (2, port)


def test_local_server_failed_start_raises_with_its_log(tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError, match="no-such-option"):
        LocalServer.start(obtain("mysql"), tmp_path, options=("--no-such-option",))


def test_local_server_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_MYSQLD", "/nowhere/mysqld")
    with pytest.raises(PrerequisiteError, match="CDC_MYSQLD"):
        obtain("mysql")
