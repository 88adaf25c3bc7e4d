"""``cdc verify`` against Doris and StarRocks: values of every type are equal, injected faults are found and repaired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess
from tests.emulators.doris import cases as doris
from tests.integration import cluster_values
from tests.integration.test_snapshot_clusters import cluster
from tests.support.receiving import endpoint
from tests.support.verifying import caught_up, counts, verified, writing

ROWS = 1000
JOB = """\
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: cdc, password: secret, start: snapshot}}
sink: {{type: {kind}, fe: ["{fe}"], sql_port: {sql_port}, username: {user}, password: "{password}"}}
channels: [{{source: "{database}.*", target: ods.*}}]
commit: {{interval: 500ms}}
snapshot: {{step: 1s}}
status: {{port: {status}}}
"""


@pytest.mark.drawn(1)
@pytest.mark.parametrize("kind", ["doris", "starrocks"])
def test_verify_cluster_finds_and_repairs_faults_under_writes(
    mysql: LocalServer, database: str, tmp_path: Path, kind: str
) -> None:
    endpoint(mysql)  # creates the user
    numbers = f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})"
    with mysql.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION cte_max_recursion_depth = {ROWS + 1}")
        cursor.execute("CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(60), total DECIMAL(12,2), `100%` INT)")
        cursor.execute(f"INSERT INTO orders {numbers} SELECT i, CONCAT('order ', i), i / 7, i FROM n")
        cursor.execute("CREATE TABLE words (word VARCHAR(40), price DECIMAL(9,2), n INT, PRIMARY KEY (word, price))")
        cursor.execute(f"INSERT INTO words {numbers} SELECT CONCAT('w', i % 100), i / 7, i FROM n")
        connection.commit()
    cluster_values.create(mysql, database)
    port, home = free_port(), tmp_path / "home"
    with cluster(kind) as target, JobProcess(tmp_path / "job.yaml", home=home, port=port) as job:
        user, password = doris.USER
        (tmp_path / "job.yaml").write_text(
            JOB.format(
                port=mysql.port, kind=kind, fe=target.fe[0], sql_port=target.sql_port, user=user, password=password,
                database=database, status=port,
            )
        )  # fmt: skip
        job.start()
        job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 300)
        caught_up(mysql, job, 2 + len(cluster_values.TABLES))
        statement = "UPDATE orders SET note = IF(note = 'a', 'b', 'a') WHERE id = {key}"
        with writing(mysql, database, statement):
            found = verified(home)
            assert found["code"] == 0, found
            assert len(found["tables"]) == 2 + len(cluster_values.TABLES)
        caught_up(mysql, job)
        _inject(target)
        with writing(mysql, database, statement):
            found = verified(home, "--repair")
            assert counts(found, f"{database}.orders") == (1, 1, 1), found
            assert counts(found, f"{database}.words") == (1, 1, 1), found
            assert sum(sum(counts(found, table)) for table in found["tables"]) == 6
            assert sum(one["repaired"] for one in found["tables"].values()) == 6
            after = verified(home)
            assert after["code"] == 0, after
        caught_up(mysql, job)
        with mysql.connect(database) as connection, connection.cursor() as cursor:
            for table in ("orders", "words"):
                cursor.execute(f"SELECT * FROM {table}")
                expected = sorted(cursor.fetchall(), key=repr)
                names, rows = target.execute(f"SELECT * FROM ods.{table}")
                order = ["id", "note", "total", "100%"] if table == "orders" else ["word", "price", "n"]
                found_rows = [tuple(row[names.index(name)] for name in order) for row in rows]
                assert sorted((_plain(row) for row in found_rows), key=repr) == sorted(map(_plain, expected), key=repr)
        assert cluster_values.differences(mysql, database, target) == []
        job.stop()


def _plain(row: Any) -> tuple[str, ...]:
    return tuple(map(str, row))


def _inject(target: Any) -> None:
    """Make one fault of each kind in two tables, as a program with direct access does."""
    for table, key in (("orders", "id"), ("words", "n")):
        stored = target.storage.find("ods", table)
        other = "id = 1000000" if table == "orders" else "word = 'only here'"
        target.storage.query(f"CREATE TEMP TABLE copy AS SELECT * FROM {stored.base} WHERE {key} = 501")
        target.storage.query(f"UPDATE copy SET {other}")
        target.storage.query(f"INSERT INTO {stored.base} SELECT * FROM copy")
        target.storage.query("DROP TABLE copy")
        target.storage.query(f"DELETE FROM {stored.base} WHERE {key} = 502")
        column, value = ("note", "'changed'") if table == "orders" else ("n", "-7")
        target.storage.query(f"UPDATE {stored.base} SET {column} = {value} WHERE {key} = 503")
