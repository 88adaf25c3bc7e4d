"""The lock file of a job, and the errors of a run that is no longer the one that may write.

Source: flock(2).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from cdc.errors import CheckpointError, LeaseLost
from cdc.state.base import JobRecord


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


@contextmanager
def folder_errors(folder: Path) -> Iterator[None]:
    """Raise CheckpointError in place of errors of the file system. ``folder``: in the state folder of this user."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            "The state folder cannot be used.",
            hint="Make the user that runs the job its owner, free some space, or set CDC_HOME to another folder.",
            path=error.filename or folder,
            cause=error.strerror,
        ) from error


def other_run(held: JobRecord, newer: JobRecord | None) -> LeaseLost:
    """Return the error of a run whose job has a newer run. ``newer``: its record, if it is known."""
    return LeaseLost(
        f"Another process runs the job {held.name} now.",
        hint=f"See `cdc status {held.name}`. This process ends.",
        fence=held.fence,
        newer_fence=newer.fence if newer else "none",
        host=(newer.host if newer else None) or "unknown",
        pid=(newer.driver_pid if newer else None) or "unknown",
    )


def older_copy(held: JobRecord, location: str, saves: int, expected: int) -> LeaseLost:
    """Return the error of a run whose store was replaced by an older copy."""
    return LeaseLost(
        "The state store was replaced by an older copy while the job ran.",
        hint="Restore the newer state and start the job again. If it is lost: `cdc start JOB.yaml --adopt`.",
        job=held.name,
        store=location,
        saves=f"{saves}, expected at least {expected}",
    )


def replaced_job(job: str) -> LeaseLost:
    """Return the error of a change that was meant for an earlier job of this name."""
    return LeaseLost(
        f"The job {job} was deleted, or started again from nothing, while this command ran.",
        hint=f"Nothing was changed. See `cdc status {job}`, and repeat the command if you mean the present job.",
        job=job,
    )


def held_elsewhere(job: str, host: str | None, left_s: float) -> LeaseLost:
    """Return the error of a start while a run on another host has the lease."""
    return LeaseLost(
        f"The job {job} runs on host {host}.",
        hint=f"`cdc pause {job}` and `cdc stop {job}` work from this host too. If that host has failed, its lease ends "
        f"in {max(left_s, 0.1):.1f} s; repeat the command then.",
        host=host,
    )


def assigned_elsewhere(job: str, host: str) -> LeaseLost:
    """Return the error of a start on another host than the one to which `cdc serve` has assigned the job."""
    return LeaseLost(
        f"The job {job} is assigned to host {host}.",
        hint=f"Start it on host {host}.",
        host=host,
    )
