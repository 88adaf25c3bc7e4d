"""The log of a Delta table after power failures: committed rows are present once, and the table is readable."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc.model.batch import LoadName
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import TargetColumn, TargetTable
from channels.sinks.delta import log as delta_log
from channels.sinks.delta import storage as delta_storage
from channels.sinks.delta import table as delta_tables
from channels.sinks.delta.log import LOG, last_checkpoint_version, truncated_entries
from channels.sinks.delta.sink import DeltaSink, MergeMode
from tests.integration.test_delta_tables import TABLE, commit, mark, stage, sums
from tests.support.mounting import Disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path / "disk.ext4", tmp_path / "disk", size_mib=256) as found:
        yield found


def cut_power(disk: Disk, merge: MergeMode = "rewrite") -> DeltaSink:
    disk.cut()
    disk.start_again()
    return DeltaSink(disk.at, merge=merge)


each_merge = pytest.mark.parametrize("merge", ["rewrite", "deletion_vectors"])


@each_merge
def test_delta_commits_survive_power_failures(disk: Disk, merge: MergeMode) -> None:
    sink = DeltaSink(disk.at, merge=merge)
    sink.ensure_table(TABLE)
    for checkpoint in range(1, 4):
        commit(sink, checkpoint, range(checkpoint * 5, checkpoint * 5 + 10), value=checkpoint)  # half of them exist
        sink = cut_power(disk, merge)
        assert sums(disk.at) == (5 + 5 * checkpoint, 5 * sum(range(checkpoint)) + 10 * checkpoint)
        found = sink.last_checkpoint("shop")
        assert found is not None and found.checkpoint == checkpoint


@each_merge
@pytest.mark.parametrize("killed_after", [None, "compaction", "next commit"])
def test_delta_compaction_is_durable_before_later_commits(
    disk: Disk, killed_after: str | None, merge: MergeMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its removals were lost and the later commit kept, all compacted rows would exist twice."""
    monkeypatch.setattr("channels.sinks.delta.maintenance._EVERY_S", 0.0)
    sink = DeltaSink(disk.at, merge=merge)
    sink.ensure_table(TABLE)
    for checkpoint in range(1, 10):
        commit(sink, checkpoint, range(checkpoint * 10, checkpoint * 10 + 10))
    before = len(DeltaTable(str(disk.at / "ods/orders")).file_uris())
    with monkeypatch.context() as patched:
        if killed_after is not None:  # the process died before the sync
            patched.setattr(delta_log, "sync_path", lambda path: None)
        sink.maintain([TABLE])
        assert len(DeltaTable(str(disk.at / "ods/orders")).file_uris()) < before
        if killed_after == "next commit":
            commit(sink, 10, range(20, 25), value=1)
    if killed_after is not None:
        sink = DeltaSink(disk.at, merge=merge)
    commit(sink, 11, range(10, 15), value=1)
    cut_power(disk)
    assert sums(disk.at) == (90, 10 if killed_after == "next commit" else 5)


@each_merge
def test_delta_commit_of_a_killed_process_becomes_durable(
    disk: Disk, merge: MergeMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DeltaSink(disk.at, merge=merge)
    sink.ensure_table(TABLE)
    commit(sink, 1, range(10))
    with monkeypatch.context() as patched:
        patched.setattr(delta_log, "sync_path", lambda path: None)
        commit(sink, 2, range(5), value=1)
    DeltaSink(disk.at, merge=merge).commit(
        [stage(sink, 2, range(5), value=1)], mark(2)
    )  # from here on it is acknowledged
    cut_power(disk)
    assert sums(disk.at) == (10, 5)


def test_delta_staged_file_without_hard_link_is_durable(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def refuse(source: Path, target: Path) -> None:
        if target.suffix == ".parquet":  # the staged file; entries of the log are written in the folder of the log
            raise OSError(errno.EXDEV, "another file system")
        real(source, target)

    monkeypatch.setattr("channels.sinks.delta.storage.os.link", refuse)
    sink = DeltaSink(disk.at)
    sink.ensure_table(TABLE)
    commit(sink, 1, range(10), value=1)
    cut_power(disk)
    assert sums(disk.at) == (10, 10)


def test_delta_entries_of_other_writers_are_durable_first(disk: Disk) -> None:
    sink = DeltaSink(disk.at)
    sink.ensure_table(TABLE)
    for checkpoint in range(1, 4):
        commit(sink, checkpoint, range(checkpoint * 10, checkpoint * 10 + 10))
    uri = str(disk.at / "ods/orders")
    DeltaTable(uri).optimize.compact()
    for path in Path(uri).glob("*.parquet"):  # a writer that syncs its files, but not its log
        delta_storage.sync_path(path)
    DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "false"})
    commit(sink, 4, range(10, 15), value=1)
    cut_power(disk)
    assert sums(disk.at) == (30, 5)


