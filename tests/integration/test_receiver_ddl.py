"""DDL and schemas on real servers: what pauses, how a resume continues, and with which columns rows are read."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace

import pytest

from cdc.demo.local_servers import LocalServer, obtain
from cdc.errors import DdlStop, PositionLost, SchemaMismatch, UnsupportedRowFormat
from cdc.model.schema import DELETED
from cdc.model.schema_change import ChangeKind, ColumnMap
from cdc.mysql import visibility
from cdc.mysql.catalog import table_schemas, writes_beyond
from cdc.mysql.server import Server
from cdc.sources.binlog.receiver import BinlogReceiver
from cdc.sources.schema_history import ResumeOptions
from channels.mapping import Mapping
from channels.routes import Routes
from tests.support.receiving import Collector, Mapped, endpoint, identity, position, receiver_of, until

PAST_GAP = ResumeOptions(past_gap=True)


def accepted(error, *, past_ddl=False, past_gap=False):
    """Return the options of a resume of a job that is PAUSED at the statement of ``error``."""
    return ResumeOptions(past_gap, {error.context["position"]: past_ddl})


@pytest.fixture(params=["mysql", "mariadb", "mysql-minimal", "mariadb-nolog"], scope="module")
def server(request, tmp_path_factory):
    """Yield servers with full row metadata and servers with the minimum that they write by default."""
    kind, _, is_minimal = request.param.partition("-")
    if not is_minimal:
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
    """Read everything up to the pause. Return the error and the collected Batches."""
    collected = Collector(receiver)
    with pytest.raises(DdlStop) as raised:
        collected.collect(lambda _: False)
    return raised.value, collected


def run(server, database, statement):
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(statement)


def described(server, database):
    """Return what the server's catalog has about `orders`."""
    with Server(endpoint(server)) as asked:
        return table_schemas(asked, [(database, "orders")])


def show_once(monkeypatch, late):
    """Let the catalog show ``late`` once more, as a server does for a moment after it has logged a change."""
    answers = [late]
    monkeypatch.setattr(visibility, "table_schemas", lambda *asked: answers.pop() if answers else table_schemas(*asked))
    return answers


@pytest.mark.parametrize("change", ["DROP COLUMN secret", "MODIFY note VARCHAR(20) COMMENT 'seen late'"])
def test_change_that_the_server_shows_late_is_read(server, database, monkeypatch, change):
    start, answers = position(server), show_once(monkeypatch, described(server, database))
    with closing(receiver_of(server, Mapped(database))) as receiver:
        receiver.open(start, (), 0)
        run(server, database, "INSERT INTO orders VALUES (1, 2, 'n', 3)")
        run(server, database, f"ALTER TABLE orders {change}")
        (changed,) = pause(receiver)[0].change.tables
    assert not answers
    assert changed.after.columns == described(server, database)[database, "orders"].columns


def test_statement_without_effect_is_a_change_of_nothing(server, database):
    run(server, database, "ALTER TABLE orders MODIFY note VARCHAR(20) CHARSET utf8mb4, DEFAULT CHARSET utf8mb4")
    clauses = [
        "MODIFY price INT DEFAULT 3", "CHANGE price price INT NULL DEFAULT 4", "MODIFY note VARCHAR(20)",
        "MODIFY note VARCHAR(20) COLLATE utf8mb4_bin", "MODIFY id INT NOT NULL",
        "CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci", "DROP PRIMARY KEY, ADD PRIMARY KEY (id)",
    ]  # fmt: skip
    with Server(endpoint(server)) as asked:
        clauses += ["ADD COLUMN IF NOT EXISTS price INT", "DROP COLUMN IF EXISTS nope"] if asked.mariadb else []
    for one in clauses:
        start, known = position(server), described(server, database)[database, "orders"]
        with closing(receiver_of(server, Mapped(database))) as receiver:
            receiver.open(start, (known,), 0)
            run(server, database, f"ALTER TABLE orders {one}")
            error = pause(receiver)[0]
        assert error.change is not None, error.message
        (changed,) = error.change.tables
        assert (changed.columns, changed.rows, changed.key_changed) == ((), None, False), one
        assert changed.after.columns == described(server, database)[database, "orders"].columns


def test_statement_that_stays_invisible_is_read_again_and_followed(server, database, monkeypatch):
    start, answers = position(server), show_once(monkeypatch, described(server, database))
    answers *= 2
    with closing(receiver_of(server, Mapped(database))) as receiver:
        receiver.open(start, (), 0)
        monkeypatch.setattr(visibility, "is_visible", lambda *_: False)  # within 5 s
        run(server, database, "INSERT INTO orders VALUES (1, 2, 'n', 3)")
        run(server, database, "ALTER TABLE orders DROP COLUMN secret")
        error = pause(receiver)[0]
    assert not answers and error.change is not None


