"""HTTP as Stream Load needs it: redirects that keep credentials, 100-continue, keep-alive, the least busy host first.

``requests`` would drop the credentials at a redirect to another host, and send a body without waiting to be asked for
it; a server that refuses a load by its headers then cuts the connection, and its reason is lost.

Source: RFC 9110, section 10.1.1 (Expect); Doris, ``LoadAction.java`` and ``stream_load.cpp``.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import itertools
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_CONTINUE_S = 10.0  # how long a body waits to be asked for; then it is sent all the same
_REDIRECTS = 3  # follower FE, master FE, BE
IDLE_S = 30.0  # a line that was quiet for longer may be forgotten on its way: who asks over it waits in vain


class Unreachable(Exception):
    """No answer: refused, cut, timed out, or not HTTP. What was asked may have happened."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server said."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> dict[str, Any]:
        """The body's JSON object. Raises: Unreachable - it is none: a proxy's page, or a fault of the server."""
        try:
            found = json.loads(self.body)
        except ValueError as error:
            raise Unreachable(f"answer {self.status} is no JSON: {self.body[:200]!r}") from error
        if not isinstance(found, dict):
            raise Unreachable(f"answer {self.status} is no JSON object: {self.body[:200]!r}")
        return found


@dataclass(frozen=True, slots=True)
class Access:
    """Where a cluster is and who asks. Travels to executors; the password never prints."""

    fe: tuple[str, ...]  # host:port, for HTTP
    username: str
    password: str = field(repr=False)
    backends: tuple[str, ...] = ()  # host:port; asked of the FE when empty
    connect_timeout_s: float = 5.0
    answer_timeout_s: float = 600.0  # a load's answer comes once all replicas have its rows
    connections: int = 8  # at once to one host, of a process

    @property
    def authorization(self) -> str:
        """The header's value."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()


class HttpClient:
    """Requests to the hosts of one cluster, from any thread. Pickles without its connections."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._idle: dict[str, list[tuple[http.client.HTTPConnection, float]]] = {}  # and since when
        self._busy: dict[str, int] = {}  # those that wait for their turn among them
        self._turns: dict[str, threading.Semaphore] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[HttpClient], tuple[Access]]:
        return HttpClient, (self.access,)

    def __del__(self) -> None:
        self.close()  # a writer that an executor unpickled goes without being closed

    def least_busy(self, hosts: Sequence[str], turn: int = 0) -> list[str]:
        """``hosts``, those with the fewest requests of ours under way first; ``turn`` decides among equals."""
        with self._lock:
            order = {host: (number - turn) % len(hosts) for number, host in enumerate(hosts)}
            return sorted(hosts, key=lambda host: (self._busy.get(host, 0), order[host]))

    def request(
        self,
        method: str,
        host: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Callable[[], Iterable[bytes]] | None = None,
        timeout_s: float | None = None,
        trusted: bool = True,
    ) -> Reply:
        """One request without redirects; ``body`` is sent chunked once the server asks for it.

        ``trusted``: with our credentials.

        Raises: Unreachable.
        """
        credentials = {"Authorization": self.access.authorization} if trusted else {}
        with self._lock:
            self._busy[host] = self._busy.get(host, 0) + 1
            turns = self._turns.setdefault(host, threading.Semaphore(self.access.connections))
        turns.acquire()
        connection = self._take(host)
        try:
            self._connect(connection, timeout_s or self.access.answer_timeout_s)
            is_sent = self._send(connection, method, path, credentials | dict(headers or {}), body)
            response = connection.getresponse()
            reply = Reply(
                response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
            )
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Unreachable(
                f"{method} http://{host}{path.partition('?')[0]}: {error or type(error).__name__}"
            ) from error
        except BaseException:
            connection.close()
            raise
        finally:
            turns.release()
            with self._lock:
                self._busy[host] -= 1
        if response.will_close or not is_sent:  # a server that still expects a body takes the next request for it
            connection.close()
        else:
            with self._lock:
                self._idle.setdefault(host, []).append((connection, time.monotonic()))
        return reply

    def redirected(
        self,
        method: str,
        host: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Reply:
        """A request without body that follows redirects with its credentials. Raises: Unreachable."""
        for _ in range(_REDIRECTS):
            reply = self.request(method, host, path, headers=headers, timeout_s=timeout_s)
            if reply.status not in (301, 302, 307, 308):
                return reply
            host, path = split_location(reply.headers.get("location", ""))
        raise Unreachable(f"{method} http://{host}{path}: more than {_REDIRECTS} redirects")

    def page(self, url: str) -> str:
        """A page that an answer names, the log of refused rows; what went wrong instead, where it cannot be had.

        It may lie anywhere, in an object store too: our password goes to hosts alone that have had it before.
        """
        try:
            host, path = split_location(url)
            return self.request("GET", host, path, timeout_s=10, trusted=host in self._turns).body.decode(
                errors="replace"
            )
        except Unreachable as error:
            return f"the log of refused rows could not be read: {error}"

    def close(self) -> None:
        """Close idle connections. Harmless when repeated."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connection, _ in itertools.chain.from_iterable(idle.values()):
            connection.close()

    def _take(self, host: str) -> http.client.HTTPConnection:
        with self._lock:
            while idle := self._idle.get(host):
                connection, since = idle.pop()
                is_fresh = connection.sock is not None and time.monotonic() - since < IDLE_S
                # readable while nothing was asked: the server has closed it
                if is_fresh and not _is_readable(connection.sock, 0):
                    return connection
                connection.close()
        return http.client.HTTPConnection(host, timeout=self.access.connect_timeout_s)

    def _connect(self, connection: http.client.HTTPConnection, answer_timeout_s: float) -> None:
        if connection.sock is None:
            connection.connect()
            assert connection.sock is not None
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock.settimeout(answer_timeout_s)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Callable[[], Iterable[bytes]] | None,
    ) -> bool:
        """Whether the whole request went out."""
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value.encode())
        if body is None:
            connection.putheader("Content-Length", "0")
            connection.endheaders()
            return True
        connection.putheader("Transfer-Encoding", "chunked")
        connection.putheader("Expect", "100-continue")
        connection.endheaders()
        if not _asked_for(connection.sock):
            return False
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # a server that has seen enough answers and closes: its answer is read all the same
            for piece in _ahead(body()):
                connection.sock.sendall(b"%x\r\n" % len(piece))
                connection.sock.sendall(piece)
                connection.sock.sendall(b"\r\n")
            connection.sock.sendall(b"0\r\n\r\n")
            return True
        return False


def _ahead(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """``pieces``, each of them made while the one before it is sent."""
    source = iter(pieces)
    with ThreadPoolExecutor(1, "body") as thread:
        coming = thread.submit(next, source, None)
        while (piece := coming.result()) is not None:
            coming = thread.submit(next, source, None)
            yield piece


def split_location(location: str) -> tuple[str, str]:
    """Host and path of a redirect, without its credentials, escapes as they are. Raises: Unreachable."""
    url = urlsplit(location)
    if not url.netloc:
        raise Unreachable(f"redirect to nowhere: {location!r}")
    return url.netloc.rpartition("@")[2], url.path + (f"?{url.query}" if url.query else "")


def _asked_for(sock: socket.socket) -> bool:
    """Whether the server wants the body: it said 100, or nothing for a while. Else its answer waits to be read."""
    if not _is_readable(sock, _CONTINUE_S):
        return True
    return sock.recv(13, socket.MSG_PEEK).split(b" ")[1:2] in ([b"100"], [])


def _is_readable(sock: socket.socket, timeout_s: float) -> bool:
    poll = select.poll()  # select() itself refuses sockets of a process that has more than a thousand files open
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def each_host(hosts: Iterable[str], ask: Callable[[str], Reply]) -> Reply:
    """The first answer that any of ``hosts`` gives. Raises: Unreachable - none does; the last reason."""
    last: Unreachable | None = None
    for host in hosts:
        try:
            reply = ask(host)
        except Unreachable as error:
            last = error
            continue
        if reply.status < 500:
            return reply
        last = Unreachable(f"http://{host} answers {reply.status}: {reply.body[:200]!r}")
    raise last or Unreachable("no host is known")


def waits(first_s: float, longest_s: float) -> Iterator[float]:
    """Growing pauses between tries."""
    pause = first_s
    while True:
        yield pause
        pause = min(pause * 2, longest_s)
