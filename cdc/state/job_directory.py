"""The directory of a job beside the state file: token, log, last error, temporary files.

::

    $CDC_HOME/jobs/shop/     0700, also its two parents if this program creates them
      token                  0600, required by the status endpoint; random, or the one of the job file
      driver.log, .1 to .3   the log of supervisor and driver
      failure.json           the error that ended the last driver; deleted when a new driver starts
      tmp/PID-START/         temporary files of a driver, its JVM and its workers; deleted when a new driver starts
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from cdc.errors import CdcError, CheckpointError, error_from_json, error_to_json
from cdc.logging_setup import masked
from cdc.marked_processes import processes_with
from cdc.process_start import start_of


@dataclass(frozen=True, slots=True)
class Failure:
    """The error that ended a driver."""

    error: CdcError  # without secrets
    pid: int  # of the driver


class JobDirectory:
    """The folder of one job. It is created at the first write."""

    def __init__(self, home: Path, job: str) -> None:
        self.job = job
        self.path = home / "jobs" / job

    @property
    def log(self) -> Path:
        """The log of supervisor and driver."""
        return self.path / "driver.log"

    def open_log(self) -> BinaryIO:
        """Open the log for appending. Only its owner can read it. Raises: CheckpointError - it cannot be written."""
        self.make()
        with _written(self.log):
            log = self.log.open("ab")
            os.fchmod(log.fileno(), 0o600)
            return log

    def make(self) -> None:
        """Create the folder if it is missing. Raises: CheckpointError."""
        for folder in (self.path.parent.parent, self.path.parent, self.path):
            _make(folder)

    def use_temporary(self) -> None:
        """Use a folder below ``tmp`` for the temporary files of this process and its children. May be repeated.

        The machine's own folder is not used, because its files may be deleted by age while the job runs for months.
        Raises: CheckpointError.
        """
        temporary = self.path / "tmp" / f"{os.getpid()}-{start_of(os.getpid())}"
        self.make()
        _make(temporary.parent)
        _make(temporary)
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)

    def delete_orphans(self) -> None:
        """Delete the temporary files of drivers that have ended, and kill the processes that they left.

        Without its files, a JVM that is still starting would not detect that its driver has ended. Calls: when this
        process has the job's lock. A name that an earlier version has given is that of an ended driver.
        """
        for folder in (self.path / "tmp").glob("*"):
            pid, _, start = folder.name.partition("-")
            if not pid.isdigit() or start_of(int(pid)) != start:
                _kill_all_with(str(folder))
                shutil.rmtree(folder, ignore_errors=True)

    def token(self) -> str:
        """Return the saved token. Create a random one if there is none. Raises: CheckpointError."""
        token = self.known_token()
        if token is None:
            token = secrets.token_urlsafe(32)
            self.set_token(token)
        return token

    def set_token(self, token: str) -> None:
        """Save the token that the driver requires, for the command line. Raises: CheckpointError."""
        if token != self.known_token():
            self._write("token", token)

    def known_token(self) -> str | None:
        """Return the saved token; None if there is none or this user may not read it."""
        try:
            return (self.path / "token").read_text(encoding="utf-8").strip() or None
        except OSError:
            return None

    def failure(self) -> Failure | None:
        """Return the error that ended the last driver; None if it still runs or saved no error."""
        try:
            data = json.loads((self.path / "failure.json").read_text(encoding="utf-8"))
            return Failure(error_from_json(data["error"]), int(data["pid"]))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def set_failure(self, error: BaseException | None) -> None:
        """Save the error that ends this driver. With None, at a start, delete the saved error.

        Raises: CheckpointError - only if ``error`` is None.
        """
        if error is None:
            failure = self.path / "failure.json"
            with _written(failure):
                failure.unlink(missing_ok=True)
            return
        with suppress(CheckpointError):  # for example a full disk; the log has the error
            self._write("failure.json", json.dumps({"error": error_to_json(error, masked), "pid": os.getpid()}))

    def remove(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _write(self, name: str, text: str) -> None:
        self.make()
        new = self.path / f".{name}.{os.getpid()}"
        with _written(self.path / name):
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
            new.replace(self.path / name)


@contextmanager
def _written(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"A file of the job's folder cannot be written: {error.strerror}.",
            hint="Free some space, move away a file or folder of the same name, or make the user that runs the job the "
            "owner of the folder.",
            path=file,
        ) from error


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CheckpointError(
            f"The job's folder cannot be created: {error.strerror}.",
            hint="Free some space, make the user that runs the job its owner, or set CDC_HOME to another folder.",
            path=path,
        ) from error


def _kill_all_with(temporary: str) -> None:
    """Kill processes with this TMPDIR, except this process and its parents."""
    kept = {parent.pid for parent in psutil.Process().parents()}
    for process in processes_with("TMPDIR", temporary):
        with suppress(psutil.Error):
            if process.pid not in kept:
                process.kill()