def test_columns_that_the_server_shows_late_after_a_passed_statement_are_read(server, database, monkeypatch):
    run(server, database, "ALTER TABLE orders MODIFY note ENUM('a', 'b')")
    start, late = position(server), described(server, database)
    with closing(receiver_of(server, Mapped(database))) as receiver:
        receiver.open(start, (), 0)
        run(server, database, "INSERT INTO orders VALUES (1, 1, 'a', 1)")
        Collector(receiver).collect_rows(1)
        run(server, database, "ALTER TABLE orders MODIFY note ENUM('b', 'a')")
        run(server, database, "INSERT INTO orders VALUES (2, 2, 'b', 2)")
        error, schemas = pause(receiver)[0], receiver.schemas()
    answers = show_once(monkeypatch, late)
    with closing(receiver_of(server, Mapped(database), resume_options=accepted(error, past_ddl=True))) as receiver:
        receiver.open(error.context["position"], schemas, 1)
        rows = Collector(receiver).collect_rows(1).rows
    assert not answers
    assert [row["note"] for row in rows] == ["b"]


def test_mariadb_comment_is_code_on_mariadb_only(server, database):
    start = position(server)
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    run(server, database, "ALTER TABLE orders ADD INDEX i (price) /*M! , DROP COLUMN note */")
    run(server, database, "INSERT INTO orders (id, price) VALUES (1, 2)")
    if len(_columns(server, database)) == 3:
        assert "note" in str(pause(receiver)[0])
    else:
        Collector(receiver).collect_rows(1)
    receiver.close()


def _columns(server, database):
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW COLUMNS FROM orders")
        return cursor.fetchall()


@pytest.mark.parametrize(
    ("statement", "row_changing"),
    [
        ("ALTER TABLE orders ADD COLUMN extra INT", False),
        ("ALTER TABLE orders MODIFY price BIGINT", True),
        ("ALTER TABLE orders RENAME COLUMN note TO remark", False),
        ("TRUNCATE TABLE orders", True),
    ],
)
def test_ddl_on_mapped_table_pauses_before_it_and_resume_continues(server, database, statement, row_changing):
    start = position(server)
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    run(server, database, "INSERT INTO orders VALUES (1, 10, 'before', 0)")
    Collector(receiver).collect_rows(1)
    run(server, database, statement)
    values = "(2, 20, 'behind', 0, 7)" if "extra" in statement else "(2, 20, 'behind', 0)"
    run(server, database, f"INSERT INTO orders VALUES {values}")
    error, collected = pause(receiver)
    schemas = receiver.schemas()
    receiver.close()
    assert error.context["tables"] == f"{database}.orders"
    assert statement in str(error.context["statement"])
    last = collected.batches[-1].last if collected.batches else start
    assert error.context["position"].reached(start)

    again = receiver_of(server, Mapped(database))  # a plain restart pauses again
    again.open(last, schemas, 1)
    assert "cdc resume" in pause(again)[0].hint
    again.close()

    if row_changing:
        refused = receiver_of(server, Mapped(database), resume_options=accepted(error))
        refused.open(error.context["position"], schemas, 1)
        assert "--past-ddl" in pause(refused)[0].hint
        refused.close()
    resumed = receiver_of(server, Mapped(database), resume_options=accepted(error, past_ddl=row_changing))
    resumed.open(error.context["position"], schemas, 1)
    row = Collector(resumed).collect_rows(1).rows[0]
    names = {column.name for column in resumed.schema(database, "orders").columns}
    resumed.close()
    assert row["id"] == 2
    if "extra" in statement:
        assert row["extra"] == 7
    if "remark" in statement:
        assert row["remark"] == "behind" and "note" not in names


def test_resume_after_rename_reports_the_missing_mapped_column(server, database):
    start = position(server)
    receiver = receiver_of(server, Mapped(database, columns=["id", "price"]))
    receiver.open(start, (), 0)
    Collector(receiver).collect_to_end()
    run(server, database, "ALTER TABLE orders RENAME COLUMN price TO cost")
    error, _ = pause(receiver)
    schemas = receiver.schemas()
    receiver.close()
    resumed = receiver_of(server, Mapped(database, columns=["id", "price"]), resume_options=accepted(error))
    resumed.open(error.context["position"], schemas, 0)
    with pytest.raises(KeyError, match="price"):
        Collector(resumed).collect(lambda _: False)
    resumed.close()


def test_ddl_on_unmapped_columns_does_not_pause(server, database):
    table_filter = Mapped(database, columns=["id", "note"])
    receiver = receiver_of(server, table_filter)
    receiver.open(position(server), (), 0)
    collected = Collector(receiver)
    run(server, database, "INSERT INTO orders VALUES (1, 1, 'a', 1)")
    collected.collect_rows(1)
    run(server, database, "ALTER TABLE orders DROP COLUMN secret, ADD COLUMN first INT FIRST, ADD INDEX (price)")
    run(server, database, "INSERT INTO orders VALUES (9, 2, 2, 'b')")
    collected.collect_rows(2)
    receiver.close()
    assert [(row["id"], row["note"]) for row in collected.rows] == [(1, "a"), (2, "b")]


