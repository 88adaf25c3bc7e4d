"""Schema changes that a real Canal server sends: complete jobs into Delta, and what the receiver attaches."""

from __future__ import annotations

import random
import time

import pytest

from cdc.demo.local_servers import free_port
from cdc.demo.process import JobProcess
from cdc.errors import DdlStop
from tests.emulators.canal import DESTINATION, PASSWORD, USER
from tests.integration.test_schema_changes import CREATE, NUMBERS, _compare, _is_done, _rows
from tests.support.canal_sources import CURSOR, canal_receiver, drain
from tests.support.limits import HANG_S
from tests.support.receiving import Collector, Mapped, endpoint
from tests.support.seeds import seed_of

pytestmark = pytest.mark.canal

JOB = """\
name: shop
source:
  type: canal
  servers: ["{server}"]
  destination: {destination}
  username: {user}
  password: {password}
  time_zone: "+08:00"
  start: snapshot
  mysql: {{host: 127.0.0.1, port: {port}, username: cdc, password: secret, tls: {{mode: off}}}}
sink: {{type: delta, path: ./warehouse, create_tables: true}}
channels:
  - {{source: "{database}.orders", target: "ods.orders"}}
schema_changes: evolve
commit: {{interval: 300ms}}
snapshot: {{step: 1s}}
status: {{port: {status}}}
"""
# statements with rows between; those in one group follow each other without rows
CHANGES = (
    ["ALTER TABLE orders ADD COLUMN five INT NOT NULL DEFAULT '005', ADD COLUMN text VARCHAR(9) DEFAULT 'it''s' FIRST"],
    ["ALTER TABLE orders RENAME COLUMN note TO remark"],
    ["ALTER TABLE orders MODIFY small BIGINT, MODIFY ratio DOUBLE, MODIFY price DECIMAL(12,2)"],
    ["ALTER TABLE orders DROP COLUMN old", "ALTER TABLE orders ADD COLUMN old INT NOT NULL DEFAULT 7"],
    ["ALTER TABLE orders CHANGE a b INT, CHANGE b a INT", "ALTER TABLE orders ADD INDEX (remark)"],
    ["ALTER TABLE orders ADD COLUMN made TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP"],
    ["ALTER TABLE orders MODIFY remark VARCHAR(200), ADD kind ENUM('new', 'paid') NOT NULL, COMMENT 'the orders'"],
)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_canal_job_follows_changes_across_kills(kind, request, tmp_path):
    server = request.getfixturevalue(kind)
    database = request.getfixturevalue("database" if kind == "mysql" else "mariadb_database")
    canal = request.getfixturevalue("canal" if kind == "mysql" else "canal_mariadb")
    endpoint(server)  # creates the user for the receiver
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(CREATE)
        cursor.execute(f"INSERT INTO orders (id, note, price, small, ratio, a, b) {NUMBERS} "
                       "SELECT i, CONCAT('n', i), i / 3, i % 100, i / 8, i, -i FROM r")  # fmt: skip
        connection.commit()
    drain(canal)
    port, file = free_port(), tmp_path / "job.yaml"
    login = {"server": canal.address, "destination": DESTINATION, "user": USER, "password": PASSWORD}
    file.write_text(JOB.format(port=server.port, database=database, status=port, **login))
    chance = random.Random(seed_of())
    with JobProcess(file, home=tmp_path / "state", port=port) as job:
        job.start()
        _rows(server, database, 600)  # Canal's position is known from its first entry on
        job.wait_for("loaded", _is_done(server), HANG_S)
        began = time.monotonic()
        for number, statements in enumerate(CHANGES):
            _rows(server, database, 1000 * (number + 1))
            # Without TSDB, Canal names the columns of a row as they are called when it reads the row.
            job.wait_for(f"the rows before change {number}", _is_done(server), HANG_S)
            if number == 5:  # the job is away
                job.kill()
            with server.connect(database) as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION sql_mode = ''")
                for statement in statements:
                    cursor.execute(statement)
            if number in (2, 3):  # while the change is read, planned or made
                time.sleep(chance.uniform(0, 1.5))
                job.kill()
            _rows(server, database, 1000 * (number + 1) + 500)
            if number in (2, 3, 5):
                job.start()
            if number in (1, 4):
                job.wait_for(f"change {number}", _is_done(server), HANG_S)
                _compare(server, database, tmp_path)
        _rows(server, database, 900_000)
        status = job.wait_for("all changes", _is_done(server), HANG_S)
        print(f"{sum(map(len, CHANGES))} statements in {time.monotonic() - began:.1f} s")
        _compare(server, database, tmp_path)
        assert status["schema_changes"]["applied"] == 8  # an index changes nothing, and no change is made twice
        job.stop()


def test_canal_changes_without_a_server_follow_the_rows(mysql, database, canal):
    mysql.execute(f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, a INT, b INT)")
    drain(canal)
    start, schemas, sequence = CURSOR, (), 0
    for values, statement, columns in (
        ("1, 1, 1", "ADD COLUMN c VARCHAR(9) NOT NULL DEFAULT 'x'", "id a b c"),
        ("2, 2, 2, 'two'", "RENAME COLUMN a TO d", "id d b c"),
        ("3, 3, 3, 'three'", "MODIFY b BIGINT", "id d b c"),
        ("4, 4, 5000000000, 'four'", "DROP COLUMN d", "id b c"),
        ("5, 5, 'five'", "RENAME COLUMN b TO c, RENAME COLUMN c TO b", "id c b"),
    ):
        receiver = canal_receiver(canal.address, Mapped(database))
        receiver.open(start, schemas, sequence)
        mysql.execute(f"INSERT INTO {database}.orders VALUES ({values})")
        collector = Collector(receiver).collect_rows(1, HANG_S)
        mysql.execute(f"ALTER TABLE {database}.orders {statement}")
        with pytest.raises(DdlStop) as stopped:
            collector.collect(lambda _: False, HANG_S)
        assert len(collector.rows) == 1, "each row once, although Canal sends everything again"
        receiver.ack(collector.batches[-1].last)
        receiver.close()
        change = stopped.value.change
        assert change is not None, stopped.value.message
        assert [column.name for column in change.tables[0].after.columns] == columns.split()
        start, schemas, sequence = change.last, (change.tables[0].after,), sequence + 1
    mysql.execute(f"INSERT INTO {database}.orders VALUES (6, 60, 'six')")
    receiver = canal_receiver(canal.address, Mapped(database))
    receiver.open(start, schemas, sequence)
    (row,) = Collector(receiver).collect_rows(1, HANG_S).rows
    receiver.close()
    assert (row["id"], row["c"], row["b"]) == (6, 60, "six")
