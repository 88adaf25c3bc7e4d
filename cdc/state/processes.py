"""Detect whether the driver or the supervisor of a job is alive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil

from cdc.state.base import JobRecord


def is_driver_alive(record: JobRecord) -> bool:
    """Return whether the process with the saved id is the driver of this job. The system may have reused the id."""
    return _is(record.driver_pid, lambda words, folder: _drives(words, folder, record))


def is_supervisor_alive(record: JobRecord) -> bool:
    """Return whether the process with the saved id is the supervisor of this job."""
    return _is(record.supervisor_pid, lambda words, _: ("cdc.job.supervisor", record.name) in pairwise(words))


def _drives(words: Sequence[str], folder: Path, record: JobRecord) -> bool:
    """Return whether the command is ``cdc start JOB.yaml --foreground``. The path of ``cdc`` may differ."""
    files = (folder / Path(word).expanduser() for word in words)
    return {"start", "--foreground"} <= set(words) and Path(record.job_file) in files


def _is(pid: int | None, matches: Callable[[Sequence[str], Path], bool]) -> bool:
    """Return whether the process exists, and its arguments and working folder match."""
    if pid is not None:
        # a process that this user may not read is not of this user's jobs; RuntimeError: the ~ of an unknown user
        with suppress(psutil.Error, OSError, RuntimeError):
            process = psutil.Process(pid)
            return matches(process.cmdline(), Path(process.cwd()))
    return False
