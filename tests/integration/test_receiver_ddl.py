"""DDL and schemas at real servers: what pauses, how it goes on, and which columns rows are read with."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from cdc.binlog.catalog import writes_beyond
from cdc.binlog.server import Server
from cdc.errors import PositionLost, SchemaChanged, SchemaMismatch, UnsupportedImage
from cdc.local_servers import LocalServer, obtain
from cdc.receiver.binlog import BinlogReceiver
from cdc.receiver.tables import Resumption
from cdc.schema import DELETED
from tests.receiving import Mapped, Taker, endpoint, identity, position, receiver_of

BEHIND = Resumption(behind_ddl=True)
PAST = Resumption(behind_ddl=True, past_ddl=True)
GAP = Resumption(behind_ddl=True, past_gap=True)


@pytest.fixture(params=["mysql", "mariadb", "mysql-minimal", "mariadb-nolog"], scope="module")
def server(request, tmp_path_factory):
    """Servers with full row metadata, and with as little as they write by default."""
    kind, _, little = request.param.partition("-")
    if not little:
        yield request.getfixturevalue(kind)
        return
    with LocalServer.start(obtain(kind), tmp_path_factory.mktemp(request.param)) as made:
        yield made


@pytest.fixture
def database(server, request):
    name = f"d{abs(hash(request.node.name)) % 10**8}"
    server.execute(
        f"CREATE DATABASE {name}",
        f"CREATE TABLE {name}.orders (id INT PRIMARY KEY, price INT, note VARCHAR(20), secret INT)",
    )
    yield name
    server.execute(f"DROP DATABASE {name}")


def pause(receiver):
    """Take everything up to the pause; the error and what came before."""
    taken = Taker(receiver)
    with pytest.raises(SchemaChanged) as raised:
        taken.take(lambda _: False)
    return raised.value, taken


def run(server, database, statement):
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.mark.parametrize(
    ("statement", "row_changing"),
    [
        ("ALTER TABLE orders ADD COLUMN extra INT", False),
        ("ALTER TABLE orders MODIFY price BIGINT", True),
        ("ALTER TABLE orders RENAME COLUMN note TO remark", False),
        ("TRUNCATE TABLE orders", True),
    ],
)
def test_touching_ddl_pauses_before_it_and_a_resume_goes_on_behind(server, database, statement, row_changing):
    start = position(server)
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    run(server, database, "INSERT INTO orders VALUES (1, 10, 'before', 0)")
    Taker(receiver).take_rows(1)
    run(server, database, statement)
    values = "(2, 20, 'behind', 0, 7)" if "extra" in statement else "(2, 20, 'behind', 0)"
    run(server, database, f"INSERT INTO orders VALUES {values}")
    error, taken = pause(receiver)
    schemas = receiver.schemas()
    receiver.close()
    assert error.where["tables"] == f"{database}.orders"
    assert statement in str(error.where["statement"])
    last = taken.batches[-1].last if taken.batches else start
    assert error.where["position"].reached(start)

    again = receiver_of(server, Mapped(database))  # a plain restart pauses again
    again.open(last, schemas, 1)
    assert "cdc resume" in pause(again)[0].mend
    again.close()

    if row_changing:
        refused = receiver_of(server, Mapped(database), resumption=BEHIND)
        refused.open(error.where["position"], schemas, 1)
        assert "--past-ddl" in pause(refused)[0].mend
        refused.close()
    resumed = receiver_of(server, Mapped(database), resumption=PAST if row_changing else BEHIND)
    resumed.open(error.where["position"], schemas, 1)
    row = Taker(resumed).take_rows(1).rows[0]
    names = {column.name for column in resumed.schema(database, "orders").columns}
    resumed.close()
    assert row["id"] == 2
    if "extra" in statement:
        assert row["extra"] == 7
    if "remark" in statement:
        assert row["remark"] == "behind" and "note" not in names


def test_a_resume_says_what_the_mapping_misses(server, database):
    start = position(server)
    receiver = receiver_of(server, Mapped(database, columns=["id", "price"]))
    receiver.open(start, (), 0)
    Taker(receiver).take_to_end()
    run(server, database, "ALTER TABLE orders RENAME COLUMN price TO cost")
    error, _ = pause(receiver)
    schemas = receiver.schemas()
    receiver.close()
    resumed = receiver_of(server, Mapped(database, columns=["id", "price"]), resumption=BEHIND)
    resumed.open(error.where["position"], schemas, 0)
    with pytest.raises(KeyError, match="price"):
        Taker(resumed).take(lambda _: False)
    resumed.close()


def test_columns_that_nobody_reads_come_and_go(server, database):
    selection = Mapped(database, columns=["id", "note"])
    receiver = receiver_of(server, selection)
    receiver.open(position(server), (), 0)
    taken = Taker(receiver)
    run(server, database, "INSERT INTO orders VALUES (1, 1, 'a', 1)")
    taken.take_rows(1)
    run(server, database, "ALTER TABLE orders DROP COLUMN secret, ADD COLUMN first INT FIRST, ADD INDEX (price)")
    run(server, database, "INSERT INTO orders VALUES (9, 2, 2, 'b')")
    taken.take_rows(2)
    receiver.close()
    assert [(row["id"], row["note"]) for row in taken.rows] == [(1, "a"), (2, "b")]


def test_a_scan_for_ddl_leaves_our_own_stream_alone(server, database):
    """The place where a table changes is behind the server's end while others write: what lies between is scanned."""
    receiver = receiver_of(server, Mapped(database, columns=["id", "note"]))
    receiver.open(position(server), (), 0)

    def write():
        with server.connect(database) as connection, connection.cursor() as cursor:
            for number in range(600):
                cursor.execute(f"INSERT INTO orders (id, note) VALUES ({number}, 'x')")
                if number == 100:
                    cursor.execute("ALTER TABLE orders ADD COLUMN more INT")

    writer = threading.Thread(target=write)
    writer.start()
    taken = Taker(receiver).take_rows(600)
    writer.join()
    run(server, database, "INSERT INTO orders (id, note) VALUES (600, 'x')")
    taken.take_rows(601)
    receiver.close()
    assert taken.values() == list(range(601))


