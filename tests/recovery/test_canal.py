"""The complete commit cycle on a real Canal server: acks follow commits, and servers restart."""

from __future__ import annotations

import threading
import time

import pytest

import cdc.pipeline.cycles
import cdc.retry
from cdc.model.position import CanalPosition
from cdc.pipeline.flow_control import CommitLimits
from tests.model.canal import AckProxy, CanalHarness, write, write_more
from tests.model.faults import Faulty
from tests.support.canal_sources import CURSOR, canal_receiver, client_of, drain
from tests.support.receiving import Collector, Mapped, Shop, until

pytestmark = pytest.mark.canal

FAR = CanalPosition("mysql-bin.999999", 0)
SMALL = CommitLimits(interval_s=0.02, min_rows=1, min_bytes=1, max_bytes=600, max_rows=6, task_bytes=1)


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr(cdc.retry, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(cdc.pipeline.cycles, "SHUTDOWN_S", 0.3)


@pytest.fixture
def harness_of(tmp_path):
    made = []

    def make(written, **options):
        made.append(CanalHarness(tmp_path, written, **{"limits": SMALL, **options}))
        return made[-1]

    yield make
    for harness in made:
        harness.close()


class HeldSink(Faulty):
    """A sink that commits all loads except those of one table, until it is released."""

    def __init__(self, inner):
        super().__init__(inner, None)
        self.released = threading.Event()
        self.waiting = threading.Event()

    def commit(self, loads, checkpoint):
        mine = [load for load in loads if load.table == "ods.items"]
        if mine and not self.released.is_set():
            for load in loads:
                if load not in mine:
                    self.inner._apply(load)
            self.waiting.set()
            assert self.released.wait(240)
        return self.inner.commit(loads, checkpoint)


def test_canal_batch_is_acked_after_every_channel_has_committed(canal, database, harness_of):
    with AckProxy(canal.port) as proxy:
        written = write(canal, database, 60, address=f"127.0.0.1:{proxy.port}")
        harness, sinks = harness_of(written), []

        def holding(inner):
            sinks.append(HeldSink(inner))
            return sinks[-1]

        harness.wrap_sink = holding
        run = harness.in_background()
        assert until(lambda: sinks and sinks[0].waiting.wait(0.1))
        receiver = harness.receiver.inner
        # everything has been fetched, and the commit of one channel in the first cycle is held back
        until(lambda: receiver._fetcher._empty, what="an empty fetcher")
        assert harness.sink.rows()["ods.orders"], "the other channel has committed"
        time.sleep(0.5)
        assert proxy.acked == [], "no ack for the batch or a later one has reached the server"
        sinks[0].released.set()
        run.ended(240)
        assert len(proxy.acked) > 5 and proxy.acked == list(range(proxy.acked[0], proxy.acked[-1] + 1))
    harness.verify()


def test_canal_and_mysql_restarts_keep_every_row_once(canal, mysql, database, harness_of):
    written = write(canal, database, 40)
    written.end = FAR
    harness = harness_of(written)

    def commits_more():
        before = harness.sink.commits
        until(lambda: harness.sink.commits >= before + 2, what="two commits more")

    run = harness.in_background()
    commits_more()
    canal.restart()
    there = write_more(canal, written, 20, seed=2, last=False)
    commits_more()
    until(lambda: harness.receiver.seen.reached(there), what="all rows written so far")
    mysql.restart()
    write_more(canal, written, 20, seed=3)
    run.join(240)
    harness.until_finished()
    harness.verify()


def test_canal_rollback_by_another_client_repeats_no_rows(canal, mysql, database):
    shop = Shop(mysql, database)
    shop.write("CREATE TABLE {db}.orders (id INT PRIMARY KEY)")
    drain(canal)
    receiver = canal_receiver(canal.address, Mapped(database))
    receiver.open(CURSOR, (), 0)
    collector = Collector(receiver)
    shop.write("INSERT INTO {db}.orders VALUES (1)", "INSERT INTO {db}.orders VALUES (2)")
    collector.collect_rows(2)
    with client_of(canal.address):  # a connection alone makes Canal send all unacked batches again
        shop.write("INSERT INTO {db}.orders VALUES (3)")
        collector.collect_rows(3)
    shop.write("INSERT INTO {db}.orders VALUES (4)")
    collector.collect_rows(4).collect_to_end()
    receiver.close()
    assert collector.values() == [1, 2, 3, 4]
