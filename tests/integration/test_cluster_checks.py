"""``cdc check`` and ``cdc start`` on a Doris or StarRocks that a job cannot use, and a job with an overloaded sink."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess, is_caught_up
from tests.emulators.cases import USER
from tests.emulators.doris import cases as doris
from tests.emulators.faults import Fault
from tests.emulators.starrocks import cases as starrocks
from tests.integration.test_check import cdc
from tests.recovery.cluster_crash import position

JOB = """\
name: looked-at
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: root, start: latest}}
sink: {{type: {kind}, fe: ["{fe}"], sql_port: {sql_port}, username: {user}, password: "{password}",
       create_tables: {create}, tables: {{replication: 1}}}}
channels: [{{source: "{database}.*", target: ods.*}}]
commit: {{interval: 300ms}}
status: {{port: {status}}}
"""
MODEL = {"doris": "UNIQUE KEY", "starrocks": "PRIMARY KEY"}
ON_DORIS = ' PROPERTIES ("replication_num" = "1", "function_column.sequence_type" = "bigint")'
ON_STARROCKS = ' PROPERTIES ("replication_num" = "1")'
TABLES = ("fits", "keyed", "narrow", "short")
GRANT = {"doris": "LOAD_PRIV", "starrocks": "GRANT SELECT, INSERT"}

both = pytest.mark.parametrize("kind", MODEL)


def cluster(kind: str) -> AbstractContextManager[Any]:
    return doris.emulator() if kind == "doris" else starrocks.emulator(backends=1)


def create_source_tables(server: LocalServer, database: str) -> None:
    server.execute(
        f"USE `{database}`",
        *(f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, name VARCHAR(40), born DATE)" for name in TABLES),
    )


def create_target_tables(kind: str, there: Any, *names: str) -> None:
    tail = " DISTRIBUTED BY HASH (id) BUCKETS 1" + (ON_DORIS if kind == "doris" else ON_STARROCKS)
    shapes = {
        "fits": f"(id BIGINT NOT NULL, name VARCHAR(160), born DATE) {MODEL[kind]} (id)",
        "keyed": "(id BIGINT NOT NULL, name VARCHAR(160), born DATE) DUPLICATE KEY (id)",
        "narrow": f"(id BIGINT NOT NULL, name VARCHAR(40), extra INT NOT NULL) {MODEL[kind]} (id)",
    }
    there.execute("CREATE DATABASE IF NOT EXISTS ods")
    for name in names:
        there.execute(f"CREATE TABLE ods.{name} {shapes[name]}{tail}")


@pytest.fixture
def write_job(mysql: LocalServer, database: str, tmp_path: Path) -> Callable[..., str]:
    def write(kind: str, there: Any, *, password: str = USER[1], create: bool = False, status: int = 0) -> str:
        file = tmp_path / "job.yaml"
        addresses = {"port": mysql.port, "fe": there.fe[0], "sql_port": there.sql_port, "database": database}
        file.write_text(
            JOB.format(
                kind=kind,
                user=USER[0],
                password=password,
                create=str(create).lower(),
                status=status or free_port(),
                **addresses,
            )
        )
        return str(file)

    return write


@both
def test_check_and_start_report_every_target_fault(
    mysql: LocalServer, database: str, tmp_path: Path, write_job: Callable[..., str], kind: str
) -> None:
    create_source_tables(mysql, database)
    with cluster(kind) as there:
        create_target_tables(kind, there, "fits", "keyed", "narrow")
        there.settings.denied.add((USER[0], "ods"))
        file = write_job(kind, there)
        checked, started = cdc(tmp_path, "check", file), cdc(tmp_path, "start", file)
        there.settings.denied.clear()
        for name in ("keyed", "narrow"):
            there.execute(f"DROP TABLE ods.{name}")
        for statement in cdc(tmp_path, "ddl", file).stdout.split(";\n"):
            if statement.strip():
                there.execute(statement.replace("BUCKETS AUTO", "BUCKETS 1"))
        corrected = cdc(tmp_path, "check", file)
    assert corrected.returncode == 0 and "can start" in corrected.stdout, corrected.stdout
    assert (checked.returncode, started.returncode) == (3, 3), checked.stdout + started.stderr
    for said in (checked.stdout, started.stderr):
        for expected in (
            "There is no table ods.short",
            "`cdc ddl JOB.yaml` prints the statement",
            f"ods.keyed: the table's model is DUPLICATE KEY, and only {MODEL[kind]} supports ",
            "ods.narrow: column name is VARCHAR(40), and the source needs VARCHAR(160) bytes, 4 for a character",
            "ALTER TABLE `ods`.`narrow` MODIFY COLUMN `name` VARCHAR(160) NULL",
            "ods.narrow: column born is missing",
            "ALTER TABLE `ods`.`narrow` ADD COLUMN `born` DATE NULL",
            "ods.narrow: column extra is NOT NULL without a default",
            "ods.fits: ",
            "refuses the user: ",
            "Access denied",
            GRANT[kind],
            "ods.* TO 'cdc'" if kind == "doris" else "IN DATABASE ods TO USER 'cdc'",
        ):
            assert expected in " ".join(said.split()), said


@both
def test_check_and_start_report_wrong_logins_and_no_backend(
    mysql: LocalServer, database: str, tmp_path: Path, write_job: Callable[..., str], kind: str
) -> None:
    create_source_tables(mysql, database)
    with cluster(kind) as there:
        file = write_job(kind, there, password="wrong", create=True)
        refused, not_started = cdc(tmp_path, "check", file), cdc(tmp_path, "start", file)
        create_target_tables(kind, there, "fits")
        there.stop_backend()
        no_backend = cdc(tmp_path, "check", write_job(kind, there, create=True))
    away = cdc(tmp_path, "check", file)
    assert [done.returncode for done in (refused, not_started, no_backend, away)] == [3] * 4
    for said in (refused.stdout, not_started.stderr):
        assert "refuses the user: Access denied" in said and "Check sink.username and sink.password" in said, said
    assert "no backend alive" in no_backend.stdout and "SHOW BACKENDS" in no_backend.stdout, no_backend.stdout
    assert "does not answer" in away.stdout and "hint:" in away.stdout, away.stdout
    assert "wrong" not in refused.stdout + not_started.stderr  # the password


@both
def test_check_finds_wrong_password_without_any_table(tmp_path: Path, kind: str) -> None:
    (tmp_path / "mysql-bin.000001").touch()
    file = tmp_path / "job.yaml"
    with cluster(kind) as there:
        create_target_tables(kind, there)
        done = {}
        for password in (USER[1], "wrong"):
            text = JOB.format(
                kind=kind, user=USER[0], password=password, create="true", status=free_port(), port=1,
                fe=there.fe[0], sql_port=there.sql_port, database="shop",
            )  # fmt: skip
            files = "source: {type: binlog_files, path: ./mysql-bin.*}"
            file.write_text("\n".join(files if line.startswith("source:") else line for line in text.split("\n")))
            done[password] = cdc(tmp_path, "check", str(file))
    assert done[USER[1]].returncode == 0 and "can start" in done[USER[1]].stdout, done[USER[1]]
    assert done["wrong"].returncode == 3 and "refuses the user" in done["wrong"].stdout, done["wrong"]


@pytest.mark.drawn(1)
@both
def test_job_with_overloaded_sink_pauses_and_resumes(
    mysql: LocalServer, database: str, tmp_path: Path, write_job: Callable[..., str], kind: str
) -> None:
    create_source_tables(mysql, database)
    port = free_port()
    with cluster(kind) as there, JobProcess(tmp_path / "job.yaml", home=tmp_path / "home", port=port) as job:
        there.faults.order("load", Fault.ERROR, times=1, match="looked-at")
        write_job(kind, there, create=True, status=port)
        job.start()
        job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 300)
        with mysql.connect(database) as connection, connection.cursor() as cursor:
            for number in range(20):
                cursor.execute(f"INSERT INTO {TABLES[number % 4]} VALUES ({number}, 'é {number}', '2024-02-29')")
                connection.commit()
        waits = job.wait_for("waits", lambda status: status["state"] == "PAUSED", 240)
        assert waits["resume"] == "automatic" and "is overloaded" in waits["reason"]
        assert "is retried automatically" in waits["hint"]
        end = position(mysql)
        job.wait_for("caught up", lambda status: status["state"] == "RUNNING" and is_caught_up(status, end), 240)
        assert sum(there.rows(f"SELECT count(*) FROM ods.{name}")[0][0] for name in TABLES) == 20
        job.stop()
