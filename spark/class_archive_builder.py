"""The program that creates the class archive: ``python -m spark.class_archive_builder``.

It starts a Spark session that loads the classes that a job needs. The JVM writes them to the archive at exit.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from cdc.permissions import restrict_umask
from spark.class_archive import LIFETIME_S, QUIET, archive_path
from spark.frames import expression_types, mapped_frame, packed_frame, typed_frame
from spark.session_builder import build_session

if TYPE_CHECKING:
    from spark.gateway import Jvm

logger = logging.getLogger(__name__)

_KEPT = 3  # archives, for several versions of Java and PySpark; each has 150 MB


def _create(path: Path) -> None:
    os.nice(19)
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return  # another process creates it
        unfinished = path.with_suffix(".new")
        try:
            _write(unfinished)
            unfinished.rename(path)  # a JVM dies (SIGBUS) if it opens an incomplete archive
        finally:
            unfinished.unlink(missing_ok=True)
    _drop_old(path.parent)


def _write(unfinished: Path) -> None:
    started: list[Jvm] = []
    spark_session = build_session(
        "archive",
        "local[1]",
        java_options=f'{QUIET} "-XX:ArchiveClassesAtExit={unfinished}"',
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
    spark_session.range(1).mapInArrow(_as_they_are, "id long").collect()
    spark_session.stop()
    started[0].end(LIFETIME_S)
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())


def _as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches


def _drop_old(folder: Path) -> None:
    for unfinished in folder.glob("*.new"):  # of builders that were killed
        with suppress(FileNotFoundError):
            if time.time() - unfinished.stat().st_mtime > LIFETIME_S:
                unfinished.unlink()
    for stale in sorted(folder.glob("*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)[_KEPT:]:
        stale.unlink(missing_ok=True)


def _exit() -> None:
    """End this process and thereby its JVM, because it has hung for too long."""
    logger.error("no archive of Java classes after %.0f s", LIFETIME_S)
    os._exit(1)


if __name__ == "__main__":
    restrict_umask()
    watch = threading.Timer(LIFETIME_S, _exit)
    watch.daemon = True
    watch.start()
    if (archive := archive_path()) is not None:
        _create(archive)
