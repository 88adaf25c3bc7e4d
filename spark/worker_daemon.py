"""The process from which Spark's Python workers are forked: PySpark's daemon, imported from PySpark's folder.

Spark puts a zip of PySpark's sources first in the path of its workers. Python compiles modules from a zip at each
import, so a worker needs 1.6 CPU seconds to start. From a folder it needs 0.3. If the daemon has imported the modules,
it needs 0.05.

The daemon ends with its JVM, at the end of its standard input. Its workers end with it, also workers that hang.

Run as ``python -m spark.worker_daemon`` (``spark.python.daemon.module``).
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
import sys
from collections.abc import Callable

from spark.hidden_pandas import hide_pandas

_PR_SET_PDEATHSIG = 1
_ARCHIVE = re.compile(r"/(spark-core_[^/]*\.jar|(?P<module>pyspark|py4j)(-[\d.]+-src)?\.zip)$")


def _die_with_parent() -> None:
    """Make the kernel kill this worker when its parent ends. The only thread of the daemon forks all workers."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _without_broken_pipe(worker: Callable[..., int]) -> Callable[..., int]:
    """Let a worker exit without a traceback in the log when its JVM has ended."""

    def run(*arguments: object) -> int:
        try:
            return worker(*arguments)
        except BrokenPipeError:
            os._exit(1)

    return run


def _without_unused_archives(path: list[str]) -> list[str]:
    """Return ``path`` without Spark's jar, and without the zips of PySpark and Py4J if they come from folders.

    Numba reads the list of all files in each archive of the path: 0.2 CPU seconds in each worker.
    """
    return [entry for entry in path if (match := _ARCHIVE.search(entry)) is None or _may_hold(entry, match["module"])]


def _may_hold(entry: str, module: str | None) -> bool:
    return module is not None and str(getattr(sys.modules.get(module), "__file__", entry)).startswith(entry)


if __name__ == "__main__":
    sys.path.sort(key=lambda entry: entry.endswith(".zip"))  # stable sort: zips last, for modules that are only there

    if sys.platform == "linux":
        os.register_at_fork(after_in_child=_die_with_parent)

    # a process must have no other threads when it forks: here those of NumPy, and of a memory allocator of PyArrow
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"
    hide_pandas()
    gc.disable()
    import pyspark.worker  # noqa: F401 - imported once, and not by each worker
    from pyspark import daemon

    import spark.shared_loads  # noqa: F401
    from cdc.permissions import restrict_umask

    gc.freeze()
    gc.enable()
    restrict_umask()
    sys.path[:] = _without_unused_archives(sys.path)
    daemon.worker = _without_broken_pipe(daemon.worker)
    daemon.manager()
