"""Routes of hosts, and of the session of a browser."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from cdc.manager.rest.documents import host_document
from cdc.manager.rest.guard import COOKIE, Tokens, client_of, cookie_value, refused
from cdc.manager.rest.login_limit import LoginLimit
from cdc.manager.rest.missing import no_host
from cdc.model.host_name import HOST_NAME
from cdc.state.sql import SqlStore

SESSION_S = 30 * 86400  # of the cookie; a changed token ends it too

_HostName = Annotated[str, Path(pattern=HOST_NAME)]


class Login(BaseModel):
    """The body of a login."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)
    token: str = Field(min_length=1, max_length=4096)


def host_routes(store: SqlStore) -> APIRouter:
    """Return the routes of hosts."""
    router = APIRouter(tags=["hosts"])

    @router.get("/hosts")
    def list_hosts() -> list[dict[str, Any]]:
        """List all hosts with heartbeat, memory and jobs."""
        deployments = store.deployments.all()
        return [host_document(host, deployments, store.host.name) for host in store.hosts.all()]

    def set_drained(name: str, *, drained: bool) -> dict[str, Any]:
        if not store.hosts.set_drained(name, drained=drained):
            raise no_host(name)
        return {"host": name, "is_drained": drained}

    @router.post("/hosts/{name}/drain", status_code=202)
    def drain(name: _HostName) -> dict[str, Any]:
        """Move the jobs of a host to other hosts, and assign no more to it."""
        return set_drained(name, drained=True)

    @router.post("/hosts/{name}/undrain", status_code=202)
    def undrain(name: _HostName) -> dict[str, Any]:
        """Assign jobs to a drained host again."""
        return set_drained(name, drained=False)

    return router


def session_routes(store: SqlStore, tokens: Tokens, limit: LoginLimit) -> APIRouter:
    """Return the routes with which the page signs in and out. ``limit``: of tokens that are not valid."""
    router = APIRouter(tags=["session"])

    @router.get("/session")
    def session(request: Request) -> dict[str, Any]:
        """Return what the sender may do, and the name of the host that answers."""
        return {"role": request.scope["state"]["role"], "host": store.host.name, "has_tokens": not tokens.is_open}

    @router.post("/login")
    async def login(body: Login, request: Request) -> Response:
        """Exchange a token for a cookie that scripts cannot read."""  # async: the limit is used by one thread
        role = tokens.role_of(body.token)
        if role is None:
            limit.add_failure(client_of(request))
            return refused(401, "The token is not valid.", "Use the token of an admin or a viewer of this `cdc serve`.")
        answer = JSONResponse({"role": role})
        answer.set_cookie(
            COOKIE, cookie_value(body.token), max_age=SESSION_S, httponly=True, samesite="strict", path="/",
            secure=request.url.scheme == "https",
        )  # fmt: skip
        return answer

    @router.post("/logout")
    def logout() -> Response:
        """Delete the cookie."""
        answer = JSONResponse({"role": None})
        answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return answer

    return router
