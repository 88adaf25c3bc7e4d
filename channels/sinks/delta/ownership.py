"""Ownership of a folder of Delta tables: the run that may write locks a file and writes its name into it.

The lock ends with the process, so a crash needs no cleanup. On a file system whose locks apply to one machine only, the
name in the file decides: it is the name of the newest run, and an older run reads it before it commits.

A run of the same incarnation with a greater fence does not wait for the lock: the older run has lost the job, and may
be frozen with the lock for as long as its machine is. The newer run replaces the file; the older one finds its name.

An older run that was frozen between this check and its commit is stopped by ``channels.sinks.delta.fence``.

Source: flock(2), rename(2).
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from cdc.errors import SinkOwnershipError
from channels.sinks.base import SinkCheckpoint, refuse_newer_run
from channels.sinks.delta.files import unavailable

logger = logging.getLogger(__name__)


class Ownership(Protocol):
    """Ownership of a root, for each job that this process runs there. Calls: any thread."""

    @property
    def runs(self) -> list[SinkCheckpoint]:
        """Return the marks with which runs of this process have taken the ownership."""

    def acquire(self, mark: SinkCheckpoint, write_fence: Callable[[], None] = lambda: None) -> None:
        """Take ownership for the run of ``mark``. May be repeated.

        ``write_fence`` is called if an older run may still be there.
        Raises: SinkOwnershipError - a running process owns the root, or a newer run has committed there;
        SinkUnavailable.
        """

    def check(self, mark: SinkCheckpoint) -> None:
        """Check the ownership. Raises: SinkOwnershipError - another run has taken it since ``acquire``."""

    def check_all(self) -> None:
        """Check the ownership of all jobs of this process. Raises: SinkOwnershipError - another run has taken it."""

    def release(self) -> None:
        """Release all ownerships. A repeated call does nothing."""


def claim_of(mark: SinkCheckpoint) -> dict[str, Any]:
    """Return the name that a run writes as the owner."""
    return {
        "job": mark.job,
        "incarnation": mark.incarnation,
        "fence": mark.fence,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "home": os.environ.get("CDC_HOME") or str(Path.home() / ".cdc"),
    }


def claim_file(job: str) -> str:
    """Return the name of the file of the owner of ``job``."""
    return f"claim-{job}.json"


class FolderOwnership:
    """Ownership of one folder by a locked file; see ``Ownership``."""

    def __init__(self, folder: Path, newest: Callable[[str], SinkCheckpoint | None]) -> None:
        """``folder``: of the lock files. ``newest``: returns the newest checkpoint of a job in the tables.

        The constructor takes no ownership.
        """
        self._folder = folder
        self._newest = newest
        self._held: dict[str, tuple[IO[str], dict[str, Any]] | None] = {}  # None: another run has it
        self._marks: dict[str, SinkCheckpoint] = {}  # of the runs that have acquired the folder
        self._lock = threading.RLock()

    @property
    def runs(self) -> list[SinkCheckpoint]:
        """See ``Ownership``."""
        return [*self._marks.values()]

    def acquire(self, mark: SinkCheckpoint, write_fence: Callable[[], None] = lambda: None) -> None:
        """See ``Ownership``. Only the lock of a process of this host proves that an older run has ended.

        A run that crashes in ``write_fence`` does not change the name, so the next run calls it again.
        """
        with self._lock:
            self._acquire(mark, claim_of(mark), self._path(mark.job), write_fence)

    def _acquire(self, mark: SinkCheckpoint, name: dict[str, Any], path: Path, write_fence: Callable[[], None]) -> None:
        try:
            if self._held.get(mark.job) is not None:
                self._check_name(mark.job, path)
            mine = self._mine(mark.job, path)
            file, may_run = (mine, False) if mine else self._locked(path, mark, name["host"])
            try:
                # Under the lock: after the comparison of the state with the sink, another process may have adopted the
                # sink and ended. Before the name is written: a newer run without a lock must not find this one's name.
                refuse_newer_run(self._newest(mark.job), mark)
                if may_run:
                    write_fence()
                file.seek(0)
                file.truncate()
                file.write(json.dumps(name))
                file.flush()
                if not _is_at(file, path):
                    _refuse_newer_name(path, mark)
                    Path(file.name).replace(path)
            except BaseException:
                if file is not mine:
                    _discard(file, path)
                raise
        except OSError as error:
            raise unavailable(error, path) from error
        old = self._held.get(mark.job)
        if old is not None and old[0] is not file:
            old[0].close()
        self._held[mark.job] = file, name
        self._marks[mark.job] = mark

    def check(self, mark: SinkCheckpoint) -> None:
        """See ``Ownership``."""
        if mark.job not in self._held:
            return
        path = self._path(mark.job)
        try:
            with self._lock:
                if (found := self._check_name(mark.job, path)) is None and not path.exists():
                    self.acquire(mark)  # the file was deleted
        except OSError as error:
            raise unavailable(error, path) from error
        if found is not None and (found["incarnation"], found["fence"]) != (mark.incarnation, mark.fence):
            raise foreign_error(mark.job, found)

    def check_all(self) -> None:
        """See ``Ownership``."""
        for job in list(self._held):
            path = self._path(job)
            try:
                with self._lock:
                    self._check_name(job, path)
            except OSError as error:
                raise unavailable(error, path) from error

    def release(self) -> None:
        """See ``Ownership``."""
        with self._lock:
            for held in self._held.values():
                if held is not None:
                    held[0].close()
            self._held.clear()
            self._marks.clear()

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
            raise foreign_error(job, found)
        return found

    def _path(self, job: str) -> Path:
        return self._folder / claim_file(job)

    def _mine(self, job: str, path: Path) -> IO[str] | None:
        """Return the locked file if it still is the one at ``path``.

        Otherwise it stays locked until ``acquire`` has locked another one: a commit must always find a name to check.
        """
        held = self._held.get(job)
        return held[0] if held is not None and _is_at(held[0], path) else None

    def _locked(self, path: Path, mark: SinkCheckpoint, host: str) -> tuple[IO[str], bool]:
        """Return the locked file, and whether the run that it names may still be there.

        If an older run of the incarnation has the lock, the file is a new one beside ``path``.
        """
        path.parent.mkdir(exist_ok=True)  # do not create the root of the sink, which may have been moved away
        while True:
            file = path.open("a+", encoding="utf-8")
            file.seek(0)
            text, may_run = file.read(), False
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                found = json.loads(text) if text else {}
                if found.get("incarnation") == mark.incarnation and found["fence"] < mark.fence:
                    logger.warning("an older run of job %s has the lock of %s; its name is replaced", mark.job, path)
                    return _locked_copy(path), True
                raise foreign_error(mark.job, found) from None
            except OSError as error:
                # the name in the file is still checked before each commit
                logger.info("the file system of %s does not support locks: %s", path.parent, error)
                may_run = bool(text)
            # the file may have been deleted between open and flock: other processes would not see that lock
            if _is_at(file, path):
                return file, may_run or _other_host(text, host)
            file.close()


def _locked_copy(path: Path) -> IO[str]:
    """Return a new locked file that can replace ``path``."""
    # a process id is not unique here: processes of several hosts or containers can have the same one
    file = path.with_name(f".{path.name}.{uuid.uuid4().hex}").open("x+", encoding="utf-8")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def _refuse_newer_name(path: Path, mark: SinkCheckpoint) -> None:
    """Raise SinkOwnershipError if a newer run has written its name since this run has read the file at ``path``."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return
    if found["incarnation"] == mark.incarnation and found["fence"] > mark.fence:
        raise foreign_error(mark.job, found)


def _discard(file: IO[str], path: Path) -> None:
    """Close a file that was not used. Delete it if it is a copy that has not replaced ``path``."""
    if Path(file.name) != path:
        Path(file.name).unlink(missing_ok=True)
    file.close()


def _other_host(text: str, host: str) -> bool:
    """Return whether the run that a file names was on another host, whose locks this host may not see."""
    try:
        return bool(text) and json.loads(text).get("host") != host
    except ValueError:
        return True


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False


def foreign_error(job: str, found: Mapping[str, Any]) -> SinkOwnershipError:
    """Return the error for a root that the run ``found`` owns."""
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
