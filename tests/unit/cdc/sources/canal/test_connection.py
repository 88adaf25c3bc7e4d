"""How long the connection to a Canal server waits for the bytes of a frame."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc.errors import SourceUnavailable
from cdc.sources.canal import connection as module
from cdc.sources.canal.connection import CanalConnection


class SlowSocket:
    """Gives ``data`` in pieces of at most ``size`` bytes, each after ``seconds`` of its own clock."""

    def __init__(self, data: bytes, size: int, seconds: float) -> None:
        self.data, self.size, self.seconds = data, size, seconds
        self.now = self.limit = 0.0

    def settimeout(self, limit: float) -> None:
        self.limit = limit

    def recv_into(self, buffer: memoryview) -> int:
        self.now += min(self.seconds, self.limit)
        if self.seconds > self.limit or not self.data:
            raise TimeoutError("timed out")
        piece, count = self.data[: min(self.size, len(buffer))], min(self.size, len(buffer), len(self.data))
        buffer[:count] = piece
        self.data = self.data[count:]
        return count


def connected(monkeypatch: pytest.MonkeyPatch, sock: SlowSocket) -> CanalConnection:
    monkeypatch.setattr(module, "SLOWEST_BYTES_S", 1)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: sock.now))
    found = CanalConnection("127.0.0.1:1", destination="d", client_id=1)
    found.close()
    found._socket = cast(Any, sock)
    return found


@pytest.mark.parametrize("first", [7, 240, 1000])
def test_frame_that_needs_longer_than_the_timeout_arrives(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """It would be requested again and again, because no try has more time than the one before."""
    monkeypatch.setattr(module, "_READ_BYTES", first)
    body = bytes(range(240))
    sock = SlowSocket(struct.pack(">i", len(body)) + body, 30, 25.0)
    assert bytes(connected(monkeypatch, sock)._frame(module.READ_TIMEOUT_S)) == body
    assert sock.now > 2 * module.READ_TIMEOUT_S


def test_frame_that_stops_is_given_up_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    sock = SlowSocket(struct.pack(">i", 100_000) + bytes(10), 10, 1.0)
    with pytest.raises(SourceUnavailable, match="timed out"):
        connected(monkeypatch, sock)._frame(module.READ_TIMEOUT_S)
    assert sock.limit <= module.READ_TIMEOUT_S
