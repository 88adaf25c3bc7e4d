"""A job's folder beside the state file: its token, its log, and why its last start failed.

::

    $CDC_HOME/jobs/shop/     0700, as are the two above it where we make them
      token                  0600, what the status endpoint wants; random unless the job file sets one
      driver.log, .1 to .3   what supervisor and driver write
      failure.json           the error that ended the newest driver; gone when a new one starts
      tmp/                   temporary files of the driver, its JVM and its workers; emptied when a new one starts
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import psutil

from cdc.errors import CdcError, CheckpointError
from cdc.logs import masked


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a driver ended."""

    error: str  # name of the class
    message: str
    place: str  # where, in words
    mend: str
    exit_code: int
    pid: int  # of that driver

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """``error`` in words, for another process to tell; secrets are hidden as they are in the log."""
        name = type(error).__name__
        if isinstance(error, CdcError):
            return cls(
                name, masked(error.message), masked(error.place), masked(error.mend), error.exit_code, os.getpid()
            )
        return cls(name, masked(f"{name}: {error}"), "", "See the job's log.", 1, os.getpid())


class JobFolder:
    """The folder of one job; made when something is first written."""

    def __init__(self, home: Path, job: str) -> None:
        self.job = job
        self.path = home / "jobs" / job

    @property
    def log(self) -> Path:
        """What supervisor and driver write."""
        return self.path / "driver.log"

    def open_log(self) -> BinaryIO:
        """The log, to append to, readable by its owner alone. Raises: CheckpointError - it cannot be written."""
        self.make()
        with _written(self.log):
            log = self.log.open("ab")
            os.fchmod(log.fileno(), 0o600)
            return log

    def make(self) -> None:
        """Raises: CheckpointError - the folder cannot be made."""
        for folder in (self.path.parent.parent, self.path.parent, self.path):
            _make(folder)

    def use_temporary(self) -> None:
        """Let this process and its children keep their temporary files here; what a killed driver left goes.

        Its processes too: a JVM that had not started yet would miss its files, and never look for its driver's end.

        The machine's own folder may be tidied by age, under the feet of a job that runs for months. Calls: once the
        job is ours. Raises: CheckpointError - the folder cannot be made.
        """
        temporary = self.path / "tmp"
        _kill_all_with(str(temporary))
        shutil.rmtree(temporary, ignore_errors=True)
        self.make()
        _make(temporary)
        os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)

    def token(self) -> str:
        """The token in the folder; drawn if there is none yet. Raises: CheckpointError - it cannot be kept."""
        token = self.known_token()
        if token is None:
            token = secrets.token_urlsafe(32)
            self.set_token(token)
        return token

    def set_token(self, token: str) -> None:
        """Keep the token that a running driver wants, for the command line to read. Raises: CheckpointError."""
        if token != self.known_token():
            self._write("token", token)

    def known_token(self) -> str | None:
        """The token in the folder, None if there is none or this user may not read it."""
        try:
            return (self.path / "token").read_text(encoding="utf-8").strip() or None
        except OSError:
            return None

    def failure(self) -> Failure | None:
        """The error that ended the newest driver."""
        try:
            return Failure(**json.loads((self.path / "failure.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def set_failure(self, error: BaseException | None) -> None:
        """Keep the error that ends this driver, or None: a new one starts. Raises: CheckpointError - of None alone."""
        if error is None:
            failure = self.path / "failure.json"
            with _written(failure):
                failure.unlink(missing_ok=True)
            return
        with suppress(CheckpointError):  # a full disk is told in the log
            self._write("failure.json", json.dumps(asdict(Failure.of(error))))

    def remove(self) -> None:
        """Drop everything in it."""
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
            mend="Free some space, move away what is in its way, or give the folder to the user that runs the job.",
            path=file,
        ) from error


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise CheckpointError(
            f"The job's folder cannot be made: {error.strerror}.",
            mend="Free some space, give it to the user that runs the job, or set CDC_HOME to another folder.",
            path=path,
        ) from error


def _kill_all_with(temporary: str) -> None:
    """Kill processes that keep their temporary files there, but this one and what started it."""
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid not in ours and process.environ().get("TMPDIR") == temporary:
                process.kill()
