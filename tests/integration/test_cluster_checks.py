"""What ``cdc check`` and ``cdc start`` print of a Doris or StarRocks on which a job cannot run, and how one lives on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from cdc.demo.process import JobProcess, is_caught_up
from cdc.local_servers import LocalServer, free_port
from tests.integration.test_check import cdc
from tests.recovery.cluster_kills import position
from tests.servers.doris import cases as doris
from tests.servers.olap_cases import USER
from tests.servers.olap_faults import Fault
from tests.servers.starrocks import cases as starrocks

JOB = """\
name: looked-at
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: root, start: latest}}
sink: {{type: {kind}, fe: ["{fe}"], sql_port: {sql_port}, username: {user}, password: "{password}",
       create_tables: {create}}}
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
    return doris.stand_in() if kind == "doris" else starrocks.stand_in(backends=1)


def source(server: LocalServer, database: str) -> None:
    server.execute(
        f"USE `{database}`",
        *(f"CREATE TABLE {name} (id BIGINT PRIMARY KEY, name VARCHAR(40), born DATE)" for name in TABLES),
    )


def targets(kind: str, there: Any, *names: str) -> None:
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
        places = {"port": mysql.port, "fe": there.fe[0], "sql_port": there.sql_port, "database": database}
        file.write_text(
            JOB.format(
                kind=kind,
                user=USER[0],
                password=password,
                create=str(create).lower(),
                status=status or free_port(),
                **places,
            )
        )
        return str(file)

    return write


@both
def test_check_and_start_name_everything_that_is_wrong_with_the_target(
    mysql: LocalServer, database: str, tmp_path: Path, write_job: Callable[..., str], kind: str
) -> None:
    source(mysql, database)
    with cluster(kind) as there:
        targets(kind, there, "fits", "keyed", "narrow")
        there.settings.denied.add((USER[0], "ods"))
        file = write_job(kind, there)
        checked, started = cdc(tmp_path, "check", file), cdc(tmp_path, "start", file)
        there.settings.denied.clear()
        for name in ("keyed", "narrow"):
            there.execute(f"DROP TABLE ods.{name}")
        for statement in cdc(tmp_path, "ddl", file).stdout.split(";\n"):
            if statement.strip():
                there.execute(statement.replace("BUCKETS AUTO", "BUCKETS 1"))
        mended = cdc(tmp_path, "check", file)
    assert mended.returncode == 0 and "can start" in mended.stdout, mended.stdout
    assert (checked.returncode, started.returncode) == (3, 3), checked.stdout + started.stderr
    for said in (checked.stdout, started.stderr):
        for expected in (
            "There is no table ods.short",
            "`cdc ddl JOB.yaml` prints the statement",
            f"ods.keyed: the table's model is DUPLICATE KEY, and only {MODEL[kind]} takes",
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
def test_check_and_start_say_who_is_refused_and_who_is_away(
    mysql: LocalServer, database: str, tmp_path: Path, write_job: Callable[..., str], kind: str
) -> None:
    source(mysql, database)
    with cluster(kind) as there:
        file = write_job(kind, there, password="wrong", create=True)
        refused, not_started = cdc(tmp_path, "check", file), cdc(tmp_path, "start", file)
        targets(kind, there, "fits")
        there.stop_backend()
        no_backend = cdc(tmp_path, "check", write_job(kind, there, create=True))
    away = cdc(tmp_path, "check", file)
    assert [done.returncode for done in (refused, not_started, no_backend, away)] == [3] * 4
    for said in (refused.stdout, not_started.stderr):
        assert "refuses the user: Access denied" in said and "Check sink.username and sink.password" in said, said
    assert "no backend alive" in no_backend.stdout and "SHOW BACKENDS" in no_backend.stdout, no_backend.stdout
    assert "does not answer" in away.stdout and "mend:" in away.stdout, away.stdout
    assert "wrong" not in refused.stdout + not_started.stderr  # the password


@both
def test_a_wrong_password_is_found_where_no_table_is_known(tmp_path: Path, kind: str) -> None:
    (tmp_path / "mysql-bin.000001").touch()
    file = tmp_path / "job.yaml"
    with cluster(kind) as there:
        targets(kind, there)
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


@both
def test_a_job_waits_for_a_sink_that_is_busy_and_says_so(
    mysql: LocalServer, database: str, tmp_path: Path, write_job: Callable[..., str], kind: str
) -> None:
    source(mysql, database)
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
        assert waits["resume"] == "automatic" and "asks for patience" in waits["reason"]
        assert "goes on by itself" in waits["mend"]
        end = position(mysql)
        job.wait_for("caught up", lambda status: status["state"] == "RUNNING" and is_caught_up(status, end), 240)
        assert sum(there.rows(f"SELECT count(*) FROM ods.{name}")[0][0] for name in TABLES) == 20
        job.stop()
