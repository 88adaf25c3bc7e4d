"""The position read up to on an idle server is exactly the end of its binlog, wherever the stream has begun."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.errors import SchemaMismatch
from cdc.mysql.server import Server
from tests.support.receiving import KINDS, Mapped, endpoint, own_server, position, receiver_of, until


@pytest.fixture(scope="module", params=KINDS)
def server(request, tmp_path_factory):
    with own_server(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


def end_of(server):
    with Server(endpoint(server)) as asked:
        return asked.position()


@pytest.mark.parametrize("start", ["earlier_file", "gtid_set", "all_gtids", "end"])
@pytest.mark.parametrize("ends_with", ["transaction", "file_head", "rolled_back"])
def test_idle_server_is_read_to_the_exact_end(server, start, ends_with):
    before = position(server)
    server.execute("REPLACE INTO shop.orders VALUES (1)", "FLUSH BINARY LOGS", "DELETE FROM shop.orders")
    if ends_with == "file_head":
        server.execute("FLUSH BINARY LOGS")
    elif ends_with == "rolled_back":  # its rows in a table without transactions are in the binlog
        server.execute("CREATE TABLE IF NOT EXISTS shop.kept (id INT) ENGINE=MyISAM")
        with server.connect("shop") as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO kept VALUES (1)")
            cursor.execute("ROLLBACK")
    begin = position(server) if start in ("all_gtids", "end") else before
    if "gtid" in start:
        if not begin.gtid_set:
            pytest.skip("the server has no GTIDs")
        begin = replace(begin, file="", offset=0, created=0)
    receiver = receiver_of(server, Mapped("shop", "orders"))
    receiver.open(begin, (), 0)
    try:

        def is_known():
            receiver.get(0.05)
            try:
                return receiver.schema("shop", "orders")
            except SchemaMismatch:
                return None

        assert until(is_known).key == ("id",)

        def is_read() -> bool:  # MariaDB writes the last event of a file's head some time after the head
            receiver.get(0.05)
            found, end = receiver.status(), end_of(server)
            read_to = found.read_to
            return found.has_returned(end, 0.0) and (read_to.file, read_to.offset) == (end.file, end.offset)

        until(is_read, 60)
    finally:
        receiver.close()