def test_delta_log_checkpoint_is_durable_before_cleanup(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels.sinks.delta.maintenance._EVERY_S", 0.0)
    monkeypatch.setattr(delta_tables, "CHECKPOINT_EVERY", 5)
    sink = DeltaSink(disk.at)
    sink.ensure_table(TABLE)
    for checkpoint in range(1, 13):
        commit(sink, checkpoint, range(10), value=checkpoint)
        sink.maintain([TABLE])
    log = disk.at / "ods/orders" / LOG
    checkpoint_version = last_checkpoint_version(log)
    assert checkpoint_version >= 10
    cut_power(disk)
    assert (
        last_checkpoint_version(log) == checkpoint_version
        and (log / f"{checkpoint_version:020}.checkpoint.parquet").stat().st_size
    )
    assert sums(disk.at) == (10, 120)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a table whose log has 13 entries, a checkpoint, and entries after it."""
    monkeypatch.setattr("channels.sinks.delta.maintenance._EVERY_S", 0.0)
    monkeypatch.setattr(delta_tables, "CHECKPOINT_EVERY", 5)
    sink = DeltaSink(tmp_path)
    sink.ensure_table(TABLE)
    for checkpoint in range(1, 13):
        commit(sink, checkpoint, range(10), value=checkpoint)
        if checkpoint < 11:
            sink.maintain([TABLE])
    return tmp_path / "ods/orders"


def truncate(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize("left", [0, 100, "a line"])
def test_delta_truncated_log_entry_is_renamed_and_written_again(table: Path, left: int | str) -> None:
    newest = DeltaTable(str(table)).version()
    entry = table / LOG / f"{newest:020}.json"
    if isinstance(left, str):
        left = entry.read_bytes().index(b"\n", entry.read_bytes().index(b'"remove"'))
    truncate(entry, left)
    sink = DeltaSink(table.parent.parent)
    assert [(finding.fatal, entry.name in finding.problem) for finding in sink.check([TABLE])] == [(False, True)]
    assert entry.exists(), "a check changes nothing"
    found = sink.last_checkpoint("shop")
    assert found is not None and found.checkpoint == 11
    assert sums(table.parent.parent) == (10, 110)
    commit(sink, 12, range(10), value=12)
    assert sums(table.parent.parent) == (10, 120)
    assert DeltaTable(str(table)).version() == newest
    assert (table / LOG / f".{newest:020}.json.damaged").stat().st_size == left


@pytest.mark.parametrize("left", [0, 1000])
@pytest.mark.parametrize("with_hint", [True, False])
def test_delta_truncated_log_checkpoint_keeps_table_readable(table: Path, left: int, with_hint: bool) -> None:
    log = table / LOG
    checkpoint_version = last_checkpoint_version(log)
    truncate(log / f"{checkpoint_version:020}.checkpoint.parquet", left)
    if not with_hint:
        truncate(log / "_last_checkpoint", 0)
    sink = DeltaSink(table.parent.parent)
    found = sink.last_checkpoint("shop")
    assert found is not None and found.checkpoint == 12
    assert sums(table.parent.parent) == (10, 120)
    assert not (log / "_last_checkpoint").exists()
    sink.maintain([TABLE])
    assert last_checkpoint_version(log) == DeltaTable(str(table)).version() > checkpoint_version


def test_delta_complete_log_is_not_changed(table: Path) -> None:
    log = table / LOG
    before = {path.name: path.read_bytes() for path in log.iterdir()}
    DeltaSink(table.parent.parent).last_checkpoint("shop")
    assert {path.name: path.read_bytes() for path in log.iterdir()} == before


@pytest.mark.parametrize("text", ["\u2028", "\u2029", "\x85", "\x0b", "\x1e"])
def test_delta_unicode_line_separators_keep_log_entries_whole(tmp_path: Path, text: str) -> None:
    """The log contains them in the bounds of keys and in comments."""
    columns = (TargetColumn("id", pa.string(), False, comment=f"a{text}b"),)
    table = TargetTable("ods.texts", columns, ("id",), f"c{text}d")
    sink = DeltaSink(tmp_path)
    sink.ensure_table(table)
    for checkpoint in (1, 2):
        rows = {"id": [f"{text}{checkpoint}"], DELETED: [False], SEQUENCE: pa.array([1], pa.int64())}
        name = LoadName("shop", "0badcafe", 1, checkpoint, table.name, 0)
        load = sink.part_writer(table)(name, iter([pa.RecordBatch.from_pydict(rows)]))
        assert load is not None
        sink.commit([load], mark(checkpoint))
    assert not list(truncated_entries(tmp_path / "ods/texts" / LOG))
    found = DeltaSink(tmp_path).last_checkpoint("shop")
    assert found is not None and found.checkpoint == 2


@pytest.mark.parametrize("left", [0, 100])
def test_delta_table_with_only_a_log_checkpoint_continues(table: Path, left: int) -> None:
    """A checkpoint may be on the disk while the newest entry that it includes is lost."""
    root, log = table.parent.parent, table / LOG
    newest = DeltaTable(str(table)).version()
    DeltaTable(str(table)).create_checkpoint()
    truncate(log / f"{newest:020}.json", left)
    sink = DeltaSink(root)
    found = sink.last_checkpoint("shop")
    assert found is not None and found.checkpoint == 11, "older than the newest commit"
    commit(sink, 12, range(10), value=99)  # the table already has this commit
    assert sums(root) == (10, 120)
    commit(sink, 13, range(10), value=13)
    assert sums(root) == (10, 130) and DeltaTable(str(table)).version() == newest + 1


def test_make_folder_below_an_unlistable_folder_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []

    def sync(path: Path) -> None:
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "no")
        synced.append(path)

    monkeypatch.setattr(delta_storage, "sync_path", sync)
    delta_storage.make_folder(tmp_path / "a/b/c")
    assert (tmp_path / "a/b/c").is_dir() and synced == [tmp_path / "a", tmp_path / "a/b"]


def test_delta_table_created_again_is_durable(disk: Disk) -> None:
    sink = DeltaSink(disk.at)
    sink.ensure_table(TABLE)
    for checkpoint in range(1, 4):
        commit(sink, checkpoint, range(10))
    shutil.rmtree(disk.at / "ods/orders")
    sink.ensure_table(TABLE)
    commit(sink, 4, range(5), value=4)
    cut_power(disk)
    assert sums(disk.at) == (5, 20)
