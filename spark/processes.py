"""Child processes that the kernel kills when this process ends, also by SIGKILL."""

from __future__ import annotations

import functools
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, cast

# Runs in the child before the command, and has to be small: a preexec_fn could deadlock in a process with threads.
# 1 is PR_SET_PDEATHSIG; the parent may have died before the call, so the child compares its parent afterwards.
_DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
    "os._exit(1) if os.getppid() != int(sys.argv[1]) else os.execvp(sys.argv[2], sys.argv[2:])"
)


def start_child(command: Sequence[str], environment: Mapping[str, str], **streams: int) -> subprocess.Popen[bytes]:
    """Start ``command`` in a process group of its own; the kernel kills it when this process ends.

    Linux sends the signal when the *thread* that forked ends, so a thread that never ends does all forks.
    ``streams``: stdin, stdout and stderr as of Popen. Raises: OSError.
    """
    if sys.platform == "linux":
        command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
    started: Future[subprocess.Popen[bytes]] = Future()
    _requests(os.getpid()).put((started, command, {"env": environment, "process_group": 0, **streams}))
    return started.result()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill ``process`` and its process group, and reap it. Harmless when it has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(OSError):
        process.kill()
    with suppress(subprocess.TimeoutExpired):  # one that hangs in the kernel (a dead network mount) cannot be reaped
        process.wait(10)


def end_group(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """Close the child's standard input, which asks a JVM to exit; kill its process group after ``limit_s`` seconds."""
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(limit_s)
    kill_group(process)


_Request = tuple["Future[subprocess.Popen[bytes]]", Sequence[str], dict[str, Any]]


@functools.cache
def _requests(pid: int) -> queue.SimpleQueue[_Request]:
    """The requests of the thread that forks; ``pid``: a forked process has no such thread and needs its own."""
    requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
    threading.Thread(target=_fork, args=(requests,), name=f"children-of-{pid}", daemon=True).start()
    return requests


def _fork(requests: queue.SimpleQueue[_Request]) -> None:
    while True:
        started, command, options = requests.get()
        try:
            started.set_result(cast("subprocess.Popen[bytes]", subprocess.Popen(command, **options)))
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            started.set_exception(error)
