"""Rows that the executors of a cluster fetch from the memory of the driver.

Rows that are sent as a part of Spark's tasks pass both JVMs and are copied about ten times. Here the kernel of the
driver sends them out of the file in memory, and an executor receives them into one buffer.

The server sends a random number (32 bytes). A request is the id of the memory (16 bytes), offset and size (8 bytes
each), a random number of the executor (32 bytes), and the HMAC-SHA256 of the server's number and these. The answer is
1, or 0 if the memory was released, and the HMAC-SHA256 of this byte and the executor's number; then the bytes. So each
side proves that it knows the secret. More requests may follow. The secret is new in each server. Spark sends it to its
executors with the code of the workers. The rows are not encrypted, as between Spark's processes without
``spark.network.crypto``.
"""

from __future__ import annotations

import hmac
import logging
import os
import secrets
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from cdc.keepalive import keep_alive
from spark.shared_memory import Range, SharedRows, StaleMemory

logger = logging.getLogger(__name__)

_NONCE_BYTES = 32
_REQUEST = struct.Struct(f">16sQQ{_NONCE_BYTES}s")  # memory, offset, size, random number of the executor
_MAC_BYTES = 32
_FOUND, _RELEASED = b"\x01", b"\x00"
_FIRST_S = 10.0  # for the first request of a connection
_PROGRESS_S = 60.0  # without any progress of a transfer, it fails
_MOST_STRANGERS = 256  # connections without a valid request; each has a thread


class RowsUnreachable(OSError):
    """This machine cannot fetch rows from the driver."""


@dataclass(frozen=True, slots=True)
class RemoteRows:
    """How executors reach the rows of a driver. It is sent to them."""

    host: str
    port: int
    secret: bytes = field(repr=False)

    def __call__(self, memory: str) -> RemoteReader:
        """Open rows, by the id that ``RowServer.share`` returned. Raises: RowsUnreachable."""
        return RemoteReader(self, memory)


class RemoteReader:
    """Rows of the driver, on an executor. What it returns is valid after ``close``."""

    def __init__(self, rows: RemoteRows, memory: str) -> None:
        """Connect to the driver. Raises: RowsUnreachable."""
        self._rows = rows
        self._memory = bytes.fromhex(memory)
        try:
            self._line = socket.create_connection((rows.host, rows.port), _FIRST_S)
        except OSError as error:
            raise self._unreachable(error) from error
        self._line.settimeout(_PROGRESS_S)
        self._nonce = self._received(_NONCE_BYTES).to_pybytes()

    def bytes_at(self, at: Range) -> pa.Buffer:
        """Return the bytes at a position. Raises: RowsUnreachable; StaleMemory - the driver has released the memory."""
        own = secrets.token_bytes(_NONCE_BYTES)
        request = _REQUEST.pack(self._memory, *at, own)
        try:
            self._line.sendall(request + _mac(self._rows.secret, self._nonce + request))
        except OSError as error:
            raise self._unreachable(error) from error
        status, mac = (self._received(size).to_pybytes() for size in (1, _MAC_BYTES))
        if not hmac.compare_digest(mac, _mac(self._rows.secret, status + own)):
            self.close()
            raise self._unreachable(ConnectionError("another program answers at this port"))
        if status != _FOUND:
            raise StaleMemory("the driver has released the rows of this job")
        return self._received(at[1])

    def rows_at(self, at: Range) -> pa.Table:
        """Return the rows at a position. Raises: see ``bytes_at``."""
        return pa.ipc.open_stream(self.bytes_at(at)).read_all()

    def close(self) -> None:
        """End the connection."""
        self._line.close()

    def _received(self, size: int) -> pa.Buffer:
        buffer = pa.allocate_buffer(size)
        view = memoryview(buffer).cast("B")
        done = 0
        try:
            while done < size:
                count = self._line.recv_into(view[done:])
                if count == 0:
                    raise ConnectionResetError("the driver has closed the connection")
                done += count
        except OSError as error:
            self.close()
            raise self._unreachable(error) from error
        return buffer

    def _unreachable(self, error: OSError) -> RowsUnreachable:
        return RowsUnreachable(f"no rows from the driver at {self._rows.host}:{self._rows.port}: {error}")


