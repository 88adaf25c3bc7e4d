"""A TCP proxy that injects faults."""

from __future__ import annotations

import math
import socket
import threading
import time
from contextlib import suppress
from typing import Self


class TcpProxy:
    """A TCP proxy in front of a server whose connections can be cut, damaged, slowed down or made silent."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._cut_at: list[int] = []  # bytes from the server after which a connection is cut, one connection each
        self._flip_at: list[int] = []
        self._silent = threading.Event()
        self.refusing = False
        self.bytes_per_s = math.inf  # from the server, of each connection
        self.delay_s = 0.0  # of each piece of data from it
        self.cuts = self.flips = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut_all()

    def cut_after(self, *byte_counts: int) -> None:
        self._cut_at = list(byte_counts)

    def flip_after(self, *byte_counts: int) -> None:
        self._flip_at = list(byte_counts)

    def cut_all(self) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def forward_to(self, port: int) -> None:
        """Forward to another server from now on. Cut open connections."""
        self._target = ("127.0.0.1", port)
        self.cut_all()

    def fall_silent(self) -> None:
        """Stop forwarding on the open connections without closing them."""
        silenced, self._silent = self._silent, threading.Event()
        silenced.set()

    def is_refused(self, client: socket.socket) -> bool:
        """Return whether a new connection is closed at once. For subclasses."""
        return self.refusing

    def on_client_data(self, data: bytes) -> None:
        """Handle data from a client. For subclasses."""

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.is_refused(client):
                client.close()
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                is_refused = self.refusing  # since ``cut_all``, which has not seen this connection
                self._sockets += [] if is_refused else [client, server]
            if is_refused:
                client.close()
                server.close()
                continue
            silent = self._silent
            threading.Thread(target=self._forward, args=(client, server, False, silent), daemon=True).start()
            threading.Thread(target=self._forward, args=(server, client, True, silent), daemon=True).start()

    def _forward(
        self, source: socket.socket, target: socket.socket, from_server: bool, silent: threading.Event
    ) -> None:
        seen = 0
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if silent.is_set():
                    continue
                if from_server:
                    data = self._damage(data, seen)
                    seen += len(data)
                    if self._cut_at and seen >= self._cut_at[0]:
                        self._cut_at.pop(0)
                        self.cuts += 1
                        target.sendall(data[: len(data) // 2])
                        break
                    time.sleep(self.delay_s + len(data) / self.bytes_per_s)
                else:
                    self.on_client_data(data)
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _damage(self, data: bytes, seen: int) -> bytes:
        if self._flip_at and seen <= self._flip_at[0] < seen + len(data):
            at = self._flip_at.pop(0) - seen
            self.flips += 1
            return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        return data
