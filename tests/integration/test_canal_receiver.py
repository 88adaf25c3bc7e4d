"""CanalReceiver on real Canal servers that read real MySQL and MariaDB servers."""

from __future__ import annotations

import select
import threading
import time
from contextlib import suppress

import pytest

from cdc.errors import PositionLost, SchemaChanged, SourceBlocked, SourceUnavailable, UnsupportedImage
from cdc.receiver.canal import CanalReceiver
from cdc.receiver.fetching import Ring
from cdc.receiver.tables import Resumption
from cdc.schema import DELETED
from tests.canal_sources import CURSOR, canal_receiver, canal_server, client_of, drain
from tests.canal_types import create_every_type, write_every_type
from tests.receiving import Line, Mapped, Shop, Taker, endpoint, position, receiver_of, until

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
    """A shop read by the module's Canal, which has read everything written before."""

    def make(kind="mysql"):
        server = request.getfixturevalue(kind)
        database = request.getfixturevalue("mariadb_database" if kind == "mariadb" else "database")
        shop = CanalShop(server, database, request.getfixturevalue("canal" if kind == "mysql" else "canal_mariadb"))
        drain(shop.canal)
        return shop

    return make


@pytest.fixture
def own_canal(mysql, database, tmp_path):
    """A shop read by a Canal server of its own."""
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


def ack_all(taken):
    taken.receiver.ack(taken.batches[-1].last)


