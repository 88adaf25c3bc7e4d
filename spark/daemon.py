"""What Spark's Python workers are forked from: PySpark's own daemon, out of PySpark's folder.

Spark puts a zip of PySpark's sources first in the path of its workers. Python compiles what it imports from a zip each
time, so that each worker begins with 1.6 CPU seconds, and with 0.3 out of a folder.

Run as ``python -m spark.daemon`` (``spark.python.daemon.module``).
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.sort(key=lambda place: place.endswith(".zip"))  # stable: zips last, for what is nowhere else

    from pyspark.daemon import manager

    from cdc.permissions import restrict_umask

    restrict_umask()
    manager()
