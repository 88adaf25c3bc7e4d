"""The HTTP server of ``cdc serve``."""

from __future__ import annotations

import socket
import ssl

from starlette.types import ASGIApp

from cdc.api.http_server import HttpServer
from cdc.config.serve_models import Listen
from cdc.errors import PrerequisiteError


class ManagerServer:
    """Serves REST API and web page. Calls: one thread."""

    def __init__(self, application: ASGIApp, listen: Listen) -> None:
        """Read the certificate, if any. Raises: PrerequisiteError - it cannot be read."""
        self._listen = listen
        certificate = listen.located(listen.certificate) if listen.certificate else None
        key = listen.located(listen.key) if listen.key else None
        try:
            self._server = HttpServer(application, name="manager", lifespan="on", certificate=certificate, key=key)
        except (OSError, ssl.SSLError) as error:
            raise PrerequisiteError(
                f"The certificate of `cdc serve` cannot be read: {error}.",
                hint="Correct `listen.certificate` and `listen.key`.",
                certificate=certificate,
            ) from error

    def start(self) -> str:
        """Listen, and return the address for a browser on this machine. Raises: PrerequisiteError."""
        listen = self._listen
        try:
            family = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0][0]
            listening = socket.create_server((listen.host, listen.port), family=family)
        except OSError as error:
            raise PrerequisiteError(
                f"`cdc serve` cannot listen: {error.strerror or error}.",
                hint="Set `listen.host` to an address of this machine, and `listen.port` to a free port.",
                host=listen.host,
                port=listen.port,
            ) from error
        return self._server.start(listening, listen.host)

    def close(self) -> None:
        """Stop listening. May be repeated."""
        self._server.close()
