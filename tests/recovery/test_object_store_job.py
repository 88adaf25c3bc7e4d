"""A real job from a binlog into an object store: killed and continued, and no text has the key of the store."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import psutil

from cdc.demo import proof
from cdc.demo.local_servers import LocalServer, free_port
from cdc.demo.process import JobProcess, is_caught_up
from tests.support.object_stores import SECRET, Bucket, S3Server

JOB = """\
name: lake
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: lake, password: lake, tls: {{mode: required}}, start: snapshot}}
sink: {{type: delta, path: {bucket.url}/warehouse, storage: {bucket.yaml}}}
channels: [{{source: lake.*, target: ods.*}}]
commit: {{interval: 200ms, min_rows: 1}}
status: {{port: {status}}}
"""
ROWS = 2000


def _write(server: LocalServer, first: int) -> None:
    """Insert rows, change half of the earlier ones, and delete some, in several transactions."""
    with server.connect("lake") as connection, connection.cursor() as cursor:
        for start in range(first, first + ROWS, 500):
            values = ", ".join(f"({number}, 'row {number}')" for number in range(start, start + 500))
            cursor.execute(f"INSERT INTO orders VALUES {values}")
            cursor.execute(f"UPDATE orders SET note = 'changed at {start}' WHERE id % 2 = 0 AND id < {start}")
            cursor.execute(f"DELETE FROM orders WHERE id % 7 = 0 AND id < {start}")
            connection.commit()


def _catch_up(server: LocalServer, job: JobProcess, bucket: Bucket) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        end = cursor.fetchone()[:2]
    job.wait_for(f"caught up with {end}", lambda status: is_caught_up(status, end), 400)
    compared = proof.compare(
        server, "lake.orders", f"{bucket.url}/warehouse/ods/orders", ["id"], storage=bucket.options
    )
    assert not compared.differences and compared.rows > ROWS // 2


def _arguments(driver: psutil.Process) -> list[str]:
    found = []
    for each in (driver, *driver.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            found.append(" ".join(each.cmdline()))
    return found


def test_job_into_an_object_store_survives_kills(mysql: LocalServer, s3_server: S3Server, tmp_path: Path) -> None:
    bucket = s3_server.bucket()
    mysql.create_user("lake", "lake")
    mysql.execute("CREATE DATABASE lake", "CREATE TABLE lake.orders (id INT PRIMARY KEY, note VARCHAR(40))")
    _write(mysql, 0)
    port = free_port()
    (tmp_path / "lake.yaml").write_text(JOB.format(port=mysql.port, bucket=bucket, status=port))
    with JobProcess(tmp_path / "lake.yaml", home=tmp_path / "state", port=port) as job:
        job.start()
        job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 400)
        _catch_up(mysql, job, bucket)
        arguments = _arguments(psutil.Process(job.pid))
        status = job.status()
        assert status is not None
        _write(mysql, ROWS)
        job.kill()
        _write(mysql, 2 * ROWS)
        job.start()
        _catch_up(mysql, job, bucket)
        assert job.stop() in (0, 143)
    assert any("lake.yaml" in text for text in arguments)
    assert not any(SECRET in text for text in (*arguments, json.dumps(status)))
    assert SECRET not in job.log.read_text(errors="replace")