def test_ddl_scan_does_not_disturb_the_stream(server, database):
    """The DDL position can be after the server's end while others write, so the events between are scanned."""
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
    collected = Collector(receiver).collect_rows(600)
    writer.join()
    run(server, database, "INSERT INTO orders (id, note) VALUES (600, 'x')")
    collected.collect_rows(601)
    receiver.close()
    assert collected.values() == list(range(601))


def test_table_created_later_joins_the_stream(server, database):
    receiver = receiver_of(server, Mapped(database))
    receiver.open(position(server), (), 0)
    run(server, database, "CREATE TABLE later (id INT PRIMARY KEY, label ENUM('x', 'y'))")
    run(server, database, "INSERT INTO later VALUES (1, 'y')")
    collected = Collector(receiver).collect_rows(1)
    schemas = receiver.schemas()
    receiver.close()
    assert (collected.rows[0]["table"], collected.rows[0]["label"]) == ("later", "y")
    assert "later" in {schema.table for schema in schemas}


def test_drop_database_pauses(server, database):
    run(server, database, "CREATE DATABASE IF NOT EXISTS doomed")
    run(server, "doomed", "CREATE TABLE t (id INT PRIMARY KEY)")
    receiver = receiver_of(server, Mapped("doomed"))
    receiver.open(position(server), (), 0)
    Collector(receiver).collect_to_end()
    run(server, database, "DROP DATABASE doomed")
    error, _ = pause(receiver)
    receiver.close()
    assert error.context["tables"] == "doomed.t"


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("binlog_format = 'STATEMENT'", "statements"), ("binlog_row_image = 'MINIMAL'", "FULL")],
    ids=["statement", "minimal"],
)
def test_incomplete_row_logging_raises_and_accepted_gap_skips(server, database, setting, reason):
    start = position(server)
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (1, 1, 'row', 1)")
        cursor.execute("SHOW BINARY LOG STATUS" if server.binaries.kind == "mysql" else "SHOW MASTER STATUS")
        before = cursor.fetchone()[:2]
        cursor.execute(f"SET SESSION {setting}")
        cursor.execute("UPDATE orders SET price = 2")
    collected = Collector(receiver)
    with pytest.raises(UnsupportedRowFormat, match=reason) as refused:
        collected.collect(lambda _: False)
    receiver.close()
    assert collected.values() == [1]
    stopped = collected.batches[-1].last
    assert (stopped.file, stopped.offset) == before
    assert "binlog_" in refused.value.hint and "--accept-gap" in refused.value.hint

    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (2, 2, 'row', 2)")
        cursor.execute(f"SET SESSION {setting}")
        cursor.execute("UPDATE orders SET price = 3")
    resumed = receiver_of(server, Mapped(database), resume_options=PAST_GAP)
    resumed.open(stopped, receiver.schemas(), 1)
    collected = Collector(resumed).collect_to_end()
    if "FORMAT" in setting.upper():
        assert collected.values() == [2]  # otherwise it may be omitted with the other rows of its Batch
    gaps = [number for number, batch in enumerate(collected.batches) if batch.gaps]
    assert gaps and all(collected.batches[number].gaps == {f"{database}.orders"} for number in gaps)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION {setting}")
        cursor.execute("UPDATE orders SET price = 4")
    with pytest.raises(UnsupportedRowFormat, match=reason):  # the accepted gap does not cover later rows
        collected.collect(lambda _: False)
    resumed.close()


def test_accepted_gap_omits_only_unreadable_rows(server, database):
    """A table was created within the accepted gap: its rows after CREATE TABLE are readable, and later rows too."""
    start = position(server)
    run(server, database, "CREATE TABLE fresh (id INT PRIMARY KEY, n INT)")
    run(server, database, "INSERT INTO fresh VALUES (1, 1)")
    run(server, database, "INSERT INTO fresh VALUES (2, 2)")
    receiver = receiver_of(server, Mapped(database, "fresh", columns=["id"]), resume_options=PAST_GAP)
    receiver.open(start, (), 0)
    collected = Collector(receiver).collect_rows(2)
    run(server, database, "INSERT INTO fresh VALUES (3, 3)")
    run(server, database, "ALTER TABLE fresh ADD COLUMN more INT")
    run(server, database, "INSERT INTO fresh VALUES (4, 4, 4)")
    collected.collect_rows(4)
    receiver.close()
    assert collected.values() == [1, 2, 3, 4] and not any(batch.gaps for batch in collected.batches)


@pytest.mark.parametrize("resume_options", [ResumeOptions(), PAST_GAP], ids=["plain", "gap"])
def test_table_created_with_rows_is_read(server, database, resume_options):
    """CREATE TABLE ... SELECT and its rows are one transaction (MySQL 8.0.21 and later, MariaDB)."""
    start = position(server)
    run(server, database, "INSERT INTO orders VALUES (1, 1, 'a', 1)")
    run(server, database, "CREATE TABLE copy (id INT PRIMARY KEY) SELECT id FROM orders")
    run(server, database, "INSERT INTO copy VALUES (2)")
    receiver = receiver_of(server, Mapped(database, "copy"), resume_options=resume_options)
    receiver.open(start, (), 0)
    collected = Collector(receiver).collect_rows(2)
    run(server, database, "INSERT INTO copy VALUES (3)")
    collected.collect_rows(3)
    receiver.close()
    assert collected.values() == [1, 2, 3] and not any(batch.gaps for batch in collected.batches)


