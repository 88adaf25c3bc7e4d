"""The fork server of a host: a process that has imported the modules of a driver, and forks supervisors (see
``cdc.job.fork``).

It gets a JSON object per line on stdin, and writes one per fork and one per end of a fork to stdout. It ends with
``cdc serve``; its forks continue.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from cdc.job import fork
from cdc.state.base import Checkpoint, JobRecord
from cdc.state.codec import prepare
from spark.class_archive import is_archive_missing

ARGUMENT_BYTES = 1024  # space for the command of a fork
START_LIMIT_S = 60.0  # of a busy machine; drivers start without the fork server then
REVIVE_S = 60.0
ANSWER_LIMIT_S = 2.0  # less than a lease: `cdc serve` waits
END_LIMIT_S = 5.0
ENDED_UNKNOWN = 1  # exit code of a fork that ended after the fork server
_READ_BYTES = 1 << 16
_READY = "ready"
_COMPLETE = "complete"  # whether the caches of the machine have everything

_KERNELS = "cdc.sources.binlog.decoder.warm_up"
# what a driver with any source and sink imports; what it needs besides, it imports itself
MODULES = (
    "cdc.job.supervisor",
    "cdc.cli.main",
    "cdc.cli.start",
    "cdc.cli.views",
    "cdc.checks.job",
    "cdc.job.spark_start",
    "cdc.job.job",
    "spark.frames",
    "spark.writers",
    "pyspark.sql.connect.session",
    "channels.sinks.delta.sink",
    "cdc.job.registry",
    "cdc.state.server",
    "sqlalchemy.dialects.mysql.pymysql",  # of the store: a third of the CPU time of a start
    "sqlglot.dialects.spark",
    "uvicorn.loops.asyncio",
    "uvicorn.lifespan.off",
    _KERNELS,
)

_log = logging.getLogger(__name__)


class ForkedSupervisor:
    """A supervisor that the fork server has forked, with the calls of ``subprocess.Popen``. Calls: one thread."""

    def __init__(self, pid: int, codes: dict[int, int], over: threading.Event) -> None:
        """``codes``: exit codes that the fork server reports, by process id. ``over``: it reports no more."""
        self.pid = pid
        self.returncode: int | None = None
        self._codes, self._over = codes, over
        self._file: int | None = None
        with suppress(ProcessLookupError):
            self._file = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        if self.returncode is None:
            is_over = self._over.is_set()  # before its last report is read
            self.returncode = self._codes.pop(self.pid, None)
            if self.returncode is None and is_over and self._has_ended():
                self.returncode = ENDED_UNKNOWN
            if self.returncode is not None and self._file is not None:
                os.close(self._file)
                self._file = None
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM."""
        if self.poll() is None and self._file is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._file, signal.SIGTERM)

    def _has_ended(self) -> bool:
        if self._file is None:
            return True
        if not fork.has_ended(self._file):
            return False
        with suppress(ChildProcessError):  # in a container, this process may have become its parent
            os.waitpid(self.pid, os.WNOHANG)
        return True