def test_a_table_created_later_joins(server, database):
    receiver = receiver_of(server, Mapped(database))
    receiver.open(position(server), (), 0)
    run(server, database, "CREATE TABLE later (id INT PRIMARY KEY, label ENUM('x', 'y'))")
    run(server, database, "INSERT INTO later VALUES (1, 'y')")
    taken = Taker(receiver).take_rows(1)
    schemas = receiver.schemas()
    receiver.close()
    assert (taken.rows[0]["table"], taken.rows[0]["label"]) == ("later", "y")
    assert "later" in {schema.table for schema in schemas}


def test_dropping_everything_pauses(server, database):
    run(server, database, "CREATE DATABASE IF NOT EXISTS doomed")
    run(server, "doomed", "CREATE TABLE t (id INT PRIMARY KEY)")
    receiver = receiver_of(server, Mapped("doomed"))
    receiver.open(position(server), (), 0)
    Taker(receiver).take_to_end()
    run(server, database, "DROP DATABASE doomed")
    error, _ = pause(receiver)
    receiver.close()
    assert error.where["tables"] == "doomed.t"


@pytest.mark.parametrize(
    ("setting", "told"),
    [("binlog_format = 'STATEMENT'", "statements"), ("binlog_row_image = 'MINIMAL'", "FULL")],
    ids=["statement", "minimal"],
)
def test_a_session_that_writes_less_than_whole_rows_pauses_there(server, database, setting, told):
    start = position(server)
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (1, 1, 'row', 1)")
        cursor.execute("SHOW BINARY LOG STATUS" if server.binaries.kind == "mysql" else "SHOW MASTER STATUS")
        before = cursor.fetchone()[:2]
        cursor.execute(f"SET SESSION {setting}")
        cursor.execute("UPDATE orders SET price = 2")
    taken = Taker(receiver)
    with pytest.raises(UnsupportedImage, match=told) as refused:
        taken.take(lambda _: False)
    receiver.close()
    assert taken.values() == [1]
    stopped = taken.batches[-1].last
    assert (stopped.file, stopped.offset) == before
    assert "binlog_" in refused.value.mend and "--accept-gap" in refused.value.mend

    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (2, 2, 'row', 2)")
        cursor.execute(f"SET SESSION {setting}")
        cursor.execute("UPDATE orders SET price = 3")
    resumed = receiver_of(server, Mapped(database), resumption=GAP)
    resumed.open(stopped, receiver.schemas(), 1)
    taken = Taker(resumed).take_to_end()
    if "FORMAT" in setting.upper():
        assert taken.values() == [2]  # else it may be left out with the others of its Batch
    gaps = [number for number, batch in enumerate(taken.batches) if batch.gaps]
    assert gaps and all(taken.batches[number].gaps == {f"{database}.orders"} for number in gaps)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION {setting}")
        cursor.execute("UPDATE orders SET price = 4")
    with pytest.raises(UnsupportedImage, match=told):  # nobody has agreed to what came since
        taken.take(lambda _: False)
    resumed.close()