def known_schemas(server, table_filter):
    """Return the schemas that a job saves after it has read one row of each table."""
    receiver = receiver_of(server, table_filter)
    receiver.open(position(server), (), 0)
    run(server, table_filter.database, "INSERT INTO orders (id) VALUES (99)")
    Collector(receiver).collect_rows(1)
    schemas = receiver.schemas()
    receiver.close()
    return schemas


def test_two_harmless_ddl_statements_do_not_pause(server, database):
    table_filter = Mapped(database, columns=["id", "note"])
    schemas = known_schemas(server, table_filter)
    start = position(server)
    run(server, database, "ALTER TABLE orders ADD COLUMN b INT")
    run(server, database, "ALTER TABLE orders ADD COLUMN c INT FIRST")
    run(server, database, "INSERT INTO orders (id, note) VALUES (1, 'x')")
    receiver = receiver_of(server, table_filter)
    receiver.open(start, schemas, 1)
    row = Collector(receiver).collect_rows(1).rows[0]
    receiver.close()
    assert (row["id"], row["note"]) == (1, "x")


def test_rows_between_two_truncates_keep_their_columns(server, database):
    table_filter = Mapped(database)
    schemas = known_schemas(server, table_filter)
    start = position(server)
    run(server, database, "TRUNCATE TABLE orders")
    run(server, database, "INSERT INTO orders VALUES (1, 10, 'x', 5)")
    run(server, database, "TRUNCATE TABLE orders")
    receiver = receiver_of(server, table_filter)
    receiver.open(start, schemas, 1)
    error, _ = pause(receiver)
    receiver.close()
    resumed = receiver_of(server, table_filter, resume_options=accepted(error, past_ddl=True))
    resumed.open(error.context["position"], schemas, 1)
    error, collected = pause(resumed)
    resumed.close()
    assert "TRUNCATE" in error.message and [row["price"] for row in collected.rows] == [10]


@pytest.mark.parametrize("server", ["mysql-minimal", "mariadb-nolog"], indirect=True)
def test_rows_of_a_dropped_table_can_be_skipped(server, database):
    start = position(server)
    run(server, database, "INSERT INTO orders VALUES (1, 1, 'a', 1)")
    run(server, database, "DROP TABLE orders")
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    with pytest.raises(SchemaMismatch, match=r"DROP TABLE .* follows") as refused:
        Collector(receiver).collect(lambda _: False)
    receiver.close()
    assert "--accept-gap" in refused.value.hint
    resumed = receiver_of(server, Mapped(database), resume_options=PAST_GAP)
    resumed.open(start, (), 0)
    error, collected = pause(resumed)
    resumed.close()
    assert "DROP TABLE" in error.message and collected.rows == []


def test_statement_with_triggers_on_several_tables_names_them(server, database):
    run(server, database, "CREATE TABLE items (id INT PRIMARY KEY)")
    run(server, database, "CREATE TABLE log (id INT PRIMARY KEY)")
    run(server, database, "CREATE TRIGGER w AFTER INSERT ON items FOR EACH ROW INSERT INTO log VALUES (NEW.id)")
    start = position(server)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        cursor.execute("INSERT INTO items VALUES (1)")
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    with pytest.raises(UnsupportedRowFormat, match=r"items, .*trigger w may write") as refused:
        Collector(receiver).collect(lambda _: False)
    receiver.close()
    assert "then load the tables that they changed" in refused.value.hint
    resumed = receiver_of(server, Mapped(database), resume_options=PAST_GAP)
    resumed.open(start, (), 0)
    collected = Collector(resumed).collect_to_end()
    resumed.close()
    assert {name for batch in collected.batches for name in batch.gaps} == {f"{database}.items"}


def test_accepted_gap_applies_to_a_start_by_gtid(server, database):
    start = position(server)
    if not start.gtid_set:
        pytest.skip("a server without GTIDs")
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        cursor.execute("INSERT INTO orders VALUES (1, 1, '', 1)")
    receiver = receiver_of(server, Mapped(database), resume_options=PAST_GAP)
    receiver.open(replace(start, file="", offset=0), (), 0)
    collected = Collector(receiver).collect(lambda collector: any(batch.gaps for batch in collector.batches))
    receiver.close()
    assert collected.rows == []


def test_xa_rows_with_incomplete_images_cannot_be_skipped(server, database):
    """Their table could be loaded again before their decision and would then lack them."""
    start = position(server)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders VALUES (1, 1, 'row', 1)")
        cursor.execute("SET SESSION binlog_row_image = 'MINIMAL'")
        for statement in ("XA START 'x'", "UPDATE orders SET price = 2", "XA END 'x'", "XA PREPARE 'x'"):
            cursor.execute(statement)
    receiver = receiver_of(server, Mapped(database), resume_options=PAST_GAP)
    try:
        receiver.open(start, (), 0)
        with pytest.raises(UnsupportedRowFormat, match="cannot be omitted"):
            Collector(receiver).collect(lambda _: False)
    finally:
        receiver.close()
        server.execute("XA ROLLBACK 'x'")


