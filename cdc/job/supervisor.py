"""The supervisor of a job: a small process that ``cdc start`` starts. It restarts a driver that died, with back-off.

It ends when the driver ends for a known reason: CANCELLED, DONE, a SIGTERM, a refused job file, or another process that
runs the job. Supervisor and driver append to one log file, which the supervisor rotates. If the supervisor is killed,
the driver continues and still writes its log.
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

from cdc.errors import CdcError, CheckpointError, LeaseLost
from cdc.job.fork import Fork, start_process
from cdc.logging_setup import set_up_logs
from cdc.paths import state_folder
from cdc.permissions import restrict_umask
from cdc.retry import Backoff
from cdc.state.base import JobState
from cdc.state.job_directory import JobDirectory
from cdc.state.opening import open_store

FIRST_WAIT_S = 1.0  # between two starts, so a driver that was killed while it ran starts again at once
LONGEST_WAIT_S = 60.0  # limits the cost of a driver that always dies; it runs a minute after its cause is fixed
HEALTHY_S = 120.0  # a driver that ran this long did not fail at its start, so the back-off begins again
END_S = 60.0  # time for a driver to complete its commit before it is killed; the next start completes it then
LOG_BYTES = 16 << 20  # some days of a busy job
LOGS_KEPT = 3
SUPERVISOR_PID = "CDC_SUPERVISOR_PID"  # environment variable with the pid of the supervisor, for the driver

_log = logging.getLogger(__name__)


def launch(
    folder: JobDirectory, command: Sequence[str], once: Sequence[str] = (), *, debug: bool = False
) -> subprocess.Popen[bytes]:
    """Start a supervisor, detached from this terminal, that runs ``command`` as the driver.

    ``once``: options for the first driver only, such as those of a resume. Raises: CheckpointError - the job's folder
    cannot be written.
    """
    folder.set_failure(None)
    words = supervisor_command(folder, command, once, debug=debug)
    with folder.open_log() as log:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def supervisor_command(
    folder: JobDirectory, command: Sequence[str], once: Sequence[str] = (), *, debug: bool = False
) -> list[str]:
    """Return the command that starts a supervisor. For the arguments see ``launch``."""
    options = ["--debug"] if debug else []
    return [sys.executable, "-m", "cdc.job.supervisor", folder.job, *options, "--", *command, "--", *once]


def driver_command(name: str, job_file: Path, options: list[str]) -> list[str]:
    """Return the command that starts the driver. ``--name`` keeps the job if the job file gets another name."""
    return [sys.executable, "-m", "cdc.cli.main", "start", str(job_file), "--foreground", "--name", name, *options]


class Supervisor:
    """Runs one driver after the other. Calls: ``run``, on the main thread, because it handles SIGTERM and SIGINT."""

    def __init__(
        self,
        folder: JobDirectory,
        command: Sequence[str],
        once: Sequence[str] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._command = command
        self._once = once  # the options of a resume apply to its position only, so later drivers do not get them
        self._clock = clock
        self._driver: subprocess.Popen[bytes] | Fork | None = None
        self._ending: int | None = None  # the signal that ends the supervisor

    def run(self) -> int:
        """Run drivers until the job needs none any more. Return the exit code of the last driver."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        backoff = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S, spread=0.0)
        while True:
            started, self._driver = self._clock(), None
            try:
                driver = self._start_driver()
            except (CheckpointError, OSError) as error:  # may pass: a read-only disk, no memory for a process
                _log.error("The driver cannot be started: %s", error)
                code = 1
            else:
                code = self._wait_for(driver)
            if self._ending is not None or not self._to_be_restarted(code):
                return 128 + self._ending if self._ending is not None else code
            ran_s = self._clock() - started
            if ran_s >= HEALTHY_S:
                backoff.reset()
            wait_s = round(max(0.0, next(backoff) - ran_s), 1)
            _log.warning("The driver died; it starts again.", extra={"exit": _exit_text(code), "in_s": wait_s})
            self._sleep(wait_s)
            if self._ending is not None:
                return 128 + self._ending

    def _start_driver(self) -> subprocess.Popen[bytes] | Fork:
        """Start a driver. Raises: CheckpointError, OSError; SystemExit in the driver, if it is a fork."""
        self._folder.set_failure(None)
        environment = {**os.environ, SUPERVISOR_PID: str(os.getpid())}
        command = [*self._command, *self._once]
        self._driver = start_process(command, environment)
        self._once = ()
        _log.info("The driver starts.", extra={"pid": self._driver.pid})
        return self._driver

    def _wait_for(self, driver: subprocess.Popen[bytes] | Fork) -> int:
        with driver:
            if self._ending is not None:
                driver.terminate()  # the signal arrived before the driver was started
            deadline = None
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return driver.wait(timeout=1)
                with suppress(OSError):  # the disk is full: the driver pauses and logs it
                    rotate(self._folder.log)
                if self._ending is not None:
                    deadline = deadline or self._clock() + END_S
                    if self._clock() > deadline:
                        _log.warning("The driver does not end; it is killed.", extra={"pid": driver.pid})
                        driver.kill()

    def _to_be_restarted(self, code: int) -> bool:
        if code < 0:
            return code not in (-signal.SIGTERM, -signal.SIGINT)  # a user ended it before it handled signals
        if code in (0, 2, 128 + signal.SIGTERM, 128 + signal.SIGINT):
            return False
        failure, driver = self._folder.failure(), self._driver
        # compare the pid: a second start, which was refused because this driver ran, has also saved LeaseLost there
        if failure and driver and isinstance(failure.error, LeaseLost) and failure.pid == driver.pid:
            return False
        return self._has_run()

    def _has_run(self) -> bool:
        """Return whether the job was RUNNING or PAUSED. A failed first start is not repeated: a user must fix it."""
        try:
            store = open_store()
            try:
                record = store.job(self._folder.job)
            finally:
                store.close()
        except CheckpointError:
            return True  # the fault of the store may be temporary
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
    """Copy a large log to ``.1``, rename older ones, and truncate it. Processes that append to it keep their file."""
    if log.stat().st_size < LOG_BYTES:
        return
    copy = log.with_name(f"{log.name}.new")
    try:
        shutil.copy2(log, copy)
    except OSError:
        copy.unlink(missing_ok=True)  # the disk is full: keep the older logs
        raise
    for number in range(LOGS_KEPT - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
    copy.replace(log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)


def _exit_text(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else str(code)


def main() -> int:
    """Run ``python -m cdc.job.supervisor JOB [--debug] -- COMMAND... -- ONCE...``, the command of ``launch``."""
    job, *rest = sys.argv[1:]
    first = rest.index("--")
    second = rest.index("--", first + 1)
    options, command, once = rest[:first], rest[first + 1 : second], rest[second + 1 :]
    restrict_umask()
    set_up_logs(job, debug="--debug" in options)
    try:
        return Supervisor(JobDirectory(state_folder(), job), command, once).run()
    except (CdcError, OSError):
        _log.exception("The supervisor ends.")
        return 1


if __name__ == "__main__":
    sys.exit(main())
