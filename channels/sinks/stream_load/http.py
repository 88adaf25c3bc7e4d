"""HTTP for Stream Load: redirects within the cluster, 100-continue, keep-alive, the least busy host first.

``requests`` drops the credentials at a redirect to another host. It also sends a body without waiting for 100-continue:
a server that refuses a load by its headers then closes the connection, and its reason is lost. This client sends the
credentials to hosts of the cluster only (module ``hosts``) and refuses a redirect to any other host.

Source: RFC 9110, section 10.1.1 (Expect); Doris, ``LoadAction.java`` and ``stream_load.cpp``.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from cdc.keepalive import keep_alive
from cdc.logging_setup import HIDDEN, SECRET_LEAST, basic_token
from cdc.mysql.client import shown
from channels.sinks.stream_load.bounded_http import AnswerReader, read_body
from channels.sinks.stream_load.hosts import ClusterHosts, canonical
from channels.sinks.stream_load.login import NO_TLS, ClusterTls
from channels.sinks.stream_load.name_rules import header_value
from channels.sinks.stream_load.time_limit import TimeLimit

_CONTINUE_S = 10.0  # the body is sent after this time, even if the server has not asked for it
REDIRECTS = (301, 302, 303, 307, 308)
HOPS = 3  # follower FE, master FE, BE
PORTS = {"http": 80, "https": 443}  # for an address without a port
CHECK_TLS = (
    "Check `sink.tls`: its mode and `ca`, that `sink.fe` and `sink.be` name the ports for https and the names of the "
    "certificates, and that the cluster serves https and TLS for SQL."
)
_SEND_S = 3600.0  # for a body: the clusters cancel a load that takes longer
_ANSWER_BYTES = 8 << 20  # headers and body; the longest real answer, of thousands of nodes, has less than 1 MiB
_ASKED_LAST_S = 600.0  # a frozen FE costs the whole time limit of a request, and the others answer everything
IDLE_S = 30.0  # firewalls drop connections that were idle for longer, and a request then gets no answer

# host -> when it last did not answer in time; of the process, because executors get a new client with each part
_timed_out: dict[str, float] = {}


class Unreachable(Exception):
    """The server gave no answer: refused, disconnected, timed out, or not HTTP. It may have done the work."""

    def __init__(self, text: str, hint: str = "") -> None:
        """``hint``: how to fix it, if waiting does not help."""
        super().__init__(text)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's answer."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    secrets: tuple[str, ...] = field(default=(), repr=False)  # a proxy's page can echo the request with its credentials

    def text(self) -> str:
        """Return the body for a message, without secrets."""
        return _masked(self.body.decode(errors="replace"), self.secrets)

    def json(self) -> dict[str, Any]:
        """Return the JSON object of the body, without secrets in its messages.

        Raises: Unreachable - the body has none, for example a proxy's page.
        """
        try:
            found = json.loads(self.body)
            if isinstance(found, dict):
                return dict(self._without_secrets(found))
        except (ValueError, RecursionError) as error:
            raise Unreachable(f"answer {self.status} is no JSON: {self.text()[:200]!r}") from error
        raise Unreachable(f"answer {self.status} is no JSON object: {self.text()[:200]!r}")

    def _without_secrets(self, value: Any) -> Any:
        """Mask secrets in messages, which have spaces: a state or the name of a host may contain the password."""
        if isinstance(value, dict):
            return {name: self._without_secrets(each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._without_secrets(each) for each in value]
        return _masked(value, self.secrets) if isinstance(value, str) and " " in value else value


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """The hosts of a cluster, the account and the time limits. Picklable; the password is never printed."""

    fe: tuple[str, ...]  # host:port, for HTTP
    username: str
    password: str = field(repr=False)
    backends: tuple[str, ...] = ()  # host:port: BEs, or hosts that redirects may name, if the account may not list them
    sql_port: int = 9030
    connect_timeout_s: float = 5.0
    answer_timeout_s: float = 600.0  # a load is answered after all replicas have its rows
    connections: int = 8  # of one process, at the same time, to one host
    tls: ClusterTls = NO_TLS
    limit: TimeLimit | None = None  # for `cdc check`

    @property
    def authorization(self) -> str:
        """Return the value of the header."""
        return "Basic " + basic_token(self.username, self.password)

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the texts that no message may contain."""
        password = (self.password,) if len(self.password) >= SECRET_LEAST else ()
        return (basic_token(self.username, self.password), *password)


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: Callable[[], Iterable[bytes]] | None
    timeout_s: float


