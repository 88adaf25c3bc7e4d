"""The HTTP server of ``cdc serve``: it runs an ASGI application on a thread.

Source: uvicorn, "Settings".
"""

from __future__ import annotations

import socket
import ssl
import threading
import time

import uvicorn
from starlette.types import ASGIApp

from cdc.api.server import CONNECTIONS_MOST, HEADER_BYTES_MOST, LimitedConnection
from cdc.config.serve_models import Listen
from cdc.errors import PrerequisiteError

START_S = 10.0


class ManagerServer:
    """Serves REST API and web page. Calls: one thread."""

    def __init__(self, application: ASGIApp, listen: Listen) -> None:
        self._listen = listen
        certificate = listen.located(listen.certificate) if listen.certificate else None
        key = listen.located(listen.key) if listen.key else None
        try:
            config = uvicorn.Config(
                application,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="on",
                http=LimitedConnection,
                ws="none",
                loop="asyncio",
                h11_max_incomplete_event_size=HEADER_BYTES_MOST,
                limit_concurrency=2 * CONNECTIONS_MOST,
                timeout_graceful_shutdown=1,
                ssl_certfile=certificate,
                ssl_keyfile=key,
            )
            config.load()
        except (OSError, ssl.SSLError) as error:
            raise PrerequisiteError(
                f"The certificate of `cdc serve` cannot be read: {error}.",
                hint="Correct `listen.certificate` and `listen.key`.",
                certificate=certificate,
            ) from error
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None

    def start(self) -> str:
        """Listen, and return the address for a browser on this machine. Raises: PrerequisiteError."""
        listen = self._listen
        try:
            family = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0][0]
            self._socket = socket.create_server((listen.host, listen.port), family=family)
        except OSError as error:
            raise PrerequisiteError(
                f"`cdc serve` cannot listen: {error.strerror or error}.",
                hint="Set `listen.host` to an address of this machine, and `listen.port` to a free port.",
                host=listen.host,
                port=listen.port,
            ) from error
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="manager", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listen.host, listen.host)  # noqa: S104 - read, not bound
        scheme = "https" if listen.certificate else "http"
        return f"{scheme}://{f'[{shown}]' if ':' in shown else shown}:{self._socket.getsockname()[1]}"

    def close(self) -> None:
        """Stop listening. May be repeated."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=5)
        if self._socket is not None:
            self._socket.close()
