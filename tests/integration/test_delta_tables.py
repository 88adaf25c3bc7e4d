"""Delta sink behaviour beyond the contract: adopted and pruned files, deletion of old ones, other writers, faults."""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, TableFeatures, write_deltalake
from deltalake.schema import PrimitiveType

from cdc.errors import SinkLimitExceeded, SinkOwnershipError, SinkUnavailable, TargetMismatch
from cdc.model.batch import LoadName, PreparedLoad
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import SinkCheckpoint, TargetColumn, TargetTable
from channels.sinks.delta import compaction as delta_compaction
from channels.sinks.delta import files as delta_files
from channels.sinks.delta import keys as delta_keys
from channels.sinks.delta import mapped_tables, sink_checkpoint
from channels.sinks.delta import merge as delta_merge
from channels.sinks.delta.entries import put_entry
from channels.sinks.delta.files import unavailable, unpacked_bytes
from channels.sinks.delta.sink import DeltaSink

COLUMNS = (TargetColumn("id", pa.int64(), False, comment="it's the key"), TargetColumn("n", pa.int32(), True))
TABLE = TargetTable("ods.orders", COLUMNS, ("id",), "all")


def stage(sink: DeltaSink, checkpoint: int, ids: range, value: int = 0, incarnation: str = "0badcafe") -> PreparedLoad:
    rows = {"id": pa.array(ids, pa.int64()), "n": pa.array([value] * len(ids), pa.int32())}
    rows |= {DELETED: pa.array([False] * len(ids)), SEQUENCE: pa.array(range(len(ids)), pa.int64())}
    name = LoadName("shop", incarnation, 1, checkpoint, "ods.orders", 0)
    load = sink.part_writer(TABLE)(name, iter([pa.RecordBatch.from_pydict(rows)]))
    assert load is not None
    return load


def commit(sink: DeltaSink, checkpoint: int, ids: range, value: int = 0, incarnation: str = "0badcafe") -> None:
    sink.commit([stage(sink, checkpoint, ids, value, incarnation)], mark(checkpoint, incarnation))


def mark(checkpoint: int, incarnation: str = "0badcafe") -> SinkCheckpoint:
    first, last = BinlogPosition("b.000001", 4), BinlogPosition("b.000001", checkpoint)
    return SinkCheckpoint("shop", incarnation, 1, checkpoint, first, last, checkpoint)


def files(folder: Path) -> set[str]:
    return {Path(uri).name for uri in DeltaTable(str(folder / "ods/orders")).file_uris()}


def sums(folder: Path) -> tuple[int, int]:
    query = "select count(*) as c, sum(n) as s from t"
    found = QueryBuilder().register("t", DeltaTable(str(folder / "ods/orders"))).execute(query).read_all()
    row = pa.table(found).to_pylist()[0]
    return row["c"], row["s"]


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    found = DeltaSink(tmp_path, retention_s=3600)
    found.ensure_table(TABLE)
    return found


