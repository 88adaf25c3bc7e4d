"""CanalClient against frames recorded from Canal 1.1.8, and against faults that a real server does not show."""

from __future__ import annotations

import pytest

from cdc.canal import client as canal_client
from cdc.canal.client import CanalClient
from cdc.canal.protocol_pb2 import Ack, Messages, Packet
from cdc.errors import SourceUnavailable
from tests.servers.canal_frames import FramePlayer, framed, recorded

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
def no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canal_client, "BACK_OFF_S", (0.01, 0.05))


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_the_recorded_conversation_is_carried_on_whatever_pieces_it_comes_in(piece: int) -> None:
    # given: what the server sent over the third recorded connection, up to the batch that comes again
    said = [frame for frame in recorded() if frame.connection == 3 and frame.from_server]
    asked = [frame.data[4:] for frame in recorded() if frame.connection == 3 and not frame.from_server]
    handshake, authorised, subscribed, _, again = [frame.data for frame in said[:5]]
    script = [handshake, None, authorised, None, subscribed, None, None, again]
    # when: our client carries on the conversation
    with FramePlayer([script], piece=piece) as server:
        client = CanalClient([server.address], destination="example", username="canal", password="canal")
        message = client.get(10, -1)
        client.close()
    # then: it says what the recorded client said, and the batch is whole
    assert server.received[1] == asked[1]
    rollback, get = (Packet.FromString(data).body for data in server.received[2:])
    assert rollback == next(Packet.FromString(data).body for data in asked if Packet.FromString(data).kind == 12)
    assert get.startswith(next(Packet.FromString(data).body for data in asked if Packet.FromString(data).kind == 6))
    assert message is not None and message.id == 4
    assert [entry.header.file for entry in message.entries()] == ["mysql-bin.000001"] * 3


def test_a_password_that_is_refused_says_so_and_names_the_setting() -> None:
    with FramePlayer([[HELLO, None, refusal("auth failed for user:canal")]]) as server:
        client = CanalClient([server.address], destination="shop", username="canal", password="wrong")
        with pytest.raises(SourceUnavailable, match="auth failed") as caught:
            client.connect()
    assert "source.password" in caught.value.mend
    assert "wrong" not in str(caught.value)


def test_a_late_refusal_of_an_ack_ends_the_connection_and_the_batch_comes_again() -> None:
    first = [*LOGIN, None, batch(1, b""), None, None, refusal("batchId:1 is not the firstly:0"), batch(2, b"")]
    second = [*LOGIN, None, batch(7, b"")]
    with FramePlayer([first, second]) as server:
        client = CanalClient([server.address], destination="shop")
        message = client.get()
        assert message is not None and client.ack(message)
        with pytest.raises(SourceUnavailable, match="is not the firstly"):
            client.get()
        # the answer that came late after the refusal is not taken for the next batch's
        again = client.get()
        assert again is not None and again.id == 7 and again.session == 2
        assert not client.ack(message), "an ack must not reach a connection that numbers batches anew"
        client.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"\x7f\xff\xff\xff", "a frame of"),
        (b"\xff\xff\xff\xff", "a frame of"),
        (framed(b"\xff\xff\xff"), "cannot be read"),
        (framed(Packet(kind=Packet.MESSAGES, compression=2).SerializeToString()), "compression"),
        (framed(Packet(kind=Packet.HANDSHAKE).SerializeToString()), "where a batch was due"),
        (batch(3, b"abc")[:9], "closed the connection"),
        (b"", "closed the connection"),
    ],
)
def test_an_answer_that_breaks_the_protocol_ends_the_connection(answer: bytes, words: str) -> None:
    with FramePlayer([[*LOGIN, None, answer]]) as server:
        client = CanalClient([server.address], destination="shop")
        with pytest.raises(SourceUnavailable, match=words) as caught:
            client.get()
        assert client.address is None
        assert caught.value.where["server"] == server.address


def test_a_server_that_falls_silent_is_given_up_after_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canal_client, "READ_TIMEOUT_S", 0.2)
    with FramePlayer([[*LOGIN, None]], hold=True) as server:
        client = CanalClient([server.address], destination="shop")
        with pytest.raises(SourceUnavailable, match="timed out"):
            client.get(timeout_ms=10)
        client.close()


def test_the_next_server_is_asked_where_one_is_a_standby_and_another_is_away() -> None:
    standby = [HELLO, None, OK, None, refusal("destination:shop should start first")]
    with FramePlayer([standby]) as idle, FramePlayer([[*LOGIN, None, batch(1, b"")]]) as active:
        client = CanalClient(["127.0.0.1:1", idle.address, active.address], destination="shop")
        client.connect()
        assert client.address == active.address
        assert client.get() is not None
        client.close()


def test_where_none_serves_the_reason_is_not_the_standbys() -> None:
    standby = [HELLO, None, OK, None, refusal("destination:shop should start first")]
    with FramePlayer([standby]) as idle:
        client = CanalClient(["127.0.0.1:1", idle.address], destination="shop")
        with pytest.raises(SourceUnavailable, match="no connection"):
            client.connect()


def test_nothing_there_is_none_and_an_empty_batch_makes_no_ack_due() -> None:
    with FramePlayer([[*LOGIN, None, framed(bytes.fromhex("100118072a0b08ffffffffffffffffff01"))]]) as server:
        client = CanalClient([server.address], destination="shop")
        assert client.get() is None
        client.close()
    request = Packet.FromString(server.received[-1])
    assert request.kind == Packet.GET
