"""``cdc verify`` on a running job with a Delta sink: injected faults are found and repaired, rows in flight are not faults."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
import requests
from deltalake import DeltaTable, write_deltalake
from prometheus_client.parser import text_string_to_metric_families

from cdc.demo import proof
from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess
from tests.support.receiving import TcpProxy, endpoint, until
from tests.support.verifying import caught_up, command, counts, verified, writing

ROWS = 4000
JOB = """\
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: cdc, password: secret, start: snapshot}}
sink: {{type: delta, path: ./warehouse, merge: rewrite}}
channels:
  - {{source: {database}.orders, target: ods.orders}}
  - {{source: {database}.words, target: ods.words}}
  - {{source: {database}.moments, target: ods.moments}}
  - {{source: {database}.people, target: ods.people, columns: {{id: id, mail: lower(mail)}}, filter: "country = 'DE'"}}
  - {{source: {database}.codes, target: ods.codes, filter: "n % 4 > 0"}}
commit: {{interval: 500ms}}
snapshot: {{step: 1s}}
verify: {{hide: [mail]}}
status: {{port: {status}}}
"""
SILENT_JOB = """\
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: cdc, password: secret, start: snapshot}}
sink: {{type: delta, path: ./warehouse}}
channels:
  - {{source: {database}.orders, target: ods.orders}}
