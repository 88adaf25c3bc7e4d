"""The small process that stays behind ``cdc start``: it restarts a driver that died, with back-off.

It ends when the driver ends for a reason: CANCELLED, DONE, a SIGTERM, a refused job file, another process that runs the
job. Supervisor and driver append to one log file; the supervisor keeps it from growing without end. If the supervisor
itself is killed, the driver goes on, and so does its log.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from cdc.checkpoint import JobState
from cdc.checkpoint_sqlite import SqliteStore, state_folder
from cdc.errors import CdcError, CheckpointError, LeaseLost
from cdc.folder import JobFolder
from cdc.logs import set_up_logs
from cdc.permissions import restrict_umask

FIRST_WAIT_S = 1.0  # a driver that was killed once is back within seconds
LONGEST_WAIT_S = 60.0  # one that always dies costs little, and is back within a minute of being mended
HEALTHY_S = 120.0  # who ran this long has not died of its start: waiting begins anew
END_S = 60.0  # a driver finishes its commit within this, else it is killed; the commit is finished at the next start
LOG_BYTES = 16 << 20  # some days of a busy job
LOGS_KEPT = 3
SUPERVISOR_PID = "CDC_SUPERVISOR_PID"  # environment variable by which a driver knows its supervisor

_log = logging.getLogger(__name__)


def launch(
    folder: JobFolder, command: Sequence[str], once: Sequence[str] = (), *, debug: bool = False
) -> subprocess.Popen[bytes]:
    """Start a supervisor, detached from this terminal, that runs ``command`` as the driver.

    ``once``: options of the first driver alone, which is the one that a person agreed to. Raises: CheckpointError -
    the job's folder cannot be written.
    """
    folder.set_failure(None)
    options = ["--debug"] if debug else []
    with folder.open_log() as log:
        return subprocess.Popen(
            [sys.executable, "-m", "cdc.supervisor", folder.job, *options, "--", *command, "--", *once],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


class Supervisor:
    """Runs one driver after the other. Calls: ``run``, from a main thread, since it takes SIGTERM and SIGINT."""

    def __init__(
        self,
        folder: JobFolder,
        command: Sequence[str],
        once: Sequence[str] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._command = command
        self._once = once  # what was agreed to holds for what lay ahead then: later drivers do not get it
        self._clock = clock
        self._driver: subprocess.Popen[bytes] | None = None
        self._ending: int | None = None  # the signal that ends us

    def run(self) -> int:
        """Supervise until the job needs no driver any more; the driver's exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        wait_s = FIRST_WAIT_S
        while True:
            started = self._clock()
            code = self._run_driver()
            if self._ending is not None or not self._to_be_restarted(code):
                return 128 + self._ending if self._ending is not None else code
            wait_s = FIRST_WAIT_S if self._clock() - started >= HEALTHY_S else wait_s
            _log.warning("The driver died; it starts again.", extra={"exit": _told(code), "in_s": wait_s})
            self._sleep(wait_s)
            if self._ending is not None:
                return 128 + self._ending
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)

    def _run_driver(self) -> int:
        self._folder.set_failure(None)
        environment = {**os.environ, SUPERVISOR_PID: str(os.getpid())}
        command, self._once = [*self._command, *self._once], ()
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment) as self._driver:
            _log.info("The driver starts.", extra={"pid": self._driver.pid})
            if self._ending is not None:
                self._driver.terminate()  # the signal came before there was anybody to pass it to
            deadline = None
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return self._driver.wait(timeout=1)
                with suppress(OSError):  # a full disk: the driver pauses by itself, and says so
                    rotate(self._folder.log)
                if self._ending is not None:
                    deadline = deadline or self._clock() + END_S
                    if self._clock() > deadline:
                        _log.warning("The driver does not end; it is killed.", extra={"pid": self._driver.pid})
                        self._driver.kill()

    def _to_be_restarted(self, code: int) -> bool:
        if code < 0:
            return code not in (-signal.SIGTERM, -signal.SIGINT)  # its user ended it before it could say so
        if code in (0, 2, 128 + signal.SIGTERM, 128 + signal.SIGINT):
            return False
        failure, driver = self._folder.failure(), self._driver
        # a start that was refused because ours ran has left its LeaseLost there too
        if failure and driver and (failure.error, failure.pid) == (LeaseLost.__name__, driver.pid):
            return False
        return self._has_run()

    def _has_run(self) -> bool:
        """Whether the job got anywhere: a first start that fails is its user's to look at."""
        try:
            store = SqliteStore(state_folder())
            try:
                record = store.job(self._folder.job)
            finally:
                store.close()
        except CheckpointError:
            return True  # it may come back
        return record is not None and record.state in (JobState.RUNNING, JobState.PAUSED)

    def _end(self, number: int, _: FrameType | None) -> None:
        self._ending = number
        if self._driver is not None:
            self._driver.terminate()

    def _sleep(self, seconds: float) -> None:
        deadline = self._clock() + seconds
        while self._ending is None and self._clock() < deadline:
            time.sleep(0.1)


def rotate(log: Path) -> None:
    """Move a log that has grown large to ``.1`` and older ones up; whoever appends to it goes on in the same file."""
    if log.stat().st_size < LOG_BYTES:
        return
    copy = log.with_name(f"{log.name}.new")
    try:
        shutil.copy2(log, copy)
    except OSError:
        copy.unlink(missing_ok=True)  # a full disk: the older ones stay
        raise
    for number in range(LOGS_KEPT - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
    copy.replace(log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)


def _told(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else str(code)


def main() -> int:
    """``python -m cdc.supervisor JOB [--debug] -- COMMAND... -- ONCE...``, as ``launch`` starts it."""
    job, *rest = sys.argv[1:]
    first = rest.index("--")
    second = rest.index("--", first + 1)
    options, command, once = rest[:first], rest[first + 1 : second], rest[second + 1 :]
    restrict_umask()
    set_up_logs(job, debug="--debug" in options)
    try:
        return Supervisor(JobFolder(state_folder(), job), command, once).run()
    except (CdcError, OSError):
        _log.exception("The supervisor ends.")
        return 1


if __name__ == "__main__":
    sys.exit(main())
