"""The Spark session of a job: its start within a time limit, and its replacement when the JVM has died."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from contextlib import suppress
from typing import TYPE_CHECKING

from cdc.errors import PrerequisiteError
from spark.class_archive import ensure_archive
from spark.connect_server import address_of, is_shared_server, wait_for_address
from spark.gateway import END_LIMIT_S, START_LIMIT_S, Jvm, forget_jvm, killed_after
from spark.row_transport import RowTransport, find_transport
from spark.session_builder import build_session, running_jvm
from spark.settings import available_cores, is_local, local_cores

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


class _Start:
    """A session that one thread creates and other threads wait for."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.result: Future[SparkSession] = Future()
        self._jvm: Jvm | None = None
        self._is_aborted = False
        self._lock = threading.Lock()

    def started(self, jvm: Jvm) -> None:
        """Record the JVM. Raises: PrerequisiteError - the start was aborted."""
        with self._lock:
            self._jvm = jvm
            if self._is_aborted:
                raise _closed()

    def abort(self) -> None:
        """Kill the JVM, so that the thread that creates the session gets an error."""
        with self._lock:
            self._is_aborted = True
            if self._jvm is not None:
                self._jvm.kill()


def _closed() -> PrerequisiteError:
    return PrerequisiteError("Spark is closed, because the job ends.", hint="No action is needed.")


