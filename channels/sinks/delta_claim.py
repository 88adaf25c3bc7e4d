"""Which run of a job may write into a folder of Delta tables: a file that its process locks and says its name in.

The lock goes with its process, so nothing has to be tidied after a crash. Where a file system keeps locks to one
machine, the name in the file decides: it is that of the run which came last, and the other one sees that before it
commits.

Source: flock(2).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from cdc.errors import SinkForeign
from channels.sinks.base import CheckpointMark
from channels.sinks.delta_files import unavailable

logger = logging.getLogger(__name__)


class Claim:
    """One folder's claims; one for each job that this process runs there. Calls: any thread, one at a time."""

    def __init__(self, folder: Path) -> None:
        """``folder``: where the files lie. Nothing is claimed yet."""
        self._folder = folder
        self._held: dict[str, tuple[IO[str], dict[str, Any]] | None] = {}  # None: another run has it

    def take(self, mark: CheckpointMark) -> None:
        """Claim the folder for ``mark``'s run. Harmless when repeated.

        Raises: SinkForeign - a process that lives holds it; SinkUnavailable.
        """
        name = {
            "job": mark.job,
            "incarnation": mark.incarnation,
            "fence": mark.fence,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "home": os.environ.get("CDC_HOME") or str(Path.home() / ".cdc"),
        }
        path = self._path(mark.job)
        try:
            if self._held.get(mark.job) is not None:
                self._check_name(mark.job, path)
            file = self._mine(mark.job, path) or self._locked(path, mark.job)
            file.seek(0)
            file.truncate()
            file.write(json.dumps(name))
            file.flush()
        except OSError as error:
            raise unavailable(error, path) from error
        old = self._held.get(mark.job)
        if old is not None and old[0] is not file:
            old[0].close()
        self._held[mark.job] = file, name

    def check(self, mark: CheckpointMark) -> None:
        """Raises: SinkForeign - the folder was claimed here, and another run has claimed it since."""
        if mark.job not in self._held:
            return
        path = self._path(mark.job)
        try:
            if (found := self._check_name(mark.job, path)) is None and not path.exists():
                self.take(mark)  # somebody tidied the folder
        except OSError as error:
            raise unavailable(error, path) from error
        if found is not None and (found["incarnation"], found["fence"]) != (mark.incarnation, mark.fence):
            raise _foreign(mark.job, found)

    def check_all(self) -> None:
        """Check every claim of this process. Raises: SinkForeign - another run has claimed the folder since."""
        for job in list(self._held):
            path = self._path(job)
            try:
                self._check_name(job, path)
            except OSError as error:
                raise unavailable(error, path) from error

    def release(self) -> None:
        """Let everything go. Harmless when repeated."""
        for held in self._held.values():
            if held is not None:
                held[0].close()
        self._held.clear()

    def _check_name(self, job: str, path: Path) -> dict[str, Any] | None:
        """The name in the file; None where it is gone, or being written by whoever holds the lock.

        Raises: SinkForeign - it is not ours. The claim is given up then: the next one that is taken is somebody's wish.
        """
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        held = self._held[job]
        if held is None or found != held[1]:
            self._held[job] = None
            if held is not None:
                held[0].close()
            raise _foreign(job, found)
        return found

    def _path(self, job: str) -> Path:
        return self._folder / f"claim-{job}.json"

    def _mine(self, job: str, path: Path) -> IO[str] | None:
        """The file that is held, where it is still the one at ``path``.

        Else it stays held until another one is: while the folder is away, no commit may find the job without a claim.
        """
        held = self._held.get(job)
        return held[0] if held is not None and _is_at(held[0], path) else None

    def _locked(self, path: Path, job: str) -> IO[str]:
        path.parent.mkdir(exist_ok=True)  # never the sink's root: it may have been moved away
        while True:
            file = path.open("a+", encoding="utf-8")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                text = file.read()
                file.close()
                raise _foreign(job, json.loads(text) if text else {}) from None
            except OSError as error:
                # the name in the file still tells, before each commit
                logger.info("the file system of %s knows no locks: %s", path.parent, error)
            # somebody may have removed the file between our open and our lock: nobody else would see that lock
            if _is_at(file, path):
                return file
            file.close()


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def _foreign(job: str, found: Mapping[str, Any]) -> SinkForeign:
    return SinkForeign(
        f"Another process writes job {job} into this sink.",
        mend=f"Stop it (`cdc stop {job}`, with its CDC_HOME), then `cdc resume {job}` here; or give this job another "
        "name or another `sink.path`.",
        process=found.get("pid", "unknown"),
        host=found.get("host", "unknown"),
        home=found.get("home", "unknown"),
        incarnation=found.get("incarnation", "unknown"),
        fence=found.get("fence", "unknown"),
    )
