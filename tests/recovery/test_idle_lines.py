"""Idle connections to a cluster that the network drops silently: a request on such a connection gets no reply."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from channels.sinks.doris.errors import DORIS
from channels.sinks.stream_load import frontend as cluster
from channels.sinks.stream_load import http as stream_load
from channels.sinks.stream_load.frontend import FrontendSql
from channels.sinks.stream_load.http import ClusterAddress, HttpClient, Unreachable


@pytest.fixture
def no_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_load, "IDLE_S", 0.0, raising=False)
    monkeypatch.setattr(cluster, "IDLE_S", 0.0, raising=False)


@pytest.fixture
def one_reply_server() -> Iterator[str]:
    """Yield a server that replies only to the first request of each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        open_connections = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                open_connections.append(connection)
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(120)
        for connection in open_connections:
            connection.close()


def test_http_client_does_not_reuse_a_long_idle_connection(no_idle_time: None, one_reply_server: str) -> None:
    client = HttpClient(ClusterAddress((one_reply_server,), "root", ""))
    for _ in range(3):
        assert client.request("GET", one_reply_server, "/", timeout_s=120).status == 200
    client.close()


def test_http_client_detects_a_dead_host(one_reply_server: str) -> None:
    """A host without power never answers, and a request waits for ten minutes: a load can take so long."""
    client = HttpClient(ClusterAddress((one_reply_server,), "root", ""))
    client.request("GET", one_reply_server, "/", timeout_s=120)
    connection = client._take(one_reply_server)
    assert connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    connection.close()


def test_http_client_reuses_connections_with_many_open_files(one_reply_server: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2000)), hard))
    client = HttpClient(ClusterAddress((one_reply_server,), "root", "", connections=1))
    files = []
    try:
        while not files or files[-1].fileno() < 1100:
            files.append(Path("/dev/null").open("rb"))  # noqa: SIM115 - closed below
        assert client.request("GET", one_reply_server, "/", timeout_s=120).status == 200
        with pytest.raises(Unreachable):  # the connection was reused: this server replies once
            client.request("GET", one_reply_server, "/", timeout_s=0.5)
        assert client.request("GET", one_reply_server, "/", timeout_s=120).status == 200
    finally:
        for file in files:
            file.close()
        client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_sql_client_does_not_reuse_a_long_idle_connection(no_idle_time: None, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    class Cursor:
        def __enter__(self) -> Cursor:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def execute(self, statement: str, values: object) -> None:
            pass

        def fetchall(self) -> list[dict[str, Any]]:
            return []

    def connect(*_: object) -> SimpleNamespace:
        made.append(SimpleNamespace(open=True, cursor=lambda _: Cursor(), close=lambda: None))
        return made[-1]

    monkeypatch.setattr(cluster, "log_in", connect)
    sql = FrontendSql(ClusterAddress(("fe:8030",), "root", ""), DORIS)
    assert [sql.ask("SELECT 1"), sql.ask("SELECT 1")] == [[], []]
    assert len(made) == 2
    monkeypatch.setattr(cluster, "IDLE_S", 60.0)
    sql.ask("SELECT 1"), sql.ask("SELECT 1")
    assert len(made) == 2, "a recent connection is reused"