@pytest.mark.parametrize("is_old", [False, True])
def test_delta_protocol_lists_every_feature_in_use(
    tmp_path: Path, is_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark cannot read a table with NOT NULL columns if its protocol lists features but not invariants."""
    timed = TargetTable("ods.timed", (*COLUMNS, TargetColumn("at", pa.timestamp("us"), True)), ("id",))
    if is_old:  # as early versions created tables
        with monkeypatch.context() as patched:
            patched.setattr(mapped_tables, "add_features", lambda *_: None)
            DeltaSink(tmp_path).ensure_table(timed)
    for _ in range(2):
        DeltaSink(tmp_path).ensure_table(timed)
    found = DeltaTable(str(tmp_path / "ods/timed"))
    assert set(found.protocol().writer_features or ()) == {"timestampNtz", "invariants"}
    assert found.protocol().reader_features == ["timestampNtz"] and found.version() == 1
    DeltaSink(tmp_path).ensure_table(TABLE)
    assert DeltaTable(str(tmp_path / "ods/orders")).protocol().min_writer_version == 2, "its protocol lists no features"


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("time_us", [456_789, 253_402_300_799_999_999])
def test_delta_bounds_cut_to_milliseconds_still_match_rows(tmp_path: Path, zone: str | None, time_us: int) -> None:
    """Spark writes such bounds when it compacts files."""
    kind = pa.timestamp("us", zone)
    table = TargetTable("ods.timed", (TargetColumn("at", kind, False), COLUMNS[1]), ("at",))
    sink = DeltaSink(tmp_path)
    sink.ensure_table(table)

    def write(checkpoint: int, value: int) -> None:
        times = pa.array([time_us], pa.int64()).cast(kind)
        rows = {"at": times, "n": pa.array([value], pa.int32()), DELETED: [False], SEQUENCE: [1]}
        name = LoadName("shop", "0badcafe", 1, checkpoint, "ods.timed", 0)
        load = sink.part_writer(table)(name, iter([pa.RecordBatch.from_pydict(rows)]))
        assert load is not None
        sink.commit([load], mark(checkpoint))

    write(1, 1)
    found = DeltaTable(str(tmp_path / "ods/timed"))
    (path,) = [Path(uri) for uri in found.file_uris()]
    (entry,) = [one for one in (path.parent / "_delta_log").glob("*.json") if path.name in one.read_text()]
    entry.write_text(entry.read_text().replace(".456789", ".456").replace(".999999", ".999"))
    sink = DeltaSink(tmp_path)
    write(2, 2)
    query = QueryBuilder().register("t", DeltaTable(str(tmp_path / "ods/timed"))).execute("select sum(n) as s from t")
    assert pa.table(query.read_all()).to_pylist() == [{"s": 2}]


def test_delta_older_protocol_with_constraints_is_rejected(tmp_path: Path, sink: DeltaSink) -> None:
    DeltaTable(str(tmp_path / "ods/orders")).alter.add_constraint({"small": "id < 10"})
    (finding,) = DeltaSink(tmp_path).describe(TABLE)
    assert "constraints" in finding.problem and finding.fatal


def test_delta_new_keys_are_added_without_rewriting_files(tmp_path: Path, sink: DeltaSink) -> None:
    commit(sink, 1, range(100))
    load = stage(sink, 2, range(100, 200))
    staged = (tmp_path / load.detail["file"]).stat().st_ino
    before = files(tmp_path)
    sink.commit(
        [load],
        SinkCheckpoint("shop", "0badcafe", 1, 2, BinlogPosition("b.000001", 1), BinlogPosition("b.000001", 2), 2),
    )
    (added,) = files(tmp_path) - before
    assert before < files(tmp_path)
    assert (tmp_path / "ods/orders" / added).stat().st_ino == staged
    assert not list((tmp_path / "_cdc_staging").glob("cdc-*"))


def test_delta_merge_rewrites_only_files_with_matching_keys(tmp_path: Path, sink: DeltaSink) -> None:
    for checkpoint in range(1, 6):
        commit(sink, checkpoint, range(checkpoint * 100, checkpoint * 100 + 100, 2))
    before = files(tmp_path)
    commit(sink, 6, range(300, 310, 2), value=1)
    assert len(before & files(tmp_path)) == 4 and len(files(tmp_path)) == 5
    commit(sink, 7, range(401, 405, 2), value=1)  # within the range of a file, but in no file
    assert len(files(tmp_path)) == 6
    assert sums(tmp_path) == (252, 7)


def test_delta_maintain_compacts_and_deletes_old_files(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path, retention_s=0)
    sink.ensure_table(TABLE)
    for checkpoint in range(1, 12):
        commit(sink, checkpoint, range(checkpoint * 10, checkpoint * 10 + 10), value=checkpoint)
    pending = stage(sink, 12, range(5))
    time.sleep(0.05)
    sink.maintain([TABLE])
    assert {path.name for path in (tmp_path / "ods/orders").glob("*.parquet")} == files(tmp_path)
    assert len(files(tmp_path)) == 1
    assert sums(tmp_path) == (110, 660)
    assert (tmp_path / pending.detail["file"]).exists()


def test_delta_wide_rows_keep_files_within_the_memory_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of one repeated letter is small on disk. The limit is the size of a file in memory."""
    for module in (delta_merge, delta_compaction):
        monkeypatch.setattr(module, "FILE_BYTES", 1 << 16)
    monkeypatch.setattr(delta_compaction, "_SMALL_BYTES", 1 << 15)
    table = TargetTable("ods.notes", (COLUMNS[0], TargetColumn("text", pa.string(), True)), ("id",))
    sink = DeltaSink(tmp_path)
    sink.ensure_table(table)

    def sizes() -> list[int]:
        uris = DeltaTable(str(tmp_path / "ods/notes")).file_uris()
        return [unpacked_bytes(pq.read_metadata(uri)) for uri in uris]

    for checkpoint in range(1, 60):
        ids = [checkpoint * 3 + each for each in range(5)]  # some keys of the previous load, and new ones
        if checkpoint % 9 == 0:
            ids = [checkpoint * 1000]  # greater than all others: a separate file
        rows = {"id": pa.array(ids, pa.int64()), "text": ["x" * 4096] * len(ids)}
        rows |= {DELETED: pa.array([False] * len(ids)), SEQUENCE: pa.array(range(len(ids)), pa.int64())}
        name = LoadName("shop", "0badcafe", 1, checkpoint, "ods.notes", 0)
        load = sink.part_writer(table)(name, iter([pa.RecordBatch.from_pydict(rows)]))
        assert load is not None
        sink.commit([load], mark(checkpoint))
        assert max(sizes()) <= 1.6 * (1 << 16)
    monkeypatch.setattr(delta_compaction, "_SMALL_FILES", 2)
    monkeypatch.setattr(delta_compaction, "_SMALL_BYTES", 1 << 17)
    before = len(sizes())
    sink.maintain([table])
    assert len(sizes()) < before and max(sizes()) <= 1.6 * (1 << 16)


def test_delta_files_within_retention_stay_for_older_readers(tmp_path: Path, sink: DeltaSink) -> None:
    for checkpoint in range(1, 4):
        commit(sink, checkpoint, range(10), value=checkpoint)
    sink.maintain([TABLE])
    older = DeltaTable(str(tmp_path / "ods/orders"), version=1)
    rows = QueryBuilder().register("t", older).execute("select sum(n) as s from t").read_all()
    assert pa.table(rows).to_pylist() == [{"s": 10}]


def test_delta_maintain_writes_log_checkpoint_and_cleans_log(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path, retention_s=0)
    sink.ensure_table(TABLE)
    log = tmp_path / "ods/orders/_delta_log"
    for checkpoint in range(1, 56):
        commit(sink, checkpoint, range(10), value=checkpoint)
    assert not list(log.glob("*.checkpoint.parquet")), "a commit does not wait for a log checkpoint"
    sink.maintain([TABLE])
    assert len(list(log.glob("*.checkpoint.parquet"))) == 1 and len(list(log.glob("*.json"))) == 56
    for entry in log.iterdir():
        os.utime(entry, (time.time() - 3600,) * 2)
    for number in range(5000, 5050):
        other = pa.table({"id": pa.array([number], pa.int64()), "n": pa.array([0], pa.int32())})
        write_deltalake(str(tmp_path / "ods/orders"), other, mode="append")
    sink = DeltaSink(tmp_path, retention_s=0)
    sink.maintain([TABLE])
    assert sink.last_checkpoint("shop") == mark(55), "the mark is found before the entries of another writer"
    commit(sink, 56, range(5000, 5001), value=0)
    sink = DeltaSink(tmp_path, retention_s=0)
    sink.maintain([TABLE])
    versions = sorted(int(entry.stem) for entry in log.glob("*.json"))
    assert versions[0] >= 55 and versions[-1] == 107, "a checkpoint and later entries remain"
    commit(sink, 57, range(10, 20), value=1)
    assert sums(tmp_path) == (70, 560)
    assert DeltaSink(tmp_path).last_checkpoint("shop") == mark(57)


def test_delta_commit_of_another_writer_repeats_the_merge(
    tmp_path: Path, sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(sink, 1, range(10), value=1)
    real, calls = delta_merge.Merge.actions, []

    def interrupted(self: delta_merge.Merge, threads: object) -> object:
        found = real(self, threads)  # type: ignore[arg-type]
        calls.append(1)
        if len(calls) == 1:
            other = pa.table({"id": pa.array([5000], pa.int64()), "n": pa.array([0], pa.int32())})
            write_deltalake(str(tmp_path / "ods/orders"), other, mode="append")
        return found

    monkeypatch.setattr(delta_merge.Merge, "actions", interrupted)
    commit(sink, 2, range(5), value=2)
    assert len(calls) == 2
    assert sums(tmp_path) == (11, 15)


def test_delta_other_incarnation_needs_a_higher_checkpoint(tmp_path: Path, sink: DeltaSink) -> None:
    commit(sink, 7, range(10), value=1)
    with pytest.raises(SinkOwnershipError, match="0badcafe"):
        commit(sink, 7, range(10), value=2, incarnation="12345678")
    commit(sink, 8, range(10), value=2, incarnation="12345678")
    assert sums(tmp_path) == (10, 20)


def test_delta_staged_files_of_dead_runs_are_deleted(tmp_path: Path, sink: DeltaSink) -> None:
    dead, ahead = stage(sink, 1, range(3)), stage(sink, 9, range(3))
    other = tmp_path / "_cdc_staging/cdc-shop-two-0badcafe-1-1"
    other.mkdir()
    commit(sink, 5, range(3))
    assert not (tmp_path / dead.detail["file"]).exists()
    assert (tmp_path / ahead.detail["file"]).exists() and other.exists()


def test_delta_commit_by_a_later_run_deletes_staged_files(tmp_path: Path, sink: DeltaSink) -> None:
    load = stage(sink, 1, range(3))
    binlog_position = BinlogPosition("b.000001", 4)
    sink.commit([load], SinkCheckpoint("shop", "0badcafe", 2, 1, binlog_position, binlog_position, 2))
    assert sums(tmp_path) == (3, 0)
    assert not list((tmp_path / "_cdc_staging").glob("cdc-*"))


def test_delta_next_commit_deletes_files_of_a_lost_reply(
    tmp_path: Path, sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, lost = sink._commit_table, []

    def lose_reply(*arguments: object) -> None:
        work(*arguments)  # type: ignore[arg-type]
        if not lost:
            lost.append(arguments)
            raise SinkUnavailable("No answer.", hint="It is queried again.")

    commit(sink, 1, range(10))
    monkeypatch.setattr(sink, "_commit_table", lose_reply)
    with pytest.raises(SinkUnavailable):
        commit(sink, 2, range(10, 20))
    assert list((tmp_path / "_cdc_staging").glob("cdc-*"))
    commit(sink, 3, range(20, 30))
    assert not list((tmp_path / "_cdc_staging").glob("cdc-*"))


def test_delta_files_left_by_a_kill_are_deleted(tmp_path: Path) -> None:
    dead = DeltaSink(tmp_path, retention_s=0)
    dead.acquire_ownership(mark(0), ["ods.orders"])
    dead.ensure_table(TABLE)
    commit(dead, 1, range(3))
    incomplete = (
        tmp_path / "ods/orders" / f"part-{'0' * 32}-0-0.parquet.{'0' * 32}.tmp"
    )  # an incomplete file of a merge
    incomplete.touch()
    foreign = tmp_path / "_cdc_staging" / f"seen-shop-two-{'0' * 32}"  # of another job
    foreign.touch()
    dead._ownership.release()  # as the end of its process does
    sink = DeltaSink(tmp_path, retention_s=0)
    sink.acquire_ownership(mark(1), ["ods.orders"])
    commit(sink, 2, range(3))
    time.sleep(0.05)
    sink.maintain([TABLE])
    assert not incomplete.exists() and foreign.exists()
    assert len(list((tmp_path / "_cdc_staging").glob("seen-*"))) == 2, (
        "the files of the running job and of the other job"
    )
    sink.close()
    assert list((tmp_path / "_cdc_staging").glob("seen-*")) == [foreign]


def test_delta_load_larger_than_merge_memory_names_setting(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path, merge_memory_bytes=100)
    sink.ensure_table(TABLE)
    with pytest.raises(SinkLimitExceeded, match=r"memory\.merge"):
        commit(sink, 1, range(1000))


@pytest.mark.parametrize(("number", "said"), [(errno.ENOSPC, "full"), (errno.EACCES, "permission")])
def test_delta_file_system_error_has_path_and_hint(number: int, said: str, tmp_path: Path) -> None:
    error = unavailable(OSError(number, os.strerror(number)), tmp_path / "a/b.parquet")
    assert isinstance(error, SinkUnavailable) and said in str(error) and str(tmp_path / "a") in error.hint


def test_delta_deltalake_error_is_mapped_by_its_number(tmp_path: Path) -> None:
    """deltalake creates the tables, and its exceptions have no errno."""
    library_text = (
        "Generic LocalFileSystem error\n Unable to copy data to file\n No space left on device (os error 28)\n"
    )
    error = unavailable(OSError(library_text), tmp_path / "a/_delta_log")
    assert "disk of the Delta tables is full" in error.message and "Free space" in error.hint


def test_delta_unusable_staging_folder_raises_unavailable(tmp_path: Path, sink: DeltaSink) -> None:
    (tmp_path / "_cdc_staging").write_text("in the way")
    with pytest.raises(SinkUnavailable):
        stage(sink, 1, range(3))


def test_delta_ddl_has_key_types_and_comments(sink: DeltaSink) -> None:
    text = sink.ddl(TABLE)
    assert (
        "`id` LONG NOT NULL COMMENT 'it\\'s the key'" in text or "`id` BIGINT NOT NULL COMMENT 'it\\'s the key'" in text
    )
    assert "COMMENT 'all'" in text and "cdc.key" in text


def test_delta_ddl_distinguishes_array_types(sink: DeltaSink) -> None:
    kinds = {"texts": pa.list_(pa.string()), "prices": pa.list_(pa.decimal128(12, 2)), "vector": pa.list_(pa.float32())}
    text = sink.ddl(TargetTable("ods.arrays", tuple(TargetColumn(*each, True) for each in kinds.items()), ("texts",)))
    for expected in ("`texts` ARRAY<STRING>", "`prices` ARRAY<DECIMAL(12,2)>", "`vector` ARRAY<FLOAT>"):
        assert expected in text


def test_delta_check_finds_unwritable_root_and_creates_nothing(tmp_path: Path) -> None:
    assert DeltaSink(tmp_path / "not" / "there").check([]) == ()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    for path, says in ((tmp_path / "file" / "warehouse", "Not a directory"), (Path("/proc/warehouse"), "/proc: ")):
        (finding,) = DeltaSink(path).check([])
        assert says in finding.problem and str(path) in finding.problem and "`sink.path`" in finding.hint
        assert finding.fatal


@pytest.mark.parametrize("is_old", [False, True])
def test_delta_text_keys_of_every_plane_are_found(
    tmp_path: Path, is_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deltalake decodes escapes of characters above U+FFFF wrongly, and older logs contain them."""
    if is_old:
        monkeypatch.setattr(delta_files, "json", SimpleNamespace(dumps=lambda value, **_: json.dumps(value)))
    table = TargetTable("ods.names", (TargetColumn("name", pa.string(), False), COLUMNS[1]), ("name",))
    sink = DeltaSink(tmp_path)
    sink.ensure_table(table)
    names = ["\U00020bb7\u91ce", "\u7530\u4e2d", "\U0002f800", "\U0010ffff", "\U0001f600", "a"]

    def load(checkpoint: int, chosen: list[str], deleted: bool) -> None:
        count = len(chosen)
        rows = {"name": chosen, "n": pa.array([checkpoint] * count, pa.int32())}
        rows |= {DELETED: [deleted] * count, SEQUENCE: pa.array(range(count), pa.int64())}
        name = LoadName("shop", "0badcafe", 1, checkpoint, "ods.names", 0)
        staged = sink.part_writer(table)(name, iter([pa.RecordBatch.from_pydict(rows)]))
        assert staged is not None
        sink.commit([staged], mark(checkpoint))

    for number, name in enumerate(names):  # one file each
        load(number + 1, [name], deleted=False)
    load(10, names, deleted=False)
    found = pa.table(DeltaTable(str(tmp_path / "ods/names")).to_pyarrow_table()).to_pylist()
    assert sorted((row["name"], row["n"]) for row in found) == sorted((name, 10) for name in names)
    load(11, names[:4], deleted=True)
    found = pa.table(DeltaTable(str(tmp_path / "ods/names")).to_pyarrow_table()).to_pylist()
    assert {row["name"] for row in found} == set(names[4:])


def test_delta_rows_with_unknown_columns_raise(sink: DeltaSink, tmp_path: Path) -> None:
    """As after `cdc resume` past an ALTER TABLE; such columns must not be omitted silently."""
    commit(sink, 1, range(3))
    wider = replace(TABLE, columns=(*COLUMNS, TargetColumn("note", pa.string(), True)))
    with pytest.raises(TargetMismatch, match="does not have the column note"):
        sink.part_writer(wider)
    with pytest.raises(TargetMismatch, match="Column n is integer in the table"):
        sink.part_writer(replace(TABLE, columns=(COLUMNS[0], TargetColumn("n", pa.int64(), True))))
    DeltaTable(str(tmp_path / "ods/orders")).alter.add_columns([Field("note", PrimitiveType("string"), nullable=True)])
    sink.part_writer(wider)


def test_delta_added_column_is_null_in_older_rows(sink: DeltaSink, tmp_path: Path) -> None:
    commit(sink, 1, range(10))
    DeltaTable(str(tmp_path / "ods/orders")).alter.add_columns([Field("note", PrimitiveType("string"), nullable=True)])
    commit(sink, 2, range(5, 12), 1)  # rewrites a file without the column
    commit(sink, 3, range(20, 22), 1)
    sink.maintain([TABLE])
    assert sums(tmp_path) == (14, 9)
    found = pa.table(DeltaTable(str(tmp_path / "ods/orders")).to_pyarrow_table())
    assert found.column_names == ["id", "n", "note"] and found.column("note").null_count == 14


def test_delta_settings_changed_by_others_stop_the_next_merge(sink: DeltaSink, tmp_path: Path) -> None:
    commit(sink, 1, range(3))
    found = DeltaTable(str(tmp_path / "ods/orders"))
    found.alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(TargetMismatch, match=r"delta\.appendOnly"):
        commit(sink, 2, range(3), 5)
    found.alter.set_table_properties({"delta.appendOnly": "false"})
    commit(sink, 2, range(3), 5)
    assert sums(tmp_path) == (3, 15)
    found = DeltaTable(str(tmp_path / "ods/orders"))
    found.alter.add_feature(TableFeatures.ChangeDataFeed, allow_protocol_versions_increase=True)
    with pytest.raises(TargetMismatch, match="changeDataFeed"):
        commit(sink, 3, range(3), 7)
    sink.maintain([TABLE])


def test_delta_expiring_transactions_stop_the_job_before_any_commit(tmp_path: Path, sink: DeltaSink) -> None:
    """An idle table would look as if it was replaced, and a stale run would commit an old checkpoint again."""
    name = "delta.setTransactionRetentionDuration"
    sink.target_states("shop", "0badcafe", [TABLE.name])
    for checkpoint in (1, 2):
        commit(sink, checkpoint, range(3), checkpoint)
    stale, newest = stage(sink, 1, range(3), 7), sink.last_checkpoint("shop")
    set_property(tmp_path, name, "interval 0 seconds")
    time.sleep(0.01)
    assert DeltaTable(str(tmp_path / "ods/orders")).transaction_version("cdc/shop/0badcafe") is None
    for call in (
        lambda: commit(sink, 3, range(3), 3),
        lambda: DeltaSink(tmp_path).commit([stale], mark(1)),
        lambda: DeltaSink(tmp_path).target_states("shop", "0badcafe", [TABLE.name]),
        lambda: DeltaSink(tmp_path).ensure_table(TABLE),
    ):
        with pytest.raises(TargetMismatch, match=name) as caught:
            call()
        assert f"UNSET TBLPROPERTIES ('{name}')" in caught.value.hint
    assert DeltaSink(tmp_path).last_checkpoint("shop") == newest == mark(2)
    (finding,) = DeltaSink(tmp_path).check([TABLE])
    assert finding.fatal
    set_property(tmp_path, name, None)
    commit(sink, 3, range(3), 3)
    assert sums(tmp_path) == (3, 9)


def set_property(root: Path, name: str, value: str | None) -> None:
    """Set or unset a table property, as ALTER TABLE of Spark does."""
    found = DeltaTable(str(root / "ods/orders"))
    log = root / "ods/orders/_delta_log"
    lines = [json.loads(line) for entry in sorted(log.glob("*.json")) for line in entry.read_text().splitlines()]
    metadata = [line["metaData"] for line in lines if "metaData" in line][-1]
    others = {key: text for key, text in metadata["configuration"].items() if key != name}
    metadata["configuration"] = others | ({name: value} if value is not None else {})
    put_entry(found, found.version(), "SET TBLPROPERTIES", [{"metaData": metadata}], {})


def test_delta_column_name_in_another_case_is_reported(sink: DeltaSink) -> None:
    (finding,) = sink.describe(replace(TABLE, columns=(COLUMNS[0], TargetColumn("N", pa.int32(), True))))
    assert "has the spelling n in the table" in finding.problem and "{n: N}" in finding.hint


def test_delta_long_log_retention_is_a_warning(tmp_path: Path) -> None:
    DeltaSink(tmp_path, retention_s=30 * 86400).ensure_table(TABLE)
    (finding,) = DeltaSink(tmp_path).check([TABLE])
    assert "kept for 30 days" in finding.problem and "logRetentionDuration" in finding.hint and not finding.fatal
    DeltaSink(tmp_path).ensure_table(TABLE)
    found = DeltaTable(str(tmp_path / "ods/orders"))
    found.alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    assert DeltaSink(tmp_path).check([TABLE]) == ()
    assert "'delta.logRetentionDuration' = 'interval 3600 seconds'" in DeltaSink(tmp_path).ddl(TABLE)
    assert DeltaSink(tmp_path, retention_s=86400).check([TABLE]) == ()
    (finding,) = DeltaSink(tmp_path, retention_s=3 * 86400).check([TABLE])  # raised after the table was created
    assert "less than `sink.retention`" in finding.problem and "interval 259200 seconds" in finding.hint
    assert not finding.fatal


def test_delta_key_pages_read_only_the_files_they_need(
    sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(8):  # separate by key, but not in the order of the log
        low = 100 * (number * 5 % 8)
        commit(sink, number + 1, range(low, low + 100))
    assert len(files(tmp_path)) == 8
    read: list[object] = []
    real = delta_keys.open_data_file
    monkeypatch.setattr(delta_keys, "open_data_file", lambda path: (read.append(path), real(path))[1])
    after, found, most = None, list[int](), 0
    while (page := sink.keys(TABLE, after, 30)).num_rows:
        found += page.column("id").to_pylist()
        after = page.slice(page.num_rows - 1)
        most, read = max(most, len(read)), []
    assert found == list(range(800))
    assert most <= 2, "memory is bounded by the page, not by the table"
    sink.close()


def test_delta_log_of_a_table_of_another_job_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each start of a job reads all tables below the root, and a log has thousands of entries."""
    sink, read = DeltaSink(tmp_path), []
    sink.identity(create=True)
    sink.ensure_table(TABLE)
    sink.commit([stage(sink, 1, range(3))], mark(1))
    history = sink_checkpoint.history
    monkeypatch.setattr(sink_checkpoint, "history", lambda *given: read.append(given) or history(*given))
    assert sink.last_checkpoint("crm") is None and not read
    assert sink.last_checkpoint("shop") == mark(1) and read
    sink.close()
