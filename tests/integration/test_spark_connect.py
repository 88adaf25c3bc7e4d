"""A job whose Tasks run on a real Spark Connect server from the installed PySpark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.demo.local_servers import LocalServer
from tests.support.delta_rows import rows_of
from tests.support.spark_connect import ConnectServer


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ConnectServer(tmp_path_factory.mktemp("connect")) as server:
        yield server.url


def test_job_over_spark_connect_copies_rows(remote: str, mysql: LocalServer, database: str, tmp_path: Path) -> None:
    table = f"`{database}`.orders"
    mysql.execute("FLUSH BINARY LOGS")
    log = max(mysql.data.glob("mysql-bin.[0-9]*"))
    mysql.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, name VARCHAR(20))",
        f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        f"UPDATE {table} SET name = 'B' WHERE id = 2",
        f"DELETE FROM {table} WHERE id = 3",
        "FLUSH BINARY LOGS",
    )
    shutil.copy(log, tmp_path)
    job = tmp_path / "job.yaml"
    job.write_text(
        f"name: remote\n"
        f"source: {{type: binlog_files, path: '{tmp_path}/mysql-bin.*'}}\n"
        f"sink: {{type: delta, path: {tmp_path}/lake}}\n"
        f"channels:\n"
        f"  - {{source: {database}.orders, target: ods.copied}}\n"
        f"spark: {{remote: '{remote}'}}\n"
        f"status: {{port: 0}}\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "cdc.cli.main", "start", str(job), "--foreground"],
        env={**os.environ, "CDC_HOME": str(tmp_path / "home"), "JAVA_HOME": "/nonexistent"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = rows_of(tmp_path / "lake/ods/copied")
    assert sorted((row["id"], row["name"]) for row in rows) == [(1, "a"), (2, "B")]
