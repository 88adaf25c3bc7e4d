"""A real standalone cluster on this machine: one master and some workers from the installed PySpark, on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from cdc.demo.local_servers import free_port

SPARK_HOME = Path(pyspark.__file__).parent
_DEPLOY = "org.apache.spark.deploy"


@dataclass(frozen=True)
class SparkCluster:
    """A running cluster."""

    url: str
    workers: tuple[int, ...]  # process ids

    def executors(self) -> list[psutil.Process]:
        """Return the processes of all executors that run now."""
        found = []
        for worker in self.workers:
            for process in psutil.Process(worker).children(recursive=True):
                with contextlib.suppress(psutil.Error):  # launchers start and end meanwhile
                    if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                        found.append(process)
        return found


@contextmanager
def standalone_cluster(folder: Path, *, workers: int = 2, memory: str = "700m") -> Iterator[SparkCluster]:
    """Start a cluster whose workers have one core each, and ``memory`` for executors. Its files are in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    port, web = free_port(), free_port()
    with ExitStack() as stack:
        url = f"spark://127.0.0.1:{port}"
        master = (f"{_DEPLOY}.master.Master", "-h", "127.0.0.1", "-p", str(port), "--webui-port", str(web))
        _start(stack, folder, "master", *master)
        size = ("-c", "1", "-m", memory, "-h", "127.0.0.1", "--webui-port", "0", "-d", str(folder / "work"))
        pids = [_start(stack, folder, f"worker{one}", f"{_DEPLOY}.worker.Worker", *size, url) for one in range(workers)]
        deadline = time.monotonic() + 300
        while _alive_workers(web) < workers:
            assert time.monotonic() < deadline, "the cluster did not start"
            time.sleep(0.5)
        yield SparkCluster(url, tuple(pids))


def _start(stack: ExitStack, folder: Path, name: str, *command: str) -> int:
    # a separate folder and no PYTHONPATH: executors get the packages of the project from the driver only
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false"}
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    process = subprocess.Popen(
        [str(SPARK_HOME / "bin/spark-class"), *command], cwd=folder, env=environment, stdout=log, stderr=log
    )

    def stop() -> None:
        process.terminate()
        process.wait(240)

    stack.callback(stop)
    return process.pid


def _alive_workers(web: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{web}/json/", timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (
        OSError,
        json.JSONDecodeError,
    ):  # a starting master adds its pages one by one: "/" answers before "/json/" is there
        return 0
