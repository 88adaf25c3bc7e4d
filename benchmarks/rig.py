"""A MySQL of its own and a job that reads it: what benchmarks of whole jobs share."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import orders
from benchmarks.harness import Usage, Watch
from cdc.demo import proof
from cdc.demo.process import CDC, JobProcess, is_caught_up
from cdc.local_servers import LocalServer, free_port, obtain

DATABASE = "bench"
SLICE_ROWS = 5_000_000  # compared at once: some 2 GB

_JOB = """\
name: bench
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: cdc, password: bench, tls: {{mode: required}},
         start: {{file: {file}, offset: {offset}}}}}
sink: {{{sink}}}
channels:
  - {{source: bench.*, target: ods.*}}
status: {{port: {status}}}
{settings}
"""
EVERY_SECOND = "commit: {interval: 1s}"
BY_ROW = "row by row"  # how ``prove`` checks


@dataclass(frozen=True)
class Run:
    """What a job took for a backlog."""

    seconds: float  # from RUNNING to the last row committed
    start_s: float  # from the start of the process to RUNNING
    usage: Usage
    status: dict[str, Any]


@contextmanager
def source() -> Iterator[tuple[LocalServer, Path]]:
    """A server with a fresh database, and a folder for the job."""
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
        options = ("--binlog-row-metadata=FULL", "--innodb-buffer-pool-size=512M", "--max-binlog-size=256M")
        with LocalServer.start(obtain("mysql", print), Path(name) / "mysql", options=options) as server:
            server.create_user("cdc", "bench")
            orders.prepare(server, DATABASE)
            yield server, Path(name)


def position(server: LocalServer) -> tuple[str, int]:
    """File and offset behind the last event."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW BINARY LOG STATUS")
        row: Any = cursor.fetchone()
    return str(row[0]), int(row[1])


@contextmanager
def job(
    server: LocalServer,
    folder: Path,
    start: tuple[str, int],
    sink: str,
    *,
    settings: str = "",
    program: Sequence[str] = CDC,
) -> Iterator[JobProcess]:
    """A job that reads from ``start`` on; not started yet, stopped at the end.

    ``sink``: its settings, in YAML; ``settings``: more of the job file.
    """
    status = free_port()
    text = _JOB.format(port=server.port, file=start[0], offset=start[1], sink=sink, settings=settings, status=status)
    (folder / "job.yaml").write_text(text)
    with JobProcess(folder / "job.yaml", home=folder / "state", port=status, program=program) as found:
        yield found
        found.stop()


def running(found: JobProcess) -> None:
    """Wait until the job runs."""
    found.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 300)


def caught_up(found: JobProcess, server: LocalServer, timeout_s: float) -> dict[str, Any]:
    """Wait until all that is in the binlog now is committed; the status then."""
    end = position(server)
    return found.wait_for(f"caught up with {end}", lambda status: is_caught_up(status, end), timeout_s)


def drained(found: JobProcess, server: LocalServer, timeout_s: float = 1800) -> Run:
    """Start the job, and let it take the whole backlog."""
    began = time.monotonic()
    found.start()
    with Watch(found.pid) as watch:
        running(found)
        since = time.monotonic()
        status = caught_up(found, server, timeout_s)
        return Run(time.monotonic() - since, since - began, watch.usage(), status)


def prove(server: LocalServer, folder: Path, table: str, key: str = "id") -> int:
    """Compare a table with its Delta target row by row; how many there are. Raises: SystemExit - they differ."""
    target, rows = folder / "warehouse" / "ods" / table, 0
    for where in _slices(server, table, key):
        comparison = proof.compare(server, f"{DATABASE}.{table}", target, [key], where)
        if comparison.differences:
            raise SystemExit(f"source and target differ: {comparison.differences}")
        rows += comparison.rows
    return rows


def _slices(server: LocalServer, table: str, key: str) -> list[str]:
    """Conditions that part a table into what can be compared in memory."""
    connection = server.connect(DATABASE)
    with connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT COUNT(*), MIN({key}), MAX({key}) FROM {table}")
        row: Any = cursor.fetchone()
    count, lowest, highest = row
    parts = count // SLICE_ROWS + 1
    if parts == 1:
        return ["TRUE"]
    bounds = [lowest + (highest - lowest) * number // parts for number in range(1, parts)]
    between = [f"{key} >= {low} AND {key} < {high}" for low, high in pairwise(bounds)]
    return [f"{key} < {bounds[0]}", *between, f"{key} >= {bounds[-1]}"]
