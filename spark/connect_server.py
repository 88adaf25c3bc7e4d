"""A Spark Connect server on loopback that the jobs of one host share, and the file with its address.

The server continues when the process that started it ends, as drivers do. Its address has a token that is new for each
start: without it, any user of the machine could run code in the server. Its Python workers import the packages from the
folder of the process that started it, so drivers of another version need another server.

Source: Spark, "Spark Connect"; RFC 9113 (the connection preface of HTTP/2).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from cdc.errors import PrerequisiteError
from cdc.marked_processes import processes_with
from cdc.process_start import start_of
from spark.class_archive import archive_options
from spark.gateway import END_LIMIT_S, LOG4J, SOCKET_NAME, SOCKET_PATH_MOST
from spark.java import check_connect, check_java, check_spark_home
from spark.settings import JAVA_OPTIONS, static_settings

ADDRESS_FILE = "connect.json"
SPARK_CONNECT = "CDC_SPARK_CONNECT"  # environment variable of drivers: the address, or the folder of a shared server
_NOT_OF_A_SERVER = ("SPARK_REMOTE", "SPARK_CONNECT_MODE", "SPARK_CONNECT_MODE_ENABLED", SPARK_CONNECT)
# Spark's own main class of a server isolates the artifacts of sessions, so each session gets Python workers of its own.
# They cost 130 MiB a job, and their daemon never ends. As a plugin, the server follows the setting.
_PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"
_MAIN = """\
import os, time, traceback
from pyspark.sql import SparkSession
jvm = os.getppid()
session = SparkSession.builder.getOrCreate()
# the first job loads classes and starts the Python workers: before a driver waits for it
try:
    session.range(1).mapInArrow(lambda parts: parts, "id bigint").collect()
except Exception:
    traceback.print_exc()  # into the log; other jobs may work
while os.getppid() == jvm:
    time.sleep(1)
