"""Binary logs that are reset or replaced during a job: the job pauses, and a gap can be accepted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from cdc.demo import proof
from cdc.demo.local_servers import free_port
from cdc.demo.process import JobProcess
from cdc.errors import PositionLost, SourceUnavailable
from cdc.model.position import position_from_json
from cdc.mysql.server import Server
from cdc.sources.binlog import event_scan, start_position, transport
from cdc.sources.binlog.start_position import created_at, resolve_start
from tests.support.receiving import (
    KINDS,
    Collector,
    Mapped,
    endpoint,
    identity,
    own_server,
    position,
    receiver_of,
    until,
)


@pytest.fixture(scope="module", params=KINDS)
def server(request, tmp_path_factory):
    with own_server(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture(autouse=True)
def _new_log(server):
    server.execute("DELETE FROM shop.orders")
    reset(server)


def reset(server):
    """Create a log in a new second, because only the creation time distinguishes two logs without GTIDs."""
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
    collected = Collector(receiver).collect_rows(count)
    receiver.close()
    return collected


@pytest.mark.parametrize(("rotations", "new_rows"), [(0, 2), (0, 9), (2, 9)])
def test_new_log_pauses_and_accepted_gap_reads_from_its_start(server, rotations, new_rows):
    """The new log ends before the old offset, has an event boundary there, or is longer; the old file may be
    missing.
    """
    begin = position(server)
    server.execute(*["FLUSH BINARY LOGS"] * rotations)
    insert(server, 1000, 5)
    seen = read_to_end(server, begin, 5).batches[-1].last
    reset(server)
    insert(server, 2000, new_rows)

    receiver = receiver_of(server, Mapped("shop"), accept_server=False)
    with pytest.raises(PositionLost) as raised:
        receiver.open(seen, (), 5)
    assert "--accept-gap" in raised.value.hint
    receiver.close()

    receiver = receiver_of(server, Mapped("shop"), accept_gap=True)
    receiver.open(seen, (), 5)
    collected = Collector(receiver).collect_rows(new_rows)
    receiver.close()
    assert collected.values() == list(range(2000, 2000 + new_rows))
    assert collected.batches[0].gaps == {"shop.orders"}
    again = read_to_end(server, collected.batches[0].last, new_rows)  # the first saved position continues the new log
    assert again.values() == collected.values()


def test_reset_while_connected_raises_position_lost(server):
    begin = position(server)
    receiver = receiver_of(server, Mapped("shop"))
    receiver.open(begin, (), 0)
    insert(server, 1000, 5)
    collected = Collector(receiver).collect_rows(5)
    reset(server)
    insert(server, 2000, 9)
    with pytest.raises(PositionLost):
        collected.collect_rows(6)
    receiver.close()
    assert collected.values() == list(range(1000, 1005))


@pytest.mark.parametrize("server", ["mysql", "mariadb"], indirect=True)
def test_empty_gtid_set_at_start_is_replaced_by_a_real_one(server):
    with Server(endpoint(server)) as asked:
        empty = replace(resolve_start(asked, "latest", identity()), gtid_set="")
    insert(server, 1000, 2)
    last = read_to_end(server, empty, 2).batches[-1].last
    with Server(endpoint(server)) as asked:
        assert last.gtid_set == (asked.gtids_at(last.file, last.offset) if asked.mariadb else asked.executed())


def test_position_of_an_older_version_gets_its_log(server):
    begin = position(server)
    insert(server, 1000, 1)
    data = begin.to_json()
    del data["created"]
    old = position_from_json(data)
    assert old == begin
    collected = read_to_end(server, old, 1)
    assert collected.batches[0].last.created == collected.batches[-1].last.created == begin.created > 0


def test_two_servers_at_one_address_raise(server, monkeypatch):
    begin = position(server)
    monkeypatch.setattr(Server, "identity", "another")
    receiver = receiver_of(server, Mapped("shop"), accept_server=True)
    monkeypatch.setattr(transport, "resume_point", lambda *_, **__: start_position.ResumePoint(begin, by_gtid=False))
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
def test_job_after_reset_pauses_and_gap_loads_tables_again(server, tmp_path):
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
        server.execute("DELETE FROM shop.orders WHERE id = 1000")  # in the log that was reset
        reset(server)
        insert(server, 2000, 20)
        job.start()
        status = job.wait_for("the pause", lambda status: status["state"] == "PAUSED", 300)
        assert status["resume"] == "manual" and "reset" in status["reason"] and "--accept-gap" in status["hint"]
        assert proof.read_delta(folder).num_rows == 5
        subprocess.run(
            [sys.executable, "-m", "cdc.cli.main", "resume", "shop", "--accept-gap"],
            env={**os.environ, "CDC_HOME": str(home)}, check=True, timeout=120,
        )  # fmt: skip
        insert(server, 3000, 1)
        job.wait_for("the rows", lambda _: 3000 in proof.read_delta(folder).column("id").to_pylist(), 300)
        job.wait_for("the replay", lambda _: 1000 not in proof.read_delta(folder).column("id").to_pylist(), 300)
        assert proof.compare(server, "shop.orders", folder, ["id"]).differences == ()
        job.stop()


@pytest.mark.parametrize("rows", [20_000])
def test_scan_after_a_file_head_reads_few_bytes(server, rows, monkeypatch):
    """A start between the file header and the first transaction does not read that transaction."""
    with Server(endpoint(server)) as asked:
        here = asked.position()
    values = ",".join(f"({number})" for number in range(rows))
    server.execute(f"INSERT INTO shop.orders VALUES {values}")
    reads = []
    receive = event_scan.BinlogStream.receive
    monkeypatch.setattr(
        event_scan.BinlogStream, "receive", lambda *args: reads.append(count := receive(*args)) or count
    )
    with Server(endpoint(server)) as asked:
        found = event_scan.scan(asked, replace(here, offset=4), here, identity())
    assert (found.file, found.offset) == (here.file, here.offset)
    assert len(reads) < 200
    assert sum(reads) < 4096