def test_only_what_cannot_be_read_is_left_out(server, database):
    """A table that was made within what was agreed to: its rows are behind its CREATE, and also what comes later."""
    start = position(server)
    run(server, database, "CREATE TABLE fresh (id INT PRIMARY KEY, n INT)")
    run(server, database, "INSERT INTO fresh VALUES (1, 1)")
    run(server, database, "INSERT INTO fresh VALUES (2, 2)")
    receiver = receiver_of(server, Mapped(database, "fresh", columns=["id"]), resumption=GAP)
    receiver.open(start, (), 0)
    taken = Taker(receiver).take_rows(2)
    run(server, database, "INSERT INTO fresh VALUES (3, 3)")
    run(server, database, "ALTER TABLE fresh ADD COLUMN more INT")
    run(server, database, "INSERT INTO fresh VALUES (4, 4, 4)")
    taken.take_rows(4)
    receiver.close()
    assert taken.values() == [1, 2, 3, 4] and not any(batch.gaps for batch in taken.batches)


@pytest.mark.parametrize("resumption", [Resumption(), GAP], ids=["plain", "gap"])
def test_a_table_that_begins_with_rows_is_read(server, database, resumption):
    """CREATE TABLE and its rows are one transaction (MySQL 8.0.21 and later, MariaDB)."""
    start = position(server)
    run(server, database, "INSERT INTO orders VALUES (1, 1, 'a', 1)")
    run(server, database, "CREATE TABLE copy (id INT PRIMARY KEY) SELECT id FROM orders")
    run(server, database, "INSERT INTO copy VALUES (2)")
    receiver = receiver_of(server, Mapped(database, "copy"), resumption=resumption)
    receiver.open(start, (), 0)
    taken = Taker(receiver).take_rows(2)
    run(server, database, "INSERT INTO copy VALUES (3)")
    taken.take_rows(3)
    receiver.close()
    assert taken.values() == [1, 2, 3] and not any(batch.gaps for batch in taken.batches)


def known_schemas(server, selection):
    """What a job that has read a row of each table has saved."""
    receiver = receiver_of(server, selection)
    receiver.open(position(server), (), 0)
    run(server, selection.database, "INSERT INTO orders (id) VALUES (99)")
    Taker(receiver).take_rows(1)
    schemas = receiver.schemas()
    receiver.close()
    return schemas


def test_harmless_changes_that_come_close_together_pause_nobody(server, database):
    selection = Mapped(database, columns=["id", "note"])
    schemas = known_schemas(server, selection)
    start = position(server)
    run(server, database, "ALTER TABLE orders ADD COLUMN b INT")
    run(server, database, "ALTER TABLE orders ADD COLUMN c INT FIRST")
    run(server, database, "INSERT INTO orders (id, note) VALUES (1, 'x')")
    receiver = receiver_of(server, selection)
    receiver.open(start, schemas, 1)
    row = Taker(receiver).take_rows(1).rows[0]
    receiver.close()
    assert (row["id"], row["note"]) == (1, "x")


def test_rows_between_two_truncates_keep_their_columns(server, database):
    selection = Mapped(database)
    schemas = known_schemas(server, selection)
    start = position(server)
    run(server, database, "TRUNCATE TABLE orders")
    run(server, database, "INSERT INTO orders VALUES (1, 10, 'x', 5)")
    run(server, database, "TRUNCATE TABLE orders")
    receiver = receiver_of(server, selection)
    receiver.open(start, schemas, 1)
    error, _ = pause(receiver)
    receiver.close()
    resumed = receiver_of(server, selection, resumption=PAST)
    resumed.open(error.where["position"], schemas, 1)
    error, taken = pause(resumed)
    resumed.close()
    assert "TRUNCATE" in error.message and [row["price"] for row in taken.rows] == [10]


