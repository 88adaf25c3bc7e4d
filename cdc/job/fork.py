"""Commands as forks of a process that has imported their modules already.

The modules of a driver take about three seconds of CPU time to import, a fork some milliseconds. The fork server of a
host (``cdc.manager.fork_server``) imports them once. Supervisors are forks of it, and their drivers are forks of them.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn, Self

from spark.code_version import code_version

_ENDING = {signal.SIGTERM, signal.SIGINT}
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46  # fields of /proc/PID/stat after the name; see proc(5), arg_start
_PYTHON = 2  # words of a command before its module: the interpreter and -m

_imported: str | None = None  # version of the code that this process has imported; None: it may not fork


def installed_version() -> str:
    """Return a name for the installed code, also of packages. Calls: before it is imported, for ``allow_forks``."""
    packages = Path(sysconfig.get_paths()["purelib"])  # pip renames folders in it
    return f"{code_version()} {packages.stat().st_mtime_ns}"


def allow_forks(version: str) -> None:
    """Let this process and its forks start commands as forks. ``version``: of the code that it has imported.

    Raises: OSError - this system has no process descriptors.
    """
    global _imported
    os.close(os.pidfd_open(os.getpid()))
    _imported = version


def may_fork(command: Sequence[str]) -> bool:
    """Return whether a fork can run ``command``: this process has imported the code that is installed now.

    A driver must not run old code after an upgrade.
    """
    is_module = list(command[:_PYTHON]) == [sys.executable, "-m"]
    try:
        return is_module and _imported is not None and _imported == installed_version()
    except OSError:  # an upgrade replaces files at this moment
        return False


def start_process(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes] | Fork:
    """Start ``command`` as a child of this process, as a fork if it ``may_fork``.

    In the fork, this call ends with SystemExit. Raises: OSError.
    """
    if not may_fork(command):
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)
    pid = fork()
    if not pid:
        run_in_fork(command, environment)
    try:
        return Fork(pid)
    except OSError:  # too many open files: the caller does not get the process
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def fork() -> int:
    """Fork this process. In the fork, SIGTERM and SIGINT are blocked until it calls ``run_in_fork``, which sets its
    handlers. Raises: OSError.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        pid = os.fork()
    except OSError:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def run_in_fork(
    command: Sequence[str], environment: Mapping[str, str] | None = None, *, may_fork: bool = True
) -> NoReturn:
    """Run ``python -m MODULE ...`` in this process, in which ``fork`` has returned 0.

    ``may_fork``: False: in a new program, as the code of this process is not the one that is installed.
    Raises: SystemExit, whatever happens, since the code that forked must not handle errors of the fork.
    """
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        os.environ.update(environment or {})
        if not may_fork or not _show(command):
            os.execve(command[0], list(command), os.environ)  # noqa: S606 - the words of a command, not of a shell
        module = command[_PYTHON]
        sys.argv = [module, *command[_PYTHON + 1 :]]
        code = import_module(module).main()
    except SystemExit:
        raise
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except BaseException:  # noqa: BLE001 - see above
        traceback.print_exc()
        code = 1
    sys.exit(code)


def _show(command: Sequence[str]) -> bool:
    """Let /proc/PID/cmdline show ``command``, by which ``cdc.state.processes`` and ``ps`` know a process.

    Return False if there is no space for it. The words stay separate, which no library for titles of processes does.
    """
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_END])
        words = b"\0".join(map(os.fsencode, command)) + b"\0"
        if not begin or len(words) >= end - begin:
            return False
        words = words.ljust(end - begin - 1) + b"\0"  # the rest is one word of spaces
        ctypes.memmove(begin, words, len(words))
        return Path("/proc/self/cmdline").read_bytes() == words
    except OSError:
        return False


class Fork:
    """A forked child of this process, with the calls of ``subprocess.Popen``.

    Calls: one thread; ``terminate`` and ``kill`` also from its signal handlers.
    """

    def __init__(self, pid: int) -> None:
        """Raises: OSError."""
        self.pid = pid
        self.returncode: int | None = None
        self._file = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs; -N: it was ended by signal N."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises: subprocess.TimeoutExpired - it still runs after ``timeout`` seconds."""
        if self.poll() is None:
            has_ended(self._file, timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.returncode is None:  # a signal handler that calls ``poll`` here could reap it twice
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._file, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        os.close(self._file)


def has_ended(process: int, timeout_s: float | None = 0) -> bool:
    """Wait until a process ends, and return whether it has. ``process``: its descriptor. None: without a limit."""
    waiter = select.poll()
    waiter.register(process, select.POLLIN)
    return bool(waiter.poll(None if timeout_s is None else 1000 * timeout_s))
