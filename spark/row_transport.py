"""How executors read rows that the driver keeps in memory: see ``shared_memory`` and ``remote_rows``."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from cdc.errors import ConfigError, PrerequisiteError
from spark.gateway import START_LIMIT_S
from spark.hidden_pandas import hide_pandas
from spark.remote_rows import RowServer
from spark.shared_memory import Range, SameMachine, SharedRows

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

ROWS_PORT = "spark.cdc.rows.port"  # setting: the port of the row server; default: a free one
# settings with which Spark encrypts what it sends to its executors
_ENCRYPTED = (
    "spark.network.crypto.enabled",
    "spark.authenticate.enableSaslEncryption",
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
)
_PROBE = b"rows"

logger = logging.getLogger(__name__)


class MemoryReader(Protocol):
    """Reads the rows of a ``SharedRows`` on an executor. What it returns is valid after ``close``."""

    def bytes_at(self, at: Range) -> pa.Buffer:
        """Return the bytes at a position. Raises: OSError - they cannot be read."""

    def rows_at(self, at: Range) -> pa.Table:
        """Return the rows at a position. Raises: OSError."""

    def close(self) -> None:
        """Release what it needs to read."""


class RowTransport(Protocol):
    """Makes ``SharedRows`` of the driver readable on executors. Calls: any thread."""

    @property
    def reader(self) -> Callable[..., MemoryReader]:
        """Return what opens rows on an executor, to which Spark sends it. Raises there: OSError."""

    def share(self, memory: SharedRows) -> Sequence[object]:
        """Make ``memory`` readable. Return the arguments of ``reader``, which JSON can hold."""

    def withdraw(self, memory: SharedRows) -> None:
        """Forget ``memory``, before it is closed."""

    def close(self) -> None:
        """Release what it needs."""


def find_transport(
    spark_session: SparkSession, cores: int, *, is_local: bool, limit_s: float = START_LIMIT_S
) -> RowTransport | None:
    """Return the transport that works from the executors that run now; None if rows must be sent within Spark's tasks.

    ``cores``: of all executors. ``is_local``: the executors run on this machine. ``limit_s``: how long to wait for the
    executors of a cluster. Starts the Python workers, which takes seconds.
    Raises: ConfigError - a setting is not valid; PrerequisiteError - no executor answers in time.
    """
    if not hasattr(os, "memfd_create"):
        return None
    transport = SameMachine() if is_local else _server(spark_session)
    if transport is None:
        return None
    with SharedRows() as memory:
        at = memory.put_bytes(_PROBE)
        read = _probing(transport.reader, transport.share(memory), at)
        try:
            # one partition per core, so that every worker imports pyarrow now and not at its first rows
            rows = spark_session.range(cores, numPartitions=cores).mapInArrow(read, "failure string")
            with ExitStack() if is_local else _cancelled_after(spark_session.sparkContext, limit_s):
                answers = rows.collect()
        except BaseException:
            transport.close()
            raise
        finally:
            transport.withdraw(memory)
    failures = [answer["failure"] for answer in answers if answer["failure"]]
    if failures:
        transport.close()
        logger.warning(
            "Spark's workers cannot read rows from the memory of the driver (%s); they are sent through the JVM, which "
            "is slower",
            failures[0],
        )
        return None
    return transport


@contextmanager
def _cancelled_after(context: SparkContext, limit_s: float) -> Iterator[None]:
    """Cancel the jobs of the body after ``limit_s``: without free executors they wait for ever.

    Raises: PrerequisiteError - in place of the error of a cancelled job.
    """
    tag, expired = f"cdc-probe-{secrets.token_hex(8)}", threading.Event()

    def cancel() -> None:
        expired.set()
        context.cancelJobsWithTag(tag)

    timer = threading.Timer(limit_s, cancel)
    timer.daemon = True
    context.addJobTag(tag)  # it leaves the group of the job, by which a Task is watched
    timer.start()
    try:
        yield
    except Exception as error:
        if expired.is_set():
            raise PrerequisiteError(
                f"No executor of the Spark cluster has answered within {limit_s:.0f} s.",
                hint="Check that the cluster has free cores and memory, and that executors reach the driver. The job "
                "retries.",
                master=context.master,
            ) from error
        raise
    finally:
        timer.cancel()
        context.removeJobTag(tag)


def _server(spark_session: SparkSession) -> RowServer | None:
    conf = spark_session.sparkContext.getConf()
    if any(str(conf.get(name, "false")).strip().lower() == "true" for name in _ENCRYPTED):
        return None  # the rows are to be encrypted as well
    host, port = str(conf.get("spark.driver.host")), str(conf.get(ROWS_PORT, "0"))
    if not (port.isdecimal() and int(port) < 1 << 16):
        raise ConfigError(f"`spark.conf: {ROWS_PORT}` is {port!r}.", hint="Give a port from 0 to 65535.")
    bind = str(conf.get("spark.driver.bindAddress", host))
    if bind == "0.0.0.0" and ":" in host:  # noqa: S104 - any address; executors have an IPv6 address of the driver
        bind = "::"
    try:
        return RowServer(bind, host, int(port))
    except OSError as error:
        logger.warning("The driver cannot listen for executors (%s); rows are sent through the JVM", error)
        return None


def _probing(
    reader: Callable[..., MemoryReader], key: Sequence[object], at: Range
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc

        import pyarrow

        hide_pandas()
        # workers run the garbage collector after every task; freeze imported modules to keep them out of each scan
        gc.freeze()
        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"failure": [_failure(reader, key, at)]})

    return read


def _failure(reader: Callable[..., MemoryReader], key: Sequence[object], at: Range) -> str:
    """Return why an executor cannot read the rows; "" if it can."""
    try:
        memory: Any = reader(*key)
        try:
            return "" if memory.bytes_at(at).to_pybytes() == _PROBE else "other bytes"
        finally:
            memory.close()
    except OSError as error:
        return str(error) or type(error).__name__
