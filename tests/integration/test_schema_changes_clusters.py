"""Jobs that follow schema changes of MySQL into Doris and StarRocks, with a kill in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess
from tests.emulators.cases import USER
from tests.emulators.doris import cases as doris
from tests.emulators.starrocks import cases as starrocks
from tests.integration.test_cluster_flow import JOB, SINKS, Bank, bank, wait_until_caught_up

CHANGES = (
    "ADD COLUMN plain INT, ADD COLUMN five INT NOT NULL DEFAULT 5",
    "ADD COLUMN label VARCHAR(9) NOT NULL DEFAULT 'new', ADD COLUMN day DATE DEFAULT '2024-02-29'",
    "RENAME COLUMN plain TO simple",
    "MODIFY COLUMN five BIGINT NOT NULL",
    "DROP COLUMN label",
    "MODIFY COLUMN note VARCHAR(200)",
    "MODIFY COLUMN five INT NOT NULL",  # the target keeps BIGINT, and the table is loaded again
)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("sink", SINKS)
def test_cluster_job_killed_during_changes_equals_source(
    mysql: LocalServer, database: str, tmp_path: Path, sink: str
) -> None:
    on_doris = sink.startswith("doris")
    emulator: Any = doris.emulator(backends=2) if on_doris else starrocks.emulator(version=(4, 1, 0))
    with bank(mysql, database) as (file, offset), emulator as cluster:
        cluster.alters.delay_s = 0.5
        port, job_file = free_port(), tmp_path / "job.yaml"
        text = JOB.format(
            port=mysql.port, file=file, offset=offset, fe=cluster.fe[0], sql_port=cluster.sql_port,
            user=USER[0], password=USER[1], sink=SINKS[sink], database=database, status=port,
        )  # fmt: skip
        job_file.write_text(f"{text}schema_changes: evolve\n")
        writer = Bank(mysql, database, 5)
        writer.start()
        with JobProcess(job_file, home=tmp_path / "state", port=port) as job:
            job.start()
            job.wait_for("a commit", lambda status: bool(status["checkpoint"] and status["checkpoint"]["rows"]), 280)
            for number, clause in enumerate(CHANGES):
                mysql.execute(f"ALTER TABLE {database}.checking {clause}")
                if number == 1:
                    job.kill()
                    job.start()
            writer.ended.set()
            writer.join()
            wait_until_caught_up(mysql, job)
            status = job.status()
            assert status is not None and status["schema_changes"]["applied"] == len(CHANGES), status
            assert job.stop() in (0, 130, 143)
        for table, columns in (("checking", "id, balance, note, simple, five, day"), ("savings", "id, balance, note")):
            sql = f"SELECT {columns} FROM {table}"
            with mysql.connect(database) as connection, connection.cursor() as cursor:
                cursor.execute(sql)
                expected = cursor.fetchall()
            found = cluster.rows(sql.replace("FROM ", "FROM ods."))
            assert sorted(found, key=repr) == sorted(expected, key=repr)
        names = [row["Field"] for row in cluster.describe("ods.checking")] if hasattr(cluster, "describe") else []
        assert "label" not in names
