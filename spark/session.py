"""The Spark session: its settings, its start within a limit, and a new one when its JVM has died."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.errors import SurroundingsError
from spark.archive import archive_options, ensure_archive
from spark.gateway import END_LIMIT_S, START_LIMIT_S, Jvm, JvmFolder, forget_jvm, killed_after, launch_jvm
from spark.java import check_spark
from spark.settings import JAVA_OPTIONS, RUNTIME, is_local, static_settings, with_java_options
from spark.shared import SharedRows, is_shared

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_PACKAGES = ("cdc", "channels", "spark")
_ROOT = Path(__file__).resolve().parent.parent
_SOCKETS = "spark.python.unix.domain.socket.dir"

logger = logging.getLogger(__name__)


def build_session(
    app_name: str,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    remote: str | None = None,
    java_options: str = "",
    *,
    limit_s: float = START_LIMIT_S,
    started: Callable[[Jvm], None] = lambda _: None,
) -> SparkSession:
    """Return a session with the project's settings, and ``conf`` on top. With ``remote`` (``sc://...``) over Connect.

    ``started`` receives the JVM before it answers. Calls: one at a time; starts a JVM, which takes seconds.
    Raises: SurroundingsError - Java or a package is missing, or the JVM did not start within ``limit_s`` seconds;
    nothing of it is left.
    """
    check_spark(remote)
    if remote is None and not is_local(master):
        # a cluster may have a Python of its own for jobs: an archive that it ships, an image
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    else:
        os.environ["PYSPARK_PYTHON"] = sys.executable  # else workers run whatever python3 the path has
    # pyspark.pandas warns at import when pandas has another version than it likes; nothing here uses pandas
    os.environ.setdefault("PYARROW_IGNORE_TIMEZONE", "1")
    settings = {**RUNTIME, **(conf or {})}
    if remote is not None:
        return _connected(app_name, remote, settings)
    settings = {**static_settings(master), **settings}
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", settings["spark.driver.bindAddress"])
    jvm = _running_jvm()
    if jvm is None:
        options = settings.get(JAVA_OPTIONS, "")
        folder = JvmFolder()
        settings[JAVA_OPTIONS] = with_java_options(java_options or archive_options(), options, folder)
        settings.setdefault(_SOCKETS, str(folder.path))
        jvm = launch_jvm(settings, master, folder, limit_s, started)
        _gateway().jvm_process = jvm
    from pyspark.sql import SparkSession

    try:
        with killed_after(jvm, limit_s):
            builder = SparkSession.builder.master(master).appName(app_name)
            spark_session = _configured(builder, settings)
            _ship(spark_session, master, remote)
            spark_session.sparkContext.setLogLevel("ERROR")
    except BaseException:
        jvm.kill()
        forget_jvm()
        raise
    return spark_session


def _connected(app_name: str, remote: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    try:
        spark_session = _configured(SparkSession.builder.remote(remote).appName(app_name), settings)
        _ship(spark_session, "", remote)
    except SystemExit as error:  # PySpark ends the process where it finds a package missing or too old
        raise SurroundingsError(
            "PySpark refuses the packages of Spark Connect in this environment.",
            mend="Run `pip install --upgrade 'spark-binlog-load[connect]'`.",
        ) from error
    return spark_session


def _configured(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession:
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _gateway() -> Any:
    from pyspark import SparkContext

    return SparkContext._gateway


def _running_jvm() -> Jvm | None:
    """The JVM that this process has; None, and PySpark has forgotten it, if it is dead."""
    jvm: Jvm | None = getattr(_gateway(), "__dict__", {}).get("jvm_process")
    if jvm is not None and jvm.is_alive:
        return jvm
    forget_jvm()
    return None


def _ship(spark_session: SparkSession, master: str, remote: str | None) -> None:
    if remote is None and is_local(master):
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


class _Start:
    """A session that one thread builds and others wait for."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.result: Future[SparkSession] = Future()
        self._jvm: Jvm | None = None
        self._is_aborted = False
        self._lock = threading.Lock()

    def started(self, jvm: Jvm) -> None:
        """Note the JVM. Raises: SurroundingsError - the start was aborted."""
        with self._lock:
            self._jvm = jvm
            if self._is_aborted:
                raise _closed()

    def abort(self) -> None:
        """Kill the JVM, so that the building thread gets an error."""
        with self._lock:
            self._is_aborted = True
            if self._jvm is not None:
                self._jvm.kill()


