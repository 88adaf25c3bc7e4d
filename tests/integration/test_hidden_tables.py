"""Tables that the account of a job cannot see: the server hides them, but sends their row events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc.demo import proof
from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess
from tests.support.limits import HANG_S

JOB = """
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: partial, tls: {{mode: off}}, start: snapshot}}
sink: {{type: delta, path: ./warehouse, create_tables: true}}
channels:
  - {{source: "{database}.*", target: "ods.*"}}
commit: {{interval: 500ms}}
status: {{port: {status}}}
"""
HOSTS = ("localhost", "127.0.0.1")


def _grant(server: LocalServer, statement: str) -> None:
    server.execute(*(statement.format(user=f"partial@'{host}'") for host in HOSTS))


def _fill(server: LocalServer, database: str) -> None:
    _grant(server, "DROP USER IF EXISTS {user}")
    _grant(server, "CREATE USER {user}")
    _grant(server, "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}")
    with server.connect(database) as connection, connection.cursor() as cursor:
        for table in ("customers", "orders"):
            cursor.execute(f"CREATE TABLE {table} (id INT NOT NULL PRIMARY KEY)")
            cursor.executemany(f"INSERT INTO {table} VALUES (%s)", [(i,) for i in range(1, 301)])
        connection.commit()
    _grant(server, f"GRANT SELECT ON `{database}`.customers TO {{user}}")


def _snapshot(status: dict[str, Any], table: str) -> dict[str, Any]:
    found = [one["snapshot"] for one in status["channels"] if one["target"] == f"ods.{table}"]
    return found[0] if found and found[0] else {"consistent": False}


def _is_hidden(status: dict[str, Any]) -> bool:
    return status["state"] == "PAUSED" and "GRANT SELECT" in str(status["hint"])


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_table_without_a_privilege_is_loaded_after_its_grant(kind, request, tmp_path: Path) -> None:
    server: LocalServer = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    _fill(server, database)
    port, file = free_port(), tmp_path / "job.yaml"
    file.write_text(JOB.format(port=server.port, database=database, status=port))

    def differences(table: str) -> tuple[str, ...]:
        return proof.compare(server, f"{database}.{table}", tmp_path / "warehouse" / "ods" / table, ["id"]).differences

    def loaded(table: str):
        return lambda status: status["state"] == "RUNNING" and _snapshot(status, table)["consistent"]

    with JobProcess(file, home=tmp_path / "state", port=port) as job:
        job.start()
        job.wait_for("customers", loaded("customers"), HANG_S)
        # a new table needs no snapshot
        server.execute(f"CREATE TABLE `{database}`.created (id INT PRIMARY KEY)")
        server.execute(f"INSERT INTO `{database}`.created VALUES (1), (2)")
        status = job.wait_for("the new table", loaded("created"), HANG_S)
        assert _snapshot(status, "created")["rows"] == 0 and differences("created") == ()
        # its older rows are not in the stream
        server.execute(f"INSERT INTO `{database}`.orders VALUES (301)")
        status = job.wait_for("the hidden table", _is_hidden, HANG_S)
        assert not _snapshot(status, "orders")["consistent"]
        _grant(server, f"GRANT SELECT ON `{database}`.orders TO {{user}}")
        job.command("resume", "shop")
        job.wait_for("its rows", loaded("orders"), HANG_S)
        assert differences("orders") == ()
        # a table that is hidden while its snapshot is due
        with server.connect(database) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_log_bin = 0")
            cursor.execute("DELETE FROM orders WHERE id % 2 = 0")
            connection.commit()
        job.command("pause", "shop")
        job.command("snapshot", "shop", f"{database}.orders")
        _grant(server, f"REVOKE SELECT ON `{database}`.orders FROM {{user}}")
        job.command("resume", "shop")
        status = job.wait_for("the hidden table", _is_hidden, HANG_S)
        assert not _snapshot(status, "orders")["consistent"]
        _grant(server, f"GRANT SELECT ON `{database}`.orders TO {{user}}")
        job.command("resume", "shop")
        job.wait_for("its rows again", loaded("orders"), HANG_S)
        assert differences("orders") == ()
        job.stop()
    _grant(server, "DROP USER {user}")
