"""Find processes by a variable of their environment, which child processes inherit: orphans are found too."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil


def processes_with(variable: str, value: str) -> list[psutil.Process]:
    """Return the processes of this user that have this environment variable, except this process.

    ``psutil.process_iter`` keeps its objects from call to call. If the system has reused a process id since, it returns
    the object of the earlier process, whose methods raise NoSuchProcess, and in the next call none at all.
    """
    found = []
    for pid in psutil.pids():
        with suppress(psutil.Error, OSError):  # it has ended, or belongs to another user
            process = psutil.Process(pid)
            if pid != os.getpid() and process.environ().get(variable) == value:
                found.append(process)
    return found
