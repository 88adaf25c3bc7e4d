"""A job whose Tasks run on a real Spark Connect server from the installed PySpark."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from deltalake import DeltaTable

from cdc.demo.local_servers import LocalServer
from spark.child_processes import end_group, start_child

SPARK_HOME = Path(pyspark.__file__).parent
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = _free_port()
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    options = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    submit = [str(SPARK_HOME / "bin/spark-submit"), "--master", "local[2]", "--class", _SERVER, *options]
    log = (tmp_path_factory.mktemp("connect") / "log").open("wb")
    # workers get the packages of the project from the job only
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable}
    with log:
        server = start_child([*submit, "spark-internal"], environment, stdout=log.fileno(), stderr=log.fileno())
        try:
            deadline = time.monotonic() + 300
            while not _listens(port):
                assert server.poll() is None and time.monotonic() < deadline, Path(log.name).read_text()[-2000:]
                time.sleep(0.2)
            yield f"sc://127.0.0.1:{port}"
        finally:
            server.terminate()
            end_group(server, 30)


def _listens(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


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
    rows = DeltaTable(str(tmp_path / "lake/ods/copied")).to_pyarrow_table().to_pylist()
    assert sorted((row["id"], row["name"]) for row in rows) == [(1, "a"), (2, "B")]
