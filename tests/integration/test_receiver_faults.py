"""Network, server and disk faults: the receiver continues, and no row is missing or delivered twice."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

import cdc.sources.binlog.reader
from cdc.checks.mysql import check_source
from cdc.demo.local_servers import LocalServer, obtain
from cdc.errors import PositionLost, ServerMismatch, SourceActionRequired, SourceRewound, SourceUnavailable
from cdc.mysql.connection import Tls
from cdc.mysql.server import Server
from cdc.mysql.visibility import is_visible
from cdc.sources.binlog.receiver import BinlogReceiver
from tests.support.receiving import Collector, Mapped, TcpProxy, endpoint, identity, position, receiver_of, until

KINDS = ["mysql", "mariadb"]


@pytest.fixture(params=KINDS)
def server(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def orders(server, request):
    """Create a table in a database on the parametrized server."""
    kind = server.binaries.kind
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    server.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, note VARCHAR(1000) CHARACTER SET utf8mb4)")
    return database


@pytest.fixture
def start_server(tmp_path, request):
    """Start servers for one test, which it may stop, purge and reset."""
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


def assert_each_once(collected, count, first=0):
    assert collected.values() == list(range(first, first + count))
    assert collected.sequences == sorted(set(collected.sequences))


def test_receiver_cut_connection_delivers_every_row_once(server, orders):
    start = position(server)
    insert(server, orders, 0, 10_000)
    insert_at_once(server, orders, 10_000, 15_000)
    with TcpProxy(server.port) as proxy:
        receiver = receiver_of(server, Mapped(orders), proxy.port)
        receiver.open(start, (), 0)
        proxy.cut_after(900_000, 4_000_000, 6_000_000, 3_000_000)
        collected = Collector(receiver).collect_rows(25_000)
        receiver.close()
    assert proxy.cuts == 4
    assert any(not batch.ends_transaction for batch in collected.batches)
    assert_each_once(collected, 25_000)


def test_receiver_counts_invalid_dates_across_connections(mysql, database):
    mysql.execute(f"CREATE TABLE {database}.days (id INT PRIMARY KEY, d DATE)")
    start = position(mysql)
    with TcpProxy(mysql.port) as proxy:
        receiver = receiver_of(mysql, Mapped(database), proxy.port)
        receiver.open(start, (), 0)
        collector = Collector(receiver)
        for number in range(3):
            with mysql.connect(database) as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION sql_mode = ''")
                cursor.execute(
                    f"INSERT INTO days VALUES ({2 * number}, '2024-00-10'), ({2 * number + 1}, '2024-01-10')"
                )
                connection.commit()
            collector.collect_rows(2 * (number + 1))
            if number == 1:
                proxy.cut_all()
        assert receiver.status().invalid_dates == {f"{database}.days": 3}
        assert receiver.status().disconnects == 1
        receiver.close()
    assert [row["d"] is None for row in collector.rows] == [True, False] * 3


def test_receiver_flipped_bits_are_read_again(server, orders):
    start = position(server)
    insert(server, orders, 0, 8_000)
    with TcpProxy(server.port) as proxy:
        receiver = receiver_of(server, Mapped(orders), proxy.port)
        proxy.flip_after(300_017, 1_500_003, 2_999_999)
        receiver.open(start, (), 0)
        collected = Collector(receiver).collect_rows(8_000)
        receiver.close()
    assert proxy.flips == 3
    assert_each_once(collected, 8_000)


def test_receiver_silent_connection_times_out(server, orders):
    start = position(server)
    with TcpProxy(server.port) as proxy:
        receiver = receiver_of(server, Mapped(orders), proxy.port)
        receiver.open(start, (), 0)
        Collector(receiver).collect_to_end()
        proxy.fall_silent()
        insert(server, orders, 0, 5)
        collected = Collector(receiver).collect_rows(5)
        receiver.close()
    assert_each_once(collected, 5)


def test_receiver_continues_after_a_full_window(server, orders):
    """A full window is not a dead connection, and the unused connection may be closed when reading continues."""
    start = position(server)
    insert(server, orders, 0, 12_000)
    with TcpProxy(server.port) as proxy:
        receiver = receiver_of(server, Mapped(orders), proxy.port, window_bytes=1 << 20)
        receiver.open(start, (), 0)
        until(lambda: receiver.status().window_bytes >= 1 << 20)
        threading.Event().wait(4.0)  # longer than three heartbeats
        proxy.cut_all()
        collected = Collector(receiver).collect_rows(12_000)
        receiver.close()
    assert_each_once(collected, 12_000)


def test_receiver_unreachable_server_raises_then_reconnects(start_server):
    server = start_server("mysql")
    receiver = receiver_of(server, Mapped("shop"), timeout_s=0.5)
    receiver.open(position(server), (), 0)
    Collector(receiver).collect_to_end()
    assert receiver.status().is_connected
    server.kill()
    with pytest.raises(SourceUnavailable, match="cannot be reached"):
        until(lambda: receiver.get(0.2))
    assert not receiver.status().is_connected
    server.launch()
    insert(server, "shop", 0, 3)
    collected = Collector(receiver)
    until(lambda: not _is_unavailable(receiver, collected))
    collected.collect_rows(3)
    assert receiver.status().is_connected
    receiver.close()
    assert_each_once(collected, 3)


def _is_unavailable(receiver, collected):
    try:
        batch = receiver.get(0.1)
    except SourceUnavailable:
        return True
    if batch is not None:
        collected.add(batch)
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_receiver_continues_after_restart_and_rotation(start_server, kind):
    server = start_server(kind)
    start = position(server)
    receiver = receiver_of(server, Mapped("shop"))
    receiver.open(start, (), 0)
    insert(server, "shop", 0, 10)
    server.execute("FLUSH BINARY LOGS")
    insert(server, "shop", 10, 10)
    server.restart()
    insert(server, "shop", 20, 10)
    collected = Collector(receiver).collect_rows(30)
    assert_each_once(collected, 30)
    assert collected.batches[-1].last.file.endswith("3")
    receiver.close()


@pytest.mark.parametrize("kind", KINDS)
def test_receiver_purged_files_raise_until_gap_is_accepted(start_server, kind):
    server = start_server(kind)
    start = position(server)
    insert(server, "shop", 0, 3)
    server.execute("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    insert(server, "shop", 3, 3)
    with Server(endpoint(server)) as asked:
        newest = list(asked.files())[-1]
    until(lambda: _purged_to(server, newest))  # MariaDB keeps files for a moment for its own recovery
    receiver = receiver_of(server, Mapped("shop"))
    with pytest.raises((PositionLost,), match="does not exist on the server"):
        receiver.open(start, (), 0)
        Collector(receiver).collect_rows(1)
    receiver.close()
    receiver = receiver_of(server, Mapped("shop"), accept_gap=True)
    receiver.open(start, (), 0)
    assert Collector(receiver).collect_rows(3).values() == [3, 4, 5]
    receiver.close()


def _purged_to(server, newest):
    server.execute(f"PURGE BINARY LOGS TO '{newest}'")
    with Server(endpoint(server)) as asked:
        return list(asked.files()) == [newest]


def test_receiver_reset_binlog_raises(start_server):
    server = start_server("mysql")
    insert(server, "shop", 0, 3)
    seen = position(server)
    server.execute("RESET BINARY LOGS AND GTIDS")
    insert(server, "shop", 3, 100)
    receiver = receiver_of(server, Mapped("shop"))
    with pytest.raises((ServerMismatch, PositionLost)):
        receiver.open(seen, (), 0)
    receiver.close()


@pytest.mark.parametrize("kind", KINDS)
def test_receiver_failover_with_same_gtids_continues(start_server, kind):
    first = start_server(kind, "--gtid-domain-id=0") if kind == "mariadb" else start_server(kind)
    second = _replica_of(start_server, first, kind)
    start = position(first)
    insert(first, "shop", 0, 5)
    receiver = receiver_of(first, Mapped("shop"))
    receiver.open(start, (), 0)
    collected = Collector(receiver).collect_rows(5)
    last, schemas = collected.batches[-1].last, receiver.schemas()
    receiver.close()
    insert(first, "shop", 5, 5)
    with second.connect("shop") as connection, connection.cursor() as cursor:
        until(lambda: cursor.execute("SELECT * FROM orders") == 10, 60, "replication")
    first.stop()
    receiver = receiver_of(second, Mapped("shop"))
    receiver.open(last, schemas, 5)
    again = Collector(receiver).collect_rows(5)
    receiver.close()
    assert again.values() == [5, 6, 7, 8, 9]
    with Server(endpoint(second)) as asked:
        assert again.batches[-1].last.server == asked.identity


def _replica_of(start_server, first, kind):
    """Start a second server that replicates everything from ``first``."""
    endpoint(first)
    options = ["--server-id=2", "--log-slave-updates=ON"] if kind == "mariadb" else ["--server-id=2"]
    second = LocalServer.start(
        obtain(kind), first.folder.parent / "replica", options=("--binlog-row-metadata=FULL", *options)
    )
    replicas.append(second)
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


replicas: list[LocalServer] = []


@pytest.fixture(autouse=True)
def _stop_replicas():
    yield
    while replicas:
        replicas.pop().stop()


@pytest.mark.parametrize("kind", KINDS)
def test_receiver_server_without_known_gtids_raises(start_server, kind):
    first, second = start_server(kind, "--server-id=7"), start_server(kind, "--server-id=8")
    insert(first, "shop", 0, 5)
    seen = position(first)
    insert(second, "shop", 100, 2)
    receiver = receiver_of(second, Mapped("shop"))
    with pytest.raises(ServerMismatch) as raised:
        receiver.open(seen, (), 0)
    assert "--accept-server" in raised.value.hint
    receiver.close()


def test_receiver_accepted_server_stays_accepted(start_server):
    first, second = start_server("mysql", "--server-id=7"), start_server("mysql", "--server-id=8")
    insert(first, "shop", 0, 5)
    seen = position(first)
    with TcpProxy(second.port) as proxy:
        accepting = receiver_of(second, Mapped("shop"), port=proxy.port, accept_server=True)
        accepting.open(seen, (), 0)
        insert(second, "shop", 100, 2)
        collected = Collector(accepting).collect_rows(2)
        proxy.cut_all()
        insert(second, "shop", 102, 2)
        collected.collect_rows(4)
        assert collected.values() == [100, 101, 102, 103]
        stopped, schemas = collected.batches[-1].last, accepting.schemas()
        assert seen.server not in stopped.gtid_set
        accepting.close()
    again = receiver_of(second, Mapped("shop"))
    again.open(stopped, schemas, 4)  # also after a restart
    insert(second, "shop", 104, 1)
    assert Collector(again).collect_rows(1).values() == [104]
    with Server(endpoint(second)) as asked:
        assert is_visible(asked, stopped, 0.5), "a snapshot does not wait for missing transactions"
    again.close()


def test_receiver_without_gtids_needs_accept_server(start_server):
    options = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")
    server = start_server("mysql", *options)
    insert(server, "shop", 0, 2)
    seen = position(server)
    assert seen.gtid_set == ""
    server.stop()
    (server.data / "auto.cnf").unlink()  # the same data with a new server_uuid
    server.launch()
    insert(server, "shop", 2, 2)
    receiver = receiver_of(server, Mapped("shop"))
    with pytest.raises(ServerMismatch):
        receiver.open(seen, (), 0)
    accepting = receiver_of(server, Mapped("shop"), accept_server=True)
    accepting.open(seen, (), 0)
    assert Collector(accepting).collect_rows(2).values() == [2, 3]
    accepting.close()


def test_receiver_second_reader_with_same_identity_raises(server, orders):
    start = position(server)
    first = receiver_of(server, Mapped(orders))
    first.open(start, (), 0)
    Collector(first).collect_to_end()
    second = receiver_of(server, Mapped(orders))
    second.open(start, (), 0)
    with pytest.raises(SourceActionRequired, match="same server id"):
        until(lambda: first.get(0.2))
    insert(server, orders, 0, 2)
    assert Collector(second).collect_rows(2).values() == [0, 1]
    first.close()
    second.close()


def test_receiver_used_server_id_raises_with_its_owner(server, orders):
    start = position(server)
    first = BinlogReceiver.of_server(endpoint(server), identity("other", 4711), Mapped(orders), heartbeat_s=1.0)
    first.open(start, (), 0)
    Collector(first).collect_to_end()
    second = BinlogReceiver.of_server(endpoint(server), identity("shop", 4711), Mapped(orders), heartbeat_s=1.0)
    with pytest.raises(SourceActionRequired, match=r"Server id 4711 is used.*cdc-other"):
        second.open(start, (), 0)
    first.close()
    second.close()


def test_receiver_reads_over_tls(mysql, database):
    mysql.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, note VARCHAR(1000))")
    start = position(mysql)
    insert(mysql, database, 0, 3000)
    ca = str(mysql.data / "ca.pem")
    for tls in (Tls("required"), Tls("verify_ca", ca)):
        receiver = BinlogReceiver.of_server(
            endpoint(mysql, tls=tls), identity(f"tls-{tls.mode}"), Mapped(database), heartbeat_s=1.0
        )
        receiver.open(start, (), 0)
        assert_each_once(Collector(receiver).collect_rows(3000), 3000)
        receiver.close()
    # the certificate contains no host name, and no known authority signed it
    for tls in (Tls("verify_identity", ca), Tls("verify_ca")):
        with pytest.raises(SourceUnavailable, match="TLS fails"):
            Server(endpoint(mysql, tls=tls))


def test_receiver_small_transactions_share_batches(mysql, database, monkeypatch):
    """With TLS one read returns one record of at most 16 KiB; while a server writes, it returns one event."""
    for name in ("_PAUSE_S", "_LONGEST_READ_PAUSE_S"):  # longer than the decoding of a batch on a busy machine
        monkeypatch.setattr(cdc.sources.binlog.reader, name, 1.0)
    mysql.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY)")
    start = position(mysql)
    mysql.execute(*(f"INSERT INTO {database}.orders VALUES ({number})" for number in range(2000)))
    receiver = BinlogReceiver.of_server(endpoint(mysql, tls=Tls("required")), identity(), Mapped(database))
    receiver.open(start, (), 0)
    try:
        collected = Collector(receiver).collect_rows(2000)
        assert collected.values() == list(range(2000))
        assert len(collected.batches) < 20
    finally:
        receiver.close()


def test_receiver_prepared_xa_at_a_cut_is_read_again(mysql, database):
    mysql.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, note VARCHAR(1000))")
    start = position(mysql)
    with TcpProxy(mysql.port) as proxy:
        receiver = receiver_of(mysql, Mapped(database), proxy.port)
        receiver.open(start, (), 0)
        mysql.execute(
            "XA START 'cut'", f"INSERT INTO {database}.orders VALUES (1, 'xa')", "XA END 'cut'", "XA PREPARE 'cut'"
        )
        insert(mysql, database, 10, 1)
        collected = Collector(receiver).collect_rows(1)
        assert collected.values() == [10] and not collected.batches[-1].ends_transaction
        proxy.cut_all()
        with pytest.raises(SourceRewound):
            until(lambda: receiver.get(0.2))
        receiver.rollback(start)
        mysql.execute("XA COMMIT 'cut'")
        again = Collector(receiver).collect(
            lambda collector: len(collector.rows) == 2 and collector.batches[-1].ends_transaction
        )
        receiver.close()
    assert again.values() == [10, 1]


def test_receiver_prepared_xa_over_the_limit_raises(mysql, database):
    mysql.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, note VARCHAR(1000))")
    receiver = receiver_of(mysql, Mapped(database), xa_limit_s=2.0)
    receiver.open(position(mysql), (), 0)
    mysql.execute(
        "XA START 'left'", f"INSERT INTO {database}.orders VALUES (1, 'xa')", "XA END 'left'", "XA PREPARE 'left'"
    )
    try:
        with pytest.raises(SourceActionRequired, match="6c656674"):
            while True:
                receiver.get(0.2)
    finally:
        mysql.execute("XA COMMIT 'left'")
        receiver.close()


def test_receiver_overlapping_xa_transactions_set_a_warning(mysql, database, monkeypatch):
    monkeypatch.setattr("cdc.sources.binlog.xa_watch.HELD_S", 0.5)
    mysql.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, note VARCHAR(1000))")
    receiver = receiver_of(mysql, Mapped(database))
    receiver.open(position(mysql), (), 0)

    def prepare(number):
        xid = f"'{database}{number}'"
        values = f"INSERT INTO {database}.orders VALUES ({number}, 'xa')"
        mysql.execute(f"XA START {xid}", values, f"XA END {xid}", f"XA PREPARE {xid}")

    def current_warning():
        receiver.get(0.05)
        return receiver.status().warning

    prepare(1)
    for number in range(2, 6):
        prepare(number)
        mysql.execute(f"XA COMMIT '{database}{number - 1}'")
        receiver.get(0.3)
    assert "have blocked all commits" in until(current_warning).message
    mysql.execute(f"XA COMMIT '{database}5'")
    until(lambda: current_warning() is None)
    receiver.close()


def test_receiver_xa_limit_does_not_apply_to_old_files(start_server):
    server = start_server("mysql")
    start = position(server)
    pattern = f"{server.data}/mysql-bin.*"
    xa = ("XA START 'old'", "INSERT INTO shop.orders VALUES (1, 'xa')", "XA END 'old'", "XA PREPARE 'old'")
    server.execute(*xa)
    time.sleep(1.5)  # longer than the limit below
    insert(server, "shop", 10, 1)

    def receiver():
        found = BinlogReceiver.of_files(pattern, Mapped("shop"))
        found._xa._limit_s = 0.5
        found.open(replace(start, server=""), (), 0)
        return found

    undecided = receiver()
    with pytest.raises(SourceActionRequired, match=r"The files end before XA transaction .*6f6c64.* is decided"):
        until(lambda: undecided.get(0.2) and undecided.status().is_finished)
    undecided.close()
    server.execute("XA COMMIT 'old'")
    decided = receiver()
    assert sorted(Collector(decided).collect_to_end().values()) == [1, 10]
    decided.close()


@pytest.fixture
def undecided(server, orders):
    """Prepare an XA transaction that changes a table. Roll it back at the end if the test has not decided it."""
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


def test_receiver_xa_prepared_before_start_raises_at_its_commit(server, orders, undecided):
    undecided("early", f"{orders}.orders")
    found = check_source(endpoint(server), identity(), Mapped(orders), [])
    assert any("6561726c79" in one.problem and not one.fatal for one in found), found
    start = position(server)
    insert(server, orders, 10, 1)
    server.execute("XA COMMIT 'early'")
    insert(server, orders, 20, 1)
    receiver = receiver_of(server, Mapped(orders))
    receiver.open(start, (), 0)
    collected = Collector(receiver).collect_rows(1)
    with pytest.raises(
        SourceActionRequired, match=rf"6561726c79.* its rows of {orders}\.orders are missing"
    ) as blocked:
        until(lambda: receiver.get(0.2))
    receiver.close()
    assert collected.values() == [10] and collected.batches[-1].last.reached(blocked.value.context["position"])
    accepting_gap = receiver_of(server, Mapped(orders), accept_gap=True)
    accepting_gap.open(collected.batches[-1].last, (), 0)
    assert Collector(accepting_gap).collect_rows(1).values() == [20]
    accepting_gap.close()


def test_receiver_early_xa_of_other_tables_is_ignored(server, orders, undecided):
    server.execute(f"CREATE TABLE {orders}.other (id INT PRIMARY KEY, note VARCHAR(10))")
    undecided("elsewhere", f"{orders}.other")
    server.execute("FLUSH BINARY LOGS")
    start = position(server)
    server.execute("XA COMMIT 'elsewhere'")
    insert(server, orders, 20, 1)
    receiver = receiver_of(server, Mapped(orders, "orders"))
    receiver.open(start, (), 0)
    assert Collector(receiver).collect_rows(1).values() == [20]
    receiver.close()


def test_receiver_with_failing_cache_folder_raises_the_error(mysql, database, monkeypatch):
    def nothing_compiled():
        raise OSError("Input/output error")

    monkeypatch.setattr(cdc.sources.binlog.reader, "nothing_compiled", nothing_compiled)
    mysql.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY)")
    receiver = receiver_of(mysql, Mapped(database))
    receiver.open(position(mysql), (), 0)
    with pytest.raises(OSError, match="Input/output error"):
        receiver.get(60)
    receiver.close()


def test_receiver_does_not_block_while_kernels_compile(mysql, database, monkeypatch):
    compiling, compiled = threading.Event(), threading.Event()

    def warm_up():
        compiling.set()
        assert compiled.wait(240)

    monkeypatch.setattr(cdc.sources.binlog.reader, "warm_up", warm_up)
    monkeypatch.setattr(cdc.sources.binlog.reader, "nothing_compiled", lambda: True)
    mysql.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, note VARCHAR(1000))")
    start = position(mysql)
    insert(mysql, database, 0, 3)
    receiver = receiver_of(mysql, Mapped(database))
    receiver.open(start, (), 0)
    assert compiling.wait(240) and receiver.get(0.1) is None
    assert "compiled" in receiver.status().warning.message
    began = time.monotonic()
    receiver.rollback(start)
    receiver.close()
    receiver.open(start, (), 0)
    assert time.monotonic() - began < 120, "it waits for the compilation"
    compiled.set()
    assert_each_once(Collector(receiver).collect_rows(3), 3)
    assert receiver.status().warning is None
    receiver.close()
