"""The fetcher thread: lost connections, other clients of the destination, and its end."""

from __future__ import annotations

import itertools
import socket
import time

import pytest

from cdc.errors import SourceActionRequired, SourceUnavailable
from cdc.sources.canal.client import CanalClient, Message
from cdc.sources.canal.fetcher import Fetcher, Ring
from cdc.sources.canal.protocol_pb2 import Entry, Header, Messages
from tests.support.limits import HANG_S


class Numbered:
    """A client without a server. ``faults`` yields for each get: None, an error, or how many batches are missing."""

    address = "canal:11111"

    def __init__(self, faults):
        self.session, self.id, self.faults = 1, 0, iter(faults)

    def get(self, fetch_size, timeout_ms):
        time.sleep(0.001)
        fault = next(self.faults, None)
        if isinstance(fault, Exception):
            self.session += 1
            self.id += 1  # the server has made a batch, and its answer is lost
            raise fault
        self.id += 1 + (fault or 0)
        header = Header(file="b.000001", offset=100 * self.id)
        entry = Entry(header=header, kind=Entry.TRANSACTION_END).SerializeToString()
        return Message(self.session, self.id, Messages(batch_id=self.id, messages=[entry]).SerializeToString())

    def rollback(self):
        self.session += 1

    def ack(self, message):
        return message.session == self.session

    def keep_alive(self):
        pass

    def close(self):
        pass


def cut():
    return SourceUnavailable("Canal: the connection broke.", hint="-")


def refusal():
    return SourceUnavailable("Canal: the server refuses (code 400): clientId:1 batchId:7 is not exist.", hint="-")


def read(faults, count=60):
    fetcher = Fetcher(Numbered(faults), Ring(), batch_size=10, window_bytes=1 << 20)
    fetcher.start()
    deadline = time.monotonic() + 60
    try:
        found = 0
        while found < count and time.monotonic() < deadline:
            fetched = fetcher.take(0.1)
            if fetched is not None:
                found += 1
                fetcher.ack(fetched)
        return found
    finally:
        fetcher.close()


def test_fetcher_cut_connections_do_not_show_another_client():
    faults = itertools.chain.from_iterable([None] * 5 + [cut()] for _ in range(10))
    assert read(faults) == 60


def test_fetcher_jumps_on_one_connection_show_another_client():
    with pytest.raises(SourceActionRequired, match="Another client reads"):
        read([None] * 5 + [2, None, None] * 4)


def test_fetcher_refused_acks_show_another_client():
    with pytest.raises(SourceActionRequired, match="another client acks"):
        read([None, None, refusal()] * 3)


def test_fetcher_old_refusals_do_not_show_another_client(monkeypatch):
    monkeypatch.setattr("cdc.sources.canal.fetcher._WITHIN_S", 0.0)
    assert read([None, None, refusal()] * 5, count=20) == 20


@pytest.mark.parametrize("backlog", [8, 0], ids=["no handshake", "no connection"])
def test_fetcher_close_interrupts_a_connect(backlog):
    servers = [socket.create_server(("127.0.0.1", 0), backlog=backlog) for _ in range(3)]
    addresses = [server.getsockname() for server in servers]
    # a server whose backlog is full accepts no other connection
    waiting = [socket.create_connection(address) for address in addresses if not backlog]
    client = CanalClient([f"{host}:{port}" for host, port in addresses], destination="d")
    fetcher = Fetcher(client, Ring(), batch_size=10, window_bytes=1 << 20)
    fetcher.start()
    try:
        deadline = time.monotonic() + HANG_S
        while client._opening is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert client._opening is not None
        time.sleep(0.3)  # until the thread waits for the server
        began = time.monotonic()
        fetcher.close()
        assert time.monotonic() - began < 5, "three servers, with 10 s for each"
    finally:
        for each in [*servers, *waiting]:
            each.close()


def test_client_closed_connects_again_only_with_connect():
    client = CanalClient(["127.0.0.1:1"], destination="d")
    client.close()
    with pytest.raises(SourceUnavailable, match="was closed"):
        client.get()
    with pytest.raises(SourceUnavailable, match="no connection"):
        client.connect()
