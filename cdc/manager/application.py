"""The HTTP application of ``cdc serve``: whether the host lives, and whether it runs jobs."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from cdc.config.serve_models import ServeConfig
from cdc.state.sql import SqlStore


def build_application(store: SqlStore, config: ServeConfig, is_ready: Callable[[], bool]) -> ASGIApp:
    """Return the application. ``is_ready``: whether the heartbeat of the host is younger than its lease."""

    def live(_: Request) -> Response:
        return JSONResponse({"live": True})

    def ready(_: Request) -> Response:
        now = is_ready()
        return JSONResponse({"ready": now}, status_code=200 if now else 503)

    return Starlette(routes=[Route("/live", live), Route("/ready", ready)])
