"""A process that is frozen between its check and its log entry, for longer than the retention, writes nothing later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc.errors import SinkOwnershipError
from channels.sinks.base import AlterAction, AlterStep, SinkCheckpoint, TargetColumn
from channels.sinks.delta import compaction, fence, maintenance
from channels.sinks.delta.commits import TableCommits
from channels.sinks.delta.entries import newest_commit
from channels.sinks.delta.log import MARK
from channels.sinks.delta.sink import DeltaSink, MergeMode
from tests.integration.frozen_writer import SMALL_FILES
from tests.integration.test_delta_vectors import (
    TABLE,
    by_deltalake,
    commit,
    folder_of,
    mark,
    open_sink,
    stage,
)

ROOT = Path(__file__).parents[2]
ROWS = dict.fromkeys(range(10, SMALL_FILES * 10 + 10), 1)


@contextmanager
def frozen(root: Path, mode: MergeMode, work: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process, wait until it has stopped itself, and let it continue and end at the end."""
    command = [sys.executable, "-m", "tests.integration.frozen_writer", str(root), mode, work]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1]), process.stdout
            yield process
        finally:
            process.kill()


def thaw(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGCONT)
    return process.communicate(timeout=120)[0].strip()


def contents(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_size for path in folder_of(root).rglob("*") if path.is_file()}


def take_over(root: Path, mode: MergeMode) -> DeltaSink:
    """Return a sink of a newer run of the job, which deletes everything that is unused."""
    sink = open_sink(root, mode, retention_s=0)
    sink.acquire_ownership(mark(SMALL_FILES, fence=2), [TABLE.name])
    time.sleep(0.05)  # the oldest time to keep must be after the change of the files
    return sink


@pytest.fixture(autouse=True)
def maintained_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_EVERY_S", 0.0)
    monkeypatch.setattr(maintenance, "_VACUUM_EVERY_S", 0.0)
    monkeypatch.setattr(compaction, "_SMALL_FILES", 100)  # the newer run has nothing to compact


@pytest.mark.parametrize(
    ("mode", "work"), [("deletion_vectors", "commit"), ("rewrite", "commit"), ("deletion_vectors", "compact")]
)
def test_frozen_writer_after_take_over_without_commit_writes_nothing(
    mode: MergeMode, work: str, tmp_path: Path
) -> None:
    """The newer run commits nothing, but it deletes the files that the frozen one is about to add."""
    with frozen(tmp_path, mode, work) as process:
        new, unused = take_over(tmp_path, mode), contents(tmp_path).keys()
        new.maintain([TABLE])
        before = contents(tmp_path)
        assert unused - before.keys(), "the files of the frozen process are deleted"
        assert thaw(process) == "SinkOwnershipError"
    assert contents(tmp_path) == before
    assert by_deltalake(tmp_path) == ROWS
    commit_new(new, SMALL_FILES + 1, {500: 3})
    assert by_deltalake(tmp_path) == ROWS | {500: 3}
    new.close()


@pytest.mark.parametrize("mode", ["deletion_vectors", "rewrite"])
def test_frozen_writer_whose_version_has_expired_writes_nothing(mode: MergeMode, tmp_path: Path) -> None:
    """The newer run has committed, and log clean-up has deleted the entry with the number of the frozen one."""
    with frozen(tmp_path, mode, "commit") as process:
        found = DeltaTable(str(folder_of(tmp_path)))
        new, log = take_over(tmp_path, mode), folder_of(tmp_path) / "_delta_log"
        for checkpoint in range(SMALL_FILES + 1, SMALL_FILES + 5):
            commit_new(new, checkpoint, {checkpoint: 3})
        for entry in log.glob("*.json"):
            os.utime(entry, (0, 0))
        newest = DeltaTable(str(folder_of(tmp_path)))
        newest.create_checkpoint()
        newest.cleanup_metadata()
        new.maintain([TABLE])
        assert not (log / f"{found.version() + 1:020}.json").exists()
        before, rows = contents(tmp_path), by_deltalake(tmp_path)
        # SinkUnavailable: the entries that it must read have expired, too; its next commit finds the other run
        assert thaw(process) in ("SinkOwnershipError", "SinkUnavailable")
    assert contents(tmp_path) == before
    assert by_deltalake(tmp_path) == rows == ROWS | dict.fromkeys(range(SMALL_FILES + 1, SMALL_FILES + 5), 3)
    new.close()


def commit_new(sink: DeltaSink, checkpoint: int, rows: dict[int, int | None]) -> None:
    sink.commit([stage(sink, checkpoint, rows, fence=2)], mark(checkpoint, fence=2))