@pytest.mark.parametrize("server", ["mysql-minimal", "mariadb-nolog"], indirect=True)
def test_rows_of_a_table_that_is_gone_by_now_can_be_left_out(server, database):
    start = position(server)
    run(server, database, "INSERT INTO orders VALUES (1, 1, 'a', 1)")
    run(server, database, "DROP TABLE orders")
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    with pytest.raises(SchemaMismatch, match=r"DROP TABLE .* lies behind") as refused:
        Taker(receiver).take(lambda _: False)
    receiver.close()
    assert "--accept-gap" in refused.value.mend
    resumed = receiver_of(server, Mapped(database), resumption=GAP)
    resumed.open(start, (), 0)
    error, taken = pause(resumed)
    resumed.close()
    assert "DROP TABLE" in error.message and taken.rows == []


def test_a_statement_on_several_tables_of_which_triggers_write_more(server, database):
    run(server, database, "CREATE TABLE items (id INT PRIMARY KEY)")
    run(server, database, "CREATE TABLE log (id INT PRIMARY KEY)")
    run(server, database, "CREATE TRIGGER w AFTER INSERT ON items FOR EACH ROW INSERT INTO log VALUES (NEW.id)")
    start = position(server)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        cursor.execute("INSERT INTO items VALUES (1)")
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    with pytest.raises(UnsupportedImage, match=r"items, .*trigger w may write") as refused:
        Taker(receiver).take(lambda _: False)
    receiver.close()
    assert "then load the tables that they touched" in refused.value.mend
    resumed = receiver_of(server, Mapped(database), resumption=GAP)
    resumed.open(start, (), 0)
    taken = Taker(resumed).take_to_end()
    resumed.close()
    assert {name for batch in taken.batches for name in batch.gaps} == {f"{database}.items"}


def test_what_was_agreed_to_holds_from_a_start_by_gtid_too(server, database):
    start = position(server)
    if not start.gtid_set:
        pytest.skip("a server without GTIDs")
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        cursor.execute("INSERT INTO orders VALUES (1, 1, '', 1)")
    receiver = receiver_of(server, Mapped(database), resumption=GAP)
    receiver.open(replace(start, file="", offset=0), (), 0)
    taken = Taker(receiver).take(lambda taker: any(batch.gaps for batch in taker.batches))
    receiver.close()
    assert taken.rows == []


def test_rows_of_an_xa_transaction_are_not_left_out(server, database):
    """Their table may be loaded again before they are decided, and would go without them."""
    start = position(server)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (1, 1, 'row', 1)")
        cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
        for statement in ("XA START 'x'", "UPDATE orders SET price = 2", "XA END 'x'", "XA PREPARE 'x'"):
            cursor.execute(statement)
    receiver = receiver_of(server, Mapped(database), resumption=GAP)
    try:
        receiver.open(start, (), 0)
        with pytest.raises(UnsupportedImage, match="cannot be left out"):
            Taker(receiver).take(lambda _: False)
    finally:
        receiver.close()
        server.execute("XA ROLLBACK 'x'")


def test_ddl_beside_an_undecided_xa_transaction_can_be_resumed_past(server, database):
    """The position stays before the transaction, so that each resume meets the statements behind it again."""
    run(server, database, "CREATE TABLE other (id INT PRIMARY KEY, price INT, note VARCHAR(20), secret INT)")
    start = position(server)
    with server.connect(database) as connection, connection.cursor() as cursor:
        for statement in ("XA START 'x'", "INSERT INTO other VALUES (1, 1, 'xa', 1)", "XA END 'x'", "XA PREPARE 'x'"):
            cursor.execute(statement)
    run(server, database, "ALTER TABLE orders ADD COLUMN extra INT")
    run(server, database, "INSERT INTO orders VALUES (2, 2, 'behind', 2, 7)")
    run(server, database, "TRUNCATE TABLE orders")
    run(server, database, "INSERT INTO orders VALUES (3, 3, 'last', 3, 8)")
    run(server, database, "XA COMMIT 'x'")
    passed = {}
    for past_ddl in (False, True):
        receiver = receiver_of(server, Mapped(database), resumption=Resumption(behind_ddl=True, passed=passed))
        receiver.open(start, (), 0)
        error, taken = pause(receiver)
        receiver.close()
        assert not any(batch.ends_transaction and batch.rows for batch in taken.batches)
        assert not (taken.batches and taken.batches[-1].last.reached(error.where["position"]))
        passed = {**passed, error.where["position"]: past_ddl}
    refused = receiver_of(
        server, Mapped(database), resumption=Resumption(passed={**passed, error.where["position"]: False})
    )
    refused.open(start, (), 0)
    assert "--past-ddl" in pause(refused)[0].mend
    refused.close()
    # said now, of what lies at the start, outweighs what was said before; of what lies behind it says nothing
    place = error.where["position"]
    said = Resumption(behind_ddl=True, past_ddl=True, passed={place: False})
    assert said.of(place, at_start=True).past_ddl and not said.of(place, at_start=False).past_ddl
    resumed = receiver_of(server, Mapped(database), resumption=Resumption(passed=passed))
    resumed.open(start, (), 0)
    rows = Taker(resumed).take_rows(3).rows
    resumed.close()
    assert [(row["id"], row.get("extra")) for row in rows] == [(2, 7), (3, 8), (1, None)]


