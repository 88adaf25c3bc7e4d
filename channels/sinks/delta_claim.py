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
        self._held: dict[str, tuple[IO[str], dict[str, Any]]] = {}

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
            held = self._held.pop(mark.job, None)
            file = held[0] if held and _is_at(held[0], path) else self._locked(path, mark.job)
            file.seek(0)
            file.truncate()
            file.write(json.dumps(name))
            file.flush()
        except OSError as error:
            raise unavailable(error, path) from error
        self._held[mark.job] = file, name

    def check(self, mark: CheckpointMark) -> None:
        """Raises: SinkForeign - the folder was claimed here, and another run has claimed it since."""
        held = self._held.get(mark.job)
        if held is None:
            return
        path = self._path(mark.job)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            self.take(mark)  # somebody tidied the folder
            return
        except ValueError:
            return  # it is being written, by whoever holds the lock; the next commit sees it whole
        except OSError as error:
            raise unavailable(error, path) from error
        if found != held[1] or (found["incarnation"], found["fence"]) != (mark.incarnation, mark.fence):
            raise _foreign(mark.job, found)

    def release(self) -> None:
        """Let everything go. Harmless when repeated."""
        while self._held:
            _, (file, _) = self._held.popitem()
            file.close()

    def _path(self, job: str) -> Path:
        return self._folder / f"claim-{job}.json"

    def _locked(self, path: Path, job: str) -> IO[str]:
        path.parent.mkdir(parents=True, exist_ok=True)
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
