"""Other writers of a Delta table with deletion vectors, at the moments at which they can do the most harm."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction

from cdc.errors import SinkOwnershipError, TargetLost, TargetMismatch
from cdc.pipeline.recovery import adopt, check_sink_state
from cdc.state.base import JobRecord, JobState
from cdc.state.sqlite import SqliteStore
from channels.sinks.delta import compaction, maintenance, vector_merge
from channels.sinks.delta.entries import Line, put_entry, write_entry
from channels.sinks.delta.files import STAGING
from channels.sinks.delta.sink import MergeMode
from channels.sinks.delta.table_files import TableFile, live_rows, table_files
from channels.sinks.delta.vectors import write_vectors
from tests.integration.test_delta_vectors import TABLE, check, commit, folder_of, mark, open_sink, stage, vectors

ROWS = 100


def _file_of(root: Path, key: int) -> tuple[TableFile, int]:
    """Return the file that has the row of ``key``, and its row number."""
    for file in table_files(DeltaTable(str(folder_of(root))), ["id"]):
        keys = pq.read_table(folder_of(root) / file.path, columns=["id"], partitioning=None).column("id").to_numpy()
        live = live_rows(folder_of(root), file, len(keys))
        hits = np.flatnonzero((keys == key) & (live if live is not None else True))
        if len(hits):
            return file, int(hits[0])
    raise KeyError(key)


def _line(action: str, file: TableFile, **more: Any) -> Line:
    vector = {"deletionVector": file.vector.to_json()} if action == "remove" and file.vector else {}
    times = {"modificationTime": 1} if action == "add" else {"deletionTimestamp": 1, "extendedFileMetadata": True}
    return {
        action: {
            "path": file.path,
            "partitionValues": {},
            "size": file.size,
            "dataChange": True,
            **times,
            **vector,
            **more,
        }
    }


def _put(root: Path, *lines: Line) -> None:
    found = DeltaTable(str(folder_of(root)))
    put_entry(found, found.version(), "OTHER", lines, {})


def _stats(rows: int) -> str:
    return json.dumps({"numRecords": rows, "tightBounds": False})


def delete_with_vector(root: Path) -> None:
    """DELETE WHERE id = 3, as Spark does it."""
    file, row = _file_of(root, 3)
    live = live_rows(folder_of(root), file, file.rows)
    deleted = np.union1d(np.flatnonzero(~live) if live is not None else [], [row]).astype(np.uint64)
    vector = write_vectors(folder_of(root), {"": deleted})[""]
    added = _line("add", file, deletionVector=vector.to_json(), stats=_stats(file.rows))
    _put(root, _line("remove", file), added)


def purge(root: Path) -> None:
    """REORG TABLE ... APPLY (PURGE): the file of the key 3 is written again without its deleted rows."""
    file, _ = _file_of(root, 3)
    rows = pq.read_table(folder_of(root) / file.path, partitioning=None)
    live = live_rows(folder_of(root), file, rows.num_rows)
    rows = rows if live is None else rows.filter(live)
    pq.write_table(rows, folder_of(root) / "purged.parquet")
    size = (folder_of(root) / "purged.parquet").stat().st_size
    new = TableFile("purged.parquet", size, rows.num_rows, (), ())
    _put(
        root, _line("remove", file, dataChange=False), _line("add", new, dataChange=False, stats=_stats(rows.num_rows))
    )


def restore(root: Path) -> None:
    """RESTORE: a file gets an older deletion vector again, here none, so that its deleted rows are visible."""
    marked = [file for file in table_files(DeltaTable(str(folder_of(root))), ["id"]) if file.vector is not None]
    for file in marked:
        _put(root, _line("remove", file), _line("add", file, stats=_stats(file.rows)))


def optimize(root: Path) -> None:
    DeltaTable(str(folder_of(root))).optimize.compact()


def delete(root: Path) -> None:
    DeltaTable(str(folder_of(root))).delete("id = 3")


def add_column(root: Path) -> None:
    DeltaTable(str(folder_of(root))).alter.add_columns([Field("more", PrimitiveType("string"))])


OTHERS: dict[str, tuple[Callable[[Path], None], set[int]]] = {  # with the keys that it deletes
    "optimize": (optimize, set()),
    "purge": (purge, set()),
    "delete": (delete, {3}),
    "delete with vector": (delete_with_vector, {3}),
    "add column": (add_column, set()),
}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(maintenance, "_EVERY_S", 0.0)
    sink = open_sink(tmp_path)
    commit(sink, 1, dict.fromkeys(range(ROWS), 1))
    for checkpoint in range(2, 10):
        commit(sink, checkpoint, {checkpoint * 2: checkpoint, 200 + checkpoint: 1})
    sink.close()
    return tmp_path


def expected_rows() -> dict[int, int]:
    changed = {checkpoint * 2: checkpoint for checkpoint in range(2, 10)}
    return dict.fromkeys(range(ROWS), 1) | changed | {200 + checkpoint: 1 for checkpoint in range(2, 10)}


@pytest.mark.parametrize("other", OTHERS)
def test_other_writer_during_a_merge_loses_no_row(other: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, deleted = OTHERS[other]
    sink, real, calls = open_sink(root), vector_merge.VectorMerge.actions, list[int]()

    def interrupted(self: Any, threads: Any) -> Any:
        found = real(self, threads)
        calls.append(1)
        if len(calls) == 1:
            write(root)
        return found

    monkeypatch.setattr(vector_merge.VectorMerge, "actions", interrupted)
    commit(sink, 10, {4: 10, 7: None, 300: 10})
    expected = {key: n for key, n in expected_rows().items() if key not in deleted | {7}} | {4: 10, 300: 10}
    check(root, expected)
    assert len(calls) == 2, "the merge is repeated"
    commit(sink, 11, {5: 11, 3: 11})
    sink.maintain([TABLE])
    check(root, expected | {5: 11, 3: 11})
    sink.close()


@pytest.mark.parametrize("other", OTHERS)
def test_other_writer_during_a_compaction_loses_no_row(other: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, deleted = OTHERS[other]
    sink, written = open_sink(root), list[int]()

    def interrupted(*arguments: Any) -> Any:
        found = compaction.compact(*arguments)
        if not written:
            write(root)
            thread = threading.Thread(target=commit, args=(sink, 10, {4: 10, 7: None, 300: 10}))
            thread.start()
            thread.join(120)
        written.append(1)
        return found

    monkeypatch.setattr(maintenance, "compact", interrupted)
    sink.maintain([TABLE])
    assert written
    expected = {key: n for key, n in expected_rows().items() if key not in deleted | {7}} | {4: 10, 300: 10}
    check(root, expected)
    commit(sink, 11, {5: 11, 3: 11})
    sink.maintain([TABLE])
    check(root, expected | {5: 11, 3: 11})
    sink.close()


@pytest.mark.parametrize("is_read", [False, True])
def test_other_writer_before_the_entry_of_a_compaction_repeats_it(
    is_read: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot or a verification may read the table meanwhile, which updates the handle of the compaction."""
    sink, real, calls = open_sink(root), compaction.replacement, list[int]()

    def interrupted(*arguments: Any) -> Any:
        actions = real(*arguments)
        calls.append(len(actions))
        if len(calls) == 1:
            delete_with_vector(root)
            if is_read:
                thread = threading.Thread(target=sink.keys, args=(TABLE, None, 10))
                thread.start()
                thread.join(120)
        return actions

    monkeypatch.setattr(maintenance, "replacement", interrupted)
    sink.maintain([TABLE])
    assert len(calls) == 2 and all(calls)
    check(root, {key: n for key, n in expected_rows().items() if key != 3})
    assert sum(vectors(root).values()) == 1, "the row that was deleted meanwhile is in a new file"
    sink.close()


