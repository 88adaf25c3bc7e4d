"""Child processes that are killed when this process ends, even by SIGKILL."""

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

# The guard is a small process and the parent of the command. It gets SIGTERM when this process ends, and then kills the
# process group, because children of spark-submit may hang. 1 is PR_SET_PDEATHSIG. The parent may have died before the
# call, so the guard checks its parent afterwards.
_GUARD = """
import ctypes, os, signal, sys
prctl = ctypes.CDLL(None).prctl
signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
guard, command = os.getpid(), os.fork()
if not command:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    prctl(1, signal.SIGKILL)
    if os.getppid() == guard:
        os.execvp(sys.argv[2], sys.argv[2:])
    os._exit(127)
code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
os._exit(code if code >= 0 else 128 - code)
"""


def start_child(command: Sequence[str], environment: Mapping[str, str], **streams: int) -> subprocess.Popen[bytes]:
    """Start ``command`` with a guard in a new process group, which is killed when this process ends.

    Linux sends the signal when the *thread* that forked ends, so one thread that never ends does all forks.
    ``streams``: stdin, stdout and stderr, as for Popen. Raises: OSError.
    """
    if sys.platform == "linux":
        command = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), *command]
    started: Future[subprocess.Popen[bytes]] = Future()
    _requests(os.getpid()).put((started, command, {"env": environment, "process_group": 0, **streams}))
    return started.result()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill ``process`` and its process group, and reap it. Do nothing if it has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(OSError):
        process.kill()
    with suppress(
        subprocess.TimeoutExpired
    ):  # a process that hangs in the kernel (a dead network mount) cannot be reaped
        process.wait(10)
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


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
    """Return the queue of the forking thread. ``pid``: a forked process does not have this thread and needs its own."""
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
