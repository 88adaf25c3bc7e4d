"""A source that is dead or silent while rows are read."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import replace

import pytest

import cdc.mysql.query_stream
from cdc.errors import ErrorAction, SourceUnavailable, action_for
from cdc.keepalive import IDLE_S, INTERVAL_S, PROBES
from cdc.mysql.catalog import table_schemas
from cdc.mysql.client import Limits
from cdc.mysql.connection import Endpoint, Tls, connect
from cdc.mysql.query_stream import Select
from cdc.mysql.server import Server


def _endpoint(server) -> Endpoint:
    return Endpoint("127.0.0.1", server.port, "root", tls=Tls("off"))


def test_mysql_connections_use_tcp_keepalive(mysql):
    connection = connect(_endpoint(mysql))
    line = connection._sock
    assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    assert [line.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [IDLE_S, INTERVAL_S, PROBES]
    connection.close()


def test_snapshot_query_silent_server_raises_and_is_retried(mysql, database, monkeypatch):
    mysql.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)", f"INSERT INTO {database}.t VALUES (1)")
    with Server(_endpoint(mysql)) as server:
        schema = table_schemas(server, [(database, "t")])[database, "t"]
    monkeypatch.setattr(cdc.mysql.query_stream, "_SILENCE_S", 0.5)
    monkeypatch.setattr(cdc.mysql.query_stream, "_WAIT_S", 0.1)
    with mysql.connect(database) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLES t WRITE")
        with (
            pytest.raises(SourceUnavailable, match="sent nothing") as caught,
            Select(_endpoint(mysql), f"SELECT id FROM `{database}`.`t`", [], schema.columns) as select,
        ):
            list(select.rows())
        assert action_for(caught.value) is ErrorAction.RETRY
        cursor.execute("UNLOCK TABLES")
    with Select(_endpoint(mysql), f"SELECT id FROM `{database}`.`t`", [], schema.columns) as select:
        assert sum(rows.batch.num_rows for rows in select.rows()) == 1


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_snapshot_query_behind_an_alter_names_the_lock(kind, request):
    """The statement is not even prepared while ALTER TABLE waits for its exclusive lock."""
    source = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    source.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)", f"INSERT INTO {database}.t VALUES (1)")
    with Server(_endpoint(source)) as server:
        schema = table_schemas(server, [(database, "t")])[database, "t"]
    altering = threading.Thread(target=source.execute, args=[f"ALTER TABLE {database}.t ADD COLUMN n INT"])
    with source.connect(database) as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM t")
        altering.start()
        deadline = time.monotonic() + 30
        while not cursor.execute("SELECT 1 FROM information_schema.PROCESSLIST WHERE STATE LIKE '%metadata lock%'"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        endpoint = replace(_endpoint(source), limits=Limits(answer_s=1.0))
        with pytest.raises(SourceUnavailable, match="does not answer in time") as caught:
            Select(endpoint, f"SELECT id FROM `{database}`.`t`", [], schema.columns)
        assert "lock on a table" in caught.value.hint and action_for(caught.value) is ErrorAction.RETRY
        cursor.execute("ROLLBACK")
    altering.join()
