"""Rows that executors of a cluster fetch from the driver: the protocol, its limits, and what is refused."""

from __future__ import annotations

import logging
import os
import pickle
import select
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest

from cdc.errors import ConfigError
from spark import remote_rows, row_transport
from spark.remote_rows import RemoteReader, RemoteRows, RowServer, RowsUnreachable
from spark.row_transport import ROWS_PORT, find_transport
from spark.shared_memory import SharedRows, StaleMemory

ROWS = pa.RecordBatch.from_pydict({"id": [1, 2], "name": ["a", None]})


@pytest.fixture
def server() -> Iterator[RowServer]:
    with closing(RowServer("127.0.0.1", "127.0.0.1")) as found:
        yield found


def opened(server: RowServer, memory: SharedRows) -> RemoteReader:
    """Open the memory as an executor does."""
    reader = pickle.loads(pickle.dumps(server.reader))
    return reader(*server.share(memory))  # type: ignore[no-any-return]


def signed(reader: RemoteReader, at: tuple[int, int]) -> bytes:
    """Return a valid request."""
    request = remote_rows._REQUEST.pack(reader._memory, *at, bytes(32))
    return request + remote_rows._mac(reader._rows.secret, reader._nonce + request)


def test_rows_and_bytes_are_fetched_over_one_connection(server: RowServer) -> None:
    large = pa.RecordBatch.from_pydict({"value": pa.array(range(1_000_000), pa.int64())})
    with SharedRows() as memory:
        places = memory.put_bytes(b"abc"), memory.put([ROWS, ROWS]), memory.put([large]), memory.put_bytes(b"")
        with closing(opened(server, memory)) as reader:
            rows = reader.rows_at(places[1])
            assert reader.bytes_at(places[0]).to_pybytes() == b"abc"
            assert reader.rows_at(places[2]).column("value").combine_chunks().equals(large.column("value"))
            assert reader.bytes_at(places[3]).size == 0
    assert rows.to_batches() == [ROWS, ROWS], "valid after the memory was released"


def test_many_executors_at_once_get_their_own_rows(server: RowServer) -> None:
    with SharedRows() as memory:
        texts = [os.urandom(number * 10_000) for number in range(1, 17)]
        places = [memory.put_bytes(text) for text in texts]

        def fetched(turn: int) -> list[bytes]:
            with closing(opened(server, memory)) as reader:
                return [reader.bytes_at(at).to_pybytes() for at in (*places[turn:], *places[:turn])]

        with ThreadPoolExecutor(8) as threads:
            for turn, found in enumerate(threads.map(fetched, range(16))):
                assert found == [*texts[turn:], *texts[:turn]]


def test_withdrawn_memory_is_refused_and_a_read_that_has_begun_is_completed(server: RowServer) -> None:
    with SharedRows() as memory:
        at = memory.put_bytes(bytes(50 << 20))
        with closing(opened(server, memory)) as reader:
            line = reader._line
            line.sendall(signed(reader, at))
            assert line.recv(1) == b"\x01" and len(line.recv(32, socket.MSG_WAITALL)) == 32
            server.withdraw(memory)
            memory.close()
            assert reader._received(at[1]).size == 50 << 20
            with pytest.raises(StaleMemory, match="released"):
                reader.bytes_at(at)


def test_request_without_the_secret_is_refused(server: RowServer) -> None:
    with SharedRows() as memory:
        at = memory.put_bytes(b"secret rows")
        (key,) = server.share(memory)
        reader = replace(server.reader, secret=bytes(32))(str(key))
        with closing(reader), pytest.raises(RowsUnreachable, match="closed the connection"):
            reader.bytes_at(at)
    assert "secret" not in repr(server.reader)


def test_request_of_another_connection_is_refused(server: RowServer) -> None:
    with SharedRows() as memory:
        at = memory.put_bytes(b"rows")
        with closing(opened(server, memory)) as first, closing(opened(server, memory)) as second:
            assert first.bytes_at(at).to_pybytes() == b"rows"
            second._nonce = first._nonce
            with pytest.raises(RowsUnreachable):
                second.bytes_at(at)


@pytest.mark.parametrize("at", [(0, 5), (4, 1), (1 << 63, 1), (0, 1 << 40)])
def test_position_outside_the_memory_is_refused(server: RowServer, at: tuple[int, int]) -> None:
    with SharedRows() as memory:
        memory.put_bytes(b"rows")
        with closing(opened(server, memory)) as reader:
            reader._line.sendall(signed(reader, at))
            assert reader._line.recv(1) == b""


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(64), struct.pack(">Q", 1 << 60) * 20])
def test_hostile_request_gets_no_answer_and_harms_nobody(server: RowServer, data: bytes) -> None:
    with socket.create_connection((server.reader.host, server.reader.port), 60) as line:
        assert len(line.recv(32, socket.MSG_WAITALL)) == 32
        answer = b""
        with suppress(OSError):  # data that the server has not read resets the connection
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):  # not TimeoutError: the server must end the connection
            answer = line.recv(1)
        assert answer == b""
    with SharedRows() as memory, closing(opened(server, memory)) as reader:
        assert reader.bytes_at(memory.put_bytes(b"rows")).to_pybytes() == b"rows"


def test_silent_connection_ends(server: RowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_rows, "_FIRST_S", 0.1)
    with socket.create_connection((server.reader.host, server.reader.port), 60) as line:
        assert len(line.recv(32, socket.MSG_WAITALL)) == 32
        assert line.recv(1) == b""


