"""Reads what is left of a request before its answer ends.

An answer can be complete before the body of its request has arrived: a body that is too large, a token that is not
valid. If the server closed the connection then, its system would answer the rest of the body with a reset, which can
reach the client before the answer does: the client would report a broken connection instead of the error.
Source: RFC 9112, 9.6 "Tear-down".
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

REST_BYTES_MOST = 64 << 20  # more is reset, and so is what is slower than this time
REST_S = 2.0


class UnreadBody:
    """Wraps an application: the last part of an answer is sent when the body has been read, up to a limit."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        is_read = not any(name in {b"content-length", b"transfer-encoding"} for name, _ in scope["headers"])

        async def receive_noted() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = message["type"] != "http.request" or not message.get("more_body", False)
            return message

        async def send_at_the_end(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False) and not is_read:
                await send({**message, "more_body": True})
                received = 0
                with suppress(TimeoutError):
                    async with asyncio.timeout(REST_S):
                        while not is_read and received < REST_BYTES_MOST:
                            received += len((await receive_noted()).get("body", b""))
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self._inner(scope, receive_noted, send_at_the_end)
