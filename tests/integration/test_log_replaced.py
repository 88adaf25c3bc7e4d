"""The binary logs are reset or replaced under a job: it pauses by name, and a gap can be accepted."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from cdc.binlog.server import Server
from cdc.errors import PositionLost, SourceUnavailable
from cdc.local_servers import LocalServer, obtain
from cdc.position import position_from_json
from cdc.receiver import feeds, start
from cdc.receiver.start import created_at, resolve_start
from tests.receiving import Mapped, Taker, endpoint, identity, position, receiver_of, until

OPTIONS = {"mysql": (), "mysql_no_gtids": ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"), "mariadb": ()}


@pytest.fixture(scope="module", params=OPTIONS)
def server(request, tmp_path_factory):
    kind = request.param.partition("_")[0]
    folder = tmp_path_factory.mktemp(request.param)
    server = LocalServer.start(
        obtain(kind), folder / "server", options=("--binlog-row-metadata=FULL", *OPTIONS[request.param])
    )
    endpoint(server)
    server.execute("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY)")
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _new_log(server):
    server.execute("DELETE FROM shop.orders")
    reset(server)


def reset(server):
    """Create a log of its own second, since the creation time is all that tells two logs without GTIDs apart."""
    with Server(endpoint(server)) as asked:
        created = created_at(asked, next(reversed(asked.files())))
        until(lambda: int(time.time()) > created)
        asked_version = asked.mariadb
    server.execute("RESET MASTER" if asked_version else "RESET BINARY LOGS AND GTIDS")


def insert(server, first, count):
    for number in range(first, first + count):
        server.execute(f"INSERT INTO shop.orders VALUES ({number})")


def read_to_end(server, begin, count):
    receiver = receiver_of(server, Mapped("shop"))
    receiver.open(begin, (), 0)
    taken = Taker(receiver).take_rows(count)
    receiver.close()
    return taken


@pytest.mark.parametrize(("rotations", "new_rows"), [(0, 2), (0, 9), (2, 9)])
def test_new_log_pauses_and_gap_reads_its_oldest(server, rotations, new_rows):
    """New log shorter than the old offset, with an event boundary at it, and longer; its file gone or there again."""
    begin = position(server)
    server.execute(*["FLUSH BINARY LOGS"] * rotations)
    insert(server, 1000, 5)
    seen = read_to_end(server, begin, 5).batches[-1].last
    reset(server)
    insert(server, 2000, new_rows)

    receiver = receiver_of(server, Mapped("shop"), accept_server=False)
    with pytest.raises(PositionLost) as raised:
        receiver.open(seen, (), 5)
    assert "--accept-gap" in raised.value.mend
    receiver.close()

    receiver = receiver_of(server, Mapped("shop"), accept_gap=True)
    receiver.open(seen, (), 5)
    taken = Taker(receiver).take_rows(new_rows)
    receiver.close()
    assert taken.values() == list(range(2000, 2000 + new_rows))
    assert taken.batches[0].gaps == {"shop.orders"}
    again = read_to_end(server, taken.batches[0].last, new_rows)  # what is saved first continues the new log
    assert again.values() == taken.values()


def test_reset_while_connected_pauses(server):
    begin = position(server)
    receiver = receiver_of(server, Mapped("shop"))
    receiver.open(begin, (), 0)
    insert(server, 1000, 5)
    taken = Taker(receiver).take_rows(5)
    reset(server)
    insert(server, 2000, 9)
    with pytest.raises(PositionLost):
        taken.take_rows(6)
    receiver.close()
    assert taken.values() == list(range(1000, 1005))


def test_job_begun_on_an_empty_gtid_set_gets_a_real_one(server):
    with Server(endpoint(server)) as asked:
        if not asked.gtids:
            pytest.skip("no GTIDs on this server")
        empty = replace(resolve_start(asked, "latest", identity()), gtid_set="")
    insert(server, 1000, 2)
    last = read_to_end(server, empty, 2).batches[-1].last
    with Server(endpoint(server)) as asked:
        assert last.gtid_set == (asked.gtids_at(last.file, last.offset) if asked.mariadb else asked.executed())


def test_position_of_an_older_version_learns_its_log(server):
    begin = position(server)
    insert(server, 1000, 1)
    data = begin.to_json()
    del data["created"]
    old = position_from_json(data)
    assert old == begin
    taken = read_to_end(server, old, 1)
    assert taken.batches[0].last.created == taken.batches[-1].last.created == begin.created > 0


def test_two_servers_at_one_address_are_refused(server, monkeypatch):
    begin = position(server)
    monkeypatch.setattr(Server, "identity", "another")
    receiver = receiver_of(server, Mapped("shop"), accept_server=True)
    monkeypatch.setattr(feeds, "continuation", lambda *_, **__: start.Continuation(begin, by_gtid=False))
    with pytest.raises(SourceUnavailable, match="two servers"):
        receiver.open(begin, (), 0)
    receiver.close()


@pytest.mark.parametrize("rows", [20_000])
def test_start_after_a_file_head_reads_few_times(server, rows, monkeypatch):
    """A start between the head of a file and its first transaction does not read that transaction."""
    with Server(endpoint(server)) as asked:
        here = asked.position()
    values = ",".join(f"({number})" for number in range(rows))
    server.execute(f"INSERT INTO shop.orders VALUES {values}")
    reads = []
    receive = start.BinlogStream.receive
    monkeypatch.setattr(start.BinlogStream, "receive", lambda *args: reads.append(count := receive(*args)) or count)
    with Server(endpoint(server)) as asked:
        found = start.scan(asked, replace(here, offset=4), here, identity())
    assert (found.file, found.offset) == (here.file, here.offset)
    assert len(reads) < 200
    assert sum(reads) < 4096
