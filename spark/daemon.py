"""What Spark's Python workers are forked from: PySpark's own daemon, out of PySpark's folder.

Spark puts a zip of PySpark's sources first in the path of its workers. Python compiles what it imports from a zip each
time, so that each worker begins with 1.6 CPU seconds, and with 0.3 out of a folder.

The daemon ends with its JVM, at the end of its standard input. Its workers end with it, also those that hang.

Run as ``python -m spark.daemon`` (``spark.python.daemon.module``).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends; the daemon's only thread forks all workers."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.path.sort(key=lambda place: place.endswith(".zip"))  # stable: zips last, for what is nowhere else

    if sys.platform == "linux":
        os.register_at_fork(after_in_child=_die_with_parent)

    from pyspark.daemon import manager

    from cdc.permissions import restrict_umask

    restrict_umask()
    manager()