@pytest.mark.parametrize("server", ["mariadb", "mariadb-nolog"], indirect=True)
def test_a_transaction_that_is_rolled_back_in_part_can_be_gone_past(server, database):
    start = position(server)
    with server.connect(database) as connection, connection.cursor() as cursor:
        for statement in (
            "BEGIN",
            "INSERT INTO orders VALUES (1, 1, 'stands', 1)",
            "SAVEPOINT s",
            "INSERT INTO orders VALUES (2, 2, 'does not', 2)",
            "CREATE TEMPORARY TABLE scratch (id INT)",
            "ROLLBACK TO s",
            "COMMIT",
            "INSERT INTO orders VALUES (3, 3, 'behind', 3)",
        ):
            cursor.execute(statement)
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    with pytest.raises(UnsupportedImage, match="rolled back in part"):
        Taker(receiver).take(lambda _: False)
    receiver.close()
    resumed = receiver_of(server, Mapped(database), resumption=GAP)
    resumed.open(start, (), 0)
    taken = Taker(resumed).take(lambda taker: 3 in taker.values())
    resumed.close()
    assert {name for batch in taken.batches for name in batch.gaps} == {f"{database}.orders"}


def test_statements_on_other_tables_pass_unless_a_trigger_may_write_ours(server, database, tmp_path):
    (tmp_path / "rows").write_text("2\n" * 200_000)  # more than one block of the binlog
    run(server, database, "CREATE TABLE plain (id INT)")
    run(server, database, "CREATE TABLE watched (id INT)")
    run(server, database, "CREATE TRIGGER w AFTER INSERT ON watched FOR EACH ROW UPDATE orders SET price = 9")
    receiver = receiver_of(server, Mapped(database, "orders"))
    receiver.open(position(server), (), 0)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        cursor.execute("INSERT INTO plain VALUES (1)")
        cursor.execute(f"LOAD DATA INFILE '{tmp_path}/rows' INTO TABLE plain")
        cursor.execute("SET SESSION binlog_format = 'ROW'")
        cursor.execute("INSERT INTO orders VALUES (1, 1, '', 1)")
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        cursor.execute("INSERT INTO watched VALUES (1)")
    taken = Taker(receiver)
    with pytest.raises(UnsupportedImage, match="watched"):
        taken.take(lambda _: False)
    receiver.close()
    assert taken.values() == [1]


def test_statements_on_a_table_whose_foreign_keys_change_ours_are_refused(server, database):
    """What the server then does to the children is in no binlog of statements."""
    run(server, database, "CREATE TABLE top (id INT PRIMARY KEY)")
    run(server, database, "CREATE TABLE middle (id INT PRIMARY KEY REFERENCES top (id) ON DELETE CASCADE)")
    run(server, database, "ALTER TABLE middle ADD FOREIGN KEY (id) REFERENCES top (id) ON DELETE CASCADE")
    run(
        server,
        database,
        "CREATE TABLE kids (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES middle (id) ON DELETE CASCADE)",
    )
    with Server(endpoint(server)) as asked:
        told = writes_beyond(asked, (database, "top"), lambda _, table: table == "kids")
        assert told is not None and f"change {database}.kids with it" in told
        assert writes_beyond(asked, (database, "top"), lambda _, table: table == "orders") is None


