"""Hostile and broken Doris and StarRocks servers: bounded memory and time, and a product error for each fault."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cdc.checks.job import check_job
from cdc.config.models import load_config
from cdc.errors import CdcError, SinkUnavailable, TargetMismatch
from cdc.mysql.client import Limits
from channels.sinks.doris.client import DorisHttp
from channels.sinks.doris.errors import DORIS
from channels.sinks.starrocks.client import LoadTransaction, StarrocksHttp
from channels.sinks.starrocks.errors import STARROCKS
from channels.sinks.stream_load import bounded_http
from channels.sinks.stream_load import http as stream_load
from channels.sinks.stream_load.frontend import FrontendSql
from channels.sinks.stream_load.http import ClusterAddress, HttpClient, Unreachable
from channels.sinks.stream_load.messages import ProductMessages
from channels.sinks.stream_load.time_limit import TimeLimit
from tests.emulators.hostile import OK, Peer, column, greeting, hostile
from tests.integration.test_check import cdc
from tests.integration.test_hostile_servers import ANSWERS, BROKEN, PASSWORD, switch

FAST = Limits(login_s=0.3, answer_s=0.3, answer_bytes=4 << 20)
MAX_BYTES = 64 << 20
HEAD = b"HTTP/1.1 200 OK\r\n"


def drip(data: bytes) -> Callable[[Peer], None]:
    """Send ``data`` one byte at a time, so that each byte arrives within every limit for one read."""

    def script(peer: Peer) -> None:
        for byte in data * 100:
            peer.send(bytes([byte]))
            time.sleep(0.05)

    return script


def send_then_flood(head: bytes, data: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.send(head)
        peer.flood(data)

    return script


def body(data: bytes, head: bytes = HEAD) -> Callable[[Peer], None]:
    return lambda peer: peer.send(head + b"Content-Length: %d\r\n\r\n" % len(data) + data)


def redirect(location: bytes) -> Callable[[Peer], None]:
    return lambda peer: peer.send(b"HTTP/1.1 307 X\r\nLocation: " + location + b"\r\nContent-Length: 0\r\n\r\n")


HTTP: dict[str, Callable[[Peer], None]] = {
    "silent": lambda peer: peer.wait(),
    "closes": lambda peer: None,
    "drips the head": drip(b"HTTP/1.1 200 OK\r\nX: y\r\n"),
    "drips the body": lambda peer: (peer.send(HEAD + b"Content-Length: 100000\r\n\r\n"), drip(b"a")(peer))[0],
    "drips 100 Continue": drip(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "endless body": send_then_flood(HEAD + b"\r\n", bytes(1 << 16)),
    "endless chunks": send_then_flood(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    ),
    "endless trailers": send_then_flood(HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 1000),
    "endless headers": send_then_flood(HEAD, b"X: y\r\n" * 1000),
    "endless header line": send_then_flood(HEAD + b"X: ", b"y" * (1 << 16)),
    "endless first line": send_then_flood(b"HTTP/1.1 200 ", b"y" * (1 << 16)),
    "endless 100 Continue": send_then_flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "length without a body": lambda peer: (peer.send(HEAD + b"Content-Length: 99999999999999\r\n\r\n"), peer.wait())[0],
    "body that is cut": lambda peer: peer.send(HEAD + b'Content-Length: 100\r\n\r\n{"status": "OK"}'),
    "bad chunk size": lambda peer: peer.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
    "negative chunk size": lambda peer: peer.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n-5\r\n"),
    "huge chunk size": lambda peer: peer.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffff\r\n"),
    "no HTTP": lambda peer: peer.send(b"\x16\x03\x01\x00\x05\r\n\r\n"),
    "another protocol": lambda peer: peer.send(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "no JSON": body(b"<html>Log in</html>"),
    "empty": body(b""),
    "deep JSON": body(b"[" * 200_000),
    "deep JSON object": body(b'{"a":' * 200_000),
    "huge number": body(b'{"code": ' + b"9" * 100_000 + b"}"),
    "list": body(b"[]"),
    "null": body(b"null"),
    "bytes that are not UTF-8": body(b'{"status": "\xff\xfe"}'),
    "empty object": body(b"{}"),
    "other types": body(
        b'{"status": 1, "Status": "Success", "code": 0, "data": {"backends": [{"ip": 5}]}, "TxnId": "x", "msg": [1]}'
    ),
    "nodes that are not objects": body(b'{"data": {"backends": [null]}, "Status": {}, "state": [], "TxnId": {}}'),
    "control characters": body(b'{"status": "FAILED", "Status": "Fail", "msg": "\\u001b[2J", "Message": "\\u001b[2J"}'),
    "redirect without a host": redirect(b"/x"),
    "redirect to bytes": redirect(b"http://\xff\xfe/"),
    "redirect without a location": lambda peer: peer.send(b"HTTP/1.1 307 X\r\nContent-Length: 0\r\n\r\n"),
    "redirect to a bad address": redirect(b"http://[::1/"),
}


def http_script(answer: Callable[[Peer], None]) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            data += peer.exactly(1)
        answer(peer)

    return script


def doris_steps(address: ClusterAddress) -> list[Callable[[], object]]:
    http = DorisHttp(HttpClient(address))
    with_backends = DorisHttp(HttpClient(replace(address, backends=address.fe)))
    path = "/api/ods/t/_stream_load"
    return [
        lambda: http.state("ods", "x"),
        lambda: http.ask_backends(),
        lambda: with_backends.finish("commit", "ods", 1),
        lambda: with_backends.load(address.fe[0], path, {"label": "x"}, lambda: [b"row\n"]),
    ]


def starrocks_steps(address: ClusterAddress) -> list[Callable[[], object]]:
    http, transaction = StarrocksHttp(HttpClient(address)), LoadTransaction("ods", "x", "t")
    return [
        lambda: http.state("ods", "x"),
        lambda: http.ask("begin", transaction),
        lambda: http.load(transaction, {}, lambda: [b"row\n"]),
    ]


@pytest.mark.parametrize("steps", [doris_steps, starrocks_steps])
@pytest.mark.parametrize("name", HTTP)
def test_cluster_http_broken_reply_raises_a_product_error(
    name: str, steps: Callable[[ClusterAddress], list[Callable[[], object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_load, "_CONTINUE_S", 0.05)
    tracemalloc.start()
    try:
        with hostile(http_script(HTTP[name])) as server:
            address = ClusterAddress((f"127.0.0.1:{server.port}",), "cdc", PASSWORD, answer_timeout_s=0.15)
            monkeypatch.setattr("channels.sinks.doris.client._ASK_S", 0.15)
            monkeypatch.setattr("channels.sinks.doris.client._FINISH_S", 0.15)
            monkeypatch.setattr("channels.sinks.starrocks.client._ASK_S", 0.15)
            monkeypatch.setattr("channels.sinks.starrocks.client._STATE_S", 0.15)
            for step in steps(address):
                outcome = _outcome(step)
                assert PASSWORD not in outcome and "Traceback" not in outcome and "\x1b" not in outcome, outcome
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()


def _outcome(step: Callable[[], object]) -> str:
    """Return the text of a product error, or "" for a reply that is not a success."""
    try:
        answer = step()
    except (CdcError, Unreachable) as error:
        return str(error)
    assert not getattr(answer, "is_ok", False), answer
    assert getattr(answer, "status", "") != "Success" or not isinstance(answer, dict), answer
    return ""


def test_cluster_http_redirect_loop_ends() -> None:
    def script(peer: Peer) -> None:
        while True:
            http_script(redirect(b"http://127.0.0.1:%d/x" % server.port))(peer)

    with hostile(script) as server:
        http = HttpClient(ClusterAddress((f"127.0.0.1:{server.port}",), "cdc", PASSWORD))
        for client in (DorisHttp(http), StarrocksHttp(http)):
            with pytest.raises(SinkUnavailable, match="more than 3 redirects"):
                client.state("ods", "x")
        with pytest.raises(Unreachable, match="more than 3 redirects"):
            StarrocksHttp(http).load(LoadTransaction("ods", "x", "t"), {}, lambda: [b"row\n"])


def frontend(port: int, product: ProductMessages = DORIS) -> FrontendSql:
    sql = FrontendSql(ClusterAddress((f"127.0.0.1:{port}",), "cdc", PASSWORD, sql_port=port), product)
    sql.limits = FAST
    return sql


@pytest.mark.parametrize("name", ANSWERS)
def test_cluster_sql_broken_reply_raises_a_product_error(name: str) -> None:
    def script(peer: Peer) -> None:
        peer.packet(greeting(b"mysql_native_password"))
        for _ in range(2):  # the login, SET NAMES
            peer.read()
            peer.packet(OK)
        peer.read()
        ANSWERS[name](peer)
        if name != "closes":
            peer.wait()

    tracemalloc.start()
    try:
        with hostile(script) as server:
            sql = frontend(server.port)
            with pytest.raises(CdcError) as caught:
                sql.one("SELECT 1")
            sql.close()
            received = bytes(server.received)
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()
    assert caught.value.hint and PASSWORD not in str(caught.value)
    assert b"root:" not in received, "no local file is sent"


@pytest.mark.parametrize("name", BROKEN)
def test_cluster_sql_broken_login_raises_a_product_error(name: str) -> None:
    with hostile(BROKEN[name]) as server:
        sql = frontend(server.port, STARROCKS)
        with pytest.raises(CdcError) as caught:
            sql.ask("SELECT 1")
        received = bytes(server.received)
    assert caught.value.hint and PASSWORD.encode() not in received
    assert not any(ord(letter) < 32 for letter in str(caught.value))


def test_cluster_sql_clear_text_login_names_the_setting() -> None:
    with hostile(switch(b"mysql_clear_password")) as server:
        with pytest.raises(TargetMismatch, match="password was not sent") as caught:
            frontend(server.port).ask("SELECT 1")
        assert PASSWORD.encode() not in bytes(server.received)
    assert "sink.tls" in caught.value.hint


def test_cluster_load_body_has_a_send_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server reads the body more and more slowly."""
    monkeypatch.setattr(stream_load, "_SEND_S", 0.5)

    def script(peer: Peer) -> None:
        peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        while True:
            peer.exactly(1000)
            time.sleep(0.01)

    with hostile(script) as server:
        address = ClusterAddress((f"127.0.0.1:{server.port}",), "cdc", PASSWORD)
        pieces = (bytes(1 << 20) for _ in range(10_000))
        with pytest.raises(Unreachable, match="timed out"):
            DorisHttp(HttpClient(address)).load(address.fe[0], "/x", {}, lambda: pieces)


