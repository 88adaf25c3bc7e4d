"""CanalReceiver on real Canal servers that read real MySQL and MariaDB servers."""

from __future__ import annotations

import select
import threading
import time
from contextlib import suppress

import pytest

from cdc.errors import DdlStop, PositionLost, SourceActionRequired, SourceUnavailable, UnsupportedRowFormat
from cdc.model.schema import DELETED
from cdc.sources.canal.fetcher import Ring
from cdc.sources.canal.receiver import CanalReceiver
from cdc.sources.schema_history import ResumeOptions
from tests.support.canal_sources import CURSOR, canal_receiver, canal_server, client_of, drain
from tests.support.canal_types import create_every_type, write_every_type
from tests.support.receiving import Collector, Mapped, Shop, TcpProxy, endpoint, position, receiver_of, until

pytestmark = pytest.mark.canal


class CanalShop(Shop):
    """A database that Canal reads."""

    def __init__(self, server, database, canal):
        super().__init__(server, database)
        self.canal = canal
        self.write("CREATE TABLE {db}.orders (id INT PRIMARY KEY, note VARCHAR(1000) CHARACTER SET utf8mb4)")

    def receiver(self, address=None, **options):
        return canal_receiver(address or self.canal.address, Mapped(self.database), **options)


@pytest.fixture
def shop_of(request):
    """Create a shop that the shared Canal of the module reads. All earlier events are drained."""

    def make(kind="mysql"):
        server = request.getfixturevalue(kind)
        database = request.getfixturevalue("mariadb_database" if kind == "mariadb" else "database")
        shop = CanalShop(server, database, request.getfixturevalue("canal" if kind == "mysql" else "canal_mariadb"))
        drain(shop.canal)
        return shop

    return make


@pytest.fixture
def own_canal(mysql, database, tmp_path):
    """Create a shop that a Canal server of its own reads."""
    canals = []

    def make(**options):
        canals.append(canal_server(tmp_path / "canal", mysql, **options))
        canals[-1].launch()
        return CanalShop(mysql, database, canals[-1])

    yield make
    for canal in canals:
        canal.stop()


@pytest.fixture
def opened():
    receivers = []

    def open_(receiver, start=CURSOR, schemas=(), sequence=0):
        receivers.append(receiver)
        receiver.open(start, schemas, sequence)
        return receiver

    yield open_
    for receiver in receivers:
        receiver.close()


def ack_all(collected):
    collected.receiver.ack(collected.batches[-1].last)


