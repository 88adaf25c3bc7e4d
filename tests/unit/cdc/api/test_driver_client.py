"""The client of a driver: how long it waits for an answer."""

from __future__ import annotations

import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from cdc.api import client as module
from cdc.api.client import Driver
from cdc.api.models import LoadTable
from cdc.errors import PrerequisiteError
from cdc.state.base import JobRecord, JobState

SLOW_S = 0.5


class SlowDriver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(SLOW_S)  # its check connects to the source
        self.send_response(202)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


def test_request_waits_longer_for_its_check_than_a_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_HOME", str(tmp_path))
    monkeypatch.setattr(module, "is_driver_alive", lambda record: True)
    monkeypatch.setattr(module, "ANSWER_S", SLOW_S / 5)
    with ThreadingHTTPServer(("127.0.0.1", 0), SlowDriver) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        driver = Driver(JobRecord("shop", "0badcafe", 1, JobState.RUNNING, "/jobs/shop.yaml", status_url=url))
        driver.request(LoadTable("shop.orders"))
        monkeypatch.setattr(module, "REQUEST_S", SLOW_S / 5)
        with pytest.raises(PrerequisiteError, match="does not reply"):
            driver.request(LoadTable("shop.orders"))
        server.shutdown()
