"""A JSON document null pauses a job into StarRocks, and its hint loads NULL into the same column."""

from __future__ import annotations

from pathlib import Path

from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess
from tests.emulators.cases import USER
from tests.emulators.starrocks.cases import emulator
from tests.support.receiving import endpoint
from tests.support.verifying import caught_up, command, verified

JOB = """\
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: cdc, password: secret, start: snapshot}}
sink: {{type: starrocks, fe: ["{fe}"], sql_port: {sql_port}, username: {user}, password: "{password}"}}
commit: {{interval: 300ms}}
snapshot: {{step: 1s}}
status: {{port: {status}}}
channels:
  - {{source: "{database}.*", target: ods.*}}
"""
OWN_CHANNEL = """\
  - source: {database}.docs
    target: ods.docs
    columns: {{id: id, note: note, doc: "nullif(doc, 'null')"}}
"""


def test_document_null_is_loaded_as_null_by_an_expression(mysql: LocalServer, database: str, tmp_path: Path) -> None:
    endpoint(mysql)  # creates the user
    mysql.execute(f"CREATE TABLE `{database}`.docs (id INT PRIMARY KEY, note VARCHAR(9), doc JSON)")
    mysql.execute(f"""INSERT INTO `{database}`.docs VALUES (1, 'a', '{{"a": 1}}'), (2, 'b', NULL), (3, 'c', '15')""")
    port, home, path = free_port(), tmp_path / "home", tmp_path / "job.yaml"
    with emulator() as target, JobProcess(path, home=home, port=port) as job:
        text = JOB.format(
            port=mysql.port, fe=target.fe[0], sql_port=target.sql_port, user=USER[0], password=USER[1],
            database=database, status=port,
        )  # fmt: skip
        path.write_text(text)
        job.start()
        job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 300)
        caught_up(mysql, job, 1)
        mysql.execute(f"INSERT INTO `{database}`.docs VALUES (4, 'd', 'null'), (5, 'e', '\"null\"'), (6, 'f', '[2]')")
        status = job.wait_for("PAUSED", lambda status: status["state"] == "PAUSED", 120)
        assert "the JSON value null" in status["reason"] and "nullif(doc, 'null')" in status["hint"]

        path.write_text(text + OWN_CHANNEL.format(database=database))
        done = command(home, "resume", "shop")
        assert done.returncode == 0, done.stderr
        job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 120)
        mysql.execute(f"UPDATE `{database}`.docs SET doc = 'null' WHERE id = 1")
        caught_up(mysql, job, 1)
        rows = target.execute("SELECT id, doc FROM ods.docs ORDER BY id")[1]
        assert list(rows) == [(1, None), (2, None), (3, "15"), (4, None), (5, '"null"'), (6, "[2]")]
        assert {str(row[1]).lower() for row in target.execute("DESC ods.docs")[1] if row[0] == "doc"} == {"json"}
        found = verified(home)
        assert found["code"] == 0, found
        job.stop()
