"""The Spark session: ours to build, open to ``spark.conf``, and built anew when its JVM dies."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from cdc.logs import SECRET_SETTING
from spark.archive import archive_options, ensure_archive
from spark.shared import SharedRows, is_shared

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_PACKAGES = ("cdc", "channels", "spark")
_ROOT = Path(__file__).resolve().parent.parent
_MIB = 1 << 20
_SOCKET_PATH = 106  # bytes of it at most: unix(7) has 107, and Java one less
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SOCKET_NAME = len("/.01234567-0123-0123-0123-0123456789ab.sock")

logger = logging.getLogger(__name__)


def build_session(
    app_name: str,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    remote: str | None = None,
    java_options: str = "",
) -> SparkSession:
    """A session with our settings, and ``conf`` on top of them. With ``remote`` (``sc://...``) over Spark Connect.

    Calls: takes seconds, a JVM is started.
    """
    from pyspark.sql import SparkSession

    if remote is None and not _is_local(master):
        # a cluster may have a Python of its own for jobs: an archive that it ships, an image
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable  # else workers run whatever python3 the path has
    # pyspark.pandas warns at import when pandas has another version than it likes; nothing here uses pandas
    os.environ.setdefault("PYARROW_IGNORE_TIMEZONE", "1")
    settings = {**_RUNTIME, **(conf or {})}
    if remote is not None:
        builder = SparkSession.builder.remote(remote).appName(app_name)
    else:
        settings = {**_static(master), **settings}
        settings[_JAVA_OPTIONS] = _java_options(java_options or archive_options(), settings.get(_JAVA_OPTIONS, ""))
        if _is_local(master):
            os.environ.setdefault("SPARK_LOCAL_IP", settings["spark.driver.bindAddress"])
        builder = SparkSession.builder.master(master).appName(app_name)
        _launch(settings, master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark_session: SparkSession = builder.getOrCreate()
    _ship(spark_session, master, remote)
    if remote is None:
        spark_session.sparkContext.setLogLevel("ERROR")
    return spark_session


def _is_local(master: str) -> bool:
    """Whether executors are this machine's."""
    return master.startswith("local")


def _launch(settings: Mapping[str, str], master: str) -> None:
    """Start the JVM ahead of its session, without secrets: it is told settings by its command line, for all to read.

    The session tells them to the JVM that runs by then, over its socket. Harmless when there is one already.
    """
    from pyspark import SparkConf, SparkContext

    plain = [(name, value) for name, value in settings.items() if not SECRET_SETTING.search(name)]
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setMaster(master).setAll(plain))


