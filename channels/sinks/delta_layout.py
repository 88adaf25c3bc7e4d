"""Housekeeping of a Delta table's files: small ones are put together by key range, unused ones deleted."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from channels.sinks.delta_merge import LEAF_ROWS, Action, TableFile, write_leaves

_SMALL_ROWS = LEAF_ROWS // 4  # a full Task of narrow rows makes larger files: a backlog is not rewritten
_SMALL_FILES = 8  # so many small files are worth a rewrite
_ROUND_ROWS = 20 * LEAF_ROWS  # rewritten in one call at most: commits wait for it


def compaction(
    folder: Path, schema: pa.Schema, key: Sequence[str], files: Sequence[TableFile], name: str
) -> list[Action]:
    """Write small files of a table anew as leaves sorted by key; the log's entries, none when there are few.

    Memory: two leaves. ``name`` begins the names of new files and is unused.
    """
    small = [file for file in files if file.rows < _SMALL_ROWS]
    if len(small) < _SMALL_FILES:
        return []
    small.sort(key=_place)
    actions: list[Action] = []
    total = 0
    for number, group in enumerate(_groups(small)):
        total += sum(file.rows for file in group)
        if total > _ROUND_ROWS and actions:
            break
        tables = [_read(folder / file.path, schema) for file in group]
        rows = pa.concat_tables(tables).sort_by([(part, "ascending") for part in key])
        actions += [file.removal(data_change=False) for file in group]
        actions += write_leaves(iter([rows]), folder, f"part-{name}-{number}", schema, key, data_change=False)
    return actions


def delete_unused(folder: Path, active: set[str], retention_s: float) -> int:
    """Delete files of a table that no version of the last ``retention_s`` seconds names; gives their count.

    A file that the newest version does not name was dropped by the log entry that removed it; where the log no longer
    has such an entry, retention is long past. Files whose writer was killed before they had their name go as well.
    """
    oldest = time.time() - retention_s
    recent: set[str] = set()
    for entry in (folder / "_delta_log").glob("*.json"):
        if entry.stat().st_mtime >= oldest:
            recent.update(_removed(entry))
    count = 0
    for path in folder.glob("*.parquet*"):
        if path.name not in active and path.name not in recent and path.stat().st_ctime < oldest:
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


def _groups(files: Sequence[TableFile]) -> Iterator[list[TableFile]]:
    """Neighbours by key, about a leaf together; single files stay as they are."""
    counts = itertools.accumulate(file.rows for file in files)
    for _, members in itertools.groupby(zip(files, counts, strict=True), key=lambda one: one[1] // LEAF_ROWS):
        group = [file for file, _ in members]
        if len(group) > 1:
            yield group


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    with pq.ParquetFile(path, memory_map=True) as file:
        return file.read(schema.names).cast(schema)
