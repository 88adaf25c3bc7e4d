"""The root folder of Delta tables: only the first start creates it, and a live job waits while it is missing."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.demo.process import CDC
from cdc.errors import SinkOwnershipError, SinkUnavailable
from cdc.model.batch import LoadName
from cdc.model.position import BinlogPosition
from cdc.model.schema import DELETED, SEQUENCE
from cdc.paths import cache_folder
from cdc.permissions import restrict_umask
from channels.sinks.base import SinkCheckpoint, TargetColumn, TargetTable
from channels.sinks.delta.ownership import FolderOwnership
from channels.sinks.delta.sink import DeltaSink
from tests.conftest import unavailable

TABLE = TargetTable("ods.orders", (TargetColumn("id", pa.int64(), False),), ("id",))
ROWS = pa.RecordBatch.from_pydict(
    {"id": pa.array([1, 2], pa.int64()), DELETED: pa.array([False] * 2), SEQUENCE: pa.array(range(2), pa.int64())}
)
NOBODY = 65534


def _mark(checkpoint: int) -> SinkCheckpoint:
    return SinkCheckpoint(
        "shop", "0badcafe", 1, checkpoint, BinlogPosition("b.000001", 4), BinlogPosition("b.000001", 5), checkpoint
    )


MARK = _mark(0)


def _commit(sink: DeltaSink, checkpoint: int) -> None:
    sink.ensure_table(TABLE)
    load = sink.part_writer(TABLE)(_name(checkpoint), iter([ROWS]))
    assert load is not None
    sink.commit([load], _mark(checkpoint))


def _name(checkpoint: int) -> LoadName:
    return LoadName("shop", "0badcafe", 1, checkpoint, TABLE.name, 0)


def test_delta_root_moved_away_raises_and_creates_nothing(tmp_path: Path) -> None:
    root, away = tmp_path / "root", tmp_path / "away"
    sink = DeltaSink(root)
    with pytest.raises(SinkUnavailable, match=f"does not exist.*{root}"):
        sink.acquire_ownership(MARK, [TABLE.name])  # before the first start has created it
    assert sink.identity(create=True) == sink.identity(create=False)
    sink.acquire_ownership(MARK, [TABLE.name])
    _commit(sink, 2)
    writer = sink.part_writer(TABLE)
    root.rename(away)
    calls: list[Callable[[], object]] = [
        lambda: sink.acquire_ownership(MARK, [TABLE.name]),
        lambda: sink.part_writer(TABLE),
        lambda: writer(_name(3), iter([ROWS])),
        lambda: sink.ensure_table(TABLE),
        lambda: sink.abort("shop", "0badcafe", 1, 3),
        lambda: sink.commit([], _mark(3)),
        lambda: sink.target_states("shop", "0badcafe", [TABLE.name]),
    ]
    for is_mount_point in (False, True):
        if is_mount_point:
            root.mkdir()
        for call in calls:
            with pytest.raises(SinkUnavailable, match=f"does not exist.*{root}"):
                call()
        assert not (list(root.iterdir()) if is_mount_point else root.exists())
    root.rmdir()
    away.rename(root)
    _commit(sink, 3)
    sink.close()


def test_delta_ownership_is_kept_while_root_is_away(tmp_path: Path) -> None:
    root, away = tmp_path / "root", tmp_path / "away"
    root.mkdir()
    acquire_ownership = FolderOwnership(root / "_cdc_staging", lambda _: None)
    acquire_ownership.acquire(MARK)
    root.rename(away)
    with pytest.raises(SinkUnavailable, match="does not exist"):
        acquire_ownership.check(MARK)
    away.rename(root)
    (root / "_cdc_staging" / "claim-shop.json").write_text('{"incarnation": "deadbeef", "fence": 9}')
    with pytest.raises(SinkOwnershipError, match="deadbeef"):
        acquire_ownership.check(MARK)
    acquire_ownership.release()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Yield a folder that every user of the machine can list; pytest's own folders are closed to others."""
    before = os.umask(0)
    try:
        with tempfile.TemporaryDirectory() as name:
            Path(name).chmod(0o755)
            yield Path(name)
    finally:
        os.umask(before)


def _other_user_can(*command: str) -> bool:
    if os.geteuid():
        unavailable("only root can run a command as another user")
    found = subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=False)
    return found.returncode == 0


def test_delta_files_are_closed_to_other_users(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _other_user_can("ls", str(open_folder))
    monkeypatch.setenv("CDC_CACHE", str(open_folder / "cache"))
    restrict_umask()
    sink = DeltaSink(open_folder / "root")
    sink.identity(create=True)
    sink.acquire_ownership(MARK, [TABLE.name])
    _commit(sink, 2)
    os.umask(0)  # like a Python worker on another host: its part has the same permissions as a part of the driver
    assert sink.part_writer(TABLE)(_name(3), iter([ROWS])) is not None
    sink.close()
    assert not _other_user_can("touch", str(cache_folder() / "planted"))
    assert not _other_user_can("ls", str(open_folder / "root"))
    found = [path for path in open_folder.rglob("*") if path.stat().st_mode & 0o027]
    assert not found
    (open_folder / "root").chmod(0o755)
    staged = next(open_folder.glob("root/_cdc_staging/cdc-*/*.parquet"))
    for path in (staged, *open_folder.glob("root/ods/orders/*.parquet"), *open_folder.glob("root/_cdc*.json")):
        assert not _other_user_can("cat", str(path))


def test_kernel_cache_of_another_user_is_not_loaded(open_folder: Path) -> None:
    """In a complete process: the import works without the cache, and a start fails with the variable in the hint."""
    cache = open_folder / "cache"
    cache.mkdir(mode=0o777)
    planted = cache / "numba"
    assert _other_user_can("mkdir", str(planted))
    cache.chmod(0o755)
    code = (
        "from cdc.mysql.values import kernels\n"
        "assert not kernels.CACHED\n"
        "try: kernels.refuse_untrusted_caches()\n"
        "except kernels.ConfigError as error: print(error)"
    )
    environment = {**os.environ, "CDC_CACHE": str(cache)}
    environment.pop("NUMBA_CACHE_DIR", None)
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert found.returncode == 0, found.stderr
    assert "another user owns it" in found.stdout and "Set CDC_CACHE" in found.stdout
    assert not list(planted.iterdir())


@pytest.mark.parametrize("verb", ["check", "start"])
@pytest.mark.parametrize("name", ["a%20b", "back\\slash", "a#b"])
def test_commands_with_unusable_delta_path_fail(verb: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "name: odd\nsource: {type: binlog, host: 127.0.0.1, port: 1, username: cdc, password: secret}\n"
        f"sink: {{type: delta, path: '{tmp_path / name}'}}\nchannels: [{{source: shop.*, target: ods.*}}]\n"
    )
    environment = {**os.environ, "CDC_HOME": str(tmp_path / "home")}
    found = subprocess.run(
        [*CDC, verb, str(file)], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert found.returncode == 2
    text = " ".join(found.stderr.split())
    assert "which the Delta library does not support in a path" in text and "Choose a folder without" in text
    assert not (tmp_path / name).exists()
