"""The HTTP server of a driver and of ``cdc serve``: a renewed certificate, and its end while requests wait."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cdc.api import http_server
from cdc.api.http_server import HttpServer
from tests.emulators.kafka import create_certificate
from tests.support.limits import HANG_S


async def reply(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"x"})


@contextmanager
def served(application: Any, **options: Any) -> Iterator[tuple[HttpServer, str]]:
    server = HttpServer(application, name="test", **options)
    url = server.start(socket.create_server(("127.0.0.1", 0)), "127.0.0.1")
    try:
        yield server, url
    finally:
        server.close()


def test_http_server_uses_a_renewed_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pairs = {}
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        certificate = create_certificate(tmp_path / name, "host")
        pairs[name] = certificate, certificate.with_suffix(".key")
    used, key = tmp_path / "used.pem", tmp_path / "used.key"

    def renew(file: Path, source: Path) -> None:
        file.with_suffix(".next").write_bytes(source.read_bytes())
        file.with_suffix(".next").replace(file)

    def is_accepted(name: str) -> bool:
        context = ssl.create_default_context(cafile=str(pairs[name][0]))
        try:
            return urllib.request.urlopen(url, context=context, timeout=HANG_S).read() == b"x"  # type: ignore[no-any-return]
        except OSError:
            return False

    renew(used, pairs["old"][0])
    renew(key, pairs["old"][1])
    with served(reply, certificate=str(used), key=str(key)) as (_, url), caplog.at_level(logging.INFO):
        assert is_accepted("old") and not is_accepted("new")
        renew(used, pairs["new"][0])  # its key is not there yet
        assert is_accepted("old") and not is_accepted("new")
        assert [one.levelname for one in caplog.records if "certificate" in one.message] == ["WARNING"]
        renew(key, pairs["new"][1])
        assert is_accepted("new") and not is_accepted("old")
        os.remove(used)
        assert is_accepted("new") and is_accepted("new")
    assert sum(one.levelname == "WARNING" and "certificate" in one.message for one in caplog.records) == 2


def test_http_server_uses_a_certificate_that_becomes_readable_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A renewal sets the owner of the key after it has written it. This changes neither size nor modification time."""
    certificate, loaded, can_read = tmp_path / "host.pem", [], False
    certificate.write_text("renewed")

    class Context:
        def __init__(self, protocol: int = 0) -> None:
            pass

        def load_cert_chain(self, certificate: str, key: str | None, password: str) -> None:
            if not can_read:
                raise PermissionError("Permission denied")
            loaded.append(self)

    now = 1000.0
    monkeypatch.setattr(http_server.ssl, "SSLContext", Context)
    monkeypatch.setattr(http_server.time, "monotonic", lambda: now)
    used: Any = Context()
    found = http_server._Certificate(used, str(certificate), None, known=(1, 2, 3))
    found.refresh()
    can_read = True
    found.refresh()
    assert loaded == [], "each connection would try it"
    can_read = False
    now += http_server.RETRY_S
    found.refresh()
    can_read = True
    now += http_server.RETRY_S
    found.refresh()
    found.refresh()
    assert loaded[1:] == [used]
    assert [one.levelname for one in caplog.records] == ["WARNING"]


def test_http_server_end_logs_no_traceback_of_requests(caplog: pytest.LogCaptureFixture) -> None:
    waiting = threading.Event()

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        waiting.set()
        await asyncio.sleep(HANG_S)

    def ask() -> None:
        with suppress(OSError):
            urllib.request.urlopen(url, timeout=HANG_S).read()

    with served(wait) as (server, url):
        client = threading.Thread(target=ask)
        client.start()
        assert waiting.wait(HANG_S)
        began = time.monotonic()
        server.close()
        client.join()
    assert time.monotonic() - began < HANG_S
    assert "Cancel 1 running task(s)" in caplog.text and "Traceback" not in caplog.text
