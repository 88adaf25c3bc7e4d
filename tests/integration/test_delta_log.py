"""A Delta table's log and power failures: what was committed is there, once, and the table can be read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from channels.sinks import delta, delta_files, delta_tables
from channels.sinks.delta import DeltaSink
from channels.sinks.delta_log import LOG, summed_up
from tests.integration.test_delta_tables import TABLE, commit, sums
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


@pytest.mark.parametrize("is_another_process", [False, True])
def test_a_compaction_that_a_commit_builds_on_is_on_the_disk_before_it(
    disk: Disk, is_another_process: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its removals lost and the commit kept, all rows that it put together would be there twice."""
    monkeypatch.setattr(delta, "_MAINTAIN_EVERY_S", 0.0)
    sink = DeltaSink(disk.at)
    sink.ensure_table(TABLE)
    for checkpoint in range(1, 10):
        commit(sink, checkpoint, range(checkpoint * 10, checkpoint * 10 + 10))
    before = len(DeltaTable(str(disk.at / "ods/orders")).file_uris())
    with monkeypatch.context() as patched:
        if is_another_process:  # it died before it could see to it
            patched.setattr("channels.sinks.delta_log.os.fsync", lambda handle: None)
        sink.maintain([TABLE])
    assert len(DeltaTable(str(disk.at / "ods/orders")).file_uris()) < before
    if is_another_process:
        sink = DeltaSink(disk.at)
    commit(sink, 10, range(10, 15), value=1)
    power_failure(disk)
    assert sums(disk.at) == (90, 5)


def test_entries_of_another_writer_are_on_the_disk_before_what_builds_on_them(disk: Disk) -> None:
    sink = DeltaSink(disk.at)
    sink.ensure_table(TABLE)
    for checkpoint in range(1, 4):
        commit(sink, checkpoint, range(checkpoint * 10, checkpoint * 10 + 10))
    uri = str(disk.at / "ods/orders")
    DeltaTable(uri).optimize.compact()
    for path in Path(uri).glob("*.parquet"):  # a writer that syncs its files, and not its log
        delta_files.sync_folder(path)
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


@pytest.mark.parametrize("left", [0, 100])
def test_an_entry_that_a_power_failure_cut_is_put_aside_and_made_again(table: Path, left: int) -> None:
    newest = DeltaTable(str(table)).version()
    left_of(table / LOG / f"{newest:020}.json", left)
    sink = DeltaSink(table.parent.parent)
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