_RUNTIME: Mapping[str, str] = {
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


def _static(master: str) -> dict[str, str]:
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
    if _is_local(master):
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


def _java_options(archive: str, theirs: str) -> str:
    """Ours, and a job file's behind them: the JVM heeds the last word, but takes one collector only."""
    collector = "" if re.search(r"-XX:\+Use\w+GC\b", theirs) else "-XX:+UseSerialGC"
    # most of the JVM's work here is copying bytes: the quick compiler is enough, and saves CPU seconds at start
    return " ".join(filter(None, (collector, "-XX:TieredStopAtLevel=1", _places(), archive, theirs)))


def _places() -> str:
    """Java options: temporary files lie where ours do, and Spark's warnings stay out of our log from its first line."""
    folder = Path(tempfile.gettempdir())
    path = folder / f"cdc-log4j2-{os.getuid()}.properties"
    path.write_text(_LOG4J, encoding="ascii")
    quiet = f"-Dlog4j2.configurationFile={path.as_uri()}"
    # Spark puts its sockets among its temporary files, and the path of a socket is short
    return f'"-Djava.io.tmpdir={folder}" {quiet}' if len(os.fsencode(folder)) + _SOCKET_NAME <= _SOCKET_PATH else quiet


_LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
"""


def _driver_memory() -> int:
    """An eighth of the machine, within 512 MiB and 2 GiB: rows pass through the JVM, they do not stay in it."""
    return max(512 * _MIB, min(2048 * _MIB, psutil.virtual_memory().total // 8))


def _ship(spark_session: SparkSession, master: str, remote: str | None) -> None:
    if remote is None and _is_local(master):
        return  # executors are this machine's, and find our packages by PYTHONPATH
    archive = Path(tempfile.mkdtemp(prefix="cdc-packages-")) / "spark_binlog_load.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for package in _PACKAGES:
            for path in sorted((_ROOT / package).rglob("*.py")):
                file.write(path, path.relative_to(_ROOT))
    if remote is None:
        spark_session.sparkContext.addPyFile(str(archive))
    else:
        spark_session.addArtifacts(str(archive), pyfile=True)
        shutil.rmtree(archive.parent, ignore_errors=True)  # the server has a copy; a cluster's executors fetch ours


def _reader_of(path: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc

        import pyarrow

        # workers collect garbage after every task: what was imported is garbage never, and is looked at no more
        gc.freeze()
        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"shared": [is_shared(path)]})

    return read


class SessionHolder:
    """Keeps one session, and builds it when it is first wanted or when its JVM has died.

    Calls: any thread.
    """

    def __init__(
        self,
        app_name: str,
        master: str = "local[*]",
        conf: Mapping[str, str] | None = None,
        remote: str | None = None,
    ) -> None:
        """Nothing is started yet."""
        self._build = (app_name, master, dict(conf or {}), remote)
        self._session: SparkSession | None = None
        self._shares_memory: bool | None = None  # not known yet
        self._lock = threading.RLock()
        self._warming: threading.Thread | None = None

    def get(self) -> SparkSession:
        """The session, alive as far as is known."""
        with self._lock:
            if self._session is not None and not (self._alive(self._session) and self._answers(self._session)):
                logger.warning("the session of Spark is gone; it is built anew")
                self._forget()
            if self._session is None:
                app_name, master, conf, remote = self._build
                self._session = build_session(app_name, master, conf, remote)
            return self._session

    def warm_up(self) -> None:
        """Begin to build the session and its Python workers; returns at once. What fails shows at the next ``get``."""
        self._warming = threading.Thread(target=self._warm_up, name="spark-start", daemon=True)
        self._warming.start()

    @property
    def is_warming(self) -> bool:
        """Whether what ``warm_up`` began goes on."""
        return self._warming is not None and self._warming.is_alive()

    def _warm_up(self) -> None:
        try:
            self.get()
            self.shares_memory()
            if self._build[3] is None:
                ensure_archive()
        except Exception as error:  # noqa: BLE001 - it is told where a Task meets it
            logger.debug("Spark could not be started ahead: %s", error)

    def core_count(self) -> int:
        """How many partitions run at once."""
        if self._build[3] is not None:
            return 8  # Spark Connect does not tell
        return int(self.get().sparkContext.defaultParallelism)

    def shares_memory(self) -> bool:
        """Whether the executors can read this process's shared memory (``spark.shared``); found out once a session.

        Calls: the first one starts the Python workers, which takes seconds.
        """
        with self._lock:
            if self._shares_memory is None:
                self._shares_memory = self._probe_memory()
            return self._shares_memory

    def _probe_memory(self) -> bool:
        if self._build[3] is not None or not self._build[1].startswith("local") or not hasattr(os, "memfd_create"):
            return False
        spark_session, cores = self.get(), self.core_count()
        with SharedRows() as memory:
            read = _reader_of(memory.path)
            # one partition a core: every worker imports pyarrow now, and not at its first rows
            answers = spark_session.range(cores, numPartitions=cores).mapInArrow(read, "shared boolean").collect()
        shared = all(answer["shared"] for answer in answers)
        if not shared:
            logger.warning("Spark's workers cannot read this process's memory: rows go through the JVM, which costs")
        return shared

    def alive(self) -> bool:
        """Whether there is a session and its JVM answers."""
        with self._lock:
            return self._session is not None and self._alive(self._session)

    def close(self) -> None:
        """Stop the session. Harmless when repeated."""
        with self._lock:
            if self._session is not None and self._alive(self._session):
                self._session.stop()
            self._session = None

    def _alive(self, spark_session: SparkSession) -> bool:
        if self._build[3] is not None:
            return not getattr(spark_session, "is_stopped", False)
        context = spark_session.sparkContext
        gateway = context._gateway
        process = getattr(gateway, "proc", None)
        if gateway is None or (process is not None and process.poll() is not None) or context._jsc is None:
            return False
        try:
            return not context._jsc.sc().isStopped()
        except Exception:  # noqa: BLE001 - whatever py4j throws here, the JVM does not answer
            return False

    def _answers(self, spark_session: SparkSession) -> bool:
        """Whether a Spark Connect server still has the session: one that is idle for an hour it closes unasked."""
        if self._build[3] is None:
            return True
        try:
            spark_session.conf.get("spark.sql.session.timeZone")
        except Exception as error:  # noqa: BLE001 - whatever it is, a new session is worth a try
            logger.warning("Spark Connect refuses the session: %s", error)
            return False
        return True

    def _forget(self) -> None:
        """Make PySpark forget a session or a JVM that is gone, so that the next session is a new one."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        spark_session, self._session = self._session, None
        if spark_session is None:
            return
        if self._build[3] is not None:
            with suppress(Exception):  # the other end is gone; PySpark hands out a session until its client is closed
                spark_session.client.close()
            return
        context = spark_session.sparkContext
        with suppress(Exception):  # the other end is gone; what counts is that our ends are closed
            context._accumulatorServer.shutdown()
        with suppress(Exception):
            context._gateway.shutdown()  # type: ignore[union-attr]
        with suppress(Exception):
            context._gateway.proc.stdin.close()  # type: ignore[union-attr]
        SparkContext._active_spark_context = None
        SparkContext._gateway = None
        SparkContext._jvm = None
        SparkSession._instantiatedSession = None
        os.environ.pop("PYSPARK_GATEWAY_PORT", None)
