"""A Canal that reads by GTIDs: restarts, and a source that fails over to another server.

Only on MySQL: on MariaDB, Canal 1.1.8 stops because it reads an empty text instead of a GTID.
"""

from __future__ import annotations

import pytest

from cdc.demo.local_servers import LocalServer, obtain
from cdc.errors import PositionLost
from tests.support.canal_sources import CURSOR, canal_receiver, canal_server
from tests.support.receiving import Collector, Mapped, Shop, until

pytestmark = pytest.mark.canal


class GtidShop(Shop):
    """A database that its own Canal server reads by GTIDs."""

    def __init__(self, server, database, canal):
        super().__init__(server, database)
        self.canal, self.receivers = canal, []

    def collector(self, start=CURSOR, schemas=(), sequence=0, **options):
        self.receivers.append(canal_receiver(self.canal.address, Mapped(self.database), **options))
        self.receivers[-1].open(start, schemas, sequence)
        return Collector(self.receivers[-1])

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
    """A MySQL for this module only: Canal 1.1.8 cannot read an executed set with tagged GTIDs of other tests."""
    with LocalServer.start(obtain("mysql"), tmp_path_factory.mktemp("untagged")) as server:
        yield server


@pytest.fixture
def shop(untagged_mysql, shop_on):
    untagged_mysql.execute("DROP DATABASE IF EXISTS shop")
    return shop_on(untagged_mysql, "shop")


def ack_all(collector):
    collector.receiver.ack(collector.batches[-1].last)


def wait_for_acks(collector, but=0):
    until(
        lambda: len(collector.receiver._acks.unacked) <= but and not collector.receiver._fetcher._acks, what="the acks"
    )


def test_canal_gtid_restarts_keep_every_row_once(shop):
    collector = shop.collector()
    shop.insert(0)
    collector.collect_rows(1)
    assert collector.batches[-1].last.gtid_set
    ack_all(collector)
    wait_for_acks(collector)
    shop.canal.restart()  # Canal continues with the transaction after the acked one, so no known row comes first
    shop.insert(1, 2)
    collector.collect_rows(3)
    ack_all(collector)
    wait_for_acks(collector, but=1)
    shop.insert(3)
    collector.collect_rows(4)
    shop.canal.restart()
    shop.insert(4)
    collector.collect_rows(5).collect_to_end()
    assert collector.values() == list(range(5))


def test_canal_gtid_lost_cursor_raises_position_lost(shop):
    collector = shop.collector()
    shop.insert(0)
    collector.collect_rows(1)
    ack_all(collector)
    wait_for_acks(collector)
    shop.canal.stop()
    shop.canal.forget()
    shop.insert(1)
    shop.canal.launch()
    shop.insert(2)
    with pytest.raises(PositionLost):
        collector.collect_rows(2)


def test_canal_gtid_restarted_job_drops_committed_rows(shop):
    first = shop.collector()
    shop.insert(*range(5))
    first.collect_rows(5)
    committed, schemas = first.batches[-1].last, first.receiver.schemas()
    first.receiver.close()  # committed, but not acked
    shop.insert(5)
    second = shop.collector(committed, schemas, 5).collect_rows(1).collect_to_end()
    assert second.values() == [5]


def test_canal_gtid_failover_to_replica_continues(shop_on, tmp_path):
    """The binlog files of the replica have lower numbers."""
    binaries = obtain("mysql")
    with (
        LocalServer.start(binaries, tmp_path / "source") as source,
        LocalServer.start(binaries, tmp_path / "replica", options=("--server-id=77",)) as replica,
    ):
        source.execute(*["FLUSH BINARY LOGS"] * 5)
        source.create_user("replica", "secret")
        shop = shop_on(source, "shop")
        collector = shop.collector()
        for number in range(3):
            shop.insert(number)
            collector.collect_rows(number + 1)
            ack_all(collector)
        wait_for_acks(collector, but=1)
        before = collector.batches[-1].last
        shop.insert(3)
        collector.collect_rows(4)  # not acked
        copy_transactions(source, replica)
        shop.canal.stop()
        shop.canal.source = shop.server = replica
        shop.canal.launch()
        shop.insert(4, 5)
        collector.collect_rows(6).collect_to_end()
        assert collector.values() == list(range(6))
        there = collector.batches[-1].last
        assert there.file < before.file
        assert there.reached(before) and not before.reached(there)
        ack_all(collector)
        wait_for_acks(collector, but=1)
        shop.canal.stop()


def copy_transactions(source, replica):
    """Apply on ``replica`` all transactions that ``source`` has written so far."""
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