def one_row(peer: Peer) -> None:
    """Read a statement and reply with one row that is valid for any query."""
    peer.read()
    for packet in (b"\1", column(b"Value"), b"\xfe\0\0\2\0", b"\0054.1.0", b"\xfe\0\0\2\0"):
        peer.packet(packet)


def endless_rows(peer: Peer) -> None:
    peer.read()
    for packet in (b"\1", column(b"Value"), b"\xfe\0\0\2\0"):
        peer.packet(packet)
    while True:
        peer.packet(b"\xfc\xff\xff" + bytes(0xFFFF))


def dripped_rows(peer: Peer) -> None:
    peer.read()
    for packet in (b"\1", column(b"Value"), b"\xfe\0\0\2\0"):
        peer.packet(packet)
    while True:
        peer.packet(b"\1x")
        time.sleep(0.05)


# the behaviour of the SQL port for each statement after the login
SQL: dict[str, Callable[[Peer], None]] = {
    "silent": lambda peer: (peer.read(), peer.wait())[0],
    "silent after the first reply": lambda peer: (one_row(peer), peer.wait())[0],
    "endless rows": endless_rows,
    "slow rows": dripped_rows,
    "a reply to everything": lambda peer: [one_row(peer) for _ in range(1000)] and None,
}
JOB = """\
name: looked-at
source: {{type: binlog_files, path: ./mysql-bin.*}}
sink: {{type: {kind}, fe: ["127.0.0.1:{fe}"], sql_port: {sql}, username: cdc, password: "{password}"}}
channels: [{{source: shop.orders, target: ods.orders}}]
"""