def wait_for_acks(receiver):
    """Wait until at most one Batch is unacked: the receiver keeps the newest committed one."""
    until(lambda: len(receiver._acks.unacked) <= 1 and not receiver._fetcher._acks, what="the acks")


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_canal_rows_arrive_in_order_with_binlog_positions(shop_of, opened, kind):
    shop = shop_of(kind)
    position(shop.server)  # creates the user for the receiver
    collector = Collector(opened(shop.receiver(), sequence=100))
    shop.write(*(f"INSERT INTO {{db}}.orders VALUES ({i}, 'n{i}')" for i in range(20)))
    shop.write("UPDATE {db}.orders SET note = 'neu' WHERE id = 3", "UPDATE {db}.orders SET id = 44 WHERE id = 4")
    shop.write("DELETE FROM {db}.orders WHERE id = 5")
    collector.collect_rows(24).collect_to_end()
    assert collector.values() == [*range(20), 3, 4, 44, 5]
    assert collector.sequences == list(range(101, 125))
    assert [row[DELETED] for row in collector.rows[20:]] == [False, True, False, True]
    assert collector.rows[-1]["note"] == "n5"
    for before, after in zip(collector.batches, collector.batches[1:], strict=False):
        assert after.first == before.last and after.last.reached(after.first)
    there, here = position(shop.server), collector.batches[-1].last
    assert (here.file, here.offset, here.entry) == (there.file, there.offset, 0)
    assert all(batch.oldest_commit_us > 1.5e15 for batch in collector.batches if batch.rows)


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_canal_restart_with_cursor_keeps_every_row_once(shop_of, opened, kind):
    shop = shop_of(kind)
    collector = Collector(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (0, '')")
    collector.collect_rows(1)
    ack_all(collector)  # everything, because the first batch is not kept
    until(lambda: not collector.receiver._acks.unacked and not collector.receiver._fetcher.used, what="the ack")
    shop.canal.restart()
    shop.write(*(f"INSERT INTO {{db}}.orders VALUES ({i}, '')" for i in range(1, 5)))
    collector.collect_rows(5)
    ack_all(collector)
    wait_for_acks(collector.receiver)
    shop.write("INSERT INTO {db}.orders VALUES (5, 'taken but not acked')")
    collector.collect_rows(6)
    shop.canal.restart()
    shop.write("INSERT INTO {db}.orders VALUES (6, 'behind')")
    collector.collect_rows(7).collect_to_end()
    assert collector.values() == list(range(7))
    ack_all(collector)
    wait_for_acks(collector.receiver)


def test_canal_restarted_job_drops_committed_rows(shop_of, opened):
    shop = shop_of()
    first = Collector(opened(shop.receiver()))
    shop.write(*(f"INSERT INTO {{db}}.orders VALUES ({i}, '')" for i in range(5)))
    first.collect_rows(5)
    committed, schemas = first.batches[-1].last, first.receiver.schemas()
    first.receiver.close()
    shop.write("INSERT INTO {db}.orders VALUES (5, '')")
    second = Collector(opened(shop.receiver(), committed, schemas, 5)).collect_rows(1).collect_to_end()
    assert (second.values(), second.sequences) == ([5], [6])


def test_canal_restart_without_cursor_is_a_gap_until_accepted(own_canal, opened):
    shop = own_canal(durable=False)
    collector = Collector(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (1, '')")
    collector.collect_rows(1)
    ack_all(collector)
    stopped, schemas = collector.batches[-1].last, collector.receiver.schemas()
    collector.receiver.close()
    shop.canal.stop()
    shop.write("INSERT INTO {db}.orders VALUES (2, 'lost to Canal')")
    shop.canal.launch()
    shop.write("INSERT INTO {db}.orders VALUES (3, '')")
    again = Collector(opened(shop.receiver(), stopped, schemas, 1))
    with pytest.raises(PositionLost, match="its cursor was lost") as caught:
        again.collect_rows(1)
    assert caught.value.context["stopped_at"] == stopped and "accept-gap" in caught.value.hint
    assert not again.rows
    again.receiver.close()
    resumed_after_gap = Collector(opened(shop.receiver(accept_gap=True), stopped, schemas, 1)).collect_rows(1)
    assert resumed_after_gap.values() == [3]
    resumed_after_gap.collect_to_end()
    assert [batch.gaps for batch in resumed_after_gap.batches if batch.gaps] == [{f"{shop.database}.orders"}]
    ack_all(resumed_after_gap)
    shop.canal.stop()
    shop.write("INSERT INTO {db}.orders VALUES (4, 'lost to Canal')")
    shop.canal.launch()
    shop.write("INSERT INTO {db}.orders VALUES (5, '')")
    with pytest.raises(PositionLost, match="its cursor was lost"):
        resumed_after_gap.collect_rows(2)  # only one gap was accepted, not all later ones


def test_canal_cut_connection_keeps_every_row_once(shop_of, opened):
    shop = shop_of()
    with TcpProxy(shop.canal.port) as proxy:
        collector = Collector(opened(shop.receiver(f"127.0.0.1:{proxy.port}")))
        proxy.cut_after(3_000, 40_000, 200_000)
        for first in range(0, 2000, 100):
            rows = ",".join(f"({row}, REPEAT('z', 100))" for row in range(first, first + 100))
            shop.write(f"INSERT INTO {{db}}.orders VALUES {rows}")
        collector.collect_rows(2000).collect_to_end()
        assert collector.values() == list(range(2000))
        assert proxy.cuts >= 2


def test_canal_acks_follow_commits_in_order(shop_of, opened):
    shop = shop_of()
    receiver = opened(shop.receiver(ring=Ring(entries=64)))
    # all earlier events are received by now; otherwise they would share one batch with the first row
    collector = Collector(receiver).collect_to_end()
    for i in range(6):
        shop.write(f"INSERT INTO {{db}}.orders VALUES ({i}, '')")
        collector.collect_rows(i + 1)
    batches = [batch for batch in collector.batches if batch.rows]
    held = receiver._fetcher.used
    Collector(receiver).collect_to_end()
    assert held == receiver._fetcher.used > 0, "nothing is acked before it is committed"
    receiver.ack(batches[2].last)
    until(lambda: 0 < receiver._fetcher.used < held, what="the acks of what is committed")
    # batches that are not committed are delivered again to the next connection
    receiver.close()
    again = Collector(opened(shop.receiver(), batches[2].last)).collect_rows(3).collect_to_end()
    assert again.values() == [3, 4, 5]


def test_canal_transaction_larger_than_the_ring_is_split(own_canal, opened):
    shop = own_canal(entries=64, transaction_size=16)
    receiver = opened(shop.receiver(ring=Ring(entries=64)))
    collector = Collector(receiver)
    shop.write("INSERT INTO {db}.orders VALUES (-1, 'before')")
    collector.collect_rows(1)
    inserts = [
        "INSERT INTO orders VALUES " + ",".join(f"({row}, REPEAT('x', 200))" for row in range(at, at + 500))
        for at in range(0, 10_000, 500)
    ]
    shop.write_together(*inserts)
    deadline = time.monotonic() + 240
    while len(collector.rows) < 10_001:
        assert time.monotonic() < deadline, len(collector.rows)
        batch = receiver.get(0.2)
        if batch is not None:
            collector.add(batch)
        elif receiver.status().needs_ack or collector.batches[-1].last.entry:
            receiver.ack(collector.batches[-1].last)  # as a cycle that closes and commits
    assert collector.values() == [-1, *range(10_000)]
    assert collector.batches[-1].last.splits == 1
    assert all(batch.ends_transaction for batch in collector.batches)
    # a job that was killed between two pieces continues after the committed piece
    inside = [batch.last for batch in collector.batches if batch.last.entry]
    assert inside


def test_canal_kill_inside_split_transaction_resumes_at_the_piece(own_canal, opened):
    shop = own_canal(entries=64, transaction_size=16)
    first = Collector(opened(shop.receiver(ring=Ring(entries=64))))
    inserts = [
        "INSERT INTO orders VALUES " + ",".join(f"({row}, REPEAT('x', 200))" for row in range(at, at + 500))
        for at in range(0, 5_000, 500)
    ]
    shop.write_together(*inserts)

    def committed_up_to_a_piece(collector):
        if collector.receiver.status().needs_ack:
            collector.receiver.ack(collector.batches[-1].last)
        return any(batch.last.entry for batch in collector.batches)

    first.collect(committed_up_to_a_piece)
    committed, schemas = first.batches[-1].last, first.receiver.schemas()
    first.receiver.close()  # the piece is committed, but not acked
    second = Collector(opened(shop.receiver(ring=Ring(entries=64)), committed, schemas, len(first.rows)))
    deadline = time.monotonic() + 240
    while len(first.rows) + len(second.rows) < 5_000:
        assert time.monotonic() < deadline, len(second.rows)
        batch = second.receiver.get(0.2)
        if batch is not None:
            second.add(batch)
            second.receiver.ack(batch.last)
        elif not second.rows:
            second.receiver.ack(committed)
    assert first.values() + second.values() == list(range(5_000))


def test_canal_rows_without_transaction_entries_are_delivered(own_canal, opened):
    shop = own_canal(filter_edges=True)
    collector = Collector(opened(shop.receiver()))
    for i in range(4):
        shop.write(f"INSERT INTO {{db}}.orders VALUES ({i}, '')")
    collector.collect_rows(4)
    ack_all(collector)
    shop.write("INSERT INTO {db}.orders VALUES (4, '')")
    collector.collect_rows(5).collect_to_end()
    assert collector.values() == list(range(5))


def test_canal_ddl_stops_before_it_and_resumes_after_it(shop_of, opened):
    shop = shop_of()
    collector = Collector(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (1, '')", "ALTER TABLE {db}.orders ADD INDEX (note(10))")
    collector.collect_rows(1)
    shop.write("INSERT INTO {db}.orders VALUES (2, '')", "ALTER TABLE {db}.orders DROP COLUMN note")
    shop.write("INSERT INTO {db}.orders VALUES (3)")
    with pytest.raises(DdlStop, match="DROP COLUMN note") as stop:
        collector.collect_rows(3)
    assert collector.values() == [1, 2]
    stopped, schemas = collector.batches[-1].last, collector.receiver.schemas()
    collector.receiver.close()
    refused = Collector(opened(shop.receiver(), stopped, schemas, 2))
    with pytest.raises(DdlStop):
        refused.collect_rows(1)
    refused.receiver.close()
    resumed = shop.receiver(resume_options=ResumeOptions(acknowledged={stop.value.context["position"]: False}))
    assert Collector(opened(resumed, stopped, schemas, 2)).collect_rows(1).rows[0]["id"] == 3


def test_canal_drop_of_a_snapshot_only_table_raises_schema_changed(shop_of, opened):
    shop = shop_of()
    receiver = opened(shop.receiver())
    receiver.note_loaded([f"{shop.database}.orders"])
    shop.write("DROP TABLE IF EXISTS {db}.orders")
    with pytest.raises(DdlStop, match="DROP TABLE"):
        Collector(receiver).collect_rows(1)


def test_canal_minimal_row_image_raises_and_names_the_table(shop_of, opened):
    shop = shop_of()
    collector = Collector(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (1, 'a')")
    collector.collect_rows(1)
    with shop.server.connect(shop.database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_row_image = MINIMAL")
        cursor.execute("UPDATE orders SET note = 'b'")
    with pytest.raises(UnsupportedRowFormat, match="FULL") as refused:
        collector.collect_rows(2)
    assert "--accept-gap" in refused.value.hint
    stopped, schemas = collector.batches[-1].last, collector.receiver.schemas()
    collector.receiver.close()

    shop.write("INSERT INTO {db}.orders VALUES (2, 'behind')")
    resume_options = ResumeOptions(past_gap=True)
    resumed_after_gap = Collector(opened(shop.receiver(resume_options=resume_options), stopped, schemas, 1))
    resumed_after_gap.collect(lambda collector: any(batch.gaps for batch in collector.batches))
    assert {name for batch in resumed_after_gap.batches for name in batch.gaps} == {f"{shop.database}.orders"}
    with shop.server.connect(shop.database) as connection, connection.cursor() as cursor:
        time.sleep(1.1)  # the times in Canal entries are whole seconds
        cursor.execute("SET SESSION binlog_row_image = MINIMAL")
        cursor.execute("UPDATE orders SET note = 'c'")
    with pytest.raises(UnsupportedRowFormat, match="FULL"):
        resumed_after_gap.collect(lambda _: False)


def test_canal_statement_rows_raise_and_can_be_skipped(own_canal, opened):
    shop = own_canal(filter_dml=False)
    receiver = opened(shop.receiver())
    with shop.server.connect(shop.database) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (1, 'a')")
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute("UPDATE orders SET note = 'b'")
        cursor.execute("SET SESSION binlog_format = ROW")
        cursor.execute("INSERT INTO orders VALUES (2, 'behind')")
    collector = Collector(receiver)
    with pytest.raises(UnsupportedRowFormat, match=r"it writes .*orders") as refused:
        collector.collect_rows(2)
    assert "--accept-gap" in refused.value.hint
    stopped, schemas = collector.batches[-1].last, collector.receiver.schemas()
    collector.receiver.close()
    resume_options = ResumeOptions(past_gap=True)
    resumed_after_gap = Collector(opened(shop.receiver(resume_options=resume_options), stopped, schemas, 1))
    resumed_after_gap.collect(lambda collector: 2 in collector.values())
    assert {name for batch in resumed_after_gap.batches for name in batch.gaps} == {f"{shop.database}.orders"}


def xa(shop, xid, *statements, decide="COMMIT"):
    with shop.server.connect(shop.database) as connection, connection.cursor() as cursor:
        for statement in (f"XA START '{xid}'", *statements, f"XA END '{xid}'", f"XA PREPARE '{xid}'"):
            cursor.execute(statement)
        if decide:
            cursor.execute(f"XA {decide} '{xid}'")


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_canal_prepared_xa_rows_of_mapped_tables_raise(shop_of, opened, kind):
    shop = shop_of(kind)
    collector = Collector(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (1, '')")
    collector.collect_rows(1)
    ack_all(collector)
    shop.write("INSERT INTO {db}.orders VALUES (2, 'before')")
    xa(shop, "x", "INSERT INTO orders VALUES (9, '')", decide=None)
    shop.write("INSERT INTO {db}.orders VALUES (3, 'behind')")
    with pytest.raises(SourceActionRequired, match=r"XA transaction .* changes .*orders") as caught:
        collector.collect_rows(3)
    assert collector.values() == [1, 2] and "accept-gap" in caught.value.hint
    stopped, schemas = collector.batches[-1].last, collector.receiver.schemas()
    collector.receiver.close()
    again = Collector(opened(shop.receiver(), stopped, schemas, 2))
    with pytest.raises(SourceActionRequired, match="XA transaction"):
        again.collect_rows(1)
    again.receiver.close()
    resumed_after_gap = Collector(opened(shop.receiver(accept_gap=True), stopped, schemas, 2)).collect_rows(1)
    shop.write("XA COMMIT 'x'", "INSERT INTO {db}.orders VALUES (4, 'behind the decision')")
    resumed_after_gap.collect_rows(2).collect_to_end()
    assert resumed_after_gap.values() == [3, 4]


@pytest.mark.parametrize("decide", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_canal_xa_of_other_tables_is_ignored(shop_of, opened, kind, decide):
    shop = shop_of(kind)
    shop.write("CREATE DATABASE IF NOT EXISTS canal_marks", "CREATE TABLE IF NOT EXISTS canal_marks.others (id INT)")
    collector = Collector(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (1, '')")
    xa(shop, "y", "INSERT INTO canal_marks.others VALUES (9)", decide=decide)
    shop.write("INSERT INTO {db}.orders VALUES (2, '')")
    collector.collect_rows(2).collect_to_end()
    assert collector.values() == [1, 2]


@pytest.mark.parametrize("mapped", [True, False])
def test_canal_xa_decision_without_known_rows_queries_mysql(shop_of, opened, mapped):
    shop = shop_of()
    shop.write("CREATE DATABASE IF NOT EXISTS canal_marks", "CREATE TABLE IF NOT EXISTS canal_marks.others (id INT)")
    table = "orders (id)" if mapped else "canal_marks.others"
    xa(shop, "z", f"INSERT INTO {table} VALUES (9)", decide=None)
    drain(shop.canal)
    collector = Collector(opened(shop.receiver(mysql=endpoint(shop.server))))
    shop.write("INSERT INTO {db}.orders VALUES (1, '')", "XA COMMIT 'z'", "INSERT INTO {db}.orders VALUES (2, '')")
    if mapped:
        with pytest.raises(SourceActionRequired, match="prepared before"):
            collector.collect_rows(2)
        assert collector.values() == [1]
    else:
        assert collector.collect_rows(2).values() == [1, 2]


def test_canal_second_client_on_the_destination_raises(shop_of, opened):
    shop = shop_of()
    collector = Collector(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (1, '')")
    collector.collect_rows(1)
    ended = threading.Event()

    def get_concurrently() -> None:
        with client_of(shop.canal.address) as other, suppress(SourceUnavailable):
            while not ended.is_set():
                other.get(1, 100)

    competitor = threading.Thread(target=get_concurrently)
    competitor.start()
    try:
        with pytest.raises(SourceActionRequired, match="nother client"):
            for number in range(2, 400):  # which client gets a batch first is chance, each time
                shop.write(f"INSERT INTO {{db}}.orders VALUES ({number}, '')")
                collector.receiver.get(0.1)
    finally:
        ended.set()
        competitor.join()


@pytest.mark.parametrize(("before", "rows"), [(1, 5), (2, 5), (3, 5), (1, 1)])
def test_canal_get_for_a_dead_connection_loses_no_rows(shop_of, opened, before, rows):
    """The server may answer it after the rollback of the next connection, between its first ``before`` gets.

    If it contains the last rows, no later batch reveals the loss.
    """
    shop = shop_of()
    dead = client_of(shop.canal.address)
    dead.connect()
    client = client_of(shop.canal.address)
    get, calls, late = client.get, [], []

    def delayed_get(fetch_size, timeout_ms):
        if len(calls) == before - 1 and not late:
            late.append(until(lambda: dead.get(fetch_size, 100), what="a batch for the late get"))
            dead.close()
        message = get(fetch_size, timeout_ms)
        calls.extend([message] if message is not None else [])
        return message

    client.get = delayed_get
    for number in range(rows):
        shop.write(f"INSERT INTO {{db}}.orders VALUES ({number}, REPEAT('x', 1000))")  # one batch for each row
    receiver = CanalReceiver(lambda: client, Mapped(shop.database), batch_size=1 if rows > 1 else 1000)
    collector = Collector(opened(receiver)).collect_rows(rows).collect_to_end()
    assert collector.values() == list(range(rows))
    assert late and len(calls) > before


def test_canal_probe_does_not_disturb_the_running_client(shop_of, opened):
    shop = shop_of()
    collector = Collector(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (1, '')")
    collector.collect_rows(1)
    assert client_of(shop.canal.address).probe() == shop.canal.address
    with pytest.raises(SourceUnavailable, match="auth failed"):
        client_of(shop.canal.address, password="wrong").probe()
    shop.write("INSERT INTO {db}.orders VALUES (2, '')")
    collector.collect_rows(2).collect_to_end()
    assert collector.values() == [1, 2]


def test_canal_probe_keeps_the_stored_filter(own_canal):
    shop = own_canal()
    mine = f"{shop.database}\\\\..*"
    with client_of(shop.canal.address, filter=mine) as client:
        shop.write("INSERT INTO {db}.orders VALUES (1, '')")
        client.ack(until(lambda: client.get(100, 200), 20))
    stored = shop.canal.log.parent / "shop" / "meta.dat"
    until(lambda: stored.exists() and shop.database in stored.read_text(), what="the filter in the server's file")
    client_of(shop.canal.address).probe()
    time.sleep(1)  # the server writes its file every 0.1 s
    assert shop.database in stored.read_text()


def test_canal_client_idle_connection_reconnects_without_loss(shop_of):
    shop = shop_of()
    client = client_of(shop.canal.address, idle_timeout_ms=1000)
    client.connect()
    assert select.select([client._connection._socket], [], [], 20)[0], "the server closes an idle connection"
    with pytest.raises(SourceUnavailable):
        client.get()
    shop.write("INSERT INTO {db}.orders VALUES (1, 'after the silence')")
    assert until(lambda: client.get(1000, 200), 20).session == 2
    client.close()


def test_canal_stalled_server_sets_a_warning_and_is_not_at_end(own_canal, opened):
    shop = own_canal()
    receiver = opened(shop.receiver(mysql=endpoint(shop.server), stall_every_s=0.5))
    collector = Collector(receiver)
    shop.write("INSERT INTO {db}.orders VALUES (1, '')")
    collector.collect_rows(1).collect_to_end()
    assert receiver.status().warning is None
    accounts = "canal@localhost IDENTIFIED BY '{0}', canal@127.0.0.1 IDENTIFIED BY '{0}'"
    with shop.server.connect() as connection, connection.cursor() as cursor:
        try:
            # Canal's connection is killed and its next login refused. Canal retries forever and reports nothing to its
            # clients.
            cursor.execute(f"ALTER USER {accounts.format('another')}")
            cursor.execute("SELECT MAX(id) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
            cursor.execute(f"KILL {cursor.fetchone()[0]}")
            rows = iter(range(2, 1000))

            def warning_after_write():
                shop.write(f"INSERT INTO {{db}}.orders VALUES ({next(rows)}, '')")
                receiver.get(0.2)
                return receiver.status().warning

            warning = until(warning_after_write, what="the warning")
        finally:
            cursor.execute(f"ALTER USER {accounts.format('canal')}")
    assert "Canal is stalled" in warning.message and "log" in warning.hint
    assert not receiver.status().is_at_end
    collector.collect_rows(next(rows) - 1, 60).collect_to_end()
    assert receiver.status().warning is None and collector.values() == list(range(1, len(collector.rows) + 1))


def test_canal_new_table_is_described_by_mysql(shop_of, opened):
    shop = shop_of()
    shop.write("CREATE TABLE {db}.people (id INT PRIMARY KEY, name VARCHAR(20) CHARACTER SET latin1 COMMENT 'full')")
    collector = Collector(opened(shop.receiver(mysql=endpoint(shop.server))))
    shop.write("INSERT INTO {db}.people VALUES (1, 'Ann')")
    collector.collect_rows(1)
    (schema,) = collector.receiver.schemas()
    assert (schema.column("name").charset, schema.column("name").comment) == ("latin1", "full")


@pytest.mark.parametrize("with_mysql", [False, True])
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_canal_every_type_equals_the_binlog_decoder(shop_of, opened, kind, with_mysql):
    shop = shop_of(kind)
    start = position(shop.server)
    mysql = endpoint(shop.server) if with_mysql else None
    canal = Collector(opened(shop.receiver(zone_us=8 * 3600 * 1_000_000, mysql=mysql)))
    create_every_type(shop)
    write_every_type(shop)
    binlog = Collector(opened(receiver_of(shop.server, Mapped(shop.database)), start)).collect_rows(
        11, 240
    )  # the first call may compile kernels
    canal.collect_rows(11)
    wanted = [each.rows for batch in binlog.batches for each in batch.changes]
    found = [each.rows for batch in canal.batches for each in batch.changes]
    assert found[0].schema.equals(wanted[0].schema)
    differing = {
        name: (left, right)
        for name in wanted[0].schema.names
        if (left := [value for rows in found for value in rows.column(name).to_pylist()])
        != (right := [value for rows in wanted for value in rows.column(name).to_pylist()])
        and name != "__sequence"
    }
    assert not differing
