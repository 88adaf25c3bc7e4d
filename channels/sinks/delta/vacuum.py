"""Delete files of a Delta table that no version within the retention needs."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from cdc.errors import TargetMismatch
from channels.sinks.delta.entries import newest_checkpoint
from channels.sinks.delta.storage import StorePath, open_parquet, relative
from channels.sinks.delta.vectors import OWN_FILES, Vector

# names of files of a merge (label and 16 digits) or a compaction (32 digits), complete or not; names of Spark and
# deltalake have hyphens within the digits
_OWN_NAME = re.compile(
    r"part-(cdc-[a-z0-9_-]+-[0-9a-f]{8}-\d+-\d+-\w*-[0-9a-f]{10}-\d+-\d+-\d+-[0-9a-f]{16}-(file-\d+-|rows-\d+-|new-|staged-)\d+"
    r"|[0-9a-f]{32}-\d+-\d+)\.parquet(\.[0-9a-f]{32}\.tmp)?",
    re.ASCII,
)


def find_inactive(folder: StorePath, find_active: Callable[[], set[str]], oldest: float) -> list[StorePath]:
    """Return the files of this program from before ``oldest`` that the newest version of the table does not contain.

    ``oldest``: seconds since 1970. Read the clock before ``find_active`` opens the newest version. Then a process that
    was frozen in between for longer than the retention does not find files that were added meanwhile. Files of other
    writers are not returned. Calls: while no commit of this process is writing files to the folder.
    """
    active = find_active()
    data_files = (path for path in folder.glob("part-*.parquet*") if _OWN_NAME.fullmatch(path.name))
    own = itertools.chain(data_files, folder.glob(OWN_FILES))
    return [path for path in own if path.name not in active and path.lstat().st_ctime < oldest]


def delete_unused(
    folder: StorePath,
    inactive: Sequence[StorePath],
    oldest: float,
    check: Callable[[], None],
    is_stopped: Callable[[], bool],
) -> None:
    """Delete what ``find_inactive`` has returned, except files that a version since ``oldest`` removed.

    Ends when ``is_stopped``. Commits may continue meanwhile: names are never used twice, so an inactive file stays
    inactive. ``check``: raises if another process owns the table now; called before each deletion.
    """
    if not inactive:
        return  # each entry of the log can be a request to an object store
    recent = set[str]()
    for name in _removed_since(folder / "_delta_log", oldest):
        if is_stopped():
            return
        recent.add(name)
    for path in inactive:
        if is_stopped():
            return
        if path.name not in recent:
            check()
            path.unlink(missing_ok=True)


def _removed_since(log: StorePath, oldest: float) -> Iterator[str]:
    """Yield the files that versions since ``oldest`` removed. The checkpoint has those of deleted log entries."""
    for entry in log.glob("[0-9]*.json"):
        with suppress(FileNotFoundError):  # log clean-up of another writer
            if entry.stat().st_mtime >= oldest:
                yield from _removed(entry)
    for checkpoint in newest_checkpoint(log)[0]:
        with open_parquet(checkpoint) as file:
            removed = file.read(["remove"]).column("remove").drop_null().to_pylist()
        for one in removed:
            if one["path"] is not None and (one["deletionTimestamp"] or 0) >= oldest * 1000:
                yield from _paths(log.parent, one)


def _removed(entry: StorePath) -> Iterator[str]:
    for line in entry.read_bytes().split(b"\n"):
        if b'"remove"' in line and (removed := json.loads(line).get("remove")) is not None:
            yield from _paths(entry.parent.parent, removed)


def _paths(folder: StorePath, removed: dict[str, Any]) -> Iterator[str]:
    """Yield the paths of a removed file and of its deletion vector."""
    yield unquote(removed["path"])
    vector = removed.get("deletionVector")
    if vector and vector.get("storageType"):
        with suppress(TargetMismatch):  # of another writer, outside the table
            if (path := Vector.from_json(vector).file(folder)) is not None:
                yield relative(path, folder)
