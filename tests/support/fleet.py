"""A fleet: several hosts of ``cdc serve`` with real jobs from one MySQL into Delta, and a store on another MySQL.

Every job copies one table, which a writer changes all the time. A host can be cut off from the store or from the source.
"""

from __future__ import annotations

import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from cdc.demo import proof
from cdc.demo.local_servers import LocalServer, obtain
from cdc.manager.jobs_folder import declare
from cdc.manager.spec import read_spec
from cdc.model.position import BinlogPosition
from cdc.state.base import JobRecord
from cdc.state.opening import open_store
from cdc.state.processes import is_driver_alive
from cdc.state.sql import SqlStore
from tests.support.proxy import TcpProxy
from tests.support.serving import HostProcess
from tests.support.store_servers import create_database

LIMIT_S = 300.0  # finds hangs: a full machine starts twenty drivers one after the other
CLI = "cdc.cli.main"
PASSWORD = "fleet-secret"
DATABASE = "fleet"
STATE = "fleet_state"  # database of the store
_TABLE = "(id BIGINT PRIMARY KEY, step INT NOT NULL, note VARCHAR(200), amount DECIMAL(12, 2), changed_at DATETIME(6))"
_JOB = """\
name: {name}
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: cdc, password: "${{FLEET_PASSWORD}}",
  start: {{file: {file}, offset: {offset}}}}}
sink: {{type: delta, path: {warehouse}, create_tables: true}}
channels: [{{source: {database}.{name}, target: ods.{name}}}]
commit: {{interval: {interval_s}s}}
memory: {{window: 32MiB, merge: 128MiB}}
tasks: {{parallel: 1, max_bytes: 8MiB}}
status: {{port: 0}}
resources: {{memory: 200MiB}}
"""
# one core and the smallest heap that Spark accepts: many jobs share the machine
_OWN_SPARK = "spark: {master: 'local[1]', conf: {spark.driver.memory: 512m}}\n"
_SHARED_SPARK = "spark: {connect: shared, memory: 512MiB}\n"  # of a host

End = tuple[str, int]  # file and offset of the binlog


class HostLines(TcpProxy):
    """A proxy in front of the source, which can cut off single hosts.

    The host of a connection is looked up only while one is cut off: it costs as much as some of a driver's connections.
    """

    def __init__(self, port: int) -> None:
        self._clients: list[socket.socket] = []
        self._cut: set[str] = set()
        super().__init__(port)

    def is_refused(self, client: socket.socket) -> bool:
        with self._lock:
            self._clients = [one for one in self._clients if one.fileno() >= 0]
            self._clients.append(client)
            return bool(self._cut) and _homes_of([client])[0] in self._cut

    def cut(self, home: Path) -> None:
        """Cut the connections of a host, and refuse new ones. ``home``: its ``$CDC_HOME``."""
        with self._lock:
            self._cut.add(str(home))
            lines = [one for one, of in zip(self._clients, _homes_of(self._clients), strict=True) if of == str(home)]
        for line in lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)

    def restore(self, home: Path) -> None:
        """Accept connections of a host again."""
        with self._lock:
            self._cut.discard(str(home))


def _homes_of(clients: Sequence[socket.socket]) -> list[str]:
    """Return the ``$CDC_HOME`` of the process on this machine that has each connection; "" if it is gone."""
    pids = {one.laddr.port: one.pid for one in psutil.net_connections("tcp4") if one.laddr and one.pid is not None}
    homes = []
    for client in clients:
        home = ""
        with suppress(psutil.Error, OSError, KeyError):
            home = psutil.Process(pids[client.getpeername()[1]]).environ().get("CDC_HOME", "")
        homes.append(home)
    return homes