class RowServer:
    """Sends ``SharedRows`` of this process to executors. Calls: any thread."""

    def __init__(self, bind: str, host: str, port: int = 0) -> None:
        """``bind``: address to listen at; ``host``: name by which executors reach it; ``port``: 0 for a free one.

        Raises: OSError - the port cannot be used.
        """
        self._memories: dict[bytes, SharedRows] = {}
        self._lock = threading.Lock()
        self._secret = secrets.token_bytes(32)
        self._server = _Server(bind, port, self._secret, self._opened)
        self.reader = RemoteRows(host.strip("[]"), self._server.server_address[1], self._secret)
        threading.Thread(target=self._server.serve_forever, name="row-server", daemon=True).start()

    def share(self, memory: SharedRows) -> list[object]:
        """Let executors read ``memory`` until ``withdraw``. Return the arguments of ``reader``."""
        key = secrets.token_bytes(16)
        with self._lock:
            self._memories[key] = memory
        return [key.hex()]

    def withdraw(self, memory: SharedRows) -> None:
        """Refuse further reads of ``memory``, which may be closed then. A read that has begun is completed."""
        with self._lock:
            self._memories = {key: one for key, one in self._memories.items() if one is not memory}

    def close(self) -> None:
        """Stop listening. Open connections end with this process."""
        self._server.shutdown()
        self._server.server_close()

    def _opened(self, key: bytes) -> int | None:
        with self._lock:
            memory = self._memories.get(key)
            return memory.duplicate() if memory is not None else None


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True  # a driver that was killed left connections on a fixed port
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, bind: str, port: int, secret: bytes, opened: Callable[[bytes], int | None]) -> None:
        self.secret, self.opened = secret, opened
        self.strangers = threading.Semaphore(_MOST_STRANGERS)
        self.address_family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        super().__init__((bind.strip("[]"), port), _Handler)

    def verify_request(self, request: object, client_address: object) -> bool:
        return self.strangers.acquire(blocking=False)

    def process_request(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self.strangers.release()
            raise

    def handle_error(self, request: object, client_address: object) -> None:
        logger.debug("a connection of an executor failed", exc_info=True)


class _Handler(socketserver.BaseRequestHandler):
    server: _Server
    request: socket.socket

    def handle(self) -> None:
        line, nonce = self.request, secrets.token_bytes(_NONCE_BYTES)
        with suppress(OSError):  # Spark repeats the task of the executor
            try:
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                keep_alive(line)  # an idle executor may have died
                line.settimeout(_FIRST_S)
                line.sendall(nonce)
                request = self._request(line, nonce, time.monotonic() + _FIRST_S)
            finally:
                self.server.strangers.release()
            while request is not None and self._answer(line, request):
                line.settimeout(None)  # an executor fetches the next rows when the sink has accepted these
                request = self._request(line, nonce, float("inf"))

    def _request(self, line: socket.socket, nonce: bytes, deadline: float) -> tuple[bytes, int, int, bytes] | None:
        """Return the next request; None at the end of the connection, and for a request to refuse."""
        data = b""
        while len(data) < _REQUEST.size + _MAC_BYTES:
            if time.monotonic() > deadline or not (more := line.recv(_REQUEST.size + _MAC_BYTES - len(data))):
                return None
            data += more
        request, mac = data[: _REQUEST.size], data[_REQUEST.size :]
        if not hmac.compare_digest(mac, _mac(self.server.secret, nonce + request)):
            return None
        key, offset, size, other = _REQUEST.unpack(request)
        return key, offset, size, other

    def _answer(self, line: socket.socket, request: tuple[bytes, int, int, bytes]) -> bool:
        """Return False if the request is to be refused or the bytes could not be sent completely."""
        line.settimeout(_PROGRESS_S)
        key, offset, size, other = request
        handle = self.server.opened(key)
        status = _RELEASED if handle is None else _FOUND
        answer = status + _mac(self.server.secret, status + other)
        if handle is None:
            line.sendall(answer)
            return True
        with open(handle, "rb") as file:  # noqa: PTH123 - a descriptor, which this closes
            if offset + size > os.fstat(handle).st_size:
                return False
            line.sendall(answer)
            return size == 0 or line.sendfile(file, offset, size) == size


def _mac(secret: bytes, data: bytes) -> bytes:
    return hmac.digest(secret, data, "sha256")
