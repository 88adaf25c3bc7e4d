"""A source that is dead or silent while rows are read."""

from __future__ import annotations

import socket

import pytest

import cdc.mysql.query_stream
from cdc.errors import ErrorAction, SourceUnavailable, action_for
from cdc.keepalive import IDLE_S, INTERVAL_S, PROBES
from cdc.mysql.catalog import table_schemas
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
        with pytest.raises(SourceUnavailable, match="sent nothing") as caught:
            Select(_endpoint(mysql), f"SELECT id FROM `{database}`.`t`", [], schema.columns)
        assert action_for(caught.value) is ErrorAction.RETRY
        cursor.execute("UNLOCK TABLES")
    with Select(_endpoint(mysql), f"SELECT id FROM `{database}`.`t`", [], schema.columns) as select:
        assert sum(rows.batch.num_rows for rows in select.rows()) == 1
