"""``cdc check`` and ``cdc ddl`` against a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from cdc.demo.local_servers import LocalServer
from cdc.state.sqlite import SqliteStore

ROOT = Path(__file__).parents[2]


def cdc(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CDC_HOME": str(folder / "home"), "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "cdc.cli.main", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def job(folder: Path, server: LocalServer, channels: str) -> str:
    file = folder / "job.yaml"
    file.write_text(
        "name: looked-at\n"
        f"source: {{type: binlog, host: 127.0.0.1, port: {server.port}, username: root, start: latest}}\n"
        f"sink: {{type: delta, path: ./warehouse}}\nchannels: [{channels}]\n"
    )
    return str(file)


def test_check_valid_job_passes_and_ddl_shows_its_tables(mysql: LocalServer, database: str, tmp_path: Path) -> None:
    mysql.execute(f"CREATE TABLE `{database}`.orders (id INT PRIMARY KEY, total DECIMAL(10,2) NOT NULL)")
    file = job(tmp_path, mysql, f'{{source: "{database}.orders", target: ods.orders}}')
    done = cdc(tmp_path, "check", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "can start" in done.stdout
    ddl = cdc(tmp_path, "ddl", file)
    assert ddl.returncode == 0, ddl.stderr
    assert "CREATE TABLE `ods`.`orders`" in ddl.stdout and "`id` INTEGER NOT NULL" in ddl.stdout


def test_ddl_statement_shows_steps_costs_and_reasons(mysql: LocalServer, database: str, tmp_path: Path) -> None:
    table = f"`{database}`.orders"
    mysql.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT)", f"INSERT INTO {table} VALUES (1, 2)")
    file = job(tmp_path, mysql, f'{{source: "{database}.orders", target: ods.orders}}')
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), ("a", pa.int32()), ("__sequence", pa.int64())])
    folder = str(tmp_path / "warehouse" / "ods" / "orders")

    def preview(statement: str) -> dict[str, Any]:
        found = cdc(tmp_path, "ddl", file, "--output", "json", "--statement", statement)
        assert found.returncode == 0, found.stderr
        return dict(json.loads(found.stdout))

    add = f"ALTER TABLE {table} ADD b INT DEFAULT 5, RENAME COLUMN a TO c"
    (planned,) = preview(add)["tables"]
    assert planned["change"]["steps"] == [], "the target does not exist yet"
    assert [one["kind"] for one in planned["change"]["actions"]] == ["rename.column", "add.column"]
    write_deltalake(folder, pa.table({"id": [1], "a": [2], "__sequence": [1]}, schema=schema))
    (planned,) = preview(add)["tables"]
    assert [one["action"] for one in planned["change"]["steps"]] == ["rename", "add"]
    assert planned["costs"], "a value and a new name write all data files again"
    assert "cannot convert" in preview(f"ALTER TABLE {table} MODIFY a DATE")["reason"]
    (planned,) = preview(f"ALTER TABLE {table} MODIFY a SMALLINT")["tables"]
    assert planned["change"]["is_reloaded"] and planned["change"]["steps"] == [], "the target keeps the wider type"
    assert "truncate.table" in preview(f"TRUNCATE TABLE {table}")["reason"]
    assert preview(f"ALTER TABLE {table} COMMENT 'x'")["tables"] == []
    assert DeltaTable(folder).version() == 0
    with mysql.connect(database) as connection, connection.cursor() as cursor:
        assert cursor.execute("SELECT a FROM orders") == 1, "the statement did not run"


def test_check_every_finding_has_a_hint(mysql: LocalServer, database: str, tmp_path: Path) -> None:
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
        "binlog_row_image is MINIMAL, but must be FULL",
        "SET PERSIST binlog_row_image = 'FULL'",
        f"Table {database}.missing does not exist",
        "crm.* matches no table that this account can see; tables that are created later are added.",
        "The source table has no primary key",
    ):
        assert expected in done.stdout
    assert done.stdout.count("hint:") == done.stdout.count("refused") + done.stdout.count("warning")


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("totl > 3", "The mapping reads the column totl, which does not exist."),
        ("uper(name) = 'A'", "Spark does not accept filter: "),
        ("total", "Spark does not accept filter: "),
    ],
)
def test_check_filter_that_cannot_be_evaluated_is_refused(
    mysql: LocalServer, database: str, tmp_path: Path, condition: str, expected: str
) -> None:
    mysql.execute(f"CREATE TABLE `{database}`.orders (id INT PRIMARY KEY, total DECIMAL(10,2), name TEXT)")
    file = job(tmp_path, mysql, f'{{source: "{database}.orders", target: ods.orders, filter: "{condition}"}}')
    done = cdc(tmp_path, "check", file)
    assert done.returncode == 3, done.stdout + done.stderr
    assert expected in done.stdout and "can start" not in done.stdout
    assert "stacktrace" not in done.stderr and "org.apache.spark" not in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("start", "expected", "hint"),
    [
        ("file: mysql-bin.999999", "Position mysql-bin.999999:4 does not exist", "SHOW BINARY LOGS"),
        ("file: {file}, offset: 5", "The server cannot read its binlog at position", "SHOW BINLOG EVENTS"),
    ],
)
def test_check_start_position_that_the_server_lacks_is_refused(
    mysql: LocalServer, database: str, tmp_path: Path, start: str, expected: str, hint: str
) -> None:
    mysql.execute(f"CREATE TABLE `{database}`.orders (id INT PRIMARY KEY)")
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        file_name = cursor.fetchall()[0][0]
    file = Path(job(tmp_path, mysql, f'{{source: "{database}.orders", target: ods.orders}}'))
    position = start.replace("{file}", file_name)
    file.write_text(file.read_text().replace("start: latest", f"start: {{{position}}}"))
    done = cdc(tmp_path, "check", str(file))
    assert done.returncode == 3, done.stdout + done.stderr
    assert expected in done.stdout and hint in done.stdout and "--accept-gap" not in done.stdout


def test_ddl_accepts_the_name_of_a_job(mysql: LocalServer, database: str, tmp_path: Path) -> None:
    mysql.execute(f"CREATE TABLE `{database}`.orders (id INT PRIMARY KEY)")
    file = Path(job(tmp_path, mysql, f'{{source: "{database}.orders", target: ods.orders}}'))
    store = SqliteStore(tmp_path / "home")
    store.acquire("looked-at", str(file))
    store.close()
    done = cdc(tmp_path, "ddl", "looked-at")
    assert done.returncode == 0, done.stderr
    assert "CREATE TABLE `ods`.`orders`" in done.stdout


def test_check_and_ddl_json_output_has_a_fixed_shape(mysql: LocalServer, database: str, tmp_path: Path) -> None:
    """Programs read it, so the keys are the same for jobs that can start and for jobs that cannot."""
    mysql.execute(
        f"CREATE TABLE `{database}`.orders (id INT PRIMARY KEY)", f"CREATE TABLE `{database}`.keyless (id INT)"
    )
    file = job(tmp_path, mysql, f'{{source: "{database}.orders", target: ods.orders}}')
    done = cdc(tmp_path, "check", file, "--output", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    body = json.loads(done.stdout)
    assert body.keys() == {"job", "can_start", "findings", "samples", "store"} and body["samples"] == []
    assert body["job"] == "looked-at" and body["can_start"] is True
    ddl = cdc(tmp_path, "ddl", file, "--output", "json")
    assert ddl.returncode == 0, ddl.stderr
    body = json.loads(ddl.stdout)
    assert body.keys() == {"job", "statements"} and body["job"] == "looked-at"
    (statement,) = body["statements"]
    assert statement.startswith("CREATE TABLE `ods`.`orders`") and not statement.endswith(";")

    file = job(tmp_path, mysql, f'{{source: "{database}.keyless", target: ods.keyless}}')
    done = cdc(tmp_path, "check", file, "--output", "json")
    assert done.returncode == 3, done.stdout + done.stderr
    body = json.loads(done.stdout)
    assert body["can_start"] is False
    (fatal,) = [one for one in body["findings"] if one["fatal"]]
    assert fatal.keys() == {"problem", "hint", "fatal"}
    assert "keyless" in fatal["problem"] and "no primary key" in fatal["problem"] and fatal["hint"]


def test_check_unreachable_server_exits_with_code_3(mysql: LocalServer, tmp_path: Path) -> None:
    file = job(tmp_path, mysql, "{source: a.b, target: a.b}")
    Path(file).write_text(Path(file).read_text().replace(f"port: {mysql.port}", "port: 1"))
    done = cdc(tmp_path, "check", file)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "cannot be reached" in done.stdout and "hint:" in done.stdout


@pytest.mark.parametrize(
    "source",
    [
        "{type: binlog_files, path: ./mysql-bin.*}",
        '{type: canal, servers: ["127.0.0.1:1"], destination: shop}',
    ],
)
def test_check_sink_without_a_server_for_tables_is_checked(tmp_path: Path, source: str) -> None:
    (tmp_path / "mysql-bin.000001").touch()
    (tmp_path / "warehouse").touch()  # a file where the folder must be
    file = tmp_path / "job.yaml"
    sink = "{type: delta, path: ./warehouse}"
    file.write_text(f"name: looked-at\nsource: {source}\nsink: {sink}\nchannels: [{{source: a.b, target: a.b}}]\n")
    done = cdc(tmp_path, "check", str(file))
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Delta tables cannot be written below" in done.stdout and "Correct `sink.path`" in done.stdout


@pytest.mark.parametrize("options", [(), ("--foreground",)])
def test_start_with_wrong_server_settings_reports_them(
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
