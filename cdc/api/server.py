"""The status endpoint of a running job: GET /status /live /ready /metrics, POST /pause /resume /stop.

It runs on a thread of the driver. A POST requires the bearer token. On an address other than loopback, a GET requires
it too. ``Host`` and ``Origin`` are checked, so that a web page cannot reach the endpoint through a host name that
resolves to this machine (DNS rebinding).

Source: RFC 9110 (status codes), RFC 6750 (bearer tokens); Prometheus exposition format.
"""

from __future__ import annotations

import hmac
import logging
import socket
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cdc.api.addresses import host_of, netloc_of
from cdc.api.http_server import HttpServer
from cdc.api.metrics import JobCollector
from cdc.api.models import REQUESTS, Controls, request_from_json
from cdc.config.fields import is_loopback
from cdc.errors import CdcError, PrerequisiteError, error_to_json
from cdc.logging_setup import masked

BODY_BYTES_MOST = 4 << 10  # requests have a few short fields
PORTS_TRIED = 100  # from the configured port on

_log = logging.getLogger(__name__)


class StatusEndpoint:
    """HTTP server of one job. Calls: the driver starts and closes it; it handles requests on its own threads."""

    def __init__(self, controls: Controls, *, host: str, port: int, token: str) -> None:
        self._host = host.strip("[]")  # an IPv6 address may have brackets, as in a URL
        self._port = port
        self._server = HttpServer(_application(controls, token, loopback=is_loopback(host)), name="status")

    def start(self) -> str:
        """Listen on the configured port or the next free one, and return the address: ``http://127.0.0.1:8470``.

        Raises: PrerequisiteError - no port is free, or this machine does not have the address.
        """
        listening = _listen(self._host, self._port)
        url = self._server.start(listening, self._host)
        if self._port and listening.getsockname()[1] != self._port:
            _log.info(
                "The port of the status endpoint is in use; the endpoint has another one.",
                extra={"port": self._port, "instead": url},
            )
        return url

    def close(self) -> None:
        """Stop listening. A repeated call does nothing."""
        self._server.close()


def _application(controls: Controls, token: str, *, loopback: bool) -> ASGIApp:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(JobCollector(controls))
    ProcessCollector(namespace="cdc", registry=registry)

    def status(_: Request) -> Response:
        return JSONResponse(controls.status().to_json())

    async def live(_: Request) -> Response:  # it needs no thread of the pool, all of which may be busy
        return JSONResponse({"live": True})

    def ready(_: Request) -> Response:
        now = controls.status()
        is_ready = now.state == "RUNNING"
        body = {"ready": is_ready, "state": now.state, "reason": now.reason}
        return JSONResponse(body, status_code=200 if is_ready else 503)

    def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def ask(request: Request) -> Response:
        try:
            requested = request_from_json(request.url.path[1:], await _body(request))
        except ValueError as error:
            raise HTTPException(400, f"the body is refused: {error}") from None
        await run_in_threadpool(controls.request, requested)
        now = await run_in_threadpool(controls.status)
        return JSONResponse(now.to_json(), status_code=202)

    reading = [Route(f"/{f.__name__}", f, methods=["GET"]) for f in (status, live, ready, metrics)]
    asking = [Route(f"/{path}", ask, methods=["POST"]) for path in REQUESTS]
    handlers: dict[Any, Any] = {HTTPException: _refused, CdcError: _declined, Exception: _failed}
    return _Guard(Starlette(routes=reading + asking, exception_handlers=handlers), token, loopback)


class _Guard:
    """Refuses requests by their headers, before their bodies are read."""

    def __init__(self, inner: ASGIApp, token: str, loopback: bool) -> None:
        self._inner = inner
        self._token = token.encode()
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refusal = self._refusal(Request(scope))
        await (refusal or self._inner)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        headers = request.headers
        if self._loopback and not is_loopback(host_of(f"//{headers.get('host', '')}")):
            return _error(403, "the Host header names another machine")
        origin = headers.get("origin")
        if request.method == "POST" and origin is not None and netloc_of(origin) != headers.get("host"):
            return _error(403, "requests from other web pages are refused")
        if (not self._loopback or request.method not in {"GET", "HEAD"}) and not self._authorised(headers):
            return _error(401, "a bearer token is required", {"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > BODY_BYTES_MOST:
            return _error(413, f"the body is larger than {BODY_BYTES_MOST} bytes", {"Connection": "close"})
        return None

    def _authorised(self, headers: Any) -> bool:
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(credentials.strip().encode(), self._token)


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MOST:
            raise HTTPException(413, f"the body is larger than {BODY_BYTES_MOST} bytes", {"Connection": "close"})
    return body


def _error(code: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, status_code=code, headers=headers)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, status_code=error.status_code, headers=error.headers)


async def _declined(_: Request, error: Exception) -> Response:
    assert isinstance(error, CdcError)
    return JSONResponse(error_to_json(error, masked), status_code=409)


async def _failed(request: Request, error: Exception) -> Response:
    return _error(500, "the request failed; the job's log has the cause")


def _listen(host: str, requested: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, requested, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise PrerequisiteError(
            f"The status endpoint cannot listen: {error.strerror}.", hint="Correct `status.host`.", host=host
        ) from error
    failed = OSError()
    for port in (requested,) if requested == 0 else range(requested, min(requested + PORTS_TRIED, 1 << 16)):
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port of a killed driver is usable at once
        try:
            listening.bind((address[0], port, *address[2:]))
            listening.listen()
        except OSError as error:
            listening.close()
            failed = error
            continue
        return listening
    raise PrerequisiteError(
        f"The status endpoint cannot listen: {failed.strerror}.",
        hint="Set `status.host` to an address of this machine, and `status.port` to a free port.",
        host=host,
        port=requested,
    ) from failed
