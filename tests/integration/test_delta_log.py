"""A Delta table's log and power failures: what was committed is there, once, and the table can be read."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc.batch import LoadName
from cdc.schema import DELETED, SEQUENCE
from channels.sinks import delta, delta_files, delta_log, delta_tables
from channels.sinks.base import TargetColumn, TargetTable
from channels.sinks.delta import DeltaSink
from channels.sinks.delta_log import LOG, damaged, summed_up
from tests.integration.test_delta_tables import TABLE, commit, mark, stage, sums
from tests.mounting import Disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with Disk(tmp_path / "disk.ext4", tmp_path / "disk", size_mib=256) as found:
        yield found


def power_failure(disk: Disk) -> DeltaSink:
    disk.cut()
    disk.start_again()
    return DeltaSink(disk.at)


def test_what_was_committed_is_there_behind_a_power_failure(disk: Disk) -> None:
    sink = DeltaSink(disk.at)
    sink.ensure_table(TABLE)
    for checkpoint in range(1, 4):
        commit(sink, checkpoint, range(checkpoint * 10), value=checkpoint)
        sink = power_failure(disk)
        assert sums(disk.at) == (checkpoint * 10, checkpoint * 10 * checkpoint)
        found = sink.last_checkpoint("shop")
        assert found is not None and found.checkpoint == checkpoint


@pytest.mark.parametrize("dead_with", [None, "the compaction", "a commit behind it"])
def test_a_compaction_that_a_commit_builds_on_is_on_the_disk_before_it(
    disk: Disk, dead_with: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its removals lost and the commit kept, all rows that it put together would be there twice."""
    monkeypatch.setattr(delta, "_MAINTAIN_EVERY_S", 0.0)
    sink = DeltaSink(disk.at)
    sink.ensure_table(TABLE)
    for checkpoint in range(1, 10):
        commit(sink, checkpoint, range(checkpoint * 10, checkpoint * 10 + 10))
    before = len(DeltaTable(str(disk.at / "ods/orders")).file_uris())
    with monkeypatch.context() as patched:
        if dead_with is not None:  # the process died before it could see to it
            patched.setattr(delta_log, "sync_path", lambda path: None)
        sink.maintain([TABLE])
        assert len(DeltaTable(str(disk.at / "ods/orders")).file_uris()) < before
        if dead_with == "a commit behind it":
            commit(sink, 10, range(20, 25), value=1)
    if dead_with is not None:
        sink = DeltaSink(disk.at)
    commit(sink, 11, range(10, 15), value=1)
    power_failure(disk)
    assert sums(disk.at) == (90, 10 if dead_with == "a commit behind it" else 5)


def test_what_a_process_committed_that_was_killed_is_durable_once_it_is_found_committed(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DeltaSink(disk.at)
    sink.ensure_table(TABLE)
    commit(sink, 1, range(10))
    with monkeypatch.context() as patched:
        patched.setattr(delta_log, "sync_path", lambda path: None)
        commit(sink, 2, range(10), value=1)
    DeltaSink(disk.at).commit([stage(sink, 2, range(10), value=1)], mark(2))  # from here on it is acknowledged
    power_failure(disk)
    assert sums(disk.at) == (10, 10)


def test_a_staged_file_that_cannot_be_linked_is_durable_in_the_table(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr("channels.sinks.delta_merge.os.link", refuse)
    sink = DeltaSink(disk.at)
    sink.ensure_table(TABLE)
    commit(sink, 1, range(10), value=1)
    power_failure(disk)
    assert sums(disk.at) == (10, 10)


def test_entries_of_another_writer_are_on_the_disk_before_what_builds_on_them(disk: Disk) -> None:
    sink = DeltaSink(disk.at)
    sink.ensure_table(TABLE)
    for checkpoint in range(1, 4):
        commit(sink, checkpoint, range(checkpoint * 10, checkpoint * 10 + 10))
    uri = str(disk.at / "ods/orders")
    DeltaTable(uri).optimize.compact()
    for path in Path(uri).glob("*.parquet"):  # a writer that syncs its files, and not its log
        delta_files.sync_path(path)
    DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "false"})
    commit(sink, 4, range(10, 15), value=1)
    power_failure(disk)
    assert sums(disk.at) == (30, 5)


