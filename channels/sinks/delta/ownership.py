"""Ownership of a folder of Delta tables: the run that may write locks a file and writes its name into it.

The lock ends with the process, so a crash needs no cleanup. On a file system whose locks apply to one machine only, the
name in the file decides: it is the name of the newest run, and an older run reads it before it commits.

A run of the same incarnation with a greater fence does not wait for the lock: the older run has lost the job, and may
be frozen with the lock for as long as its machine is. The newer run replaces the file; the older one finds its name.

Source: flock(2), rename(2).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from cdc.errors import SinkOwnershipError
from channels.sinks.base import SinkCheckpoint, refuse_newer_run
from channels.sinks.delta.files import unavailable

logger = logging.getLogger(__name__)


class FolderOwnership:
    """Ownership of one folder, for each job that this process runs there. Calls: any thread, one at a time."""

    def __init__(self, folder: Path, newest: Callable[[str], SinkCheckpoint | None]) -> None:
        """``folder``: of the lock files. ``newest``: returns the newest checkpoint of a job in the tables.

        The constructor takes no ownership.
        """
        self._folder = folder
        self._newest = newest
        self._held: dict[str, tuple[IO[str], dict[str, Any]] | None] = {}  # None: another run has it

    def acquire(self, mark: SinkCheckpoint) -> None:
        """Take ownership for the run of ``mark``. May be repeated.

        Raises: SinkOwnershipError - a running process owns the folder, or a newer run has committed there;
        SinkUnavailable.
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
            mine = self._mine(mark.job, path)
            file = mine or self._locked(path, mark)
            try:
                # Under the lock: after the comparison of the state with the sink, another process may have adopted the
                # sink and ended. Before the name is written: a newer run without a lock must not find this one's name.
                refuse_newer_run(self._newest(mark.job), mark)
            except BaseException:
                if file is not mine:
                    _discard(file, path)
                raise
            file.seek(0)
            file.truncate()
            file.write(json.dumps(name))
            file.flush()
            if not _is_at(file, path):
                Path(file.name).replace(path)
        except OSError as error:
            raise unavailable(error, path) from error
        old = self._held.get(mark.job)
        if old is not None and old[0] is not file:
            old[0].close()
        self._held[mark.job] = file, name

    def check(self, mark: SinkCheckpoint) -> None:
        """Check the ownership. Raises: SinkOwnershipError - another run has taken it since ``acquire``."""
        if mark.job not in self._held:
            return
        path = self._path(mark.job)
        try:
            if (found := self._check_name(mark.job, path)) is None and not path.exists():
                self.acquire(mark)  # the file was deleted
        except OSError as error:
            raise unavailable(error, path) from error
        if found is not None and (found["incarnation"], found["fence"]) != (mark.incarnation, mark.fence):
            raise _foreign(mark.job, found)

    def check_all(self) -> None:
        """Check the ownership of all jobs of this process. Raises: SinkOwnershipError - another run has taken it."""
        for job in list(self._held):
            path = self._path(job)
            try:
                self._check_name(job, path)
            except OSError as error:
                raise unavailable(error, path) from error

    def release(self) -> None:
        """Release all locks. A repeated call does nothing."""
        for held in self._held.values():
            if held is not None:
                held[0].close()
        self._held.clear()

    def _check_name(self, job: str, path: Path) -> dict[str, Any] | None:
        """Return the name in the file; None if it does not exist or is being written.

        Raises: SinkOwnershipError - it is another run's. The lock is released then; only a new ``acquire`` gets it
        again.
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
        """Return the locked file if it still is the one at ``path``.

        Otherwise it stays locked until ``acquire`` has locked another one: a commit must always find a name to check.
        """
        held = self._held.get(job)
        return held[0] if held is not None and _is_at(held[0], path) else None

    def _locked(self, path: Path, mark: SinkCheckpoint) -> IO[str]:
        """Return the locked file; a new one beside ``path`` if an older run of the incarnation has the lock."""
        path.parent.mkdir(exist_ok=True)  # do not create the root of the sink, which may have been moved away
        while True:
            file = path.open("a+", encoding="utf-8")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                text = file.read()
                file.close()
                found = json.loads(text) if text else {}
                if found.get("incarnation") == mark.incarnation and found["fence"] < mark.fence:
                    logger.warning("an older run of job %s has the lock of %s; its name is replaced", mark.job, path)
                    return _locked_copy(path)
                raise _foreign(mark.job, found) from None
            except OSError as error:
                # the name in the file is still checked before each commit
                logger.info("the file system of %s does not support locks: %s", path.parent, error)
            # the file may have been deleted between open and flock: other processes would not see that lock
            if _is_at(file, path):
                return file
            file.close()


def _locked_copy(path: Path) -> IO[str]:
    """Return a new locked file that can replace ``path``."""
    file = path.with_name(f".{path.name}.{os.getpid()}").open("w+", encoding="utf-8")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def _discard(file: IO[str], path: Path) -> None:
    """Close a file that was not used. Delete it if it is a copy that has not replaced ``path``."""
    if Path(file.name) != path:
        Path(file.name).unlink(missing_ok=True)
    file.close()


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def _foreign(job: str, found: Mapping[str, Any]) -> SinkOwnershipError:
    return SinkOwnershipError(
        f"Another process runs the job {job} with this sink.",
        hint=f"Stop it (`cdc stop {job}`, with its CDC_HOME), then run `cdc resume {job}` here; or give this job "
        "another `name` or `sink.path`.",
        process=found.get("pid", "unknown"),
        host=found.get("host", "unknown"),
        home=found.get("home", "unknown"),
        incarnation=found.get("incarnation", "unknown"),
        fence=found.get("fence", "unknown"),
    )
