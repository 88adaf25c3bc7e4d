"""The status endpoint of a running job: GET /status /live /ready /metrics, POST /pause /resume /stop.

It runs on a thread of the driver. On loopback reading is free and a POST wants the bearer token; on any other address
everything wants it. Names in ``Host`` and ``Origin`` are looked at, so that no web page can reach it by a name that it
made point here.

Source: RFC 9110 (status codes), RFC 6750 (bearer tokens); Prometheus exposition format.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from cdc.errors import CdcError, SurroundingsError
from cdc.logs import masked
from cdc.status import Controls, JobStatus, Resume, is_loopback

HEADER_BYTES_MOST = 16 << 10  # a browser's headers with cookies fit; h11 holds no more
BODY_BYTES_MOST = 4 << 10  # the largest body that means anything here has three words
CONNECTIONS_MOST = 100  # a few dashboards; more would only take threads from the job
PORTS_TRIED = 100  # above the wanted one
START_S = 10.0  # a listening socket is there within milliseconds
STATES = ("PENDING", "RUNNING", "PAUSED", "CANCELLED", "DONE")

_log = logging.getLogger(__name__)


class StatusEndpoint:
    """Serves one job. Calls: the driver starts and closes it; requests come on its own threads."""

    def __init__(self, controls: Controls, *, host: str, port: int, token: str) -> None:
        self._host = host.strip("[]")  # an IPv6 address may be given as in a URL
        self._port = port
        self._server = uvicorn.Server(
            uvicorn.Config(
                _application(controls, token, loopback=is_loopback(host)),
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                http=_MakesRoom,
                ws="none",
                loop="asyncio",
                h11_max_incomplete_event_size=HEADER_BYTES_MOST,
                limit_concurrency=CONNECTIONS_MOST,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None

    def start(self) -> str:
        """Listen, on the wanted port or the next free one, and give the address: ``http://127.0.0.1:8470``.

        Raises: SurroundingsError - no port is free, or the address is not this machine's.
        """
        self._socket = _listen(self._host, self._port)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="status", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        url = _url(self._host, self._socket.getsockname()[1])
        if self._socket.getsockname()[1] != self._port:
            _log.info("The wanted port of the status endpoint is taken.", extra={"port": self._port, "instead": url})
        return url

    def close(self) -> None:
        """Stop listening. Harmless when repeated."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=5)
        if self._socket is not None:
            self._socket.close()


