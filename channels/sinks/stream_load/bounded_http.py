"""HTTP answers of bounded size and time.

``http.client`` has a time limit per read, so a server that sends one byte per second keeps a request open forever. It
also reads a body of any length into memory. Here one deadline and one size limit apply to a whole answer.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import re
import socket
import time
from typing import Any

_READ_BYTES = 64 << 10
_STATUS = re.compile(rb"HTTP/\d\.\d (\d{3})")
_HEAD_END = re.compile(rb"\r?\n\r?\n")


class AnswerTooLarge(OSError):
    """An answer is larger than its limit."""


class _Incoming(io.RawIOBase):
    """The bytes that a socket receives, within a deadline and a size limit."""

    def __init__(self, sock: socket.socket, most_bytes: int) -> None:
        self._sock, self._left = sock, most_bytes
        self._limit = most_bytes
        self.deadline = float("inf")
        self.unread = b""  # received bytes that are read again
        # http.client closes the socket of the last answer before it reads the body; this keeps it open
        self._hold = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.unread:
            count = min(len(buffer), len(self.unread))
            buffer[:count], self.unread = self.unread[:count], self.unread[count:]
            return count
        if self._left <= 0:
            raise AnswerTooLarge(f"the answer is longer than {self._limit} bytes")
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the answer does not end in time")
        self._sock.settimeout(left_s)
        count = self._sock.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count

    def close(self) -> None:
        self._hold.close()
        super().close()


class AnswerReader(io.BufferedReader):
    """Reads one answer of a connection: first 100-continue if the server sends it, then the answer."""

    def __init__(self, sock: socket.socket, most_bytes: int) -> None:
        self._incoming = _Incoming(sock, most_bytes)
        super().__init__(self._incoming)

    def wait_at_most(self, seconds: float) -> None:
        """Set the deadline of all following reads."""
        self._incoming.deadline = time.monotonic() + seconds

    def asks_for_body(self, wait_s: float) -> bool:
        """Return True if the server answers 100, or no status within ``wait_s``. Call it before other reads.

        The answer can arrive in pieces of any size, so it is read up to the end of the headers of 100, or up to another
        status. The reader returns these bytes again, and ``http.client`` skips the answer 100.
        """
        self.wait_at_most(wait_s)
        head, is_other = b"", False
        with contextlib.suppress(TimeoutError):
            while not is_other and not _HEAD_END.search(head) and (piece := self._incoming.read(_READ_BYTES)):
                head += piece
                status = _STATUS.match(head)
                is_other = b"\n" in head if status is None else status[1] != b"100"
        self._incoming.unread = head
        return not is_other

    def response(self, sock: socket.socket, debuglevel: int = 0, method: str | None = None) -> http.client.HTTPResponse:
        """Return a response that reads from this object. ``http.client`` calls it as ``response_class``."""
        found = http.client.HTTPResponse(sock, debuglevel, method=method)
        found.fp.close()
        found.fp = self
        return found


def read_body(response: http.client.HTTPResponse) -> bytes:
    """Return the body. Memory grows with the received bytes, not with the length that the server announces.

    Raises: http.client.IncompleteRead - the server closed the connection within the body; OSError.
    """
    pieces = []
    while piece := response.read1(_READ_BYTES):
        pieces.append(piece)
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    return b"".join(pieces)
