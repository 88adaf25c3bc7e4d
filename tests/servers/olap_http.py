"""The HTTP side that the stand-ins share: keep-alive, chunked bodies, 100-continue on our word, cut connections."""

from __future__ import annotations

import base64
import json
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

_PIECE = 1 << 20


class BadBody(Exception):
    """The body does not follow its own headers."""


class ConnectionCut(Exception):
    """We cut the connection; no answer follows."""


class Handler(BaseHTTPRequestHandler):
    """One connection. Subclasses set ``routes`` of a server and answer with ``reply``."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def handle_expect_100(self) -> bool:
        """Nothing yet: ``body`` says 100 once the headers have passed every check, as the real servers do."""
        return True

    def log_message(self, format: str, *args: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._serve
        raise AttributeError(name)

    def _serve(self) -> None:
        url = urlsplit(self.path)
        self.segments = [unquote(part) for part in url.path.split("/") if part]
        self.query = {name: values[0] for name, values in parse_qs(url.query).items()}
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
        """The body in pieces; says 100-continue first where the client waits for it."""
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
        """Answer; an unread body makes the connection useless, so it is closed then."""
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
    """A server on a port of its own, in threads of this process."""

    daemon_threads = True
    request_queue_size = 256
    handler: ClassVar[type[Handler]] = Handler

    def __init__(self, port: int = 0) -> None:
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), self.handler)
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
        """A cut connection is no news; anything else is a fault of the stand-in and is shown."""
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
    """Of a body that is thrown away: a byte for each row that ends in ``piece``."""
    return bytes(piece.count(b"\n" if request.headers.get("format", "csv").lower() == "json" else b"\x02"))
