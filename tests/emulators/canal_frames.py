"""A stand-in that plays recorded or made-up Canal frames, for faults that a real server cannot be made to show."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

RECORDED = Path(__file__).parents[1] / "data/canal/frames.jsonl"


@dataclass(frozen=True)
class Frame:
    """One frame of a conversation, with its length."""

    connection: int
    from_server: bool
    kind: str
    data: bytes
    note: str = ""


def recorded() -> list[Frame]:
    """The recorded conversation."""
    lines = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    return [
        Frame(line["conn"], line["dir"] == "S>C", line["type"], bytes.fromhex(line["frame"]), line.get("note", ""))
        for line in lines
        if "frame" in line
    ]


def framed(body: bytes) -> bytes:
    """``body`` behind its length."""
    return struct.pack(">i", len(body)) + body


@dataclass
class FramePlayer:
    """Plays one script per connection: bytes are sent (in pieces of ``piece``), None reads one frame of the client.

    A script's end closes the connection, unless ``hold`` is set.
    """

    scripts: Sequence[Sequence[bytes | None]]
    piece: int = 1 << 20
    hold: bool = False
    received: list[bytes] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self._thread.join(5)

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        kept = []
        for script in self.scripts:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with suppress(OSError):
                self._play(client, script)
            if self.hold:
                kept.append(client)
            else:
                client.close()
        for client in kept:
            while client.recv(4096):
                pass
            client.close()

    def _play(self, client: socket.socket, script: Sequence[bytes | None]) -> None:
        for step in script:
            if step is None:
                (length,) = struct.unpack(">i", self._exactly(client, 4))
                self.received.append(self._exactly(client, length))
            else:
                for start in range(0, len(step), self.piece):
                    client.sendall(step[start : start + self.piece])

    @staticmethod
    def _exactly(client: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = client.recv(size - len(data))
            if not piece:
                raise ConnectionError
            data += piece
        return data
