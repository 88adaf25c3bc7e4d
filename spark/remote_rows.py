"""Rows that the executors of a cluster fetch from the memory of the driver.

Rows that are sent as a part of Spark's tasks pass both JVMs and are copied about ten times. Here the kernel of the
driver sends them out of the file in memory, and an executor receives them into one buffer.

The server sends a random number (32 bytes). A request is the id of the memory (16 bytes), offset and size (8 bytes
each), and the HMAC-SHA256 of the random number and these. The server answers with 1 and the bytes, or with 0 if the
memory was released. More requests may follow. The secret is new in each process. Spark sends it to its executors with
the code of the workers. The rows are not encrypted, as between Spark's processes without ``spark.network.crypto``.
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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa

from spark.shared_memory import Range, SharedRows, StaleMemory

logger = logging.getLogger(__name__)

_NONCE_BYTES = 32
_REQUEST = struct.Struct(">16sQQ")  # memory, offset, size
_MAC_BYTES = 32
_FOUND, _RELEASED = b"\x01", b"\x00"
_FIRST_S = 10.0  # for the first request of a connection
_PROGRESS_S = 60.0  # without any progress of a transfer, it fails
_MOST_CONNECTIONS = 1024  # each has a thread; an executor has one per running task


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
        request = _REQUEST.pack(self._memory, *at)
        try:
            self._line.sendall(request + _mac(self._rows.secret, self._nonce, request))
        except OSError as error:
            raise self._unreachable(error) from error
        if self._received(1).to_pybytes() != _FOUND:
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
        """Stop to listen. Connections end with this process."""
        self._server.shutdown()
        self._server.server_close()

    def _opened(self, key: bytes) -> int | None:
        with self._lock:
            memory = self._memories.get(key)
            return memory.duplicate() if memory is not None else None


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, bind: str, port: int, secret: bytes, opened: Callable[[bytes], int | None]) -> None:
        self.secret, self.opened = secret, opened
        self._free = threading.Semaphore(_MOST_CONNECTIONS)
        self.address_family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        super().__init__((bind.strip("[]"), port), _Handler)

    def verify_request(self, request: object, client_address: object) -> bool:
        return self._free.acquire(blocking=False)

    def process_request_thread(self, request: socket.socket, client_address: object) -> None:  # type: ignore[override]
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        logger.debug("a connection of an executor failed", exc_info=True)


class _Handler(socketserver.BaseRequestHandler):
    server: _Server
    request: socket.socket

    def handle(self) -> None:
        line = self.request
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # notices that an idle executor has died
        nonce = secrets.token_bytes(_NONCE_BYTES)
        with suppress(OSError):  # Spark repeats the task of the executor
            line.settimeout(_FIRST_S)
            line.sendall(nonce)
            while self._answer(line, nonce):
                line.settimeout(None)  # an executor fetches the next rows when the sink has accepted these

    def _answer(self, line: socket.socket, nonce: bytes) -> bool:
        """Answer the next request. Return False at the end of the connection, and for a request to refuse."""
        data = line.recv(_REQUEST.size + _MAC_BYTES, socket.MSG_WAITALL)
        request, mac = data[: _REQUEST.size], data[_REQUEST.size :]
        if not hmac.compare_digest(mac, _mac(self.server.secret, nonce, request)):
            return False
        line.settimeout(_PROGRESS_S)
        key, offset, size = _REQUEST.unpack(request)
        handle = self.server.opened(key)
        if handle is None:
            line.sendall(_RELEASED)
            return True
        with open(handle, "rb") as file:  # noqa: PTH123 - a descriptor, which this closes
            if offset + size > os.fstat(handle).st_size:
                return False
            line.sendall(_FOUND)
            return bool(size == 0 or line.sendfile(file, offset, size) == size)


def _mac(secret: bytes, nonce: bytes, request: bytes) -> bytes:
    return hmac.digest(secret, nonce + request, "sha256")