class SessionHolder:
    """Holds one session, and creates it at its first use and when its JVM has died, but not after ``close``.

    Calls: any thread. No call waits longer than the time limit of a start.
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
        """Save the settings. The first use starts the session.

        ``remote``: the address of a Spark Connect server, or the folder of a shared one (``spark.connect_server``).
        """
        self._build = (app_name, master, dict(conf or {}), remote)
        self._limit_s = start_limit_s
        self._session: SparkSession | None = None
        self._address: str | None = None  # of the server, over Spark Connect
        self._transport: RowTransport | None = None
        self._refused: list[RowTransport] = []
        self._is_probed = False  # whether the transport is known
        self._starting: _Start | None = None
        self._is_closed = False
        self._lock = threading.Lock()  # never held during a call into the JVM, which may hang
        self._probing = threading.Lock()
        self._warming: threading.Thread | None = None

    def get(self) -> SparkSession:
        """Return the session. Create it if there is none, or if its JVM has died.

        Calls: blocks during the creation, by one thread; the others wait for the result.
        Raises: PrerequisiteError - it cannot be created, or the holder is closed.
        """
        known = self._session
        if known is not None and self.is_alive(known) and self._answers(known) and not self._is_closed:
            return known
        with self._lock:
            if self._is_closed:
                raise _closed()
            if self._session is not known and self._session is not None:
                return self._session  # another thread has created it meanwhile
            start, is_mine = self._starting, False
            if start is None:
                start, is_mine = _Start(), True
                self._starting, self._session = start, None
        if is_mine:
            return self._started(start, known)
        try:
            # two parts of the start have this limit: the JVM, and the session in it
            return start.result.result(3 * self._limit_s)
        except NotDone as error:
            raise PrerequisiteError(
                f"Spark is still starting after {time.monotonic() - start.since:.0f} s.",
                hint="See `cdc logs NAME`; the job retries.",
            ) from error

    def _started(self, start: _Start, closed: SparkSession | None) -> SparkSession:
        try:
            if closed is not None:
                logger.warning("the Spark session has ended; a new one is created")
                self._forget(closed)
            app_name, master, conf, remote = self._build
            is_shared_one = remote is not None and is_shared_server(remote)
            if remote is not None:
                self._address = remote = wait_for_address(remote, self._limit_s, lambda: self._is_closed)
            found = build_session(
                app_name, master, conf, remote,
                limit_s=self._limit_s, started=start.started, sends_packages=not is_shared_one,
            )  # fmt: skip
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
                self._is_probed = self._transport is not None  # new executors may reach this process
        if is_closed:  # ``close`` was called during the start
            start.result.set_exception(_closed())
            self._stop(found)
            raise _closed()
        start.result.set_result(found)
        return found

    def warm_up(self) -> None:
        """Start session and Python workers in the background. The next ``get`` raises an error of the start.

        A call during the start does nothing.
        """
        if self.is_warming:
            return
        self._warming = threading.Thread(target=self._warm_up, name="spark-start", daemon=True)
        self._warming.start()

    @property
    def is_warming(self) -> bool:
        """Return whether ``warm_up`` is still running."""
        return self._warming is not None and self._warming.is_alive()

    @property
    def starting_s(self) -> float | None:
        """Return for how many seconds the session has been starting; None if it is not."""
        start = self._starting
        return None if start is None else time.monotonic() - start.since

    def _warm_up(self) -> None:
        try:
            self.get()
            self.transport()
            if (
                self._build[3] is None
            ):  # on a separate thread, so that callers that wait for Spark do not wait for the archive
                threading.Thread(target=ensure_archive, name="class-archive", daemon=True).start()
        except Exception as error:  # noqa: BLE001 - a Task reports it
            logger.debug("Spark could not be started in advance: %s", error)

    def is_same(self, other: SessionHolder) -> bool:
        """Return whether both describe the same session."""
        return self._build == other._build

    @property
    def is_remote(self) -> bool:
        """Return whether the session uses Spark Connect."""
        return self._build[3] is not None

    @property
    def local_cores(self) -> int | None:
        """Return how many partitions run at once if all of them run on this machine and only for this job."""
        return None if self.is_remote else local_cores(self._build[1])

    def known(self) -> SparkSession | None:
        """Return the newest session, also a dead one; None if there is none. Never: creates one."""
        return self._session

    def core_count(self) -> int:
        """Return the number of partitions that run in parallel."""
        if self._build[3] is not None:  # Spark Connect does not report it
            return available_cores() if is_shared_server(self._build[3]) else 8
        return int(self.get().sparkContext.defaultParallelism)

    def transport(self) -> RowTransport | None:
        """Return how executors read rows from the memory of this process; None if they cannot.

        Calls: the first call tests it and starts the Python workers, which takes seconds.
        """
        if not self._is_probed:
            with self._probing:
                if not self._is_probed:
                    self._transport = self._find_transport()
                    self._is_probed = True
        return self._transport

    def refuse_transport(self, transport: RowTransport) -> None:
        """Send rows through the JVM as long as it runs, because an executor could not read them with ``transport``."""
        with self._probing:
            if self._transport is transport:
                self._transport = None
                self._refused.append(transport)  # other Tasks may still use it

    def _find_transport(self) -> RowTransport | None:
        if self._build[3] is not None:
            return None
        spark_session, cores = self.get(), self.core_count()
        if not is_local(self._build[1]):
            return find_transport(spark_session, cores, is_local=False, limit_s=self._limit_s)
        jvm = running_jvm()
        if jvm is None:
            raise PrerequisiteError("Spark's JVM died while it started.", hint="See `cdc logs NAME`; the job retries.")
        with killed_after(jvm, self._limit_s):
            return find_transport(spark_session, cores, is_local=True)

    def kill(self) -> None:
        """Kill the JVM and its workers, so that hanging calls return with an error. The next ``get`` starts a new one.

        Over Spark Connect only the client is closed.
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
        """Stop the session or its start within time limits. No new one is created. A repeated call does nothing."""
        with self._lock:
            self._is_closed = True
            start, known, self._session = self._starting, self._session, None
        if start is not None:
            start.abort()
            with suppress(Exception):
                start.result.result(END_LIMIT_S)
        if known is not None:
            self._stop(known)
        for transport in (self._transport, *self._refused):
            if transport is not None:
                transport.close()

    def _stop(self, spark_session: SparkSession) -> None:
        """Stop ``spark_session`` and end its JVM. Kill a JVM that hangs."""
        if self._build[3] is not None:
            with suppress(Exception):
                spark_session.stop()
            return
        jvm: Jvm | None = getattr(spark_session.sparkContext._gateway, "jvm_process", None)
        if jvm is not None:
            with suppress(Exception), killed_after(jvm, END_LIMIT_S):
                if self.is_alive(spark_session):
                    spark_session.stop()
            jvm.end()
        forget_jvm()

    def is_alive(self, spark_session: SparkSession) -> bool:
        """Return whether the JVM of ``spark_session`` replies; over Spark Connect, whether the client is open.

        Of a shared Spark Connect server, also whether the server that has the session still runs.
        """
        remote = self._build[3]
        if remote is not None:
            return not getattr(spark_session, "is_stopped", False) and address_of(remote) == self._address
        context = spark_session.sparkContext
        gateway = context._gateway
        process = getattr(gateway, "proc", None)
        if gateway is None or (process is not None and process.poll() is not None) or context._jsc is None:
            return False
        try:
            return not context._jsc.sc().isStopped()
        except Exception:  # noqa: BLE001 - any error of py4j means that the JVM does not reply
            return False

    def _answers(self, spark_session: SparkSession) -> bool:
        """Return whether the Spark Connect server still has the session. It closes a session after an idle hour."""
        if self._build[3] is None:
            return True
        try:
            spark_session.conf.get("spark.sql.session.timeZone")
        except Exception as error:  # noqa: BLE001 - after any error try a new session
            logger.warning("Spark Connect does not accept the session: %s", error)
            return False
        return True

    def _forget(self, closed: SparkSession) -> None:
        """Remove an ended session from PySpark, so that the next one is new."""
        if self._build[3] is not None:
            with suppress(Exception):  # PySpark returns the same session until its client is closed
                closed.client.close()
            return
        _kill(closed)
        forget_jvm()


def _kill(spark_session: SparkSession) -> None:
    jvm = getattr(spark_session.sparkContext._gateway, "jvm_process", None)
    if jvm is not None:
        jvm.kill()
