"""Servers of our own start, survive a crash with their data, and stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.errors import SurroundingsError
from cdc.local_servers import LocalServer, obtain


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_killed_server_comes_back_on_its_port_with_what_was_committed(kind: str, tmp_path: Path) -> None:
    with LocalServer.start(obtain(kind), tmp_path) as server:
        server.execute("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1), (2)")
        port = server.port

        server.kill()
        server.launch()

        with server.connect("d") as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*), @@port FROM t")
            assert cursor.fetchone() == (2, port)


def test_a_server_that_does_not_come_up_says_what_its_log_says(tmp_path: Path) -> None:
    with pytest.raises(SurroundingsError, match="no-such-option"):
        LocalServer.start(obtain("mysql"), tmp_path, options=("--no-such-option",))


def test_a_variable_that_names_no_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_MYSQLD", "/nowhere/mysqld")
    with pytest.raises(SurroundingsError, match="CDC_MYSQLD"):
        obtain("mysql")