os._exit(1)
"""
_TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - a name
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"  # and an empty SETTINGS frame
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class ConnectServer:
    """A server process."""

    pid: int
    start: str  # see ``start_of``: the system may reuse the id
    port: int
    address: str  # with the token
    is_ready: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self.start != "" and start_of(self.pid) == self.start

    def answers(self, limit_s: float) -> bool:
        """Return whether the process itself listens on its port, and replies within ``limit_s``."""
        with suppress(psutil.Error, OSError):
            listening = psutil.Process(self.pid).net_connections("tcp")
            if any(one.status == psutil.CONN_LISTEN and one.laddr.port == self.port for one in listening):
                with socket.create_connection(("127.0.0.1", self.port), limit_s) as line:
                    line.sendall(_PREFACE)
                    return bool(line.recv(1))
        return False

    def end(self, limit_s: float = END_LIMIT_S) -> None:
        """Let it exit within ``limit_s``, then kill it with its process group."""
        for number, wait_s in ((signal.SIGTERM, limit_s), (signal.SIGKILL, limit_s)):
            deadline = time.monotonic() + wait_s
            if self.is_alive:
                with suppress(OSError):
                    os.killpg(self.pid, number)
            while self.is_alive and time.monotonic() < deadline:
                time.sleep(_POLL_S)


def start_server(folder: Path, memory: int | None = None) -> tuple[ConnectServer, subprocess.Popen[bytes]]:
    """Start a server, detached from this process. ``folder`` gets its address, log and temporary files.

    ``memory``: bytes of its heap; None: an eighth of the machine, from 512 MiB to 2 GiB. It listens after some seconds.
    Raises: PrerequisiteError - Java or a package is missing; OSError.
    """
    check_connect()
    check_java()
    check_spark_home()
    from pyspark.find_spark_home import _find_spark_home

    temporary, log4j, main = folder / "tmp", folder / "log4j2.properties", folder / "main.py"
    shutil.rmtree(temporary, ignore_errors=True)  # of a server that was killed
    temporary.mkdir(0o700, parents=True)
    log4j.write_text(LOG4J, encoding="ascii")
    main.write_text(_MAIN, encoding="ascii")
    port, token, home = _free_port(), secrets.token_urlsafe(24), _find_spark_home()
    settings = _settings(port, temporary, log4j, memory)
    command = [str(Path(home, "bin", "spark-submit")), "--master", "local[*]"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    own = {"SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable, "TMPDIR": str(temporary), _TOKEN: token}
    own |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(temporary)}
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_OF_A_SERVER}
    with os.fdopen(os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        process = subprocess.Popen(
            [*command, str(main)], env={**environment, **own}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    # not localhost: see ConnectChannelBuilder
    address = f"sc://127.0.0.1:{port}/;token={token}"
    server = ConnectServer(process.pid, start_of(process.pid), port, address)
    save_server(folder, server)
    return server, process


def _settings(port: int, temporary: Path, log4j: Path, memory: int | None) -> dict[str, str]:
    # the fast compiler and the archive of classes, as for the Spark of a driver
    options = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 {archive_options()}"
    settings = static_settings("local[*]") | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.plugins": _PLUGIN,
        "spark.sql.artifact.isolation.enabled": "false",
        "spark.scheduler.mode": "FAIR",  # a large Task of one job must not delay the others
        "spark.sql.warehouse.dir": str(temporary / "warehouse"),
        "spark.python.unix.domain.socket.dir": str(temporary),
        JAVA_OPTIONS: f'{options} "-Djava.io.tmpdir={temporary}" "-Dlog4j2.configurationFile={log4j.as_uri()}"',
    }
    if len(os.fsencode(temporary)) + SOCKET_NAME > SOCKET_PATH_MOST:
        settings["spark.python.unix.domain.socket.enabled"] = "false"  # TCP is slower, but has no paths
    if memory is not None:
        settings["spark.driver.memory"] = f"{memory >> 20}m"
    return settings


def save_server(folder: Path, server: ConnectServer) -> None:
    """Save the address of a server for drivers, and for the process that keeps it running."""
    new = folder / f".{ADDRESS_FILE}.{os.getpid()}"
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(asdict(server), file)
    new.replace(folder / ADDRESS_FILE)


def known_server(folder: Path) -> ConnectServer | None:
    """Return the server that was started last in ``folder``; None if it has ended."""
    with suppress(OSError, ValueError, TypeError):
        saved = json.loads((folder / ADDRESS_FILE).read_text(encoding="utf-8"))
        if "created_at" in saved:  # by an earlier version
            del saved["created_at"]
            saved["start"] = _start_with(saved["pid"], folder / "tmp")
        server = ConnectServer(**saved)
        return server if server.is_alive else None
    return None


def _start_with(pid: int, temporary: Path) -> str:
    """Return the start of a process with this TMPDIR; "" if there is none."""
    with suppress(psutil.Error):
        if psutil.Process(pid).environ().get("TMPDIR") == str(temporary):
            return start_of(pid)
    return ""


def is_shared_server(remote: str) -> bool:
    """Return whether ``remote`` is the folder of a shared server, and not an address."""
    return not remote.startswith("sc://")


def address_of(remote: str) -> str | None:
    """Return the address in ``remote``, or of the server of that folder; None while that server is not ready."""
    if not is_shared_server(remote):
        return remote
    server = known_server(Path(remote))
    return server.address if server is not None and server.is_ready else None


def wait_for_address(remote: str, limit_s: float, is_over: Callable[[], bool]) -> str:
    """Return the address of a server as soon as it is ready.

    Raises: PrerequisiteError - it is not ready within ``limit_s``, or ``is_over`` returns True.
    """
    deadline = time.monotonic() + limit_s
    while (found := address_of(remote)) is None:
        if is_over() or time.monotonic() > deadline:
            raise PrerequisiteError(
                f"The shared Spark Connect server of this host is not ready after {limit_s:.0f} s.",
                hint="Check that `cdc serve` runs, and its log; the job retries.",
                log=Path(remote) / "log",
            )
        time.sleep(_POLL_S)
    return found


def is_used(folder: Path) -> bool:
    """Return whether a driver of this user, or its supervisor, was started with the server of ``folder``."""
    return bool(processes_with(SPARK_CONNECT, str(folder)))


def ready(server: ConnectServer) -> ConnectServer:
    """Return ``server``, marked as ready."""
    return replace(server, is_ready=True)


def tokens_of(address: str) -> tuple[str, ...]:
    """Return the tokens in an address, for the filter of the log."""
    return tuple(re.findall(r";token=([^;]+)", address))


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])
