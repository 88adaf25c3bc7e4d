"""Names of tables are untrusted: whatever a source calls its tables, the Delta sink stays below its root."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from cdc.batch import LoadName
from cdc.errors import ConfigError, SinkUnavailable, TargetMismatch
from cdc.position import BinlogPosition
from cdc.schema import DELETED, SEQUENCE
from channels.sinks import delta as delta_module
from channels.sinks.base import CheckpointMark, TargetColumn, TargetTable
from channels.sinks.delta import DeltaSink
from channels.sinks.delta_paths import table_folder, table_uri, target_of

COLUMNS = (TargetColumn("id", pa.int64(), False), TargetColumn("n", pa.int32(), True))

HOSTILE = (
    *("../../../evil", "/etc/evil", "..", ".", "a/b", "a\\b", "\\\\host\\share", "nul\0byte", "tab\there", "line\nend"),
    *("\x01\x1f\x7f", "it's", 'a "quote"', "back`tick", "%2e%2e", "%2f", "100%", "%", "a%20b", "a#b?c=d", "[x]", "a:b"),
    *("dot.", "space ", " space", "~2f", "~", "emoji😀", "ü", "u\u0308", "T0", "t0", "_delta_log", "_cdc_staging"),
    *("_cdc_sink.json", ".hidden", "x" * 64, "ü" * 64, "*", "$(rm -rf /)", "; DROP TABLE x", "-rf", "CON", "a.b.c"),
)


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
    sink.commit([load], CheckpointMark("shop", "0badcafe", 1, checkpoint, first, last, checkpoint))
    sink.maintain([target])


def _rows(folder: Path) -> list[dict[str, int]]:
    query = QueryBuilder().register("t", DeltaTable(table_uri(folder))).execute("select id, n from t order by id")
    return pa.table(query.read_all()).to_pylist()


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """Files of somebody else around the root, which nothing may touch."""
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
        assert target_of(folder) == target, "the name can be read back"
        assert _rows(folder) == [{"id": 1, "n": 3}, {"id": 2, "n": 2}, {"id": 3, "n": 3}]
    assert sink.last_checkpoint("shop") is not None
    assert sink.target_states("shop", "0badcafe", targets).keys() == set(targets)
    sink.close()
    after = {path: path.stat().st_mtime for path in canary.rglob("*") if path.is_file() and root not in path.parents}
    assert after == before


def test_delta_folders_of_different_names_differ(tmp_path: Path) -> None:
    folders = {table_folder(tmp_path, f"ods.{name}") for name in HOSTILE}
    assert len(folders) == len(HOSTILE)


def test_delta_name_longer_than_file_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TargetMismatch, match="cannot be the name of a folder"):
        DeltaSink(tmp_path).ensure_table(TargetTable("ods." + "😀" * 64, COLUMNS, ("id",)))


@pytest.mark.parametrize("path", ["a%20b", "back\\slash", "tab\there", "[x]", "a#b", "a?b"])
def test_delta_root_that_deltalake_cannot_address_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"sink\.path"):
        DeltaSink(tmp_path / path)


def test_delta_folder_with_foreign_files_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "ods" / "orders"
    folder.mkdir(parents=True)
    (folder / "mine.parquet").write_bytes(b"mine")
    sink = DeltaSink(tmp_path, retention_s=0)
    (finding,) = sink.describe(TargetTable("ods.orders", COLUMNS, ("id",)))
    assert finding.fatal and "holds files and no Delta table" in finding.problem
    with pytest.raises(TargetMismatch, match="holds files and no Delta table"):
        _commit(sink, "ods.orders", 2)
    assert [path.name for path in folder.iterdir()] == ["mine.parquet"]


def test_vacuum_keeps_foreign_files_in_table_folder(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path, retention_s=0)
    _commit(sink, "ods.orders", 2)
    foreign = [tmp_path / "ods/orders" / name for name in ("mine.parquet", "part-00000-1.c000.snappy.parquet")]
    for path in foreign:
        path.write_bytes(b"mine")
    for checkpoint in range(3, 6):
        sink._maintained.clear()
        sink._vacuumed.clear()
        _commit(sink, "ods.orders", checkpoint)
    assert all(path.read_bytes() == b"mine" for path in foreign)


def test_vacuum_frozen_after_reading_clock_deletes_nothing_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process is frozen within its vacuum while another one commits and the retention passes."""
    frozen, other = DeltaSink(tmp_path, retention_s=1), DeltaSink(tmp_path, retention_s=1)
    _commit(frozen, "ods.orders", 2)
    frozen._maintained.clear()
    frozen._vacuumed.clear()
    opened, left = DeltaSink._open, [3, 4, 5]

    def freeze(sink: DeltaSink, table: str, *, anew: bool = False) -> DeltaTable | None:
        found = opened(sink, table, anew=anew)
        if sink is frozen:  # whatever it has seen of the table, it goes on long after
            while left:
                _commit(other, table, left.pop(0))
            time.sleep(1.1)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(delta_module.DeltaSink, "_open", freeze)
        frozen.maintain([TargetTable("ods.orders", COLUMNS, ("id",))])
    assert len(_rows(tmp_path / "ods/orders")) == 5, "every file that the log names is there"


def test_delta_table_removed_under_live_sink_is_not_created_again(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path)
    _commit(sink, "ods.orders", 2)
    sink.target_states("shop", "0badcafe", ["ods.orders"])
    (tmp_path / "ods" / "orders").rename(tmp_path / "away")
    with pytest.raises(SinkUnavailable, match="is gone"):
        _commit(sink, "ods.orders", 3)
    assert not (tmp_path / "ods" / "orders").exists()
