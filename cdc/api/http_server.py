"""An HTTP server on a thread, for the status endpoint of a driver and for `cdc serve`. It limits what clients can use.

Source: uvicorn, "Settings".
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from cdc.api.unread_body import UnreadBody

HEADER_BYTES_MOST = 16 << 10  # enough for the headers and cookies of a browser
CONNECTIONS_MOST = 100  # enough for dashboards; more connections would take threads from the process
HANDSHAKES_MOST = 50  # connections at once that have not finished the handshake of TLS
START_S = 10.0  # listening takes milliseconds
RETRY_S = 10.0  # after a certificate that cannot be read

_log = logging.getLogger(__name__)


class HttpServer:
    """Serves an ASGI application. Calls: one thread; the application runs on threads of its own."""

    def __init__(
        self,
        application: ASGIApp,
        *,
        name: str,
        lifespan: Literal["on", "off"] = "off",
        certificate: str | None = None,
        key: str | None = None,
    ) -> None:
        """``name``: of the thread. ``certificate`` and ``key``: paths, for TLS. Raises: OSError - they are unusable."""
        config = uvicorn.Config(
            UnreadBody(application),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan=lifespan,
            http=LimitedConnection,
            ws="none",
            loop="asyncio",
            h11_max_incomplete_event_size=HEADER_BYTES_MOST,
            limit_concurrency=2 * CONNECTIONS_MOST,
            timeout_graceful_shutdown=1,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        self._certificate: _Certificate | None = None
        before = _Certificate.versions(certificate, key) if certificate is not None else ()
        config.load()
        if certificate is not None and config.ssl is not None:
            self._certificate = _Certificate(config.ssl, certificate, key, before)
        logging.getLogger("uvicorn.error").addFilter(_is_reported)
        self._server = uvicorn.Server(config)
        self._name = name
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None

    def start(self, listening: socket.socket, host: str) -> str:
        """Serve requests to ``listening``, and return the address for clients on this machine: ``http://[::1]:8480``.

        ``host``: to which ``listening`` is bound. With TLS, this object takes ``listening`` over.
        """
        if self._certificate is not None:
            listening = _TlsListener(listening, self._certificate)
        self._socket = listening
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listening]}, name=self._name, daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - read, not bound
        scheme = "https" if self._certificate is not None else "http"
        return f"{scheme}://{f'[{here}]' if ':' in here else here}:{listening.getsockname()[1]}"

    def close(self) -> None:
        """Stop listening. A repeated call does nothing."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=5)
        if self._socket is not None:
            self._socket.close()


def _is_reported(record: logging.LogRecord) -> bool:
    """Return False for the traceback of a request that the end of the server has cancelled."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class _Certificate:
    """Reads the files of the certificate again after a change: it is renewed while the process runs."""

    def __init__(self, context: ssl.SSLContext, certificate: str, key: str | None, known: tuple[int, ...]) -> None:
        """``context`` has the certificate of the files in the versions ``known``."""
        self._context = context
        self._files = certificate, key
        self._known = known
        self._refused: tuple[int, ...] | None = None  # newest versions that could not be read
        self._refused_at = 0.0  # monotonic time

    @staticmethod
    def versions(*files: str | None) -> tuple[int, ...]:
        """Return values that differ after a change of the files; none if one of them cannot be found."""
        try:
            found = [Path(file).stat() for file in files if file is not None]
        except OSError:
            return ()
        return tuple(value for one in found for value in (one.st_ino, one.st_size, one.st_mtime_ns))

    def refresh(self) -> None:
        """Use the certificate of the files, if they have changed and can be read.

        Files that cannot be read are tried again after ``RETRY_S``: a renewal may set their owner after it has written
        them, which changes neither size nor modification time.
        """
        (certificate, key), found = self._files, self.versions(*self._files)
        is_refused = found == self._refused
        if found == self._known or (is_refused and time.monotonic() - self._refused_at < RETRY_S):
            return
        try:
            # first in another context: a certificate without its key, as during a renewal, must not replace the old one
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self._context):
                context.load_cert_chain(certificate, key, password="")
            self._known, self._refused = found, None
            _log.info("The certificate was read again.", extra={"certificate": certificate})
        except OSError as error:
            self._refused, self._refused_at = found, time.monotonic()
            _log.log(
                logging.DEBUG if is_refused else logging.WARNING,
                "The changed certificate cannot be read; the server continues with the older one: %s",
                error,
                extra={"certificate": certificate, "key": key},
            )


_HANDSHAKES: dict[Any, socket.socket] = {}  # by address of the client, oldest first; on the thread of the TLS server


class _TlsListener(socket.socket):
    """Accepts connections with TLS. At the limit, it ends the oldest one that has not finished its handshake.

    ``LimitedConnection`` does not see a connection before. asyncio waits a minute for the handshake, so a client
    without a token could use up the file descriptors of the process.
    """

    def __init__(self, listening: socket.socket, certificate: _Certificate) -> None:
        super().__init__(fileno=listening.detach())
        self._certificate = certificate

    def accept(self) -> tuple[socket.socket, Any]:
        """See ``socket.socket``."""
        connection, address = super().accept()
        self._certificate.refresh()
        for client in [client for client, one in _HANDSHAKES.items() if one.fileno() < 0]:
            del _HANDSHAKES[client]  # it has ended
        if len(_HANDSHAKES) >= HANDSHAKES_MOST:
            with suppress(OSError):  # the client has just ended it
                _HANDSHAKES.pop(next(iter(_HANDSHAKES))).shutdown(socket.SHUT_RDWR)  # asyncio closes it then
        _HANDSHAKES[address] = connection
        return connection, address


class LimitedConnection(H11Protocol):
    """An HTTP connection. At the connection limit, it closes the oldest one that waits for its client.

    uvicorn waits for a request, for its body and for the client to read the answer without a timeout, and replies 503
    to all connections above the limit. A client could therefore block the server without a token, by opening
    connections and sending nothing or slowly, or by sending requests whose answers it does not read.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See ``asyncio.Protocol``."""
        super().connection_made(transport)
        _HANDSHAKES.pop(transport.get_extra_info("peername"), None)
        self.began = self.loop.time()
        others = [one for one in self.connections if isinstance(one, LimitedConnection) and one is not self]
        waiting = [one for one in others if one.waits_for_client]
        if waiting and len(self.connections) >= CONNECTIONS_MOST:
            oldest = min(waiting, key=lambda one: one.began)
            self.connections.discard(oldest)  # otherwise it counts until the event loop has processed the abort
            oldest.transport.abort()

    @property
    def waits_for_client(self) -> bool:
        """Whether the client has to send a request or the rest of its body, or to read the answer."""
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            return True
        return bool(self.flow.write_paused)
