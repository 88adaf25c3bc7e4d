"""`/live` and `/ready` of `cdc serve` while all threads of the server wait for the state store."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import requests

from cdc.config.serve_models import Listen
from cdc.manager.rest import Tokens, build_app
from cdc.manager.rest.history import Sampler
from cdc.manager.server import ManagerServer
from cdc.state.sqlite import SqliteStore
from tests.support.limits import HANG_S

THREADS = 40  # of the pool of the server
PROBE_S = 30.0  # shorter than the wait of the other requests


def test_live_answers_while_requests_wait_for_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A liveness probe that fails ends the process, and with it all drivers of a container."""
    is_over, waiting = threading.Event(), threading.Semaphore(0)

    def wait() -> Any:
        waiting.release()
        is_over.wait(HANG_S)
        return ()

    with closing(SqliteStore(tmp_path)) as store:
        sampler = Sampler(store)
        monkeypatch.setattr(sampler, "sample", lambda: None)
        monkeypatch.setattr(store.deployments, "all", wait)
        server = ManagerServer(build_app(store, Tokens(), sampler, ready=lambda: True), Listen(port=0))
        url = server.start()
        threads = [threading.Thread(target=requests.get, args=(f"{url}/v1/jobs",)) for _ in range(THREADS + 5)]
        try:
            for thread in threads:
                thread.start()
            assert all(waiting.acquire(timeout=HANG_S) for _ in range(THREADS))
            time.sleep(0.1)
            for path in ("/live", "/ready"):
                assert requests.get(url + path, timeout=PROBE_S).status_code == 200
            assert not is_over.is_set()
        finally:
            is_over.set()
            for thread in threads:
                thread.join(HANG_S)
            server.close()
