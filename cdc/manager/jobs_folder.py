"""A folder of job files that is watched: each file is the specification of a job that is to run."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cdc.config.loader import FILE_BYTES_MOST
from cdc.errors import CheckpointError, ConfigError
from cdc.files import read_text_limited
from cdc.manager.spec import JobSpec, read_spec
from cdc.state.base import JobRecord, JobState
from cdc.state.deployments import DesiredState
from cdc.state.sql import SqlStore

STABLE_S = 0.9  # a file that another program writes changes within this time; less than the second between two reads

_log = logging.getLogger(__name__)


def declare(
    store: SqlStore, spec: JobSpec, *, actor: str | None, generation: int | None = None, keeps_pause: bool = False
) -> int:
    """Save the specification of a job that is to run, and return its generation. An equal one changes nothing.

    ``keeps_pause``: a job that its user has paused stays PAUSED.
    Raises: ConfigError - the job was cancelled, or ``generation`` is not the current one; CheckpointError.
    """
    record = store.job(spec.name)
    if record is not None and record.state in (JobState.CANCELLED, JobState.DONE):
        raise ConfigError(
            f"The job {spec.name} is {record.state}.",
            hint=f"`cdc stop {spec.name} --forget` deletes its state. Then it may start as a new job.",
        )
    new = JobRecord(spec.name, secrets.token_hex(4), 0, JobState.PENDING, "")
    return store.deployments.declare(
        spec.name, spec=spec.text, desired=DesiredState.RUNNING, generation=generation, actor=actor, new=new,
        keeps_pause=keeps_pause,
    )  # fmt: skip


@dataclass(slots=True)
class _JobFile:
    """What is known of a file of the folder."""

    version: tuple[int, int, int] = (0, 0, 0)  # modification time, size and inode
    since: float = 0.0  # monotonic time at which this version was seen first
    is_read: bool = False
    name: str | None = None  # of the job, as it was read last
    spec: JobSpec | None = None  # not declared yet
    problem: str = ""  # that was logged, so that it is logged once
    failed_at: float = 0.0  # monotonic time at which the store could not save it


class JobsFolder:
    """Declares the jobs of a folder. Calls: one thread."""

    def __init__(self, folder: Path, store: SqlStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._store = store
        self._clock = clock
        self._files: dict[Path, _JobFile] = {}
        self._is_missing = False

    def read_changes(self) -> None:
        """Declare the jobs of new and changed files. A removed file changes nothing.

        A file is read when it has not changed for ``STABLE_S``: the first half of a job file can be a valid one, with
        fewer channels. A file that the store cannot save is repeated at the next call, after the others.
        """
        try:
            paths = {path for path in self._folder.iterdir() if path.suffix in (".yaml", ".yml")}
            self._is_missing = False
        except OSError as error:
            if not self._is_missing:
                _log.error("The folder of jobs cannot be read: %s", error, extra={"path": str(self._folder)})
            self._is_missing = True
            return
        self._files = {path: self._files.get(path) or _JobFile() for path in sorted(paths)}
        for path, file in self._files.items():
            self._read(path, file)
        for path, file in sorted(self._files.items(), key=lambda one: one[1].failed_at):
            if file.spec is not None and self._is_only_one(path, file) and not self._declare(path, file, file.spec):
                return  # the store may be down: a call for each file would last for minutes

    def _read(self, path: Path, file: _JobFile) -> None:
        if not self._is_stable(path, file) or file.is_read:
            return
        try:
            text = read_text_limited(path, FILE_BYTES_MOST)
            if not self._is_stable(path, file):
                return
            file.spec = read_spec(text, path.name)
            file.name = file.spec.name
        except OSError as error:  # it is read again: a corrected permission changes no time of the file
            _report(path, file, "A job file cannot be read", error)
            return
        except (ConfigError, UnicodeDecodeError) as error:
            _report(path, file, "A job file is refused", error)
        except Exception:  # noqa: BLE001 - logged; one file must not stop the other jobs of this host
            _log.exception("A job file is refused because of an unexpected error.", extra={"file": str(path)})
        file.is_read = True

    def _is_stable(self, path: Path, file: _JobFile) -> bool:
        """Return whether the file has not changed for some time. A new version is not read yet."""
        try:
            found = path.stat()
        except OSError:
            return False  # deleted at this moment
        now, version = self._clock(), (found.st_mtime_ns, found.st_size, found.st_ino)
        if version != file.version:
            file.version, file.since, file.is_read, file.spec, file.problem = version, now, False, None, ""
        return now - file.since >= STABLE_S

    def _is_only_one(self, path: Path, file: _JobFile) -> bool:
        """Return whether no other file has the same job. Otherwise each start of this process would change the job."""
        others = [other.name for other, one in self._files.items() if one.name == file.name and other != path]
        if others:
            error = ConfigError(
                f"The job {file.name} is in {path.name} and in {others[0]}.",
                hint="Remove one of the two files. Until then the job keeps its specification.",
            )
            _report(path, file, "A job file is refused", error)
        return not others

    def _declare(self, path: Path, file: _JobFile, spec: JobSpec) -> bool:
        """Return False if the store could not save the specification."""
        try:
            # each file is read again at each start of this process, which is no reason to resume a job
            declare(self._store, spec, actor=f"file {path.name}", keeps_pause=True)
        except CheckpointError as error:
            _report(path, file, "A job file cannot be saved", error)
            file.failed_at = self._clock()
            return False
        except ConfigError as error:
            _report(path, file, "A job file is refused", error)
        except Exception:  # noqa: BLE001 - logged; one file must not stop the other jobs of this host
            _log.exception("A job file is refused because of an unexpected error.", extra={"file": str(path)})
        file.spec = None
        return True


def _report(path: Path, file: _JobFile, what: str, error: Exception) -> None:
    """Log the problem of a file, but not again for the same version of it."""
    # a file can be refused for one reason after the other; the text of another error may differ at each attempt
    problem = f"{what}: {error}" if isinstance(error, ConfigError) else what
    if file.problem != problem:
        _log.error("%s: %s", what, error, extra={"file": str(path)})
    file.problem = problem
