"""The client of the REST API with servers, addresses, tokens and files that are not valid."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.client import Jobs
from cdc.errors import CdcError, ConfigError, PrerequisiteError
from cdc.state.events import REQUEST_S

BODIES = {
    "list": b"[1]", "html": b"<html>", "text": b'"x"', "null": b"null", "number": b"5", "empty": b"",
    "object": b'{"detail": "x"}', "nested": b"[" * 100_000, "busy": b'{"error": "x", "class": "SinkBusy"}',
    "latin": b"\xff\xfe",
}  # fmt: skip
CODES = (200, 301, 404, 502)


class OtherServer(BaseHTTPRequestHandler):
    """Replies to ``/KIND/CODE/...`` with that body and that status code."""

    def do_GET(self) -> None:
        # to close a connection with unread bytes resets it, and the reset can overtake the answer
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        _, kind, code, *_ = self.path.split("/")
        self.send_response(int(code))
        self.send_header("Content-Length", str(len(BODIES[kind])))
        self.send_header("Location", "https://elsewhere/")
        self.end_headers()
        self.wfile.write(BODIES[kind])

    do_POST = do_PUT = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def other_server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), OtherServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("kind", BODIES)
def test_answer_of_another_server_raises_prerequisite_error(other_server: str, kind: str, code: int) -> None:
    with Jobs(f"{other_server}/{kind}/{code}", "token") as jobs:
        for call in (
            jobs.list, jobs.hosts, lambda: jobs.status("shop"), lambda: jobs.pause("shop"), lambda: jobs.events("shop"),
            lambda: jobs.check(""), lambda: jobs.move("shop"), lambda: jobs.log("shop"), lambda: jobs.changes("shop"),
            lambda: jobs.history("shop"), lambda: jobs.whole_status("shop"), lambda: jobs.wait("shop"),
        ):  # fmt: skip
            with pytest.raises(PrerequisiteError) as refused:
                call()
            error = refused.value
            assert error.message == f"The address replied HTTP {code}, not the REST API of `cdc serve`."
            assert error.hint and other_server in error.location


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://user:hunter2@127.0.0.1:1", "contains a user name or a password"),
        ("https://hunter2@127.0.0.1:1", "contains a user name or a password"),
        ("http://user:hunter2@[::1", "is not valid"),
        ("http://[::1", "is not valid"),
        ("http://127.0.0.1:99999999", "is not valid"),
        ("http://hunter2:port", "is not valid"),
        ("ftp://127.0.0.1", "is not valid"),
        ("127.0.0.1:8480", "is not valid"),
        ("http://", "is not valid"),
    ],
)
def test_address_that_is_not_valid_is_refused_and_not_shown(
    url: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cdc.cli.remote import open_api

    monkeypatch.setenv("CDC_URL", url)
    for create in (lambda: Jobs(url), open_api):
        with pytest.raises(ConfigError, match=message) as refused:
            create()
        assert "hunter2" not in str(refused.value) and "CDC_URL" in refused.value.hint


@pytest.mark.parametrize("token", ["hunter2\n", "hunter2\nX: y", "hünter2", "hunter2\x00", "hunter2\udcff"])
def test_token_that_no_header_can_contain_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigError, match="not printable ASCII") as refused:
        Jobs("http://127.0.0.1:1", token)
    assert "nter2" not in str(refused.value) and "CDC_TOKEN" in refused.value.hint


def test_server_that_does_not_answer_is_reported_with_the_cause() -> None:
    for url, cause in (("http://127.0.0.1:1", "connection refused"), ("http://nosuch.invalid", "")):
        with Jobs(url) as jobs, pytest.raises(PrerequisiteError, match=f"does not answer: {cause}") as away:
            jobs.list()
        assert url in away.value.location and "HTTPConnection" not in away.value.message


def test_job_file_that_cannot_be_read_raises_config_error(tmp_path: Path) -> None:
    latin, dated = tmp_path / "latin.yaml", tmp_path / "dated.yaml"
    latin.write_bytes(b"name: caf\xe9\n")
    dated.write_text("name: 2026-13-01\n")
    with Jobs("http://127.0.0.1:1") as jobs:
        for file in (tmp_path / "missing.yaml", tmp_path, latin, dated, "a\0b"):
            with pytest.raises(CdcError) as refused:
                jobs.start(file)
            assert isinstance(refused.value, ConfigError) and refused.value.hint, file


def test_resume_names_the_pause_that_its_caller_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []

    def exchange(method: str, path: str, **options: Any) -> tuple[int, Any]:
        if method == "POST":
            sent.append(options["json"])
            return 202, {"event": 1}
        if path.endswith("/events/1"):
            return 200, {"result": {"ok": True}}
        job = {"job": "shop", "pause": "3f9a11c2", "status": {}}
        return 200, [job] if path == "/v1/jobs" else job

    with Jobs("http://127.0.0.1:8480") as jobs:
        monkeypatch.setattr(jobs, "_exchange", exchange)
        jobs.resume("shop")
        jobs.status("shop")
        jobs.resume("shop", past_ddl=True)
        jobs.pause("shop")
        jobs.resume("shop")
        jobs.list()
        jobs.resume("shop")
    seen = {"pause": "3f9a11c2"}
    assert sent == [{}, {"past_ddl": True, **seen}, {}, {}, seen]


@pytest.mark.parametrize(("result_after_s", "is_taken"), [(100.0, True), (1000.0, True), (1000.0, False)])
def test_request_waits_for_the_checks_of_its_driver(
    monkeypatch: pytest.MonkeyPatch, result_after_s: float, is_taken: bool
) -> None:
    """A driver asks the source about `snapshot --where`. To repeat the command would load the table twice."""
    now = 0.0

    def exchange(method: str, path: str, **options: Any) -> tuple[int, Any]:
        if method == "POST":
            return 202, {"event": 1}
        result = {"ok": True} if now >= result_after_s else None
        return 200, {"result": result, "taken_by": "host:17" if is_taken else None}

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("cdc.client.time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    with Jobs("http://127.0.0.1:8480") as jobs:
        monkeypatch.setattr(jobs, "_exchange", exchange)
        if result_after_s == 100.0:
            jobs.snapshot("shop", "shop.orders", "id > 5")
            return
        with pytest.raises(PrerequisiteError, match="The driver of shop has not answered") as refused:
            jobs.snapshot("shop", "shop.orders", "id > 5")
    assert ("do not repeat it" in refused.value.hint) is is_taken
    assert REQUEST_S <= now < (130 if is_taken else 70)
