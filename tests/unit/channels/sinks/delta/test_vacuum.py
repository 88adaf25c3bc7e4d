"""Which inactive files a vacuum deletes: not those that a version within the retention removed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from channels.sinks.delta.vacuum import delete_unused

OLDEST = 1_000_000.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table of which an old version removed the file ``old``, and a version within the retention ``recent``."""
    log = tmp_path / "_delta_log"
    log.mkdir()
    for version, (name, age_s) in enumerate((("old", -10), ("recent", 10))):
        (tmp_path / name).touch()
        entry = log / f"{version:020}.json"
        entry.write_text(json.dumps({"remove": {"path": name, "deletionTimestamp": 0}}) + "\n")
        os.utime(entry, (OLDEST + age_s, OLDEST + age_s))
    (tmp_path / "aborted").touch()
    return tmp_path


def delete(folder: Path, is_stopped: Callable[[], bool]) -> set[str]:
    names = ("old", "recent", "aborted")
    delete_unused(folder, [folder / name for name in names], OLDEST, lambda: None, is_stopped)
    return {name for name in names if (folder / name).exists()}


def test_vacuum_keeps_what_a_version_within_the_retention_removed(folder: Path) -> None:
    assert delete(folder, lambda: False) == {"recent"}


def test_stop_while_the_log_is_read_deletes_nothing(folder: Path) -> None:
    answers = iter([True, False, False, False])
    assert delete(folder, lambda: next(answers)) == {"old", "recent", "aborted"}


def test_vacuum_without_inactive_files_reads_no_log(tmp_path: Path) -> None:
    delete_unused(tmp_path / "missing", [], OLDEST, lambda: None, lambda: False)


def test_vacuum_reads_all_files_of_a_checkpoint_of_several_files(folder: Path) -> None:
    log = folder / "_delta_log"
    kind = pa.struct([("path", pa.string()), ("deletionTimestamp", pa.int64()), ("deletionVector", pa.null())])

    def write(version: int, part: int, removed: str) -> None:
        rows = [{"path": removed, "deletionTimestamp": int(OLDEST * 1000)}]
        name = f"{version:020}.checkpoint.{part:010}.{2:010}.parquet"
        pq.write_table(pa.table({"remove": pa.array(rows, kind)}), log / name)

    write(9, 1, "old")
    write(9, 2, "recent")
    write(10, 2, "other")  # another writer has not yet written the first file
    for entry in log.glob("*.json"):
        entry.unlink()
    assert delete(folder, lambda: False) == {"old", "recent"}
