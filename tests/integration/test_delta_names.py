"""Table names are untrusted: for any table name of a source, the Delta sink stays below its root."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from cdc.errors import ConfigError, SinkUnavailable, TargetMismatch
from cdc.model.batch import LoadName
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE
from channels.sinks.base import SinkCheckpoint, TargetColumn, TargetTable
from channels.sinks.delta.sink import DeltaSink
from channels.sinks.delta.table_paths import table_folder, table_uri, target_of
from tests.support.hostile_names import HOSTILE

COLUMNS = (TargetColumn("id", pa.int64(), False), TargetColumn("n", pa.int32(), True))


def _commit(sink: DeltaSink, table: str, checkpoint: int) -> None:
    target = TargetTable(table, COLUMNS, ("id",))
    sink.ensure_table(target)
    rows = {"id": pa.array([1, checkpoint], pa.int64()), "n": pa.array([checkpoint] * 2, pa.int32())}
    rows |= {DELETED: pa.array([False] * 2), SEQUENCE: pa.array(range(2), pa.int64())}
    load = sink.part_writer(target)(
        LoadName("shop", "0badcafe", 1, checkpoint, table, 0), iter([pa.RecordBatch.from_pydict(rows)])
    )
    assert load is not None
    first, last = BinlogPosition("b.000001", 4), BinlogPosition("b.000001", checkpoint)
    sink.commit([load], SinkCheckpoint("shop", "0badcafe", 1, checkpoint, first, last, checkpoint))
    sink.maintain([target])


def _rows(folder: Path) -> list[dict[str, int]]:
    query = QueryBuilder().register("t", DeltaTable(table_uri(folder))).execute("select id, n from t order by id")
    return pa.table(query.read_all()).to_pylist()


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """Create files of other owners around the root, which must not change."""
    for path in ("evil/a.parquet", "root.parquet", "etc/x.parquet"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(b"mine")
        os.utime(tmp_path / path, (1, 1))
    return tmp_path


@pytest.mark.parametrize("name", HOSTILE)
def test_delta_table_of_any_name_stays_below_root(name: str, canary: Path) -> None:
    before = {path: path.stat().st_mtime for path in canary.rglob("*") if path.is_file()}
    root = canary / "root"
    sink = DeltaSink(root, retention_s=0)
    sink.identity(create=True)
    targets = [f"ods.{name}", *([f"{name}.t"] if "." not in name else [])]
    for target in targets:
        for checkpoint in (2, 3):
            _commit(sink, target, checkpoint)
        folder = table_folder(root, target)
        assert folder.parent.parent == root and folder.resolve().is_relative_to(root)
        assert target_of(folder) == target, "the name can be restored"
        assert _rows(folder) == [{"id": 1, "n": 3}, {"id": 2, "n": 2}, {"id": 3, "n": 3}]
    assert sink.last_checkpoint("shop") is not None
    assert sink.target_states("shop", "0badcafe", targets).keys() == set(targets)
    sink.close()
    after = {path: path.stat().st_mtime for path in canary.rglob("*") if path.is_file() and root not in path.parents}
    assert after == before


def test_delta_folders_of_different_names_differ(tmp_path: Path) -> None:
    folders = {table_folder(tmp_path, f"ods.{name}") for name in HOSTILE}
    assert len(folders) == len(HOSTILE)


def test_delta_name_longer_than_the_file_system_allows_raises(tmp_path: Path) -> None:
    with pytest.raises(TargetMismatch, match="is not valid for a folder"):
        DeltaSink(tmp_path).ensure_table(TargetTable("ods." + "😀" * 64, COLUMNS, ("id",)))


@pytest.mark.parametrize("path", ["a%20b", "back\\slash", "tab\there", "[x]", "a#b", "a?b"])
def test_delta_root_that_deltalake_cannot_address_raises(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"sink\.path"):
        DeltaSink(tmp_path / path)


def test_delta_folder_with_foreign_files_raises(tmp_path: Path) -> None:
    folder = tmp_path / "ods" / "orders"
    folder.mkdir(parents=True)
    (folder / "mine.parquet").write_bytes(b"mine")
    sink = DeltaSink(tmp_path, retention_s=0)
    (finding,) = sink.describe(TargetTable("ods.orders", COLUMNS, ("id",)))
    assert finding.fatal and "has files, but no Delta table" in finding.problem
    with pytest.raises(TargetMismatch, match="has files, but no Delta table"):
        _commit(sink, "ods.orders", 2)
    assert [path.name for path in folder.iterdir()] == ["mine.parquet"]


def test_delta_vacuum_keeps_foreign_files_in_table_folder(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path, retention_s=0)
    _commit(sink, "ods.orders", 2)
    foreign = [tmp_path / "ods/orders" / name for name in ("mine.parquet", "part-00000-1.c000.snappy.parquet")]
    for path in foreign:
        path.write_bytes(b"mine")
    for checkpoint in range(3, 6):
        sink._maintenance._maintained.clear()
        sink._maintenance._vacuumed.clear()
        _commit(sink, "ods.orders", checkpoint)
    assert all(path.read_bytes() == b"mine" for path in foreign)


def test_delta_vacuum_deletes_without_the_lock_and_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DeltaSink(tmp_path, retention_s=0)
    for checkpoint in range(2, 6):
        _commit(sink, "ods.orders", checkpoint)
    time.sleep(0.05)  # the oldest time to keep must be after the change of the files
    folder, deleted = tmp_path / "ods/orders", []  # type: ignore[var-annotated]

    def is_free() -> bool:
        lock = sink._tables.lock("ods.orders")
        return lock.acquire(timeout=10) and lock.release() is None

    def note(path: Path, *, missing_ok: bool = False) -> None:
        with ThreadPoolExecutor(1) as other:  # the lock is reentrant
            deleted.append((path.name, other.submit(is_free).result()))
        os.unlink(path)

    def maintain(is_stopped: Callable[[], bool]) -> None:
        sink._maintenance._maintained.clear()
        sink._maintenance._vacuumed.clear()
        with monkeypatch.context() as patched:
            patched.setattr(type(folder), "unlink", note)
            sink.maintain([TargetTable("ods.orders", COLUMNS, ("id",))], is_stopped)

    before = len(list(folder.glob("part-*.parquet")))
    maintain(lambda: bool(deleted))
    assert [is_unlocked for _, is_unlocked in deleted] == [True], "it stops after one file"
    maintain(lambda: False)
    assert len(deleted) > 1 and len(list(folder.glob("part-*.parquet"))) == before - len(deleted)
    assert len(_rows(folder)) == 5


def test_delta_vacuum_frozen_after_clock_deletes_no_live_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process is frozen within its vacuum while another one commits and the retention passes."""
    frozen, other = DeltaSink(tmp_path, retention_s=1), DeltaSink(tmp_path, retention_s=1)
    _commit(frozen, "ods.orders", 2)
    frozen._maintenance._maintained.clear()
    frozen._maintenance._vacuumed.clear()
    opened, left = frozen._tables.open, [3, 4, 5]

    def freeze(table: str, *, fresh: bool = False) -> DeltaTable | None:
        found = opened(table, fresh=fresh)
        if fresh:  # the vacuum: it continues long after it has read the table
            while left:
                _commit(other, table, left.pop(0))
            time.sleep(1.1)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(frozen._tables, "open", freeze)
        frozen.maintain([TargetTable("ods.orders", COLUMNS, ("id",))])
    assert not left, "the process was not frozen"
    assert len(_rows(tmp_path / "ods/orders")) == 5, "every file that the log names exists"


def test_delta_table_removed_under_live_sink_is_not_created(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path)
    _commit(sink, "ods.orders", 2)
    sink.target_states("shop", "0badcafe", ["ods.orders"])
    (tmp_path / "ods" / "orders").rename(tmp_path / "away")
    with pytest.raises(SinkUnavailable, match="does not exist any more"):
        _commit(sink, "ods.orders", 3)
    assert not (tmp_path / "ods" / "orders").exists()


def test_delta_two_targets_with_one_folder_raise(tmp_path: Path) -> None:
    """A file system that ignores case gives the same folder; a link below the root has the same effect."""
    sink = DeltaSink(tmp_path)
    _commit(sink, "ods.orders", 1)
    (tmp_path / "ods" / "ORDERS").symlink_to(tmp_path / "ods" / "orders")
    with pytest.raises(TargetMismatch, match=r"'ods\.orders' and 'ods\.ORDERS' have the same folder"):
        _commit(sink, "ods.ORDERS", 2)
    assert len(_rows(tmp_path / "ods" / "orders")) == 1
    sink.close()
