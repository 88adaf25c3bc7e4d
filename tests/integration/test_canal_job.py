"""Jobs on a real Canal server, end to end: from the command line to Delta tables equal to those of a binlog job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from cdc.checkpoint_sqlite import SqliteStore
from cdc.demo import proof
from cdc.demo.process import JobProcess, is_caught_up
from cdc.jobs import driver_lives, supervisor_lives
from cdc.local_servers import free_port
from tests.canal_sources import drain
from tests.canal_types import create_every_type, write_every_type
from tests.receiving import Shop, endpoint, until
from tests.servers.canal import DESTINATION, PASSWORD, USER, end_of_binlog

pytestmark = pytest.mark.canal

ROOT = Path(__file__).parents[2]
TABLES = {"types": ["id"], "orders": ["id"], "items": ["order_id", "line"]}
BY_CANAL = """\
name: {name}
source:
  type: canal
  servers: ["{server}"]
  destination: {destination}
  username: {user}
  password: {password}
  time_zone: "+08:00"
  mysql: {{host: 127.0.0.1, port: {port}, username: cdc, password: secret}}
sink: {{type: delta, path: ./{name}}}
channels: [{{source: "{database}.*", target: "ods.*"}}]
commit: {{interval: 300ms}}
status: {{port: {status}}}
"""
BY_BINLOG = """\
name: by-binlog
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: cdc, password: secret,
         start: {{file: {file}, offset: {offset}}}}}
