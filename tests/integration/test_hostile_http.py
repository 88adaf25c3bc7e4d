"""Hostile clients of ``cdc serve``: guessed tokens, slow ones, many connections, foreign pages, malformed requests."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from cdc.api import unread_body
from cdc.api.http_server import CONNECTIONS_MOST, HANDSHAKES_MOST, HEADER_BYTES_MOST, HttpServer
from cdc.manager.rest import Tokens
from cdc.manager.rest.guard import BODY_BYTES_MOST, COOKIE
from cdc.manager.rest.login_limit import FAILURES_MOST
from cdc.state.sql import SqlStore
from cdc.state.sqlite import SqliteStore
from tests.emulators.kafka import create_certificate, until
from tests.support.manager import LIMIT_S, add_job, served

ADMIN, VIEWER = "admin-token-4711", "viewer-token-0815"
BEARER = {"Authorization": f"Bearer {ADMIN}"}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    monkeypatch.setenv("CDC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CDC_STORE", raising=False)
    store = SqliteStore(tmp_path / "home")
    add_job(store, "shop")
    yield store
    store.close()


@pytest.fixture
def url(store: SqlStore) -> Iterator[str]:
    with served(store, Tokens(ADMIN, VIEWER)) as address:
        yield address


def connected(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname or "", address.port or 0), timeout=LIMIT_S)


def answer_to(url: str, request: bytes) -> bytes:
    """Return everything that the server sends until it closes the connection or has answered."""
    with connected(url) as line:
        line.sendall(request)
        return line.recv(1 << 16)


def has_requests(store: SqlStore) -> bool:
    return any(event.kind == "request" for event in store.events.newest("shop"))


@pytest.mark.parametrize("way", ["header", "cookie", "login"])
def test_guessed_tokens_are_limited_for_one_address(url: str, way: str) -> None:
    def guess(number: int, address: str) -> requests.Response:
        headers = {"X-Forwarded-For": address}  # as a proxy on this machine sends it
        if way == "login":
            return requests.post(f"{url}/v1/login", json={"token": f"x{number}"}, headers=headers, timeout=LIMIT_S)
        headers |= {"Authorization": f"Bearer x{number}"} if way == "header" else {"Cookie": f"{COOKIE}=x{number}"}
        return requests.get(f"{url}/v1/jobs", headers=headers, timeout=LIMIT_S)

    codes = [guess(number, "203.0.113.7").status_code for number in range(FAILURES_MOST + 5)]
    assert codes[:FAILURES_MOST] == [401] * FAILURES_MOST and codes[-1] == 429
    late = guess(0, "203.0.113.7")
    assert 1 <= int(late.headers["Retry-After"]) <= 60 and "Wait" in late.json()["hint"]
    right = {**BEARER, "X-Forwarded-For": "203.0.113.7"}
    assert requests.get(f"{url}/v1/jobs", headers=right, timeout=LIMIT_S).status_code == 429, "a guess may be right"
    assert requests.get(f"{url}/v1/jobs", headers=BEARER, timeout=LIMIT_S).status_code == 200, "of another address"
    assert guess(0, "203.0.113.8").status_code == 401
    for path in ("/", "/live", "/static/main.js"):
        assert requests.get(url + path, headers={"X-Forwarded-For": "203.0.113.7"}, timeout=LIMIT_S).ok


def test_requests_without_a_token_are_not_counted(url: str) -> None:
    for _ in range(3 * FAILURES_MOST):
        assert requests.get(f"{url}/v1/jobs", timeout=LIMIT_S).status_code == 401
    assert requests.get(f"{url}/v1/jobs", headers=BEARER, timeout=LIMIT_S).ok


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"",
        b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        b"POST /v1/login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"POST /v1/login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
    ids=["silent", "half a header", "half a body", "half a chunked body"],
)
def test_slow_and_many_connections_do_not_block_others(url: str, request_bytes: bytes) -> None:
    with ExitStack() as held:
        for _ in range(3 * CONNECTIONS_MOST):
            line = held.enter_context(connected(url))
            line.sendall(request_bytes)
        for _ in range(3):
            assert requests.get(f"{url}/v1/jobs", headers=BEARER, timeout=LIMIT_S).status_code == 200


def descriptors() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def test_connections_without_a_tls_handshake_are_limited(tmp_path: Path) -> None:
    certificate = create_certificate(tmp_path, "host")
    server = HttpServer(hello, name="manager", certificate=str(certificate), key=str(certificate.with_suffix(".key")))
    url = server.start(socket.create_server(("127.0.0.1", 0)), "127.0.0.1")

    before, clients = descriptors(), 4 * HANDSHAKES_MOST
    with ExitStack() as held:
        for _ in range(clients):
            held.enter_context(connected(url))
        headers = {"Connection": "close"}  # otherwise the end of the server leaves this connection open
        assert requests.get(url, headers=headers, verify=str(certificate), timeout=LIMIT_S).text == "hello"
        assert descriptors() - before - clients < HANDSHAKES_MOST + 10, "file descriptors of the server"
    until(lambda: descriptors() < before + 10, LIMIT_S)
    server.close()


async def long_answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(200):
        await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})


def test_connections_that_read_no_answer_are_limited() -> None:
    server = HttpServer(long_answer, name="manager")
    url = server.start(socket.create_server(("127.0.0.1", 0)), "127.0.0.1")
    before, clients = descriptors(), CONNECTIONS_MOST + 20
    try:
        with ExitStack() as held:
            for _ in range(clients):
                line = held.enter_context(connected(url))
                line.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert line.recv(1), "the answer has begun"
            until(lambda: descriptors() - before <= clients + CONNECTIONS_MOST)
    finally:
        server.close()


def test_large_headers_are_refused(url: str) -> None:
    answer = answer_to(url, b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * (2 * HEADER_BYTES_MOST))
    assert answer.startswith(b"HTTP/1.1 400") or not answer


@pytest.mark.parametrize(
    "path", ["/v1/login", "/v1/jobs/crm", "/v1/check", "/v1/jobs/shop/pause", "/v1/jobs/shop/move"]
)
def test_oversized_body_is_refused_on_every_route(url: str, store: SqlStore, path: str) -> None:
    method = "PUT" if path.endswith("crm") else "POST"
    body = b"#" * (BODY_BYTES_MOST + 1)
    assert requests.request(method, url + path, data=body, headers=BEARER, timeout=LIMIT_S).status_code == 413
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\nContent-Length: {1 << 40}\r\n\r\n"
    assert answer_to(url, head.encode()).startswith(b"HTTP/1.1 413"), "before a byte of the body"
    assert not has_requests(store)


def test_answer_before_the_end_of_the_body_reaches_a_client_that_sends_first(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread_body, "REST_S", LIMIT_S)
    half = b"#" * BODY_BYTES_MOST
    head = f"POST /v1/check HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\nContent-Length: {2 * len(half)}\r\n\r\n"
    with connected(url) as line:
        line.sendall(head.encode() + half)
        assert line.recv(12, socket.MSG_PEEK | socket.MSG_WAITALL) == b"HTTP/1.1 413"
        for first in range(0, len(half), 1 << 16):  # a closed connection refuses the second piece
            line.sendall(half[first : first + (1 << 16)])
        answer = b"".join(iter(lambda: line.recv(1 << 16), b""))
    assert answer.endswith(b"}")


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "image/png", "x" * 500],
)
def test_wrong_content_type_changes_nothing_by_accident(url: str, store: SqlStore, kind: str) -> None:
    form = requests.post(
        f"{url}/v1/jobs/shop/resume", data=b"past_ddl=true", headers={**BEARER, "Content-Type": kind}, timeout=LIMIT_S
    )
    assert form.status_code == 400 and not has_requests(store)
    for body in (b"token=x", b"--x\r\n\r\n"):
        login = requests.post(f"{url}/v1/login", data=body, headers={"Content-Type": kind}, timeout=LIMIT_S)
        assert login.status_code == 400 and "Set-Cookie" not in login.headers


@pytest.mark.parametrize(
    "name", ["../../etc", "..", "%2e%2e", "shop%2f..%2fcrm", "shop%00", "shop%0d%0aX-A: b", "\\..\\x"]
)
@pytest.mark.parametrize("what", ["", "/logs", "/events", "/move", "/pause"])
def test_path_in_a_name_reaches_no_file(url: str, store: SqlStore, name: str, what: str) -> None:
    method = b"POST" if what in ("/move", "/pause") else b"GET"
    head = f" /v1/jobs/{name}{what} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\nContent-Length: 0\r\n"
    answer = answer_to(url, method + head.encode() + b"Connection: close\r\n\r\n")
    assert answer.split(b" ")[1] in (b"400", b"404", b"405") and b"X-A" not in answer.partition(b"\r\n\r\n")[0]
    assert b"root:" not in answer and not has_requests(store)


@pytest.mark.parametrize(
    "header",
    ["Host: x\r\nHost: y", "X\x00Y: z", "X: a\rb", ": empty", "Transfer-Encoding: gzip, chunked"],
)
def test_malformed_headers_are_refused(url: str, header: str) -> None:
    head = f"GET /v1/jobs HTTP/1.1\r\n{header}\r\nAuthorization: Bearer {ADMIN}\r\nConnection: close\r\n\r\n"
    answer = answer_to(url, head.encode())
    assert not answer or answer.split(b" ")[1] in (b"400", b"501"), answer


def test_two_lengths_of_one_body_are_refused(url: str, store: SqlStore) -> None:
    """A proxy and the server must not see two different requests (request smuggling)."""
    for head in ("Content-Length: 2\r\nContent-Length: 44", "Content-Length: 2\r\nTransfer-Encoding: chunked"):
        request = f"POST /v1/jobs/shop/pause HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ADMIN}\r\n{head}\r\n\r\n{{}}"
        answer = answer_to(url, request.encode() + b"0\r\n\r\nGET /live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not answer or answer.startswith(b"HTTP/1.1 400"), (head, answer)
        assert not has_requests(store)


def test_foreign_page_cannot_use_the_cookie_of_a_browser(url: str, store: SqlStore) -> None:
    session = requests.Session()
    session.post(f"{url}/v1/login", json={"token": ADMIN}, timeout=LIMIT_S)
    own = {"Origin": url}
    for path in ("/v1/jobs/shop/pause", "/v1/jobs/shop/move", "/v1/hosts/a/drain", "/v1/logout", "/v1/check"):
        for origin in ("https://evil.example", "null", f"{url}.evil.example", url.replace("http", "https") + "0", ""):
            # what a form of another page can send without a question of the browser
            forged = {"Origin": origin, "Content-Type": "text/plain"} if origin else {}
            assert session.post(url + path, data="{}", headers=forged, timeout=LIMIT_S).status_code == 403, (
                path,
                origin,
            )
    for method in ("PUT", "DELETE"):
        assert session.request(method, f"{url}/v1/jobs/shop", timeout=LIMIT_S).status_code == 403
    for answer in (
        session.options(f"{url}/v1/jobs", headers={"Origin": "https://evil.example"}, timeout=LIMIT_S),
        session.get(f"{url}/v1/jobs", headers={"Origin": "https://evil.example"}, timeout=LIMIT_S),
    ):
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]
    assert not has_requests(store)
    assert session.post(f"{url}/v1/jobs/shop/pause", headers=own, timeout=LIMIT_S).status_code == 202


def test_address_that_a_client_invents_is_not_saved(url: str, store: SqlStore) -> None:
    for forged in ("x" * 5000, "<script>alert(1)</script>", "1.2.3.4\u0000", "203.0.113.9"):
        headers = {**BEARER, "X-Forwarded-For": forged.replace("\0", "")}
        assert requests.post(f"{url}/v1/jobs/shop/pause", headers=headers, timeout=LIMIT_S).status_code == 202
    actors = {event.actor for event in store.events.newest("shop") if event.kind == "request"}
    assert actors == {"admin@unknown", "admin@203.0.113.9", "admin@1.2.3.4"}


def test_deeply_nested_json_is_refused(url: str, store: SqlStore) -> None:
    body = b'{"host":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    for path in ("/v1/jobs/shop/move", "/v1/login", "/v1/jobs/shop/resume"):
        answer = requests.post(url + path, data=body, headers=BEARER, timeout=LIMIT_S)
        assert answer.status_code == 400 and json.loads(answer.text)["hint"], path
