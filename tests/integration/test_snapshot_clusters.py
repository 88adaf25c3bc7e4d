"""Full tables into Doris and StarRocks: existing rows, and changes that are written during the snapshot.

The tables include one column of every MySQL type; every value is compared.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess, is_caught_up
from tests.emulators.doris import cases as doris
from tests.emulators.starrocks import cases as starrocks
from tests.integration import cluster_values
from tests.support.receiving import endpoint

ROWS = 30_000
JOB = """\
name: full
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: cdc, password: secret, start: snapshot}}
sink: {{type: {kind}, fe: ["{fe}"], sql_port: {sql_port}, username: {user}, password: "{password}", {option}}}
channels: [{{source: "{database}.*", target: ods.*}}]
commit: {{interval: 300ms}}
status: {{port: {status}}}
"""


def cluster(kind: str) -> AbstractContextManager[Any]:
    return doris.emulator(backends=2) if kind == "doris" else starrocks.emulator()


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("doris", "two_phase_commit: true"),
        ("doris", "two_phase_commit: false"),
        ("starrocks", "multi_table: off"),
        ("starrocks", "multi_table: on"),
    ],
)
def test_cluster_snapshot_with_concurrent_writes_equals_source(
    mysql: LocalServer, database: str, tmp_path: Path, kind: str, option: str
) -> None:
    endpoint(mysql)  # creates the user
    numbers = f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})"
    with mysql.connect(database) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION cte_max_recursion_depth = {ROWS + 1}")
        for table in ("ones", "twos"):
            cursor.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, note VARCHAR(60))")
            cursor.execute(f"INSERT INTO {table} {numbers} SELECT i, CONCAT('old ', i) FROM n")
        connection.commit()
    cluster_values.create(mysql, database)
    port = free_port()
    with cluster(kind) as target, JobProcess(tmp_path / "job.yaml", home=tmp_path / "home", port=port) as job:
        user, password = doris.USER
        (tmp_path / "job.yaml").write_text(
            JOB.format(
                port=mysql.port, kind=kind, fe=target.fe[0], sql_port=target.sql_port, user=user, password=password,
                option=option, database=database, status=port,
            )
        )  # fmt: skip
        job.start()
        job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 300)
        cluster_values.change(mysql, database)
        with mysql.connect(database) as connection, connection.cursor() as cursor:
            for first in range(0, ROWS, ROWS // 20):
                for table in ("ones", "twos"):
                    cursor.execute(f"UPDATE {table} SET note = 'new' WHERE id BETWEEN {first} AND {first + 50}")
                    cursor.execute(f"DELETE FROM {table} WHERE id BETWEEN {first + 100} AND {first + 120}")
                    cursor.execute(f"UPDATE {table} SET id = -id WHERE id BETWEEN {first + 200} AND {first + 210}")
                connection.commit()
            cursor.execute("SHOW BINARY LOG STATUS")
            end = cursor.fetchone()[:2]
            cursor.execute("SELECT id, note FROM ones ORDER BY id")
            expected = list(cursor.fetchall())
        job.wait_for(
            "all tables consistent",
            lambda status: len(status["channels"]) == 2 + len(cluster_values.TABLES) and is_caught_up(status, end),
            180,
        )
        for table in ("ones", "twos"):
            assert list(target.execute(f"SELECT id, note FROM ods.{table} ORDER BY id")[1]) == expected
        assert cluster_values.differences(mysql, database, target) == []
        job.stop()
