"""A folder of job files that is watched: each file is the specification of a job that is to run."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from cdc.config.loader import FILE_BYTES_MOST
from cdc.errors import CheckpointError, ConfigError
from cdc.files import read_text_limited
from cdc.manager.spec import JobSpec, read_spec
from cdc.state.base import JobRecord, JobState
from cdc.state.deployments import DesiredState
from cdc.state.sql import SqlStore

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


class JobsFolder:
    """Declares the jobs of a folder. Calls: one thread."""

    def __init__(self, folder: Path, store: SqlStore) -> None:
        self._folder = folder
        self._store = store
        self._seen: dict[Path, tuple[int, int]] = {}  # modification time and size of the files that were read
        self._unreadable: set[Path] = set()
        self._is_missing = False

    def read_changes(self) -> None:
        """Declare the jobs of new and changed files. A removed file changes nothing. Raises: CheckpointError."""
        try:
            files = sorted(path for path in self._folder.iterdir() if path.suffix in (".yaml", ".yml"))
            self._is_missing = False
        except OSError as error:
            if not self._is_missing:
                _log.error("The folder of jobs cannot be read: %s", error, extra={"path": str(self._folder)})
            self._is_missing = True
            return
        for file in files:
            try:
                found = file.stat()
            except OSError:
                continue  # deleted at this moment
            key = (found.st_mtime_ns, found.st_size)
            if self._seen.get(file) != key and self._declare(file):
                self._seen[file] = key

    def _declare(self, file: Path) -> bool:
        """Return whether the file was read. If not, it is read again: a corrected permission changes no time of it."""
        try:
            spec = read_spec(read_text_limited(file, FILE_BYTES_MOST), file.name)
            # each file is read again at each start of this process, which is no reason to resume a job
            declare(self._store, spec, actor=f"file {file.name}", keeps_pause=True)
        except CheckpointError:
            raise  # the file is read again when the store is back
        except OSError as error:
            if file not in self._unreadable:
                _log.error("A job file cannot be read: %s", error, extra={"file": str(file)})
            self._unreadable.add(file)
            return False
        except (ConfigError, UnicodeDecodeError) as error:
            _log.error("A job file is refused: %s", error, extra={"file": str(file)})
        except Exception:  # noqa: BLE001 - logged; one file must not stop the other jobs of this host
            _log.exception("A job file is refused because of an unexpected error.", extra={"file": str(file)})
        self._unreadable.discard(file)
        return True
