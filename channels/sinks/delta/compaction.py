"""Compact small files of a Delta table by key range, and delete unused ones."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from cdc.errors import TargetMismatch
from channels.sinks.delta.files import unpacked_bytes
from channels.sinks.delta.merge import FILE_BYTES, FILE_ROWS, write_files
from channels.sinks.delta.table_files import Action, TableFile, live_tables
from channels.sinks.delta.vectors import OWN_FILES, Vector

# a full Task writes larger files, so those of a backlog are not rewritten
_SMALL_ROWS = FILE_ROWS // 4
_SMALL_BYTES = FILE_BYTES // 8
_DEAD_SHARE = 0.1  # of a file; readers read deleted rows as well
_SMALL_FILES = 8  # rewrite at least this many small files
# names of files of a merge (label and 16 digits) or a compaction (32 digits), complete or not; names of Spark and
# deltalake have hyphens within the digits
_OWN_NAME = re.compile(
    r"part-(cdc-[a-z0-9_-]+-[0-9a-f]{8}-\d+-\d+-\w*-[0-9a-f]{10}-\d+-\d+-\d+-[0-9a-f]{16}-(file-\d+-|rows-\d+-|new-|staged-)\d+"
    r"|[0-9a-f]{32}-\d+-\d+)\.parquet(\.[0-9a-f]{32}\.tmp)?",
    re.ASCII,
)
_ROUND_ROWS, _ROUND_BYTES = 20 * FILE_ROWS, 8 * FILE_BYTES  # limits of one call, because commits wait for it


def compaction(
    folder: Path, schema: pa.Schema, key: Sequence[str], files: Sequence[TableFile], name: str
) -> list[Action]:
    """Merge small files of a table into data files sorted by key, and return the log entries; [] if there are few.

    A file of which more than a tenth is deleted is written again without the deleted rows.
    Memory: two data files. ``name``: prefix of the new files; no other files may have it.
    """
    small = [file for file in files if file.rows < _SMALL_ROWS and file.size < _SMALL_BYTES]
    if len(small) >= _SMALL_FILES:
        small = [file for file in small if _bytes(folder / file.path) < _SMALL_BYTES]
    if len(small) < _SMALL_FILES:
        small = []
    chosen = sorted({file.path: file for file in (*small, *filter(_is_sparse, files))}.values(), key=_sort_key)
    actions: list[Action] = []
    rows_left, bytes_left = _ROUND_ROWS, _ROUND_BYTES
    for number, group in enumerate(_groups(folder, chosen)):
        rows_left -= sum(file.live_rows for file in group)
        bytes_left -= sum(_bytes(folder / file.path) for file in group)
        if min(rows_left, bytes_left) < 0 and actions:
            break
        tables = itertools.chain.from_iterable(live_tables(folder, file, schema) for file in group)
        rows = pa.concat_tables([schema.empty_table(), *tables]).sort_by([(part, "ascending") for part in key])
        actions += [file.removal(data_change=False) for file in group]
        actions += write_files(iter([rows]), folder, f"part-{name}-{number}", schema, key, data_change=False)
    return actions


def delete_unused(folder: Path, find_active: Callable[[], set[str]], oldest: float, check: Callable[[], None]) -> int:
    """Delete files of this program that no version of the table since ``oldest`` contains; return their count.

    ``oldest``: seconds since 1970. Read the clock before ``find_active`` opens the newest version. Then a process that
    was frozen in between for longer than the retention does not delete files that were added meanwhile.
    ``check``: raises if another process owns the table now; called before each deletion. Files of other writers stay.
    """
    active = find_active()
    recent = set(_removed_since(folder / "_delta_log", oldest))
    count = 0
    data_files = (path for path in folder.glob("part-*.parquet*") if _OWN_NAME.fullmatch(path.name))
    for path in itertools.chain(data_files, folder.glob(OWN_FILES)):
        if path.name in active or path.name in recent:
            continue
        # names are never used twice, so an unused file stays unused
        if path.lstat().st_ctime < oldest:
            check()
            path.unlink(missing_ok=True)
            count += 1
    return count


def _removed_since(log: Path, oldest: float) -> Iterator[str]:
    """Yield the files that versions since ``oldest`` removed. The checkpoint has those of deleted log entries."""
    for entry in log.glob("[0-9]*.json"):
        with suppress(FileNotFoundError):  # log clean-up of another writer
            if entry.stat().st_mtime >= oldest:
                yield from _removed(entry)
    for checkpoint in sorted(log.glob("[0-9]*.checkpoint*.parquet"))[-1:]:
        removed = pq.read_table(checkpoint, columns=["remove"]).column("remove").drop_null().to_pylist()
        for one in removed:
            if one["path"] is not None and (one["deletionTimestamp"] or 0) >= oldest * 1000:
                yield from _paths(log.parent, one)


def _removed(entry: Path) -> Iterator[str]:
    for line in entry.read_bytes().split(b"\n"):
        if b'"remove"' in line and (removed := json.loads(line).get("remove")) is not None:
            yield from _paths(entry.parent.parent, removed)


def _paths(folder: Path, removed: dict[str, Any]) -> Iterator[str]:
    """Yield the paths of a removed file and of its deletion vector."""
    yield unquote(removed["path"])
    vector = removed.get("deletionVector")
    if vector and vector.get("storageType"):
        with suppress(TargetMismatch):  # of another writer, outside the table
            if (path := Vector.from_json(vector).file(folder)) is not None:
                yield str(path.relative_to(folder))


def _sort_key(file: TableFile) -> tuple[bool, object]:
    low = file.low[0].as_py() if file.low[0].is_valid else None
    return (low is not None, low if low is not None else 0)


def _groups(folder: Path, files: Sequence[TableFile]) -> Iterator[list[TableFile]]:
    """Yield groups of adjacent files that form one data file. A single file is rewritten only if it is sparse."""
    group: list[TableFile] = []
    rows = size = 0
    for file in files:
        group.append(file)
        rows, size = rows + file.live_rows, size + _bytes(folder / file.path)
        if rows >= FILE_ROWS or size >= FILE_BYTES:
            if len(group) > 1 or _is_sparse(file):
                yield group
            group, rows, size = [], 0, 0
    if len(group) > 1 or (group and _is_sparse(group[0])):
        yield group


def _is_sparse(file: TableFile) -> bool:
    """Return whether readers of the file read many deleted rows."""
    return file.vector is not None and file.vector.cardinality > file.rows * _DEAD_SHARE


@functools.lru_cache(maxsize=1 << 16)
def _bytes(path: Path) -> int:
    """See ``unpacked_bytes``; a file of a table never changes."""
    return unpacked_bytes(pq.read_metadata(path))
