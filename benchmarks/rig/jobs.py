"""Complete jobs on one machine: a MySQL server, a receiver, a sink, and the check of the result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from benchmarks.rig import null_sink, orders, profile
from benchmarks.rig.measure import Usage, Watch, report
from benchmarks.rig.orders import DATABASE
from benchmarks.rig.suite import Options
from cdc.demo import proof
from cdc.demo.local_servers import LocalServer, free_port, obtain
from cdc.demo.process import CDC, JobProcess, is_caught_up
from tests.emulators import canal
from tests.support.object_stores import S3Server

EVERY_SECOND = "commit: {interval: 1s}"
SLICE_ROWS = 5_000_000  # compared in memory at a time: about 2 GB

_SERVER_OPTIONS = ("--binlog-row-metadata=FULL", "--innodb-buffer-pool-size=1G", "--max-binlog-size=256M")
_JOB = """\
name: bench
source: {source}
sink: {sink}
channels:
  - {{source: bench.*, target: ods.*}}
status: {{port: {port}}}
{settings}
"""
_CHECKED = {"delta": "row by row", "s3": "row by row", "null": "count and sum of keys of each table"}


@dataclass(frozen=True)
class Backlog:
    """What a job needed for a backlog."""

    rows: int  # found in the sink, and equal to the source
    seconds: float  # from RUNNING until the last row is committed
    start_s: float  # from the start of the process to RUNNING
    start_cpu_s: float
    usage: Usage  # including the start
    checked: str
    more: dict[str, float]

    def report(self, name: str, *, goal: str = "reported", work: str, **more: Any) -> None:
        """Report rows per second, CPU and memory."""
        report(
            name, self.rows / self.seconds, "rows/s", goal=goal, data={"rows": self.rows, "work": work},
            checked=self.checked, usage=self.usage, rows=self.rows, seconds=round(self.seconds, 1),
            start_s=round(self.start_s, 1), start_cpu_s=round(self.start_cpu_s, 1),
            with_start_of_the_job=round(self.rows / (self.start_s + self.seconds)), **self.more, **more,
        )  # fmt: skip


class Rig:
    """A server with an empty database, a sink, and the job between them."""

    def __init__(self, options: Options, server: LocalServer, folder: Path, stack: ExitStack) -> None:
        self.options, self.server, self.folder = options, server, folder
        self.checked = _CHECKED.get(options.sink, "rows of all committed loads, counted by the emulator")
        self._stack = stack
        self.start = ("", 0)  # file and offset, set by begin()
        self._canal: canal.CanalServer | None = None
        self._cluster: dict[str, Any] = {}
        self._bucket = stack.enter_context(closing(S3Server())).bucket() if options.sink == "s3" else None
        if options.sink not in _CHECKED:
            self._cluster = stack.enter_context(emulator(options.sink))

    def begin(self) -> None:
        """Let the job read what is written from now on. Without this call, it starts with a snapshot."""
        if self.options.receiver == "files":
            self.server.execute("FLUSH BINARY LOGS")
        elif self.options.receiver == "canal":
            server = canal.CanalServer(canal.obtain_canal(), self.folder / "canal", self.server, quick_start=False)
            self._canal = self._stack.enter_context(server)
        self.start = self.position()

    def execute(self, *statements: str) -> None:
        """Run statements in the database."""
        with self.server.connect(DATABASE) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def position(self) -> tuple[str, int]:
        """Return file and offset after the last event of the binlog."""
        return canal.end_of_binlog(self.server)

    @contextmanager
    def job(self, settings: str = "") -> Iterator[JobProcess]:
        """Start the job, with ``settings`` as further lines of the job file; stop it at the end."""
        port = free_port()
        text = _JOB.format(source=self._source(), sink=self._sink(), port=port, settings=settings)
        (self.folder / "job.yaml").write_text(text)
        program = null_sink.PROGRAM if self.options.sink == "null" else CDC
        with JobProcess(self.folder / "job.yaml", home=self.folder / "state", port=port, program=program) as job:
            job.start()
            yield job
            if job.stop() not in (0, 143):  # 143: stopped by SIGTERM
                raise SystemExit(f"The job failed: {job.log.read_text()[-3000:]}")

    @contextmanager
    def loaded_job(self) -> Iterator[JobProcess]:
        """Start a job on a table ``orders`` with the rows of the options, and wait until they are loaded."""
        orders.create(self.server, "orders")
        orders.fill(self.server, "orders", self.options.rows)
        with self.job() as job:
            self.wait_caught_up(job)
            yield job

    def wait_running(self, job: JobProcess) -> None:
        """Wait until the job runs."""
        job.wait_for("RUNNING", lambda status: status["state"] == "RUNNING", 300)

    def wait_caught_up(self, job: JobProcess, timeout_s: float = 1800) -> dict[str, Any]:
        """Wait until all rows that are in the binlog now are committed. Return the status, {} for files."""
        if self.options.receiver == "files":
            job.wait(timeout_s)  # a job that reads files ends after the last one
            return {}
        end = self.position()
        return job.wait_for(f"caught up with {end}", lambda status: is_caught_up(status, end), timeout_s)

    def drain(self, settings: str = "", then: Callable[[Rig, JobProcess], dict[str, float]] | None = None) -> Backlog:
        """Run a job until it has loaded the backlog, measure what ``then`` does with it, and check the result."""
        began = time.monotonic()
        with self.job(settings) as job, Watch(job.pid) as watch:
            self.wait_running(job)
            running, start = time.monotonic(), watch.usage()
            with profile.recorded(job.pid, self.folder) if self.options.profile else ExitStack():
                status = self.wait_caught_up(job)
                seconds = time.monotonic() - running
            usage = watch.usage()
            more = then(self, job) if then else {}
        more["split_transactions"] = status.get("split_transactions", 0)
        return Backlog(self.prove(), seconds, running - began, start.cpu_s, usage, self.checked, more)

    def prove(self) -> int:
        """Compare source and sink, and return the number of rows. Raises: SystemExit - they differ."""
        source = self._counts()
        rows = sum(count for count, _ in source.values())
        if self.options.sink in ("delta", "s3"):
            for table, (count, _) in source.items():
                self._prove_delta(table, count)
        elif self.options.sink == "null":
            found = json.loads((self.folder / "warehouse" / null_sink.TALLY).read_text())
            if found != {f"ods.{table}": sums for table, sums in source.items()}:
                raise SystemExit(f"The source has {source}, but the sink received {found}.")
        else:
            prove_committed(self._cluster, rows)
        return rows

    def _source(self) -> str:
        server = f"host: 127.0.0.1, port: {self.server.port}, username: cdc, password: bench"
        if self.options.receiver == "binlog":
            start = "{{file: {}, offset: {}}}".format(*self.start) if self.start[0] else "snapshot"
            return f"{{type: binlog, {server}, tls: {{mode: required}}, start: {start}}}"
        if self.options.receiver == "files":
            self._link_files()
            return "{type: binlog_files, path: ./files/*}"
        assert self._canal is not None
        login = f"destination: {canal.DESTINATION}, username: {canal.USER}, password: {canal.PASSWORD}"
        return f"{{type: canal, servers: ['{self._canal.address}'], {login}, mysql: {{{server}}}}}"

    def _link_files(self) -> None:
        """Link the binlog files since ``begin`` into a folder of their own."""
        self.server.execute("FLUSH BINARY LOGS")
        end, _ = self.position()
        (self.folder / "files").mkdir()
        for file in Path(self.server.data).glob(f"{Path(end).stem}.[0-9]*"):
            if self.start[0] <= file.name < end:
                os.link(file, self.folder / "files" / file.name)

    def _sink(self) -> str:
        if self._bucket is not None:
            return f"{{type: delta, path: {self._bucket.url}/warehouse, storage: {self._bucket.yaml}}}"
        if not self._cluster:
            return "{type: delta, path: ./warehouse, create_tables: true}"
        mode = "multi_table: 'off', " if self.options.sink == "starrocks-single" else ""
        address = f"fe: {json.dumps(self._cluster['fe'])}, sql_port: {self._cluster['sql_port']}"
        return f"{{type: {product(self.options.sink)}, {mode}{address}, username: cdc, password: cdc}}"

    def _counts(self) -> dict[str, list[int]]:
        """Return the number of rows and the sum of ids of each table."""
        found = {}
        with self.server.connect(DATABASE) as connection, connection.cursor() as cursor:
            cursor.execute("SHOW TABLES")
            for table in {name for (name,) in cursor.fetchall()} - {"numbers"}:
                cursor.execute(f"SELECT COUNT(*), CAST(COALESCE(SUM(id), 0) AS UNSIGNED) FROM {table}")
                found[table] = [int(value) for value in cursor.fetchone()]
        return found

    def _prove_delta(self, table: str, rows: int) -> None:
        folder, parts = f"warehouse/ods/{table}", 1 << (rows // SLICE_ROWS).bit_length()
        bucket = self._bucket
        target = self.folder / folder if bucket is None else f"{bucket.url}/{folder}"
        storage = None if bucket is None else bucket.options
        for part in range(parts):
            chosen = f"(id & {parts - 1}) = {part}"
            comparison = proof.compare(self.server, f"{DATABASE}.{table}", target, ["id"], chosen, storage)
            if comparison.differences:
                raise SystemExit(f"Source and target differ: {comparison.differences}")


@contextmanager
def rig(options: Options) -> Iterator[Rig]:
    """Start the servers that ``options`` need, and remove them at the end."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cdc-bench-")))
        server = LocalServer.start(obtain("mysql", print), folder / "mysql", options=_SERVER_OPTIONS)
        stack.enter_context(server)
        server.create_user("cdc", "bench")
        orders.prepare(server)
        yield Rig(options, server, folder, stack)


def product(sink: str) -> str:
    """Return the product of a cluster sink, which may be followed by a mode: ``starrocks-single``."""
    return sink.partition("-")[0]


@contextmanager
def emulator(sink: str) -> Iterator[dict[str, Any]]:
    """Start an emulator that counts rows and discards them, in a process of its own. Yields its ports."""
    command = [sys.executable, "-m", f"tests.emulators.{product(sink)}", "--null", "--backends", "2"]
    with subprocess.Popen([*command, "--user", "cdc:cdc"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()


def prove_committed(cluster: dict[str, Any], rows: int) -> None:
    """Count the rows of the committed loads. Raises: SystemExit - there are fewer or more than ``rows``."""
    history = requests.post(f"http://{cluster['fe'][0]}/__control", json={"do": "history"}, timeout=60).json()
    committed = (load for load in history if load["status"] in ("VISIBLE", "COMMITTED"))
    loaded = sum(load["rows"] for load in committed if not load["table"].endswith(".cdc_checkpoints"))
    if loaded != rows:
        raise SystemExit(f"{rows} rows were written, but {loaded} loaded.")
