"""A local S3 server with buckets of its own for each test, and a proxy before it that fails as networks and stores do."""

from __future__ import annotations

import http.client
import itertools
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from cdc.demo.local_servers import free_port
from channels.sinks.delta.object_path import ObjectPath, ObjectStore

KEY, SECRET = "lake-user", "open-sesame-21"  # moto accepts any; tests look for the secret where it must not be
_NUMBERS = itertools.count()
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


class S3Server:
    """moto's S3 server, on loopback. It has a process of its own, because readers of Delta block this one's threads."""

    def __init__(self) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def bucket(self) -> Bucket:
        """Create an empty bucket, when the server has started."""
        deadline = time.monotonic() + 120
        while True:
            try:
                return self._create(f"lake-{next(_NUMBERS)}")
            except ConnectionRefusedError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _create(self, name: str) -> Bucket:
        with closing(http.client.HTTPConnection(self.address, timeout=120)) as connection:
            connection.request("PUT", f"/{name}")
            assert connection.getresponse().status == 200
        return Bucket(f"http://{self.address}", name)

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


@dataclass
class FaultProxy:
    """A proxy before a server. ``decide`` is called for each request, by any thread; it may wait."""

    target: str
    decide: Callable[[Request], Fault | None] = lambda request: None
    requests: list[Request] = field(default_factory=list)
    endpoint: str = ""

    def through(self, bucket: Bucket) -> Bucket:
        """Return ``bucket`` behind this proxy."""
        return Bucket(self.endpoint, bucket.name)


@contextmanager
def fault_proxy(bucket: Bucket) -> Iterator[FaultProxy]:
    proxy = FaultProxy(bucket.endpoint.partition("//")[2])
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Bound", (_Handler,), {"proxy": proxy}))
    server.daemon_threads = True
    proxy.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    proxy: FaultProxy
    protocol_version = "HTTP/1.1"

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        conditional = "If-None-Match" in self.headers or "If-Match" in self.headers
        request = Request(self.command, self.path, conditional)
        self.proxy.requests.append(request)
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
