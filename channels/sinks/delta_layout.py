"""Housekeeping of a Delta table's files: small ones are put together by key range, unused ones deleted."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from channels.sinks.delta_files import unpacked_bytes
from channels.sinks.delta_merge import LEAF_BYTES, LEAF_ROWS, Action, TableFile, rows_of, write_leaves

# a full Task makes larger files: a backlog is not rewritten
_SMALL_ROWS = LEAF_ROWS // 4
_SMALL_BYTES = LEAF_BYTES // 8
_SMALL_FILES = 8  # so many small files are worth a rewrite
# names of data files: of merges, which begin with the label of a load, and of compactions; and before they are complete
_OWN = re.compile(r"part-(cdc-[-A-Za-z0-9_]+|[0-9a-f]{32}-[0-9]+(-[0-9]+)?)\.parquet(\.[0-9a-f]{32}\.tmp)?")
_ROUND_ROWS, _ROUND_BYTES = 20 * LEAF_ROWS, 8 * LEAF_BYTES  # rewritten in one call at most: commits wait for it


def compaction(
    folder: Path, schema: pa.Schema, key: Sequence[str], files: Sequence[TableFile], name: str
) -> list[Action]:
    """Write small files of a table anew as leaves sorted by key; the log's entries, none when there are few.

    Memory: two leaves. ``name`` begins the names of new files and is unused.
    """
    small = [file for file in files if file.rows < _SMALL_ROWS and file.size < _SMALL_BYTES]
    if len(small) >= _SMALL_FILES:
        small = [file for file in small if _bytes(folder / file.path) < _SMALL_BYTES]
    if len(small) < _SMALL_FILES:
        return []
    small.sort(key=_place)
    actions: list[Action] = []
    rows_left, bytes_left = _ROUND_ROWS, _ROUND_BYTES
    for number, group in enumerate(_groups(folder, small)):
        rows_left -= sum(file.rows for file in group)
        bytes_left -= sum(_bytes(folder / file.path) for file in group)
        if min(rows_left, bytes_left) < 0 and actions:
            break
        tables = [_read(folder / file.path, schema) for file in group]
        rows = pa.concat_tables(tables).sort_by([(part, "ascending") for part in key])
        actions += [file.removal(data_change=False) for file in group]
        actions += write_leaves(iter([rows]), folder, f"part-{name}-{number}", schema, key, data_change=False)
    return actions


def delete_unused(folder: Path, active: set[str], oldest: float) -> int:
    """Delete files of a table that no version since ``oldest`` names; return their count.

    ``oldest``: seconds since 1970, read before ``active``, the files of the newest version. Only files that a job has
    named are deleted. A file that the newest version does not name was dropped by the log entry that removed it; where
    the log no longer has such an entry, the retention is long past. Files whose writer was killed are deleted as well.
    """
    recent: set[str] = set()
    for entry in (folder / "_delta_log").glob("*.json"):
        if entry.stat().st_mtime >= oldest:
            recent.update(_removed(entry))
    count = 0
    for path in folder.glob("part-*.parquet*"):
        is_own = _OWN.fullmatch(path.name) is not None
        if is_own and path.name not in active and path.name not in recent and path.stat().st_ctime < oldest:
            path.unlink(missing_ok=True)
            count += 1
    return count


def _removed(entry: Path) -> Iterator[str]:
    with entry.open(encoding="utf-8") as lines:
        for line in lines:
            if line.startswith('{"remove"'):
                yield unquote(json.loads(line)["remove"]["path"])


def _place(file: TableFile) -> tuple[bool, object]:
    low = file.low[0].as_py() if file.low[0].is_valid else None
    return (low is not None, low if low is not None else 0)


def _groups(folder: Path, files: Sequence[TableFile]) -> Iterator[list[TableFile]]:
    """Neighbours by key, about a leaf together; single files stay as they are."""
    group: list[TableFile] = []
    rows = size = 0
    for file in files:
        group.append(file)
        rows, size = rows + file.rows, size + _bytes(folder / file.path)
        if rows >= LEAF_ROWS or size >= LEAF_BYTES:
            if len(group) > 1:
                yield group
            group, rows, size = [], 0, 0
    if len(group) > 1:
        yield group


@functools.lru_cache(maxsize=1 << 16)
def _bytes(path: Path) -> int:
    """See ``unpacked_bytes``; a file of a table never changes."""
    return unpacked_bytes(pq.read_metadata(path))


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    with pq.ParquetFile(path, memory_map=True) as file:
        return rows_of(file, schema)
