"""Spark's JVM: start it within a time limit and with a private folder, and kill it with its child processes.

PySpark's own launch waits without a limit for the file in which the JVM reports its port. It waits forever if the disk
is full, if the folder of the file is deleted, or if the JVM exits with code 0.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from cdc.errors import PrerequisiteError
from cdc.logging_setup import SECRET_SETTING
from spark.child_processes import end_group, kill_group, start_child

START_LIMIT_S = 180.0  # 3 to 10 s on an idle machine, minutes on a busy one
END_LIMIT_S = 20.0  # its shutdown hooks delete temporary files
_POLL_S = 0.01
SOCKET_PATH_MOST = 106  # bytes at most: unix(7) allows 107, and Java one less
SOCKET_NAME = len("/.01234567-0123-0123-0123-0123456789ab.sock")
_FOLDER = "cdc-spark-"
_FOLDER_NAME = len(f"/{_FOLDER}4194304-01234567")
LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


class JvmFolder:
    """A private folder for the gateway's port and token, log settings, sockets and files for executors."""

    def __init__(self) -> None:
        """Create the folder. Raises: PrerequisiteError - it cannot be created."""
        base = Path(tempfile.gettempdir())
        if len(os.fsencode(base)) + _FOLDER_NAME + SOCKET_NAME > SOCKET_PATH_MOST:
            base = Path("/tmp")  # noqa: S108 - the path of a socket must be short; the folder in /tmp is private
        try:
            _delete_orphans(base)
            self.path = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-", dir=base))
            self.connection = self.path / "connection"
            self.log_settings = self.path / "log4j2.properties"
            self.log_settings.write_text(LOG4J, encoding="ascii")
        except OSError as error:
            raise _not_possible(error, base) from error

    def delete(self) -> None:
        """Delete the folder. A repeated call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)


def _delete_orphans(base: Path) -> None:
    """Delete the folders of killed processes of this user."""
    for path in base.glob(f"{_FOLDER}*"):
        owner = re.fullmatch(rf"{_FOLDER}(\d+)-\w+", path.name)
        with suppress(OSError):
            if owner and path.lstat().st_uid == os.getuid() and not psutil.pid_exists(int(owner[1])):
                shutil.rmtree(path, ignore_errors=True)


class Jvm:
    """The process of one JVM, from its launch to its end."""

    def __init__(self, process: subprocess.Popen[bytes], folder: JvmFolder) -> None:
        self.process = process
        self._folder = folder

    @property
    def is_alive(self) -> bool:
        """Return whether its process runs."""
        return self.process.poll() is None

    def create_folder(self) -> Path:
        """Create a folder for files that the JVM reads as long as it runs; executors that start later fetch them."""
        return Path(tempfile.mkdtemp(dir=self._folder.path))

    def kill(self) -> None:
        """Kill it and its process group. Calls that wait for a reply get an error."""
        kill_group(self.process)
        self._folder.delete()

    def end(self, limit_s: float = END_LIMIT_S) -> None:
        """Let it exit within ``limit_s``, then kill the rest of its process group."""
        end_group(self.process, limit_s)
        self._folder.delete()


def launch_jvm(
    settings: Mapping[str, str],
    master: str,
    folder: JvmFolder,
    limit_s: float,
    started: Callable[[Jvm], None] = lambda _: None,
) -> Jvm:
    """Start the JVM, wait for its reply, and connect PySpark to it. It gets no secrets: its command line is public.

    ``started`` is called with the JVM as soon as its process exists, so that another thread can kill it.
    Raises: PrerequisiteError - it did not reply within ``limit_s`` seconds and was killed, or it exited.
    """
    jvm: Jvm | None = None
    try:
        jvm = Jvm(_start(settings, master, folder), folder)
        started(jvm)
        port, token = _connection(jvm, folder, limit_s)
        with killed_after(jvm, limit_s):
            _connect(jvm, port, token)
    except BaseException as error:
        if jvm is not None:
            jvm.kill()
        folder.delete()
        forget_jvm()
        if isinstance(error, OSError):
            raise _not_possible(error, folder.path) from error
        raise
    return jvm


def _not_possible(error: OSError, folder: Path) -> PrerequisiteError:
    return PrerequisiteError(
        f"Spark's JVM cannot be started: {error.strerror or error}.",
        hint="Free space or memory; the job retries.",
        folder=folder,
    )


def _start(settings: Mapping[str, str], master: str, folder: JvmFolder) -> subprocess.Popen[bytes]:
    from pyspark.find_spark_home import _find_spark_home

    home = _find_spark_home()
    command = [str(Path(home, "bin", "spark-submit")), "--conf", f"spark.master={master}"]
    for name, value in settings.items():
        if not SECRET_SETTING.search(name):
            command += ["--conf", f"{name}={value}"]
    command += shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell"))
    own = {"SPARK_HOME": home, "SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(folder.connection)}
    # the JVM exits at the end of its standard input, which stays open while this process runs
    return start_child(command, {**os.environ, **own}, stdin=subprocess.PIPE)


def _connection(jvm: Jvm, folder: JvmFolder, limit_s: float) -> tuple[int, str]:
    """Wait until the JVM has written port and token, and return them. Source: PythonGatewayServer.scala."""
    deadline = time.monotonic() + limit_s
    while True:
        code = jvm.process.poll()
        with suppress(FileNotFoundError):
            data = folder.connection.read_bytes()
            if len(data) >= 8:
                port, size = struct.unpack(">ii", data[:8])
                if len(data) == 8 + size:
                    return port, data[8:].decode("utf-8")
        if code is not None:
            raise PrerequisiteError(
                f"Spark's JVM exited with code {code} while it started.",
                hint="`cdc logs NAME` has its messages; check disk space, memory and `spark.conf`. The job retries.",
            )
        if not folder.path.is_dir():
            raise PrerequisiteError(
                "The temporary folder of Spark was deleted while its JVM started.",
                hint="Keep other programs out of the temporary folder; the job retries.",
                folder=folder.path,
            )
        if time.monotonic() > deadline:
            raise not_started(limit_s)
        time.sleep(_POLL_S)


def not_started(limit_s: float) -> PrerequisiteError:
    """Return the error for a JVM that does not reply."""
    return PrerequisiteError(
        f"Spark's JVM did not start within {limit_s:.0f} s and was killed.",
        hint="Check disk space (also of the temporary folder) and the load of the machine. The job retries.",
    )


def _connect(jvm: Jvm, port: int, token: str) -> None:
    """Connect PySpark through two variables, which are deleted at once, so that no child process inherits them."""
    from pyspark import SparkConf, SparkContext

    with SparkContext._lock:
        os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(port), token
        try:
            SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False))
        finally:
            os.environ.pop("PYSPARK_GATEWAY_PORT", None)
            os.environ.pop("PYSPARK_GATEWAY_SECRET", None)
        gateway: Any = SparkContext._gateway
        gateway.proc = jvm.process


@contextmanager
def killed_after(jvm: Jvm, limit_s: float) -> Iterator[None]:
    """Kill the JVM if the body takes longer than ``limit_s``. Calls into a JVM that hangs do not return otherwise.

    Raises: PrerequisiteError - in place of the error that the body raises after the kill.
    """
    expired = threading.Event()

    def kill() -> None:
        expired.set()
        jvm.kill()

    timer = threading.Timer(limit_s, kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception as error:
        if expired.is_set():
            raise not_started(limit_s) from error
        raise
    finally:
        timer.cancel()


def forget_jvm() -> None:
    """Remove a dead JVM from PySpark, so that the next session starts a new one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context: Any = SparkContext._active_spark_context
    gateway: Any = SparkContext._gateway
    if context is not None:
        with suppress(Exception):  # the JVM is dead; only this end must be closed
            context._accumulatorServer.shutdown()
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
        with suppress(Exception):
            gateway.proc.stdin.close()
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
