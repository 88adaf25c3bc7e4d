"""A local S3 server with buckets of its own for each test, and a proxy before it that fails as networks and stores do."""

from __future__ import annotations

import http.client
import itertools
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import quote
from xml.etree import ElementTree

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from cdc.demo.local_servers import free_port
from cdc.errors import SinkUnavailable
from channels.sinks.delta.object_path import ObjectPath, ObjectStore

KEY, SECRET = "lake-user", "open-sesame-21"  # moto accepts any; tests look for the secret where it must not be
_NUMBERS = itertools.count()
_XML = "{http://s3.amazonaws.com/doc/2006-03-01/}"
_SIGNED = {"Authorization": f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request"}  # moto wants any
_Result = TypeVar("_Result")
_CONFLICT = b"<Error><Code>ConditionalRequestConflict</Code><Message>try again</Message></Error>"
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>reduce your request rate</Message></Error>"
_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


@dataclass(frozen=True)
class Bucket:
    """A bucket of a running server."""

    endpoint: str  # http://127.0.0.1:port
    name: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    @property
    def options(self) -> dict[str, str]:
        return {
            "aws_endpoint": self.endpoint,
            "aws_region": "us-east-1",
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
            "allow_http": "true",
        }

    @property
    def yaml(self) -> str:
        """The key ``sink.storage`` of a job file."""
        return (
            f"{{endpoint: '{self.endpoint}', region: us-east-1, access_key_id: {KEY}, secret_access_key: {SECRET}, "
            "allow_http: true}"
        )

    def path(self, key: str) -> ObjectPath:
        return ObjectPath(ObjectStore(self.url, tuple(sorted(self.options.items()))), key)

    def open(self, folder: str, version: int | None = None) -> DeltaTable:
        """Open the table in ``folder``, a path below the bucket, as any reader does."""
        return DeltaTable(self.path(folder).as_uri(), version=version, storage_options=self.options)

    def read(self, folder: str, version: int | None = None) -> pa.Table:
        builder = QueryBuilder().register("t", self.open(folder, version))
        return pa.table(builder.execute("select * from t").read_all())

    def objects(self, prefix: str = "") -> dict[str, str]:
        """Return the tag of each object whose key starts with ``prefix``, without the client of the product."""
        found: dict[str, str] = {}
        with closing(self._connect()) as connection:
            more = ""
            while True:
                connection.request("GET", f"/{self.name}?list-type=2&prefix={quote(prefix, safe='')}{more}")
                page = ElementTree.fromstring(_body(connection))
                for one in page.iter(f"{_XML}Contents"):
                    found[one.findtext(f"{_XML}Key", "")] = one.findtext(f"{_XML}ETag", "")
                token = page.findtext(f"{_XML}NextContinuationToken")
                if token is None:
                    return found
                more = f"&continuation-token={quote(token, safe='')}"

    def contents(self, keys: Iterator[str] | list[str]) -> Iterator[bytes]:
        """Yield the content of each of ``keys``, without the client of the product."""
        with closing(self._connect()) as connection:
            for key in keys:
                connection.request("GET", f"/{self.name}/{quote(key)}", headers=_SIGNED)
                yield _body(connection)

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.endpoint.partition("//")[2], timeout=120)


def _body(connection: http.client.HTTPConnection) -> bytes:
    response = connection.getresponse()
    content = response.read()
    assert response.status == 200, f"{response.status}: {content[:200]!r}"
    return content


def create_bucket(endpoint: str, name: str) -> Bucket:
    """Create an empty bucket on a running server. ``endpoint``: http://127.0.0.1:port."""
    with closing(http.client.HTTPConnection(endpoint.partition("//")[2], timeout=120)) as connection:
        connection.request("PUT", f"/{name}")
        assert connection.getresponse().status == 200
    return Bucket(endpoint, name)


class S3Server:
    """moto's S3 server, on loopback. It has a process of its own, because readers of Delta block this one's threads."""

    def __init__(self) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def bucket(self) -> Bucket:
        """Create an empty bucket, when the server has started."""
        return create_bucket(self.wait(), f"lake-{next(_NUMBERS)}")

    def wait(self) -> str:
        """Return the endpoint when the server has started."""
        deadline = time.monotonic() + 120
        while True:
            try:
                with socket.create_connection(("127.0.0.1", int(self.address.partition(":")[2])), 120):
                    return f"http://{self.address}"
            except ConnectionRefusedError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(120)


