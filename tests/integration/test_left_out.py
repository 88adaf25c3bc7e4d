"""A wildcard job meets tables that cannot be mapped: the others go on, and nothing of such a table is loaded half."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cdc.demo import proof
from cdc.demo.process import JobProcess
from cdc.local_servers import free_port

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
        [sys.executable, "-m", "cdc.cli", *words],
        env={**os.environ, "CDC_HOME": str(home), "COLUMNS": "200"}, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip


def _rows(folder: Path, table: str) -> list[int]:
    return sorted(proof.read_delta(folder / "warehouse" / "ods" / table).column("id").to_pylist())


def test_tables_that_cannot_be_mapped_are_left_out(mysql, database, tmp_path):
    # given a table without key: the first start is refused, with both ways out
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

    # when such tables come later, the others go on
    write(", exclude: [notes]")
    with JobProcess(file, home=home, port=port) as job:
        job.start()
        job.wait_for("loaded", lambda status: any(c["snapshot"] for c in status["channels"]), 300)
        mysql.execute(
            f"CREATE TABLE {database}.backup AS SELECT * FROM {database}.t0",
            f"CREATE TABLE {database}.`T0` (id INT PRIMARY KEY)",
            f"INSERT INTO {database}.`T0` VALUES (7)",
            f"CREATE TABLE {database}._t0_gho (id INT)",
            f"INSERT INTO {database}._t0_gho VALUES (7)",
            f"INSERT INTO {database}.t0 VALUES (2)",
        )
        status = job.wait_for("the others", lambda _: _rows(tmp_path, "t0") == [1, 2], 120)
        status = job.wait_for("left out", lambda status: len(status["left_out"]) == 2, 60)
        assert status["state"] == "RUNNING"
        left_out = {one["table"]: one for one in status["left_out"]}
        assert set(left_out) == {f"{database}.backup", f"{database}.T0"}
        assert "no primary key" in left_out[f"{database}.backup"]["reason"]
        assert "exclude: [T0]" in left_out[f"{database}.T0"]["mend"]
        shown = _cdc(home, "status", "shop").stdout
        assert "LEFT OUT" in shown and f"{database}.backup" in shown

        # a table that gets a key stays left out, and is not loaded half
        mysql.execute(
            f"ALTER TABLE {database}.backup ADD PRIMARY KEY (id)",
            f"INSERT INTO {database}.backup VALUES (3)",
            f"INSERT INTO {database}.t0 VALUES (3)",
        )
        job.wait_for("the others", lambda _: _rows(tmp_path, "t0") == [1, 2, 3], 120)
        assert not (tmp_path / "warehouse" / "ods" / "backup").exists()
        job.stop()

        # the next start loads it whole
        offline = _cdc(home, "status", "shop", "--output", "json").stdout
        assert f"{database}.backup" in offline
        job.start()
        status = job.wait_for(
            "taken in", lambda status: f"{database}.backup" not in {one["table"] for one in status["left_out"]}, 120
        )
        job.wait_for("loaded whole", lambda _: _is_there(tmp_path) and _rows(tmp_path, "backup") == [1, 3], 120)
        assert [one["table"] for one in status["left_out"]] == [f"{database}.T0"]
        mysql.execute(f"INSERT INTO {database}.backup VALUES (4)")
        job.wait_for("its stream", lambda _: _rows(tmp_path, "backup") == [1, 3, 4], 120)


def _is_there(folder: Path) -> bool:
    return (folder / "warehouse" / "ods" / "backup" / "_delta_log").is_dir()
