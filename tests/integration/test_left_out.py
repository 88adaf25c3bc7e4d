"""A wildcard job and tables that cannot be mapped: other tables continue, and such a table is never loaded partly."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.demo import proof
from cdc.demo.local_servers import free_port
from cdc.demo.process import JobProcess
from cdc.sources.binlog.receiver import BinlogReceiver
from channels.mapping import Mapping
from channels.routes import Routes
from tests.support.canal_sources import CURSOR, canal_receiver, drain
from tests.support.limits import HANG_S
from tests.support.receiving import Collector, endpoint, position

JOB = """\
name: shop
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: root, tls: {{mode: off}}, start: {start}}}
sink: {{type: delta, path: ./warehouse, create_tables: true}}
channels:
  - {{source: {database}.*, target: ods.*{exclude}}}
commit: {{interval: 500ms}}
status: {{port: {status}}}
"""


def _cdc(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cdc.cli.main", *words],
        env={**os.environ, "CDC_HOME": str(home), "COLUMNS": "200"}, capture_output=True, text=True, check=False,
        timeout=HANG_S,
    )  # fmt: skip


def _rows(folder: Path, table: str) -> list[int]:
    path = folder / "warehouse" / "ods" / table
    if not path.exists():  # a table is created when the snapshot reads it
        return []
    return sorted(proof.read_delta(path).column("id").to_pylist())


def test_wildcard_job_omits_unmappable_tables(mysql, database, tmp_path):
    # given a table without key: the first start is rejected, with both solutions
    mysql.execute(
        f"CREATE TABLE {database}.t0 (id INT PRIMARY KEY)",
        f"INSERT INTO {database}.t0 VALUES (1)",
        f"CREATE TABLE {database}.notes (id INT)",
    )
    port, home, file = free_port(), tmp_path / "state", tmp_path / "job.yaml"

    def write(exclude: str = "") -> None:
        file.write_text(JOB.format(port=mysql.port, database=database, status=port, start="snapshot", exclude=exclude))

    write()
    refused = _cdc(home, "start", str(file))
    assert refused.returncode == 3 and f"table {database}.notes" in refused.stderr, refused.stderr
    assert "exclude: [notes]" in refused.stderr and f"source: {database}.notes, target: ods.notes" in refused.stderr
    assert "the other tables continue" not in refused.stderr and "cdc restart" not in refused.stderr, refused.stderr

    # when such tables are created later, the other tables continue
    write(", exclude: [notes]")
    with JobProcess(file, home=home, port=port) as job:
        job.start()
        # the status shows a snapshot before it begins: wait for its rows, so that the tables below are new to the job
        job.wait_for(
            "loaded",
            lambda _: (tmp_path / "warehouse/ods/t0/_delta_log").exists() and _rows(tmp_path, "t0") == [1],
            HANG_S,
        )
        mysql.execute(
            f"CREATE TABLE {database}.backup AS SELECT * FROM {database}.t0",
            f"CREATE TABLE {database}.`T0` (id INT PRIMARY KEY)",
            f"INSERT INTO {database}.`T0` VALUES (7)",
            f"CREATE TABLE {database}._t0_gho (id INT)",
            f"INSERT INTO {database}._t0_gho VALUES (7)",
            f"INSERT INTO {database}.t0 VALUES (2)",
        )
        status = job.wait_for("the rows of t0", lambda _: _rows(tmp_path, "t0") == [1, 2], HANG_S)
        status = job.wait_for("the omitted tables", lambda status: len(status["left_out"]) == 2, HANG_S)
        assert status["state"] == "RUNNING"
        left_out = {one["table"]: one for one in status["left_out"]}
        assert set(left_out) == {f"{database}.backup", f"{database}.T0"}
        assert "no primary key" in left_out[f"{database}.backup"]["reason"]
        assert "exclude: [T0]" in left_out[f"{database}.T0"]["hint"]
        shown = _cdc(home, "status", "shop").stdout
        assert "LEFT OUT" in shown and f"{database}.backup" in shown
        verified = _cdc(home, "verify", "shop")
        assert verified.returncode == 1 and "some tables were not compared" in verified.stdout, verified
        assert "leaves this table out" in verified.stdout and f"{database}.backup" in verified.stdout

        # a table that gets a key later stays omitted and is not loaded partly
        mysql.execute(
            f"ALTER TABLE {database}.backup ADD PRIMARY KEY (id)",
            f"INSERT INTO {database}.backup VALUES (3)",
            f"INSERT INTO {database}.t0 VALUES (3)",
        )
        job.wait_for("the rows of t0", lambda _: _rows(tmp_path, "t0") == [1, 2, 3], HANG_S)
        assert not (tmp_path / "warehouse" / "ods" / "backup").exists()
        job.stop()

        # the next start loads it completely
        offline = _cdc(home, "status", "shop", "--output", "json").stdout
        assert f"{database}.backup" in offline
        job.start()
        status = job.wait_for(
            "the table is mapped",
            lambda status: f"{database}.backup" not in {one["table"] for one in status["left_out"]},
            HANG_S,
        )
        job.wait_for(
            "the complete table", lambda _: _is_there(tmp_path) and _rows(tmp_path, "backup") == [1, 3], HANG_S
        )
        assert [one["table"] for one in status["left_out"]] == [f"{database}.T0"]
        mysql.execute(f"INSERT INTO {database}.backup VALUES (4)")
        job.wait_for("the streamed row", lambda _: _rows(tmp_path, "backup") == [1, 3, 4], HANG_S)


def _odd_tables(database: str, *, gets_key: bool = True) -> tuple[str, ...]:
    """Return statements that create t0 and tables that a wildcard cannot map or that it excludes."""
    return (
        f"CREATE TABLE {database}.t0 (id INT PRIMARY KEY)",
        f"INSERT INTO {database}.t0 VALUES (1)",
        f"CREATE TABLE {database}.backup (id INT)",
        f"INSERT INTO {database}.backup VALUES (7)",
        f"CREATE TABLE {database}.`T0` (id INT PRIMARY KEY)",
        f"INSERT INTO {database}.`T0` VALUES (7)",
        f"CREATE TABLE {database}.noise (id INT)",
        f"INSERT INTO {database}.noise VALUES (7)",
        f"CREATE TABLE {database}._t0_gho (id INT)",
        f"INSERT INTO {database}._t0_gho VALUES (7)",
        f"INSERT INTO {database}.t0 VALUES (2)",
        *([f"ALTER TABLE {database}.backup ADD PRIMARY KEY (id)"] if gets_key else []),
        f"INSERT INTO {database}.backup VALUES (8)",
        f"INSERT INTO {database}.t0 VALUES (3)",
    )


def _assert_omitted(routes: Routes, collector: Collector, database: str) -> None:
    assert collector.values(table="t0") == [1, 2, 3] and {row["table"] for row in collector.rows} == {"t0"}
    left_out = routes.left_out
    assert set(left_out) == {f"{database}.backup", f"{database}.T0"}
    assert "no primary key" in left_out[f"{database}.backup"].reason
    assert "exclude: [T0]" in left_out[f"{database}.T0"].hint


def test_binlog_files_omit_unmappable_tables(mysql, database):
    routes = Routes([Mapping(f"{database}.*", "ods.*", exclude=("noise",))])
    start = replace(position(mysql), server="", gtid_set="")
    mysql.execute(*_odd_tables(database))
    receiver = BinlogReceiver.of_files(f"{mysql.data}/mysql-bin.*", routes)
    receiver.open(start, (), 0)
    try:
        collector = Collector(receiver).collect(lambda collector: collector.receiver.status().is_finished)
    finally:
        receiver.close()
    _assert_omitted(routes, collector, database)


@pytest.mark.canal
@pytest.mark.parametrize("queries_mysql", [True, False])
def test_canal_omits_unmappable_tables(mysql, database, canal, queries_mysql):
    routes = Routes([Mapping(f"{database}.*", "ods.*", exclude=("noise",))])
    drain(canal)
    receiver = canal_receiver(canal.address, routes, mysql=endpoint(mysql) if queries_mysql else None)
    receiver.open(CURSOR, (), 0)
    try:
        # The server describes a table as it is now, so a table that has a key by then is loaded completely.
        mysql.execute(*_odd_tables(database, gets_key=not queries_mysql))
        collector = Collector(receiver).collect_rows(3)
    finally:
        receiver.close()
    _assert_omitted(routes, collector, database)


def _is_there(folder: Path) -> bool:
    return (folder / "warehouse" / "ods" / "backup" / "_delta_log").is_dir()