def test_slow_request_is_complete_in_the_end_or_refused(server: RowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with SharedRows() as memory:
        at = memory.put_bytes(b"rows")
        with closing(opened(server, memory)) as reader:
            for byte in signed(reader, at):
                reader._line.sendall(bytes([byte]))
            assert reader._line.recv(37, socket.MSG_WAITALL)[33:] == b"rows"
        monkeypatch.setattr(remote_rows, "_FIRST_S", 0.1)
        with closing(opened(server, memory)) as reader:
            request, ended = signed(reader, at), False
            for byte in request[:-1]:
                try:
                    ended = bool(select.select([reader._line], [], [], 0.02)[0])
                    reader._line.sendall(bytes([byte]))
                except ConnectionError:
                    ended = True
                if ended:
                    break
            assert ended, "the time is for the whole request"


def test_strangers_are_limited_and_do_not_disturb_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_rows, "_MOST_STRANGERS", 2)
    with closing(RowServer("127.0.0.1", "127.0.0.1")) as server, SharedRows() as memory:
        at = memory.put_bytes(b"rows")
        known = [opened(server, memory) for _ in range(2)]
        assert all(reader.bytes_at(at).to_pybytes() == b"rows" for reader in known)
        strangers = [opened(server, memory) for _ in range(2)]
        with pytest.raises(RowsUnreachable):
            opened(server, memory).bytes_at(at)
        assert all(reader.bytes_at(at).to_pybytes() == b"rows" for reader in known)
        strangers[0].close()
        readers = [*known, *strangers]
        while True:
            try:  # its thread ends soon
                readers.append(opened(server, memory))
                break
            except RowsUnreachable:
                continue
        assert readers[-1].bytes_at(at).to_pybytes() == b"rows"
        for reader in readers:
            reader.close()


def test_connection_that_is_gone_at_once_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(line: socket.socket) -> None:
        monkeypatch.undo()
        raise ConnectionResetError

    monkeypatch.setattr(remote_rows, "_MOST_STRANGERS", 1)
    with closing(RowServer("127.0.0.1", "127.0.0.1")) as server, SharedRows() as memory:
        at = memory.put_bytes(b"rows")
        monkeypatch.setattr(remote_rows, "keep_alive", gone)
        with pytest.raises(RowsUnreachable):
            opened(server, memory).bytes_at(at)
        assert server._server.strangers.acquire(timeout=60), "its place is free again"
        server._server.strangers.release()
        with closing(opened(server, memory)) as reader:
            assert reader.bytes_at(at).to_pybytes() == b"rows"


def test_program_that_answers_without_the_secret_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            with other.accept()[0] as line:
                line.sendall(bytes(32) + b"\x01" + bytes(100))
                line.recv(1)

        answers = threading.Thread(target=answer)
        answers.start()
        reader = RemoteRows("127.0.0.1", other.getsockname()[1], bytes(32))("00" * 16)
        with closing(reader), pytest.raises(RowsUnreachable, match="another program answers"):
            reader.bytes_at((0, 10))
        answers.join()


def test_fixed_port_can_be_used_again_at_once() -> None:
    with SharedRows() as memory:
        at = memory.put_bytes(b"rows")
        first = RowServer("127.0.0.1", "127.0.0.1")
        reader, port = opened(first, memory), first.reader.port
        assert reader.bytes_at(at).to_pybytes() == b"rows"
        first.close()
        with closing(RowServer("127.0.0.1", "127.0.0.1", port)) as second, closing(opened(second, memory)) as later:
            assert later.bytes_at(at).to_pybytes() == b"rows"
            with pytest.raises(OSError, match="in use"):
                RowServer("127.0.0.1", "127.0.0.1", port)
        reader.close()


def test_rows_are_fetched_over_ipv6() -> None:
    with closing(RowServer("::", "[::1]")) as server, SharedRows() as memory, closing(opened(server, memory)) as reader:
        assert reader.bytes_at(memory.put_bytes(b"rows")).to_pybytes() == b"rows"


def test_closed_server_is_unreachable(server: RowServer) -> None:
    server.close()
    with pytest.raises(RowsUnreachable, match=f"127.0.0.1:{server.reader.port}"):
        server.reader("00" * 16)


def session_with(**conf: str) -> SimpleNamespace:
    """Return what ``find_transport`` needs of a session before it runs a job."""
    settings = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    settings |= {name.replace("_", "."): value for name, value in conf.items()}
    return SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: settings))


@pytest.mark.parametrize("name", row_transport._ENCRYPTED)
def test_rows_are_not_sent_past_the_encryption_of_spark(name: str) -> None:
    session = session_with(**{name: "true"})
    assert find_transport(session, 1, is_local=False) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("port", ["70000", "-1", "any"])
def test_port_that_is_not_valid_is_refused(port: str) -> None:
    with pytest.raises(ConfigError, match=ROWS_PORT):
        find_transport(session_with(**{ROWS_PORT: port}), 1, is_local=False)  # type: ignore[arg-type]


def test_port_that_is_taken_lets_rows_go_through_the_jvm(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level(logging.WARNING):
        session = session_with(**{ROWS_PORT: str(taken.getsockname()[1])})
        assert find_transport(session, 1, is_local=False) is None  # type: ignore[arg-type]
    assert "through the JVM" in caplog.text