def test_fence_is_not_written_after_a_run_that_has_ended(tmp_path: Path) -> None:
    old = open_sink(tmp_path)
    old.acquire_ownership(mark(0), [TABLE.name])
    commit(old, 1, {1: 1})
    old.close()
    version = DeltaTable(str(folder_of(tmp_path))).version()
    new = open_sink(tmp_path)
    new.acquire_ownership(mark(1, fence=2), [TABLE.name])
    assert DeltaTable(str(folder_of(tmp_path))).version() == version
    commit_new(new, 2, {1: 2})
    found = DeltaTable(str(folder_of(tmp_path)))
    assert fence.has_fence(found, mark(2, fence=2)) and found.version() == version + 1
    with pytest.raises(SinkOwnershipError, match="fence 2"):
        fence.refuse_fenced(found, TABLE.name, mark(9))
    new.close()


def test_fence_of_a_run_without_commits_is_the_newest_of_the_sink(tmp_path: Path) -> None:
    """A later adoption gets a greater fence, although the run has committed nothing."""
    old = open_sink(tmp_path)
    old.acquire_ownership(mark(0), [TABLE.name])
    commit(old, 1, {1: 1})
    new = open_sink(tmp_path)
    new.acquire_ownership(mark(1, fence=2), [TABLE.name])
    assert new.last_checkpoint("shop") == mark(1, fence=2)
    commit_new(new, 2, {1: 2})
    assert new.last_checkpoint("shop") == mark(2, fence=2)
    for sink in (new, old):
        sink.close()


def test_fence_of_a_compaction_does_not_replace_that_of_an_adopting_run(tmp_path: Path) -> None:
    """An adopting run knows only the marks, so it can get the fence of a run that has compacted and committed nothing.

    That run may be frozen before another entry: the adopting run takes its version.
    """
    sink = open_sink(tmp_path)
    commit(sink, 1, {1: 1})
    found = DeltaTable(str(folder_of(tmp_path)))
    newest = newest_commit(found)[MARK]
    run, adopting = mark(1, fence=2), replace(mark(1, fence=2, incarnation="adopted1"), sequence=2000)
    fences = fence.fence_transactions(found, TABLE.name, [run])
    sink._logs.append(found, folder_of(tmp_path), [], newest, fences, version=found.version())
    version = DeltaTable(str(folder_of(tmp_path))).version()
    for _ in range(2):
        sink._commits.fence(TABLE.name, adopting)
    assert DeltaTable(str(folder_of(tmp_path))).version() == version + 1
    sink.close()


def write_fence_late(root: Path, old: DeltaSink) -> None:
    """Write the fence of a newer run, and let a reading thread of the old process update its handle of the table."""
    other = open_sink(root)
    other._write_fence(mark(1, fence=2))
    other.close()
    old.keys(TABLE, None, 1)


@pytest.mark.parametrize("work", ["commit", "add", "rename"])
def test_fence_read_by_another_thread_after_the_check_refuses_the_entry(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old run has checked version v, and its handle has v + 1, the fence of the newer run, before it writes."""
    old = open_sink(tmp_path)
    old.acquire_ownership(mark(0), [TABLE.name])
    commit(old, 1, {1: 1})
    load, column = stage(old, 2, {1: 2}), TargetColumn("m", pa.int64(), True)
    version = DeltaTable(str(folder_of(tmp_path))).version()
    has = TableCommits._has

    def check_then_update(self: TableCommits, found: DeltaTable, table: str, mark: SinkCheckpoint) -> bool:
        done = has(self, found, table, mark)
        monkeypatch.undo()
        write_fence_late(tmp_path, old)
        return done

    monkeypatch.setattr(TableCommits, "_has", check_then_update)
    with pytest.raises(SinkOwnershipError, match="fence 2"):
        if work == "commit":
            old.commit([load], mark(2))
        elif work == "add":
            old.alter(TABLE, [AlterStep(AlterAction.ADD, None, column)], mark(2))
        else:
            old.alter(TABLE, [AlterStep(AlterAction.RENAME, TABLE.columns[1], column)], mark(2))
    found = DeltaTable(str(folder_of(tmp_path)))
    assert found.version() == version + 1 and fence.has_fence(found, mark(1, fence=2))
    old.close()


def test_fence_is_never_lowered(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    sink.acquire_ownership(mark(0, fence=2), [TABLE.name])
    commit_new(sink, 1, {1: 1})
    with pytest.raises(SinkOwnershipError, match="fence 2"):
        fence.fence_transactions(DeltaTable(str(folder_of(tmp_path))), TABLE.name, [mark(2)])
    sink.close()
