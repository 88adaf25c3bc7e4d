"""A Canal that reads by GTIDs: restarts, and a source that fails over to another server.

On MySQL alone: on MariaDB, Canal 1.1.8 meets an empty text where it wants a GTID, and stops.
"""

from __future__ import annotations

import pytest

from cdc.errors import PositionLost
from cdc.local_servers import LocalServer, obtain
from tests.canal_sources import CURSOR, canal_receiver, canal_server
from tests.receiving import Mapped, Shop, Taker, until

pytestmark = pytest.mark.canal


class GtidShop(Shop):
    """A database that a Canal of its own reads by GTIDs."""

    def __init__(self, server, database, canal):
        super().__init__(server, database)
        self.canal, self.receivers = canal, []

    def taker(self, start=CURSOR, schemas=(), sequence=0, **options):
        self.receivers.append(canal_receiver(self.canal.address, Mapped(self.database), **options))
        self.receivers[-1].open(start, schemas, sequence)
        return Taker(self.receivers[-1])

    def insert(self, *numbers):
        self.write(*(f"INSERT INTO {{db}}.orders VALUES ({number})" for number in numbers))


@pytest.fixture
def shop_on(tmp_path):
    canals, shops = [], []

    def make(server, database):
        server.execute(
            f"CREATE DATABASE IF NOT EXISTS {database}", f"CREATE TABLE {database}.orders (id INT PRIMARY KEY)"
        )
        canals.append(canal_server(tmp_path / "canal", server, gtid=True))
        canals[-1].launch()
        shops.append(GtidShop(server, database, canals[-1]))
        return shops[-1]

    yield make
    for shop in shops:
        for receiver in shop.receivers:
            receiver.close()
    for canal in canals:
        canal.stop()


@pytest.fixture(scope="module")
def untagged_mysql(tmp_path_factory):
    """A MySQL of this module's own: where others have written tagged GTIDs, Canal 1.1.8 cannot read the executed set."""
    with LocalServer.start(obtain("mysql"), tmp_path_factory.mktemp("untagged")) as server:
        yield server


@pytest.fixture
def shop(untagged_mysql, shop_on):
    untagged_mysql.execute("DROP DATABASE IF EXISTS shop")
    return shop_on(untagged_mysql, "shop")


def ack_all(taker):
    taker.receiver.ack(taker.batches[-1].last)


def all_acked(taker, but=0):
    until(lambda: len(taker.receiver._unacked) <= but and not taker.receiver._fetcher._acks, what="the acks")


def test_restarts_of_canal_lose_and_double_nothing(shop):
    taker = shop.taker()
    shop.insert(0)
    taker.take_rows(1)
    assert taker.batches[-1].last.gtid_set
    ack_all(taker)
    all_acked(taker)
    shop.canal.restart()  # goes on with the transaction behind the one that is acked: nothing known comes first
    shop.insert(1, 2)
    taker.take_rows(3)
    ack_all(taker)
    all_acked(taker, but=1)
    shop.insert(3)
    taker.take_rows(4)
    shop.canal.restart()
    shop.insert(4)
    taker.take_rows(5).take_to_end()
    assert taker.values() == list(range(5))


def test_a_cursor_that_is_lost_is_a_gap(shop):
    taker = shop.taker()
    shop.insert(0)
    taker.take_rows(1)
    ack_all(taker)
    all_acked(taker)
    shop.canal.stop()
    shop.canal.forget()
    shop.insert(1)
    shop.canal.launch()
    shop.insert(2)
    with pytest.raises(PositionLost):
        taker.take_rows(2)


def test_a_job_that_starts_again_drops_what_it_has_committed_and_not_acked(shop):
    first = shop.taker()
    shop.insert(*range(5))
    first.take_rows(5)
    committed, schemas = first.batches[-1].last, first.receiver.schemas()
    first.receiver.close()  # committed, and not acked
    shop.insert(5)
    second = shop.taker(committed, schemas, 5).take_rows(1).take_to_end()
    assert second.values() == [5]


def test_another_server_with_the_same_transactions_is_followed(shop_on, tmp_path):
    """A failover to a replica, whose binlog files have lower numbers."""
    binaries = obtain("mysql")
    with (
        LocalServer.start(binaries, tmp_path / "source") as source,
        LocalServer.start(binaries, tmp_path / "replica", options=("--server-id=77",)) as replica,
    ):
        source.execute(*["FLUSH BINARY LOGS"] * 5)
        source.create_user("replica", "secret")
        shop = shop_on(source, "shop")
        taker = shop.taker()
        for number in range(3):
            shop.insert(number)
            taker.take_rows(number + 1)
            ack_all(taker)
        all_acked(taker, but=1)
        before = taker.batches[-1].last
        shop.insert(3)
        taker.take_rows(4)  # not acked
        replicate(source, replica)
        shop.canal.stop()
        shop.canal.source = shop.server = replica
        shop.canal.launch()
        shop.insert(4, 5)
        taker.take_rows(6).take_to_end()
        assert taker.values() == list(range(6))
        there = taker.batches[-1].last
        assert there.file < before.file
        assert there.reached(before) and not before.reached(there)
        ack_all(taker)
        all_acked(taker, but=1)
        shop.canal.stop()


def replicate(source, replica):
    """All that ``source`` has written so far."""
    with source.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@gtid_executed")
        (executed,) = cursor.fetchone()
    replica.execute(
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {source.port}, SOURCE_USER = 'replica', "
        "SOURCE_PASSWORD = 'secret', SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1",
        "START REPLICA",
    )
    with replica.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{executed}', 60)")
        assert cursor.fetchone()[0] == 0
        cursor.execute("STOP REPLICA")
