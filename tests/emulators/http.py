"""The HTTP server of the emulators: keep-alive, chunked bodies, delayed 100-continue, cut connections."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs

from tests.emulators.names import routed_segments

_PIECE = 1 << 20


class BadBody(Exception):
    """The body does not follow its own headers."""


class ConnectionCut(Exception):
    """The emulator has cut the connection; no answer follows."""


class Handler(BaseHTTPRequestHandler):
    """One connection. Subclasses set ``routes`` of a server and answer with ``reply``."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def handle_expect_100(self) -> bool:
        """Send nothing yet: like the real servers, ``body`` sends 100 after all checks of the headers."""
        return True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def _serve(self) -> None:
        raw, _, query = self.path.partition("?")
        self.segments = self.server.segments(raw)
        self.server.paths.append(raw)
        self.query = {name: values[0] for name, values in parse_qs(query).items()}
        self.body_read = not (self.headers.get("Content-Length", "0") != "0" or self.chunked)
        try:
            self.server.answer(self)
        except ConnectionCut:
            self.close_connection = True
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True

    @property
    def chunked(self) -> bool:
        return "chunked" in self.headers.get("Transfer-Encoding", "").lower()

    @property
    def expects_continue(self) -> bool:
        return bool(self.headers.get("Expect"))

    def credentials(self) -> tuple[str, str] | None:
        """User and password of Basic authorization."""
        kind, _, value = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "basic":
            return None
        user, _, password = base64.b64decode(value).decode().partition(":")
        return user, password

    def body(self) -> Iterator[bytes]:
        """Yield the body in pieces, after 100-continue if the client waits for it."""
        if self.headers.get("Expect", "").lower() == "100-continue":
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.body_read = True
        if not self.chunked:
            left = int(self.headers.get("Content-Length") or 0)
            while left:
                piece = self.rfile.read(min(left, _PIECE))
                if not piece:
                    raise BadBody("receive body don't equal with body bytes")
                left -= len(piece)
                yield piece
            return
        while size := int(self.rfile.readline().split(b";")[0] or b"-1", 16):
            piece = self.rfile.read(size) if size > 0 else b""
            if size < 0 or len(piece) < size:
                raise BadBody("receive body don't equal with body bytes")
            self.rfile.readline()
            yield piece
        self.rfile.readline()

    def reply(self, data: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Answer. If the body was not read, the connection is unusable and is closed."""
        body = data if isinstance(data, bytes) else json.dumps(data, indent=4).encode() + b"\n"
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        if not self.body_read:
            self.close_connection = True
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def cut(self) -> None:
        """Reset the connection. Raises: ConnectionCut, always."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        raise ConnectionCut


class Server(ThreadingHTTPServer):
    """A server on its own port, in threads of this process."""

    daemon_threads = True
    request_queue_size = 256
    handler: ClassVar[type[Handler]] = Handler

    segments = staticmethod(routed_segments)

    def __init__(self, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.paths: deque[str] = deque(maxlen=10_000)  # of the last requests, as they were sent
        self.scheme = "https" if tls else "http"
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), self.handler)
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.port: int = self.server_address[1]
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def answer(self, request: Handler) -> None:
        """Answer one request."""
        raise NotImplementedError

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore cut connections. Anything else is an error of the emulator and is printed."""
        import sys

        if not isinstance(sys.exception(), (OSError, ValueError)):
            super().handle_error(request, client_address)

    def stop(self) -> None:
        """Stop listening and cut every connection, as a killed process would."""
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


def row_ends(piece: bytes, request: Handler) -> bytes:
    """Return one byte for each row that ends in ``piece``, for a body that is not kept."""
    return bytes(piece.count(b"\n" if request.headers.get("format", "csv").lower() == "json" else b"\x02"))
