"""MariaDB: statements that give a name of the job to a table with system versioning, whose deletes are updates."""

from __future__ import annotations

import pytest

from cdc.errors import DdlStop
from tests.support.receiving import Collector, Mapped, position, receiver_of

DATABASE = "versioning"


@pytest.fixture
def server(mariadb):
    mariadb.execute(
        f"CREATE DATABASE {DATABASE}",
        f"CREATE TABLE {DATABASE}.versions (id INT PRIMARY KEY, n INT) WITH SYSTEM VERSIONING",
    )
    yield mariadb
    mariadb.execute(f"DROP DATABASE {DATABASE}")


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize(
    "statement",
    [
        "RENAME TABLE versions TO orders",
        "ALTER TABLE versions RENAME TO orders",
        "CREATE TABLE orders LIKE versions",
    ],
)
def test_name_of_the_job_that_gets_system_versioning_pauses(server, statement, exists):
    """An UPDATE of such a table also inserts the old row, which would be loaded after the new one."""
    start = position(server)
    with server.connect(DATABASE) as connection, connection.cursor() as cursor:
        if exists:
            cursor.execute("CREATE TABLE orders (id INT PRIMARY KEY, n INT)")
            cursor.execute("INSERT INTO orders VALUES (1, 1)")
            cursor.execute("RENAME TABLE orders TO kept")
        cursor.execute(statement)
        cursor.execute("INSERT INTO orders VALUES (2, 2)")
        cursor.execute("UPDATE orders SET n = 3")
    schemas, stop = (), None
    while stop is None:  # the rename away is followed
        receiver = receiver_of(server, Mapped(DATABASE, "orders"))
        receiver.open(start, schemas, 0)
        with pytest.raises(DdlStop) as raised:
            Collector(receiver).collect(lambda _: False)
        receiver.close()
        change = raised.value.change
        if change is not None and all(table.after.is_dropped for table in change.tables):
            start, schemas = change.last, tuple(table.after for table in change.tables)
        else:
            stop = raised.value
    assert stop.change is None
    assert "system versioning" in stop.message
