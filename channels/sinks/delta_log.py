"""A Delta table's log on its disk: what was committed stays, though the machine loses its power at any moment.

deltalake leaves it to the operating system when its files reach the disk. Were an entry gone and one that builds on it
not, rows would be doubled: what a compaction put together would be there, and what it was made of, too. So no entry is
written on top of one that is not on the disk, and none deleted before what sums it up is there.

Source: Delta transaction log protocol, "Delta Log Entries", "Checkpoints", "Last Checkpoint File".
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction

from channels.sinks.delta_files import sync_path
from channels.sinks.delta_merge import Action

logger = logging.getLogger(__name__)

LOG = "_delta_log"
MARK = "cdc"  # in the commit metadata of what we wrote: the checkpoint
_COUNT = "cdc_actions"  # there too: how many files the entry adds and removes
_HINT = "_last_checkpoint"
_PARQUET_END = b"PAR1"
# by default every commit would list the whole log several times to see what has expired: `maintain` looks after that
NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class DurableLogs:
    """Knows how much of each table's log is on the disk. Calls: any thread, one at a time for a table."""

    def __init__(self) -> None:
        self._upto: dict[Path, int] = {}

    def append(
        self,
        found: DeltaTable,
        folder: Path,
        actions: list[Action],
        mark: str | None,
        transactions: Sequence[Transaction] = (),
    ) -> None:
        """Commit ``actions`` on top of ``found``, durable when this returns. ``mark``: see ``MARK``.

        Raises: CommitFailedError - another writer came between; OSError.
        """
        self.sync(folder, found.version())
        sync_path(folder)  # files are there for good before the log names them
        told = {_COUNT: str(len(actions)), **({MARK: mark} if mark else {})}
        properties = CommitProperties(
            custom_metadata=told,
            max_commit_retries=0,  # the actions are right for the snapshot they were made on, and for no other
            app_transactions=list(transactions),
        )
        found.create_write_transaction(
            actions, "append", found.schema(), commit_properties=properties, post_commithook_properties=NO_HOOKS
        )
        self.sync(folder, found.version() + 1)

    def sync(self, folder: Path, version: int) -> None:
        """Make the log durable up to ``version``, whoever wrote it. Raises: OSError."""
        known, log = self._upto.get(folder), folder / LOG
        if known == version:
            return
        if known is None or known > version:  # of a process before us, or of a table that was made anew
            known = _sync_summary(log) - 1
            for path in (folder, folder.parent):
                sync_path(path.parent)
        for number in range(known + 1, version + 1):
            with suppress(FileNotFoundError):  # it is summed up, or the table could not be read
                sync_path(_entry(log, number))
        sync_path(log)
        self._upto[folder] = version


def _entry(log: Path, version: int) -> Path:
    return log / f"{version:020}.json"


def _sync_summary(log: Path) -> int:
    """Make the log's newest checkpoint durable; its version, 0 without one."""
    version = summed_up(log)
    for path in (*log.glob(f"{version:020}.checkpoint*.parquet"), log / _HINT):
        with suppress(FileNotFoundError):
            sync_path(path)
    return version


def summed_up(log: Path) -> int:
    """The version that the log's newest checkpoint sums up; 0 without one."""
    try:
        return int(json.loads((log / _HINT).read_bytes())["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def sum_up(found: DeltaTable, folder: Path) -> None:
    """Write a checkpoint of the log, then delete the entries that have expired. Raises: OSError."""
    found.create_checkpoint()
    _sync_summary(folder / LOG)
    sync_path(folder / LOG)
    found.cleanup_metadata()


def mend(log: Path) -> None:
    """Put aside what is ``damaged``, under names that no reader looks at.

    Calls: before this process writes into the table. Raises: OSError.
    """
    if not any(damaged(log)):
        return
    with _alone(log):  # or the entry that was looked at may be one that somebody has made anew since
        summed = _whole_checkpoint(log)
        for path in list(damaged(log)):
            path.rename(path.with_name(f".{path.name}.damaged"))
            if path.suffix == ".json" and _version(path) <= summed:
                path.touch()  # nobody reads it, but deltalake wants one below the next
            logger.warning("%s was not written to its end, and is put aside; nothing that was committed is in it", path)
        sync_path(log)


def damaged(log: Path) -> Iterator[Path]:
    """What a power failure has left of files that were not on the disk: they are empty, or end too early.

    The newest entries, which nothing builds on, and checkpoints, whose entries are still there. Writers that live give
    a file its name once it is whole.
    """
    summed = _whole_checkpoint(log)
    for path in sorted(log.glob("[0-9]*.json"), reverse=True):
        if _is_whole_entry(path) or (_version(path) <= summed and not path.stat().st_size):
            break
        yield path
    cut = [path for path in log.glob("[0-9]*.checkpoint*.parquet") if not _is_whole_parquet(path)]
    yield from cut
    if (log / _HINT).exists() and not {*log.glob(f"{summed_up(log):020}.checkpoint*.parquet")}.difference(cut):
        yield log / _HINT


def _version(path: Path) -> int:
    return int(path.name.partition(".")[0])


def _whole_checkpoint(log: Path) -> int:
    """The highest version of a checkpoint that was written to its end; -1 without one."""
    return max(
        (_version(path) for path in log.glob("[0-9]*.checkpoint*.parquet") if _is_whole_parquet(path)), default=-1
    )


def _is_whole_entry(path: Path) -> bool:
    try:
        # by bytes: text may hold what Python takes for the end of a line, U+2028 for instance
        actions = [json.loads(line) for line in path.read_bytes().split(b"\n") if line]
    except FileNotFoundError:  # it has expired meanwhile
        return True
    except ValueError:
        return False
    if not actions:
        return False
    # it may end where a line does
    count = next((action["commitInfo"].get(_COUNT) for action in actions if "commitInfo" in action), None)
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
    """Lock the folder against others that mend, where its file system knows locks."""
    handle = os.open(log, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