commit: {{interval: 500ms}}
status: {{port: {status}}}
"""


def _fill(server: LocalServer, database: str) -> None:
    numbers = f"WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < {ROWS})"
    with server.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION cte_max_recursion_depth = {ROWS}")
        cursor.execute(
            "CREATE TABLE orders (id BIGINT NOT NULL PRIMARY KEY, note VARCHAR(50), total DECIMAL(12,2), doc JSON, at DATETIME(6))"
        )
        cursor.execute(
            f"INSERT INTO orders {numbers} SELECT i, CONCAT('order ', i), i / 7, JSON_OBJECT('n', i), "
            "'2024-01-01' + INTERVAL i SECOND FROM r"
        )
        cursor.execute("CREATE TABLE words (word VARCHAR(40) NOT NULL PRIMARY KEY, n INT) CHARACTER SET utf8mb4")
        cursor.execute(
            f"INSERT INTO words {numbers} SELECT CONCAT(IF(i % 2, 'W', 'w'), LEFT(SHA2(i, 256), 30)), i FROM r"
        )
        # the target orders text in another way, and the filter excludes one row of four
        cursor.execute("CREATE TABLE codes (code VARCHAR(40) NOT NULL PRIMARY KEY, n INT) CHARACTER SET utf8mb4")
        cursor.execute(f"INSERT INTO codes {numbers} SELECT CONCAT(IF(i % 2, 'C', 'c'), i), i FROM r")
        cursor.execute("CREATE TABLE moments (at DATETIME(6) NOT NULL, n INT NOT NULL, v FLOAT, PRIMARY KEY (at, n))")
        cursor.execute(f"INSERT INTO moments {numbers} SELECT '2024-01-01' + INTERVAL i SECOND, i % 3, i / 3 FROM r")
        cursor.execute("CREATE TABLE people (id INT NOT NULL PRIMARY KEY, mail VARCHAR(50), country CHAR(2))")
        cursor.execute(f"INSERT INTO people {numbers} SELECT i, CONCAT('P', i, '@X'), IF(i % 4, 'DE', 'FR') FROM r")
        connection.commit()


STATEMENTS = (
    "UPDATE orders SET note = IF(note = 'a', 'b', 'a') WHERE id = {key}",
    "UPDATE words SET n = 1 - SIGN(n) WHERE word = CONCAT('w', LEFT(SHA2({key} * 2, 256), 30))",
    "UPDATE codes SET n = IF(n % 4, 4, 5) WHERE code = CONCAT('c', {key} * 2)",
    "UPDATE people SET country = IF(country = 'DE', 'FR', 'DE') WHERE id = {key}",
    "DELETE FROM moments WHERE n = {key} % 3 AND at = '2024-01-01' + INTERVAL {key} SECOND",
    "INSERT INTO moments VALUES ('2024-01-01' + INTERVAL {key} SECOND, {key} % 3, {number})",
)


def _inject(lake: Path) -> None:
    """Make one fault of each kind in the tables."""
    orders, words, moments, people = (DeltaTable(lake / name) for name in ("orders", "words", "moments", "people"))
    orders.delete("id = 3500")
    orders.update(updates={"note": "'changed'", "doc": "'{\"n\": 7}'"}, predicate="id = 3501")
    row = orders.to_pyarrow_table(filters=[("id", "=", 3502)])
    write_deltalake(lake / "orders", row.set_column(0, row.schema.field(0), pa.array([10**9])), mode="append")
    words.delete("n = 3500")
    words.update(updates={"n": "-5"}, predicate="n = 3501")
    word = words.to_pyarrow_table(filters=[("n", "=", 3502)])
    write_deltalake(lake / "words", word.set_column(0, word.schema.field(0), pa.array(["only here"])), mode="append")
    codes = DeltaTable(lake / "codes")
    code = codes.to_pyarrow_table(filters=[("n", "=", 3502)])
    excluded = code.set_column(0, code.schema.field(0), pa.array(["c3500"])).set_column(
        1, code.schema.field(1), pa.array([3500], code.schema.field(1).type)
    )
    write_deltalake(lake / "codes", excluded, mode="append")  # the source has this row, and the filter excludes it
    moments.delete("at = '2024-01-01T00:58:20'")
    people.update(updates={"mail": "'wrong'"}, predicate="id = 3501")


@pytest.fixture
def job(mysql: LocalServer, database: str, tmp_path: Path) -> Iterator[JobProcess]:
    endpoint(mysql)  # creates the user
    _fill(mysql, database)
    port = free_port()
    file = tmp_path / "job.yaml"
    file.write_text(JOB.format(port=mysql.port, database=database, status=port))
    with JobProcess(file, home=tmp_path / "state", port=port) as job:
        job.start()
        job.wait_for(
            "all tables are loaded",
            lambda status: (
                len(status["channels"]) == 5
                and all(one["snapshot"] and one["snapshot"]["consistent"] for one in status["channels"])
            ),
            300,
        )
        yield job


def test_verify_finds_and_repairs_faults_under_writes(
    mysql: LocalServer, database: str, tmp_path: Path, job: JobProcess
) -> None:
    home, lake = tmp_path / "state", tmp_path / "warehouse" / "ods"
    with writing(mysql, database, *STATEMENTS):
        found = verified(home)
        assert found["code"] == 0 and found["equal"], found
        assert {one["state"] for one in found["tables"].values()} == {"done"}
        assert found["tables"][f"{database}.orders"]["rows"] == ROWS
    caught_up(mysql, job)
    _inject(lake)
    with writing(mysql, database, *STATEMENTS):
        found = verified(home, "--repair")
        assert found["code"] == 1
        assert [counts(found, f"{database}.{name}") for name in ("orders", "words", "moments", "people", "codes")] == [
            (1, 1, 1), (1, 1, 1), (1, 0, 0), (0, 0, 1), (0, 1, 0),
        ], found  # fmt: skip
        changed = next(one for one in found["differences"] if one["key"] == {"id": "3501"} and "orders" in one["table"])
        assert {(one["column"], one["source"], one["target"]) for one in changed["values"]} == {
            ("note", "order 3501", "changed"), ("doc", '{"n": 3501}', '{"n": 7}'),
        }  # fmt: skip
        hidden = next(one for one in found["differences"] if "people" in one["table"])
        assert hidden["values"] == [{"column": "mail", "source": "***", "target": "***"}]

        assert sum(one["repaired"] for one in found["tables"].values()) == 9, found
        after = verified(home)
        assert after["code"] == 0, after
        assert not DeltaTable(lake / "codes").to_pyarrow_table(filters=[("n", "=", 3500)]).num_rows
    caught_up(mysql, job)
    DeltaTable(lake / "orders").update(updates={"note": "'changed'"}, predicate="id = 3501")
    some = verified(home, f"{database}.orders", "--columns", "total")
    assert some["equal"] and list(some["tables"]) == [f"{database}.orders"], "the other columns are not compared"
    wrong = verified(home, f"{database}.orders", "--columns", "nothing")
    assert not wrong["equal"] and "no column nothing" in wrong["tables"][f"{database}.orders"]["note"]
    assert verified(home, f"{database}.orders", "--repair")["tables"][f"{database}.orders"]["repaired"] == 1
    assert verified(home, f"{database}.orders", "--sample", "50%")["equal"]
    shown = command(home, "verify", "shop", "--history")
    assert shown.returncode == 0 and "rows differ" in shown.stdout and "are equal" in shown.stdout
    refused = command(home, "verify", "shop", "nothing.here")
    assert refused.returncode == 2 and "reads no table" in refused.stderr
    status = job.status()
    assert status is not None and status["verify"]["last"]["state"] == "equal"
    # asked every 10 s
    until(lambda: "cdc_source_behind_bytes{" in requests.get(f"{job.url}/metrics", timeout=120).text)
    families = text_string_to_metric_families(requests.get(f"{job.url}/metrics", timeout=120).text)
    metrics = {sample.name: sample.value for family in families for sample in family.samples}
    assert (metrics["cdc_verify_equal"], metrics["cdc_source_connected"]) == (1.0, 1.0)
    assert metrics["cdc_source_position_bytes"] > 4
    assert metrics["cdc_source_disconnects_total"] == 0 and metrics["cdc_source_retention_seconds"] > 0
    last_commit = datetime.fromisoformat(status["last_committed_at"]).timestamp()
    assert metrics["cdc_last_commit_timestamp_seconds"] >= last_commit
    assert metrics["cdc_store_seconds_count"] > 10 and metrics["cdc_store_seconds_sum"] > 0
    job.stop()
    for name, key in (("orders", ["id"]), ("words", ["word"])):
        assert proof.compare(mysql, f"{database}.{name}", lake / name, key).differences == ()


def test_verify_waits_for_a_connection_that_was_lost_without_notice(
    mysql: LocalServer, database: str, tmp_path: Path
) -> None:
    """The job notices it after 15 s. Until then the stream seems to be at its end, and queries see later changes."""
    endpoint(mysql)  # creates the user
    numbers = "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 50)"
    mysql.execute(
        f"CREATE TABLE {database}.orders (id INT PRIMARY KEY, v INT)",
        f"INSERT INTO {database}.orders {numbers} SELECT i, i FROM r",
    )
    port, file = free_port(), tmp_path / "job.yaml"
    with TcpProxy(mysql.port) as proxy, JobProcess(file, home=tmp_path / "state", port=port) as job:
        file.write_text(SILENT_JOB.format(port=proxy.port, database=database, status=port))
        job.start()
        job.wait_for(
            "the table is loaded",
            lambda status: any(one["snapshot"] and one["snapshot"]["consistent"] for one in status["channels"]),
            300,
        )
        caught_up(mysql, job)
        proxy.fall_silent()  # new connections work
        mysql.execute(f"UPDATE {database}.orders SET v = -1 WHERE id = 7")
        found = verified(tmp_path / "state")
        assert found["equal"] and found["tables"][f"{database}.orders"]["rows"] == 50, found
        status = job.status()
        assert status is not None and status["state"] == "RUNNING"
        job.stop()
    assert (
        proof.compare(mysql, f"{database}.orders", tmp_path / "warehouse" / "ods" / "orders", ["id"]).differences == ()
    )
