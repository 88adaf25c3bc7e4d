"""The lock file of a job, and the errors of a run that is no longer the one that may write.

Source: flock(2).
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from cdc.errors import LeaseLost


def lock_job(folder: Path, job: str) -> IO[str]:
    """Lock ``folder/JOB.lock`` with flock and write this process' pid into it. Closing the file releases the lock.

    Raises: LeaseLost - another process holds the lock; OSError - the file cannot be opened.
    """
    path = folder / f"{job}.lock"
    while True:
        file = path.open("a+", encoding="ascii")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            pid = file.read().strip() or "unknown"
            file.close()
            raise LeaseLost(
                f"Another process runs the job {job}.",
                hint=f"See `cdc status {job}`, or end process {pid}.",
                pid=pid,
            ) from None
        # `forget` may have unlinked the file between open and flock: other processes would not see that lock
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                file.truncate(0)
                file.write(f"{os.getpid()}\n")
                file.flush()
                return file
        file.close()


def check_state_file(path: Path, inode: int, job: str) -> None:
    """Check that ``path`` is still the file that the run has opened. Raises: LeaseLost - it was moved or replaced."""
    with suppress(FileNotFoundError):
        if path.stat().st_ino == inode:
            return
    raise LeaseLost(
        "The state file was removed or replaced while the job ran.",
        hint="Restore it and start the job again. If it is lost: `cdc start JOB.yaml --adopt`.",
        job=job,
        path=path,
    )
