"""An archive of the JVM's loaded classes (CDS), with which Spark starts in half the time and half the CPU time.

A background process (``class_archive_builder``) creates it once for each version of Java and PySpark.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from pathlib import Path

import pyspark

from cdc.errors import ConfigError
from cdc.paths import cache_folder
from cdc.permissions import owned_by_others, refuse_untrusted
from spark.child_processes import kill_group, start_child
from spark.java import java_binary

logger = logging.getLogger(__name__)

QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"  # the JVM ignores an archive of another version without a message
LIFETIME_S = 1200.0  # of the builder, which needs half a minute of CPU time, at the lowest priority
_LATE_S = 10.0


def archive_options() -> str:
    """Return the Java options for the archive, "" without one. The JVM ignores an archive of another version."""
    path = archive_path()
    return f'{QUIET} "-XX:SharedArchiveFile={path}"' if path is not None and path.exists() else ""


def is_archive_missing() -> bool:
    """Return whether ``ensure_archive`` would create the archive."""
    path = archive_path()
    return path is not None and not path.exists()


def ensure_archive() -> None:
    """Create the archive if it is missing, in a process with the lowest priority that ends with this one.

    Calls: needs half a minute of CPU time, once per machine; blocks for LIFETIME_S at most.
    """
    if not is_archive_missing():
        return
    silent = subprocess.DEVNULL
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or "." for entry in sys.path)}
    builder = start_child(
        [sys.executable, "-m", f"{__name__}_builder"], environment, stdin=silent, stdout=silent, stderr=silent
    )
    try:
        builder.wait(LIFETIME_S + _LATE_S)
    except subprocess.TimeoutExpired:
        logger.warning("the archive of Java classes was not ready after %.0f s, so its builder is killed", LIFETIME_S)
    finally:
        kill_group(builder)


def archive_path() -> Path | None:
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
        return None  # not writable, or other users can change it: Spark starts without the archive
    return folder / f"{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.jsa"
