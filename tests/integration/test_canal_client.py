"""CanalClient against frames recorded from Canal 1.1.8, and against faults that a real server does not show."""

from __future__ import annotations

import pytest

from cdc.errors import SourceUnavailable
from cdc.sources.canal import client as canal_client
from cdc.sources.canal import connection as canal_connection
from cdc.sources.canal.client import CanalClient
from cdc.sources.canal.protocol_pb2 import Ack, Messages, Packet
from tests.emulators.canal_frames import FramePlayer, framed, recorded

HELLO = framed(bytes.fromhex("100118012a0a12080102030405060708"))
OK = framed(bytes.fromhex("10011803"))
LOGIN = [HELLO, None, OK, None, OK, None]  # greeting, auth, subscription, rollback


def batch(number: int, *entries: bytes) -> bytes:
    body = Messages(batch_id=number, messages=entries).SerializeToString()
    return framed(Packet(kind=Packet.MESSAGES, body=body).SerializeToString())


def refusal(message: str) -> bytes:
    body = Ack(error_code=400, error_message=message).SerializeToString()
    return framed(Packet(kind=Packet.ACK, version=1, body=body).SerializeToString())


@pytest.fixture(autouse=True)
def short_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canal_client, "BACK_OFF_S", (0.01, 0.05))


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_canal_client_fragmented_replies_are_reassembled(piece: int) -> None:
    # given: the frames of the server on the third recorded connection, up to the batch that is sent again
    replies = [frame for frame in recorded() if frame.connection == 3 and frame.from_server]
    requests = [frame.data[4:] for frame in recorded() if frame.connection == 3 and not frame.from_server]
    handshake, authorised, subscribed, _, again = [frame.data for frame in replies[:5]]
    script = [handshake, None, authorised, None, subscribed, None, None, again]
    # when: the client repeats the conversation
    with FramePlayer([script], piece=piece) as server:
        client = CanalClient([server.address], destination="example", username="canal", password="canal")
        message = client.get(10, -1)
        client.close()
    # then: it sends what the recorded client sent, and the batch is complete
    assert server.received[1] == requests[1]
    rollback, get = (Packet.FromString(data).body for data in server.received[2:])
    assert rollback == next(Packet.FromString(data).body for data in requests if Packet.FromString(data).kind == 12)
    assert get.startswith(next(Packet.FromString(data).body for data in requests if Packet.FromString(data).kind == 6))
    assert message is not None and message.id == 4
    assert [entry.header.file for entry in message.entries()] == ["mysql-bin.000001"] * 3


def test_canal_client_refused_password_names_the_setting() -> None:
    with FramePlayer([[HELLO, None, refusal("auth failed for user:canal")]]) as server:
        client = CanalClient([server.address], destination="shop", username="canal", password="wrong")
        with pytest.raises(SourceUnavailable, match="auth failed") as caught:
            client.connect()
    assert "source.password" in caught.value.hint
    assert "wrong" not in str(caught.value)


def test_canal_client_late_ack_refusal_reconnects_and_gets_again() -> None:
    first = [*LOGIN, None, batch(1, b""), None, None, refusal("batchId:1 is not the firstly:0"), batch(2, b"")]
    second = [*LOGIN, None, batch(7, b"")]
    with FramePlayer([first, second]) as server:
        client = CanalClient([server.address], destination="shop")
        message = client.get()
        assert message is not None and client.ack(message)
        with pytest.raises(SourceUnavailable, match="is not the firstly"):
            client.get()
        # the late reply after the refusal is not used as the reply for the next batch
        again = client.get()
        assert again is not None and again.id == 7 and again.session == 2
        assert not client.ack(message), "an ack must not reach a connection with new batch numbers"
        client.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"\x7f\xff\xff\xff", "a frame has"),
        (b"\xff\xff\xff\xff", "a frame has"),
        (framed(b"\xff\xff\xff"), "cannot be parsed"),
        (framed(Packet(kind=Packet.MESSAGES, compression=2).SerializeToString()), "compression"),
        (framed(Packet(kind=Packet.HANDSHAKE).SerializeToString()), "instead of a batch"),
        (batch(3, b"abc")[:9], "closed the connection"),
        (b"", "closed the connection"),
    ],
)
def test_canal_client_invalid_reply_closes_the_connection(answer: bytes, words: str) -> None:
    with FramePlayer([[*LOGIN, None, answer]]) as server:
        client = CanalClient([server.address], destination="shop")
        with pytest.raises(SourceUnavailable, match=words) as caught:
            client.get()
        assert client.address is None
        assert caught.value.context["server"] == server.address


def test_canal_client_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canal_connection, "READ_TIMEOUT_S", 0.2)
    with FramePlayer([[*LOGIN, None]], hold=True) as server:
        client = CanalClient([server.address], destination="shop")
        with pytest.raises(SourceUnavailable, match="timed out"):
            client.get(timeout_ms=10)
        client.close()


def test_canal_client_skips_standby_and_unreachable_servers() -> None:
    standby = [HELLO, None, OK, None, refusal("destination:shop should start first")]
    with FramePlayer([standby]) as idle, FramePlayer([[*LOGIN, None, batch(1, b"")]]) as active:
        client = CanalClient(["127.0.0.1:1", idle.address, active.address], destination="shop")
        client.connect()
        assert client.address == active.address
        assert client.get() is not None
        client.close()


def test_canal_client_no_active_server_reports_no_connection() -> None:
    standby = [HELLO, None, OK, None, refusal("destination:shop should start first")]
    with FramePlayer([standby]) as idle:
        client = CanalClient(["127.0.0.1:1", idle.address], destination="shop")
        with pytest.raises(SourceUnavailable, match="no connection"):
            client.connect()


def test_canal_client_empty_batch_returns_none_without_ack() -> None:
    with FramePlayer([[*LOGIN, None, framed(bytes.fromhex("100118072a0b08ffffffffffffffffff01"))]]) as server:
        client = CanalClient([server.address], destination="shop")
        assert client.get() is None
        client.close()
    request = Packet.FromString(server.received[-1])
    assert request.kind == Packet.GET
