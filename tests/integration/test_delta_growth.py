"""A table with deletion vectors after thousands of merges: its files, its log and its deleted rows stay bounded."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable

from channels.sinks.delta import compaction, files, maintenance, merge
from channels.sinks.delta.table_files import table_files
from tests.integration.test_delta_vectors import TABLE, apply, by_deltalake, commit, folder_of, open_sink

KEYS = 2_000
MAINTAINED_EVERY = 5


@pytest.mark.parametrize("merges", [500, pytest.param(2_000, marks=pytest.mark.stress)])
def test_vector_table_stays_small_over_many_merges(
    merges: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of 500 rows stand for those of 200,000: 4 of them hold the table, and a merge changes a hundredth of it."""
    for module in (merge, compaction):
        monkeypatch.setattr(module, "FILE_ROWS", 500)
    monkeypatch.setattr(compaction, "_SMALL_ROWS", 125)
    monkeypatch.setattr(files, "_GROUP_ROWS", 100)
    monkeypatch.setattr(maintenance, "_EVERY_S", 0.0)
    monkeypatch.setattr(maintenance, "_VACUUM_EVERY_S", 0.0)
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    draw, sink = random.Random(2000), open_sink(tmp_path, retention_s=0)
    expected: dict[int, int] = {}
    first: dict[int, int | None] = dict.fromkeys(range(KEYS), 0)
    commit(sink, 1, first)
    apply(expected, first)
    most: dict[str, int] = {}
    for number in range(2, merges + 2):
        rows = {key: None if draw.randrange(10) == 0 else number for key in draw.sample(range(KEYS), 20)}
        commit(sink, number, rows)
        apply(expected, rows)
        if number % MAINTAINED_EVERY == 0:
            sink.maintain([TABLE])
            _note(tmp_path, most)
        if number % 100 == 0:
            _age(folder_of(tmp_path) / "_delta_log")
    assert by_deltalake(tmp_path) == expected
    assert most["files"] <= 30, most  # 8 small ones, those of 5 merges, and full ones
    assert most["dead_percent"] <= 10, most
    # entries of up to 100 merges and their compactions are younger than the retention; a checkpoint is for 50 entries
    assert most["entries"] <= 100 + 100 // MAINTAINED_EVERY + 2 * 50, most
    assert most["vector_files"] <= 2 * MAINTAINED_EVERY and most["data_files"] <= 60, most
    sink.close()


def _note(root: Path, most: dict[str, int]) -> None:
    found = table_files(DeltaTable(str(folder_of(root))), ["id"])
    rows, live = sum(file.rows for file in found), sum(file.live_rows for file in found)
    now = {
        "files": len(found),
        "dead_percent": 100 * (rows - live) // rows,
        "entries": len(list((folder_of(root) / "_delta_log").iterdir())),
        "vector_files": len(list(folder_of(root).glob("*.bin"))),
        "data_files": len(list(folder_of(root).glob("*.parquet"))),
    }
    most.update({name: max(value, most.get(name, 0)) for name, value in now.items()})


def _age(log: Path) -> None:
    """Let the retention of the entries end, as if the merges had been made over hours."""
    hour_ago = time.time() - 3600
    for path in log.iterdir():
        os.utime(path, (hour_ago, hour_ago))