sink: {{type: delta, path: ./by-binlog}}
channels: [{{source: "{database}.*", target: "ods.*"}}]
commit: {{interval: 300ms}}
status: {{port: {status}}}
"""


class Desk:
    """A user with a home, a shop that Canal reads, and the command."""

    def __init__(self, folder, shop, canal):
        self.folder, self.shop, self.canal = folder, shop, canal
        self.home = folder / "home"
        self.status_port = free_port()

    def job_file(self, name="by-canal"):
        file = self.folder / f"{name}.yaml"
        file.write_text(
            BY_CANAL.format(
                name=name,
                server=self.canal.address,
                destination=DESTINATION,
                user=USER,
                password=PASSWORD,
                port=self.shop.server.port,
                database=self.shop.database,
                status=self.status_port if name == "by-canal" else free_port(),
            )
        )
        return file

    def cdc(self, *words, code=0):
        environment = {**os.environ, "CDC_HOME": str(self.home), "NO_COLOR": "1", "COLUMNS": "200"}
        command = [sys.executable, "-m", "cdc.cli", *map(str, words)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
        assert code in (None, done.returncode), f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def status(self, name="by-canal"):
        return json.loads(self.cdc("status", name, "--output", "json"))

    def caught_up(self):
        """The status of by-canal, once all that is written by now is visible; asked of its driver, not by the command."""
        end, status = end_of_binlog(self.shop.server), None

        def reached():
            nonlocal status
            try:
                status = requests.get(f"http://127.0.0.1:{self.status_port}/status", timeout=30).json()
            except requests.RequestException:
                return False  # a driver comes and goes
            return is_caught_up(status, end)

        try:
            until(reached, what=f"by-canal at {end}")
        except AssertionError as error:
            error.add_note(f"{json.dumps(status)}\n{self.cdc('logs', 'by-canal', '--lines', 100)}")
            raise
        return status

    def table(self, job, name):
        found = proof.read_delta(self.folder / job / "ods" / name)
        return found.sort_by([(column, "ascending") for column in TABLES[name]])


@pytest.fixture
def desk(tmp_path, mysql, database, canal):
    endpoint(mysql)  # makes the user that asks
    shop = Shop(mysql, database)
    shop.write(
        "CREATE TABLE {db}.orders (id INT PRIMARY KEY, note VARCHAR(1000) CHARACTER SET utf8mb4)",
        "CREATE TABLE {db}.items (order_id INT, line INT, amount DECIMAL(10,2), PRIMARY KEY (order_id, line))",
    )
    create_every_type(shop)
    drain(canal)
    desk = Desk(tmp_path, shop, canal)
    yield desk
    store = SqliteStore(desk.home)
    records = store.jobs()
    store.close()
    for record in records:
        if supervisor_lives(record):
            os.kill(record.supervisor_pid, signal.SIGKILL)
        if driver_lives(record):
            os.kill(record.driver_pid, signal.SIGKILL)
    until(lambda: not any(driver_lives(one) or supervisor_lives(one) for one in records), what="the end of all")


def write_all_kinds(shop):
    write_every_type(shop)
    shop.write(*(f"INSERT INTO {{db}}.orders VALUES ({row}, 'note {row}')" for row in range(50)))
    shop.write("UPDATE {db}.orders SET note = CONCAT(note, '!') WHERE id % 3 = 0")
    shop.write("UPDATE {db}.orders SET id = id + 1000 WHERE id % 7 = 0", "DELETE FROM {db}.orders WHERE id % 5 = 1")
    for order in range(20):
        shop.write_together(
            f"INSERT INTO orders VALUES ({2000 + order}, 'with items')",
            f"INSERT INTO items VALUES ({2000 + order}, 1, 1.50), ({2000 + order}, 2, {order})",
            f"UPDATE items SET line = 9 WHERE order_id = {1990 + order} AND line = 2",
            f"DELETE FROM items WHERE order_id = {1980 + order}",
        )


def test_a_full_table_is_loaded_before_what_canal_sends(desk):
    """The rows are read by SELECT, through `mysql:`, and changes go on over them; Canal has sent those rows before."""
    numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900)"
    desk.shop.write(f"INSERT INTO {{db}}.orders {numbers} SELECT i, CONCAT('old ', i) FROM n")
    drain(desk.canal)
    job_file = desk.job_file()
    job_file.write_text(job_file.read_text().replace("  mysql:", "  start: snapshot\n  mysql:"))
    desk.cdc("start", job_file)
    desk.shop.write("UPDATE {db}.orders SET note = 'new' WHERE id % 3 = 0", "DELETE FROM {db}.orders WHERE id % 5 = 0")

    def consistent():
        status = desk.caught_up()
        found = {channel["source"]: channel["snapshot"] for channel in status["channels"]}
        orders = found.get(f"{desk.shop.database}.orders")
        return orders if orders and orders["consistent"] else None

    assert until(consistent, what="a consistent table")["rows"] >= 700
    found = desk.table("by-canal", "orders")
    expected = [(i, "new" if i % 3 == 0 else f"old {i}") for i in range(1, 901) if i % 5]
    assert list(zip(found.column("id").to_pylist(), found.column("note").to_pylist(), strict=True)) == expected
    desk.cdc("stop", "by-canal")


def test_a_job_by_canal_makes_the_same_tables_as_a_job_by_binlog(desk):
    file, offset = end_of_binlog(desk.shop.server)
    job_file = desk.job_file()
    assert "can start" in desk.cdc("check", job_file)
    assert "RUNNING" in desk.cdc("start", job_file)
    write_all_kinds(desk.shop)
    status = desk.caught_up()
    assert (status["source"]["type"], status["source"]["destination"]) == ("canal", DESTINATION)
    # a second job on the destination is refused, and leaves no trace that would refuse the first one
    refused = desk.cdc("start", desk.job_file("second"), code=2)
    assert "Job by-canal has the Canal destination shop already" in refused and "cdc stop by-canal" in refused
    # Canal restarts while the job is paused, and the source goes on
    desk.cdc("pause", "by-canal")
    assert desk.status()["state"] == "PAUSED"
    desk.canal.restart()
    desk.shop.write("INSERT INTO {db}.orders VALUES (5000, 'while paused')")
    desk.cdc("resume", "by-canal")
    desk.shop.write("INSERT INTO {db}.orders VALUES (5001, 'behind')")
    # one transaction larger than the ring
    numbers = "WITH RECURSIVE n (i) AS (SELECT 10000 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)"
    large = f"INSERT INTO orders {numbers} SELECT i, REPEAT('x', 400) FROM n"
    desk.shop.write_together("SET SESSION cte_max_recursion_depth = 100000", large, "UPDATE items SET amount = 7")
    assert desk.caught_up()["split_transactions"] == 1
    desk.cdc("stop", "by-canal")
    assert desk.status()["state"] == "CANCELLED"

    port = free_port()
    binlog = desk.folder / "by-binlog.yaml"
    places = {"port": desk.shop.server.port, "file": file, "offset": offset, "database": desk.shop.database}
    binlog.write_text(BY_BINLOG.format(status=port, **places))
    end = end_of_binlog(desk.shop.server)
    with JobProcess(binlog, home=desk.home, port=port) as job:
        job.start()
        job.wait_for("the end", lambda status: is_caught_up(status, end), 240)
        job.stop()
    for name in TABLES:
        found, wanted = desk.table("by-canal", name), desk.table("by-binlog", name)
        assert found.schema.equals(wanted.schema)
        assert wanted.num_rows > 3 and found.equals(wanted), name
    rows = proof.compare(desk.shop.server, f"{desk.shop.database}.orders", desk.folder / "by-canal/ods/orders", ["id"])
    assert rows.rows > 50 and not rows.differences


def test_a_lost_cursor_pauses_the_job_with_both_positions_until_the_gap_is_accepted(desk):
    job_file = desk.job_file()
    desk.cdc("start", job_file)
    for row in range(3):  # several batches of the server's
        desk.shop.write(f"INSERT INTO {{db}}.orders VALUES ({row}, '')")
        desk.caught_up()
    desk.cdc("pause", "by-canal")
    stopped = desk.status()["position"]
    desk.canal.stop()
    desk.canal.forget()
    desk.shop.write("INSERT INTO {db}.orders VALUES (100, 'lost to Canal')")
    desk.canal.launch()
    desk.shop.write("INSERT INTO {db}.orders VALUES (101, 'behind')")
    for _ in range(2):  # it is not forgotten by trying again
        desk.cdc("resume", "by-canal", code=None)  # the first batch may be there before the command has returned
        status = until(lambda: (status := desk.status())["state"] == "PAUSED" and status, what="the pause")
        assert f"stopped at {stopped['file']}:{stopped['offset']}" in status["reason"]
        assert "goes on at mysql-bin." in status["reason"] and "--accept-gap" in status["mend"]
        assert status["resume"] == "manual"
    desk.cdc("resume", "by-canal", "--accept-gap")
    desk.caught_up()
    assert desk.table("by-canal", "orders")["id"].to_pylist() == [0, 1, 2, 101]
    desk.cdc("stop", "by-canal")


def test_a_check_tells_what_canal_cannot_do(desk):
    job_file = desk.job_file()
    desk.shop.write(
        "CREATE TABLE {db}.texts (id INT PRIMARY KEY, a TEXT CHARACTER SET gbk, b CHAR(9) CHARACTER SET ucs2)"
    )
    told = desk.cdc("check", job_file, code=3)
    assert "texts.a as UTF-8, and it is gbk" in told and "texts.b as UTF-8, and its bytes are ucs2" in told
    desk.shop.write("DROP TABLE {db}.texts")
    job_file.write_text(job_file.read_text().replace(f"password: {PASSWORD}", "password: wrong"))
    assert "auth failed" in desk.cdc("check", job_file, code=3)
    assert "auth failed" in desk.cdc("start", job_file, code=3)
    without = "\n".join(line for line in desk.job_file().read_text().splitlines() if "mysql:" not in line)
    job_file.write_text(without)
    told = desk.cdc("check", job_file, code=3)
    assert "A pattern in `channels` needs the list of tables" in told and "create_tables needs" in told