def test_a_trigger_that_is_made_between_two_statements_is_seen(server, database):
    run(server, database, "CREATE TABLE later (id INT)")
    receiver = receiver_of(server, Mapped(database, "orders"))
    receiver.open(position(server), (), 0)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        cursor.execute("INSERT INTO later VALUES (1)")
        cursor.execute("SET SESSION binlog_format = 'ROW'")
        cursor.execute("INSERT INTO orders VALUES (1, 1, '', 1)")
    taken = Taker(receiver).take_rows(1)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TRIGGER l AFTER INSERT ON later FOR EACH ROW UPDATE orders SET price = 9")
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        cursor.execute("INSERT INTO later VALUES (2)")
    with pytest.raises(UnsupportedImage, match="its trigger l may write"):
        taken.take(lambda _: False)
    receiver.close()


@pytest.mark.parametrize("scope", [None, "*.*", "{}.*", "{}.watched"])
def test_triggers_that_an_account_may_not_see_are_not_taken_for_none(server, database, scope):
    run(server, database, "CREATE TABLE watched (id INT)")
    server.execute("DROP USER IF EXISTS blind@'localhost'", "DROP USER IF EXISTS blind@'127.0.0.1'")
    server.create_user("blind", "pw", "SELECT, REPLICATION SLAVE, REPLICATION CLIENT")
    for host in ("127.0.0.1", "localhost") if scope else ():
        server.execute(f"GRANT TRIGGER ON {scope.format(database)} TO blind@'{host}'")
    with Server(endpoint(server, user="blind", password="pw")) as asked:
        told = writes_beyond(asked, (database, "watched"), lambda *_: True)
    assert told is None if scope else f"GRANT TRIGGER ON `{database}`.*" in told


def test_statements_on_a_services_own_tables_pass_though_the_account_cannot_see_them(server, database):
    """As Amazon RDS and Aurora write them, in any binlog_format, to whoever may see the mapped tables alone."""
    server.execute("DROP USER IF EXISTS narrow@'localhost'", "DROP USER IF EXISTS narrow@'127.0.0.1'")
    server.create_user("narrow", "pw", "REPLICATION SLAVE, REPLICATION CLIENT")
    server.execute(*(f"GRANT SELECT ON {database}.orders TO narrow@'{host}'" for host in ("127.0.0.1", "localhost")))
    server.execute("CREATE TABLE mysql.rds_heartbeat2 (id INT PRIMARY KEY, value BIGINT)")
    run(server, database, "CREATE TABLE hidden (id INT)")
    account = endpoint(server, user="narrow", password="pw")
    receiver = BinlogReceiver.of_server(account, identity(), Mapped(database, "orders"))
    try:
        receiver.open(position(server), (), 0)
        with server.connect("mysql") as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
            cursor.execute("INSERT INTO mysql.rds_heartbeat2 VALUES (1, 5) ON DUPLICATE KEY UPDATE value = 5")
            cursor.execute("INSERT INTO rds_heartbeat2 VALUES (2, 5)")
            cursor.execute("DELETE FROM mysql.rds_heartbeat2 WHERE id = 2")
            cursor.execute("SET SESSION binlog_format = 'ROW'")
            cursor.execute(f"INSERT INTO {database}.orders VALUES (1, 1, '', 1)")
            cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
            cursor.execute(f"INSERT INTO {database}.hidden VALUES (1)")
        taken = Taker(receiver)
        with pytest.raises(UnsupportedImage, match=r"hidden, and it is gone, or this account may not see it"):
            taken.take(lambda _: False)
    finally:
        receiver.close()
        server.execute("DROP TABLE mysql.rds_heartbeat2")
    assert taken.values() == [1]


