"""The network, the server and the disk fail; the receiver goes on, with no row twice and none missing."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

import cdc.receiver.binlog
from cdc.binlog.connection import Tls
from cdc.binlog.server import Server
from cdc.errors import PositionLost, SourceBlocked, SourceRewound, SourceUnavailable, WrongServer
from cdc.local_servers import LocalServer, obtain
from cdc.preflight import check_source
from cdc.receiver.binlog import BinlogReceiver
from cdc.snapshot.settled import settled
from tests.receiving import Line, Mapped, Taker, endpoint, identity, position, receiver_of, until

KINDS = ["mysql", "mariadb"]


@pytest.fixture(params=KINDS)
def server(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def orders(server, request):
    """A database with a table, on the server of the parameter."""
    kind = server.binaries.kind
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    server.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, note VARCHAR(1000) CHARACTER SET utf8mb4)")
    return database


@pytest.fixture
def own(tmp_path, request):
    """Starts servers for this test alone, which may be stopped, purged and reset."""
    started = []

    def start(kind, *options):
        server = LocalServer.start(
            obtain(kind), tmp_path / f"{kind}{len(started)}", options=("--binlog-row-metadata=FULL", *options)
        )
        started.append(server)
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.orders (id INT PRIMARY KEY, note VARCHAR(1000))")
        return server

    yield start
    for server in started:
        server.stop()


def insert(server, database, first, count, *, size=900, each=1000):
    for start in range(first, first + count, each):
        rows = ",".join(f"({row}, REPEAT('z', {size}))" for row in range(start, min(start + each, first + count)))
        server.execute(f"INSERT INTO {database}.orders VALUES {rows}")


def insert_at_once(server, database, first, count):
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        for start in range(first, first + count, 1000):
            rows = ",".join(f"({row}, REPEAT('z', 900))" for row in range(start, min(start + 1000, first + count)))
            cursor.execute(f"INSERT INTO orders VALUES {rows}")
        cursor.execute("COMMIT")


def assert_each_once(taken, count, first=0):
    assert taken.values() == list(range(first, first + count))
    assert taken.sequences == sorted(set(taken.sequences))


def test_a_line_cut_between_and_inside_transactions(server, orders):
    start = position(server)
    insert(server, orders, 0, 10_000)
    insert_at_once(server, orders, 10_000, 15_000)
    with Line(server.port) as line:
        receiver = receiver_of(server, Mapped(orders), line.port)
        receiver.open(start, (), 0)
        line.cut_after(900_000, 4_000_000, 6_000_000, 3_000_000)
        taken = Taker(receiver).take_rows(25_000)
        receiver.close()
    assert line.cuts == 4
    assert any(not batch.ends_transaction for batch in taken.batches)
    assert_each_once(taken, 25_000)


def test_impossible_dates_are_counted_over_connections(mysql, database):
    mysql.execute(f"CREATE TABLE {database}.days (id INT PRIMARY KEY, d DATE)")
    start = position(mysql)
    with Line(mysql.port) as line:
        receiver = receiver_of(mysql, Mapped(database), line.port)
        receiver.open(start, (), 0)
        taker = Taker(receiver)
        for number in range(3):
            with mysql.connect(database) as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION sql_mode = ''")
                cursor.execute(
                    f"INSERT INTO days VALUES ({2 * number}, '2024-00-10'), ({2 * number + 1}, '2024-01-10')"
                )
                connection.commit()
            taker.take_rows(2 * (number + 1))
            if number == 1:
                line.cut_all()
        assert receiver.impossible_dates() == {f"{database}.days": 3}
        receiver.close()
    assert [row["d"] is None for row in taker.rows] == [True, False] * 3


def test_turned_bits_are_read_again(server, orders):
    start = position(server)
    insert(server, orders, 0, 8_000)
    with Line(server.port) as line:
        receiver = receiver_of(server, Mapped(orders), line.port)
        line.flip_after(300_017, 1_500_003, 2_999_999)
        receiver.open(start, (), 0)
        taken = Taker(receiver).take_rows(8_000)
        receiver.close()
    assert line.flips == 3
    assert_each_once(taken, 8_000)


def test_a_silent_line_is_given_up(server, orders):
    start = position(server)
    with Line(server.port) as line:
        receiver = receiver_of(server, Mapped(orders), line.port)
        receiver.open(start, (), 0)
        Taker(receiver).take_to_end()
        line.fall_silent()
        insert(server, orders, 0, 5)
        taken = Taker(receiver).take_rows(5, deadline_s=20)
        receiver.close()
    assert_each_once(taken, 5)


def test_a_reader_that_stood_still_goes_on(server, orders):
    """A full window is no dead line, and the line it left alone may be gone when it goes on."""
    start = position(server)
    insert(server, orders, 0, 12_000)
    with Line(server.port) as line:
        receiver = receiver_of(server, Mapped(orders), line.port, window_bytes=1 << 20)
        receiver.open(start, (), 0)
        until(lambda: receiver._window._is_full())
        threading.Event().wait(4.0)  # longer than three of its heartbeats
        line.cut_all()
        taken = Taker(receiver).take_rows(12_000)
        receiver.close()
    assert_each_once(taken, 12_000)


def test_a_server_away_is_told_and_waited_for(own):
    server = own("mysql")
    receiver = receiver_of(server, Mapped("shop"), patience_s=0.5)
    receiver.open(position(server), (), 0)
    Taker(receiver).take_to_end()
    server.kill()
    with pytest.raises(SourceUnavailable, match="cannot be reached"):
        until(lambda: receiver.get(0.2), 30)
    server.launch()
    insert(server, "shop", 0, 3)
    taken = Taker(receiver)
    until(lambda: not _told(receiver, taken), 60)
    taken.take_rows(3)
    receiver.close()
    assert_each_once(taken, 3)


def _told(receiver, taken):
    try:
        batch = receiver.get(0.1)
    except SourceUnavailable:
        return True
    if batch is not None:
        taken.add(batch)
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_a_restarted_server_and_rotated_files(own, kind):
    server = own(kind)
    start = position(server)
    receiver = receiver_of(server, Mapped("shop"))
    receiver.open(start, (), 0)
    insert(server, "shop", 0, 10)
    server.execute("FLUSH BINARY LOGS")
    insert(server, "shop", 10, 10)
    server.restart()
    insert(server, "shop", 20, 10)
    taken = Taker(receiver).take_rows(30)
    assert_each_once(taken, 30)
    assert taken.batches[-1].last.file.endswith("3")
    receiver.close()


@pytest.mark.parametrize("kind", KINDS)
def test_purged_files_pause_and_a_gap_can_be_accepted(own, kind):
    server = own(kind)
    start = position(server)
    insert(server, "shop", 0, 3)
    server.execute("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    insert(server, "shop", 3, 3)
    with Server(endpoint(server)) as asked:
        newest = list(asked.files())[-1]
    until(lambda: _purged_to(server, newest))  # MariaDB keeps files a moment for its own recovery
    receiver = receiver_of(server, Mapped("shop"))
    with pytest.raises((PositionLost,), match="gone from the server"):
        receiver.open(start, (), 0)
        Taker(receiver).take_rows(1, 20)
    receiver.close()
    receiver = receiver_of(server, Mapped("shop"), accept_gap=True)
    receiver.open(start, (), 0)
    assert Taker(receiver).take_rows(3).values() == [3, 4, 5]
    receiver.close()


def _purged_to(server, newest):
    server.execute(f"PURGE BINARY LOGS TO '{newest}'")
    with Server(endpoint(server)) as asked:
        return list(asked.files()) == [newest]


def test_a_binlog_that_was_reset_is_no_continuation(own):
    server = own("mysql")
    insert(server, "shop", 0, 3)
    seen = position(server)
    server.execute("RESET BINARY LOGS AND GTIDS")
    insert(server, "shop", 3, 100)
    receiver = receiver_of(server, Mapped("shop"))
    with pytest.raises((WrongServer, PositionLost)):
        receiver.open(seen, (), 0)
    receiver.close()


@pytest.mark.parametrize("kind", KINDS)
def test_another_server_with_our_transactions_goes_on_by_gtid(own, kind):
    first = own(kind, "--gtid-domain-id=0") if kind == "mariadb" else own(kind)
    second = _replica_of(own, first, kind)
    start = position(first)
    insert(first, "shop", 0, 5)
    receiver = receiver_of(first, Mapped("shop"))
    receiver.open(start, (), 0)
    taken = Taker(receiver).take_rows(5)
    last, schemas = taken.batches[-1].last, receiver.schemas()
    receiver.close()
    insert(first, "shop", 5, 5)
    with second.connect("shop") as connection, connection.cursor() as cursor:
        until(lambda: cursor.execute("SELECT * FROM orders") == 10, 60, "replication")
    first.stop()
    receiver = receiver_of(second, Mapped("shop"))
    receiver.open(last, schemas, 5)
    again = Taker(receiver).take_rows(5)
    receiver.close()
    assert again.values() == [5, 6, 7, 8, 9]
    with Server(endpoint(second)) as asked:
        assert again.batches[-1].last.server == asked.identity


def _replica_of(own, first, kind):
    """A second server that replicates everything from ``first``."""
    endpoint(first)
    options = ["--server-id=2", "--log-slave-updates=ON"] if kind == "mariadb" else ["--server-id=2"]
    second = LocalServer.start(
        obtain(kind), first.folder.parent / "replica", options=("--binlog-row-metadata=FULL", *options)
    )
    own_finish.append(second)
    if kind == "mariadb":
        second.execute(
            "SET GLOBAL gtid_slave_pos = ''",
            f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={first.port}, MASTER_USER='cdc', "
            "MASTER_PASSWORD='secret', MASTER_USE_GTID=slave_pos",
            "START SLAVE",
        )
    else:
        second.execute(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={first.port}, SOURCE_USER='cdc', "
            "SOURCE_PASSWORD='secret', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1",
            "START REPLICA",
        )
    with second.connect() as connection, connection.cursor() as cursor:
        until(lambda: cursor.execute("SHOW TABLES FROM shop LIKE 'orders'") if _has_shop(cursor) else 0, 60, "replica")
    return second


def _has_shop(cursor):
    return cursor.execute("SHOW DATABASES LIKE 'shop'")


own_finish: list[LocalServer] = []


@pytest.fixture(autouse=True)
def _stop_replicas():
    yield
    while own_finish:
        own_finish.pop().stop()


@pytest.mark.parametrize("kind", KINDS)
def test_another_server_without_our_transactions_pauses(own, kind):
    first, second = own(kind, "--server-id=7"), own(kind, "--server-id=8")
    insert(first, "shop", 0, 5)
    seen = position(first)
    insert(second, "shop", 100, 2)
    receiver = receiver_of(second, Mapped("shop"))
    with pytest.raises(WrongServer) as raised:
        receiver.open(seen, (), 0)
    assert "--accept-server" in raised.value.mend
    receiver.close()


def test_a_server_that_lacks_transactions_stays_accepted(own):
    first, second = own("mysql", "--server-id=7"), own("mysql", "--server-id=8")
    insert(first, "shop", 0, 5)
    seen = position(first)
    with Line(second.port) as line:
        accepting = receiver_of(second, Mapped("shop"), port=line.port, accept_server=True)
        accepting.open(seen, (), 0)
        insert(second, "shop", 100, 2)
        taken = Taker(accepting).take_rows(2)
        line.cut_all()
        insert(second, "shop", 102, 2)
        taken.take_rows(4)
        assert taken.values() == [100, 101, 102, 103]
        stopped, schemas = taken.batches[-1].last, accepting.schemas()
        assert seen.server not in stopped.gtid_set
        accepting.close()
    again = receiver_of(second, Mapped("shop"))
    again.open(stopped, schemas, 4)  # after a start too
    insert(second, "shop", 104, 1)
    assert Taker(again).take_rows(1).values() == [104]
    with Server(endpoint(second)) as asked:
        assert settled(asked, stopped, 0.5), "a snapshot need not wait for what never comes"
    again.close()


def test_without_gtids_another_server_must_be_accepted(own):
    options = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")
    server = own("mysql", *options)
    insert(server, "shop", 0, 2)
    seen = position(server)
    assert seen.gtid_set == ""
    server.stop()
    (server.data / "auto.cnf").unlink()  # the same data come back under a new server_uuid
    server.launch()
    insert(server, "shop", 2, 2)
    receiver = receiver_of(server, Mapped("shop"))
    with pytest.raises(WrongServer):
        receiver.open(seen, (), 0)
    accepting = receiver_of(server, Mapped("shop"), accept_server=True)
    accepting.open(seen, (), 0)
    assert Taker(accepting).take_rows(2).values() == [2, 3]
    accepting.close()


def test_a_second_reader_under_our_identity_is_named_and_nobody_fights(server, orders):
    start = position(server)
    first = receiver_of(server, Mapped(orders))
    first.open(start, (), 0)
    Taker(first).take_to_end()
    second = receiver_of(server, Mapped(orders))
    second.open(start, (), 0)
    with pytest.raises(SourceBlocked, match="identity"):
        until(lambda: first.get(0.2), 30)
    insert(server, orders, 0, 2)
    assert Taker(second).take_rows(2).values() == [0, 1]
    first.close()
    second.close()


def test_a_taken_server_id_is_refused_by_name(server, orders):
    start = position(server)
    first = BinlogReceiver.of_server(endpoint(server), identity("other", 4711), Mapped(orders), heartbeat_s=1.0)
    first.open(start, (), 0)
    Taker(first).take_to_end()
    second = BinlogReceiver.of_server(endpoint(server), identity("shop", 4711), Mapped(orders), heartbeat_s=1.0)
    with pytest.raises(SourceBlocked, match=r"Server id 4711 is taken.*cdc-other"):
        second.open(start, (), 0)
    first.close()
    second.close()


def test_over_tls(mysql, database):
    mysql.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, note VARCHAR(1000))")
    start = position(mysql)
    insert(mysql, database, 0, 3000)
    ca = str(mysql.data / "ca.pem")
    for tls in (Tls("required"), Tls("verify_ca", ca)):
        receiver = BinlogReceiver.of_server(
            endpoint(mysql, tls=tls), identity(f"tls-{tls.mode}"), Mapped(database), heartbeat_s=1.0
        )
        receiver.open(start, (), 0)
        assert_each_once(Taker(receiver).take_rows(3000), 3000)
        receiver.close()
    for tls in (Tls("verify_identity", ca), Tls("verify_ca")):  # the certificate names no host; nobody signed it
        with pytest.raises(SourceUnavailable, match="TLS fails"):
            Server(endpoint(mysql, tls=tls))


def test_small_transactions_come_many_to_a_batch(mysql, database):
    """With TLS one read gives one record, of 16 KiB at most; of a server that is written to, one event."""
    mysql.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY)")
    start = position(mysql)
    mysql.execute(*(f"INSERT INTO {database}.orders VALUES ({number})" for number in range(2000)))
    receiver = BinlogReceiver.of_server(endpoint(mysql, tls=Tls("required")), identity(), Mapped(database))
    receiver.open(start, (), 0)
    try:
        taken = Taker(receiver).take_rows(2000)
        assert taken.values() == list(range(2000))
        assert len(taken.batches) < 20
    finally:
        receiver.close()


def test_an_xa_transaction_open_at_a_cut_is_read_again(mysql, database):
    mysql.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, note VARCHAR(1000))")
    start = position(mysql)
    with Line(mysql.port) as line:
        receiver = receiver_of(mysql, Mapped(database), line.port)
        receiver.open(start, (), 0)
        mysql.execute(
            "XA START 'cut'", f"INSERT INTO {database}.orders VALUES (1, 'xa')", "XA END 'cut'", "XA PREPARE 'cut'"
        )
        insert(mysql, database, 10, 1)
        taken = Taker(receiver).take_rows(1)
        assert taken.values() == [10] and not taken.batches[-1].ends_transaction
        line.cut_all()
        with pytest.raises(SourceRewound):
            until(lambda: receiver.get(0.2), 30)
        receiver.rollback(start)
        mysql.execute("XA COMMIT 'cut'")
        again = Taker(receiver).take(lambda taker: len(taker.rows) == 2 and taker.batches[-1].ends_transaction)
        receiver.close()
    assert again.values() == [10, 1]


def test_an_xa_transaction_left_open_pauses_by_name(mysql, database):
    mysql.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, note VARCHAR(1000))")
    receiver = receiver_of(mysql, Mapped(database), xa_limit_s=2.0)
    receiver.open(position(mysql), (), 0)
    mysql.execute(
        "XA START 'left'", f"INSERT INTO {database}.orders VALUES (1, 'xa')", "XA END 'left'", "XA PREPARE 'left'"
    )
    try:
        with pytest.raises(SourceBlocked, match="6c656674"):
            while True:
                receiver.get(0.2)
    finally:
        mysql.execute("XA COMMIT 'left'")
        receiver.close()


def test_xa_transactions_that_overlap_without_a_gap_are_told(mysql, database, monkeypatch):
    monkeypatch.setattr("cdc.receiver.binlog.HELD_S", 0.5)
    mysql.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, note VARCHAR(1000))")
    receiver = receiver_of(mysql, Mapped(database))
    receiver.open(position(mysql), (), 0)

    def prepare(number):
        xid = f"'{database}{number}'"
        values = f"INSERT INTO {database}.orders VALUES ({number}, 'xa')"
        mysql.execute(f"XA START {xid}", values, f"XA END {xid}", f"XA PREPARE {xid}")

    def told():
        receiver.get(0.05)
        return receiver.trouble()

    prepare(1)
    for number in range(2, 6):
        prepare(number)
        mysql.execute(f"XA COMMIT '{database}{number - 1}'")
        receiver.get(0.3)
    assert "always been an undecided XA transaction" in until(told, 30).message
    mysql.execute(f"XA COMMIT '{database}5'")
    until(lambda: told() is None, 30)
    receiver.close()


def test_an_old_log_is_not_asked_how_long_its_xa_transactions_were_open(own):
    server = own("mysql")
    start = position(server)
    pattern = f"{server.data}/mysql-bin.*"
    xa = ("XA START 'old'", "INSERT INTO shop.orders VALUES (1, 'xa')", "XA END 'old'", "XA PREPARE 'old'")
    server.execute(*xa)
    time.sleep(1.5)  # longer than the limit below
    insert(server, "shop", 10, 1)

    def receiver():
        found = BinlogReceiver.of_files(pattern, Mapped("shop"))
        found._xa_limit_s = 0.5
        found.open(replace(start, server=""), (), 0)
        return found

    undecided = receiver()
    with pytest.raises(SourceBlocked, match=r"The files end before XA transaction .*6f6c64.* is decided"):
        until(lambda: undecided.get(0.2) and undecided.finished(), 30)
    undecided.close()
    server.execute("XA COMMIT 'old'")
    decided = receiver()
    assert sorted(Taker(decided).take_to_end().values()) == [1, 10]
    decided.close()


@pytest.fixture
def undecided(server, orders):
    """Prepares an XA transaction that changes a table; decides it where the test does not."""
    prepared = []

    def prepare(xid, table):
        prepared.append(xid)
        server.execute(
            f"XA START '{xid}'", f"INSERT INTO {table} VALUES (1, 'xa')", f"XA END '{xid}'", f"XA PREPARE '{xid}'"
        )

    yield prepare
    for xid in prepared:
        with suppress(Exception):
            server.execute(f"XA ROLLBACK '{xid}'")


def test_an_xa_transaction_prepared_before_the_start_pauses_at_its_commit(server, orders, undecided):
    undecided("early", f"{orders}.orders")
    found = check_source(endpoint(server), identity(), Mapped(orders), [])
    assert any("6561726c79" in one.problem and not one.fatal for one in found), found
    start = position(server)
    insert(server, orders, 10, 1)
    server.execute("XA COMMIT 'early'")
    insert(server, orders, 20, 1)
    receiver = receiver_of(server, Mapped(orders))
    receiver.open(start, (), 0)
    taken = Taker(receiver).take_rows(1)
    with pytest.raises(SourceBlocked, match=rf"6561726c79.* its rows of {orders}\.orders lie behind") as blocked:
        until(lambda: receiver.get(0.2), 30)
    receiver.close()
    assert taken.values() == [10] and taken.batches[-1].last.reached(blocked.value.where["position"])
    agreed = receiver_of(server, Mapped(orders), accept_gap=True)
    agreed.open(taken.batches[-1].last, (), 0)
    assert Taker(agreed).take_rows(1).values() == [20]
    agreed.close()


def test_an_xa_transaction_of_other_tables_passes_though_it_was_prepared_before_the_start(server, orders, undecided):
    server.execute(f"CREATE TABLE {orders}.other (id INT PRIMARY KEY, note VARCHAR(10))")
    undecided("elsewhere", f"{orders}.other")
    server.execute("FLUSH BINARY LOGS")
    start = position(server)
    server.execute("XA COMMIT 'elsewhere'")
    insert(server, orders, 20, 1)
    receiver = receiver_of(server, Mapped(orders, "orders"))
    receiver.open(start, (), 0)
    assert Taker(receiver).take_rows(1).values() == [20]
    receiver.close()


def test_nobody_waits_for_a_decoder_that_compiles(mysql, database, monkeypatch):
    compiling, compiled = threading.Event(), threading.Event()

    def warm_up():
        compiling.set()
        assert compiled.wait(240)

    monkeypatch.setattr(cdc.receiver.binlog, "warm_up", warm_up)
    monkeypatch.setattr(cdc.receiver.binlog, "nothing_compiled", lambda: True)
    mysql.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, note VARCHAR(1000))")
    start = position(mysql)
    insert(mysql, database, 0, 3)
    receiver = receiver_of(mysql, Mapped(database))
    receiver.open(start, (), 0)
    assert compiling.wait(240) and receiver.get(0.1) is None
    assert "compiled" in receiver.trouble().message
    began = time.monotonic()
    receiver.rollback(start)
    receiver.close()
    receiver.open(start, (), 0)
    assert time.monotonic() - began < 5
    compiled.set()
    assert_each_once(Taker(receiver).take_rows(3), 3)
    assert receiver.trouble() is None
    receiver.close()
