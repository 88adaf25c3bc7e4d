"""The interim answer 100-continue, which can arrive in pieces of any size."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from channels.sinks.stream_load.bounded_http import AnswerReader, AnswerTooLarge, read_body
from channels.sinks.stream_load.http import ClusterAddress, HttpClient
from tests.support.limits import HANG_S

INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"
FINAL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
REDIRECT = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://be:8040/\r\nContent-Length: 0\r\n\r\n"


@contextmanager
def answering(*pieces: bytes, pause_s: float = 0.01, most_bytes: int = 1 << 20) -> Iterator[AnswerReader]:
    """Yield the reader of a connection whose server sends ``pieces`` one by one and then closes it."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        for piece in pieces:
            theirs.sendall(piece)
            time.sleep(pause_s)
        theirs.close()

    thread = threading.Thread(target=send)
    thread.start()
    with ours, AnswerReader(ours, most_bytes) as reader:
        yield reader
        thread.join()


def each_byte(text: bytes) -> list[bytes]:
    return [text[at : at + 1] for at in range(len(text))]


def response_of(reader: AnswerReader) -> tuple[int, bytes]:
    ours, theirs = socket.socketpair()  # http.client only makes a file of it
    with ours, theirs:
        response = reader.response(ours, method="PUT")
        response.begin()
        return response.status, read_body(response)


@pytest.mark.parametrize("cut", range(1, len(INTERIM)))
def test_interim_answer_in_two_pieces_asks_for_the_body(cut: int) -> None:
    with answering(INTERIM[:cut], INTERIM[cut:], FINAL) as reader:
        assert reader.asks_for_body(5.0)
        assert reader._incoming.unread.startswith(INTERIM)
        reader.wait_at_most(5.0)
        assert response_of(reader) == (200, b"ok")


@pytest.mark.parametrize("final", [FINAL, REDIRECT, b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"])
def test_final_answer_byte_by_byte_asks_for_no_body(final: bytes) -> None:
    with answering(*each_byte(final), pause_s=0.001) as reader:
        assert not reader.asks_for_body(5.0)
        reader.wait_at_most(5.0)
        assert response_of(reader)[1] == (b"" if final == REDIRECT else b"ok")


def test_interim_and_final_answer_byte_by_byte_are_both_read() -> None:
    with answering(*each_byte(INTERIM + FINAL), pause_s=0.001) as reader:
        assert reader.asks_for_body(5.0)
        reader.wait_at_most(5.0)
        assert response_of(reader) == (200, b"ok")


@pytest.mark.parametrize("part", [b"", b"HTTP/1.1 1", b"HTTP/1.1 100 Contin"])
def test_incomplete_interim_answer_asks_for_the_body_after_its_time(part: bytes) -> None:
    ours, theirs = socket.socketpair()
    asked = threading.Event()
    was_asked = []

    def send() -> None:
        theirs.sendall(part)
        was_asked.append(asked.wait(HANG_S))
        theirs.sendall(INTERIM[len(part) :] + FINAL)
        theirs.close()

    thread = threading.Thread(target=send)
    thread.start()
    with ours, AnswerReader(ours, 1 << 20) as reader:
        assert reader.asks_for_body(0.1)
        asked.set()
        reader.wait_at_most(5.0)
        assert response_of(reader) == (200, b"ok")
        thread.join()
    assert was_asked == [True], "before the rest of the answer"


def test_closed_connection_ends_the_wait() -> None:
    with answering(b"HTTP/1.1 1") as reader:
        assert reader.asks_for_body(5.0)
        with pytest.raises(http.client.BadStatusLine):
            response_of(reader)


def test_answer_of_another_protocol_asks_for_no_body() -> None:
    with answering(b"SSH-2.0-x\r\n", b"", pause_s=0.3) as reader:
        assert not reader.asks_for_body(5.0)
        with pytest.raises(http.client.BadStatusLine):
            response_of(reader)


def test_endless_answer_without_status_is_refused_by_size() -> None:
    with answering(b"x" * 5000, most_bytes=4000) as reader, pytest.raises(AnswerTooLarge):
        reader.asks_for_body(5.0)


def test_body_is_sent_after_an_interim_answer_in_pieces() -> None:
    received = []

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.settimeout(5.0)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data = b""
            while b"\r\n\r\n" not in data:
                data += connection.recv(4096)
            for piece in (b"HTTP/1.1 1", b"00 Continue\r\n", b"\r\n"):
                connection.sendall(piece)
                time.sleep(0.05)
            body = b""
            while not body.endswith(b"0\r\n\r\n"):
                body += connection.recv(4096)
            received.append(body)
            connection.sendall(FINAL)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        host = f"127.0.0.1:{server.getsockname()[1]}"
        client = HttpClient(ClusterAddress((host,), "user", "password", answer_timeout_s=5.0))
        reply = client.request("PUT", host, "/x", body=lambda: [b"abc"])
        thread.join()
        client.close()
    assert reply.status == 200 and received == [b"3\r\nabc\r\n0\r\n\r\n"]
