"""A Task on a real standalone cluster: one master and two workers from the installed PySpark, on loopback."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psutil
import pyarrow as pa
import pyspark
import pytest
from deltalake import DeltaTable

from cdc.errors import SinkUnavailable
from cdc.model.batch import Changes
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE, Column, Kind, TableSchema
from channels.channel import Channel
from channels.mapping import Mapping
from channels.sinks.base import SinkCheckpoint
from channels.sinks.delta.sink import DeltaSink
from channels.spark_runner import SparkTaskRunner
from channels.task import RunIdentity
from spark.session import SessionHolder

SPARK_HOME = Path(pyspark.__file__).parent
SCHEMA = TableSchema("shop", "orders", (Column("id", Kind.INT, "int", nullable=False),), ("id",))


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _start(stack: ExitStack, folder: Path, *command: str) -> None:
    # a separate folder and no PYTHONPATH: executors get the packages of the project from the driver only
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false"}
    log = stack.enter_context(
        (folder / f"{command[0].rpartition('.')[2]}-{len(list(folder.iterdir()))}.log").open("wb")
    )
    process = subprocess.Popen(
        [str(SPARK_HOME / "bin/spark-class"), *command], cwd=folder, env=environment, stdout=log, stderr=log
    )

    def stop() -> None:
        process.terminate()
        process.wait(240)

    stack.callback(stop)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, port, web = tmp_path_factory.mktemp("cluster"), _free_port(), _free_port()
    with ExitStack() as stack:
        url = f"spark://127.0.0.1:{port}"
        deploy = "org.apache.spark.deploy"
        _start(stack, folder, f"{deploy}.master.Master", "-h", "127.0.0.1", "-p", str(port), "--webui-port", str(web))
        for _ in range(2):
            _start(
                stack,
                folder,
                f"{deploy}.worker.Worker",
                *("-c", "1", "-m", "700m", "-h", "127.0.0.1", "--webui-port", "0", "-d", str(folder / "work"), url),
            )
        deadline = time.monotonic() + 300
        while _alive_workers(web) < 2:
            assert time.monotonic() < deadline, "the cluster did not start"
            time.sleep(0.5)
        yield url


def _alive_workers(web: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{web}/json/", timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])
    except OSError:
        return 0


def test_executors_get_the_packages_and_write_the_loads(master: str, tmp_path: Path) -> None:
    # PySpark has one session per process, and another test may have created it
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        process.submit(_load_and_kill, master, tmp_path).result()


def _load_and_kill(master: str, tmp_path: Path) -> None:
    conf = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    sink, sessions = DeltaSink(tmp_path), SessionHolder("cluster-test", master, conf)
    runner = SparkTaskRunner(sessions, sink)
    channels = [Channel(Mapping(f"shop.t{number}", f"ods.t{number}"), SCHEMA) for number in range(4)]
    for channel in channels:
        sink.ensure_table(channel.target)
    try:
        loads = [load for future in runner.submit(_tasks(channels, 1)) for load in future.result()]
        assert sessions.get().sparkContext.master == master
        sink.commit(
            loads, SinkCheckpoint("shop", "0badcafe", 1, 1, BinlogPosition("b.1", 4), BinlogPosition("b.1", 4), 2)
        )
        assert [DeltaTable(str(tmp_path / f"ods/t{number}")).count() for number in range(4)] == [2] * 4

        assert _kill_executors() >= 1
        loads = [load for future in runner.submit(_tasks(channels, 2)) for load in future.result()]
        assert len(loads) == 4, "another executor runs the Tasks"

        sink._staging._probe = lambda: "seen-elsewhere"  # type: ignore[method-assign]
        for future in runner.submit(_tasks(channels, 3)):
            with pytest.raises(SinkUnavailable, match="does not see"):
                future.result()
    finally:
        runner.close()
        sink.close()


def _kill_executors() -> int:
    """Kill every executor that the workers of this test have started. Return their number."""
    found = []
    for process in psutil.Process(os.getppid()).children(recursive=True):
        with contextlib.suppress(psutil.ZombieProcess, psutil.NoSuchProcess):  # launchers start and end meanwhile
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                found.append(process)
    for process in found:
        process.kill()
    return len(found)


def _tasks(channels: list[Channel], checkpoint: int) -> list:  # type: ignore[type-arg]
    rows = {"id": pa.array([1, 2], pa.int32()), DELETED: pa.array([False] * 2), SEQUENCE: pa.array([1, 2], pa.int64())}
    for channel in channels:
        channel.add(Changes(SCHEMA, pa.RecordBatch.from_pydict(rows)))
    return [channel.task_for(RunIdentity("shop", "0badcafe", 1), checkpoint) for channel in channels]