def test_a_summary_of_the_log_is_on_the_disk_before_what_it_sums_up_goes(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta, "_MAINTAIN_EVERY_S", 0.0)
    monkeypatch.setattr(delta_tables, "CHECKPOINT_EVERY", 5)
    sink = DeltaSink(disk.at)
    sink.ensure_table(TABLE)
    for checkpoint in range(1, 13):
        commit(sink, checkpoint, range(10), value=checkpoint)
        sink.maintain([TABLE])
    log = disk.at / "ods/orders" / LOG
    summed = summed_up(log)
    assert summed >= 10
    power_failure(disk)
    assert summed_up(log) == summed and (log / f"{summed:020}.checkpoint.parquet").stat().st_size
    assert sums(disk.at) == (10, 120)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of 13 entries and a checkpoint, behind which there are some."""
    monkeypatch.setattr(delta, "_MAINTAIN_EVERY_S", 0.0)
    monkeypatch.setattr(delta_tables, "CHECKPOINT_EVERY", 5)
    sink = DeltaSink(tmp_path)
    sink.ensure_table(TABLE)
    for checkpoint in range(1, 13):
        commit(sink, checkpoint, range(10), value=checkpoint)
        if checkpoint < 11:
            sink.maintain([TABLE])
    return tmp_path / "ods/orders"


def left_of(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize("left", [0, 100, "a line"])
def test_an_entry_that_a_power_failure_cut_is_put_aside_and_made_again(table: Path, left: int | str) -> None:
    newest = DeltaTable(str(table)).version()
    entry = table / LOG / f"{newest:020}.json"
    if isinstance(left, str):
        left = entry.read_bytes().index(b"\n", entry.read_bytes().index(b'"remove"'))
    left_of(entry, left)
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
def test_a_checkpoint_that_a_power_failure_cut_does_not_make_the_table_unreadable(
    table: Path, left: int, with_hint: bool
) -> None:
    log = table / LOG
    summed = summed_up(log)
    left_of(log / f"{summed:020}.checkpoint.parquet", left)
    if not with_hint:
        left_of(log / "_last_checkpoint", 0)
    sink = DeltaSink(table.parent.parent)
    found = sink.last_checkpoint("shop")
    assert found is not None and found.checkpoint == 12
    assert sums(table.parent.parent) == (10, 120)
    assert not (log / "_last_checkpoint").exists()
    sink.maintain([TABLE])
    assert summed_up(log) == DeltaTable(str(table)).version() > summed


def test_a_whole_log_stays_as_it_is(table: Path) -> None:
    log = table / LOG
    before = {path.name: path.read_bytes() for path in log.iterdir()}
    DeltaSink(table.parent.parent).last_checkpoint("shop")
    assert {path.name: path.read_bytes() for path in log.iterdir()} == before


@pytest.mark.parametrize("text", ["\u2028", "\u2029", "\x85", "\x0b", "\x1e"])
def test_what_python_takes_for_the_end_of_a_line_does_not_cut_an_entry(tmp_path: Path, text: str) -> None:
    """In keys, whose bounds are in the log, and in comments."""
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
    assert not list(damaged(tmp_path / "ods/texts" / LOG))
    found = DeltaSink(tmp_path).last_checkpoint("shop")
    assert found is not None and found.checkpoint == 2


@pytest.mark.parametrize("left", [0, 100])
def test_a_table_of_which_only_the_summary_is_left_is_gone_on_with(table: Path, left: int) -> None:
    """A checkpoint may be on the disk, and the newest entry that it sums up not."""
    root, log = table.parent.parent, table / LOG
    newest = DeltaTable(str(table)).version()
    DeltaTable(str(table)).create_checkpoint()
    left_of(log / f"{newest:020}.json", left)
    sink = DeltaSink(root)
    found = sink.last_checkpoint("shop")
    assert found is not None and found.checkpoint == 11, "behind what it holds"
    commit(sink, 12, range(10), value=99)  # it knows that it has that one
    assert sums(root) == (10, 120)
    commit(sink, 13, range(10), value=13)
    assert sums(root) == (10, 130) and DeltaTable(str(table)).version() == newest + 1


def test_a_folder_is_made_where_the_one_above_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []

    def sync(path: Path) -> None:
        if path == tmp_path:
            raise PermissionError(errno.EACCES, "no")
        synced.append(path)

    monkeypatch.setattr(delta_files, "sync_path", sync)
    delta_files.make_folder(tmp_path / "a/b/c")
    assert (tmp_path / "a/b/c").is_dir() and synced == [tmp_path / "a", tmp_path / "a/b"]


def test_a_table_that_was_made_anew_is_durable_too(disk: Disk) -> None:
    sink = DeltaSink(disk.at)
    sink.ensure_table(TABLE)
    for checkpoint in range(1, 4):
        commit(sink, checkpoint, range(10))
    shutil.rmtree(disk.at / "ods/orders")
    sink.ensure_table(TABLE)
    commit(sink, 4, range(5), value=4)
    power_failure(disk)
    assert sums(disk.at) == (5, 20)