class Fault(Enum):
    """What the proxy does with a request."""

    LOST_ANSWER = "the request is done, and the connection ends without an answer"
    CONFLICT = "409, and nothing is done"
    REPEATED = "the request is done twice; the answer is the second one's, as after a retry of the client"
    UNAVAILABLE = "503, and nothing is done"
    SLOW = "the answer comes late"
    DENIED = "403, and nothing is done"
    UNCONDITIONAL = "the conditions of the request are ignored, as by an old store"


@dataclass(frozen=True)
class Request:
    """A request that reaches the proxy."""

    method: str
    path: str  # with the bucket and the query, percent-encoded
    conditional: bool


class DrawnFaults:
    """Draw faults for a share of the requests; see ``FaultProxy.decide``. A job survives all of them.

    Writes of log entries and claims, which have conditions, get most of them. The rarest fault so far is drawn first.
    """

    def __init__(
        self, seed: object, share: float, most: int = 10**9, log: Callable[[str], object] = lambda line: None
    ) -> None:
        """``share``: of the writes; of conditional ones four times as many, of reads a quarter. ``most``: ends it."""
        self.drawn: Counter[Fault] = Counter()
        self._draw, self._share, self._most, self._log = random.Random(f"store {seed}"), share, most, log
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> Fault | None:
        kinds = [Fault.LOST_ANSWER, Fault.UNAVAILABLE, Fault.SLOW]
        share = self._share / 4 if request.method in ("GET", "HEAD") else self._share
        if request.method == "PUT":
            kinds.append(Fault.REPEATED)
            if request.conditional:
                kinds.append(Fault.CONFLICT)
                share *= 4
        with self._lock:
            if self._draw.random() >= share or self.drawn.total() >= self._most:
                return None
            self._draw.shuffle(kinds)
            fault = min(kinds, key=lambda kind: self.drawn[kind])
            self.drawn[fault] += 1
        self._log(f"the store draws {fault.name} for {request.method} {request.path}")
        return fault


def retried(action: Callable[[], _Result], tries: int = 20) -> _Result:
    """Return the result of ``action``. Repeat it after each SinkUnavailable, as a job does."""
    for _ in range(tries):
        with suppress(SinkUnavailable):
            return action()
    raise AssertionError(f"it failed {tries} times")


@dataclass
class FaultProxy:
    """A proxy before a server. ``decide`` is called for each request, by any thread; it may wait."""

    target: str
    decide: Callable[[Request], Fault | None] = lambda request: None
    endpoint: str = ""

    def through(self, bucket: Bucket) -> Bucket:
        """Return ``bucket`` behind this proxy."""
        return Bucket(self.endpoint, bucket.name)


@contextmanager
def fault_proxy(bucket: Bucket) -> Iterator[FaultProxy]:
    proxy = FaultProxy(bucket.endpoint.partition("//")[2])
    server = _Server(("127.0.0.1", 0), type("_Bound", (_Handler,), {"proxy": proxy}))
    proxy.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # the client was killed
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultProxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each answer waits 40 ms for the acknowledgement of its headers

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:  # the client was killed, and a store ignores half a request
            self.close_connection = True
            return
        conditional = "If-None-Match" in self.headers or "If-Match" in self.headers
        request = Request(self.command, self.path, conditional)
        fault = self.proxy.decide(request)
        if fault is Fault.CONFLICT:
            self._answer(409, {}, _CONFLICT)
        elif fault is Fault.UNAVAILABLE:
            self._answer(503, {}, _SLOW_DOWN)
        elif fault is Fault.DENIED:
            self._answer(403, {}, _DENIED)
        else:
            headers = dict(self.headers.items())
            if fault is Fault.UNCONDITIONAL:
                headers = {name: value for name, value in headers.items() if name.lower() not in _CONDITIONS}
            if fault is Fault.REPEATED:
                self._forward(headers, body)
            found = self._forward(headers, body)
            if fault is Fault.SLOW:
                time.sleep(0.05)
            if fault is Fault.LOST_ANSWER:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self._answer(*found)

    def _forward(self, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.proxy.target, timeout=120)
        try:
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _serve

    def log_message(self, *_: Any) -> None:
        pass


_CONDITIONS = ("if-none-match", "if-match")
