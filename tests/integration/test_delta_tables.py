"""What the Delta sink does beyond the contract: files adopted and pruned, old ones deleted, other writers, faults."""

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

from cdc.batch import LoadName, PreparedLoad
from cdc.errors import SinkForeign, SinkSetting, SinkUnavailable, TargetMismatch
from cdc.position import BinlogPosition
from cdc.schema import DELETED, SEQUENCE
from channels.sinks import delta_files, delta_layout, delta_merge
from channels.sinks.base import CheckpointMark, TargetColumn, TargetTable
from channels.sinks.delta import DeltaSink
from channels.sinks.delta_files import unavailable, unpacked_bytes

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


def mark(checkpoint: int, incarnation: str = "0badcafe") -> CheckpointMark:
    first, last = BinlogPosition("b.000001", 4), BinlogPosition("b.000001", checkpoint)
    return CheckpointMark("shop", incarnation, 1, checkpoint, first, last, checkpoint)


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
def test_the_protocol_names_every_feature_in_use(tmp_path: Path, is_old: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark refuses to read a table with NOT NULL columns whose protocol lists features, and not that one."""
    timed = TargetTable("ods.timed", (*COLUMNS, TargetColumn("at", pa.timestamp("us"), True)), ("id",))
    if is_old:  # as tables were made at first
        with monkeypatch.context() as patched:
            patched.setattr(DeltaSink, "_add_invariants", lambda *_: None)
            DeltaSink(tmp_path).ensure_table(timed)
    for _ in range(2):
        DeltaSink(tmp_path).ensure_table(timed)
    found = DeltaTable(str(tmp_path / "ods/timed"))
    assert set(found.protocol().writer_features or ()) == {"timestampNtz", "invariants"}
    assert found.protocol().reader_features == ["timestampNtz"] and found.version() == 1
    DeltaSink(tmp_path).ensure_table(TABLE)
    assert DeltaTable(str(tmp_path / "ods/orders")).protocol().min_writer_version == 2, "it lists none"


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("time_us", [456_789, 253_402_300_799_999_999])
def test_bounds_that_were_cut_to_the_millisecond_still_find_their_rows(
    tmp_path: Path, zone: str | None, time_us: int
) -> None:
    """Spark writes them so, when it puts files together."""
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


def test_a_table_of_an_older_protocol_with_rules_of_its_own_is_refused(tmp_path: Path, sink: DeltaSink) -> None:
    DeltaTable(str(tmp_path / "ods/orders")).alter.add_constraint({"small": "id < 10"})
    (finding,) = DeltaSink(tmp_path).describe(TABLE)
    assert "constraints" in finding.problem and finding.fatal


def test_new_keys_become_files_of_the_table_without_being_rewritten(tmp_path: Path, sink: DeltaSink) -> None:
    commit(sink, 1, range(100))
    load = stage(sink, 2, range(100, 200))
    staged = (tmp_path / load.detail["file"]).stat().st_ino
    before = files(tmp_path)
    sink.commit(
        [load],
        CheckpointMark("shop", "0badcafe", 1, 2, BinlogPosition("b.000001", 1), BinlogPosition("b.000001", 2), 2),
    )
    (added,) = files(tmp_path) - before
    assert before < files(tmp_path)
    assert (tmp_path / "ods/orders" / added).stat().st_ino == staged
    assert not list((tmp_path / "_cdc_staging").glob("cdc-*"))


def test_only_files_that_hold_a_key_are_rewritten(tmp_path: Path, sink: DeltaSink) -> None:
    for checkpoint in range(1, 6):
        commit(sink, checkpoint, range(checkpoint * 100, checkpoint * 100 + 100, 2))
    before = files(tmp_path)
    commit(sink, 6, range(300, 310, 2), value=1)
    assert len(before & files(tmp_path)) == 4 and len(files(tmp_path)) == 5
    commit(sink, 7, range(401, 405, 2), value=1)  # within a file's range, but in no file
    assert len(files(tmp_path)) == 6
    assert sums(tmp_path) == (252, 7)


def test_small_files_are_put_together_and_old_ones_deleted(tmp_path: Path) -> None:
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


def test_wide_rows_never_make_files_that_outgrow_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of one letter is next to nothing on disk: what counts is what a file takes when it is read."""
    for module in (delta_merge, delta_layout):
        monkeypatch.setattr(module, "LEAF_BYTES", 1 << 16)
    monkeypatch.setattr(delta_layout, "_SMALL_BYTES", 1 << 15)
    table = TargetTable("ods.notes", (COLUMNS[0], TargetColumn("text", pa.string(), True)), ("id",))
    sink = DeltaSink(tmp_path)
    sink.ensure_table(table)

    def sizes() -> list[int]:
        uris = DeltaTable(str(tmp_path / "ods/notes")).file_uris()
        return [unpacked_bytes(pq.read_metadata(uri)) for uri in uris]

    for checkpoint in range(1, 60):
        ids = [checkpoint * 3 + each for each in range(5)]  # some of the load before, and new ones
        if checkpoint % 9 == 0:
            ids = [checkpoint * 1000]  # beyond all others: a file of its own
        rows = {"id": pa.array(ids, pa.int64()), "text": ["x" * 4096] * len(ids)}
        rows |= {DELETED: pa.array([False] * len(ids)), SEQUENCE: pa.array(range(len(ids)), pa.int64())}
        name = LoadName("shop", "0badcafe", 1, checkpoint, "ods.notes", 0)
        load = sink.part_writer(table)(name, iter([pa.RecordBatch.from_pydict(rows)]))
        assert load is not None
        sink.commit([load], mark(checkpoint))
        assert max(sizes()) <= 1.6 * (1 << 16)
    monkeypatch.setattr(delta_layout, "_SMALL_FILES", 2)
    monkeypatch.setattr(delta_layout, "_SMALL_BYTES", 1 << 17)
    before = len(sizes())
    sink.maintain([table])
    assert len(sizes()) < before and max(sizes()) <= 1.6 * (1 << 16)


def test_files_within_retention_stay_for_readers_of_older_versions(tmp_path: Path, sink: DeltaSink) -> None:
    for checkpoint in range(1, 4):
        commit(sink, checkpoint, range(10), value=checkpoint)
    sink.maintain([TABLE])
    older = DeltaTable(str(tmp_path / "ods/orders"), version=1)
    rows = QueryBuilder().register("t", older).execute("select sum(n) as s from t").read_all()
    assert pa.table(rows).to_pylist() == [{"s": 10}]


def test_the_log_is_summed_up_and_what_expired_of_it_deleted(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path, retention_s=0)
    sink.ensure_table(TABLE)
    log = tmp_path / "ods/orders/_delta_log"
    for checkpoint in range(1, 56):
        commit(sink, checkpoint, range(10), value=checkpoint)
    assert not list(log.glob("*.checkpoint.parquet")), "a commit does not wait for that"
    sink.maintain([TABLE])
    assert len(list(log.glob("*.checkpoint.parquet"))) == 1 and len(list(log.glob("*.json"))) == 56
    for entry in log.iterdir():
        os.utime(entry, (time.time() - 3600,) * 2)
    for number in range(5000, 5050):
        other = pa.table({"id": pa.array([number], pa.int64()), "n": pa.array([0], pa.int32())})
        write_deltalake(str(tmp_path / "ods/orders"), other, mode="append")
    sink = DeltaSink(tmp_path, retention_s=0)
    sink.maintain([TABLE])
    assert sink.last_checkpoint("shop") == mark(55), "it is older than another writer's entries"
    commit(sink, 56, range(5000, 5001), value=0)
    sink = DeltaSink(tmp_path, retention_s=0)
    sink.maintain([TABLE])
    versions = sorted(int(entry.stem) for entry in log.glob("*.json"))
    assert versions[0] >= 55 and versions[-1] == 107, "a checkpoint and what came after it is left"
    commit(sink, 57, range(10, 20), value=1)
    assert sums(tmp_path) == (70, 560)
    assert DeltaSink(tmp_path).last_checkpoint("shop") == mark(57)


def test_another_writers_commit_during_a_merge_is_seen_and_the_merge_made_anew(
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


def test_another_life_of_the_job_is_refused_below_and_welcome_above(tmp_path: Path, sink: DeltaSink) -> None:
    commit(sink, 7, range(10), value=1)
    with pytest.raises(SinkForeign, match="0badcafe"):
        commit(sink, 7, range(10), value=2, incarnation="12345678")
    commit(sink, 8, range(10), value=2, incarnation="12345678")
    assert sums(tmp_path) == (10, 20)


def test_what_dead_runs_staged_is_deleted_and_other_jobs_kept(tmp_path: Path, sink: DeltaSink) -> None:
    dead, ahead = stage(sink, 1, range(3)), stage(sink, 9, range(3))
    other = tmp_path / "_cdc_staging/cdc-shop-two-0badcafe-1-1"
    other.mkdir()
    commit(sink, 5, range(3))
    assert not (tmp_path / dead.detail["file"]).exists()
    assert (tmp_path / ahead.detail["file"]).exists() and other.exists()


def test_what_a_dead_run_staged_is_deleted_once_a_later_run_has_committed_it(tmp_path: Path, sink: DeltaSink) -> None:
    load = stage(sink, 1, range(3))
    place = BinlogPosition("b.000001", 4)
    sink.commit([load], CheckpointMark("shop", "0badcafe", 2, 1, place, place, 2))
    assert sums(tmp_path) == (3, 0)
    assert not list((tmp_path / "_cdc_staging").glob("cdc-*"))


def test_what_was_staged_for_a_commit_whose_answer_was_lost_goes_with_the_next(
    tmp_path: Path, sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, lost = sink._commit_table, []

    def lose_the_answer(*arguments: object) -> None:
        work(*arguments)  # type: ignore[arg-type]
        if not lost:
            lost.append(arguments)
            raise SinkUnavailable("No answer.", mend="It is asked again.")

    commit(sink, 1, range(10))
    monkeypatch.setattr(sink, "_commit_table", lose_the_answer)
    with pytest.raises(SinkUnavailable):
        commit(sink, 2, range(10, 20))
    assert list((tmp_path / "_cdc_staging").glob("cdc-*"))
    commit(sink, 3, range(20, 30))
    assert not list((tmp_path / "_cdc_staging").glob("cdc-*"))


def test_what_a_kill_in_the_middle_left_is_deleted(tmp_path: Path) -> None:
    dead = DeltaSink(tmp_path, retention_s=0)
    dead.claim(mark(0), ["ods.orders"])
    dead.ensure_table(TABLE)
    commit(dead, 1, range(3))
    growing = tmp_path / "ods/orders" / f"part-{'0' * 32}-0-0.parquet.{'0' * 32}.tmp"  # a merge's file, not whole yet
    growing.touch()
    foreign = tmp_path / "_cdc_staging" / f"seen-shop-two-{'0' * 32}"  # of another job
    foreign.touch()
    dead._claim.release()  # as its process's end does
    sink = DeltaSink(tmp_path, retention_s=0)
    sink.claim(mark(1), ["ods.orders"])
    commit(sink, 2, range(3))
    time.sleep(0.05)
    sink.maintain([TABLE])
    assert not growing.exists() and foreign.exists()
    assert len(list((tmp_path / "_cdc_staging").glob("seen-*"))) == 2, "the living run's, and the other job's"
    sink.close()
    assert list((tmp_path / "_cdc_staging").glob("seen-*")) == [foreign]


def test_a_load_whose_keys_outgrow_the_memory_names_the_setting(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path, merge_memory_bytes=100)
    sink.ensure_table(TABLE)
    with pytest.raises(SinkSetting, match=r"memory\.merge"):
        commit(sink, 1, range(1000))


@pytest.mark.parametrize(("number", "said"), [(errno.ENOSPC, "full"), (errno.EACCES, "permission")])
def test_a_fault_of_the_file_system_names_path_and_mend(number: int, said: str, tmp_path: Path) -> None:
    error = unavailable(OSError(number, os.strerror(number)), tmp_path / "a/b.parquet")
    assert isinstance(error, SinkUnavailable) and said in str(error) and str(tmp_path / "a") in error.mend


def test_a_fault_that_deltalake_tells_of_is_known_by_its_number(tmp_path: Path) -> None:
    """It makes the tables, and its errors have no errno."""
    told = "Generic LocalFileSystem error\n Unable to copy data to file\n No space left on device (os error 28)\n"
    error = unavailable(OSError(told), tmp_path / "a/_delta_log")
    assert "disk of the Delta tables is full" in error.message and "Free space" in error.mend


def test_a_staging_folder_that_cannot_be_made_is_unavailable(tmp_path: Path, sink: DeltaSink) -> None:
    (tmp_path / "_cdc_staging").write_text("in the way")
    with pytest.raises(SinkUnavailable):
        stage(sink, 1, range(3))


def test_ddl_has_key_types_and_comments(sink: DeltaSink) -> None:
    text = sink.ddl(TABLE)
    assert (
        "`id` LONG NOT NULL COMMENT 'it\\'s the key'" in text or "`id` BIGINT NOT NULL COMMENT 'it\\'s the key'" in text
    )
    assert "COMMENT 'all'" in text and "cdc.key" in text


def test_ddl_tells_arrays_apart(sink: DeltaSink) -> None:
    kinds = {"texts": pa.list_(pa.string()), "prices": pa.list_(pa.decimal128(12, 2)), "vector": pa.list_(pa.float32())}
    text = sink.ddl(TargetTable("ods.arrays", tuple(TargetColumn(*each, True) for each in kinds.items()), ("texts",)))
    for expected in ("`texts` ARRAY<STRING>", "`prices` ARRAY<DECIMAL(12,2)>", "`vector` ARRAY<FLOAT>"):
        assert expected in text


def test_a_folder_that_cannot_be_written_is_found_without_a_table_and_none_is_made(tmp_path: Path) -> None:
    assert DeltaSink(tmp_path / "not" / "there").check([]) == ()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    for path, says in ((tmp_path / "file" / "warehouse", "Not a directory"), (Path("/proc/warehouse"), "/proc: ")):
        (finding,) = DeltaSink(path).check([])
        assert says in finding.problem and str(path) in finding.problem and "`sink.path`" in finding.mend
        assert finding.fatal


@pytest.mark.parametrize("is_old", [False, True])
def test_text_keys_of_every_plane_are_found_again(
    tmp_path: Path, is_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deltalake decodes escapes of characters beyond U+FFFF wrongly, and logs made before have them."""
    if is_old:
        monkeypatch.setattr(delta_files, "json", SimpleNamespace(dumps=lambda told, **_: json.dumps(told)))
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

    for number, name in enumerate(names):  # a file each
        load(number + 1, [name], deleted=False)
    load(10, names, deleted=False)
    found = pa.table(DeltaTable(str(tmp_path / "ods/names")).to_pyarrow_table()).to_pylist()
    assert sorted((row["name"], row["n"]) for row in found) == sorted((name, 10) for name in names)
    load(11, names[:4], deleted=True)
    found = pa.table(DeltaTable(str(tmp_path / "ods/names")).to_pyarrow_table()).to_pylist()
    assert {row["name"] for row in found} == set(names[4:])


def test_columns_that_the_table_does_not_have_are_refused_once_rows_have_them(sink: DeltaSink, tmp_path: Path) -> None:
    """As after `cdc resume` behind an ALTER TABLE: they were left out without a word."""
    commit(sink, 1, range(3))
    wider = replace(TABLE, columns=(*COLUMNS, TargetColumn("note", pa.string(), True)))
    with pytest.raises(TargetMismatch, match="lacks column note"):
        sink.part_writer(wider)
    with pytest.raises(TargetMismatch, match="Column n is integer in the table"):
        sink.part_writer(replace(TABLE, columns=(COLUMNS[0], TargetColumn("n", pa.int64(), True))))
    DeltaTable(str(tmp_path / "ods/orders")).alter.add_columns([Field("note", PrimitiveType("string"), nullable=True)])
    sink.part_writer(wider)


def test_a_column_that_came_later_is_null_in_rows_of_before(sink: DeltaSink, tmp_path: Path) -> None:
    commit(sink, 1, range(10))
    DeltaTable(str(tmp_path / "ods/orders")).alter.add_columns([Field("note", PrimitiveType("string"), nullable=True)])
    commit(sink, 2, range(5, 12), 1)  # rewrites a file without the column
    commit(sink, 3, range(20, 22), 1)
    sink.maintain([TABLE])
    assert sums(tmp_path) == (14, 9)
    found = pa.table(DeltaTable(str(tmp_path / "ods/orders")).to_pyarrow_table())
    assert found.column_names == ["id", "n", "note"] and found.column("note").null_count == 14


def test_what_others_set_at_a_table_while_a_job_runs_stops_the_next_merge(sink: DeltaSink, tmp_path: Path) -> None:
    commit(sink, 1, range(3))
    found = DeltaTable(str(tmp_path / "ods/orders"))
    found.alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(TargetMismatch, match=r"delta\.appendOnly"):
        commit(sink, 2, range(3), 5)
    found.alter.set_table_properties({"delta.appendOnly": "false"})
    commit(sink, 2, range(3), 5)
    assert sums(tmp_path) == (3, 15)
    found = DeltaTable(str(tmp_path / "ods/orders"))
    found.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(TargetMismatch, match="deletionVectors"):
        commit(sink, 3, range(3), 7)
    sink.maintain([TABLE])


def test_a_name_that_differs_in_case_alone_is_told_so(sink: DeltaSink) -> None:
    (finding,) = sink.describe(replace(TABLE, columns=(COLUMNS[0], TargetColumn("N", pa.int32(), True))))
    assert "spelt n in the table" in finding.problem and "{n: N}" in finding.mend


def test_a_log_that_keeps_long_is_a_finding_but_no_refusal(tmp_path: Path) -> None:
    DeltaSink(tmp_path, retention_s=30 * 86400).ensure_table(TABLE)
    (finding,) = DeltaSink(tmp_path).check([TABLE])
    assert "keeps 30 days" in finding.problem and "logRetentionDuration" in finding.mend and not finding.fatal
    DeltaSink(tmp_path).ensure_table(TABLE)
    found = DeltaTable(str(tmp_path / "ods/orders"))
    found.alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    assert DeltaSink(tmp_path).check([TABLE]) == ()
    assert "'delta.logRetentionDuration' = 'interval 3600 seconds'" in DeltaSink(tmp_path).ddl(TABLE)
    assert DeltaSink(tmp_path, retention_s=86400).check([TABLE]) == ()
    (finding,) = DeltaSink(tmp_path, retention_s=3 * 86400).check([TABLE])  # raised since the table was made
    assert "less than sink.retention" in finding.problem and "interval 259200 seconds" in finding.mend
    assert not finding.fatal