def test_other_writer_that_restores_rows_keeps_them_in_a_compaction(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new files do not have rows that were deleted when they were written, so they cannot replace the old ones."""
    sink, written = open_sink(root), list[int]()

    def interrupted(*arguments: Any) -> Any:
        found = compaction.compact(*arguments)
        if not written:
            restore(root)
        written.append(1)
        return found

    monkeypatch.setattr(maintenance, "compact", interrupted)
    before = sorted(DeltaTable(str(folder_of(root))).file_uris())
    sink.maintain([TABLE])
    assert written and sorted(DeltaTable(str(folder_of(root))).file_uris()) == before
    sink.close()


def test_other_writer_that_writes_a_checkpoint_after_an_entry_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers of single versions, such as a stream of Spark, need the entry."""
    sink, versions = open_sink(tmp_path), list[int]()
    commit(sink, 1, {1: 1})

    def interrupted(found: DeltaTable, version: int, *arguments: Any) -> None:
        write_entry(found, version, *arguments)
        versions.append(version + 1)
        add_column(tmp_path)
        DeltaTable(str(folder_of(tmp_path))).create_checkpoint()

    monkeypatch.setattr("channels.sinks.delta.log.write_entry", interrupted)
    commit(sink, 2, {2: 2})
    assert (folder_of(tmp_path) / "_delta_log" / f"{versions[0]:020}.json").exists() and len(versions) == 1
    found = sink.last_checkpoint("shop")
    assert found is not None and found.checkpoint == 2
    sink.close()


@pytest.mark.parametrize("change", ["constraint", "column mapping"])
def test_other_writer_that_adds_a_feature_pauses_the_job(change: str, root: Path) -> None:
    sink = open_sink(root)
    found = DeltaTable(str(folder_of(root)))
    if change == "constraint":
        found.alter.add_constraint({"positive": "n > 0"})
    else:
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["columnMapping", "deletionVectors"],
        }
        features = ["appendOnly", "columnMapping", "deletionVectors", "invariants"]
        _put(root, {"protocol": {**protocol, "writerFeatures": features}})
    with pytest.raises(TargetMismatch):
        commit(sink, 10, {1: 2})
    version = DeltaTable(str(folder_of(root))).version()
    sink.maintain([TABLE])
    assert DeltaTable(str(folder_of(root))).version() == version
    sink.close()


