"""A source column becomes wider or nullable, or the key changes: the hints lead to a complete target again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from cdc.demo import proof
from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess

JOB = """\
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: root, tls: {{mode: off}}, start: snapshot}}
sink: {{type: delta, path: ./warehouse, create_tables: true}}
channels:
  - {{source: {database}.orders, target: ods.orders}}
  - {{source: {database}.others, target: ods.others}}
schema_changes: {changes}
commit: {{interval: 500ms}}
status: {{port: {status}}}
"""


def _fill(server: LocalServer, database: str) -> None:
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id INT NOT NULL PRIMARY KEY, n INT NOT NULL, note VARCHAR(9))")
        cursor.execute("INSERT INTO orders VALUES (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c')")
        cursor.execute("CREATE TABLE others (id INT NOT NULL PRIMARY KEY)")
        cursor.execute("INSERT INTO others VALUES (1), (2), (3)")
        connection.commit()


def _command(home: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "cdc.cli.main", *words],
        env={**os.environ, "CDC_HOME": str(home)}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return f"{done.returncode} {done.stdout} {done.stderr}"


def _snapshot(status, target: str):
    return next((one["snapshot"] for one in status["channels"] if one["target"] == target), None)


def _loaded(status) -> bool:
    found = [_snapshot(status, name) for name in ("ods.orders", "ods.others")]
    return status["state"] == "RUNNING" and all(one and one["consistent"] for one in found)


def _paused(status) -> bool:
    return status["state"] == "PAUSED" and status["resume"] == "manual"


def _follow(home: Path, hint: str) -> None:
    """Run the last command of a hint."""
    command = re.findall(r"`cdc ((?:resume|snapshot) [^`]*)`", hint)[-1]
    assert _command(home, *command.split()).startswith("0"), command


def test_column_change_hints_load_the_table_again(mysql, database, tmp_path):
    port, home, file = free_port(), tmp_path / "state", tmp_path / "job.yaml"
    file.write_text(JOB.format(port=mysql.port, database=database, status=port, changes="pause"))
    target = tmp_path / "warehouse" / "ods" / "orders"
    _fill(mysql, database)
    with JobProcess(file, home=home, port=port) as job, mysql.connect(database) as connection:
        job.start()
        job.wait_for("loaded", _loaded, 300)
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (4, 4, 'd')")
            cursor.execute("ALTER TABLE orders MODIFY n BIGINT NULL")
            cursor.execute("INSERT INTO orders VALUES (5, 5000000000, 'e'), (6, NULL, 'f')")
            cursor.execute("DELETE FROM orders WHERE id = 1")
            cursor.execute("SET sql_log_bin = 0")
            cursor.execute("DELETE FROM others WHERE id = 2")
            connection.commit()
        status = job.wait_for("the pause at the statement", _paused, 300)
        assert (
            "`cdc resume shop --past-ddl`" in status["hint"]
            and f"cdc snapshot shop {database}.orders" in status["hint"]
        )

        # a request while the job is paused, with a live driver
        printed = _command(home, "snapshot", "shop", f"{database}.others")
        assert printed.startswith("0") and "The request is saved" in printed, printed
        (others,) = (one for one in job.status()["channels"] if one["target"] == "ods.others")
        assert others["snapshot"]["state"] == "waiting" and not others["snapshot"]["consistent"]

        _follow(home, status["hint"])
        status = job.wait_for(
            "the pause at the target", lambda one: _paused(one) and "Column n is integer" in one["reason"], 300
        )
        assert "move its folder away" in status["hint"]
        target.rename(tmp_path / "orders.old")
        (command,) = re.findall(r"`cdc (resume [^`]*)`", status["hint"])
        assert _command(home, *command.split()).startswith("0")
        job.wait_for("loaded again", _loaded, 300)
        assert proof.compare(mysql, f"{database}.orders", target, ["id"]).differences == ()
        others = tmp_path / "warehouse" / "ods" / "others"
        assert proof.compare(mysql, f"{database}.others", others, ["id"]).differences == (), "the request is executed"
        with connection.cursor() as cursor:
            cursor.execute("SET sql_log_bin = 1")
            cursor.execute("INSERT INTO orders VALUES (7, -6000000000, 'g')")
            cursor.execute("SET sql_log_bin = 0")
            cursor.execute("DELETE FROM others WHERE id = 3")
            connection.commit()
        job.wait_for("the stream continues", lambda _: proof.read_delta(target).num_rows == 6, 300)

        # a request without a driver process
        assert _command(home, "pause", "shop").startswith("0")
        job.stop()
        refused = _command(home, "snapshot", "shop", f"{database}.nothing")
        assert not refused.startswith("0") and "reads no table" in refused
        printed = _command(home, "snapshot", "shop", f"{database}.others", f"{database}.orders")
        assert printed.startswith("0") and "`cdc resume shop`" in printed, printed
        status = json.loads(_command(home, "status", "shop", "--output", "json").removeprefix("0 "))
        assert {one["snapshot"]["state"] for one in status["channels"]} == {"waiting"}
        job.start("--resume", "plain")
        job.wait_for("loaded again", _loaded, 300)
        assert proof.compare(mysql, f"{database}.others", others, ["id"]).differences == ()
        assert proof.compare(mysql, f"{database}.orders", target, ["id"]).differences == ()


def test_changed_key_hint_loads_the_table_with_its_new_key(mysql, database, tmp_path):
    port, home, file = free_port(), tmp_path / "state", tmp_path / "job.yaml"
    file.write_text(JOB.format(port=mysql.port, database=database, status=port, changes="lenient"))
    target = tmp_path / "warehouse" / "ods" / "orders"
    _fill(mysql, database)
    with JobProcess(file, home=home, port=port) as job, mysql.connect(database) as connection:
        job.start()
        job.wait_for("loaded", _loaded, 300)
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (4, 4, 'd')")
            cursor.execute("ALTER TABLE orders DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)")
            cursor.execute("INSERT INTO orders VALUES (4, 5, 'e'), (1, 2, 'f')")
            cursor.execute("DELETE FROM orders WHERE id = 2")
            connection.commit()
        status = job.wait_for("the pause at the statement", _paused, 300)
        assert "it changes the key" in status["reason"]
        target.rename(tmp_path / "orders.old")
        (command,) = re.findall(r"`cdc (resume [^`]*)`", status["hint"])
        assert command.endswith("--past-ddl --reload-missing")
        printed = _command(home, *command.split())
        assert printed.startswith("0"), printed
        job.wait_for(
            "loaded with the new key", lambda one: _loaded(one) and _snapshot(one, "ods.orders")["rows"] == 5, 300
        )
        assert proof.compare(mysql, f"{database}.orders", target, ["id", "n"]).differences == ()
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM orders WHERE id = 4 AND n = 4")
            cursor.execute("INSERT INTO orders VALUES (3, 4, 'g')")
            connection.commit()
        job.wait_for("the stream continues", lambda _: "g" in proof.read_delta(target)["note"].to_pylist(), 300)
        assert proof.compare(mysql, f"{database}.orders", target, ["id", "n"]).differences == ()
        log = job.log.read_text()
        # the rows were not read into a table with the old key: the snapshot may first have waited for the stream
        assert log.index("continuing after DROP PRIMARY KEY") < log.index("orders: 5 rows read")