class ForkServer:
    """Starts the process, and asks it for forks. Calls: one thread."""

    def __init__(self, warm: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.monotonic) -> None:
        """``warm`` is called if the caches of this machine lack something."""
        self._warm = warm
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._began = float("-inf")
        self._ready, self._over = threading.Event(), threading.Event()  # of the newest process
        self._asked: dict[int, Future[int]] = {}  # process id by number of request
        self._number = 0
        self._codes: dict[int, int] = {}

    def start(self) -> None:
        """Start the process. It is ready some seconds later; drivers start without it if it cannot be started."""
        self._ready, self._over = threading.Event(), threading.Event()
        self._began = self._clock()
        command = [sys.executable, "-m", __name__, *MODULES, " " * ARGUMENT_BYTES]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            _log.warning("The fork server cannot be started; drivers start without it, which takes longer: %s", error)
            return
        arguments = self._process, self._ready, self._over
        threading.Thread(target=self._read, args=arguments, name="fork server", daemon=True).start()

    def close(self) -> None:
        """End the process. Its forks continue."""
        if self._process is None or self._process.stdin is None:
            return
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.terminate()  # it may still import
        try:
            self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether it has imported all modules."""
        return self._ready.is_set() and self.is_alive

    @property
    def is_starting(self) -> bool:
        """Whether it will be ready soon; also before ``start``."""
        if self._began == float("-inf"):
            return True
        return self.is_alive and not self._ready.is_set() and self._clock() < self._began + START_LIMIT_S

    def revive(self) -> None:
        """Start the process again if it has died; at most once a minute."""
        if not self.is_alive and self._clock() > self._began + REVIVE_S:
            _log.warning("The fork server has ended; it starts again. Until then drivers start without it.")
            self.close()
            self.start()

    def launch(self, command: Sequence[str], log: Path) -> ForkedSupervisor:
        """Fork ``command`` in a session of its own. ``log``: gets its output.

        Raises: OSError - the process does not answer; it is ended.
        """
        assert self._process is not None
        assert self._process.stdin is not None
        self._number += 1
        answer = self._asked[self._number] = Future()
        request = {"number": self._number, "command": list(command), "log": str(log)}
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            pid = answer.result(ANSWER_LIMIT_S)
        except TimeoutError:
            self._process.kill()
            self._over.wait(END_LIMIT_S)
            if not answer.done():
                raise OSError("the fork server does not answer") from None
            pid = answer.result()  # it has answered late
        finally:
            self._asked.pop(self._number, None)
        return ForkedSupervisor(pid, self._codes, self._over)

    def _read(self, process: subprocess.Popen[bytes], ready: threading.Event, over: threading.Event) -> None:
        assert process.stdout is not None
        try:
            with process.stdout as lines:
                for line in lines:
                    self._note(json.loads(line), ready)
        finally:
            for answer in list(self._asked.values()):
                if not answer.done():
                    answer.set_exception(OSError("the fork server has ended"))
            over.set()

    def _note(self, message: dict[str, Any], ready: threading.Event) -> None:
        if message.get(_READY):
            ready.set()
            if not message[_COMPLETE]:
                self._warm()
        elif "code" in message:
            self._codes[message["pid"]] = message["code"]
        elif (answer := self._asked.get(message["number"])) is not None:
            self._codes.pop(message["pid"], None)  # of an earlier process with that id
            answer.set_result(message["pid"])


def main() -> int:
    """Import the modules, then fork on request until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal of `cdc serve`
    version, is_complete = fork.installed_version(), True
    answers = os.dup(1)
    os.dup2(2, 1)  # what a module prints is no answer
    *modules, _ = sys.argv[1:]
    for module in modules:
        with suppress(ImportError):  # an optional package is missing
            import_module(module)
    if _KERNELS in modules:
        is_complete = import_module(_KERNELS).load_compiled() and not is_archive_missing()
        prepare(Checkpoint, JobRecord)
    fork.allow_forks(version)
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages of all objects
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _write(answers, {_READY: True, _COMPLETE: is_complete})
    held = b""
    with selectors.PollSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        while True:
            files = {key.fd for key, _ in selector.select()}
            if ended in files:
                os.read(ended, _READ_BYTES)
                _report_ended(answers)
            if 0 in files:
                data = os.read(0, _READ_BYTES)
                if not data:
                    return 0
                *lines, held = (held + data).split(b"\n")
                for line in lines:
                    _fork(json.loads(line), answers, (ended, wake))


def _fork(request: dict[str, Any], answers: int, files: Sequence[int]) -> None:
    command, log = request["command"], request["log"]
    may_fork = fork.may_fork(command)
    pid = fork.fork()
    if pid:
        _write(answers, {"number": request["number"], "pid": pid})
        return
    try:
        os.setsid()
        null, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        for file in (null, output, answers, *files):
            os.close(file)
    except OSError as error:
        sys.exit(f"{log}: {error}")
    fork.run_in_fork(command, may_fork=may_fork)


def _report_ended(answers: int) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _write(answers, {"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _write(answers: int, message: dict[str, Any]) -> None:
    os.write(answers, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
