"""A start before statements that were executed before the job opened the source: with which columns rows are read."""

from __future__ import annotations

import pytest

from cdc.errors import DdlStop
from cdc.model.schema_change import ChangeKind
from tests.support.receiving import Collector, Mapped, position, receiver_of

DATABASE = "older_start"
EXCHANGE = "ALTER TABLE orders CHANGE price secret INT, CHANGE secret price INT"


@pytest.fixture(params=["mysql", "mariadb"])
def server(request):
    """A server with a table whose rows have no names of columns, as before FULL was set."""
    server = request.getfixturevalue(request.param)
    server.execute(
        "SET GLOBAL binlog_row_metadata = MINIMAL",
        f"CREATE DATABASE {DATABASE}",
        f"CREATE TABLE {DATABASE}.orders (id INT PRIMARY KEY, price INT, secret INT, note INT)",
    )
    yield server
    server.execute("SET GLOBAL binlog_row_metadata = FULL", f"DROP DATABASE {DATABASE}")


def run(server, *statements):
    with server.connect(DATABASE) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        cursor.execute("SET GLOBAL binlog_row_metadata = FULL")
        connection.commit()


def stopped(server, start):
    """Return the error at the first statement after ``start``, which is read when the server has FULL."""
    receiver = receiver_of(server, Mapped(DATABASE))
    receiver.open(start, (), 0)
    with pytest.raises(DdlStop) as raised:
        Collector(receiver).collect(lambda _: False)
    receiver.close()
    return raised.value


@pytest.mark.parametrize(
    "statements",
    [
        ("TRUNCATE TABLE orders", "INSERT INTO orders VALUES (1, 10, 20, 0)", EXCHANGE),
        (
            "ALTER TABLE orders DROP COLUMN note",
            "INSERT INTO orders VALUES (1, 10, 20)",
            "ALTER TABLE orders MODIFY price INT AFTER secret",
            "ALTER TABLE orders ADD COLUMN note INT",
        ),
    ],
    ids=["truncate", "drop column"],
)
def test_statement_before_later_ones_is_not_read_with_their_columns(server, statements):
    """The row after the statement has no names, so columns in another order would exchange price and secret."""
    start = position(server)
    run(server, *statements)
    error = stopped(server, start)
    assert error.change is None and "before the statement are not known" in error.message


def test_renamed_table_is_not_recorded_with_later_columns(server):
    start = position(server)
    run(
        server,
        "RENAME TABLE orders TO kept",
        "RENAME TABLE kept TO orders",
        "INSERT INTO orders VALUES (1, 10, 20, 0)",
        EXCHANGE,
    )
    change = stopped(server, start).change
    assert change is not None and change.tables
    assert not any(table.before.columns for table in change.tables) and not any(one.columns for one in change.renamed)


def test_truncate_without_later_changes_is_followed(server):
    start = position(server)
    run(server, "TRUNCATE TABLE orders", "INSERT INTO orders VALUES (1, 10, 20, 0)")
    change = stopped(server, start).change
    assert change is not None
    (table,) = change.tables
    assert table.rows is ChangeKind.TRUNCATE_TABLE
    assert [column.name for column in table.after.columns] == ["id", "price", "secret", "note"]
