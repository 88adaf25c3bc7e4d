"""The whole commit cycle over a real Canal server: acks behind commits, servers that restart."""

from __future__ import annotations

import threading
import time

import pytest

import cdc.commit
import cdc.consumer
from cdc.parts import Limits
from cdc.position import CanalPosition
from tests.canal_sources import CURSOR, canal_receiver, client_of, drain
from tests.flow.canal import AckLine, CanalHarness, write, write_more
from tests.flow.faults import Faulty
from tests.receiving import Mapped, Shop, Taker, until

pytestmark = pytest.mark.canal

FAR = CanalPosition("mysql-bin.999999", 0)
SMALL = Limits(interval_s=0.02, min_rows=1, min_bytes=1, max_bytes=600, max_rows=6, task_bytes=1)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(cdc.commit, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(cdc.consumer, "WIND_UP_S", 0.3)


@pytest.fixture
def harness_of(tmp_path):
    made = []

    def make(written, **options):
        made.append(CanalHarness(tmp_path, written, **{"limits": SMALL, **options}))
        return made[-1]

    yield make
    for harness in made:
        harness.close()


class Held(Faulty):
    """A sink that commits everything but the loads of one table, until it is let go."""

    def __init__(self, inner):
        super().__init__(inner, None)
        self.go = threading.Event()
        self.waiting = threading.Event()

    def commit(self, loads, checkpoint):
        mine = [load for load in loads if load.table == "ods.items"]
        if mine and not self.go.is_set():
            for load in loads:
                if load not in mine:
                    self.inner._apply(load)
            self.waiting.set()
            assert self.go.wait(240)
        return self.inner.commit(loads, checkpoint)


def test_nothing_is_acked_before_every_channel_has_committed_it(canal, database, harness_of):
    with AckLine(canal.port) as line:
        written = write(canal, database, 60, address=f"127.0.0.1:{line.port}")
        harness, sinks = harness_of(written), []

        def holding(inner):
            sinks.append(Held(inner))
            return sinks[-1]

        harness.wrap_sink = holding
        run = harness.in_background()
        assert until(lambda: sinks and sinks[0].waiting.wait(0.1))
        receiver = harness.receiver.inner
        # everything has been fetched, and one channel's commit of the first cycle is held back
        until(lambda: receiver._fetcher._empty, what="the end of what Canal has")
        assert harness.sink.rows()["ods.orders"], "the other channel has committed"
        time.sleep(0.5)
        assert line.acked == [], "no ack for the batch or a later one has reached the server"
        sinks[0].go.set()
        run.ended(240)
        assert len(line.acked) > 5 and line.acked == list(range(line.acked[0], line.acked[-1] + 1))
    harness.verify()


def test_a_restart_of_canal_and_one_of_mysql_in_the_middle_lose_nothing(canal, mysql, database, harness_of):
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
    until(lambda: harness.receiver.seen.reached(there), what="what was written so far")
    mysql.restart()
    write_more(canal, written, 20, seed=3)
    run.join(240)
    harness.until_finished()
    harness.verify()


def test_another_clients_rollback_makes_nothing_come_twice(canal, mysql, database):
    shop = Shop(mysql, database)
    shop.write("CREATE TABLE {db}.orders (id INT PRIMARY KEY)")
    drain(canal)
    receiver = canal_receiver(canal.address, Mapped(database))
    receiver.open(CURSOR, (), 0)
    taker = Taker(receiver)
    shop.write("INSERT INTO {db}.orders VALUES (1)", "INSERT INTO {db}.orders VALUES (2)")
    taker.take_rows(2)
    with client_of(canal.address):  # it only connects, which has all that is not acked sent again
        shop.write("INSERT INTO {db}.orders VALUES (3)")
        taker.take_rows(3)
    shop.write("INSERT INTO {db}.orders VALUES (4)")
    taker.take_rows(4).take_to_end()
    receiver.close()
    assert taker.values() == [1, 2, 3, 4]