class HttpClient:
    """Requests to the hosts of one cluster, from any thread. Pickles without its connections."""

    def __init__(self, address: ClusterAddress, listed: Iterable[str] = ()) -> None:
        """``listed``: hosts that the cluster has listed, for executors, which have no SQL connection."""
        self.address = address
        self.hosts = ClusterHosts((*address.fe, *address.backends), PORTS[address.tls.scheme], listed)
        self._idle: dict[str, list[tuple[http.client.HTTPConnection, float]]] = {}  # and idle since when
        self._busy: dict[str, int] = {}  # running and waiting requests
        self._slots: dict[str, threading.Semaphore] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[HttpClient], tuple[ClusterAddress, tuple[str, ...]]]:
        return HttpClient, (replace(self.address, fe=self.frontends), self.hosts.listed)

    def __del__(self) -> None:
        self.close()  # executors do not close the writers that they unpickle

    @property
    def frontends(self) -> tuple[str, ...]:
        """The FEs, first the one to ask first: those that did not answer in time are last for 10 minutes."""
        expired = time.monotonic() - _ASKED_LAST_S
        return tuple(sorted(self.address.fe, key=lambda host: max(_timed_out.get(host, expired), expired)))

    def least_busy(self, hosts: Sequence[str], offset: int = 0) -> list[str]:
        """Return ``hosts``, those with the fewest requests of this process first; ``offset`` orders equal ones."""
        with self._lock:
            order = {host: (number - offset) % len(hosts) for number, host in enumerate(hosts)}
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
    ) -> Reply:
        """Send one request with the credentials. Redirects are not followed. Raises: Unreachable.

        ``body`` is sent chunked after the server has asked for it. ``host``: from the job file, known to ``hosts``,
        or a BE of Doris' ``/api/backends``.
        """
        all_headers = {"Authorization": self.address.authorization} | dict(headers or {})
        with self._lock:
            self._busy[host] = self._busy.get(host, 0) + 1
            slots = self._slots.setdefault(host, threading.Semaphore(self.address.connections))
        slots.acquire()
        connection: http.client.HTTPConnection | None = None
        limit, timeout_s = self.address.limit, timeout_s or self.address.answer_timeout_s
        try:
            timeout_s = limit.seconds(timeout_s) if limit else timeout_s
            connection = self._take(host)
            self._connect(connection)
            reply, can_go_on = self._exchange(connection, _Request(method, path, all_headers, body, timeout_s))
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            _close(connection)
            if isinstance(error, TimeoutError) and connection is not None:
                _timed_out[host] = time.monotonic()
            raise Unreachable(
                f"{self._named(method, host, path)}: "
                f"{shown(_masked(str(error), self.address.secrets)) or type(error).__name__}",
                CHECK_TLS if isinstance(error, ssl.SSLError) else "",
            ) from error
        except BaseException:
            _close(connection)
            raise
        finally:
            slots.release()
            with self._lock:
                self._busy[host] -= 1
        if can_go_on:
            with self._lock:
                self._idle.setdefault(host, []).append((connection, time.monotonic()))
        else:
            connection.close()
        return reply

    def _exchange(self, connection: http.client.HTTPConnection, request: _Request) -> tuple[Reply, bool]:
        """Return the answer, and True if the connection can be used for another request."""
        with AnswerReader(connection.sock, _ANSWER_BYTES) as reader:
            connection.response_class = reader.response  # type: ignore[assignment]
            connection.sock.settimeout(request.timeout_s)
            is_sent = self._send(connection, request, reader)
            reader.wait_at_most(request.timeout_s)
            with connection.getresponse() as response:
                found = {name.lower(): value for name, value in response.getheaders()}
                reply = Reply(response.status, found, read_body(response), self.address.secrets)
        # a server that still expects a body reads the next request as this body
        return reply, is_sent and not response.will_close

    def redirected(
        self,
        method: str,
        host: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Reply:
        """Send a request without body and follow its redirects within the cluster. Raises: Unreachable."""
        for _ in range(HOPS):
            reply = self.request(method, host, path, headers=headers, timeout_s=timeout_s)
            if reply.status not in REDIRECTS:
                return reply
            host, path = self.follow(reply, self._named(method, host, path))
        raise too_many_redirects(self._named(method, host, path))

    def ask_frontends(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, timeout_s: float | None = None
    ) -> Reply:
        """Return the answer of the first FE that answers, after redirects. Raises: Unreachable."""
        return each_host(
            self.frontends, lambda host: self.redirected(method, host, path, headers=headers, timeout_s=timeout_s)
        )

    def _named(self, method: str, host: str, path: str) -> str:
        """Return the text of a request for messages."""
        return f"{method} {self.address.tls.scheme}://{host}{path.partition('?')[0]}"

    def follow(self, reply: Reply, asked: str) -> tuple[str, str]:
        """Return the host and the path of a redirect. Nothing is sent.

        ``asked``: the request, for messages. Raises: Unreachable - the host does not belong to the cluster.
        """
        scheme, host, path = split_location(reply.headers.get("location", ""))
        where = f"{asked} is redirected to {shown(f'{scheme}://{host}')}"
        if scheme != self.address.tls.scheme:
            hint = "Set `sink.tls`, and name the ports for https in `sink.fe`." if scheme == "https" else ""
            raise Unreachable(f"{where}, and not to {self.address.tls.scheme}; nothing was sent to it", hint)
        if not self.hosts.is_known(host):
            raise Unreachable(
                f"{where}. Neither the job file nor the cluster lists this host, and nothing was sent to it",
                "If the host belongs to the cluster, add it to `sink.be`, or to `sink.fe` if it is a frontend; or let "
                "the account list the nodes (SHOW FRONTENDS, SHOW BACKENDS).",
            )
        return host, path

    def page(self, url: str) -> str:
        """Return the log of rejected rows that an answer names.

        Return the reason if it cannot be read. Hosts outside the cluster are not asked.
        """
        try:
            scheme, host, path = split_location(url)
            if scheme != self.address.tls.scheme or not self.hosts.is_known(host):
                return f"the log of rejected rows is not read: {shown(host)} is not listed as a host of the cluster"
            return self.request("GET", host, path, timeout_s=10).text()
        except Unreachable as error:
            return f"the log of rejected rows could not be read: {error}"

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
                # a socket that is readable without a request was closed by the server
                if is_fresh and not _is_readable(connection.sock, 0):
                    return connection
                connection.close()
        timeout_s, context = self.address.connect_timeout_s, self.address.tls.context
        if context is not None:
            return http.client.HTTPSConnection(host, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(host, timeout=timeout_s)

    def _connect(self, connection: http.client.HTTPConnection) -> None:
        if connection.sock is None:
            connection.connect()
            assert connection.sock is not None
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(connection.sock)  # a load is answered after minutes; a dead host never answers

    def _send(self, connection: http.client.HTTPConnection, request: _Request, reader: AnswerReader) -> bool:
        """Return True if the whole request was sent."""
        connection.putrequest(request.method, request.path, skip_accept_encoding=True)
        for name, value in request.headers.items():
            connection.putheader(name, header_value(value))
        if request.body is None:
            connection.putheader("Content-Length", "0")
            connection.endheaders()
            return True
        connection.putheader("Transfer-Encoding", "chunked")
        connection.putheader("Expect", "100-continue")
        connection.endheaders()
        if not reader.asks_for_body(_CONTINUE_S):
            return False
        until = time.monotonic() + _SEND_S
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            # a server can answer and close before it has read the whole body; its answer is read anyway
            for piece in _ahead(request.body()):
                connection.sock.settimeout(max(0.001, min(request.timeout_s, until - time.monotonic())))
                connection.sock.sendall(b"%x\r\n" % len(piece))
                connection.sock.sendall(piece)
                connection.sock.sendall(b"\r\n")
            connection.sock.sendall(b"0\r\n\r\n")
            return True
        return False


def _ahead(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield ``pieces``. Each one is made while the previous one is sent."""
    source = iter(pieces)
    with ThreadPoolExecutor(1, "body") as thread:
        following = thread.submit(next, source, None)
        while (piece := following.result()) is not None:
            following = thread.submit(next, source, None)
            yield piece


def split_location(location: str) -> tuple[str, str, str]:
    """Return scheme, host and path of a redirect, without its credentials, escapes as they are. Raises: Unreachable."""
    try:
        url = urlsplit(location)
        scheme = url.scheme.lower()
        host = canonical(url.netloc.rpartition("@")[2], PORTS.get(scheme, 0))
    except ValueError as error:
        raise Unreachable(f"a redirect names no host: {shown(location.rpartition('@')[2])!r}") from error
    return scheme, host, (url.path or "/") + (f"?{url.query}" if url.query else "")


def too_many_redirects(asked: str) -> Unreachable:
    """Return the error of a redirect loop."""
    return Unreachable(f"{asked}: more than {HOPS} redirects")


def _masked(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text


def _close(connection: http.client.HTTPConnection | None) -> None:
    if connection is not None:
        connection.close()


def _is_readable(sock: socket.socket, timeout_s: float) -> bool:
    poll = select.poll()  # select() fails for file descriptors above 1023
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def each_host(hosts: Iterable[str], ask: Callable[[str], Reply]) -> Reply:
    """Return the answer of the first host that answers. Raises: Unreachable - none does; with the last reason."""
    last: Unreachable | None = None
    for host in hosts:
        try:
            reply = ask(host)
        except Unreachable as error:
            last = error
            continue
        if reply.status < 500:
            return reply
        last = Unreachable(f"{host} answers {reply.status}: {reply.text()[:200]!r}")
    raise last or Unreachable("no host is known")