def nothing_unacked(receiver):
    """But for the newest committed batch, which is held."""
    until(lambda: len(receiver._unacked) <= 1 and not receiver._fetcher._acks, what="the acks")


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_rows_come_in_order_and_the_position_is_the_binlogs(shop_of, opened, kind):
    shop = shop_of(kind)
    position(shop.server)  # makes the user that asks
    taker = Taker(opened(shop.receiver(), sequence=100))
    shop.write(*(f"INSERT INTO {{db}}.orders VALUES ({i}, 'n{i}')" for i in range(20)))
    shop.write("UPDATE {db}.orders SET note = 'neu' WHERE id = 3", "UPDATE {db}.orders SET id = 44 WHERE id = 4")
    shop.write("DELETE FROM {db}.orders WHERE id = 5")
    taker.take_rows(24).take_to_end()
    assert taker.values() == [*range(20), 3, 4, 44, 5]
    assert taker.sequences == list(range(101, 125))
    assert [row[DELETED] for row in taker.rows[20:]] == [False, True, False, True]
    assert taker.rows[-1]["note"] == "n5"
    for before, after in zip(taker.batches, taker.batches[1:], strict=False):
        assert after.first == before.last and after.last.reached(after.first)
    there, here = position(shop.server), taker.batches[-1].last
    assert (here.file, here.offset, here.entry) == (there.file, there.offset, 0)
    assert all(batch.oldest_commit_us > 1.5e15 for batch in taker.batches if batch.rows)


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_restart_of_canal_with_its_cursor_loses_and_doubles_nothing(shop_of, opened, kind):
    shop = shop_of(kind)
    taker = Taker(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (0, '')")
    taker.take_rows(1)
    ack_all(taker)  # everything: the first batch is not held
    until(lambda: not taker.receiver._unacked and not taker.receiver._fetcher.used, what="the ack")
    shop.canal.restart()
    shop.write(*(f"INSERT INTO {{db}}.orders VALUES ({i}, '')" for i in range(1, 5)))
    taker.take_rows(5)
    ack_all(taker)
    nothing_unacked(taker.receiver)
    shop.write("INSERT INTO {db}.orders VALUES (5, 'taken but not acked')")
    taker.take_rows(6)
    shop.canal.restart()
    shop.write("INSERT INTO {db}.orders VALUES (6, 'behind')")
    taker.take_rows(7).take_to_end()
    assert taker.values() == list(range(7))
    ack_all(taker)
    nothing_unacked(taker.receiver)


def test_a_job_that_starts_again_drops_what_it_has_committed_and_not_acked(shop_of, opened):
    shop = shop_of()
    first = Taker(opened(shop.receiver()))
    shop.write(*(f"INSERT INTO {{db}}.orders VALUES ({i}, '')" for i in range(5)))
    first.take_rows(5)
    committed, schemas = first.batches[-1].last, first.receiver.schemas()
    first.receiver.close()
    shop.write("INSERT INTO {db}.orders VALUES (5, '')")
    second = Taker(opened(shop.receiver(), committed, schemas, 5)).take_rows(1).take_to_end()
    assert (second.values(), second.sequences) == ([5], [6])


def test_canal_restarted_without_its_cursor_is_a_gap_until_it_is_accepted(own_canal, opened):
    shop = own_canal(durable=False)
    taker = Taker(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (1, '')")
    taker.take_rows(1)
    ack_all(taker)
    stopped, schemas = taker.batches[-1].last, taker.receiver.schemas()
    taker.receiver.close()
    shop.canal.stop()
    shop.write("INSERT INTO {db}.orders VALUES (2, 'lost to Canal')")
    shop.canal.launch()
    shop.write("INSERT INTO {db}.orders VALUES (3, '')")
    again = Taker(opened(shop.receiver(), stopped, schemas, 1))
    with pytest.raises(PositionLost, match="its cursor was lost") as caught:
        again.take_rows(1)
    assert caught.value.where["stopped_at"] == stopped and "accept-gap" in caught.value.mend
    assert not again.rows
    again.receiver.close()
    agreed = Taker(opened(shop.receiver(accept_gap=True), stopped, schemas, 1)).take_rows(1)
    assert agreed.values() == [3]
    ack_all(agreed)
    shop.canal.stop()
    shop.write("INSERT INTO {db}.orders VALUES (4, 'lost to Canal')")
    shop.canal.launch()
    shop.write("INSERT INTO {db}.orders VALUES (5, '')")
    with pytest.raises(PositionLost, match="its cursor was lost"):
        agreed.take_rows(2)  # one gap was accepted, and not all that ever come


def test_a_cut_line_loses_and_doubles_nothing(shop_of, opened):
    shop = shop_of()
    with Line(shop.canal.port) as line:
        taker = Taker(opened(shop.receiver(f"127.0.0.1:{line.port}")))
        line.cut_after(3_000, 40_000, 200_000)
        for first in range(0, 2000, 100):
            rows = ",".join(f"({row}, REPEAT('z', 100))" for row in range(first, first + 100))
            shop.write(f"INSERT INTO {{db}}.orders VALUES {rows}")
        taker.take_rows(2000).take_to_end()
        assert taker.values() == list(range(2000))
        assert line.cuts >= 2


def test_acks_come_in_order_and_only_up_to_what_is_committed(shop_of, opened):
    shop = shop_of()
    receiver = opened(shop.receiver(ring=Ring(entries=64)))
    taker = Taker(receiver).take_to_end()  # all is asked for twice by now; what came before would come in one batch
    for i in range(6):
        shop.write(f"INSERT INTO {{db}}.orders VALUES ({i}, '')")
        taker.take_rows(i + 1)
    batches = [batch for batch in taker.batches if batch.rows]
    held = receiver._fetcher.used
    Taker(receiver).take_to_end()
    assert held == receiver._fetcher.used > 0, "nothing is acked before it is committed"
    receiver.ack(batches[2].last)
    until(lambda: 0 < receiver._fetcher.used < held, what="the acks of what is committed")
    # what is not committed comes again to whoever connects next
    receiver.close()
    again = Taker(opened(shop.receiver(), batches[2].last)).take_rows(3).take_to_end()
    assert again.values() == [3, 4, 5]


def test_one_transaction_larger_than_the_ring_goes_through_in_pieces(own_canal, opened):
    shop = own_canal(entries=64, transaction_size=16)
    receiver = opened(shop.receiver(ring=Ring(entries=64)))
    taker = Taker(receiver)
    shop.write("INSERT INTO {db}.orders VALUES (-1, 'before')")
    taker.take_rows(1)
    inserts = [
        "INSERT INTO orders VALUES " + ",".join(f"({row}, REPEAT('x', 200))" for row in range(at, at + 500))
        for at in range(0, 10_000, 500)
    ]
    shop.write_together(*inserts)
    deadline = time.monotonic() + 240
    while len(taker.rows) < 10_001:
        assert time.monotonic() < deadline, len(taker.rows)
        batch = receiver.get(0.2)
        if batch is not None:
            taker.add(batch)
        elif receiver.window_full() or taker.batches[-1].last.entry:
            receiver.ack(taker.batches[-1].last)  # a cycle that closes and commits
    assert taker.values() == [-1, *range(10_000)]
    assert taker.batches[-1].last.splits == 1
    assert all(batch.ends_transaction for batch in taker.batches)
    # a job that was killed between two pieces goes on behind the piece it has committed
    inside = [batch.last for batch in taker.batches if batch.last.entry]
    assert inside


def test_a_kill_inside_a_split_transaction_goes_on_behind_the_committed_piece(own_canal, opened):
    shop = own_canal(entries=64, transaction_size=16)
    first = Taker(opened(shop.receiver(ring=Ring(entries=64))))
    inserts = [
        "INSERT INTO orders VALUES " + ",".join(f"({row}, REPEAT('x', 200))" for row in range(at, at + 500))
        for at in range(0, 5_000, 500)
    ]
    shop.write_together(*inserts)

    def committed_up_to_a_piece(taker):
        if taker.receiver.window_full():
            taker.receiver.ack(taker.batches[-1].last)
        return any(batch.last.entry for batch in taker.batches)

    first.take(committed_up_to_a_piece)
    committed, schemas = first.batches[-1].last, first.receiver.schemas()
    first.receiver.close()  # the piece is committed, and not acked
    second = Taker(opened(shop.receiver(ring=Ring(entries=64)), committed, schemas, len(first.rows)))
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


def test_rows_whose_transactions_have_no_edges_come_all_the_same(own_canal, opened):
    shop = own_canal(filter_edges=True)
    taker = Taker(opened(shop.receiver()))
    for i in range(4):
        shop.write(f"INSERT INTO {{db}}.orders VALUES ({i}, '')")
    taker.take_rows(4)
    ack_all(taker)
    shop.write("INSERT INTO {db}.orders VALUES (4, '')")
    taker.take_rows(5).take_to_end()
    assert taker.values() == list(range(5))


def test_ddl_on_a_mapped_table_stops_before_it_and_a_resume_goes_on_behind_it(shop_of, opened):
    shop = shop_of()
    taker = Taker(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (1, '')", "ALTER TABLE {db}.orders ADD INDEX (note(10))")
    taker.take_rows(1)
    shop.write("INSERT INTO {db}.orders VALUES (2, '')", "ALTER TABLE {db}.orders DROP COLUMN note")
    shop.write("INSERT INTO {db}.orders VALUES (3)")
    with pytest.raises(SchemaChanged, match="DROP COLUMN note"):
        taker.take_rows(3)
    assert taker.values() == [1, 2]
    stopped, schemas = taker.batches[-1].last, taker.receiver.schemas()
    taker.receiver.close()
    refused = Taker(opened(shop.receiver(), stopped, schemas, 2))
    with pytest.raises(SchemaChanged):
        refused.take_rows(1)
    refused.receiver.close()
    resumed = shop.receiver(resumption=Resumption(behind_ddl=True))
    assert Taker(opened(resumed, stopped, schemas, 2)).take_rows(1).rows[0]["id"] == 3


def test_dropping_a_table_that_only_a_snapshot_has_read_pauses(shop_of, opened):
    shop = shop_of()
    receiver = opened(shop.receiver())
    receiver.note_loaded([f"{shop.database}.orders"])
    shop.write("DROP TABLE IF EXISTS {db}.orders")
    with pytest.raises(SchemaChanged, match="DROP TABLE"):
        Taker(receiver).take_rows(1)


def test_a_minimal_image_is_refused_by_name(shop_of, opened):
    shop = shop_of()
    taker = Taker(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (1, 'a')")
    taker.take_rows(1)
    with shop.server.connect(shop.database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_row_image = MINIMAL")
        cursor.execute("UPDATE orders SET note = 'b'")
    with pytest.raises(UnsupportedImage, match="FULL") as refused:
        taker.take_rows(2)
    assert "--accept-gap" in refused.value.mend
    stopped, schemas = taker.batches[-1].last, taker.receiver.schemas()
    taker.receiver.close()

    shop.write("INSERT INTO {db}.orders VALUES (2, 'behind')")
    resumption = Resumption(behind_ddl=True, past_gap=True)
    agreed = Taker(opened(shop.receiver(resumption=resumption), stopped, schemas, 1))
    agreed.take(lambda taker: any(batch.gaps for batch in taker.batches))
    assert {name for batch in agreed.batches for name in batch.gaps} == {f"{shop.database}.orders"}
    with shop.server.connect(shop.database) as connection, connection.cursor() as cursor:
        time.sleep(1.1)  # entries tell whole seconds
        cursor.execute("SET SESSION binlog_row_image = MINIMAL")
        cursor.execute("UPDATE orders SET note = 'c'")
    with pytest.raises(UnsupportedImage, match="FULL"):
        agreed.take(lambda _: False)


def test_rows_written_as_statements_are_refused_by_name_and_can_be_left_out(own_canal, opened):
    shop = own_canal(filter_dml=False)
    receiver = opened(shop.receiver())
    with shop.server.connect(shop.database) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (1, 'a')")
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        cursor.execute("UPDATE orders SET note = 'b'")
        cursor.execute("SET SESSION binlog_format = ROW")
        cursor.execute("INSERT INTO orders VALUES (2, 'behind')")
    taker = Taker(receiver)
    with pytest.raises(UnsupportedImage, match=r"it writes .*orders") as refused:
        taker.take_rows(2)
    assert "--accept-gap" in refused.value.mend
    stopped, schemas = taker.batches[-1].last, taker.receiver.schemas()
    taker.receiver.close()
    resumption = Resumption(behind_ddl=True, past_gap=True)
    agreed = Taker(opened(shop.receiver(resumption=resumption), stopped, schemas, 1))
    agreed.take(lambda taker: 2 in taker.values())
    assert {name for batch in agreed.batches for name in batch.gaps} == {f"{shop.database}.orders"}


def xa(shop, xid, *statements, decide="COMMIT"):
    with shop.server.connect(shop.database) as connection, connection.cursor() as cursor:
        for statement in (f"XA START '{xid}'", *statements, f"XA END '{xid}'", f"XA PREPARE '{xid}'"):
            cursor.execute(statement)
        if decide:
            cursor.execute(f"XA {decide} '{xid}'")


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_undecided_xa_rows_of_a_mapped_table_are_not_handed_out(shop_of, opened, kind):
    shop = shop_of(kind)
    taker = Taker(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (1, '')")
    taker.take_rows(1)
    ack_all(taker)
    shop.write("INSERT INTO {db}.orders VALUES (2, 'before')")
    xa(shop, "x", "INSERT INTO orders VALUES (9, '')", decide=None)
    shop.write("INSERT INTO {db}.orders VALUES (3, 'behind')")
    with pytest.raises(SourceBlocked, match=r"XA transaction .* changes .*orders") as caught:
        taker.take_rows(3)
    assert taker.values() == [1, 2] and "accept-gap" in caught.value.mend
    stopped, schemas = taker.batches[-1].last, taker.receiver.schemas()
    taker.receiver.close()
    again = Taker(opened(shop.receiver(), stopped, schemas, 2))
    with pytest.raises(SourceBlocked, match="XA transaction"):
        again.take_rows(1)
    again.receiver.close()
    agreed = Taker(opened(shop.receiver(accept_gap=True), stopped, schemas, 2)).take_rows(1)
    shop.write("XA COMMIT 'x'", "INSERT INTO {db}.orders VALUES (4, 'behind the decision')")
    agreed.take_rows(2).take_to_end()
    assert agreed.values() == [3, 4]


@pytest.mark.parametrize("decide", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_xa_of_other_tables_is_let_through(shop_of, opened, kind, decide):
    shop = shop_of(kind)
    shop.write("CREATE DATABASE IF NOT EXISTS canal_marks", "CREATE TABLE IF NOT EXISTS canal_marks.others (id INT)")
    taker = Taker(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (1, '')")
    xa(shop, "y", "INSERT INTO canal_marks.others VALUES (9)", decide=decide)
    shop.write("INSERT INTO {db}.orders VALUES (2, '')")
    taker.take_rows(2).take_to_end()
    assert taker.values() == [1, 2]


@pytest.mark.parametrize("mapped", [True, False])
def test_the_decision_on_xa_rows_that_were_never_seen_is_looked_up(shop_of, opened, mapped):
    shop = shop_of()
    shop.write("CREATE DATABASE IF NOT EXISTS canal_marks", "CREATE TABLE IF NOT EXISTS canal_marks.others (id INT)")
    table = "orders (id)" if mapped else "canal_marks.others"
    xa(shop, "z", f"INSERT INTO {table} VALUES (9)", decide=None)
    drain(shop.canal)
    taker = Taker(opened(shop.receiver(mysql=endpoint(shop.server))))
    shop.write("INSERT INTO {db}.orders VALUES (1, '')", "XA COMMIT 'z'", "INSERT INTO {db}.orders VALUES (2, '')")
    if mapped:
        with pytest.raises(SourceBlocked, match="prepared before"):
            taker.take_rows(2)
        assert taker.values() == [1]
    else:
        assert taker.take_rows(2).values() == [1, 2]


def test_another_client_on_the_destination_is_noticed(shop_of, opened):
    shop = shop_of()
    taker = Taker(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (1, '')")
    taker.take_rows(1)
    ended = threading.Event()

    def take_too() -> None:
        with client_of(shop.canal.address) as other, suppress(SourceUnavailable):
            while not ended.is_set():
                other.get(1, 100)

    thief = threading.Thread(target=take_too)
    thief.start()
    try:
        with pytest.raises(SourceBlocked, match="nother client"):
            for number in range(2, 400):  # who is first is chance, each time
                shop.write(f"INSERT INTO {{db}}.orders VALUES ({number}, '')")
                taker.receiver.get(0.1)
    finally:
        ended.set()
        thief.join()


@pytest.mark.parametrize(("before", "rows"), [(1, 5), (2, 5), (3, 5), (1, 1)])
def test_a_get_that_the_server_answers_to_a_dead_connection_hides_no_rows(shop_of, opened, before, rows):
    """It may be answered after the rollback of the connection that came next, ``before`` its first gets.

    Where it takes the last of the rows, no batch behind it tells.
    """
    shop = shop_of()
    dead = client_of(shop.canal.address)
    dead.connect()
    client = client_of(shop.canal.address)
    get, calls, late = client.get, [], []

    def get_after_the_late_one(fetch_size, timeout_ms):
        if len(calls) == before - 1 and not late:
            late.append(until(lambda: dead.get(fetch_size, 100), what="a batch for the late get"))
            dead.close()
        message = get(fetch_size, timeout_ms)
        calls.extend([message] if message is not None else [])
        return message

    client.get = get_after_the_late_one
    for number in range(rows):
        shop.write(f"INSERT INTO {{db}}.orders VALUES ({number}, REPEAT('x', 1000))")  # a batch for itself
    receiver = CanalReceiver(lambda: client, Mapped(shop.database), batch_size=1 if rows > 1 else 1000)
    taker = Taker(opened(receiver)).take_rows(rows).take_to_end()
    assert taker.values() == list(range(rows))
    assert late and len(calls) > before


def test_a_check_disturbs_nobody(shop_of, opened):
    shop = shop_of()
    taker = Taker(opened(shop.receiver()))
    shop.write("INSERT INTO {db}.orders VALUES (1, '')")
    taker.take_rows(1)
    assert client_of(shop.canal.address).probe() == shop.canal.address
    with pytest.raises(SourceUnavailable, match="auth failed"):
        client_of(shop.canal.address, password="wrong").probe()
    shop.write("INSERT INTO {db}.orders VALUES (2, '')")
    taker.take_rows(2).take_to_end()
    assert taker.values() == [1, 2]


def test_a_check_leaves_the_filter_that_a_client_has_stored(own_canal):
    shop = own_canal()
    mine = f"{shop.database}\\\\..*"
    with client_of(shop.canal.address, filter=mine) as client:
        shop.write("INSERT INTO {db}.orders VALUES (1, '')")
        client.ack(until(lambda: client.get(100, 200), 20))
    stored = shop.canal.log.parent / "shop" / "meta.dat"
    until(lambda: stored.exists() and shop.database in stored.read_text(), what="the filter in the server's file")
    client_of(shop.canal.address).probe()
    time.sleep(1)  # the server writes its file every tenth of a second
    assert shop.database in stored.read_text()


def test_a_client_that_was_idle_for_too_long_connects_again_and_misses_nothing(shop_of):
    shop = shop_of()
    client = client_of(shop.canal.address, idle_timeout_ms=1000)
    client.connect()
    assert select.select([client._connection._socket], [], [], 20)[0], "the server cuts an idle line"
    with pytest.raises(SourceUnavailable):
        client.get()
    shop.write("INSERT INTO {db}.orders VALUES (1, 'after the silence')")
    assert until(lambda: client.get(1000, 200), 20).session == 2
    client.close()


def test_a_canal_that_stands_still_is_told_and_is_not_at_its_end(own_canal, opened):
    shop = own_canal()
    receiver = opened(shop.receiver(mysql=endpoint(shop.server), stall_every_s=0.5))
    taker = Taker(receiver)
    shop.write("INSERT INTO {db}.orders VALUES (1, '')")
    taker.take_rows(1).take_to_end()
    assert receiver.trouble() is None
    accounts = "canal@localhost IDENTIFIED BY '{0}', canal@127.0.0.1 IDENTIFIED BY '{0}'"
    with shop.server.connect() as connection, connection.cursor() as cursor:
        try:
            # Canal's connection is cut and its next login refused: it tries for ever, and tells its clients nothing
            cursor.execute(f"ALTER USER {accounts.format('another')}")
            cursor.execute("SELECT MAX(id) FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'")
            cursor.execute(f"KILL {cursor.fetchone()[0]}")
            rows = iter(range(2, 1000))

            def told():
                shop.write(f"INSERT INTO {{db}}.orders VALUES ({next(rows)}, '')")
                receiver.get(0.2)
                return receiver.trouble()

            trouble = until(told, what="the warning")
        finally:
            cursor.execute(f"ALTER USER {accounts.format('canal')}")
    assert "Canal stands still" in trouble.message and "log" in trouble.mend
    assert not receiver.at_end()
    taker.take_rows(next(rows) - 1, 60).take_to_end()
    assert receiver.trouble() is None and taker.values() == list(range(1, len(taker.rows) + 1))


def test_a_wider_table_after_ddl_is_known_from_mysql(shop_of, opened):
    shop = shop_of()
    shop.write("CREATE TABLE {db}.people (id INT PRIMARY KEY, name VARCHAR(20) CHARACTER SET latin1 COMMENT 'full')")
    taker = Taker(opened(shop.receiver(mysql=endpoint(shop.server))))
    shop.write("INSERT INTO {db}.people VALUES (1, 'Ann')")
    taker.take_rows(1)
    (schema,) = taker.receiver.schemas()
    assert (schema.column("name").charset, schema.column("name").comment) == ("latin1", "full")


@pytest.mark.parametrize("with_mysql", [False, True])
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_every_type_is_what_the_binlog_decoder_makes_of_it(shop_of, opened, kind, with_mysql):
    shop = shop_of(kind)
    start = position(shop.server)
    mysql = endpoint(shop.server) if with_mysql else None
    canal = Taker(opened(shop.receiver(zone_us=8 * 3600 * 1_000_000, mysql=mysql)))
    create_every_type(shop)
    write_every_type(shop)
    binlog = Taker(opened(receiver_of(shop.server, Mapped(shop.database)), start)).take_rows(
        11, 240
    )  # it may compile first
    canal.take_rows(11)
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
