"""A server that follows a script: what a hostile or broken MySQL or Canal server may send, and what it received."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

SALT = b"abcdefghijklmnopqrst"
SSL = 0x800
OK = b"\0\0\0\2\0\0\0"


class Peer:
    """One accepted connection."""

    def __init__(self, line: socket.socket, received: bytearray) -> None:
        self.line = line
        self._received = received
        self.sequence = 0

    def send(self, data: bytes) -> None:
        self.line.sendall(data)

    def packet(self, payload: bytes, sequence: int | None = None) -> None:
        """A MySQL packet with the next sequence number."""
        number = self.sequence if sequence is None else sequence
        self.send(struct.pack("<I", len(payload))[:3] + bytes([number & 255]) + payload)
        self.sequence = (number + 1) & 255

    def read(self) -> bytes:
        """The client's next MySQL packet."""
        head = self.exactly(4)
        self.sequence = (head[3] + 1) & 255
        return self.exactly(int.from_bytes(head[:3], "little"))

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.line.recv(size - len(data))
            if not piece:
                raise ConnectionError("the client is gone")
            self._received += piece
            data += piece
        return data

    def wait(self) -> None:
        """Say nothing until the client leaves."""
        while piece := self.line.recv(1 << 16):
            self._received += piece

    def flood(self, data: bytes) -> None:
        """Send ``data`` until the client leaves."""
        while True:
            self.send(data)


class HostileServer:
    """Runs ``script`` for every connection; ``received`` has all bytes of all clients."""

    def __init__(self, script: Callable[[Peer], None], host: str = "127.0.0.1") -> None:
        self._script = script
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, 0), family=family)
        self.port = int(self._listening.getsockname()[1])
        self.received = bytearray()
        self._lines: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listening.accept()
            except OSError:
                return
            self._lines.append(line)
            thread = threading.Thread(target=self._serve, args=(line,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, line: socket.socket) -> None:
        with line, suppress(OSError):
            self._script(Peer(line, self.received))

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for line in self._lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)


@contextmanager
def hostile(script: Callable[[Peer], None], host: str = "127.0.0.1") -> Iterator[HostileServer]:
    server = HostileServer(script, host)
    try:
        yield server
    finally:
        server.close()


def greeting(plugin: bytes = b"caching_sha2_password", *, without: int = SSL, version: bytes = b"9.7.0") -> bytes:
    """The first packet of a MySQL server."""
    flags = 0x81BFF7DF & ~without
    low, high = flags & 0xFFFF, flags >> 16
    head = b"\x0a" + version + b"\0" + struct.pack("<I", 7) + SALT[:8] + b"\0"
    return head + struct.pack("<HBHHB", low, 255, 2, high, 21) + bytes(10) + SALT[8:] + b"\0" + plugin + b"\0"


def column(name: bytes = b"a") -> bytes:
    texts = (b"def", b"", b"", b"", name, name)
    return b"".join(bytes([len(text)]) + text for text in texts) + struct.pack("<BHIBHBH", 12, 255, 100, 253, 0, 0, 0)


def logged_in(peer: Peer) -> None:
    """Let the client in, and answer its first statements with OK: SET NAMES, the session's limits, autocommit."""
    peer.packet(greeting(b"mysql_native_password"))
    peer.read()
    peer.packet(OK)
    for _ in range(2):
        peer.read()
        peer.packet(OK)
