"""To which of several servers on loopback the token of a Spark Connect server is sent."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

import spark.connect_server
from spark.connect_channel import ConnectChannelBuilder
from spark.connect_server import start_server

LIMIT_S = 60.0  # it only finds hangs
TOKEN = "t0ken-of-the-server"


class _Refusing(grpc.GenericRpcHandler):
    """Records the authorization of each request, and refuses the request."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    def service(self, _: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._refuse)

    def _refuse(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        self.seen.append(dict(context.invocation_metadata()).get("authorization"))
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "refused")
        raise AssertionError("abort raises")


@contextmanager
def server_at(address: str) -> Iterator[tuple[int, list[object]]]:
    """Run a server; yield its port and the authorizations that it received."""
    handler = _Refusing()
    server = grpc.server(futures.ThreadPoolExecutor(1), [handler])
    port = server.add_secure_port(address, grpc.local_server_credentials())
    server.start()
    try:
        yield port, handler.seen
    finally:
        server.stop(None).wait(LIMIT_S)


@pytest.fixture
def address_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], str]:
    """Return a function that returns the address of a shared server on a port, without Spark."""

    def started(*_: object, **options: Any) -> subprocess.Popen[bytes]:
        return real(["/bin/true"], **options)

    def found(port: int) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(spark.connect_server, "check_java", lambda: None)
            patch.setattr(spark.connect_server, "_free_port", lambda: port)
            patch.setattr(spark.connect_server.secrets, "token_urlsafe", lambda _: TOKEN)
            patch.setattr(subprocess, "Popen", started)
            server, process = start_server(tmp_path / "spark")
        process.wait(LIMIT_S)
        return server.address

    real = subprocess.Popen
    return found


def test_session_of_shared_server_ignores_server_on_ipv6_loopback(address_for: Callable[[int], str]) -> None:
    try:
        with socket.socket(socket.AF_INET6) as line:
            line.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    with server_at("127.0.0.1:0") as (port, own), server_at(f"[::1]:{port}") as (same, other):
        assert same == port
        code = "import sys; from spark.session_builder import build_session; build_session('a', remote=sys.argv[1])"
        done = subprocess.run(
            [sys.executable, "-c", code, address_for(port)],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert "does not create a session" in done.stderr
        assert set(own) == {f"Bearer {TOKEN}"} and other == []


def test_channel_to_loopback_uses_no_http_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with (
        server_at("127.0.0.1:0") as (port, seen),
        ConnectChannelBuilder(f"sc://127.0.0.1:{port}").toChannel() as channel,
    ):
        with pytest.raises(grpc.RpcError, match="refused"):
            channel.unary_unary("/server/name")(b"", timeout=LIMIT_S)
        assert len(seen) == 1


def test_channel_to_other_host_sends_token_with_tls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(grpc, "local_channel_credentials", lambda: used.append("local"))
    for url in ("sc://192.0.2.1:1/;token=t", "sc://127.0.0.1:1/;token=t;use_ssl=true"):
        ConnectChannelBuilder(url).toChannel().close()
    assert used == []
