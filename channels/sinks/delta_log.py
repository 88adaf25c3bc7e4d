"""A Delta table's log on its disk: what was committed stays, though the machine loses its power at any moment.

deltalake leaves it to the operating system when its files reach the disk. Were an entry gone and one that builds on it
not, rows would be doubled: what a compaction put together would be there, and what it was made of, too. So no entry is
written on top of one that is not on the disk, and none deleted before what sums it up is there.

Source: Delta transaction log protocol, "Delta Log Entries", "Checkpoints", "Last Checkpoint File".
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties

from channels.sinks.delta_files import sync_folder
from channels.sinks.delta_merge import Action

logger = logging.getLogger(__name__)

LOG = "_delta_log"
MARK = "cdc"  # in the commit metadata of what we wrote: the checkpoint
_HINT = "_last_checkpoint"
_PARQUET_END = b"PAR1"
# by default every commit would list the whole log several times to see what has expired: `maintain` looks after that
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class DurableLogs:
    """Knows how much of each table's log is on the disk. Calls: any thread, one at a time for a table."""

    def __init__(self) -> None:
        self._upto: dict[Path, int] = {}

    def append(self, found: DeltaTable, folder: Path, actions: list[Action], properties: CommitProperties) -> None:
        """Commit ``actions`` on top of ``found``, durable when this returns.

        Raises: CommitFailedError - another writer came between; OSError.
        """
        self.sync(folder, found.version())
        sync_folder(folder)  # files are there for good before the log names them
        found.create_write_transaction(
            actions, "append", found.schema(), commit_properties=properties, post_commithook_properties=_NO_HOOKS
        )
        # without retries a commit is the version behind its snapshot, or fails
        self.sync(folder, found.version() + 1)

    def sync(self, folder: Path, version: int) -> None:
        """Make the log durable up to ``version``. Raises: OSError."""
        known = self._upto.get(folder)
        if known == version:
            return
        if known is None or known > version:  # of a process before us, or of a table that was made anew
            known = -1
        log, first = folder / LOG, version
        # what we wrote lies on something durable; others do not see to it
        while first > known + 1 and not _is_ours(_entry(log, first)) and _entry(log, first - 1).exists():
            first -= 1
        for number in range(first, version + 1):
            _sync(_entry(log, number))
        sync_folder(log)
        self._upto[folder] = version


def _entry(log: Path, version: int) -> Path:
    return log / f"{version:020}.json"


def _is_ours(entry: Path) -> bool:
    with entry.open(encoding="utf-8") as lines:
        return any(MARK in json.loads(line)["commitInfo"] for line in lines if line.startswith('{"commitInfo"'))


def summed_up(log: Path) -> int:
    """The version that the log's newest checkpoint sums up; 0 without one."""
    try:
        return int(json.loads((log / _HINT).read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def sum_up(found: DeltaTable, folder: Path) -> None:
    """Write a checkpoint of the log, then delete the entries that have expired. Raises: OSError."""
    found.create_checkpoint()
    log = folder / LOG
    for path in (*log.glob(f"{found.version():020}.checkpoint*.parquet"), log / _HINT):
        _sync(path)
    sync_folder(log)
    found.cleanup_metadata()


def mend(log: Path) -> None:
    """Put aside what a power failure has left of files that were not on the disk.

    Such files are empty, or end too early: a newest entry, which nothing builds on, and checkpoints, whose entries are
    still there. They get names that no reader looks at. Writers that live give a file its name once it is whole.

    Raises: OSError.
    """
    checkpoints = [path for path in log.glob("*.checkpoint*.parquet") if not _is_whole(path)]
    for path in (*_damaged_entries(log), *checkpoints):
        path.rename(path.with_name(f".{path.name}.damaged"))
        logger.warning("%s was not written to its end, and is put aside; nothing that was committed is in it", path)
    hint = log / _HINT
    if hint.exists() and not any(log.glob(f"{summed_up(log):020}.checkpoint*.parquet")):
        hint.unlink()


def _damaged_entries(log: Path) -> Iterator[Path]:
    """The newest entries, as far as they cannot be read."""
    for path in sorted(log.glob("[0-9]*.json"), reverse=True):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            if lines and all(json.loads(line) for line in lines):
                return
        except ValueError:
            pass
        yield path


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        if file.tell() < 2 * len(_PARQUET_END):
            return False
        file.seek(-len(_PARQUET_END), os.SEEK_END)
        return file.read() == _PARQUET_END


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