def test_ddl_beside_a_prepared_xa_transaction_can_be_resumed(server, database):
    """The position stays before the XA transaction, so each resume reads the statements after it again."""
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
        receiver = receiver_of(server, Mapped(database), resume_options=ResumeOptions(acknowledged=passed))
        receiver.open(start, (), 0)
        error, collected = pause(receiver)
        receiver.close()
        assert not any(batch.ends_transaction and batch.rows for batch in collected.batches)
        assert not (collected.batches and collected.batches[-1].last.reached(error.context["position"]))
        passed = {**passed, error.context["position"]: past_ddl}
    refused = receiver_of(
        server,
        Mapped(database),
        resume_options=ResumeOptions(acknowledged={**passed, error.context["position"]: False}),
    )
    refused.open(start, (), 0)
    assert "--past-ddl" in pause(refused)[0].hint
    refused.close()
    resumed = receiver_of(server, Mapped(database), resume_options=ResumeOptions(acknowledged=passed))
    resumed.open(start, (), 0)
    rows = Collector(resumed).collect_rows(3).rows
    resumed.close()
    assert [(row["id"], row.get("extra")) for row in rows] == [(2, 7), (3, 8), (1, None)]


@pytest.mark.parametrize("server", ["mariadb", "mariadb-nolog"], indirect=True)
def test_partial_rollback_raises_and_can_be_skipped(server, database):
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
    with pytest.raises(UnsupportedRowFormat, match="rolled back in part"):
        Collector(receiver).collect(lambda _: False)
    receiver.close()
    resumed = receiver_of(server, Mapped(database), resume_options=PAST_GAP)
    resumed.open(start, (), 0)
    collected = Collector(resumed).collect(lambda collector: 3 in collector.values())
    resumed.close()
    assert {name for batch in collected.batches for name in batch.gaps} == {f"{database}.orders"}


def test_statements_on_other_tables_pass_unless_triggers_write(server, database, tmp_path):
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
    collected = Collector(receiver)
    with pytest.raises(UnsupportedRowFormat, match="watched"):
        collected.collect(lambda _: False)
    receiver.close()
    assert collected.values() == [1]


def test_statement_with_cascades_to_mapped_tables_is_reported(server, database):
    """A binlog of statements does not contain the changes of the child tables."""
    run(server, database, "CREATE TABLE top (id INT PRIMARY KEY)")
    run(server, database, "CREATE TABLE middle (id INT PRIMARY KEY REFERENCES top (id) ON DELETE CASCADE)")
    run(server, database, "ALTER TABLE middle ADD FOREIGN KEY (id) REFERENCES top (id) ON DELETE CASCADE")
    run(
        server,
        database,
        "CREATE TABLE kids (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES middle (id) ON DELETE CASCADE)",
    )
    with Server(endpoint(server)) as asked:
        reason = writes_beyond(asked, (database, "top"), lambda _, table: table == "kids")
        assert reason is not None and f"change {database}.kids with it" in reason
        assert writes_beyond(asked, (database, "top"), lambda _, table: table == "orders") is None


def test_trigger_created_between_two_statements_is_seen(server, database):
    run(server, database, "CREATE TABLE later (id INT)")
    receiver = receiver_of(server, Mapped(database, "orders"))
    receiver.open(position(server), (), 0)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        cursor.execute("INSERT INTO later VALUES (1)")
        cursor.execute("SET SESSION binlog_format = 'ROW'")
        cursor.execute("INSERT INTO orders VALUES (1, 1, '', 1)")
    collected = Collector(receiver).collect_rows(1)
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TRIGGER l AFTER INSERT ON later FOR EACH ROW UPDATE orders SET price = 9")
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        cursor.execute("INSERT INTO later VALUES (2)")
    with pytest.raises(UnsupportedRowFormat, match="its trigger l may write"):
        collected.collect(lambda _: False)
    receiver.close()


@pytest.mark.parametrize("scope", [None, "*.*", "{}.*", "{}.watched"])
def test_triggers_hidden_from_the_account_need_a_grant(server, database, scope):
    run(server, database, "CREATE TABLE watched (id INT)")
    server.execute("DROP USER IF EXISTS blind@'localhost'", "DROP USER IF EXISTS blind@'127.0.0.1'")
    server.create_user("blind", "pw", "SELECT, REPLICATION SLAVE, REPLICATION CLIENT")
    for host in ("127.0.0.1", "localhost") if scope else ():
        server.execute(f"GRANT TRIGGER ON {scope.format(database)} TO blind@'{host}'")
    with Server(endpoint(server, user="blind", password="pw")) as asked:
        reason = writes_beyond(asked, (database, "watched"), lambda *_: True)
    assert reason is None if scope else f"GRANT TRIGGER ON `{database}`.*" in reason


