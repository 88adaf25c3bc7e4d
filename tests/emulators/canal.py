"""A real Canal server for tests: fetched with Maven once, started in a folder, stopped again."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from cdc.demo.local_servers import LocalServer, free_port
from cdc.errors import PrerequisiteError
from tests.emulators.maven import obtain_jars

USER, PASSWORD = "canal", "canal"
DESTINATION = "shop"
_PARTS = Path(__file__).parent / "canal_parts"
_START_TIMEOUT_S = 240.0  # of a machine that does much else


def obtain_canal() -> Path:
    """The folder with the server's jars. The first call downloads 40 MB.

    Raises: PrerequisiteError - no Maven, no Java, or nothing to be had.
    """
    return obtain_jars("canal", _PARTS / "pom.xml", _compile)


def _compile(jars: Path) -> None:
    """Compiled once: java's source mode would cost seconds at every start."""
    command = ["javac", "-cp", f"{jars}/*", "-d", str(jars), str(_PARTS / "CanalForTests.java")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise PrerequisiteError(f"javac failed: {done.stderr[-500:]}", hint="apt-get install openjdk-17-jdk-headless")


class CanalServer:
    """A Canal server of our own on loopback that reads from a ``LocalServer``. Use as a context manager.

    ``durable``: its cursor survives a restart. Without a cursor it starts at the source's end of binlog.
    ``quick_start``: with a compiler that makes tests quick and the server slow.
    ``tsdb``: a table has the columns that it had in the binlog, not those of now. A restart forgets them.
    """

    _program = "CanalForTests"

    def __init__(
        self,
        jars: Path,
        folder: Path,
        source: LocalServer,
        *,
        durable: bool = True,
        entries: int = 16384,
        transaction_size: int = 1024,
        mode: str = "MEMSIZE",
        gtid: bool = False,
        time_zone: str = "UTC",
        filter_dml: bool = True,
        filter_edges: bool = False,
        password: bool = True,
        quick_start: bool = True,
        tsdb: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.host = "127.0.0.1"
        self.port = free_port()
        self.log = folder / "canal.log"
        self._jars = jars
        self.source = source
        self._process: subprocess.Popen[bytes] | None = None
        self._quick = ["-XX:TieredStopAtLevel=1"] if quick_start else []
        hashed = hashlib.sha1(hashlib.sha1(PASSWORD.encode()).digest()).hexdigest()
        self._settings = {
            "canal.port": self.port,
            "canal.destination": DESTINATION,
            "canal.user": USER if password else "",
            "canal.password.hash": hashed if password else "",
            "canal.cursor": "file" if durable else "memory",
            "canal.folder": folder,
            "canal.flush.ms": 100,
            "canal.buffer.entries": entries,
            "canal.buffer.unit": 1024,
            "canal.buffer.mode": mode,
            "canal.ddl.isolation": "false",
            "canal.slave": 5000 + self.port % 1000,
            "canal.filter": r".*\..*",
            "canal.filter.dml": str(filter_dml).lower(),
            "canal.filter.edges": str(filter_edges).lower(),
            "canal.transaction.size": transaction_size,
            "canal.source.user": "canal",
            "canal.source.password": "canal",
            "canal.gtid": str(gtid).lower(),
            "canal.tsdb": str(tsdb).lower(),
            "user.timezone": time_zone,
            "file.encoding": "UTF-8",
            "logback.configurationFile": _PARTS / "logback.xml",
        }

    @property
    def address(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> CanalServer:
        self.launch()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def launch(self) -> None:
        """Start; without a cursor of its own the stream begins where the source's binlog ends now."""
        _grant(self.source)
        file, offset = self._start_without_cursor()
        settings = {**self._settings, "canal.start.file": file, "canal.start.offset": offset}
        settings["canal.source"] = f"127.0.0.1:{self.source.port}"
        settings["canal.start.gtid"] = _seen(self.source) if settings["canal.gtid"] == "true" else ""
        wrapper = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        command = [*wrapper, "java", "-Xmx512m", "-XX:+UseSerialGC", *self._quick]
        command += [f"-D{name}={value}" for name, value in settings.items()]
        command += ["-cp", f"{self._jars}:{self._jars}/*", self._program, str(_PARTS / "instance.xml")]
        start = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        # "find start position" is written once the source's binlog is being read
        self._await(lambda: "find start position successfully" in self._log_from(start) and self._listening())

    def stop(self) -> None:
        """Shut down cleanly. Harmless when repeated."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End at once, as a crash would."""
        self._end(signal.SIGKILL)

    def forget(self) -> None:
        """Lose the cursor, as a memory-only server does at every restart."""
        (self.log.parent / DESTINATION / "meta.dat").unlink()

    def restart(self) -> None:
        """Stop and start again, on the same port and folder."""
        self.stop()
        self.launch()

    def _start_without_cursor(self) -> tuple[str, int]:
        return end_of_binlog(self.source)

    def _log_from(self, start: int) -> str:
        return self.log.read_bytes()[start:].decode(errors="replace")

    def _listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0

    def _await(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self._process is not None and self._process.poll() is None and time.monotonic() < deadline:
            if ready():
                return
            time.sleep(0.1)
        self.kill()
        raise PrerequisiteError(f"Canal did not start: {self._log_from(0)[-3000:]}", hint=f"See {self.log}.")

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            os.kill(process.pid, how)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _grant(source: LocalServer) -> None:
    connection = source.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM mysql.user WHERE user = 'canal'")
        known = cursor.fetchone()[0]
    if not known:
        source.create_user("canal", "canal")


def _seen(source: LocalServer) -> str:
    """The GTIDs of all that is in the binlog."""
    connection = source.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@gtid_executed")
        return str(cursor.fetchone()[0]).replace("\n", "")


def end_of_binlog(source: LocalServer) -> tuple[str, int]:
    """File and offset behind the last event."""
    statement = "SHOW BINARY LOG STATUS" if source.binaries.kind == "mysql" else "SHOW MASTER STATUS"
    connection = source.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
    return str(row[0]), int(row[1])