@pytest.mark.parametrize("mode", ["deletion_vectors", "rewrite"])
def test_other_writer_that_restores_an_earlier_version_is_noticed(mode: MergeMode, tmp_path: Path) -> None:
    """RESTORE keeps the application transactions, by which the job knows what the table has."""
    sink = open_sink(tmp_path, mode)
    for checkpoint in (1, 2, 3):
        commit(sink, checkpoint, {checkpoint: checkpoint})
    assert sink.target_states("shop", "0badcafe", [TABLE.name])[TABLE.name].checkpoint == 3
    found = DeltaTable(str(folder_of(tmp_path)))
    found.restore(found.version() - 2)
    with pytest.raises(TargetLost, match="replaced while the job was running"):
        commit(sink, 4, {4: 4})
    sink.close()
    again = open_sink(tmp_path, mode)
    assert again.target_states("shop", "0badcafe", [TABLE.name])[TABLE.name].checkpoint == -1
    again.close()


def test_other_writer_that_optimizes_is_no_restore(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    for checkpoint in (1, 2):
        commit(sink, checkpoint, {checkpoint: checkpoint})
    assert sink.target_states("shop", "0badcafe", [TABLE.name])[TABLE.name].checkpoint == 2
    DeltaTable(str(folder_of(tmp_path))).optimize.compact()
    commit(sink, 3, {3: 3})
    assert sink.target_states("shop", "0badcafe", [TABLE.name])[TABLE.name].checkpoint == 3
    check(tmp_path, {1: 1, 2: 2, 3: 3})
    sink.close()


def test_other_writer_that_vacuums_keeps_a_file_that_was_prepared_long_ago(tmp_path: Path) -> None:
    """VACUUM lists the folder after it has read the version of the table; the commit is between the two."""
    sink = open_sink(tmp_path)
    commit(sink, 1, {1: 1})
    load = stage(sink, 2, {2: 2})
    for staged in (tmp_path / STAGING).rglob("*.parquet"):
        os.utime(staged, (time.time() - 7200,) * 2)
    before = DeltaTable(str(folder_of(tmp_path)))
    sink.commit([load], mark(2))
    assert before.vacuum(retention_hours=1, dry_run=True, full=True, enforce_retention_duration=False) == []
    check(tmp_path, {1: 1, 2: 2})
    sink.close()


def test_other_writer_that_adds_a_file_without_rows_changes_nothing(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    commit(sink, 1, {1: 1})
    found = DeltaTable(str(folder_of(tmp_path)))
    rows = pa.Table.from_pylist([], pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    pq.write_table(rows, folder_of(tmp_path) / "empty.parquet")
    size = (folder_of(tmp_path) / "empty.parquet").stat().st_size
    action = AddAction("empty.parquet", size, {}, 0, True, "{}")
    found.create_write_transaction([action], "append", found.schema())
    commit(sink, 2, {1: 2})
    check(tmp_path, {1: 2})
    sink.close()


def test_other_writer_that_deletes_the_mark_lets_no_lost_state_continue(tmp_path: Path) -> None:
    """Clean-up of the log deletes the entry with the position; the transactions remain in the log's checkpoint."""
    sink = open_sink(tmp_path)
    commit(sink, 1, {1: 1})
    commit(sink, 2, {2: 2})
    found = DeltaTable(str(folder_of(tmp_path)))
    found.optimize.compact()
    for entry in (folder_of(tmp_path) / "_delta_log").glob("*.json"):
        os.utime(entry, (0, 0))
    found = DeltaTable(str(folder_of(tmp_path)))
    found.create_checkpoint()
    found.cleanup_metadata()
    assert sink.last_checkpoint("shop") is None
    with contextlib.closing(SqliteStore(tmp_path / "home")) as store:
        record = JobRecord("shop", "feedbeef", 1, JobState.PENDING, "shop.yaml")
        with pytest.raises(SinkOwnershipError, match="so was the position in the sink"):
            check_sink_state(record, store, sink)
        with pytest.raises(SinkOwnershipError, match="so was the position in the sink"):
            adopt(record, store, sink, dict)
        assert check_sink_state(replace(record, name="other"), store, sink) is None
    sink.close()
