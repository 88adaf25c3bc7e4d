"""The binary logs are reset or replaced under a job: it pauses by name, and a gap can be accepted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from cdc.binlog.server import Server
from cdc.demo import proof
from cdc.demo.process import JobProcess
from cdc.errors import PositionLost, SourceUnavailable
from cdc.local_servers import LocalServer, free_port, obtain
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


@pytest.mark.parametrize("server", ["mysql", "mariadb"], indirect=True)
def test_job_begun_on_an_empty_gtid_set_gets_a_real_one(server):
    with Server(endpoint(server)) as asked:
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


JOB = """\
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: cdc, password: secret, start: snapshot}}
sink: {{type: delta, path: ./warehouse, create_tables: true}}
channels:
  - {{source: shop.orders, target: ods.orders}}
commit: {{interval: 500ms}}
status: {{port: {status}}}
"""


@pytest.mark.parametrize("server", ["mariadb"], indirect=True)  # the job is the same on each server
def test_job_pauses_after_a_reset_and_a_gap_reloads_its_tables(server, tmp_path):
    port, home, file = free_port(), tmp_path / "state", tmp_path / "job.yaml"
    file.write_text(JOB.format(port=server.port, status=port))
    folder = tmp_path / "warehouse" / "ods" / "orders"
    insert(server, 1000, 5)

    def is_loaded(status):
        snapshots = [channel["snapshot"] for channel in status["channels"]]
        return status["state"] == "RUNNING" and any(each and each["consistent"] for each in snapshots)

    with JobProcess(file, home=home, port=port) as job:
        job.start()
        job.wait_for("the first load", is_loaded, 300)
        job.stop()
        server.execute("DELETE FROM shop.orders WHERE id = 1000")  # in the log that is gone
        reset(server)
        insert(server, 2000, 20)
        job.start()
        status = job.wait_for("the pause", lambda status: status["state"] == "PAUSED", 300)
        assert status["resume"] == "manual" and "reset" in status["reason"] and "--accept-gap" in status["mend"]
        assert proof.read_delta(folder).num_rows == 5
        subprocess.run(
            [sys.executable, "-m", "cdc.cli", "resume", "shop", "--accept-gap"],
            env={**os.environ, "CDC_HOME": str(home)}, check=True, timeout=120,
        )  # fmt: skip
        insert(server, 3000, 1)
        job.wait_for("the rows", lambda _: 3000 in proof.read_delta(folder).column("id").to_pylist(), 300)
        job.wait_for("the reload", lambda _: 1000 not in proof.read_delta(folder).column("id").to_pylist(), 300)
        assert proof.compare(server, "shop.orders", folder, ["id"]).differences == ()
        job.stop()


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
