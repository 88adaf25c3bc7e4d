"""Prepared loads of the Delta sink: Parquet files in ``<root>/_cdc_staging``, by run and checkpoint."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress

from cdc.model.batch import LoadName, PreparedLoad
from cdc.permissions import current_umask
from channels.sinks.base import SinkCheckpoint, TargetTable
from channels.sinks.delta.files import STAGING, StagedFileWriter, StagedObjectWriter, unavailable
from channels.sinks.delta.object_path import ObjectPath
from channels.sinks.delta.storage import StorePath, delete_folder, make_folder, touch
from channels.sinks.labels import label_prefix

_ABORTED_KEPT_S = 3600.0  # executors end long before, also those that outlive their driver


class Staging:
    """Prepared loads below one root. Calls: one thread, except ``writer``, ``holds`` and ``is_aborted``."""

    def __init__(self, root: StorePath, refuse_missing_root: Callable[[], None]) -> None:
        """``refuse_missing_root``: raises SinkUnavailable if the root does not exist."""
        self._root = root
        self._refuse_missing_root = refuse_missing_root
        self._umask = current_umask()
        self._token: str | None = None  # see StagedFileWriter
        self._token_prefix = "seen-"  # noqa: S105 - prefix of a file name
        self._deleted: dict[tuple[str, str, int], float] = {}  # when a run deleted the files of earlier runs
        self._undeleted: list[SinkCheckpoint] = []  # started commits whose staged files may still exist

    def begin_run(self, job: str) -> None:
        """Delete the tokens that killed runs of ``job`` left. Calls: after the run owns the sink."""
        self._token_prefix = f"seen-{job}-"
        for path in (self._root / STAGING).glob(self._token_prefix + "[0-9a-f]" * 32):
            if path.name != self._token:
                with suppress(OSError):
                    path.unlink()

    def writer(self, table: TargetTable) -> StagedFileWriter | StagedObjectWriter:
        """Return the writer of parts of ``table`` for executors. Raises: SinkUnavailable."""
        if isinstance(self._root, ObjectPath):
            self._refuse_missing_root()
            return StagedObjectWriter(self._root, table)
        return StagedFileWriter(str(self._root), self._probe(), table, os.uname().nodename, self._umask)

    def path(self, load: PreparedLoad) -> StorePath:
        """Return the file of ``load``."""
        return self._root / str(load.detail["file"])

    def holds(self, load: PreparedLoad) -> bool:
        """Return whether the file of ``load`` exists with its full size. Raises: SinkUnavailable."""
        try:
            return bool(self.path(load).stat().st_size == load.detail["size"])
        except FileNotFoundError:
            return False
        except OSError as error:
            raise unavailable(error, self.path(load)) from error

    def abort(self, job: str, incarnation: str, fence: int, checkpoint: int) -> None:
        """Delete the loads of that run and checkpoint, and mark them as aborted. Raises: SinkUnavailable."""
        folder = self._folder(job, incarnation, fence, checkpoint)
        try:
            delete_folder(folder)
            make_folder(folder.parent, self._root)
            touch(folder.with_suffix(".aborted"))
        except OSError as error:
            raise unavailable(error, folder) from error

    def is_aborted(self, name: LoadName) -> bool:
        """Return whether ``abort`` was called for the run and checkpoint of ``name``."""
        folder = self._folder(name.job, name.incarnation, name.fence, name.checkpoint)
        return folder.with_suffix(".aborted").exists()

    def begin_commit(self, mark: SinkCheckpoint) -> None:
        """Record the staged files of ``mark``, which are deleted after a successful commit."""
        if mark not in self._undeleted:
            self._undeleted.append(mark)

    def delete_committed(self, mark: SinkCheckpoint) -> None:
        """Delete the staged files of ``mark`` and, once an hour, those of earlier runs and checkpoints.

        Commits are in order, so the staged files of an earlier checkpoint are committed or lost. The same applies to
        files of earlier runs for this checkpoint, which recovery commits with its own fence.
        """
        # a failed commit may be complete and is not repeated then: its files are deleted with those of the next one
        for each in self._undeleted:
            delete_folder(self._folder(each.job, each.incarnation, each.fence, each.checkpoint))
        self._undeleted.clear()
        run = (mark.job, mark.incarnation, mark.fence)
        if time.monotonic() - self._deleted.get(run, -_ABORTED_KEPT_S) < _ABORTED_KEPT_S:
            return
        self._deleted[run] = time.monotonic()
        head = f"cdc-{mark.job}-"
        for path in (self._root / STAGING).glob(f"{head}*"):
            parts = path.name.removesuffix(".aborted").removeprefix(head).split("-")
            if len(parts) != 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
                continue  # of another job whose name starts with the name of this one
            if (
                path.suffix == ".aborted"
            ):  # keep it for a while, so that the label stays unused and `state` returns ABORTED
                if path.stat().st_mtime < time.time() - _ABORTED_KEPT_S:
                    path.unlink(missing_ok=True)
            elif parts[0] != mark.incarnation or int(parts[2]) <= mark.checkpoint:
                delete_folder(path)

    def close(self) -> None:
        """Delete the token of this process. A repeated call does nothing."""
        if self._token is not None:
            (self._root / STAGING / self._token).unlink(missing_ok=True)
            self._token = None

    def _folder(self, job: str, incarnation: str, fence: int, checkpoint: int) -> StorePath:
        return self._root / STAGING / label_prefix(job, incarnation, fence, checkpoint).rstrip("-")

    def _probe(self) -> str:
        """Create a file that an executor must see if it has the same file system, and return its name."""
        self._refuse_missing_root()
        token = self._token or f"{self._token_prefix}{uuid.uuid4().hex}"
        path = self._root / STAGING / token
        try:
            if self._token is None or not path.exists():  # another process may delete it
                make_folder(path.parent, self._root)
                touch(path)
        except OSError as error:
            raise unavailable(error, path) from error
        self._token = token
        return token