@contextmanager
def hostile_job(folder: Path, kind: str, sql: str) -> Iterator[Path]:
    """Yield a job file for a cluster that accepts the login, then runs ``SQL[sql]``. Its HTTP port is silent."""

    def script(peer: Peer) -> None:
        peer.packet(greeting(b"mysql_native_password"))
        for _ in range(2):  # the login, SET NAMES
            peer.read()
            peer.packet(OK)
        SQL[sql](peer)

    (folder / "mysql-bin.000001").touch()
    with hostile(script) as statements, hostile(http_script(HTTP["silent"])) as requests:
        file = folder / "job.yaml"
        file.write_text(JOB.format(kind=kind, fe=requests.port, sql=statements.port, password=PASSWORD))
        yield file


@pytest.mark.parametrize("kind", ["doris", "starrocks"])
@pytest.mark.parametrize("sql", SQL)
def test_check_of_a_hostile_cluster_ends_with_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, sql: str
) -> None:
    monkeypatch.setattr("cdc.checks.job.TimeLimit", partial(TimeLimit, 0.5, 2.0))
    with hostile_job(tmp_path, kind, sql) as file:
        config = load_config(file)
        tracemalloc.start()
        started = time.monotonic()
        try:
            fatal = [finding for finding in check_job(config) if finding.fatal]
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert time.monotonic() - started < 240 and most < 600 << 20
    (found,) = [finding for finding in fatal if "does not answer" in finding.problem]
    assert PASSWORD not in found.problem and found.hint


def test_check_of_a_silent_cluster_ends_in_time(tmp_path: Path) -> None:
    with hostile_job(tmp_path, "doris", "silent") as file:
        started = time.monotonic()
        done = cdc(tmp_path, "check", str(file))
    assert done.returncode == 3 and "does not answer in time" in done.stdout, done.stdout + done.stderr
    assert time.monotonic() - started < 300, "15 s for the reply, plus the start of Python on a busy machine"


def test_check_time_limit_stops_requests() -> None:
    limit = TimeLimit(answer_s=5.0, total_s=0.0)
    with pytest.raises(TimeoutError):
        limit.seconds(1.0)
    address = ClusterAddress(("127.0.0.1:1",), "cdc", PASSWORD, sql_port=1, limit=limit)
    with pytest.raises(SinkUnavailable, match="waits no longer"):
        DorisHttp(HttpClient(address)).state("ods", "x")
    with pytest.raises(SinkUnavailable, match="waits no longer"):
        FrontendSql(address, DORIS).ask("SELECT 1")
    assert TimeLimit(answer_s=5.0, total_s=100.0).seconds(600.0) == 5.0


def test_reply_size_limits_are_far_above_real_replies() -> None:
    assert stream_load._ANSWER_BYTES >= 10_000 * 500, "10,000 nodes of 500 bytes"
    assert bounded_http._READ_BYTES < stream_load._ANSWER_BYTES
