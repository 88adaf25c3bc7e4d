"""How long the connection to a Canal server waits for the bytes of a frame."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cdc.errors import SourceUnavailable
from cdc.sources.canal import connection as module
from cdc.sources.canal.connection import CanalConnection


@contextmanager
def sending(*parts: bytes, pause_s: float) -> Iterator[CanalConnection]:
    """Yield a connection to a server that sends ``parts`` with a pause after each."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def send() -> None:
            peer, _ = listener.accept()
            with peer:
                for part in parts:
                    peer.sendall(part)
                    time.sleep(pause_s)

        thread = threading.Thread(target=send)
        thread.start()
        found = CanalConnection(f"127.0.0.1:{listener.getsockname()[1]}", destination="d", client_id=1)
        try:
            yield found
        finally:
            thread.join()
            found.close()


def test_frame_that_needs_longer_than_the_timeout_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be requested again and again, because no try has more time than the one before."""
    monkeypatch.setattr(module, "READ_TIMEOUT_S", 0.3)
    monkeypatch.setattr(module, "SLOWEST_BYTES_S", 50)
    with sending(struct.pack(">i", 80), *[b"x" * 10] * 8, pause_s=0.1) as connection:
        assert bytes(connection._frame(0.3)) == b"x" * 80


def test_frame_that_stops_is_given_up_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_TIMEOUT_S", 0.2)
    monkeypatch.setattr(module, "SLOWEST_BYTES_S", 50)
    with sending(struct.pack(">i", 80), b"x" * 10, pause_s=0.6) as connection:
        started = time.monotonic()
        with pytest.raises(SourceUnavailable, match="timed out"):
            connection._frame(0.2)
        assert time.monotonic() - started < 0.5
