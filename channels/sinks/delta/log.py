"""Make the log of a Delta table durable, so that committed rows survive a power failure.

deltalake does not sync its files to disk. If a power failure lost an entry but not a later one, rows could be doubled:
the table would have the result of a compaction and also its input files. Therefore an entry is written only after the
previous one is on disk, and entries are deleted only after the checkpoint that replaces them is on disk.

Source: Delta transaction log protocol, "Delta Log Entries", "Checkpoints", "Last Checkpoint File".
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import Schema

from channels.sinks.delta.entries import Action, count_of, write_entry
from channels.sinks.delta.object_path import ObjectPath
from channels.sinks.delta.storage import StorePath, sync_path

logger = logging.getLogger(__name__)

LOG = "_delta_log"
MARK = "cdc"  # key of the checkpoint in the commit metadata of this program
COUNT = "cdc_actions"  # another key: the number of files that the entry adds and removes
_HINT = "_last_checkpoint"
_PARQUET_END = b"PAR1"
# by default every commit lists the whole log several times to find expired entries; `maintain` does this instead
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class DurableLogs:
    """Tracks up to which version each log is on disk. Calls: any thread, one at a time for a table."""

    def __init__(self) -> None:
        self._upto: dict[StorePath, int] = {}

    def append(
        self,
        found: DeltaTable,
        folder: StorePath,
        actions: list[Action],
        mark: str | None,
        transactions: Sequence[Transaction] = (),
        *,
        version: int,
        schema: Schema | None = None,
    ) -> None:
        """Commit ``actions`` durably as the next version after ``version``. ``mark``: see ``MARK``.

        ``schema``: new columns of the table.
        ``version``: from which the actions were computed. Another thread can have updated ``found`` since.
        Raises: CommitFailedError - another writer has committed meanwhile; OSError.
        """

        def write(properties: CommitProperties) -> None:
            if found.version() != version:
                raise CommitFailedError(f"version {version + 1} exists in {folder}")
            write_entry(found, version, actions, properties, schema)

        self.commit(found, folder, write, count_of(actions), mark, transactions)

    def commit(
        self,
        found: DeltaTable,
        folder: StorePath,
        write: Callable[[CommitProperties], None],
        count: int,
        mark: str | None,
        transactions: Sequence[Transaction] = (),
    ) -> None:
        """Commit durably by ``write``, as the next version after ``found``. ``count``: files added and removed.

        Raises: CommitFailedError - another writer has committed meanwhile; OSError.
        """
        version = found.version()
        self.sync(folder, version)
        sync_path(folder)  # data files must be durable before the log refers to them
        metadata = {COUNT: str(count), **({MARK: mark} if mark else {})}
        properties = CommitProperties(
            custom_metadata=metadata,
            max_commit_retries=0,  # the actions are valid only for the version from which they were computed
            app_transactions=list(transactions),
        )
        try:
            write(properties)
        except CommitFailedError:
            raise
        except DeltaError:  # deltalake reads earlier entries after it has written this one
            _refuse_expired(folder / LOG, version + 1)
            raise
        _refuse_expired(folder / LOG, version + 1)
        self.sync(folder, version + 1)

    def sync(self, folder: StorePath, version: int) -> None:
        """Make the log durable up to ``version``, also entries of other writers. Raises: OSError."""
        known, log = self._upto.get(folder), folder / LOG
        if known == version or isinstance(folder, ObjectPath):
            return
        if known is None or known > version:  # the first call for this table, or the table was created again
            known = _sync_summary(log) - 1
            for path in (folder, folder.parent):
                sync_path(path.parent)
        for number in range(known + 1, version + 1):
            with suppress(FileNotFoundError):  # a checkpoint replaces it; otherwise the table could not have been read
                sync_path(_entry(log, number))
        sync_path(log)
        self._upto[folder] = version


def _entry(log: StorePath, version: int) -> StorePath:
    return log / f"{version:020}.json"


def _sync_summary(log: StorePath) -> int:
    """Make the newest checkpoint of the log durable, and return its version; 0 without one."""
    version = last_checkpoint_version(log)
    for path in (*log.glob(f"{version:020}.checkpoint*.parquet"), log / _HINT):
        with suppress(FileNotFoundError):
            sync_path(path)
    return version


def _refuse_expired(log: StorePath, version: int) -> None:
    """Delete the entry ``version``, which this process has just written, if a checkpoint of that version exists.

    Another run has written an entry with this number and a checkpoint, and has deleted the entry after its retention.
    Entries expire in order. If the one before still exists, another writer has only continued after this entry.
    Raises: CommitFailedError - read the table again, from its checkpoint; OSError.
    """
    if last_checkpoint_version(log) >= version and not _entry(log, version - 1).exists():
        _entry(log, version).unlink(missing_ok=True)
        raise CommitFailedError(f"version {version} of {log} exists and has expired")


def last_checkpoint_version(log: StorePath) -> int:
    """Return the version of the newest checkpoint of the log; 0 without one."""
    try:
        return int(json.loads((log / _HINT).read_bytes())["version"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return 0
    except OSError:
        if isinstance(log, ObjectPath):
            raise
        return 0


def write_checkpoint(found: DeltaTable, folder: StorePath) -> None:
    """Write a checkpoint of the log, then delete expired entries. Raises: OSError."""
    found.create_checkpoint()
    _sync_summary(folder / LOG)
    sync_path(folder / LOG)
    found.cleanup_metadata()


def repair(log: StorePath) -> None:
    """Rename the ``truncated_entries`` files, so that no reader uses them.

    Calls: before this process writes to the table. Raises: OSError.
    """
    if isinstance(log, ObjectPath) or not any(truncated_entries(log)):
        return  # an object is never incomplete
    with _alone(log):  # otherwise another process may have replaced a damaged entry since the check
        summed = _whole_checkpoint(log)
        for path in list(truncated_entries(log)):
            path.rename(path.with_name(f".{path.name}.damaged"))
            if path.suffix == ".json" and _version(path) <= summed:
                path.touch()  # deltalake requires that the entry exists, but reads the checkpoint instead
            logger.warning("%s is incomplete and was renamed; it has no committed data", path)
        sync_path(log)


def truncated_entries(log: StorePath) -> Iterator[Path]:
    """Yield files that a power failure left empty or incomplete.

    Only the newest entries can be incomplete, and checkpoints whose entries still exist. A running writer gives a file
    its name when it is complete.
    """
    if isinstance(log, ObjectPath):
        return
    summed = _whole_checkpoint(log)
    for path in sorted(log.glob("[0-9]*.json"), reverse=True):
        if _is_whole_entry(path) or (_version(path) <= summed and not path.stat().st_size):
            break
        yield path
    cut = [path for path in log.glob("[0-9]*.checkpoint*.parquet") if not _is_whole_parquet(path)]
    yield from cut
    if (log / _HINT).exists() and not {*log.glob(f"{last_checkpoint_version(log):020}.checkpoint*.parquet")}.difference(
        cut
    ):
        yield log / _HINT


def _version(path: Path) -> int:
    return int(path.name.partition(".")[0])


def _whole_checkpoint(log: Path) -> int:
    """Return the highest version of a complete checkpoint; -1 without one."""
    return max(
        (_version(path) for path in log.glob("[0-9]*.checkpoint*.parquet") if _is_whole_parquet(path)), default=-1
    )


def _is_whole_entry(path: Path) -> bool:
    try:
        # split bytes, because Python's splitlines would also split text at U+2028
        actions = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
    except FileNotFoundError:  # it has expired meanwhile
        return True
    except ValueError:
        return False
    if not actions:
        return False
    # an incomplete entry can end exactly at the end of a line
    count = next((action["commitInfo"].get(COUNT) for action in actions if "commitInfo" in action), None)
    return count is None or int(count) == sum("add" in action or "remove" in action for action in actions)


def _is_whole_parquet(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            if file.tell() < 2 * len(_PARQUET_END):
                return False
            file.seek(-len(_PARQUET_END), os.SEEK_END)
            return file.read() == _PARQUET_END
    except FileNotFoundError:  # it has expired meanwhile
        return True


@contextmanager
def _alone(log: Path) -> Iterator[None]:
    """Lock the folder against other processes that repair it, if the file system supports locks."""
    handle = os.open(log, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