def tells_columns(server):
    """Whether row events tell the names of their columns."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@binlog_row_metadata")
        return cursor.fetchone()[0] == "FULL"


def test_a_start_in_the_past_reads_columns_as_they_were_or_refuses(server, database):
    start = position(server)
    run(server, database, "INSERT INTO orders VALUES (1, 10, 'before', 5)")
    run(server, database, "ALTER TABLE orders DROP COLUMN price")
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    if tells_columns(server):
        error, taken = pause(receiver)
        assert "DROP COLUMN" in error.message
        assert taken.rows[0]["price"] == 10 and taken.rows[0]["secret"] == 5
    else:
        with pytest.raises(SchemaMismatch, match=r"not known: DROP COLUMN .* lies behind them"):
            Taker(receiver).take(lambda _: False)
        receiver.close()
        receiver = receiver_of(server, Mapped(database), resumption=GAP)
        receiver.open(start, (), 0)
        error, taken = pause(receiver)
        assert "DROP COLUMN" in error.message and taken.rows == []
        assert {name for batch in taken.batches for name in batch.gaps} == {f"{database}.orders"}
        receiver.close()
        receiver = receiver_of(server, Mapped(database), resumption=GAP)
        receiver.open(error.where["position"], (), 0)
        run(server, database, "INSERT INTO orders VALUES (2, 'behind', 7)")
        assert Taker(receiver).take_rows(1).rows[0]["secret"] == 7
    receiver.close()


@pytest.mark.parametrize("server", ["mysql-minimal", "mariadb-nolog"], indirect=True)
def test_rows_of_before_are_not_read_with_the_columns_of_a_server_that_tells_them_by_now(server, database):
    start = position(server)
    run(server, database, "INSERT INTO orders VALUES (1, 10, 'before', 5)")
    run(server, database, "ALTER TABLE orders RENAME COLUMN price TO p, RENAME COLUMN secret TO price")
    server.execute("SET GLOBAL binlog_row_metadata = FULL")
    receiver = receiver_of(server, Mapped(database))
    try:
        receiver.open(start, (), 0)
        with pytest.raises(SchemaMismatch, match="not known: RENAME COLUMN"):
            Taker(receiver).take(lambda _: False)
    finally:
        receiver.close()
        server.execute("SET GLOBAL binlog_row_metadata = DEFAULT")


@pytest.mark.parametrize("how", ["DROP TABLE IF EXISTS orders", "DROP DATABASE {0}; CREATE DATABASE {0}; USE {0}"])
def test_rows_of_a_table_that_was_made_anew_since_are_not_read_with_its_columns(server, database, how):
    start = position(server)
    run(server, database, "INSERT INTO orders VALUES (1, 10, 'before', 5)")
    with server.connect(database) as connection, connection.cursor() as cursor:
        for statement in how.format(database).split("; "):
            cursor.execute(statement)
        cursor.execute("CREATE TABLE orders (id INT PRIMARY KEY, secret INT, note VARCHAR(20), price INT)")
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    if tells_columns(server):
        error, taken = pause(receiver)
        assert "DROP" in error.message and taken.rows[0]["price"] == 10
    else:
        with pytest.raises(SchemaMismatch, match="not known: DROP"):
            Taker(receiver).take(lambda _: False)
    receiver.close()


def test_a_dump_that_makes_its_tables_first_is_read_from_its_beginning(server, database):
    start = position(server)
    run(server, database, "DROP TABLE IF EXISTS people")
    run(server, database, "CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR(20))")
    run(server, database, "INSERT INTO people VALUES (1, 'Ada')")
    receiver = receiver_of(server, Mapped(database, "people"))
    receiver.open(start, (), 0)
    if tells_columns(server):
        pause(receiver)  # the table that the server has today may have been there before
    else:
        assert Taker(receiver).take_rows(1).rows[0]["name"] == "Ada"
    receiver.close()


def test_two_changes_of_a_table_without_a_row_between_can_be_resumed_past(server, database):
    receiver = receiver_of(server, Mapped(database))
    receiver.open(position(server), (), 0)
    run(server, database, "INSERT INTO orders VALUES (1, 1, 'a', 1)")
    Taker(receiver).take_rows(1)
    run(server, database, "ALTER TABLE orders ADD COLUMN b INT")
    run(server, database, "ALTER TABLE orders ADD COLUMN c INT")
    run(server, database, "INSERT INTO orders VALUES (2, 2, 'b', 2, 3, 4)")
    for number in range(2):
        error, _ = pause(receiver)
        assert "ADD COLUMN " + "bc"[number] in error.message
        schemas = receiver.schemas()
        receiver.close()
        receiver = receiver_of(server, Mapped(database), resumption=BEHIND)
        receiver.open(error.where["position"], schemas, 1)
    row = Taker(receiver).take_rows(1).rows[0]
    receiver.close()
    assert (row["id"], row["b"], row["c"]) == (2, 3, 4)


@pytest.mark.parametrize("statement", ["DROP TABLE IF EXISTS {0}.orders", "DROP DATABASE {0}"])
def test_dropping_a_table_that_only_a_snapshot_has_read_pauses(server, database, statement):
    start = position(server)
    server.execute(statement.format(database), f"CREATE DATABASE IF NOT EXISTS {database}")
    quiet = receiver_of(server, Mapped(database))
    quiet.open(start, (), 0)
    assert Taker(quiet).take_to_end().rows == [], "nothing of it was ever read"
    quiet.close()
    receiver = receiver_of(server, Mapped(database))
    receiver.note_loaded([f"{database}.orders"])
    receiver.open(start, (), 0)
    assert pause(receiver)[0].where["tables"] == f"{database}.orders"
    receiver.close()


def test_labels_that_the_server_no_longer_knows_are_refused_unless_rows_tell_them(server, database):
    start = position(server)
    run(server, database, "CREATE TABLE moods (id INT PRIMARY KEY, mood ENUM('a😀', 'é') CHARACTER SET utf8mb4)")
    run(server, database, "INSERT INTO moods VALUES (1, 'a😀'), (2, 'é')")
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    try:
        if tells_columns(server):
            assert Taker(receiver).take_rows(2).values("mood", "moods") == ["a😀", "é"]
        else:
            with pytest.raises(SchemaMismatch, match="does not tell all labels") as raised:
                Taker(receiver).take(lambda _: False)
            assert raised.value.where["column"] == "mood"
    finally:
        receiver.close()


def test_a_restart_reads_with_the_schema_of_then(server, database):
    """Rows between the checkpoint and the ALTER are read with the schema saved, though the table is another one now."""
    receiver = receiver_of(server, Mapped(database))
    receiver.open(position(server), (), 0)
    run(server, database, "INSERT INTO orders VALUES (1, 1, 'a', 1)")
    last = Taker(receiver).take_rows(1).batches[-1].last
    schemas = receiver.schemas()
    receiver.close()
    run(server, database, "UPDATE orders SET price = 2")
    run(server, database, "ALTER TABLE orders CHANGE price cost BIGINT AFTER secret")
    again = receiver_of(server, Mapped(database))
    again.open(last, schemas, 1)
    _, taken = pause(again)
    again.close()
    assert (taken.rows[0]["price"], taken.rows[0][DELETED]) == (2, False)


def test_starts(server, database):
    before = position(server)
    run(server, database, "INSERT INTO orders VALUES (1, 1, 'a', 1)")
    middle = position(server)
    run(server, database, "INSERT INTO orders VALUES (2, 2, 'b', 2)")
    by_file = position(server, {"file": middle.file, "offset": middle.offset})
    assert by_file == middle and middle.gtid_set
    starts = [(before, [1, 2]), (by_file, [2]), (position(server, {"gtid_set": middle.gtid_set}), [2])]
    for start, expected in starts:
        receiver = receiver_of(server, Mapped(database))
        receiver.open(start, (), 0)
        taken = Taker(receiver).take_rows(len(expected)).take_to_end()
        receiver.close()
        assert taken.values() == expected
        assert taken.batches[-1].last.file == middle.file
    assert position(server, "earliest").offset == 4
    with pytest.raises(PositionLost, match="ends at"):
        position(server, {"file": middle.file, "offset": 1 << 31})


def test_tagged_gtids(mysql):
    mysql.execute(
        "DROP DATABASE IF EXISTS tagged", "CREATE DATABASE tagged", "CREATE TABLE tagged.t (id INT PRIMARY KEY)"
    )
    start = position(mysql)
    with mysql.connect("tagged") as connection, connection.cursor() as cursor:
        for number in range(1, 4):
            cursor.execute(f"SET gtid_next = 'AUTOMATIC:{'abc' if number < 3 else 'xyz'}'")
            cursor.execute(f"INSERT INTO t VALUES ({number})")
        cursor.execute("SET gtid_next = AUTOMATIC")
    receiver = receiver_of(mysql, Mapped("tagged"))
    receiver.open(start, (), 0)
    first = Taker(receiver).take_rows(3).batches
    receiver.close()
    assert ":abc:" in first[-1].last.gtid_set
    assert first[-1].last.gtid_set == position(mysql).gtid_set
    mysql.execute("INSERT INTO tagged.t VALUES (4)")
    by_gtid = position(mysql, {"gtid_set": first[-1].last.gtid_set})
    receiver = receiver_of(mysql, Mapped("tagged"))
    receiver.open(by_gtid, (), 0)
    assert Taker(receiver).take_rows(1).take_to_end().values() == [4]
    receiver.close()
    mysql.execute("DROP DATABASE tagged")
