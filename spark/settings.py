"""Settings of the Spark session: those that the project needs, and the options of its JVM."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil

from spark.gateway import JvmFolder

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_ROOT = Path(__file__).resolve().parent.parent
_MIB = 1 << 20
_ONE_MACHINE = re.compile(r"local(\[[^\]]*\])?")  # not local-cluster[...], whose executors are other JVMs


def is_local(master: str) -> bool:
    """Whether executors are this machine's."""
    return master.startswith("local")


def has_authentication(master: str, conf: Mapping[str, str]) -> bool:
    """Whether only processes that know a secret can talk to this Spark's ports."""
    default = "true" if _ONE_MACHINE.fullmatch(master) else "false"
    return conf.get("spark.authenticate", default).lower() == "true"


RUNTIME: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    # else a timestamp without a zone (DATETIME) is taken for an instant
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    # rows go to the executors as Arrow batches, and not row by row through a relation of the driver
    "spark.sql.execution.arrow.localRelationThreshold": "0",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # also decides how many partitions a DataFrame made of Arrow has: never less than a Task is meant to be
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.enabled": "false",  # would run a Task's shuffle as a job of its own
}


def static_settings(master: str) -> dict[str, str]:
    """Settings that a JVM takes at its start only."""
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": f"{_driver_memory() // _MIB}m",
        "spark.python.worker.reuse": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "cdc-spark-warehouse"),
        "spark.log.level": "ERROR",
        "spark.cleaner.referenceTracking.blocking": "false",
        "spark.speculation": "false",  # whatever spark-defaults.conf says: a copy of a task loads the same rows again
    }
    if _ONE_MACHINE.fullmatch(master):
        # other users of this machine reach these ports; Spark draws the secret, which stays in its JVM
        settings["spark.authenticate"] = "true"
    if is_local(master):
        settings |= {
            # over TCP each task of a Python worker waits 40 ms for an acknowledgement that the kernel holds back;
            # executors of a cluster may have temporary folders whose names are too long for a socket
            "spark.python.unix.domain.socket.enabled": "true",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.executorEnv.PYTHONPATH": str(_ROOT),
            "spark.python.daemon.module": "spark.daemon",  # a cluster's executors import PySpark as it is set up there
        }
    else:
        settings |= {
            "spark.driver.bindAddress": os.environ.get("SPARK_LOCAL_IP", "0.0.0.0"),  # noqa: S104 - executors call back
            "spark.rpc.message.maxSize": "1024",  # MiB: rows travel within a task, and one row may be large
        }
    return settings


def with_java_options(archive: str, theirs: str, folder: JvmFolder) -> str:
    """The project's options, then those of a job file: the last one wins, but the JVM takes one collector only."""
    collector = "" if re.search(r"-XX:\+Use\w+GC\b", theirs) else "-XX:+UseSerialGC"
    # its temporary files are in the job's folder, and its log has errors only, from the first line on
    paths = f'"-Djava.io.tmpdir={tempfile.gettempdir()}" "-Dlog4j2.configurationFile={folder.log_settings.as_uri()}"'
    # most of the JVM's work here is copying bytes: the quick compiler is enough, and saves CPU seconds at start
    return " ".join(filter(None, (collector, "-XX:TieredStopAtLevel=1", paths, archive, theirs)))


def _driver_memory() -> int:
    """An eighth of the machine, within 512 MiB and 2 GiB: rows pass through the JVM, they do not stay in it."""
    return max(512 * _MIB, min(2048 * _MIB, psutil.virtual_memory().total // 8))
