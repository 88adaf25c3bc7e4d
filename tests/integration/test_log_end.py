"""The end of the binlog, as real servers report it."""

import pytest

from cdc.errors import SourceUnavailable
from cdc.model.position import BinlogPosition
from cdc.mysql.server import Server
from cdc.sources.binlog.log_end import LogEnd, bytes_between, retention
from tests.support.receiving import endpoint, position, until


@pytest.fixture(params=["mysql", "mariadb"])
def server(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def orders(server, request):
    database = request.getfixturevalue("database" if server.binaries.kind == "mysql" else "mariadb_database")
    server.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, note VARCHAR(10))")
    return database


def test_log_end_counts_bytes_over_several_files(server, orders):
    start = position(server)
    connections = []

    def connect():
        connections.append(Server(endpoint(server)))
        return connections[-1]

    end = LogEnd(connect, every_s=0.01)
    assert (end.offset, end.behind_bytes, end.retention_s) == (None, None, None)
    end.start(start)
    try:
        until(lambda: end.behind_bytes == 0)
        assert end.offset == start.offset and end.retention_s == retention(connections[0])
        for row in range(3):
            server.execute(f"INSERT INTO {orders}.orders VALUES ({row}, 'a')")
            server.execute("FLUSH BINARY LOGS")
        with Server(endpoint(server)) as asked:
            files = list(asked.files().items())
        since = [(name, size) for name, size in files if name >= start.file]
        assert len(since) == 4
        expected = sum(size for _, size in since) - start.offset
        until(lambda: end.behind_bytes == expected)
        now = position(server)
        end.ack(now)
        assert end.offset == now.offset
        until(lambda: end.behind_bytes == 0)
        assert len(connections) == 1
    finally:
        end.stop()
    assert end.behind_bytes is None


def test_log_end_lost_connection_is_replaced(server, orders):
    start, fails, ids = position(server), [2], []

    def connect():
        if fails[0]:
            fails[0] -= 1
            raise SourceUnavailable("away", hint="wait")
        found = Server(endpoint(server))
        ids.append(found.ask("SELECT CONNECTION_ID() AS id")[0]["id"])
        return found

    end = LogEnd(connect, every_s=0.01)
    end.start(start)
    try:
        until(lambda: end.behind_bytes == 0)
        server.execute(f"KILL {ids[0]}", f"INSERT INTO {orders}.orders VALUES (1, 'a')")
        until(lambda: (end.behind_bytes or 0) > 0)
        until(lambda: len(ids) == 2)
    finally:
        end.stop()


@pytest.mark.parametrize(
    ("here", "sizes", "found"),
    [
        (("b.000007", 100), {}, 900),
        (("b.000007", 2000), {}, 0),
        (("b.000008", 4), {}, 0),  # the end was asked before the newest commit
        (("b.000005", 100), {"b.000005": 150, "b.000006": 50}, 1100),
        (("b.000005", 100), {"b.000006": 50}, None),
        (("a.000005", 100), {"a.000005": 100}, None),
        (("", 0), {}, None),
    ],
)
def test_bytes_between_needs_each_complete_file(here, sizes, found):
    assert bytes_between(BinlogPosition(*here), BinlogPosition("b.000007", 1000), sizes) == found
