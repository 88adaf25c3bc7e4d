"""An archive of the JVM's loaded classes: with it Spark starts in half the time, and half the CPU.

Made once for a Java and a PySpark, by a process of its own in the background (``python -m spark.archive``), which
loads what our work loads and lets the JVM write its classes at exit.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark

from cdc.cache import cache_folder
from cdc.errors import ConfigError
from cdc.permissions import owned_by_others, refuse_untrusted, restrict_umask
from spark.java import java_binary
from spark.processes import kill_group, start_child

if TYPE_CHECKING:
    from spark.gateway import Jvm

logger = logging.getLogger(__name__)

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # an archive that does not fit is passed over without a word
LIFETIME_S = 1200.0  # of the builder: half a minute of CPU time at the lowest priority, beside whatever runs here
_LATE_S = 10.0
_KEPT = 3  # archives of other Javas and PySparks; each has 150 MB


def archive_options() -> str:
    """Java options that use the archive, empty while there is none. The JVM itself refuses one that does not fit it."""
    path = _archive()
    return f"{_QUIET} -XX:SharedArchiveFile={path}" if path is not None and path.exists() else ""


def ensure_archive() -> None:
    """Make the archive if there is none, in a process that gives way to all others and ends with this one.

    Calls: takes half a minute of CPU time, once a machine; blocks for LIFETIME_S at most.
    """
    path = _archive()
    if path is None or path.exists():
        return
    silent = subprocess.DEVNULL
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(place or "." for place in sys.path)}
    builder = start_child([sys.executable, "-m", __name__], environment, stdin=silent, stdout=silent, stderr=silent)
    try:
        builder.wait(LIFETIME_S + _LATE_S)
    except subprocess.TimeoutExpired:
        logger.warning("the archive of Java classes was not ready after %.0f s: its builder is killed", LIFETIME_S)
    finally:
        kill_group(builder)


def _archive() -> Path | None:
    """Return the archive's file for this Java and this PySpark; None without Java or without a trusted folder."""
    java = java_binary()
    if java is None:
        return None
    java, jars = java.resolve(), Path(pyspark.__file__).parent / "jars"
    parts = (java, java.stat().st_mtime_ns, jars, jars.stat().st_mtime_ns if jars.exists() else 0)
    try:
        folder = cache_folder() / "java"
        refuse_untrusted(folder, "CDC_CACHE")
        if owned_by_others(folder):
            return None
    except (OSError, ConfigError):
        return None  # nothing can be written there, or others can change it: Spark starts without the archive
    return folder / f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.jsa"


def _make(path: Path) -> None:
    os.nice(19)
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # another process makes it
        unfinished = path.with_suffix(".new")
        try:
            _write(unfinished)
            unfinished.rename(path)  # a JVM never sees half an archive: it dies of one (SIGBUS)
        finally:
            unfinished.unlink(missing_ok=True)
    _drop_old(path.parent)


def _write(unfinished: Path) -> None:
    from spark.frames import expression_types, mapped_frame, packed_frame, typed_frame
    from spark.session import build_session

    started: list[Jvm] = []
    spark_session = build_session(
        "archive",
        "local[1]",
        java_options=f"{_QUIET} -XX:ArchiveClassesAtExit={unfinished}",
        limit_s=LIFETIME_S,
        started=started.append,
    )
    rows = pa.RecordBatch.from_pydict({"id": [1], "name": ["a"], "__deleted": [False], "__sequence": [1]})
    expressions = {"id": "id", "name": "upper(name)"}
    expression_types(spark_session, rows.schema, expressions)
    for frame in (
        packed_frame(spark_session, [[(0, [rows])]]),
        mapped_frame(typed_frame(spark_session, [rows]), expressions, rows.schema, ["id"], "id > 0"),
    ):
        frame.mapInArrow(_as_they_are, frame.schema).collect()
    spark_session.stop()
    started[0].end(LIFETIME_S)
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())


def _as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _drop_old(folder: Path) -> None:
    for stale in sorted(folder.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT:]:
        stale.unlink(missing_ok=True)


def _leave() -> None:
    """End this process, and by that its JVM: whatever it waits for does not come."""
    logger.error("no archive of Java classes after %.0f s", LIFETIME_S)
    os._exit(1)


if __name__ == "__main__":
    restrict_umask()
    watch = threading.Timer(LIFETIME_S, _leave)
    watch.daemon = True
    watch.start()
    if (wanted := _archive()) is not None:
        _make(wanted)
