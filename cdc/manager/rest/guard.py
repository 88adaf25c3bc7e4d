"""Who may send a request: tokens, the cookie of a browser, Host and Origin headers, the size of a body.

Source: RFC 6750 (bearer tokens), RFC 6265bis (SameSite cookies), OWASP (Origin check against forged requests).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cdc.api.addresses import host_of, netloc_of
from cdc.config.fields import is_loopback
from cdc.errors import CdcError, ConfigError
from cdc.manager.rest.login_limit import LoginLimit

COOKIE = "cdc_session"
BODY_BYTES_MOST = 1 << 20  # as for a job file; a thousand channels make a tenth of this
_READING = frozenset({"GET", "HEAD"})
LOGIN = "/v1/login"
_PUBLIC = frozenset({"/", "/live", "/ready", LOGIN})  # the page itself has no data
_NOT_THE_REQUEST = frozenset({401, 403, 429, 500})  # the cause is the token or the server, not what was sent
_SECURITY_HEADERS = (
    (b"content-security-policy", (
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)  # fmt: skip


class Role(StrEnum):
    """What the sender of a request may do."""

    VIEWER = "viewer"  # read
    ADMIN = "admin"  # read and change


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens that the API accepts. None of both: every request is of an admin, so listen on loopback only."""

    admin: str | None = field(default=None, repr=False)
    viewer: str | None = field(default=None, repr=False)

    @property
    def is_open(self) -> bool:
        """Whether no token is required."""
        return not (self.admin or self.viewer)

    def role_of(self, token: str) -> Role | None:
        """Return the role of a token; None if it is not valid."""
        return self._role(token, lambda own: own)

    def role_of_cookie(self, value: str) -> Role | None:
        """Return the role of the value of the cookie; None if it is not valid."""
        return self._role(value, cookie_value)

    def _role(self, given: str, form: Any) -> Role | None:
        found = None
        for role, own in ((Role.VIEWER, self.viewer), (Role.ADMIN, self.admin)):
            # compare all of them in constant time, so that the time of an answer says nothing
            if own and hmac.compare_digest(given.encode(), form(own).encode()):
                found = role
        return found


def cookie_value(token: str) -> str:
    """Return the value of the cookie for a token. It does not contain the token, and is the same on every host."""
    return hmac.new(token.encode(), b"cdc serve session", hashlib.sha256).hexdigest()


class RequestGuard:
    """Refuses requests by their headers, limits their bodies, and adds security headers to all answers."""

    def __init__(self, inner: ASGIApp, tokens: Tokens, limit: LoginLimit) -> None:
        self._inner = inner
        self._tokens = tokens
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return

        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_SECURITY_HEADERS]
            await send(message)

        request = Request(scope)
        refusal: ASGIApp | None = None
        if _has_credentials(request) and not self._tokens.is_open:
            refusal = too_many_failures(self._limit.wait_s(client_of(request)))
        if refusal is None:
            role, by_cookie = self._role(request)
            scope.setdefault("state", {})["role"] = role
            refusal = self._refusal(request, role, by_cookie=by_cookie)
        await (refusal or self._inner)(scope, _limited(receive), send_protected)

    def _role(self, request: Request) -> tuple[Role | None, bool]:
        """Return the role of a request, and whether its cookie gives it."""
        if self._tokens.is_open:
            return Role.ADMIN, False
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme:
            return (self._tokens.role_of(token.strip()) if scheme.lower() == "bearer" else None), False
        return self._tokens.role_of_cookie(request.cookies.get(COOKIE, "")), True

    def _refusal(self, request: Request, role: Role | None, *, by_cookie: bool) -> Response | None:
        headers, path = request.headers, request.scope["path"]
        if self._tokens.is_open and not is_loopback(host_of(f"//{headers.get('host', '')}")):
            hint = "Use http://127.0.0.1 and the port, or configure tokens."
            return refused(403, "The Host header names another machine.", hint)
        is_read, origin = request.method in _READING, headers.get("origin")
        is_from_page = origin is not None and netloc_of(origin) == headers.get("host")
        if not is_read and not is_from_page and (origin is not None or (by_cookie and role is not None)):
            # with a cookie the browser must name the page, because it adds cookies to requests of other pages too
            return refused(403, "Requests of other web pages are refused.", "Send a bearer token.")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdecimal()) or int(length[:20]) > BODY_BYTES_MOST:
            return too_large()
        if _is_public(path):
            return None
        if role is None:
            if _has_credentials(request):
                self._limit.add_failure(client_of(request))
            hint = "Send `Authorization: Bearer TOKEN`, or sign in on the page."
            return refused(401, "A token is required.", hint, {"WWW-Authenticate": "Bearer"})
        if not is_read and role is not Role.ADMIN and path != "/v1/logout":
            return refused(403, "The token of a viewer cannot change anything.", "Use the token of an admin.")
        return None


def client_of(request: Request) -> str:
    """Return the address of the client; behind a proxy on this machine, the one that the proxy names."""
    return request.client.host if request.client is not None else ""


def _is_public(path: str) -> bool:
    return path in _PUBLIC or path.startswith("/static/")


def _has_credentials(request: Request) -> bool:
    """Return whether the request has a token that decides on the answer. A login has it in the body."""
    path = request.scope["path"]  # `request.url` is made from the Host header, which the client chooses
    has_token = "authorization" in request.headers or COOKIE in request.cookies
    return path == LOGIN or (has_token and not _is_public(path))


def too_many_failures(wait_s: int) -> Response | None:
    """Return the answer to a client that has sent too many tokens that are not valid; None if it need not wait."""
    if not wait_s:
        return None
    hint = f"Wait {wait_s} s, then use the token of an admin or a viewer."
    return refused(429, "Too many tokens of this address were not valid.", hint, {"Retry-After": str(wait_s)})


def refused(code: int, error: str, hint: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer to a request that is refused."""
    return JSONResponse(refusal_document(code, error, hint), status_code=code, headers=headers)


def refusal_document(code: int, error: str, hint: str, where: str = "") -> dict[str, object]:
    """Return the JSON object of an answer with the status ``code``, with the keys of other errors."""
    kind: type[CdcError] = CdcError if code in _NOT_THE_REQUEST else ConfigError
    return {"error": error, "where": where, "hint": hint, "exit_code": 1 if code >= 500 else 2, "class": kind.__name__}


def too_large() -> Response:
    """Return the answer to a request with a body that is too large."""
    error = f"The body is larger than {BODY_BYTES_MOST} bytes."
    return refused(413, error, "Send a smaller one.", {"Connection": "close"})


def _limited(receive: Receive) -> Receive:
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > BODY_BYTES_MOST:  # a chunked body has no length in its headers
            raise HTTPException(413, f"The body is larger than {BODY_BYTES_MOST} bytes.", {"Connection": "close"})
        return message

    return receive_limited
