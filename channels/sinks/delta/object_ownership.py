"""Ownership of Delta tables in an object store: a run replaces the claim of an older run by a conditional put.

There is no lock that ends with a process, and no clock: of two runs, the one with the greater fence owns the tables.
The claim gives an early and readable refusal. What protects the rows is the fence in the log of each table (see
``channels.sinks.delta.fence``): a run that was frozen after it had checked the claim finds that its entry exists.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from cdc.errors import SinkUnavailable
from channels.sinks.base import SinkCheckpoint, refuse_newer_run
from channels.sinks.delta.files import unavailable
from channels.sinks.delta.object_path import ObjectPath, ObjectStatus
from channels.sinks.delta.ownership import claim_file, claim_of, foreign_error

_RACES = 20  # lost in a row, each to another run that starts now


class ObjectOwnership:
    """See ``Ownership``. Calls: any thread."""

    def __init__(self, folder: ObjectPath, newest: Callable[[str], SinkCheckpoint | None]) -> None:
        """``folder``: of the claims. ``newest``: returns the newest checkpoint of a job in the tables."""
        self._folder = folder
        self._newest = newest
        self._id = uuid.uuid4().hex  # by which a claim is known whose answer was lost
        self._held: dict[str, dict[str, Any] | None] = {}  # None: another run has it
        self._marks: dict[str, SinkCheckpoint] = {}
        self._lock = threading.RLock()

    @property
    def runs(self) -> list[SinkCheckpoint]:
        """See ``Ownership``."""
        return [*self._marks.values()]

    def acquire(self, mark: SinkCheckpoint, write_fence: Callable[[], None] = lambda: None) -> None:
        """See ``Ownership``. Nothing proves that an older run has ended, so ``write_fence`` is called each time."""
        with self._lock:
            self._acquire(mark, write_fence)

    def _acquire(self, mark: SinkCheckpoint, write_fence: Callable[[], None]) -> None:
        path, name = self._folder / claim_file(mark.job), {**claim_of(mark), "id": self._id}
        try:
            for _ in range(_RACES):
                found, status = self._read(path)
                self._refuse_newer(found, mark)
                refuse_newer_run(self._newest(mark.job), mark)
                write_fence()
                try:
                    if status is None:
                        path.create(json.dumps(name).encode())
                    else:
                        path.replace_version(json.dumps(name).encode(), status)
                except FileExistsError:
                    continue  # another run was faster
                self._held[mark.job] = name
                self._marks[mark.job] = mark
                return
        except OSError as error:
            raise unavailable(error, path) from error
        raise SinkUnavailable(
            f"{_RACES} runs of the job {mark.job} start at the same moment.",
            hint="Keep one of them; the job then continues automatically.",
            path=path,
        )

    def _refuse_newer(self, found: Mapping[str, Any], mark: SinkCheckpoint) -> None:
        """Raise SinkOwnershipError for the claim of a newer run of this incarnation.

        Fences of two incarnations cannot be compared. An older incarnation that has committed is found in the tables.
        """
        if not found or found.get("released") or self._is_own(found) or found["incarnation"] != mark.incarnation:
            return
        if found["fence"] >= mark.fence:
            raise foreign_error(mark.job, found)

    def _is_own(self, found: Mapping[str, Any]) -> bool:
        return found.get("id") == self._id

    def check(self, mark: SinkCheckpoint) -> None:
        """See ``Ownership``."""
        if mark.job not in self._held:
            return
        with self._lock:
            found = self._check(mark.job)
        if not found:
            self.acquire(mark)  # the claim was deleted
        elif (found["incarnation"], found["fence"]) != (mark.incarnation, mark.fence):
            raise foreign_error(mark.job, found)

    def check_all(self) -> None:
        """See ``Ownership``."""
        with self._lock:
            for job in list(self._held):
                self._check(job)

    def release(self) -> None:
        """See ``Ownership``. A claim that cannot be released stays: a later run has a greater fence."""
        for job, held in self._held.items():
            if held is None:
                continue
            path = self._folder / claim_file(job)
            with suppress(OSError):
                found, status = self._read(path)
                if self._is_own(found) and status is not None:
                    path.replace_version(json.dumps({**held, "released": True}).encode(), status)
        self._held.clear()
        self._marks.clear()

    def _check(self, job: str) -> dict[str, Any]:
        """Return the claim; {} if it does not exist. Raises: SinkOwnershipError - it is another run's."""
        path = self._folder / claim_file(job)
        try:
            found, _ = self._read(path)
        except OSError as error:
            raise unavailable(error, path) from error
        if found and not self._is_own(found):
            self._held[job] = None
            raise foreign_error(job, found)
        return found

    def _read(self, path: ObjectPath) -> tuple[dict[str, Any], ObjectStatus | None]:
        try:
            content, status = path.read()
        except FileNotFoundError:
            return {}, None
        try:
            return dict(json.loads(content)), status
        except ValueError:
            return {}, status
