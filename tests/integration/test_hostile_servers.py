"""Hostile and broken servers: no password is sent, memory and time are bounded, each fault raises a product error."""

from __future__ import annotations

import hashlib
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from cdc.checks.mysql import _unguarded, check_source
from cdc.errors import CdcError, DecodeError, SourceUnavailable
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, Kind
from cdc.mysql.client import GuardedConnection, Limits
from cdc.mysql.connection import Endpoint, ServerError, Tls, connect, translated
from cdc.mysql.query_stream import Select
from cdc.mysql.server import Server
from cdc.sources.binlog.decoder.decoder import BinlogDecoder
from cdc.sources.binlog.decoder.framing import NEED
from cdc.sources.binlog.decoder.stream_buffer import StreamBuffer
from cdc.sources.binlog.replication_stream import BinlogStream
from cdc.sources.canal.client import CanalClient
from cdc.sources.canal.protocol_pb2 import Ack, Handshake, Packet
from tests.emulators.hostile import OK, Peer, column, greeting, hostile, logged_in
from tests.integration.test_check import cdc
from tests.support.decoding import Schemas
from tests.support.receiving import Mapped, identity

PASSWORD = "s3cret-pässword"
FAST = Limits(login_s=1.0, answer_s=1.0, answer_bytes=8 << 20)
MAX_BYTES = 64 << 20
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEY.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


