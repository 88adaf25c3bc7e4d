"""A real Spark Connect server from the installed PySpark, which many jobs share."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pyspark

from cdc.demo.local_servers import free_port
from spark.child_processes import end_group, kill_group, start_child

SPARK_HOME = Path(pyspark.__file__).parent
START_S = 300.0
_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer:
    """Spark's own Connect server on loopback. Use it as a context manager."""

    def __init__(self, folder: Path, *, master: str = "local[2]", conf: Mapping[str, str] | None = None) -> None:
        """``folder``: for its log and its warehouse."""
        self.port = free_port()
        self.log = folder / "connect.log"
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.warehouse.dir": str(folder / "connect-warehouse"),
            **(conf or {}),
        }
        options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        submit = [str(SPARK_HOME / "bin/spark-submit"), "--master", master, "--class", _SERVER, *options]
        self._command = [*submit, "spark-internal"]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The address for `spark.remote`."""
        return f"sc://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Process id of the parent of all processes of the server."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> ConnectServer:
        self.launch()
        deadline = time.monotonic() + START_S
        while not self.listens():
            assert self._process is not None and self._process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, self.log.read_text()[-2000:]
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            end_group(self._process, 30)

    def launch(self) -> None:
        """Start the server, without waiting."""
        # workers get the packages of the project from the job only
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable}
        with self.log.open("ab") as log:
            self._process = start_child(self._command, environment, stdout=log.fileno(), stderr=log.fileno())

    def kill(self) -> None:
        """End all processes of the server at once."""
        assert self._process is not None
        kill_group(self._process)

    def listens(self) -> bool:
        """Return whether the server accepts connections."""
        with socket.socket() as line:
            return line.connect_ex(("127.0.0.1", self.port)) == 0
