"""Lines to a cluster that are forgotten on their way while nothing is asked: who asks over one is never answered."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest

from channels.sinks import cluster, stream_load
from channels.sinks.cluster import FrontendSql
from channels.sinks.doris_client import DORIS
from channels.sinks.stream_load import Access, HttpClient, Unreachable


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_load, "IDLE_S", 0.0, raising=False)
    monkeypatch.setattr(cluster, "IDLE_S", 0.0, raising=False)


@pytest.fixture
def forgetful() -> Iterator[str]:
    """A server that answers the first request of each line alone."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        lines = []

        def serve() -> None:
            while True:
                try:
                    line, _ = listening.accept()
                except OSError:
                    return
                lines.append(line)
                line.recv(1 << 16)
                line.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(120)
        for line in lines:
            line.close()


def test_a_request_does_not_go_over_a_line_that_was_idle_for_long(impatient: None, forgetful: str) -> None:
    client = HttpClient(Access((forgetful,), "root", ""))
    for _ in range(3):
        assert client.request("GET", forgetful, "/", timeout_s=120).status == 200
    client.close()


def test_a_line_is_used_again_where_many_files_are_open(forgetful: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2000)), hard))
    client = HttpClient(Access((forgetful,), "root", "", connections=1))
    files = []
    try:
        while not files or files[-1].fileno() < 1100:
            files.append(Path("/dev/null").open("rb"))  # noqa: SIM115 - closed below
        assert client.request("GET", forgetful, "/", timeout_s=120).status == 200
        with pytest.raises(Unreachable):  # it was taken again: this server answers once
            client.request("GET", forgetful, "/", timeout_s=0.5)
        assert client.request("GET", forgetful, "/", timeout_s=120).status == 200
    finally:
        for file in files:
            file.close()
        client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_statement_does_not_go_over_a_line_that_was_idle_for_long(
    impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    def connect(**_: object) -> SimpleNamespace:
        made.append(SimpleNamespace(open=True, cursor=lambda _: Cursor(), close=lambda: None))
        return made[-1]

    monkeypatch.setattr(pymysql, "connect", connect)
    sql = FrontendSql(Access(("fe:8030",), "root", ""), 9030, DORIS)
    assert [sql.ask("SELECT 1"), sql.ask("SELECT 1")] == [[], []]
    assert len(made) == 2
    monkeypatch.setattr(cluster, "IDLE_S", 60.0)
    sql.ask("SELECT 1"), sql.ask("SELECT 1")
    assert len(made) == 2, "a line that is in use stays"
