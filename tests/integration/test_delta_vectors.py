"""Delta tables with deletion vectors: random changes, crash points, compaction, vacuum, other writers, readers."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from cdc.errors import SinkOwnershipError, TargetLost, TargetMismatch
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import AlterAction, AlterStep, LoadState, SinkCheckpoint, TargetColumn, TargetTable
from channels.sinks.delta import compaction, entries, files, maintenance, merge, vector_merge
from channels.sinks.delta.entries import put_entry
from channels.sinks.delta.sink import DeltaSink, MergeMode
from channels.sinks.delta.table_files import table_files
from channels.sinks.row_ranges import KeyRange
from tests.support.delta_lakes import Lake, lake_of
from tests.support.delta_protocol import FolderFiles, ProtocolReader
from tests.support.object_stores import retried
from tests.support.seeds import seed_of

TABLE = TargetTable("ods.orders", (TargetColumn("id", pa.int64(), False), TargetColumn("n", pa.int64(), True)), ("id",))
LEFT = 3  # a draw of the model test that keeps a third of the keys deleted


def open_sink(root: Path, mode: MergeMode = "deletion_vectors", retention_s: float = 3600.0) -> DeltaSink:
    sink = DeltaSink(root, merge=mode, retention_s=retention_s, threads=2)
    sink.ensure_table(TABLE)
    return sink


def mark(checkpoint: int, fence: int = 1, incarnation: str = "0badcafe") -> SinkCheckpoint:
    position = BinlogPosition("b.000001", 4 + checkpoint)
    return SinkCheckpoint("shop", incarnation, fence, checkpoint, position, position, checkpoint * 1000)


def stage(sink: DeltaSink, checkpoint: int, rows: dict[int, int | None], task: int = 0, fence: int = 1,
          table: TargetTable = TABLE, incarnation: str = "0badcafe") -> PreparedLoad:  # fmt: skip
    """Prepare ``rows``: a value by key; None deletes the key."""
    batch = pa.RecordBatch.from_pydict(
        {
            "id": pa.array(rows, pa.int64()),
            "n": pa.array(rows.values(), pa.int64()),
            DELETED: pa.array([value is None for value in rows.values()]),
            SEQUENCE: pa.array(range(len(rows)), pa.int64()),
        }
    )
    load = sink.part_writer(table)(LoadName("shop", incarnation, fence, checkpoint, table.name, task), iter([batch]))
    assert load is not None
    return load


def commit(sink: DeltaSink, checkpoint: int, rows: dict[int, int | None]) -> None:
    sink.commit([stage(sink, checkpoint, rows)], mark(checkpoint))


def folder_of(root: Path) -> Path:
    return root / "ods/orders"


def by_deltalake(root: Path) -> dict[int, int]:
    found = QueryBuilder().register("t", DeltaTable(str(folder_of(root)))).execute("select id, n from t").read_all()
    return unique(pa.table(found).to_pylist())


def by_protocol(root: Path) -> dict[int, int]:
    """Read the log as the protocol describes it, with code that the product does not use."""
    return unique(ProtocolReader(FolderFiles(folder_of(root))).rows())


def unique(rows: Iterable[dict[str, Any]]) -> dict[int, int]:
    rows = list(rows)
    found = {row["id"]: row["n"] for row in rows}
    assert len(found) == len(rows), "a key has two rows"
    return found


def check(root: Path, expected: dict[int, int]) -> None:
    assert by_deltalake(root) == expected
    assert by_protocol(root) == expected


def vectors(root: Path) -> dict[str, int]:
    found = table_files(DeltaTable(str(folder_of(root))), ["id"])
    return {file.path: file.vector.cardinality for file in found if file.vector is not None}


def apply(expected: dict[int, int], rows: dict[int, int | None]) -> None:
    for key, value in rows.items():
        if value is None:
            expected.pop(key, None)
        else:
            expected[key] = value


def test_vectors_change_no_data_file(tmp_path: Path) -> None:
    sink, root = open_sink(tmp_path), folder_of(tmp_path)
    commit(sink, 1, dict.fromkeys(range(1000), 1))
    before = {path.name: path.stat().st_mtime_ns for path in root.glob("*.parquet")}
    commit(sink, 2, {5: 2, 6: None, 2000: 2})
    assert before.items() <= {path.name: path.stat().st_mtime_ns for path in root.glob("*.parquet")}.items()
    assert vectors(tmp_path) == dict.fromkeys(before, 2)
    commit(sink, 3, {5: 3})
    assert vectors(tmp_path).keys() - before.keys(), "one of the two rows of the second file is deleted"
    check(tmp_path, {key: 1 for key in range(1000) if key != 6} | {5: 3, 2000: 2})
    sink.close()


def test_vectors_of_all_rows_remove_the_file(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    commit(sink, 1, dict.fromkeys(range(10), 1))
    commit(sink, 2, dict.fromkeys(range(5)))
    commit(sink, 3, dict.fromkeys(range(4, 10)))
    assert not DeltaTable(str(folder_of(tmp_path))).file_uris()
    check(tmp_path, {})
    sink.close()


class RandomChanges:
    """Random commits, with compactions beside them, restarts and switches of the merge, against a model in memory.

    Each call is repeated as a job does. Some sinks keep no old files, so that their maintenance deletes all it can.
    """

    def __init__(self, lake: Lake, seed: object) -> None:
        self.lake, self.draw, self.expected = lake, random.Random(f"changes {seed}"), dict[int, int]()
        self.sink, self.checkpoint = self._opened("deletion_vectors", 3600.0), 0
        self.beside = self.changes = 0  # commits during a compaction; changed keys

    def _opened(self, mode: MergeMode, retention_s: float) -> DeltaSink:
        sink = self.lake.sink(merge=mode, retention_s=retention_s)
        retried(lambda: sink.ensure_table(TABLE))
        return sink

    def commit(self) -> None:
        self.checkpoint += 1
        draw, loads = self.draw, []
        for task in range(draw.choice((1, 1, 3))):
            keys = draw.sample(range(draw.choice((50, 2000))), k=draw.choice((1, 40)))
            if draw.random() < 0.2:
                keys = [*range(self.checkpoint * 100 % 9000, self.checkpoint * 100 % 9000 + 100)]
            rows = {key: None if draw.randrange(LEFT) == 0 else self.checkpoint * 10 + task for key in keys}
            loads.append(retried(partial(stage, self.sink, self.checkpoint, rows, task)))
            apply(self.expected, rows)
            self.changes += len(rows)
        retried(lambda: self.sink.commit(loads, mark(self.checkpoint)))

    def commit_beside(self) -> None:
        """Commit on another thread, as the commit thread of a job does while its maintenance runs."""
        for _ in range(self.draw.choice((0, 1, 3))):
            thread = threading.Thread(target=self.commit)
            thread.start()
            thread.join(120)
            assert not thread.is_alive(), "a commit waits for a compaction"
            self.beside += 1

    def maintain(self) -> None:
        retried(lambda: self.sink.maintain([TABLE]))

    def reopen(self) -> None:
        self.sink.close()
        mode: MergeMode = self.draw.choice(("deletion_vectors", "deletion_vectors", "rewrite"))
        self.sink = self._opened(mode, self.draw.choice((0.0, 3600.0)))

    def check_reads(self) -> None:
        assert unique(self.lake.by_deltalake(TABLE.name)) == self.expected
        assert unique(self.lake.reader(TABLE.name).rows()) == self.expected
        assert not self.lake.reader(TABLE.name).committed_twice()
        reader = retried(lambda: self.sink.row_reader(TABLE, ["id", "n"]))
        rows = retried(lambda: reader.between(KeyRange(("id",), None, None)))
        assert unique(rows.to_pylist()) == self.expected
        some = pa.table({"id": pa.array(self.draw.sample(range(2000), 50), pa.int64())})
        wanted = {key: self.expected[key] for key in some.column(0).to_pylist() if key in self.expected}
        assert unique(retried(lambda: reader.of_keys(some)).to_pylist()) == wanted
        keys = retried(lambda: self.sink.keys(TABLE, None, 10**6))
        assert keys.column("id").to_pylist() == sorted(self.expected)


LONG = (pytest.mark.stress, pytest.mark.timeout(7200))


@pytest.mark.parametrize(
    ("store", "changes"),
    [
        ("folder", 10_000),
        ("s3", 2_000),
        pytest.param("folder", 100_000, marks=LONG),
        pytest.param("s3", 100_000, marks=LONG),
    ],
)
def test_vector_random_changes_equal_the_model(
    store: str, changes: int, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two readers that do not share code with the sink read the table: deltalake, and one by the protocol."""
    monkeypatch.setattr(merge, "FILE_ROWS", 150)
    monkeypatch.setattr(compaction, "FILE_ROWS", 150)
    monkeypatch.setattr(files, "_GROUP_ROWS", 40)
    monkeypatch.setattr(maintenance, "_EVERY_S", 0.0)
    monkeypatch.setattr(maintenance, "_VACUUM_EVERY_S", 0.0)
    real, seed = compaction.compact, seed_of()

    def compact(*arguments: Any) -> Any:
        found = real(*arguments)
        if run.sink._maintenance._compactions.merges_with_vectors(lake.table(TABLE.name)):
            run.commit_beside()
        return found

    monkeypatch.setattr(maintenance, "compact", compact)
    with lake_of(store, request, tmp_path, seed) as lake:
        run, maintained, marked = RandomChanges(lake, seed), 0, 0
        while run.changes < changes:
            run.commit()
            marked += bool(lake.reader(TABLE.name).marked())
            if run.draw.random() < 0.3:
                run.maintain()
                maintained += 1
            if run.draw.random() < 0.1:
                run.reopen()
            if run.draw.random() < 0.1:
                run.check_reads()
        run.check_reads()
        run.sink.close()
        print(f"{run.checkpoint} commits, {run.beside} of them during a compaction, {maintained} times maintained")
        print(f"faults of the store: {lake.faults.drawn if lake.faults is not None else 'none'}")
        least = changes // 1000
        assert 2 * maintained > least and marked > least and run.beside > least, "compaction, vectors, and both"
        assert lake.faults is None or len(lake.faults.drawn) >= 4, "the store has faults of several kinds"


