"""The webhook against real HTTP servers: slow, failing, redirecting and lost ones."""

from __future__ import annotations

import json
import logging
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import cdc.logging_setup
from cdc.job.webhook import TRIES, Webhook, body_of
from cdc.logging_setup import HIDDEN, LineFormatter
from cdc.model.alert import Alert, AlertKind

LIMIT_S = 120
SECRET = "T0/hook-secret"
ALERT = Alert(
    AlertKind.PAUSED, "shop", "2026-01-01T00:00:00Z", "The sink is away.", "Start it.", "one", {"resume": "manual"}
)


class Receiver:
    """A receiver that gives its answers in order and repeats the last one. It keeps what it was sent."""

    def __init__(self, *answers: int, location: str = "") -> None:
        self.got: queue.Queue[tuple[str, dict[str, str], bytes]] = queue.Queue()
        self.answers = list(answers) or [200]
        self.location = location
        self.hold = threading.Event()  # set: answer at once
        self.hold.set()

    @contextmanager
    def served(self) -> Iterator[str]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.put((self.path, dict(self.headers), body))
                receiver.hold.wait(LIMIT_S)
                code = receiver.answers.pop(0) if len(receiver.answers) > 1 else receiver.answers[0]
                self.send_response(code)
                if receiver.location:
                    self.send_header("Location", receiver.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

            def handle(self) -> None:
                with suppress(ConnectionError):  # the sender did not wait
                    super().handle()

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{SECRET}"
        finally:
            self.hold.set()
            server.shutdown()
            server.server_close()
            thread.join()


@pytest.fixture
def lost(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, object]]]:
    caplog.set_level(logging.DEBUG, logger="cdc.job.webhook")

    def records() -> list[dict[str, object]]:
        return [vars(one) for one in caplog.records if "not delivered" in one.getMessage()]

    return records


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    found = Webhook(delays_s=(0.0,))
    yield found
    found.close()


def finish(webhook: Webhook) -> None:
    webhook.close(wait_s=LIMIT_S)


def test_webhook_posts_the_alert_as_json(webhook: Webhook) -> None:
    receiver = Receiver()
    with receiver.served() as url:
        webhook.send(url, ALERT)
        finish(webhook)
    path, headers, body = receiver.got.get_nowait()
    assert path == f"/{SECRET}" and headers["Content-Type"] == "application/json" and "Authorization" not in headers
    assert json.loads(body) == {
        "event": "paused", "job": "shop", "at": "2026-01-01T00:00:00Z", "message": "The sink is away.",
        "hint": "Start it.", "host": "one", "detail": {"resume": "manual"},
    }  # fmt: skip
    assert receiver.got.empty()


def test_webhook_sends_no_credentials_of_netrc(
    webhook: Webhook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login someone password hidden\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    receiver = Receiver()
    with receiver.served() as url:
        webhook.send(url, ALERT)
        finish(webhook)
    assert "Authorization" not in receiver.got.get_nowait()[1]


@pytest.mark.parametrize(
    ("answers", "posts", "is_lost"),
    [
        ((500, 503, 200), 3, False),
        ((429, 204), 2, False),
        ((500,), TRIES, True),
        ((404,), 1, True),
    ],
)
def test_webhook_receiver_that_fails_is_tried_three_times(
    webhook: Webhook, lost: Callable[[], list[dict[str, object]]], answers: tuple[int, ...], posts: int, is_lost: bool
) -> None:
    receiver = Receiver(*answers)
    with receiver.served() as url:
        webhook.send(url, ALERT)
        finish(webhook)
    assert receiver.got.qsize() == posts
    assert [one["tries"] for one in lost()] == ([posts] if is_lost else [])


def test_webhook_redirect_is_not_followed(webhook: Webhook, lost: Callable[[], list[dict[str, object]]]) -> None:
    elsewhere = Receiver()
    with elsewhere.served() as other:
        receiver = Receiver(307, location=other)
        with receiver.served() as url:
            webhook.send(url, ALERT)
            finish(webhook)
    assert receiver.got.qsize() == 1 and elsewhere.got.empty()
    assert "redirects are not followed" in str(lost()[0]["cause"])


def test_webhook_receiver_that_never_answers_is_given_up(lost: Callable[[], list[dict[str, object]]]) -> None:
    webhook = Webhook(read_s=0.05, delays_s=(0.0,))
    receiver = Receiver()
    receiver.hold.clear()
    with receiver.served() as url:
        webhook.send(url, ALERT)
        finish(webhook)
        assert (lost()[0]["tries"], lost()[0]["cause"]) == (TRIES, "ReadTimeout")


def test_webhook_nothing_listens_is_logged_without_the_url(
    webhook: Webhook, lost: Callable[[], list[dict[str, object]]], caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    webhook.send(f"http://127.0.0.1:{port}/{SECRET}", ALERT)
    finish(webhook)
    assert (lost()[0]["tries"], lost()[0]["receiver"], lost()[0]["cause"]) == (TRIES, "127.0.0.1", "ConnectionError")
    lines = [LineFormatter("shop").format(one) for one in caplog.records]
    assert not any("hook-secret" in line for line in lines)


def test_webhook_full_queue_drops_alerts_and_returns(lost: Callable[[], list[dict[str, object]]]) -> None:
    webhook = Webhook(read_s=LIMIT_S, queue_most=2)
    receiver = Receiver()
    receiver.hold.clear()
    with receiver.served() as url:
        webhook.send(url, ALERT)
        receiver.got.get(timeout=LIMIT_S)  # the thread waits for the answer, so the queue is empty
        for _ in range(5):
            webhook.send(url, ALERT)
        assert len(lost()) == 3
        receiver.hold.set()
        finish(webhook)
    assert receiver.got.qsize() == 2


def test_webhook_close_does_not_wait_for_a_slow_receiver() -> None:
    webhook = Webhook(read_s=LIMIT_S)
    receiver = Receiver()
    receiver.hold.clear()
    with receiver.served() as url:
        webhook.send(url, ALERT)
        receiver.got.get(timeout=LIMIT_S)
        webhook.close(wait_s=0.0)  # would hang for LIMIT_S, and find `hold` set by nobody
        assert not receiver.hold.is_set()


def test_webhook_body_has_no_secret_of_the_job_file(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("shop", ["pa55word"]))
    monkeypatch.setattr(cdc.logging_setup.logging.getLogger(), "handlers", [handler])
    body = json.loads(body_of(Alert(AlertKind.LAG, "shop", "", "denied for pa55word", "set pa55word")))
    assert (body["message"], body["hint"]) == (f"denied for {HIDDEN}", f"set {HIDDEN}")