class JobCollector(Collector):
    """Metrics of a job, read from its status when they are asked for."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: registering must not ask the job."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """See ``prometheus_client``."""
        status = self._controls.status()
        yield from _job_metrics(status)
        yield from _channel_metrics(status)


def _job_metrics(status: JobStatus) -> Iterator[Metric]:
    state = GaugeMetricFamily("cdc_job_state", "1 for the state that the job is in.", labels=("job_name", "state"))
    for name in STATES:
        state.add_metric((status.job, name), float(name == status.state))
    yield state
    gauges: list[tuple[str, str, float | None]] = [
        ("cdc_lag_seconds", "Age of the oldest source transaction not yet visible.", status.lag_seconds),
        ("cdc_window_bytes", "Bytes of rows in memory that no started Task has taken.", status.window_bytes),
        ("cdc_window_limit_bytes", "What memory.window allows.", status.window_limit_bytes),
    ]
    checkpoint = status.checkpoint
    if checkpoint is not None:
        gauges += [
            ("cdc_checkpoint_id", "Number of the newest checkpoint.", checkpoint.id),
            ("cdc_checkpoint_rows", "Source rows in it.", checkpoint.rows),
            ("cdc_checkpoint_bytes", "Source bytes in it.", checkpoint.bytes),
        ]
    for name, text, value in gauges:
        if value is not None:
            gauge = GaugeMetricFamily(name, text, labels=("job_name",))
            gauge.add_metric((status.job,), value)
            yield gauge
    split = CounterMetricFamily("cdc_split_transactions", "Transactions cut between cycles.", labels=("job_name",))
    split.add_metric((status.job,), status.split_transactions)
    yield split
    if checkpoint is not None:
        seconds = GaugeMetricFamily("cdc_checkpoint_seconds", "How long its parts took.", labels=("job_name", "part"))
        for part, value in checkpoint.seconds.items():
            seconds.add_metric((status.job, part), value)
        yield seconds


def _channel_metrics(status: JobStatus) -> Iterator[Metric]:
    labels = ("job_name", "source", "target")
    upserts = CounterMetricFamily("cdc_channel_upserts", "Committed inserts and updates.", labels=labels)
    deletes = CounterMetricFamily("cdc_channel_deletes", "Committed deletes.", labels=labels)
    volume = CounterMetricFamily("cdc_channel_bytes", "Committed source bytes.", labels=labels)
    buffered = GaugeMetricFamily("cdc_channel_buffered_rows", "Rows that wait for a Task.", labels=labels)
    dates = CounterMetricFamily("cdc_channel_impossible_dates", "Dates that became NULL in this run.", labels=labels)
    rows = GaugeMetricFamily("cdc_snapshot_rows", "Rows of the snapshot committed.", labels=labels)
    expected = GaugeMetricFamily("cdc_snapshot_estimated_rows", "Rows of the table, estimated.", labels=labels)
    left = GaugeMetricFamily("cdc_snapshot_chunks_left", "Chunks not yet read.", labels=labels)
    consistent = GaugeMetricFamily("cdc_snapshot_consistent", "1 once the stream has caught up.", labels=labels)
    for channel in status.channels:
        values = (status.job, channel.source, channel.target)
        if channel.snapshot is not None:
            rows.add_metric(values, channel.snapshot.rows)
            expected.add_metric(values, channel.snapshot.estimated_rows)
            left.add_metric(values, channel.snapshot.chunks - channel.snapshot.done)
            consistent.add_metric(values, float(channel.snapshot.consistent))
        upserts.add_metric(values, channel.upserts)
        deletes.add_metric(values, channel.deletes)
        volume.add_metric(values, channel.bytes)
        buffered.add_metric(values, channel.buffered_rows)
        dates.add_metric(values, channel.impossible_dates)
    yield from (upserts, deletes, volume, buffered, dates, rows, expected, left, consistent)


def _application(controls: Controls, token: str, *, loopback: bool) -> ASGIApp:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(JobCollector(controls))
    ProcessCollector(namespace="cdc", registry=registry)

    def status(_: Request) -> Response:
        return JSONResponse(controls.status().to_json())

    def live(_: Request) -> Response:
        return JSONResponse({"live": True})

    def ready(_: Request) -> Response:
        now = controls.status()
        is_ready = now.state == "RUNNING"
        body = {"ready": is_ready, "state": now.state, "reason": now.reason}
        return JSONResponse(body, status_code=200 if is_ready else 503)

    def metrics(_: Request) -> Response:
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def pause(request: Request) -> Response:
        await _options(request, frozenset())
        await run_in_threadpool(controls.request_pause)
        return await accepted()

    async def resume(request: Request) -> Response:
        options = await _options(request, frozenset(Resume.__dataclass_fields__))
        await run_in_threadpool(controls.request_resume, Resume(**options))
        return await accepted()

    async def snapshot(request: Request) -> Response:
        wanted = await _body(request, frozenset({"table", "where"}))
        table, where = wanted.get("table"), wanted.get("where")
        if not isinstance(table, str) or not (where is None or isinstance(where, str)):
            raise HTTPException(400, "table must be text, and where text or nothing")
        await run_in_threadpool(controls.request_snapshot, table, where)
        return await accepted()

    async def stop(request: Request) -> Response:
        await _options(request, frozenset())
        await run_in_threadpool(controls.request_stop)
        return await accepted()

    async def accepted() -> Response:
        now = await run_in_threadpool(controls.status)
        return JSONResponse(now.to_json(), status_code=202)

    reading = [Route(f"/{f.__name__}", f, methods=["GET"]) for f in (status, live, ready, metrics)]
    asking = [Route(f"/{f.__name__}", f, methods=["POST"]) for f in (pause, resume, snapshot, stop)]
    handlers: dict[Any, Any] = {HTTPException: _refused, CdcError: _declined, Exception: _failed}
    return _Guard(Starlette(routes=reading + asking, exception_handlers=handlers), token, loopback)


class _MakesRoom(H11Protocol):
    """A connection; where there are too many, the oldest one of those that ask nothing gives way to it.

    uvicorn waits for a request for ever and answers all with 503 meanwhile: whoever opens enough connections and says
    nothing, which takes no token, would shut the endpoint.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See ``asyncio.Protocol``."""
        super().connection_made(transport)
        self.began = self.loop.time()
        others = [one for one in self.connections if isinstance(one, _MakesRoom) and one is not self]
        silent = [one for one in others if one.cycle is None or one.cycle.response_complete]
        if silent and len(self.connections) >= CONNECTIONS_MOST:
            oldest = min(silent, key=lambda one: one.began)
            self.connections.discard(oldest)  # else it counts until the loop has come round
            oldest.transport.abort()


class _Guard:
    """Turns away, before anything of a request is read further, what may not come in."""

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
        if self._loopback and not is_loopback(_host_of(f"//{headers.get('host', '')}")):
            return _error(403, "the Host header names another machine")
        origin = headers.get("origin")
        if request.method == "POST" and origin is not None and _netloc_of(origin) != headers.get("host"):
            return _error(403, "requests from other web pages are refused")
        if (not self._loopback or request.method not in {"GET", "HEAD"}) and not self._authorised(headers):
            return _error(401, "a bearer token is wanted", {"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > BODY_BYTES_MOST:
            return _error(413, f"the body is larger than {BODY_BYTES_MOST} bytes", {"Connection": "close"})
        return None

    def _authorised(self, headers: Any) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token)


async def _options(request: Request, known: frozenset[str]) -> dict[str, bool]:
    options = await _body(request, known)
    if not all(isinstance(value, bool) for value in options.values()):
        raise HTTPException(400, "the body must be an object of true and false")
    return options


async def _body(request: Request, known: frozenset[str]) -> dict[str, Any]:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MOST:
            raise HTTPException(413, f"the body is larger than {BODY_BYTES_MOST} bytes", {"Connection": "close"})
    if not body.strip():
        return {}
    try:
        options = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not JSON") from None
    if not isinstance(options, dict):
        raise HTTPException(400, "the body must be an object")
    unknown = sorted(set(options) - known)
    if unknown:
        raise HTTPException(400, f"not known: {', '.join(unknown)[:100]}")
    return options


def _error(code: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": text}, status_code=code, headers=headers)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, status_code=error.status_code, headers=error.headers)


async def _declined(_: Request, error: Exception) -> Response:
    assert isinstance(error, CdcError)
    body = {"error": masked(error.message), "mend": error.mend, "exit_code": error.exit_code}
    return JSONResponse(body, status_code=409)


async def _failed(request: Request, error: Exception) -> Response:
    return _error(500, "the request failed; the job's log has the cause")


def _listen(host: str, wanted: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, wanted, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise SurroundingsError(
            f"The status endpoint cannot listen: {error.strerror}.", mend="Correct `status.host`.", host=host
        ) from error
    failed = OSError()
    for port in (wanted,) if wanted == 0 else range(wanted, min(wanted + PORTS_TRIED, 1 << 16)):
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a killed driver's port is free at once
        try:
            listening.bind((address[0], port, *address[2:]))
            listening.listen()
        except OSError as error:
            listening.close()
            failed = error
            continue
        return listening
    raise SurroundingsError(
        f"The status endpoint cannot listen: {failed.strerror}.",
        mend="Set `status.host` to an address of this machine, and `status.port` to a free port.",
        host=host,
        port=wanted,
    ) from failed


def _url(host: str, port: int) -> str:
    """An address that a client on this machine can use."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - read, not bound
    return f"http://[{here}]:{port}" if ":" in here else f"http://{here}:{port}"


def _netloc_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _host_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
