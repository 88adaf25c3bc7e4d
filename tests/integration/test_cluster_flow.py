"""From a real MySQL into Doris and StarRocks: rows, whole transactions over two tables, and a killed job."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess, is_caught_up
from tests.emulators.cases import USER
from tests.emulators.doris import cases as doris
from tests.emulators.faults import Fault
from tests.emulators.starrocks import cases as starrocks

ACCOUNTS, BALANCE = 50, 100
JOB = """\
name: bank
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: bank, password: vault, tls: {{mode: required}},
         start: {{file: {file}, offset: {offset}}}}}
sink: {{fe: ["{fe}"], sql_port: {sql_port}, username: {user}, password: "{password}", {sink}}}
channels: [{{source: "{database}.*", target: ods.*}}]
commit: {{interval: 300ms}}
status: {{port: {status}}}
"""
SINKS = {
    "doris": "type: doris, two_phase_commit: true",
    "doris plain": "type: doris, two_phase_commit: false",
    "starrocks": "type: starrocks, multi_table: off",
    "starrocks multi": "type: starrocks, multi_table: on",
}


class Bank(threading.Thread):
    """Move money between two tables, one transaction each, so that their sum never changes."""

    def __init__(self, server: LocalServer, database: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.server, self.database, self.draw, self.ended = server, database, random.Random(seed), threading.Event()
        self.moved = 0

    def run(self) -> None:
        connection = self.server.connect(self.database)
        with connection, connection.cursor() as cursor:
            while not self.ended.wait(0.01):
                amount, there, here = self.draw.randrange(1, 9), *self.draw.sample(("checking", "savings"), 2)
                connection.begin()
                for table, change in ((here, -amount), (there, amount)):
                    cursor.execute(
                        f"UPDATE {table} SET balance = balance + %s, note = %s WHERE id = %s",
                        (change, f"move \t{self.moved}", self.draw.randrange(ACCOUNTS)),
                    )
                connection.commit()
                self.moved += 1


class Auditor(threading.Thread):
    """Read both tables in one query, repeatedly."""

    def __init__(self, cluster: Any) -> None:
        super().__init__(daemon=True)
        self.cluster, self.sums, self.queries, self.ended = cluster, set[Any](), 0, threading.Event()

    def run(self) -> None:
        sql = "SELECT (SELECT sum(balance) FROM ods.checking) + (SELECT sum(balance) FROM ods.savings)"
        while not self.ended.wait(0.02):
            if {("ods", "savings"), ("ods", "checking")} <= set(self.cluster.storage.tables):
                self.sums.add(self.cluster.execute(sql)[1][0][0])
                self.queries += 1


@contextmanager
def bank(server: LocalServer, database: str) -> Iterator[tuple[str, int]]:
    """Create two tables and fill them in one transaction. Yield the position before it."""
    server.execute(
        f"USE `{database}`",
        *(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, balance BIGINT NOT NULL, note VARCHAR(40))"
            for table in ("checking", "savings")
        ),
    )
    server.create_user("bank", "vault")
    connection = server.connect(database)
    with connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        row: Any = cursor.fetchone()
        connection.begin()
        for table in ("checking", "savings"):
            rows = [(number, BALANCE) for number in range(ACCOUNTS)]
            cursor.executemany(f"INSERT INTO {table} (id, balance) VALUES (%s, %s)", rows)
        connection.commit()
    try:
        yield str(row[0]), int(row[1])
    finally:
        server.execute("DROP USER 'bank'@'127.0.0.1'", "DROP USER 'bank'@'localhost'")


def wait_until_caught_up(server: LocalServer, job: JobProcess) -> None:
    connection = server.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        end: Any = cursor.fetchone()
    job.wait_for(f"caught up with {end[:2]}", lambda status: is_caught_up(status, end[:2]), 280)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("sink", SINKS)
def test_cluster_job_killed_with_faults_equals_source(
    mysql: LocalServer, database: str, tmp_path: Path, sink: str
) -> None:
    on_doris = sink.startswith("doris")
    emulator: Any = doris.emulator(backends=2) if on_doris else starrocks.emulator(version=(4, 1, 0))
    with bank(mysql, database) as (file, offset), emulator as cluster:
        port = free_port()
        job_file = tmp_path / "job.yaml"
        job_file.write_text(
            JOB.format(
                port=mysql.port, file=file, offset=offset, fe=cluster.fe[0], sql_port=cluster.sql_port,
                user=USER[0], password=USER[1], sink=SINKS[sink], database=database, status=port,
            )
        )  # fmt: skip
        for place, fault in (("load", Fault.DROP_ANSWER), ("commit", Fault.DROP_ANSWER), ("commit", Fault.ERROR_DONE)):
            cluster.faults.order(place, fault, times=3, chance=0.2)
        writer, auditor = Bank(mysql, database, 5), Auditor(cluster)
        writer.start()
        auditor.start()
        with JobProcess(job_file, home=tmp_path / "state", port=port) as job:
            job.start()
            deadline = time.monotonic() + 280
            while sum(load["status"] == "VISIBLE" for load in cluster.loads()) < 4:
                assert time.monotonic() < deadline, "no load is visible"
                time.sleep(0.05)
            job.kill()
            job.start()
            deadline = time.monotonic() + 280
            begun = len(cluster.loads())
            while len(cluster.loads()) < begun + 6:
                assert time.monotonic() < deadline, "no load after the kill"
                time.sleep(0.05)
            writer.ended.set()
            writer.join()
            wait_until_caught_up(mysql, job)
            auditor.ended.set()
            auditor.join()
            assert job.stop() in (0, 130, 143)
        for table in ("checking", "savings"):
            sql = f"SELECT id, balance, note FROM {table}"
            connection = mysql.connect(database)
            with connection, connection.cursor() as cursor:
                cursor.execute(sql)
                expected = sorted(cursor.fetchall())
            assert cluster.rows(sql.replace("FROM ", "FROM ods.")) == sorted(expected, key=repr)
        assert writer.moved > 100 and auditor.queries > 100
        visible = [load["label"] for load in cluster.loads() if load["status"] == "VISIBLE"]
        assert len(visible) == len(set(visible)), "a label was committed twice"
        if sink == "starrocks multi":
            assert auditor.sums <= {None, 2 * ACCOUNTS * BALANCE}, "a reader saw half a transaction"