def test_statements_on_system_tables_of_a_service_pass(server, database):
    """Amazon RDS and Aurora write them in any binlog_format; the account can see only the mapped tables."""
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
        collected = Collector(receiver)
        with pytest.raises(
            UnsupportedRowFormat, match=r"hidden, and it does not exist, or this account may not see it"
        ):
            collected.collect(lambda _: False)
    finally:
        receiver.close()
        server.execute("DROP TABLE mysql.rds_heartbeat2")
    assert collected.values() == [1]


def has_column_names(server):
    """Return whether row events contain the names of their columns."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@binlog_row_metadata")
        return cursor.fetchone()[0] == "FULL"


def test_start_before_ddl_reads_old_columns_or_raises(server, database):
    start = position(server)
    run(server, database, "INSERT INTO orders VALUES (1, 10, 'before', 5)")
    run(server, database, "ALTER TABLE orders DROP COLUMN price")
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    if has_column_names(server):
        error, collected = pause(receiver)
        assert "DROP COLUMN" in error.message
        assert collected.rows[0]["price"] == 10 and collected.rows[0]["secret"] == 5
    else:
        with pytest.raises(SchemaMismatch, match=r"not known: DROP COLUMN .* follows the rows"):
            Collector(receiver).collect(lambda _: False)
        receiver.close()
        receiver = receiver_of(server, Mapped(database), resume_options=PAST_GAP)
        receiver.open(start, (), 0)
        error, collected = pause(receiver)
        assert "DROP COLUMN" in error.message and collected.rows == []
        assert {name for batch in collected.batches for name in batch.gaps} == {f"{database}.orders"}
        receiver.close()
        receiver = receiver_of(server, Mapped(database), resume_options=accepted(error, past_gap=True))
        receiver.open(error.context["position"], (), 0)
        run(server, database, "INSERT INTO orders VALUES (2, 'behind', 7)")
        assert Collector(receiver).collect_rows(1).rows[0]["secret"] == 7
    receiver.close()


@pytest.mark.parametrize("server", ["mysql-minimal", "mariadb-nolog"], indirect=True)
def test_rows_without_metadata_ignore_the_current_columns(server, database):
    start = position(server)
    run(server, database, "INSERT INTO orders VALUES (1, 10, 'before', 5)")
    run(server, database, "ALTER TABLE orders RENAME COLUMN price TO p, RENAME COLUMN secret TO price")
    server.execute("SET GLOBAL binlog_row_metadata = FULL")
    receiver = receiver_of(server, Mapped(database))
    try:
        receiver.open(start, (), 0)
        with pytest.raises(SchemaMismatch, match="not known: RENAME COLUMN"):
            Collector(receiver).collect(lambda _: False)
    finally:
        receiver.close()
        server.execute("SET GLOBAL binlog_row_metadata = DEFAULT")


@pytest.mark.parametrize("how", ["DROP TABLE IF EXISTS orders", "DROP DATABASE {0}; CREATE DATABASE {0}; USE {0}"])
def test_rows_of_a_recreated_table_ignore_its_new_columns(server, database, how):
    start = position(server)
    run(server, database, "INSERT INTO orders VALUES (1, 10, 'before', 5)")
    with server.connect(database) as connection, connection.cursor() as cursor:
        for statement in how.format(database).split("; "):
            cursor.execute(statement)
        cursor.execute("CREATE TABLE orders (id INT PRIMARY KEY, secret INT, note VARCHAR(20), price INT)")
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    if has_column_names(server):
        error, collected = pause(receiver)
        assert "DROP" in error.message and collected.rows[0]["price"] == 10
    else:
        with pytest.raises(SchemaMismatch, match="not known: DROP"):
            Collector(receiver).collect(lambda _: False)
    receiver.close()


def test_dump_that_creates_its_tables_first_is_read(server, database):
    start = position(server)
    run(server, database, "DROP TABLE IF EXISTS people")
    run(server, database, "CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR(20))")
    run(server, database, "INSERT INTO people VALUES (1, 'Ada')")
    receiver = receiver_of(server, Mapped(database, "people"))
    receiver.open(start, (), 0)
    if has_column_names(server):
        pause(receiver)  # the current table of the server may have existed before
    else:
        assert Collector(receiver).collect_rows(1).rows[0]["name"] == "Ada"
    receiver.close()


def test_two_ddl_statements_without_rows_between_can_be_resumed(server, database):
    receiver = receiver_of(server, Mapped(database))
    receiver.open(position(server), (), 0)
    run(server, database, "INSERT INTO orders VALUES (1, 1, 'a', 1)")
    Collector(receiver).collect_rows(1)
    run(server, database, "ALTER TABLE orders ADD COLUMN b INT")
    run(server, database, "ALTER TABLE orders ADD COLUMN c INT")
    run(server, database, "INSERT INTO orders VALUES (2, 2, 'b', 2, 3, 4)")
    for number in range(2):
        error, _ = pause(receiver)
        assert "ADD COLUMN " + "bc"[number] in error.message
        schemas = receiver.schemas()
        receiver.close()
        receiver = receiver_of(server, Mapped(database), resume_options=accepted(error))
        receiver.open(error.context["position"], schemas, 1)
    row = Collector(receiver).collect_rows(1).rows[0]
    receiver.close()
    assert (row["id"], row["b"], row["c"]) == (2, 3, 4)


def test_statement_directly_after_the_position_pauses_an_earlier_resume(server, database):
    start = position(server)
    run(server, database, "ALTER TABLE orders DROP COLUMN note")
    error, _ = pause(opened_at(server, database, start))
    run(server, database, "TRUNCATE TABLE orders")
    resumed = opened_at(server, database, error.context["position"], accepted(error, past_ddl=True))
    later, _ = pause(resumed)  # the accepted statement is the one of the pause, even with --past-ddl
    assert "TRUNCATE" in later.message
    idle = opened_at(server, database, later.context["position"], accepted(error, past_ddl=True))
    assert "TRUNCATE" in pause(idle)[0].message
    for receiver in (resumed, idle):
        receiver.close()


def opened_at(server, database, start, options=ResumeOptions()):  # noqa: B008 - a frozen value
    receiver = receiver_of(server, Mapped(database), resume_options=options)
    receiver.open(start, (), 0)
    return receiver


@pytest.mark.parametrize("statement", ["DROP TABLE IF EXISTS {0}.orders", "DROP DATABASE {0}"])
def test_drop_of_a_snapshot_only_table_pauses(server, database, statement):
    start = position(server)
    server.execute(statement.format(database), f"CREATE DATABASE IF NOT EXISTS {database}")
    quiet = receiver_of(server, Mapped(database))
    quiet.open(start, (), 0)
    assert Collector(quiet).collect_to_end().rows == [], "no row of it was ever read"
    quiet.close()
    receiver = receiver_of(server, Mapped(database))
    receiver.note_loaded([f"{database}.orders"])
    receiver.open(start, (), 0)
    assert pause(receiver)[0].context["tables"] == f"{database}.orders"
    receiver.close()


def test_enum_labels_lost_by_the_server_raise_without_metadata(server, database):
    start = position(server)
    run(server, database, "CREATE TABLE moods (id INT PRIMARY KEY, mood ENUM('a😀', 'é') CHARACTER SET utf8mb4)")
    run(server, database, "INSERT INTO moods VALUES (1, 'a😀'), (2, 'é')")
    receiver = receiver_of(server, Mapped(database))
    receiver.open(start, (), 0)
    try:
        if has_column_names(server):
            assert Collector(receiver).collect_rows(2).values("mood", "moods") == ["a😀", "é"]
        else:
            with pytest.raises(SchemaMismatch, match="does not show all labels") as raised:
                Collector(receiver).collect(lambda _: False)
            assert raised.value.context["column"] == "mood"
    finally:
        receiver.close()


def test_restart_reads_with_the_saved_schema(server, database):
    """Rows between the checkpoint and the ALTER are read with the saved schema, although the table has changed."""
    receiver = receiver_of(server, Mapped(database))
    receiver.open(position(server), (), 0)
    run(server, database, "INSERT INTO orders VALUES (1, 1, 'a', 1)")
    last = Collector(receiver).collect_rows(1).batches[-1].last
    schemas = receiver.schemas()
    receiver.close()
    run(server, database, "UPDATE orders SET price = 2")
    run(server, database, "ALTER TABLE orders CHANGE price cost BIGINT AFTER secret")
    again = receiver_of(server, Mapped(database))
    again.open(last, schemas, 1)
    _, collected = pause(again)
    again.close()
    assert (collected.rows[0]["price"], collected.rows[0][DELETED]) == (2, False)


def test_start_positions_by_file_and_gtid_are_equal(server, database):
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
        collected = Collector(receiver).collect_rows(len(expected)).collect_to_end()
        receiver.close()
        assert collected.values() == expected
        assert collected.batches[-1].last.file == middle.file
    assert position(server, "earliest").offset == 4
    with pytest.raises(PositionLost, match="ends at"):
        position(server, {"file": middle.file, "offset": 1 << 31})


def test_tagged_gtids_are_counted_and_resumed(mysql):
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
    first = Collector(receiver).collect_rows(3).batches
    receiver.close()
    assert ":abc:" in first[-1].last.gtid_set
    assert first[-1].last.gtid_set == position(mysql).gtid_set
    mysql.execute("INSERT INTO tagged.t VALUES (4)")
    by_gtid = position(mysql, {"gtid_set": first[-1].last.gtid_set})
    receiver = receiver_of(mysql, Mapped("tagged"))
    receiver.open(by_gtid, (), 0)
    assert Collector(receiver).collect_rows(1).collect_to_end().values() == [4]
    receiver.close()
    mysql.execute("DROP DATABASE tagged")


def test_accepted_statement_that_gives_two_columns_one_target_pauses_again(server, database):
    """The target column ``price`` has the values of ``cost``, because the rename was ignored."""
    run(server, database, "ALTER TABLE orders RENAME COLUMN price TO cost")
    routes = Routes([Mapping(f"{database}.orders", "ods.orders")])
    routes.use_column_maps({f"{database}.orders": ColumnMap({"cost": "price"})})
    start = position(server)
    run(server, database, "INSERT INTO orders VALUES (1, 10, 'before', 0)")
    receiver = receiver_of(server, routes)
    receiver.open(start, (), 0)
    Collector(receiver).collect_rows(1)
    run(server, database, "ALTER TABLE orders ADD COLUMN price INT")
    run(server, database, "INSERT INTO orders VALUES (2, 20, 'behind', 0, 200)")
    error, _ = pause(receiver)
    schemas = receiver.schemas()
    receiver.close()
    receiver = receiver_of(server, routes, resume_options=accepted(error))
    receiver.open(error.context["position"], schemas, 1)
    again, _ = pause(receiver)
    receiver.close()
    assert "source columns cost and price have one target column" in again.message
    assert again.context == error.context and again.change is not None, "so --apply-ddl can apply it"
    assert [one.kind for one in again.change.tables[0].columns] == [ChangeKind.ADD_COLUMN]


@pytest.mark.parametrize("server", ["mysql", "mariadb"], indirect=True)
def test_table_without_rows_is_described_at_the_end_of_the_binlog(server, database):
    """Until then a statement may follow which explains the columns that the server has now."""
    server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    start = position(server)
    server.execute("FLUSH BINARY LOGS", f"CREATE TABLE {database}.other (id INT PRIMARY KEY)")
    server.execute(f"INSERT INTO {database}.other VALUES (1)", "FLUSH BINARY LOGS")
    with closing(receiver_of(server, Mapped(database))) as receiver:
        receiver.open(start, (), 0)
        with pytest.raises(SchemaMismatch, match="not known yet"):
            receiver.schema(database, "t")
        Collector(receiver).collect_rows(1)
        until(lambda: f"{database}.t" in {schema.name for schema in receiver.schemas()})
        assert receiver.schema(database, "t") in receiver.schemas()


@pytest.mark.parametrize("server", ["mysql", "mariadb"], indirect=True)
def test_rows_after_an_accepted_change_show_the_columns_for_the_next_one(server, database):
    """When the first statement is accepted, the server has the columns after the second one already."""
    server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    start = position(server)
    server.execute(
        f"ALTER TABLE {database}.t ADD COLUMN a INT",
        f"INSERT INTO {database}.t VALUES (1, 2)",
        f"ALTER TABLE {database}.t ADD COLUMN b INT",
    )
    with closing(receiver_of(server, Mapped(database))) as receiver:
        receiver.open(start, (), 0)
        with pytest.raises(DdlStop) as first:
            Collector(receiver).collect_rows(1)
    with closing(receiver_of(server, Mapped(database), resume_options=accepted(first.value))) as receiver:
        receiver.open(first.value.context["position"], (), 0)
        collector = Collector(receiver).collect_rows(1)
        with pytest.raises(DdlStop) as second:
            collector.collect_rows(2)
        assert second.value.change is not None, second.value.message
        saved = {schema.table: [column.name for column in schema.columns] for schema in receiver.schemas()}
        assert saved["t"] == ["id", "a"]


def test_column_that_is_not_null_later_is_nullable_until_then(server, database):
    """The types are the same, so only a search for later statements shows that the server's columns are newer."""
    start = position(server)
    for statement in (
        "INSERT INTO orders (id) VALUES (1)",
        "ALTER TABLE orders ADD c INT",
        "INSERT INTO orders (id) VALUES (7)",
        "UPDATE orders SET c = 1",
        "ALTER TABLE orders MODIFY c INT NOT NULL",
    ):
        run(server, database, statement)
    known = replace(described(server, database)[database, "orders"], since=None)
    known = replace(known, columns=known.columns[:-1])
    with closing(receiver_of(server, Mapped(database))) as receiver:
        receiver.open(start, (known,), 0)
        first = pause(receiver)[0].change
    after = first.tables[0].after
    assert after.columns[-1].name == "c" and after.columns[-1].nullable
    with closing(receiver_of(server, Mapped(database))) as receiver:
        receiver.open(first.last, (after,), 1)
        error, collected = pause(receiver)
    assert [row["c"] for row in collected.rows] == [None, 1, 1]
    (change,) = error.change.tables[0].columns
    assert change.kind is ChangeKind.ALTER_TYPE and change.changes_values and not change.new.nullable


def test_rows_show_that_a_column_was_nullable(server, database):
    """The server has NOT NULL by a later statement: the job has read the columns, or row metadata have the names."""
    start = position(server)
    known = replace(described(server, database)[database, "orders"], since=None)
    newer = replace(known, columns=tuple(replace(one, nullable=one.name == "note") for one in known.columns))
    run(server, database, "INSERT INTO orders (id) VALUES (1)")
    run(server, database, "DELETE FROM orders")
    run(server, database, "ALTER TABLE orders MODIFY secret INT NOT NULL")
    for saved in [(newer,)] + [()] * has_column_names(server):
        with closing(receiver_of(server, Mapped(database))) as receiver:
            receiver.open(start, saved, 0)
            (schema,) = {changes.schema for batch in pause(receiver)[1].batches for changes in batch.changes}
        assert [column.nullable for column in schema.columns] == [False, True, True, True]