class FleetHost(HostProcess):
    """A host with a line of its own to the store."""

    def __init__(
        self, name: str, folder: Path, store: Mapping[str, str], line: TcpProxy, *, lease_s: float, keys: str
    ) -> None:
        super().__init__(name, folder, store, module=CLI, lease_s=lease_s, keys=keys)
        self.line = line
        self.environment["FLEET_PASSWORD"] = PASSWORD
        self.environment.pop(
            "PYTHONDONTWRITEBYTECODE", None
        )  # an installed program is compiled once, not at each start
        # the hosts share two cores: as many threads as on a small machine each
        self.environment |= {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

    def spark_servers(self) -> list[psutil.Process]:
        """Return the JVM of the Spark that the jobs of this host share, if it runs."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                if any("SparkConnectServer" in word for word in process.cmdline()) and process.name() == "java":
                    found.append(process)
        return found

    def restart_failed(self) -> None:
        """Start ``cdc serve`` again if it ended by itself, as systemd does: for example, without a store at its start."""
        if self.process is not None and (self.process.poll() or 0) > 0:
            self.launch()

    def cut_store(self, *, off: bool) -> None:
        """Cut the host off from the store, or connect it again."""
        self.line.refusing = off
        if off:
            self.line.cut_all()


class Writer(threading.Thread):
    """Changes the tables in turn, each some times per second, until it is stopped. ``lock``: nothing is written."""

    def __init__(self, server: LocalServer, tables: Collection[str], seed: int, per_s: float = 2.0) -> None:
        """``per_s``: transactions per second and table."""
        super().__init__(daemon=True)
        self._server, self._tables, self._draw = server, list(tables), random.Random(seed)
        self._wait_s = 1 / (per_s * len(self._tables))
        self._next = dict.fromkeys(self._tables, 0)
        self._over = threading.Event()
        self.lock = threading.Lock()
        self.transactions = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with self._server.connect(DATABASE) as connection, connection.cursor() as cursor:
                while True:
                    for table in self._tables:
                        if self._over.wait(self._wait_s):
                            return
                        with self.lock:
                            self._change(cursor, table)
        except BaseException as error:  # reported by ``check``
            self.error = error

    def change_all(self) -> None:
        """Change every table once more. Call it while nothing else is written."""
        with self._server.connect(DATABASE) as connection, connection.cursor() as cursor:
            for table in self._tables:
                self._change(cursor, table)

    def check(self) -> None:
        """Raise the error that ended the thread."""
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """End the thread."""
        self._over.set()
        self.join()
        self.check()

    def _change(self, cursor: Any, table: str) -> None:
        draw, new = self._draw, self._next[table]
        cursor.execute("BEGIN")
        for _ in range(draw.randint(1, 3)):
            old, note = draw.randrange(new + 1), "".join(draw.choices("abcäöü€😀'\\\n ", k=draw.randint(0, 40)))
            values = (draw.randint(0, 9), note if draw.random() < 0.9 else None, draw.randint(-(10**9), 10**9) / 100)
            kind = draw.random()
            if kind < 0.6 or not new:
                sql = f"INSERT INTO {table} VALUES (%s, %s, %s, %s, NOW(6))"
                cursor.execute(sql, (new, *values))
                new += 1
            elif kind < 0.85:
                sql = f"UPDATE {table} SET step = %s, note = %s, amount = %s, changed_at = NOW(6) WHERE id = %s"
                cursor.execute(sql, (*values, old))
            else:
                cursor.execute(f"DELETE FROM {table} WHERE id = %s", (old,))
        cursor.execute("COMMIT")
        self._next[table] = new
        self.transactions += 1


class Fleet:
    """Servers, hosts and jobs. Use ``running_fleet``."""

    def __init__(
        self, source: LocalServer, line: HostLines, store_server: LocalServer, store: SqlStore, hosts: list[FleetHost],
        jobs: list[str], warehouse: Path, *, shares_spark: bool,
    ) -> None:  # fmt: skip
        self.source, self.line, self.store_server, self.store = source, line, store_server, store
        self.hosts, self.jobs, self.warehouse, self.shares_spark = hosts, jobs, warehouse, shares_spark

    def end(self) -> End:
        """Return file and offset after the last event of the source."""
        connection = self.source.connect()
        with connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOG STATUS")
            file, offset = cursor.fetchone()[:2]
        return str(file), int(offset)

    def now(self, ahead_s: float = 0.0) -> str:
        """Return the time ``ahead_s`` seconds from now, as checkpoints have it."""
        return (datetime.now(UTC) + timedelta(seconds=ahead_s)).isoformat()

    def behind(self, end: End) -> set[str]:
        """Return the jobs that have not committed up to ``end``."""
        found = {name: self.store.last_committed(name) for name in self.jobs}
        return {name for name, one in found.items() if one is None or _place(one.last) < end}

    def wait_for_commits(self, end: End) -> None:
        """Wait until every job has committed up to ``end``."""
        deadline = time.monotonic() + LIMIT_S
        while left := self.behind(end):
            assert time.monotonic() < deadline, self.describe(left)
            time.sleep(0.2)

    def compare(self, writer: Writer, where: str) -> int:
        """Pause the writer, wait for all jobs, and compare all tables. Return the number of rows.

        Raises: AssertionError - a cell differs; the message has ``where``, the table and rows.
        """
        with writer.lock:
            writer.check()
            writer.change_all()
            self.wait_for_commits(self.end())
            rows = 0
            for name in self.jobs:
                found = proof.compare(self.source, f"{DATABASE}.{name}", self.warehouse / "ods" / name, ["id"])
                assert not found.differences, f"{where}: {name}: {found.differences}"
                rows += found.rows
        return rows

    def record(self, job: str) -> JobRecord:
        """Return the saved record of a job."""
        found = self.store.job(job)
        assert found is not None
        return found

    def host_of(self, record: JobRecord) -> FleetHost:
        """Return the host of the newest run of a job."""
        return next(host for host in self.hosts if host.name == record.host)

    def drivers(self) -> dict[str, list[int]]:
        """Return the process ids of the drivers of each job, on all hosts."""
        found: dict[str, list[int]] = {name: [] for name in self.jobs}
        for host in self.hosts:
            for process in host.processes():
                with suppress(psutil.Error):
                    words = process.cmdline()
                    if "--foreground" in words and "cdc.job.supervisor" not in words:
                        found[words[words.index("--name") + 1]].append(process.pid)
        return found

    def wait_for_one_driver_each(self) -> None:
        """Wait until every job has one driver: an older one that lost its lease has ended."""
        deadline = time.monotonic() + LIMIT_S
        found = self.drivers()
        while any(len(pids) != 1 for pids in found.values()):
            assert time.monotonic() < deadline, f"drivers: {found}"
            time.sleep(0.5)
            found = self.drivers()

    def describe(self, jobs: Collection[str]) -> str:
        """Return what is known of jobs, for the message of a failed test."""
        lines = []
        for name in sorted(jobs):
            record = self.record(name)
            events = [
                f"{one.created_at:.1f} {one.kind} {one.message}" for one in self.store.events.newest(name, limit=8)
            ]
            alive = is_driver_alive(record)
            lines.append(f"{name}: {record.state} on {record.host}, alive {alive}, {record.reason}; {events[::-1]}")
            host = next((one for one in self.hosts if one.name == record.host), None)
            log = host.home / "jobs" / name / "driver.log" if host is not None else None
            if log is not None and log.exists():
                lines.append(log.read_text(errors="replace")[-1500:])
        return "\n".join(lines)


def _place(position: object) -> End:
    assert isinstance(position, BinlogPosition)
    return position.file, position.offset


@contextmanager
def running_fleet(
    folder: Path, *, hosts: int, jobs: int, lease_s: float, shares_spark: bool = False, interval_s: float = 1.0,
    rebalance_s: float | None = None, prepare: Callable[[Sequence[FleetHost]], None] = lambda hosts: None,
) -> Iterator[Fleet]:  # fmt: skip
    """Start servers, hosts and jobs. Yield when every job has committed its first checkpoint.

    ``shares_spark``: one Spark for all jobs of a host, instead of one for each job. ``interval_s``: of their commits.
    ``rebalance_s``: of the hosts. ``prepare`` gets the hosts before they start.
    """
    names = [f"t{number:02}" for number in range(jobs)]
    options = ("--max-connections=1000",)
    with ExitStack() as stack:
        binaries = obtain("mysql")
        source = stack.enter_context(
            LocalServer.start(binaries, folder / "source", options=("--binlog-row-metadata=FULL", *options))
        )
        store_server = stack.enter_context(
            LocalServer.start(binaries, folder / "store", options=("--skip-log-bin", *options))
        )
        source.create_user("cdc", PASSWORD)
        source.execute(f"CREATE DATABASE {DATABASE}", *(f"CREATE TABLE {DATABASE}.{name} {_TABLE}" for name in names))
        environment = create_database(store_server, STATE)
        line = stack.enter_context(HostLines(source.port))
        keys = _SHARED_SPARK if shares_spark else ""
        keys += f"rebalance: {rebalance_s}s\n" if rebalance_s is not None else ""
        found = []
        for number in range(hosts):
            own = stack.enter_context(TcpProxy(store_server.port))
            url = environment["CDC_STORE"].replace(f":{store_server.port}/", f":{own.port}/")
            own_store = {**environment, "CDC_STORE": url}
            found.append(FleetHost(f"h{number}", folder, own_store, own, lease_s=lease_s, keys=keys))
            stack.callback(found[-1].kill)
        store = open_store(environment=environment, folder=folder / "reader")
        stack.callback(store.close)
        fleet = Fleet(source, line, store_server, store, found, names, folder / "warehouse", shares_spark=shares_spark)
        file, offset = fleet.end()
        for name in names:
            text = _JOB.format(
                name=name, port=line.port, file=file, offset=offset, warehouse=fleet.warehouse, database=DATABASE,
                interval_s=interval_s,
            )  # fmt: skip
            declare(store, read_spec(text if shares_spark else text + _OWN_SPARK), actor="fleet")
        prepare(found)
        for host in found:
            host.launch()
        fleet.wait_for_commits((file, offset))
        yield fleet
        for host in found:  # the folder is deleted next
            host.signal_all(signal.SIGCONT)
