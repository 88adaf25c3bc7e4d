"""Data files of other writers: timestamps as INT96, files that cannot be read, names that are encoded in the log."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from cdc.errors import PreparedLoadLost, SinkUnavailable, TargetLost, TargetMismatch
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import AlterAction, AlterStep, SinkCheckpoint, TargetColumn, TargetTable
from channels.sinks.delta import compaction, maintenance
from channels.sinks.delta.commits import TableCommits
from channels.sinks.delta.compaction import MergeMode
from channels.sinks.delta.sink import DeltaSink
from channels.sinks.delta.table_files import table_files
from tests.support.delta_protocol import FolderFiles, ProtocolReader
from tests.support.delta_rows import rows_of

UTC = pa.timestamp("us", "UTC")
TIME = TargetColumn("time", UTC, True)
TABLE = TargetTable("ods.t", (TargetColumn("id", pa.int64(), False), TIME), ("id",))
FAR, OLD, NEW = (datetime.datetime(year, 12, 31, 1, 2, 3, 456789, datetime.UTC) for year in (9999, 1, 2026))
ALTER = [AlterStep(AlterAction.RENAME, TIME, TargetColumn("at", UTC, True))]


def mark(checkpoint: int) -> SinkCheckpoint:
    position = BinlogPosition("b.000001", 4 + checkpoint)
    return SinkCheckpoint("shop", "0badcafe", 1, checkpoint, position, position, checkpoint)


def stage(sink: DeltaSink, checkpoint: int, rows: dict[int, datetime.datetime | None]) -> PreparedLoad:
    columns = {"id": pa.array(rows, pa.int64()), "time": pa.array(rows.values(), UTC)}
    more = {DELETED: pa.array([False] * len(rows)), SEQUENCE: pa.array(range(len(rows)), pa.int64())}
    name = LoadName("shop", "0badcafe", 1, checkpoint, TABLE.name, 0)
    load = sink.part_writer(TABLE)(name, iter([pa.RecordBatch.from_pydict(columns | more)]))
    assert load is not None
    return load


def commit(sink: DeltaSink, checkpoint: int, rows: dict[int, datetime.datetime | None]) -> None:
    sink.commit([stage(sink, checkpoint, rows)], mark(checkpoint))


def put_add(root: Path, logged: str, size: int, stats: dict[str, Any]) -> None:
    """Add a data file to the log, with its path as another writer spells it."""
    add = {"path": logged, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
    line = json.dumps({"add": {**add, "stats": json.dumps(stats)}})
    folder = root / "ods/t"
    (folder / f"_delta_log/{DeltaTable(folder).version() + 1:020}.json").write_text(f"{line}\n")


def add_file(root: Path, name: str, logged: str, rows: dict[int, datetime.datetime | None], **options: Any) -> None:
    path = root / "ods/t" / name
    table = pa.table({"id": pa.array(rows, pa.int64()), "time": pa.array(rows.values(), UTC)})
    pq.write_table(table, path, store_schema=False, **options)
    put_add(root, logged, path.stat().st_size, {"numRecords": len(rows)})


@pytest.fixture(params=["rewrite", "deletion_vectors"])
def sink(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeltaSink]:
    monkeypatch.setattr(maintenance, "_EVERY_S", 0.0)
    monkeypatch.setattr(compaction, "_SMALL_FILES", 2)
    mode: MergeMode = request.param
    with closing(DeltaSink(tmp_path, merge=mode, threads=1)) as found:
        found.acquire_ownership(mark(0), [TABLE.name])
        found.ensure_table(TABLE)
        commit(found, 1, {1: NEW})
        yield found


def rows(root: Path, column: str = "time") -> dict[int, datetime.datetime | None]:
    found = rows_of(root / "ods/t")
    assert len({row["id"] for row in found}) == len(found), "a key has two rows"
    return {row["id"]: row[column] for row in found}


def test_int96_timestamps_beyond_nanoseconds_keep_their_values(sink: DeltaSink, tmp_path: Path) -> None:
    """Spark writes TIMESTAMP as INT96 by default."""
    add_file(tmp_path, "a.parquet", "a.parquet", {2: FAR, 3: OLD, 4: None}, use_deprecated_int96_timestamps=True)
    reader = sink.row_reader(TABLE, ["id", "time"])
    assert sorted(reader.of_keys(pa.table({"id": pa.array([2, 3], pa.int64())}))["time"].to_pylist()) == [OLD, FAR]
    commit(sink, 2, {4: NEW, 5: NEW})
    sink.maintain([TABLE])
    sink.alter(TABLE, ALTER, mark(3))
    assert rows(tmp_path, "at") == {1: NEW, 2: FAR, 3: OLD, 4: NEW, 5: NEW}


def test_file_that_cannot_be_read_pauses_the_job(sink: DeltaSink, tmp_path: Path) -> None:
    (tmp_path / "ods/t/a.parquet").write_bytes(b"this is not a Parquet file")
    put_add(tmp_path, "a.parquet", 26, {"numRecords": 1})
    for call in (
        lambda: commit(sink, 2, {4: NEW}),
        lambda: sink.maintain([TABLE]),
        lambda: sink.alter(TABLE, ALTER, mark(2)),
        lambda: sink.keys(TABLE, None, 9),
    ):
        with pytest.raises(TargetMismatch, match="cannot be read") as caught:
            call()
        assert caught.value.context["path"] == tmp_path / "ods/t/a.parquet" and caught.value.hint


# writers encode different characters, and deltalake compares the paths of the log as text
SPELLINGS = [
    ("a b.parquet", "a%20b.parquet"),
    ("p%20q.parquet", "p%2520q.parquet"),
    ("#1.parquet", "%231.parquet"),
    ("ü+é.parquet", "%C3%BC+%C3%A9.parquet"),
    ("ü+é.parquet", "%c3%bc%2B%c3%a9.parquet"),
    ("ü.parquet", "ü.parquet"),
    ("sub/a b.parquet", "sub/a%20b.parquet"),
]


@pytest.mark.parametrize(("name", "logged"), SPELLINGS)
def test_file_with_an_encoded_name_is_read_and_replaced(
    sink: DeltaSink, tmp_path: Path, name: str, logged: str
) -> None:
    (tmp_path / "ods/t" / name).parent.mkdir(exist_ok=True)
    add_file(tmp_path, name, logged, {2: FAR, 3: OLD})
    assert sink.target_states("shop", "0badcafe", [TABLE.name])[TABLE.name].missing_files == 0
    commit(sink, 2, {3: NEW})  # a vector for the file, or the file is written again
    assert rows(tmp_path) == {1: NEW, 2: FAR, 3: NEW}
    commit(sink, 3, {2: NEW, 4: OLD})  # all its rows are replaced
    expected = {1: NEW, 2: NEW, 3: NEW, 4: OLD}
    assert rows(tmp_path) == expected
    assert {row["id"]: row["time"] for row in ProtocolReader(FolderFiles(tmp_path / "ods/t")).rows()} == expected


@pytest.mark.parametrize(("name", "logged"), SPELLINGS)
def test_file_with_an_encoded_name_is_compacted(sink: DeltaSink, tmp_path: Path, name: str, logged: str) -> None:
    (tmp_path / "ods/t" / name).parent.mkdir(exist_ok=True)
    add_file(tmp_path, name, logged, {2: FAR, 3: OLD})
    sink.maintain([TABLE])
    assert len(table_files(DeltaTable(tmp_path / "ods/t"), ["id"])) == 1
    assert rows(tmp_path) == {1: NEW, 2: FAR, 3: OLD}


@pytest.mark.parametrize(("name", "logged"), SPELLINGS)
def test_file_with_an_encoded_name_is_altered(sink: DeltaSink, tmp_path: Path, name: str, logged: str) -> None:
    (tmp_path / "ods/t" / name).parent.mkdir(exist_ok=True)
    add_file(tmp_path, name, logged, {2: FAR, 3: OLD})
    sink.alter(TABLE, ALTER, mark(2))
    assert rows(tmp_path, "at") == {1: NEW, 2: FAR, 3: OLD}


@pytest.mark.parametrize(("name", "logged"), SPELLINGS)
def test_repair_of_a_file_with_an_encoded_name_removes_it(
    sink: DeltaSink, tmp_path: Path, name: str, logged: str
) -> None:
    (tmp_path / "ods/t" / name).parent.mkdir(exist_ok=True)
    add_file(tmp_path, name, logged, {2: FAR})
    version = DeltaTable(tmp_path / "ods/t").version()
    sink.repair(TABLE.name)
    assert DeltaTable(tmp_path / "ods/t").version() == version
    (tmp_path / "ods/t" / name).unlink()
    assert sink.target_states("shop", "0badcafe", [TABLE.name])[TABLE.name].missing_files == 1
    sink.repair(TABLE.name)
    assert rows(tmp_path) == {1: NEW}


@pytest.mark.parametrize(
    "logged", ["file:///lake/t/a.parquet", "s3://bucket/a.parquet", "/lake/t/a.parquet", "../other/a.parquet"]
)
def test_file_outside_the_table_is_refused(sink: DeltaSink, tmp_path: Path, logged: str) -> None:
    put_add(tmp_path, logged, 10, {"numRecords": 1})
    for call in (
        lambda: commit(sink, 2, {4: NEW}),
        lambda: sink.repair(TABLE.name),
        lambda: sink.target_states("shop", "0badcafe", [TABLE.name]),
    ):
        with pytest.raises(TargetMismatch, match="outside its folder") as caught:
            call()
        assert caught.value.context["file"] == logged


def test_deleted_data_file_pauses_the_running_job(sink: DeltaSink, tmp_path: Path) -> None:
    """VACUUM of another writer with a short retention."""
    commit(sink, 2, {2: NEW})
    load = stage(sink, 3, {1: OLD})
    (lost,) = (one.path for one in table_files(DeltaTable(tmp_path / "ods/t"), ["id"]) if one.low[0].as_py() == 1)
    (tmp_path / "ods/t" / lost).unlink()
    for call in (
        lambda: sink.commit([load], mark(3)),
        lambda: sink.alter(TABLE, ALTER, mark(3)),
        lambda: sink.maintain([TABLE]),
    ):
        with pytest.raises(TargetLost, match="lacks 1 data files") as caught:
            call()
        assert caught.value.context["path"] == tmp_path / "ods/t" / lost
        assert "--reload-missing" in caught.value.hint
    sink.repair(TABLE.name)
    sink.commit([load], mark(3))
    assert rows(tmp_path) == {1: OLD, 2: NEW}


@pytest.mark.parametrize("gone", ["root", "ods", "ods/t/_delta_log"])
def test_file_system_that_is_not_mounted_lets_the_job_wait(
    sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """It is unmounted while a commit runs, after its checks."""
    load = stage(sink, 2, {1: OLD})
    path, away = tmp_path if gone == "root" else tmp_path / gone, tmp_path.with_name(f"{tmp_path.name}-away")
    (file,) = tmp_path.glob("ods/t/*.parquet")
    has = TableCommits._has

    def unmount(self: TableCommits, found: DeltaTable, table: str, mark: SinkCheckpoint) -> bool:
        done = has(self, found, table, mark)
        file.rename(file.with_suffix(".away"))
        path.rename(away)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(TableCommits, "_has", unmount)
        with pytest.raises((SinkUnavailable, PreparedLoadLost)):
            sink.commit([load], mark(2))
    if path.is_dir():
        path.rmdir()
    away.rename(path)
    file.with_suffix(".away").rename(file)
    sink.commit([load], mark(2))
    assert rows(tmp_path) == {1: OLD}


def test_file_that_another_writer_replaced_and_deleted_repeats_the_commit(
    sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPTIMIZE and VACUUM of another writer, after the commit has read the log: no file of the table is missing."""
    commit(sink, 2, {2: NEW})
    load, has = stage(sink, 3, {1: OLD}), TableCommits._has

    def optimize(self: TableCommits, found: DeltaTable, table: str, mark: SinkCheckpoint) -> bool:
        done = has(self, found, table, mark)
        other = DeltaTable(tmp_path / "ods/t")
        other.optimize.compact()
        other.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(TableCommits, "_has", optimize)
        with pytest.raises(SinkUnavailable):
            sink.commit([load], mark(3))
    sink.commit([load], mark(3))
    assert rows(tmp_path) == {1: OLD, 2: NEW}