@pytest.fixture
def remote(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the servers of the test as servers on another machine."""
    monkeypatch.setattr(GuardedConnection, "_is_local", lambda _: False)


def endpoint(port: int, tls: Tls | None = None, host: str = "127.0.0.1") -> Endpoint:
    return Endpoint(host, port, "cdc", PASSWORD, tls or Tls("off"), limits=FAST)


def failed_login(script: Callable[[Peer], None], tls: Tls | None = None) -> tuple[SourceUnavailable, bytes]:
    """Return the error of a login and all bytes that the server received. Neither may contain a secret."""
    with hostile(script) as server:
        with pytest.raises(SourceUnavailable) as caught:
            connect(endpoint(server.port, tls)).close()
        received = bytes(server.received)
    error = caught.value
    assert error.hint and str(server.port) in error.location
    for text in (PASSWORD, "Traceback"):
        assert text not in str(error)
    assert not any(ord(letter) < 32 or 127 <= ord(letter) < 160 for letter in str(error))
    plain = PASSWORD.encode()
    for secret in (plain, hashlib.sha1(plain).digest(), hashlib.sha256(plain).digest()):
        assert secret not in received
    return error, received


def switch(plugin: bytes, *more: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.packet(greeting())
        peer.read()
        peer.packet(b"\xfe" + plugin + b"\0" + b"abcdefghijklmnopqrst\0")
        for packet in more:
            peer.read()
            peer.packet(packet)
        peer.wait()

    return script


def first(plugin: bytes, *more: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.packet(greeting(plugin))
        for packet in more:
            peer.read()
            peer.packet(packet)
        peer.wait()

    return script


@pytest.mark.parametrize(
    "script",
    [
        switch(b"mysql_clear_password"),
        switch(b"dialog"),
        switch(b"mysql_old_password"),
        switch(b"authentication_ldap_sasl_client"),
        switch(b"\x1b[2J"),
        switch(b"caching_sha2_password", b"\1\4", b"\1" + PEM),
        switch(b"sha256_password", b"\1" + PEM),
        first(b"caching_sha2_password", b"\1\4", b"\1" + PEM),
        first(b"caching_sha2_password", b"\1" + PEM),
        first(b"sha256_password", b"\1" + PEM),
        first(b"mysql_clear_password", b"\xfemysql_clear_password\0"),
        first(b"caching_sha2_password", b"\xfe"),
    ],
)
def test_login_password_is_not_sent_to_an_unverified_server(remote: None, script: Callable[[Peer], None]) -> None:
    error, received = failed_login(script)
    assert "the password was not sent" in error.message and "source.tls" in error.hint
    assert len(received) < 300, "an encrypted password needs 256 more bytes"


def test_login_clear_text_on_loopback_raises() -> None:
    assert "clear text" in failed_login(switch(b"mysql_clear_password"))[0].message


@pytest.mark.parametrize("mode", ["required", "verify_ca", "verify_identity"])
def test_login_server_without_tls_fails_before_credentials(mode: str) -> None:
    error, received = failed_login(first(b"caching_sha2_password", OK), Tls(mode))
    assert "TLS" in error.message and received == b""


def test_login_required_tls_names_the_setting() -> None:
    text = b"\xff" + struct.pack("<H", 3159) + b"#HY000Connections using insecure transport are prohibited"
    error, _ = failed_login(first(b"caching_sha2_password", text))
    assert "require_secure_transport" in error.message and "source.tls" in error.hint


def test_login_uses_the_pinned_public_key_only(remote: None, tmp_path: Path) -> None:
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    file = tmp_path / "public_key.pem"
    file.write_bytes(
        other.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    tls = Tls("off", public_key=str(file))
    offered, _ = failed_login(first(b"caching_sha2_password", b"\1" + PEM), tls)
    assert "key of its own" in offered.message
    _, received = failed_login(first(b"caching_sha2_password", b"\1\4", b"\xff\x15\x04#28000no"), tls)
    assert len(received) > 256, "encrypted with the pinned key"


@pytest.mark.parametrize("text", ["no", "", None])
def test_login_unreadable_public_key_names_the_setting(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "key.pem"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SourceUnavailable, match="public key") as caught:
        connect(endpoint(1, Tls("off", public_key=str(file))))
    assert "source.tls.public_key" in caught.value.hint


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400\r\n\r\n"])
def test_login_interrupted_tls_handshake_raises(answer: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.packet(greeting(without=0))
        peer.read()
        if answer:
            peer.send(answer)
        peer.wait()

    failed_login(script, Tls("required"))


def flood_of_one_packet(peer: Peer) -> None:
    peer.flood(b"\xff\xff\xff\0" + bytes(1 << 16))


def echo(peer: Peer) -> None:
    peer.packet(greeting(b"mysql_native_password"))
    peer.read()
    peer.packet(b"\xff\x15\x04#28000\x1b[31m" + f"{PASSWORD}\n\rTraceback is wrong".replace("Traceback", "It").encode())


def drip(peer: Peer) -> None:
    peer.send(b"\xff\0\0\0")
    while True:
        peer.send(b"a")
        peer.line.settimeout(0.2)
        try:
            if not peer.line.recv(1):
                return
        except TimeoutError:
            continue


BROKEN: dict[str, Callable[[Peer], None]] = {
    "closes": lambda peer: None,
    "silent": lambda peer: peer.wait(),
    "drips": drip,
    "http": lambda peer: peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "short greeting": lambda peer: peer.packet(b"\x0a8.0\0\1"),
    "empty greeting": lambda peer: peer.packet(b""),
    "protocol 9": lambda peer: peer.packet(b"\x09" + greeting()[1:]),
    "wrong sequence": lambda peer: peer.packet(greeting(), 5),
    "plugin is not text": lambda peer: peer.packet(greeting(b"\xff\xfe")),
    "endless packet": flood_of_one_packet,
    "error without text": first(b"caching_sha2_password", b"\xff"),
    "empty answer": first(b"caching_sha2_password", b""),
    "unknown answer": first(b"caching_sha2_password", b"\x55"),
    "fast authentication with another number": first(b"caching_sha2_password", b"\1\7"),
    "silent after the login": first(b"mysql_native_password", OK),
    "echoes the password": echo,
    "two plugin changes": switch(b"mysql_native_password", b"\xfecaching_sha2_password\0" + bytes(21)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_login_broken_server_raises_a_product_error(name: str) -> None:
    tracemalloc.start()
    try:
        failed_login(BROKEN[name])
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()


def test_login_cut_at_every_byte_raises_a_product_error() -> None:
    whole = greeting(b"mysql_native_password")
    framed = struct.pack("<I", len(whole)) + whole
    ends = iter(range(len(framed)))

    def script(peer: Peer) -> None:
        peer.send(framed[: next(ends)])

    with hostile(script) as server:
        for _ in range(len(framed)):
            with pytest.raises(SourceUnavailable):
                connect(endpoint(server.port))


def test_session_cut_at_every_byte_raises_a_product_error() -> None:
    answers = [
        struct.pack("<I", len(payload))[:3] + bytes([number]) + payload
        for number, payload in ((0, greeting(b"mysql_native_password")), (2, OK), (1, OK), (1, OK))
    ]
    sizes = [len(answer) for answer in answers]
    ends = iter(range(sum(sizes[:1]), sum(sizes)))

    def script(peer: Peer) -> None:
        left = next(ends)
        for answer in answers:
            peer.send(answer[:left])
            left -= len(answer)
            if left < 0:
                return
            peer.read()

    with hostile(script) as server:
        for _ in range(sizes[0], sum(sizes)):
            with pytest.raises(SourceUnavailable):
                connect(endpoint(server.port))


def rows(peer: Peer) -> None:
    peer.packet(b"\1")
    peer.packet(column())
    peer.packet(b"\xfe\0\0\2\0")


def endless_rows(peer: Peer) -> None:
    rows(peer)
    while True:
        peer.packet(b"\1a")


def full_packets(peer: Peer) -> None:
    """Send 16 MiB packets that each announce another one, in pieces: the measured memory includes the server."""
    while True:
        peer.send(b"\xff\xff\xff" + bytes([peer.sequence]))
        peer.sequence = (peer.sequence + 1) & 255
        for _ in range(255):
            peer.send(bytes(0xFFFFFF // 255))


def endless_row(peer: Peer) -> None:
    rows(peer)
    full_packets(peer)


def endless_columns(peer: Peer) -> None:
    peer.packet(b"\xfe" + struct.pack("<Q", 1 << 32))
    while True:
        peer.packet(column())


ANSWERS: dict[str, Callable[[Peer], None]] = {
    "local file": lambda peer: peer.packet(b"\xfb/etc/passwd"),
    "endless rows": endless_rows,
    "endless row": endless_row,
    "endless columns": endless_columns,
    "silent": lambda peer: peer.wait(),
    "closes": lambda peer: None,
    "empty": lambda peer: peer.packet(b""),
    "error without text": lambda peer: peer.packet(b"\xff\1"),
    "short column": lambda peer: (peer.packet(b"\1"), peer.packet(b"\3de"))[0],
    "value beyond the row": lambda peer: (rows(peer), peer.packet(b"\xfd\xff\xff\xffa"))[0],
    "text that is not UTF-8": lambda peer: (rows(peer), peer.packet(b"\2\xff\xfe"))[0],
    "result without columns": lambda peer: peer.packet(b"\xfc\0\0"),
    "another result": lambda peer: peer.packet(b"\0\0\0\x0a\0\0\0"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_check_broken_reply_is_a_finding(name: str) -> None:
    def script(peer: Peer) -> None:
        logged_in(peer)
        peer.read()  # autocommit or the session settings
        if name in ("another result",):
            peer.packet(OK)
            peer.read()
        ANSWERS[name](peer)
        if name not in ("closes", "another result"):
            peer.wait()

    tracemalloc.start()
    try:
        with hostile(script) as server:
            with pytest.raises(CdcError):
                Server(endpoint(server.port))
            findings = check_source(endpoint(server.port), identity(), Mapped("shop"), ["shop.t"])
            received = bytes(server.received)
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()
    assert findings and all(finding.hint for finding in findings)
    assert not any(PASSWORD in finding.problem for finding in findings)
    assert PASSWORD.encode() not in received and b"root:" not in received


def test_check_has_one_deadline_for_all_connections() -> None:
    with hostile(first(b"mysql_native_password")) as server:
        expired = Endpoint("127.0.0.1", server.port, "cdc", PASSWORD, Tls("off")).within(0.2)
        with pytest.raises(SourceUnavailable, match="in time"):
            connect(expired)
        with pytest.raises(SourceUnavailable):
            connect(expired)


def test_login_ipv6_address_with_brackets_works() -> None:
    text = b"\xff\x15\x04#28000no"
    with hostile(first(b"mysql_native_password", text), "::1") as server:
        for host in ("[::1]", "::1"):
            with pytest.raises(SourceUnavailable, match="refuses the login") as caught:
                connect(endpoint(server.port, host=host))
            assert f"[::1]:{server.port}" in caught.value.location


@pytest.mark.parametrize(("host", "mode", "count"), [("db.example", "off", 1), ("db.example", "required", 1),
                                                     ("db.example", "verify_ca", 0), ("127.0.0.1", "off", 0)])  # fmt: skip
def test_check_unencrypted_connection_is_a_warning(host: str, mode: str, count: int) -> None:
    found = list(_unguarded(Endpoint(host, tls=Tls(mode))))
    assert len(found) == count and not any(finding.fatal for finding in found)


def statement(peer: Peer, *answers: bytes) -> None:
    """Let the client prepare a statement without parameters, and reply to its execution."""
    logged_in(peer)
    while True:
        command = peer.read()
        if command[:1] == b"\x16":
            peer.packet(b"\0" + struct.pack("<IHHxH", 1, 1, 0, 0))
            peer.packet(column())
            peer.packet(b"\xfe\0\0\2\0")
        elif command[:1] == b"\x17":
            break
        else:
            peer.packet(OK)
    for answer in answers:
        peer.packet(answer)


def endless_binary_row(peer: Peer) -> None:
    statement(peer, b"\1", column(), b"\xfe\0\0\2\0")
    full_packets(peer)


SELECTS: dict[str, Callable[[Peer], None]] = {
    "local file": lambda peer: statement(peer, b"\xfb/etc/passwd"),
    "no columns": lambda peer: statement(peer, OK),
    "short column": lambda peer: statement(peer, b"\1", b"\3de", b"\xfe\0\0\2\0"),
    "closes in a row": lambda peer: statement(peer, b"\1", column(), b"\xfe\0\0\2\0", b"\0\0"),
    "error with control characters": lambda peer: statement(peer, b"\xff\1\2#HY000\x1b[31mno"),
    "endless row": endless_binary_row,
}


@pytest.mark.parametrize("name", SELECTS)
def test_snapshot_query_broken_reply_raises_a_product_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.mysql.query_stream._LARGEST_ROW", 20 << 20)
    text = Column("a", Kind.VARCHAR, "varchar(10)", nullable=True, charset="utf8mb4")
    with hostile(SELECTS[name]) as server:
        with pytest.raises(CdcError) as caught, Select(endpoint(server.port), "SELECT a FROM t", [], [text]) as select:
            for _ in select.rows():
                pass
        received = bytes(server.received)
    assert caught.value.hint and "\x1b" not in str(caught.value)
    assert b"root:" not in received


def test_check_command_shows_no_traceback(tmp_path: Path) -> None:
    def script(peer: Peer) -> None:
        logged_in(peer)
        peer.read()
        peer.packet(b"\xfb/etc/passwd")
        peer.wait()

    with hostile(script) as server:
        file = tmp_path / "job.yaml"
        file.write_text(
            "name: looked-at\n"
            f"source: {{type: binlog, host: 127.0.0.1, port: {server.port}, username: cdc, password: {PASSWORD}}}\n"
            "sink: {type: delta, path: ./warehouse}\nchannels: [{source: a.b, target: a.b}]\n"
        )
        done = cdc(tmp_path, "check", str(file))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "asks for a local file" in done.stdout and "Traceback" not in done.stdout + done.stderr
    assert PASSWORD not in done.stdout + done.stderr


# the binlog stream


def test_stream_buffer_event_length_alone_allocates_nothing() -> None:
    state = np.zeros(64, np.int64)
    buffer = StreamBuffer(1 << 20, state, np.zeros((4, 16), np.int64))
    buffer.filled, state[NEED] = 40, 4 << 30
    assert len(buffer.free_space(pinned=False)) < 4 << 20 and len(buffer.data) < 4 << 20


def test_decoder_endless_event_raises_a_product_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.sources.binlog.decoder.decoder.LARGEST_EVENT", 20 << 20)
    event = struct.pack("<IBIIIH", 0, 30, 1, 0xFFFFFFF0, 0, 0)
    packet = b"\xff\xff\xff\0\0" + event + bytes(0xFFFFFE - len(event))
    decoder = BinlogDecoder(
        table_filter=Mapped("shop"), tables=Schemas({}), on_statement=lambda _: None,
        start=BinlogPosition("mysql-bin.000001", 4), sequence=0, framed=True,
    )  # fmt: skip
    with pytest.raises(DecodeError, match="larger than 1 GiB"):
        for _ in range(4):
            fed = 0
            while fed < len(packet):
                room = decoder.free_space()
                count = min(len(room), len(packet) - fed)
                room[:count] = packet[fed : fed + count]
                decoder.feed(count)
                fed += count
                decoder.next()


ROTATE = struct.pack("<IBIIIH", 0, 4, 1, 19 + 8 + 16, 0, 0x20) + struct.pack("<Q", 4) + b"mysql-bin.000001"


def dump(*packets: bytes) -> Callable[[Peer], None]:
    """Answer everything up to the dump command, then send ``packets`` and wait."""

    def script(peer: Peer) -> None:
        peer.packet(greeting(b"mysql_native_password"))
        peer.read()
        peer.packet(OK)
        while peer.read()[:1] != b"\x12":  # COM_BINLOG_DUMP
            peer.packet(OK)
        for packet in packets:
            peer.packet(packet)
        peer.wait()

    return script


def dump_then(after: Callable[[Peer], None]) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.wait = lambda: None  # type: ignore[method-assign]
        dump()(peer)
        after(peer)

    return script


STREAMS: dict[str, Callable[[Peer], None]] = {
    "silent": dump(),
    "closes": dump_then(lambda peer: None),
    "drips": dump_then(lambda peer: (peer.send(b"\xff\xff\xff"), Peer.wait(peer))[0]),
    "endless full packets": dump_then(lambda peer: full_packets(peer)),
    "empty packet": dump(b""),
    "unknown status": dump(b"\x55"),
    "error without text": dump(b"\xff"),
    "error with control characters": dump(b"\xff\1\2#HY000\x1b[31mno"),
    "local file": dump(b"\xfb/etc/passwd"),
    "event shorter than its header": dump(b"\0" + ROTATE[:10]),
    "event with another size": dump(b"\0" + ROTATE[:9] + struct.pack("<I", 7) + ROTATE[13:]),
    "rows before a format": dump(b"\0" + ROTATE, b"\0" + struct.pack("<IBIIIH", 0, 30, 1, 29, 0, 0) + bytes(10)),
    "format that is cut": dump(b"\0" + ROTATE, b"\0" + struct.pack("<IBIIIH", 0, 15, 1, 24, 0, 0) + bytes(5)),
    "rotate without a name": dump(b"\0" + struct.pack("<IBIIIH", 0, 4, 1, 22, 0, 0x20) + bytes(3)),
    "garbage": dump(b"\0" + bytes(range(256)) * 9),
}


@pytest.mark.parametrize("name", STREAMS)
def test_replication_stream_broken_reply_raises_a_product_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.sources.binlog.decoder.decoder.LARGEST_EVENT", 20 << 20)
    monkeypatch.setattr("cdc.sources.binlog.replication_stream.SILENT_HEARTBEATS", 2)
    decoder = BinlogDecoder(
        table_filter=Mapped("shop"), tables=Schemas({}), on_statement=lambda _: None,
        start=BinlogPosition("mysql-bin.000001", 4), sequence=0, framed=True,
    )  # fmt: skip
    tracemalloc.start()
    try:
        with hostile(STREAMS[name]) as server:
            stream = BinlogStream(endpoint(server.port), identity(), mariadb=False, heartbeat_s=0.3)
            try:
                stream.dump(BinlogPosition("mysql-bin.000001", 4), by_gtid=False)
                began = time.monotonic()
                with pytest.raises((CdcError, ServerError)) as caught:
                    while time.monotonic() - began < 60:
                        if count := stream.receive(decoder.free_space(), 0.1):
                            decoder.feed(count)
                            while decoder.next() is not None:
                                pass
            finally:
                stream.close()
            received = bytes(server.received)
        assert tracemalloc.get_traced_memory()[1] < 3 * MAX_BYTES
    finally:
        tracemalloc.stop()
    error = caught.value if isinstance(caught.value, CdcError) else translated(caught.value, endpoint(1))
    assert error.hint and "\x1b" not in str(error)
    assert PASSWORD.encode() not in received and b"root:" not in received, "no local file is sent"


# Canal


def frame(kind: int, body: bytes) -> bytes:
    packet = Packet(kind=kind, body=body).SerializeToString()
    return struct.pack(">i", len(packet)) + packet


HELLO = frame(Packet.HANDSHAKE, Handshake(seeds=b"12345678").SerializeToString())
REFUSAL = frame(Packet.ACK, Ack(error_code=400, error_message=f"\x1b[31mauth failed {PASSWORD}").SerializeToString())


def canal(*answers: bytes) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        for answer in answers:
            peer.send(answer)
        peer.wait()

    return script


CANAL: dict[str, Callable[[Peer], None]] = {
    "closes": lambda peer: None,
    "silent": canal(),
    "silent after the greeting": canal(HELLO),
    "mysql": lambda peer: peer.packet(greeting()),
    "huge length": canal(struct.pack(">i", 1 << 29)),
    "negative length": canal(struct.pack(">i", -1)),
    "garbage": canal(struct.pack(">i", 8) + b"\xff" * 8),
    "another kind": canal(frame(Packet.MESSAGES, b"")),
    "greeting that cannot be parsed": canal(frame(Packet.HANDSHAKE, b"\xff\xff")),
    "nested groups": canal(frame(Packet.HANDSHAKE, b"\x0b" * 100_000)),
    "compressed": canal(
        (lambda data: struct.pack(">i", len(data)) + data)(
            Packet(kind=Packet.HANDSHAKE, compression=2, body=b"").SerializeToString()
        )
    ),
    "long seed": canal(frame(Packet.HANDSHAKE, Handshake(seeds=bytes(1 << 18)).SerializeToString()), REFUSAL),
    "echoes the password": canal(HELLO, REFUSAL),
    "endless frame": lambda peer: peer.flood(struct.pack(">i", 1 << 20) + bytes(1 << 16)),
    "ack without text": canal(HELLO, frame(Packet.ACK, Ack(error_code=1, error_message="\n").SerializeToString())),
}


@pytest.mark.parametrize("name", CANAL)
def test_canal_broken_login_raises_a_product_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("CONNECT_TIMEOUT_S", "ANSWER_TIMEOUT_S", "READ_TIMEOUT_S"):
        monkeypatch.setattr(f"cdc.sources.canal.connection.{limit}", 0.5)
    tracemalloc.start()
    try:
        with hostile(CANAL[name]) as server:
            client = CanalClient([f"127.0.0.1:{server.port}"], destination="shop", username="canal", password=PASSWORD)
            for call in (client.probe, client.connect):
                with pytest.raises(SourceUnavailable) as caught:
                    call()
                assert caught.value.hint and PASSWORD not in str(caught.value) and "\x1b" not in str(caught.value)
            client.close()
            assert PASSWORD.encode() not in server.received
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()


BATCHES: dict[str, bytes] = {
    "huge length": struct.pack(">i", (1 << 30) + 1),
    "length without bytes": struct.pack(">i", 1 << 30),
    "garbage": struct.pack(">i", 4) + b"\xff" * 4,
    "batch without a number": frame(Packet.MESSAGES, b"\x12\x01a"),
    "batch number without an end": frame(Packet.MESSAGES, b"\x08" + b"\xff" * 20),
    "another kind": frame(Packet.HANDSHAKE, b""),
    "refusal": REFUSAL,
}


@pytest.mark.parametrize("name", BATCHES)
def test_canal_broken_batch_raises_a_product_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.sources.canal.connection.READ_TIMEOUT_S", 0.5)
    good = frame(Packet.ACK, Ack().SerializeToString())
    tracemalloc.start()
    try:
        with hostile(canal(HELLO, good, good, BATCHES[name])) as server:
            client = CanalClient([f"127.0.0.1:{server.port}"], destination="shop", password=PASSWORD)
            client.connect()
            with pytest.raises(SourceUnavailable) as caught:
                client.get(timeout_ms=1)
            client.close()
            assert caught.value.hint and PASSWORD not in str(caught.value)
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()
