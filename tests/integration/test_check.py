"""``cdc check`` and ``cdc ddl`` against a real server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.local_servers import LocalServer

ROOT = Path(__file__).parents[2]


def cdc(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CDC_HOME": str(folder / "home"), "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "cdc.cli", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def job(folder: Path, server: LocalServer, channels: str) -> str:
    file = folder / "job.yaml"
    file.write_text(
        "name: looked-at\n"
        f"source: {{type: binlog, host: 127.0.0.1, port: {server.port}, username: root, start: latest}}\n"
        f"sink: {{type: delta, path: ./warehouse}}\nchannels: [{channels}]\n"
    )
    return str(file)


def test_a_job_that_fits_passes_and_shows_its_tables(mysql: LocalServer, database: str, tmp_path: Path) -> None:
    mysql.execute(f"CREATE TABLE `{database}`.orders (id INT PRIMARY KEY, total DECIMAL(10,2) NOT NULL)")
    file = job(tmp_path, mysql, f'{{source: "{database}.orders", target: ods.orders}}')
    done = cdc(tmp_path, "check", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "can start" in done.stdout
    ddl = cdc(tmp_path, "ddl", file)
    assert ddl.returncode == 0, ddl.stderr
    assert "CREATE TABLE `ods`.`orders`" in ddl.stdout and "`id` INTEGER NOT NULL" in ddl.stdout


def test_every_finding_comes_with_its_mend(mysql: LocalServer, database: str, tmp_path: Path) -> None:
    mysql.execute(f"CREATE TABLE `{database}`.keyless (id INT)")
    keyless = f'{{source: "{database}.keyless", target: ods.keyless}}'
    file = job(
        tmp_path,
        mysql,
        keyless + f', {{source: "{database}.missing", target: ods.missing}}, {{source: crm.*, target: crm.*}}',
    )
    mysql.execute("SET GLOBAL binlog_row_image = MINIMAL")
    try:
        done = cdc(tmp_path, "check", file)
    finally:
        mysql.execute("SET GLOBAL binlog_row_image = FULL")
    assert done.returncode == 3, done.stdout + done.stderr
    for expected in (
        "binlog_row_image is MINIMAL, and must be FULL",
        "SET PERSIST binlog_row_image = 'FULL'",
        f"Table {database}.missing is not there",
        "crm.* matches no table that this account can see; tables that are created later join.",
        "The source table has no primary key",
    ):
        assert expected in done.stdout
    assert done.stdout.count("mend:") == done.stdout.count("refused") + done.stdout.count("warning")


def test_a_server_that_is_away_is_a_matter_of_surroundings(mysql: LocalServer, tmp_path: Path) -> None:
    file = job(tmp_path, mysql, "{source: a.b, target: a.b}")
    Path(file).write_text(Path(file).read_text().replace(f"port: {mysql.port}", "port: 1"))
    done = cdc(tmp_path, "check", file)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "cannot be reached" in done.stdout and "mend:" in done.stdout


@pytest.mark.parametrize(
    "source",
    [
        "{type: binlog_files, path: ./mysql-bin.*}",
        '{type: canal, servers: ["127.0.0.1:1"], destination: shop}',
    ],
)
def test_the_sink_is_looked_at_where_there_is_no_server_to_ask_for_tables(tmp_path: Path, source: str) -> None:
    (tmp_path / "mysql-bin.000001").touch()
    (tmp_path / "warehouse").touch()  # in the way of the folder
    file = tmp_path / "job.yaml"
    sink = "{type: delta, path: ./warehouse}"
    file.write_text(f"name: looked-at\nsource: {source}\nsink: {sink}\nchannels: [{{source: a.b, target: a.b}}]\n")
    done = cdc(tmp_path, "check", str(file))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "No Delta tables can be written below" in done.stdout and "Correct `sink.path`" in done.stdout


@pytest.mark.parametrize("options", [(), ("--foreground",)])
def test_a_start_on_a_server_that_is_not_ready_says_all_of_it(
    mysql: LocalServer, database: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    mysql.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY)")
    file = job(tmp_path, mysql, f'{{source: "{database}.t", target: ods.t}}')
    mysql.execute("SET GLOBAL binlog_row_image = MINIMAL")
    try:
        done = cdc(tmp_path, "start", file, *options)
    finally:
        mysql.execute("SET GLOBAL binlog_row_image = FULL")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "binlog_row_image is MINIMAL" in done.stderr and "SET PERSIST binlog_row_image = 'FULL'" in done.stderr
