"""The ASGI application of ``cdc serve``: REST API under ``/v1``, web page, metrics, and checks of the process itself.

Source: RFC 9110 (status codes); OpenAPI 3.1 as FastAPI creates it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cdc.errors import CdcError, CheckpointError, PrerequisiteError
from cdc.manager.rest.documents import error_document
from cdc.manager.rest.guard import RequestGuard, Tokens, refusal_document, refused
from cdc.manager.rest.history import Sampler
from cdc.manager.rest.host_metrics import HostMetrics
from cdc.manager.rest.jobs import job_routes
from cdc.manager.rest.login_limit import LoginLimit
from cdc.manager.rest.missing import Missing, no_host, no_job
from cdc.manager.rest.sessions import host_routes, session_routes
from cdc.manager.rest.verifications import verification_routes
from cdc.state.sql import SqlStore

WEB = Path(__file__).parent.parent / "web"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def build_app(
    store: SqlStore,
    tokens: Tokens,
    sampler: Sampler,
    *,
    ready: Callable[[], bool],
    takeovers: Callable[[], Mapping[str, int]] = dict,
) -> FastAPI:
    """Return the application. Run it with ``lifespan="on"``, which starts and ends ``sampler``.

    ``ready``: whether this host may accept work, for ``/ready``. ``takeovers``: how often this host took over each job.
    Without tokens, every request is of an admin, and only requests to a loopback address are answered: the caller must
    listen on one. The caller closes ``store``.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        sampler.start()
        try:
            yield
        finally:
            sampler.close()

    app = FastAPI(
        title="spark-binlog-load",
        version="1",
        description="Jobs and hosts of `cdc serve`.",
        docs_url=None,  # these pages load scripts of another site
        redoc_url=None,
        lifespan=lifespan,
    )
    limit = LoginLimit()
    app.add_middleware(RequestGuard, tokens=tokens, limit=limit)
    handlers: dict[Any, Any] = {
        HTTPException: _refused, RequestValidationError: _invalid, CdcError: _declined, Exception: _failed
    }  # fmt: skip
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)
    app.include_router(job_routes(store, sampler), prefix="/v1")
    app.include_router(verification_routes(store), prefix="/v1")
    app.include_router(host_routes(store), prefix="/v1")
    app.include_router(session_routes(store, tokens, limit), prefix="/v1")
    _add_checks(app, sampler, ready, takeovers)
    _add_page(app)
    return app


def _add_checks(
    app: FastAPI, sampler: Sampler, ready: Callable[[], bool], takeovers: Callable[[], Mapping[str, int]]
) -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(HostMetrics(sampler, takeovers))
    ProcessCollector(namespace="cdc", registry=registry)

    # `async`: they need no thread of the pool, all of which may wait for the store
    @app.get("/live", tags=["process"])
    async def live() -> dict[str, bool]:
        """Return true while the process answers."""
        return {"live": True}

    @app.get("/ready", tags=["process"], responses={503: {"description": "The host cannot accept work."}})
    async def is_ready() -> Response:
        """Return whether the host can accept work."""
        found = ready()
        return JSONResponse({"ready": found}, status_code=200 if found else 503)

    @app.get("/metrics", tags=["process"])
    def metrics() -> Response:
        """Return the metrics of all drivers of this host, of hosts and of jobs that no driver runs."""
        sampler.start()
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


def _add_page(app: FastAPI) -> None:
    # read once: a path of a request never reaches the file system
    files = {file.name: (file.read_bytes(), _TYPES[file.suffix]) for file in WEB.iterdir() if file.suffix in _TYPES}

    def answer(name: str) -> Response:
        if name not in files:
            raise HTTPException(404)
        content, kind = files[name]
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return answer("index.html")

    @app.get("/static/{name}", include_in_schema=False)
    def static(name: str) -> Response:
        return answer(name)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    hints = {404: "GET /openapi.json lists the addresses.", 405: "GET /openapi.json lists the methods."}
    known = error.hint if isinstance(error, Missing) else None
    hint = known or hints.get(error.status_code, "Correct the request.")
    return refused(error.status_code, str(error.detail), hint, error.headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if tuple(first["loc"]) == ("path", "name") and request.method != "PUT":  # no job and no host has such a name
        find = no_host if request.scope["path"].startswith("/v1/hosts/") else no_job
        return await _refused(request, find(request.path_params["name"]))
    where = ".".join(map(str, first["loc"]))
    body = refusal_document(400, f"{where}: {first['msg']}", "Correct the request.", where)
    return JSONResponse(body, status_code=400)


async def _declined(_: Request, error: Exception) -> Response:
    assert isinstance(error, CdcError)
    code = 503 if isinstance(error, CheckpointError | PrerequisiteError) else 409
    return JSONResponse(error_document(error), status_code=code)


async def _failed(request: Request, error: Exception) -> Response:
    return refused(500, "The request failed.", "The log of `cdc serve` has the cause.")
