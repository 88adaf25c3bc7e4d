"""Complete jobs on a real Canal server, from the command line to Delta tables that equal those of a binlog job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from deltalake import DeltaTable

from cdc.demo import proof
from cdc.demo.local_servers import free_port
from cdc.demo.process import JobProcess, is_caught_up
from cdc.state.processes import is_driver_alive, is_supervisor_alive
from cdc.state.sqlite import SqliteStore
from tests.emulators.canal import DESTINATION, PASSWORD, USER, end_of_binlog
from tests.support.canal_sources import drain
from tests.support.canal_types import create_every_type, write_every_type
from tests.support.receiving import Shop, endpoint, until

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


class Cli:
    """A user with CDC_HOME, a shop that Canal reads, and the command ``cdc``."""

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
        command = [sys.executable, "-m", "cdc.cli.main", *map(str, words)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
        assert code in (None, done.returncode), f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def status(self, name="by-canal"):
        return json.loads(self.cdc("status", name, "--output", "json"))

    def wait_until_caught_up(self):
        """Wait until all rows written so far are visible. Return the status from the driver, not by the command."""
        end, status = end_of_binlog(self.shop.server), None

        def reached():
            nonlocal status
            try:
                status = requests.get(f"http://127.0.0.1:{self.status_port}/status", timeout=30).json()
            except requests.RequestException:
                return False  # the driver may be starting or stopping
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
def cli(tmp_path, mysql, database, canal):
    endpoint(mysql)  # creates the user for the receiver
    shop = Shop(mysql, database)
    shop.write(
        "CREATE TABLE {db}.orders (id INT PRIMARY KEY, note VARCHAR(1000) CHARACTER SET utf8mb4)",
        "CREATE TABLE {db}.items (order_id INT, line INT, amount DECIMAL(10,2), PRIMARY KEY (order_id, line))",
    )
    create_every_type(shop)
    drain(canal)
    cli = Cli(tmp_path, shop, canal)
    yield cli
    store = SqliteStore(cli.home)
    records = store.jobs()
    store.close()
    for record in records:
        if is_supervisor_alive(record):
            os.kill(record.supervisor_pid, signal.SIGKILL)
        if is_driver_alive(record):
            os.kill(record.driver_pid, signal.SIGKILL)
    until(
        lambda: not any(is_driver_alive(one) or is_supervisor_alive(one) for one in records),
        what="the end of all drivers and supervisors",
    )


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


def test_canal_job_snapshot_then_changes_equal_the_source(cli):
    """The snapshot reads by SELECT through `mysql:`. Changes follow; Canal has sent the old rows before."""
    numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900)"
    cli.shop.write(f"INSERT INTO {{db}}.orders {numbers} SELECT i, CONCAT('old ', i) FROM n")
    drain(cli.canal)
    job_file = cli.job_file()
    job_file.write_text(job_file.read_text().replace("  mysql:", "  start: snapshot\n  mysql:"))
    cli.cdc("start", job_file)
    cli.shop.write("UPDATE {db}.orders SET note = 'new' WHERE id % 3 = 0", "DELETE FROM {db}.orders WHERE id % 5 = 0")

    def consistent():
        status = cli.wait_until_caught_up()
        found = {channel["source"]: channel["snapshot"] for channel in status["channels"]}
        orders = found.get(f"{cli.shop.database}.orders")
        return orders if orders and orders["consistent"] else None

    assert until(consistent, what="a consistent table")["rows"] >= 700
    found = cli.table("by-canal", "orders")
    expected = [(i, "new" if i % 3 == 0 else f"old {i}") for i in range(1, 901) if i % 5]
    assert list(zip(found.column("id").to_pylist(), found.column("note").to_pylist(), strict=True)) == expected
    cli.cdc("stop", "by-canal")


def check_verifications(cli):
    """The server of `mysql:` is the source that is compared: values of every type are equal, and a fault is repaired."""
    assert json.loads(cli.cdc("verify", "by-canal", "--output", "json"))["equal"]
    DeltaTable(cli.folder / "by-canal/ods/orders").delete("id = 2000")
    DeltaTable(cli.folder / "by-canal/ods/items").update(
        updates={"amount": "8"}, predicate="order_id = 2019 AND line = 1"
    )
    found = json.loads(cli.cdc("verify", "by-canal", "--repair", "--output", "json", code=1))
    assert [(one["kind"], one["key"]) for one in found["differences"]] == [
        ("different", {"order_id": "2019", "line": "1"}), ("missing", {"id": "2000"}),
    ], found  # fmt: skip
    assert json.loads(cli.cdc("verify", "by-canal", "--output", "json"))["equal"]


def test_canal_job_tables_equal_those_of_a_binlog_job(cli):
    file, offset = end_of_binlog(cli.shop.server)
    job_file = cli.job_file()
    assert "can start" in cli.cdc("check", job_file)
    assert "RUNNING" in cli.cdc("start", job_file)
    write_all_kinds(cli.shop)
    status = cli.wait_until_caught_up()
    assert (status["source"]["type"], status["source"]["destination"]) == ("canal", DESTINATION)
    # a second job on the destination is rejected and stores nothing that would block the first job
    refused = cli.cdc("start", cli.job_file("second"), code=2)
    assert "Job by-canal has the Canal destination shop already" in refused and "cdc stop by-canal" in refused
    # Canal restarts while the job is paused, and the source continues to write
    cli.cdc("pause", "by-canal")
    assert cli.status()["state"] == "PAUSED"
    cli.canal.restart()
    cli.shop.write("INSERT INTO {db}.orders VALUES (5000, 'while paused')")
    cli.cdc("resume", "by-canal")
    cli.shop.write("INSERT INTO {db}.orders VALUES (5001, 'behind')")
    # one transaction that is larger than the ring
    numbers = "WITH RECURSIVE n (i) AS (SELECT 10000 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)"
    large = f"INSERT INTO orders {numbers} SELECT i, REPEAT('x', 400) FROM n"
    cli.shop.write_together("SET SESSION cte_max_recursion_depth = 100000", large, "UPDATE items SET amount = 7")
    assert cli.wait_until_caught_up()["split_transactions"] == 1
    check_verifications(cli)
    cli.cdc("stop", "by-canal")
    assert cli.status()["state"] == "CANCELLED"

    port = free_port()
    binlog = cli.folder / "by-binlog.yaml"
    coordinates = {"port": cli.shop.server.port, "file": file, "offset": offset, "database": cli.shop.database}
    binlog.write_text(BY_BINLOG.format(status=port, **coordinates))
    end = end_of_binlog(cli.shop.server)
    with JobProcess(binlog, home=cli.home, port=port) as job:
        job.start()
        job.wait_for("the end", lambda status: is_caught_up(status, end), 240)
        job.stop()
    for name in TABLES:
        found, wanted = cli.table("by-canal", name), cli.table("by-binlog", name)
        assert found.schema.equals(wanted.schema)
        assert wanted.num_rows > 3 and found.equals(wanted), name
    rows = proof.compare(cli.shop.server, f"{cli.shop.database}.orders", cli.folder / "by-canal/ods/orders", ["id"])
    assert rows.rows > 50 and not rows.differences


def test_canal_job_lost_cursor_pauses_until_gap_is_accepted(cli):
    job_file = cli.job_file()
    cli.cdc("start", job_file)
    for row in range(3):  # several batches of the server
        cli.shop.write(f"INSERT INTO {{db}}.orders VALUES ({row}, '')")
        cli.wait_until_caught_up()
    cli.cdc("pause", "by-canal")
    stopped = cli.status()["position"]
    cli.canal.stop()
    cli.canal.forget()
    cli.shop.write("INSERT INTO {db}.orders VALUES (100, 'lost to Canal')")
    cli.canal.launch()
    cli.shop.write("INSERT INTO {db}.orders VALUES (101, 'behind')")
    for _ in range(2):  # a second attempt reports the gap again
        cli.cdc("resume", "by-canal", code=None)  # the first batch can arrive before the command returns
        status = until(lambda: (status := cli.status())["state"] == "PAUSED" and status, what="the pause")
        assert f"stopped at {stopped['file']}:{stopped['offset']}" in status["reason"]
        assert "continues at mysql-bin." in status["reason"] and "--accept-gap" in status["hint"]
        assert status["resume"] == "manual"
    cli.cdc("resume", "by-canal", "--accept-gap")
    # the gap requests a snapshot of every mapped table
    until(lambda: cli.table("by-canal", "orders")["id"].to_pylist() == [0, 1, 2, 100, 101], what="row 100")
    cli.wait_until_caught_up()
    assert cli.table("by-canal", "orders")["id"].to_pylist() == [0, 1, 2, 100, 101]
    cli.cdc("stop", "by-canal")


def test_canal_check_reports_unsupported_charsets_and_logins(cli):
    job_file = cli.job_file()
    cli.shop.write(
        "CREATE TABLE {db}.texts (id INT PRIMARY KEY, a TEXT CHARACTER SET gbk, b CHAR(9) CHARACTER SET ucs2)"
    )
    printed = cli.cdc("check", job_file, code=3)
    assert "texts.a as UTF-8, but it is gbk" in printed and "texts.b as UTF-8, but its bytes are ucs2" in printed
    cli.shop.write("DROP TABLE {db}.texts")
    job_file.write_text(job_file.read_text().replace(f"password: {PASSWORD}", "password: wrong"))
    assert "auth failed" in cli.cdc("check", job_file, code=3)
    assert "auth failed" in cli.cdc("start", job_file, code=3)
    without = "\n".join(line for line in cli.job_file().read_text().splitlines() if "mysql:" not in line)
    job_file.write_text(without)
    printed = cli.cdc("check", job_file, code=3)
    assert "A pattern in `channels` needs the list of tables" in printed and "create_tables needs" in printed