@pytest.mark.parametrize("point", ["vectors", "entry", "link"])
def test_vector_commit_that_crashes_is_repeated_once(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process dies after its vectors, before its entry, or after its entry but before it knows of it."""

    class Killed(BaseException):
        pass

    def kill_after(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            real(*arguments, **options)
            raise Killed

        return call

    def kill(*arguments: Any, **options: Any) -> None:
        raise Killed

    sink = open_sink(tmp_path)
    commit(sink, 1, dict.fromkeys(range(100), 1))
    load = stage(sink, 2, {1: 2, 2: None, 500: 2})
    with monkeypatch.context() as patch:
        if point == "vectors":
            patch.setattr(vector_merge, "write_vectors", kill_after(vector_merge.write_vectors))
        elif point == "entry":
            patch.setattr("channels.sinks.delta.log.write_entry", kill)
        else:
            patch.setattr("channels.sinks.delta.log.write_entry", kill_after(entries.write_entry))
        with pytest.raises(Killed):
            sink.commit([load], mark(2))
    expected = dict.fromkeys(range(100), 1)
    if point != "link":
        check(tmp_path, expected)
    sink.close()
    sink = open_sink(tmp_path)
    assert sink.state(load) is (LoadState.COMMITTED if point == "link" else LoadState.PREPARED)
    apply(expected, {1: 2, 2: None, 500: 2})
    for _ in range(2):
        sink.commit([load], mark(2))
        check(tmp_path, expected)
    assert DeltaTable(str(folder_of(tmp_path))).version() == 3
    sink.close()


def test_vector_commit_whose_answer_is_lost_is_found_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS can report that the name exists after it has created it: the answer of the first call was lost."""
    sink, real = open_sink(tmp_path), os.link
    commit(sink, 1, {1: 1})

    def link(source: Path, target: Path) -> None:
        real(source, target)
        if Path(target).suffix == ".json":
            raise FileExistsError(17, "File exists", str(target))

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", link)
        commit(sink, 2, {1: 2, 3: 3})
    check(tmp_path, {1: 2, 3: 3})
    assert DeltaTable(str(folder_of(tmp_path))).version() == 3
    assert not list((folder_of(tmp_path) / "_delta_log").glob("*.tmp"))
    sink.close()


def test_vector_commit_after_another_writer_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, root = open_sink(tmp_path), folder_of(tmp_path)
    commit(sink, 1, dict.fromkeys(range(10), 1))
    real, calls = vector_merge.VectorMerge.actions, list[int]()

    def interrupted(self: Any, threads: Any) -> Any:
        found = real(self, threads)
        calls.append(1)
        if len(calls) == 1:
            write_deltalake(str(root), pa.table({"id": pa.array([3000]), "n": pa.array([1])}), mode="append")
        return found

    monkeypatch.setattr(vector_merge.VectorMerge, "actions", interrupted)
    commit(sink, 2, {3: 2, 3000: 2})
    assert len(calls) == 2
    check(tmp_path, dict.fromkeys(range(10), 1) | {3: 2, 3000: 2})
    sink.close()


@pytest.mark.parametrize("mode", ["rewrite", "deletion_vectors"])
def test_commit_starts_again_if_another_thread_updates_the_handle(
    mode: MergeMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer replaces all files during a merge, and a reader of keys updates the sink's handle."""
    sink, root = open_sink(tmp_path, mode), folder_of(tmp_path)
    commit(sink, 1, dict.fromkeys(range(10), 1))
    kind = vector_merge.VectorMerge if mode == "deletion_vectors" else merge.Merge
    real, calls = kind.actions, list[int]()

    def interrupted(self: Any, threads: Any) -> Any:
        found = real(self, threads)
        calls.append(1)
        if len(calls) == 1:
            table = pa.table({"id": pa.array(range(10)), "n": pa.array([7] * 10)})
            write_deltalake(str(root), table, mode="overwrite")
            assert sink.keys(TABLE, None, 100).num_rows == 10
        return found

    monkeypatch.setattr(kind, "actions", interrupted)
    commit(sink, 2, {3: 2})
    assert len(calls) == 2
    check(tmp_path, dict.fromkeys(range(10), 7) | {3: 2})
    sink.close()


def test_vector_commit_of_a_frozen_process_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run stops between its merge and its entry, while another run adopts the job and commits."""
    old = open_sink(tmp_path)
    old.acquire_ownership(mark(0), [TABLE.name])
    commit(old, 1, dict.fromkeys(range(10), 1))
    load, frozen, thawed = stage(old, 2, {1: 2, 50: 2}), threading.Event(), threading.Event()
    real, errors = entries.write_entry, list[BaseException]()

    def wait(*arguments: Any) -> None:
        if threading.current_thread().name.startswith("delta-table") and not frozen.is_set():
            frozen.set()
            assert thawed.wait(120)
        real(*arguments)

    monkeypatch.setattr("channels.sinks.delta.log.write_entry", wait)

    def commit_old() -> None:
        try:
            old.commit([load], mark(2))
        except SinkOwnershipError as error:
            errors.append(error)

    thread = threading.Thread(target=commit_old)
    thread.start()
    assert frozen.wait(120)
    new = open_sink(tmp_path)
    new.acquire_ownership(mark(1, fence=2), [TABLE.name])
    new.commit([load], mark(2, fence=2))
    new.commit([stage(new, 3, {1: 3}, fence=2)], mark(3, fence=2))
    thawed.set()
    thread.join(120)
    check(tmp_path, dict.fromkeys(range(10), 1) | {1: 3, 50: 2})
    assert [type(error) for error in errors] == [SinkOwnershipError]
    new.close()
    old.close()


def test_vector_compaction_bounds_deleted_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels.sinks.delta.maintenance._EVERY_S", 0.0)
    sink, expected = open_sink(tmp_path), dict.fromkeys(range(1000), 1)
    commit(sink, 1, {**expected})
    for checkpoint in range(2, 5):
        rows: dict[int, int | None] = dict.fromkeys(range(checkpoint * 100, checkpoint * 100 + 50), checkpoint)
        commit(sink, checkpoint, rows)
        apply(expected, rows)
        sink.maintain([TABLE])
        assert max(vectors(tmp_path).values(), default=0) <= 100
        check(tmp_path, expected)
    assert not vectors(tmp_path), "150 of 1,000 rows were deleted, so the file was written again"
    assert sink.last_checkpoint("shop") == mark(4)
    sink.close()


def test_vector_vacuum_keeps_vectors_within_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels.sinks.delta.maintenance._VACUUM_EVERY_S", 0.0)
    monkeypatch.setattr("channels.sinks.delta.maintenance._EVERY_S", 0.0)
    sink, root = open_sink(tmp_path), folder_of(tmp_path)
    commit(sink, 1, dict.fromkeys(range(100), 1))
    for checkpoint in (2, 3):
        commit(sink, checkpoint, {checkpoint: checkpoint})
    other = root / "deletion_vector_0badcafe-0000-4000-8000-000000000000.bin"
    other.write_bytes(b"of another writer")
    sink.maintain([TABLE])
    assert len(list(root.glob("deletion_vector_cdcdcdcd-*.bin"))) == 2, "a reader of version 2 needs the first one"
    sink.close()
    sink = open_sink(tmp_path, retention_s=0)
    time.sleep(0.05)  # the oldest time to keep must be after the change of the files
    sink.maintain([TABLE])
    assert len(list(root.glob("deletion_vector_cdcdcdcd-*.bin"))) == 1 and other.exists()
    check(tmp_path, dict.fromkeys(range(100), 1) | {2: 2, 3: 3})
    sink.close()


def test_vector_state_is_read_again_if_an_entry_was_replaced_by_a_checkpoint(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    commit(sink, 1, dict.fromkeys(range(100), 1))
    commit(sink, 2, {7: None})
    commit(sink, 3, {8: None})
    table = DeltaTable(str(folder_of(tmp_path)))
    table.load_as_version(table.version() - 1)
    entries.file_vectors(table)  # known: the version before the newest one
    table.load_as_version(table.version() + 1)
    table.create_checkpoint()
    (folder_of(tmp_path) / "_delta_log" / f"{table.version():020}.json").unlink()
    (vector,) = entries.file_vectors(DeltaTable(str(folder_of(tmp_path)))).values()
    assert vector.cardinality == 2
    sink.close()


def test_vector_state_is_read_from_a_log_checkpoint(tmp_path: Path) -> None:
    sink = open_sink(tmp_path, retention_s=0)
    commit(sink, 1, dict.fromkeys(range(100), 1))
    commit(sink, 2, {7: None})
    expected = {key: 1 for key in range(100) if key != 7}
    DeltaTable(str(folder_of(tmp_path))).create_checkpoint()
    for path in (folder_of(tmp_path) / "_delta_log").glob("*.json"):
        path.unlink()
    sink.close()
    entries._LOGS._states.clear()
    assert list(vectors(tmp_path).values()) == [1]
    sink = open_sink(tmp_path)
    commit(sink, 3, {8: 3, 7: 3})
    assert by_deltalake(tmp_path) == expected | {8: 3, 7: 3}
    sink.close()


def test_vector_state_of_a_restored_table_is_read_again(tmp_path: Path) -> None:
    """A copy of an older version has the same identity and other entries with the same numbers."""
    sink, root = open_sink(tmp_path), folder_of(tmp_path)
    commit(sink, 1, dict.fromkeys(range(10), 1))
    commit(sink, 2, {1: None})
    assert list(vectors(tmp_path).values()) == [1]
    (root / f"_delta_log/{3:020}.json").unlink()
    commit(open_sink(tmp_path), 2, {2: None, 3: None})
    assert list(vectors(tmp_path).values()) == [2]
    check(tmp_path, {key: 1 for key in range(10) if key not in (2, 3)})


def test_vector_files_are_altered_without_deleted_rows(tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    commit(sink, 1, dict.fromkeys(range(10), 1))
    commit(sink, 2, {1: None, 2: 2})
    wide = TargetColumn("m", pa.int64(), True)
    added = AlterStep(AlterAction.ADD, None, wide, pa.scalar(9, pa.int64()))
    sink.alter(TABLE, [added], mark(3))
    check(tmp_path, {key: 1 for key in range(10) if key != 1} | {2: 2})
    assert not vectors(tmp_path)
    table = replace(TABLE, columns=(*TABLE.columns, wide))
    commit(sink, 4, {3: 4})
    sink.alter(table, [AlterStep(AlterAction.ADD, None, TargetColumn("o", pa.int64(), True))], mark(5))
    commit(sink, 6, {4: 6})
    assert sum(vectors(tmp_path).values()) == 2, "a column without a value changes no file"
    check(tmp_path, {key: 1 for key in range(10) if key != 1} | {2: 2, 3: 4, 4: 6})
    assert not any(finding.fatal for finding in sink.check([TABLE]))
    sink.close()


def test_vector_that_is_damaged_stops_every_reader(tmp_path: Path) -> None:
    sink, root = open_sink(tmp_path), folder_of(tmp_path)
    commit(sink, 1, dict.fromkeys(range(10), 1))
    commit(sink, 2, {1: None})
    (path,) = root.glob("*.bin")
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    reader = sink.row_reader(TABLE, ["id"])
    for read in (
        lambda: commit(sink, 3, {2: 2}),
        lambda: sink.keys(TABLE, None, 10),
        lambda: reader.between(KeyRange(("id",), None, None)),
    ):
        with pytest.raises(TargetMismatch, match="checksum"):
            read()
    path.unlink()
    assert sink.target_states("shop", "0badcafe", [TABLE.name])[TABLE.name].missing_files == 1
    with pytest.raises(TargetLost, match="lacks 1 data files"):
        commit(sink, 3, {2: 2})
    path.write_bytes(content)
    commit(sink, 3, {2: 2})
    check(tmp_path, {key: 1 for key in range(10) if key != 1} | {2: 2})
    sink.close()


@pytest.mark.parametrize("lost", ["data", "vector"])
def test_repair_removes_a_file_that_is_lost_or_has_lost_its_vector(lost: str, tmp_path: Path) -> None:
    sink = open_sink(tmp_path)
    commit(sink, 1, dict.fromkeys(range(10), 1))
    commit(sink, 2, {4: 2})
    (file,) = (one for one in table_files(DeltaTable(str(folder_of(tmp_path))), ["id"]) if one.vector is not None)
    assert file.vector is not None
    path = folder_of(tmp_path) / file.path if lost == "data" else file.vector.file(folder_of(tmp_path))
    assert isinstance(path, Path)
    path.unlink()
    assert sink.target_states("shop", "0badcafe", [TABLE.name])[TABLE.name].missing_files == 1
    sink.repair(TABLE.name)
    assert sink.target_states("shop", "0badcafe", [TABLE.name])[TABLE.name].missing_files == 0
    assert by_deltalake(tmp_path) == by_protocol(tmp_path) == {4: 2}
    commit(sink, 3, {4: 3, 5: 3})
    assert by_deltalake(tmp_path) == {4: 3, 5: 3}
    sink.close()


def test_vector_files_are_of_one_version_if_another_thread_updates_the_handle(tmp_path: Path) -> None:
    """Otherwise an updated row is missing: its old version is deleted, and its new file is not known."""
    sink = open_sink(tmp_path)
    commit(sink, 1, dict.fromkeys(range(10), 1))

    class Handle:
        """A handle that another thread updates after the files were read."""

        def __init__(self, found: DeltaTable) -> None:
            self._found, self._has_waited = found, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self._found, name)

        def get_add_actions(self, flatten: bool) -> Any:
            files = self._found.get_add_actions(flatten)
            if not self._has_waited:
                self._has_waited = True
                commit(sink, 2, {1: 2})
                self._found.update_incremental()
            return files

    found = table_files(cast("DeltaTable", Handle(DeltaTable(str(folder_of(tmp_path))))), ["id"])
    assert sum(file.live_rows for file in found) == 10
    sink.close()


def test_vector_removed_without_it_by_another_writer_is_refused(tmp_path: Path) -> None:
    sink, root = open_sink(tmp_path), folder_of(tmp_path)
    commit(sink, 1, dict.fromkeys(range(10), 1))
    commit(sink, 2, {1: None})
    (path,) = vectors(tmp_path)
    size = (root / path).stat().st_size
    add = {"path": path, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
    found = DeltaTable(str(root))
    put_entry(found, found.version(), "WRITE", [{"add": {**add, "stats": json.dumps({"numRecords": 10})}}], {})
    with pytest.raises(TargetMismatch, match="twice"):
        commit(sink, 3, {2: 2})
    sink.close()


@pytest.mark.parametrize(("stamp", "empty"), [(False, False), (True, True)])
def test_new_table_allows_vectors_and_existing_ones_keep_their_way(stamp: bool, empty: bool, tmp_path: Path) -> None:
    kind = pa.timestamp("us") if stamp else pa.int64()
    table = TargetTable("ods.kinds", (TABLE.columns[0], TargetColumn("t", kind, True)), ("id",))
    old = open_sink(tmp_path, "rewrite")
    if not empty:
        commit(old, 1, {1: 1, 2: 1})
    old.close()
    sink = open_sink(tmp_path)
    sink.ensure_table(table)
    found = DeltaTable(str(tmp_path / "ods/kinds"))
    assert found.protocol().reader_features is not None
    assert {*found.protocol().reader_features} == {"deletionVectors"} | ({"timestampNtz"} if stamp else set())
    assert found.metadata().configuration["delta.enableDeletionVectors"] == "true"
    assert found.metadata().configuration["cdc.key"] == '["id"]'
    assert not sink.check([table])
    (finding,) = sink.check([TABLE])
    assert not finding.fatal and "delta.enableDeletionVectors" in finding.hint
    assert "'delta.enableDeletionVectors' = 'true'" in sink.ddl(TABLE)
    commit(sink, 2, {1: 2})
    assert DeltaTable(str(folder_of(tmp_path))).protocol().reader_features is None
    check(tmp_path, {1: 2} if empty else {1: 2, 2: 1})
    sink.close()


def test_interrupted_creation_of_a_table_with_vectors_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(found: DeltaTable) -> None:
        raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("channels.sinks.delta.mapped_tables.enable_vectors", kill)
        open_sink(tmp_path)
    open_sink(tmp_path).close()
    assert entries.writes_vectors(DeltaTable(str(folder_of(tmp_path))))
