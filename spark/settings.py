"""Settings of the Spark session, and options of its JVM."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from spark.gateway import JvmFolder

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_ROOT = Path(__file__).resolve().parent.parent
_MIB = 1 << 20
_COLLECTOR, _FAST_COMPILER = "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"
_ONE_MACHINE = re.compile(r"local(\[[^\]]*\])?")  # not local-cluster[...], whose executors are other JVMs


def is_local(master: str) -> bool:
    """Return whether the executors run on this machine."""
    return master.startswith("local")


def available_cores() -> int:
    """Return the cores that this process may use, at least 1."""
    found = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):  # no container, or one without a limit ("max")
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        found = min(found, -(-int(quota) // int(period)))
    return max(1, found)


def local_cores(master: str) -> int | None:
    """Return how many partitions run at once in a JVM of this machine; None with executors elsewhere.

    Source: Spark manual, "Master URLs".
    """
    if not _ONE_MACHINE.fullmatch(master):
        return None
    number = master.partition("[")[2].rstrip("]").partition(",")[0].strip()
    if number == "*":
        return available_cores()
    return int(number) if number.isdecimal() else 1


def has_authentication(master: str, conf: Mapping[str, str]) -> bool:
    """Return whether this Spark's ports accept only processes that know a secret."""
    default = "true" if _ONE_MACHINE.fullmatch(master) else "false"
    return conf.get("spark.authenticate", default).lower() == "true"


RUNTIME: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # otherwise Spark reads a timestamp without a zone (DATETIME) as an instant
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    # send rows to the executors as Arrow batches, not row by row in a local relation
    "spark.sql.execution.arrow.localRelationThreshold": "0",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # also determines the partitions of a DataFrame from Arrow; a partition must not be smaller than a Task
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.enabled": "false",  # it would run the shuffle of a Task as a separate job
}


def static_settings(master: str) -> dict[str, str]:
    """Return the settings that a JVM reads only at its start."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{driver_memory() // _MIB}m",
        "spark.python.worker.reuse": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "cdc-spark-warehouse"),
        "spark.log.level": "ERROR",
        "spark.cleaner.referenceTracking.blocking": "false",
        "spark.speculation": "false",  # overrides spark-defaults.conf: a copy of a task would load the same rows again
    }
    if _ONE_MACHINE.fullmatch(master):
        # other users of this machine can reach these ports; Spark creates the secret, which stays in its JVM
        settings["spark.authenticate"] = "true"
    if is_local(master):
        settings |= {
            # over TCP each task of a Python worker waits 40 ms for a delayed acknowledgement of the kernel;
            # on a cluster, the path of the temporary folder may be too long for a socket
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.executorEnv.PYTHONPATH": str(_ROOT),
            "spark.python.daemon.module": "spark.worker_daemon",  # executors of a cluster have their own PySpark
        }
    else:
        settings |= {
            "spark.driver.bindAddress": os.environ.get("SPARK_LOCAL_IP", "0.0.0.0"),  # noqa: S104 - executors call back
            "spark.rpc.message.maxSize": "1024",  # MiB: rows are sent within a task, and one row may be large
            # executors mostly pass rows to Python, so the collector and the compiler of the driver are enough for them
            "spark.executor.extraJavaOptions": f"{_COLLECTOR} {_FAST_COMPILER}",
        }
    return settings


def with_java_options(archive: str, job_options: str, folder: JvmFolder, *, forwards_rows: bool) -> str:
    """Return the project's options, then those of the job file. The last one wins, except for garbage collectors.

    ``forwards_rows``: the JVM may have to send rows to executors on other machines.
    """
    collector = "" if re.search(r"-XX:\+Use\w+GC\b", job_options) else _COLLECTOR
    if collector and not forwards_rows:
        collector += " -XX:NewSize=48m"  # for short-lived objects of queries; by default it begins with 128 MiB
    # temporary files in the folder of the job; the log has only errors, from the first line on
    paths = f'"-Djava.io.tmpdir={tempfile.gettempdir()}" "-Dlog4j2.configurationFile={folder.log_settings.as_uri()}"'
    # the JVM mostly copies bytes here, so the fast compiler is enough, and saves CPU seconds at the start
    return " ".join(filter(None, (collector, _FAST_COMPILER, paths, archive, job_options)))


def driver_memory() -> int:
    """Return an eighth of the memory, from 512 MiB to 2 GiB. The JVM only forwards rows, so this is enough."""
    return max(512 * _MIB, min(2048 * _MIB, psutil.virtual_memory().total // 8))
