"""The process from which Spark's Python workers are forked: PySpark's daemon, imported from PySpark's folder.

Spark puts a zip of PySpark's sources first in the path of its workers. Python compiles modules from a zip at each
import, so a worker needs 1.6 CPU seconds to start. From a folder it needs 0.3.

The daemon ends with its JVM, at the end of its standard input. Its workers end with it, also workers that hang.

Run as ``python -m spark.worker_daemon`` (``spark.python.daemon.module``).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Make the kernel kill this worker when its parent ends. The only thread of the daemon forks all workers."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.path.sort(key=lambda entry: entry.endswith(".zip"))  # stable sort: zips last, for modules that are only there

    if sys.platform == "linux":
        os.register_at_fork(after_in_child=_die_with_parent)

    from pyspark.daemon import manager

    from cdc.permissions import restrict_umask

    restrict_umask()
    manager()
