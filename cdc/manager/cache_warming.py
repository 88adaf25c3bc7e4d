"""Fill the caches of this machine when a host starts: compiled kernels and the archive of Java classes.

Otherwise the first driver does, while jobs wait for it. ``cdc serve`` starts this if the fork server misses something.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys

from spark.child_processes import start_child

_log = logging.getLogger(__name__)


def start_warming() -> None:
    """Start a process that fills the caches. It ends with this process, or within minutes."""
    silent = subprocess.DEVNULL
    try:
        start_child([sys.executable, "-m", __name__], os.environ, stdin=silent, stdout=silent, stderr=silent)
    except OSError as error:
        _log.warning("The caches cannot be filled in advance: %s", error)


def main() -> None:
    """Fill the caches. What fails here is done, or reported, by the first driver."""
    from cdc.mysql.values.kernels import refuse_untrusted_caches
    from cdc.sources.binlog.decoder.warm_up import warm_up
    from spark.class_archive import ensure_archive

    refuse_untrusted_caches()
    warm_up()  # drivers wait for it
    os.nice(19)
    ensure_archive()


if __name__ == "__main__":
    main()