def _closed() -> SurroundingsError:
    return SurroundingsError("Spark is closed, because the job ends.", mend="Nothing is to be done.")


class SessionHolder:
    """Keeps one session, and builds it at its first use or when its JVM has died. Closed, it builds none.

    Calls: any thread. No call waits longer than the limit of a start.
    """

    def __init__(
        self,
        app_name: str,
        master: str = "local[*]",
        conf: Mapping[str, str] | None = None,
        remote: str | None = None,
        *,
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        """Nothing is started yet."""
        self._build = (app_name, master, dict(conf or {}), remote)
        self._limit_s = start_limit_s
        self._session: SparkSession | None = None
        self._shares_memory: bool | None = None  # not known yet
        self._starting: _Start | None = None
        self._is_closed = False
        self._lock = threading.Lock()  # never held during a call into the JVM, which may hang
        self._probing = threading.Lock()
        self._warming: threading.Thread | None = None

    def get(self) -> SparkSession:
        """Return the session, alive as far as is known.

        Calls: blocks while it is built. One thread builds; the others wait for its result.
        Raises: SurroundingsError - it cannot be built, or the holder is closed.
        """
        known = self._session
        if known is not None and self.lives(known) and self._answers(known) and not self._is_closed:
            return known
        with self._lock:
            if self._is_closed:
                raise _closed()
            if self._session is not known and self._session is not None:
                return self._session  # another thread has built it meanwhile
            start, is_mine = self._starting, False
            if start is None:
                start, is_mine = _Start(), True
                self._starting, self._session = start, None
        if is_mine:
            return self._started(start, known)
        try:
            # the start has a limit twice: for the JVM and for the session in it
            return start.result.result(3 * self._limit_s)
        except NotDone as error:
            raise SurroundingsError(
                f"Spark is still starting after {time.monotonic() - start.since:.0f} s.",
                mend="See `cdc logs NAME`; the job retries.",
            ) from error

    def _started(self, start: _Start, gone: SparkSession | None) -> SparkSession:
        try:
            if gone is not None:
                logger.warning("the Spark session is gone; a new one is built")
                self._forget(gone)
            app_name, master, conf, remote = self._build
            found = build_session(app_name, master, conf, remote, limit_s=self._limit_s, started=start.started)
        except BaseException as error:
            with self._lock:
                self._starting = None
            start.result.set_exception(error)
            if self._is_closed:
                raise _closed() from error
            raise
        with self._lock:
            self._starting = None
            is_closed = self._is_closed
            if not is_closed:
                self._session = found
        if is_closed:  # a stop came while it was built
            start.result.set_exception(_closed())
            self._stop(found)
            raise _closed()
        start.result.set_result(found)
        return found

    def warm_up(self) -> None:
        """Begin to build the session and its Python workers; returns at once. What fails shows at the next ``get``."""
        self._warming = threading.Thread(target=self._warm_up, name="spark-start", daemon=True)
        self._warming.start()

    @property
    def is_warming(self) -> bool:
        """Whether what ``warm_up`` began goes on."""
        return self._warming is not None and self._warming.is_alive()

    @property
    def starting_s(self) -> float | None:
        """For how many seconds the session is being built; None if it is not."""
        start = self._starting
        return None if start is None else time.monotonic() - start.since

    def _warm_up(self) -> None:
        try:
            self.get()
            self.shares_memory()
            if self._build[3] is None:  # on a thread of its own: whoever waits for Spark does not wait for a cache
                threading.Thread(target=ensure_archive, name="class-archive", daemon=True).start()
        except Exception as error:  # noqa: BLE001 - a Task reports it
            logger.debug("Spark could not be started ahead: %s", error)

    @property
    def is_remote(self) -> bool:
        """Whether the session is one of Spark Connect."""
        return self._build[3] is not None

    def known(self) -> SparkSession | None:
        """The session as it was built last, alive or not; None if there is none. Never builds one."""
        return self._session

    def core_count(self) -> int:
        """How many partitions run at once."""
        if self._build[3] is not None:
            return 8  # Spark Connect does not tell
        return int(self.get().sparkContext.defaultParallelism)

    def shares_memory(self) -> bool:
        """Whether the executors can read this process's shared memory (``spark.shared``); found out once.

        Calls: the first one starts the Python workers, which takes seconds.
        """
        if self._shares_memory is None:
            with self._probing:
                if self._shares_memory is None:
                    self._shares_memory = self._probe_memory()
        return self._shares_memory

    def _probe_memory(self) -> bool:
        if self._build[3] is not None or not self._build[1].startswith("local") or not hasattr(os, "memfd_create"):
            return False
        spark_session, cores = self.get(), self.core_count()
        jvm = _running_jvm()
        if jvm is None:
            raise SurroundingsError("Spark's JVM died while it started.", mend="See `cdc logs NAME`; the job retries.")
        with SharedRows() as memory, killed_after(jvm, self._limit_s):
            read = _reader_of(memory.path)
            # one partition a core: every worker imports pyarrow now, and not at its first rows
            answers = spark_session.range(cores, numPartitions=cores).mapInArrow(read, "shared boolean").collect()
        shared = all(answer["shared"] for answer in answers)
        if not shared:
            logger.warning("Spark's workers cannot read this process's memory: rows go through the JVM, which costs")
        return shared

    def kill(self) -> None:
        """Kill the JVM and its workers: calls into it that hang return with an error. The next ``get`` starts another.

        Over Spark Connect only this end is closed.
        """
        known = self._session
        if known is None:
            return
        if self._build[3] is None:
            _kill(known)
        else:
            with suppress(Exception):
                known.client.close()

    def close(self) -> None:
        """Stop the session, or the start of one, within limits; no other is built. Harmless when repeated."""
        with self._lock:
            self._is_closed = True
            start, known, self._session = self._starting, self._session, None
        if start is not None:
            start.abort()
            with suppress(Exception):
                start.result.result(END_LIMIT_S)
        if known is not None:
            self._stop(known)

    def _stop(self, spark_session: SparkSession) -> None:
        """Stop ``spark_session`` and end its JVM; a JVM that hangs is killed."""
        if self._build[3] is not None:
            with suppress(Exception):
                spark_session.stop()
            return
        jvm: Jvm | None = getattr(spark_session.sparkContext._gateway, "jvm_process", None)
        if jvm is not None:
            with suppress(Exception), killed_after(jvm, END_LIMIT_S):
                if self.lives(spark_session):
                    spark_session.stop()
            jvm.end()
        forget_jvm()

    def lives(self, spark_session: SparkSession) -> bool:
        """Whether the JVM of ``spark_session`` answers; over Spark Connect, whether it was not closed here."""
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
        """Whether a Spark Connect server still has the session: it closes one that is idle for an hour."""
        if self._build[3] is None:
            return True
        try:
            spark_session.conf.get("spark.sql.session.timeZone")
        except Exception as error:  # noqa: BLE001 - whatever it is, a new session is worth a try
            logger.warning("Spark Connect refuses the session: %s", error)
            return False
        return True

    def _forget(self, gone: SparkSession) -> None:
        """Let PySpark forget a session that is gone, so that the next one is a new one."""
        if self._build[3] is not None:
            with suppress(Exception):  # the other end is gone; PySpark hands out a session until its client is closed
                gone.client.close()
            return
        _kill(gone)
        forget_jvm()


def _kill(spark_session: SparkSession) -> None:
    jvm = getattr(spark_session.sparkContext._gateway, "jvm_process", None)
    if jvm is not None:
        jvm.kill()
