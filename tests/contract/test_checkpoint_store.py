"""The contract of every CheckpointStore, held against the SQLite one and the one the other tests use in memory."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.batch import LoadName, PreparedLoad, TargetState
from cdc.checkpoint import ChannelCounts, Checkpoint, CheckpointState, JobRecord, JobState
from cdc.checkpoint_sqlite import KEPT_COMMITTED, SqliteStore
from cdc.errors import CheckpointError, LeaseLost
from cdc.position import BinlogPosition
from cdc.schema import Column, Kind, TableSchema

ROOT = Path(__file__).parents[2]

SCHEMA = TableSchema(
    "shop",
    "orders",
    (
        Column("id", Kind.BIGINT, "bigint", nullable=False),
        Column("state", Kind.ENUM, "enum('a','ü')", charset="utf8mb4", labels=("a", "ü")),
    ),
    ("id",),
    since=BinlogPosition("mysql-bin.000001", 4),
)


def place(offset):
    return BinlogPosition("mysql-bin.000001", offset, "3e11fa47-71ca-11e1-9e33-c80aa9429562", "")


def a_checkpoint(number, state=CheckpointState.COMMITTED, **fields):
    load = PreparedLoad(LoadName("shop", "0badcafe", 1, number, "ods.orders", 0), "ods.orders", 2, 20, {"files": ["a"]})
    defaults = {
        "id": number,
        "fence": 1,
        "state": state,
        "first": place(number * 100),
        "last": None if state is CheckpointState.OPEN else place(number * 100 + 100),
        "schemas": (SCHEMA,),
        "loads": () if state is not CheckpointState.PREPARED else (load,),
        "rows": 2,
        "bytes": 20,
        "sequence": (1 << 40) + number,
        "closed_by": "interval",
        "seconds": {"gather": 1.5},
        "counts": {"shop.orders": ChannelCounts(2, 1, 20, "2026-01-01T00:00:00Z")},
        "targets": {"ods.orders": TargetState("e6f8", 3), "ods.items": TargetState("77aa")},
        "sink": "3b1c",
    }
    return Checkpoint(**{**defaults, **fields})


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(tmp_path / "home")
    yield store
    store.close()


def test_a_new_job_gets_an_incarnation_that_stays_and_a_fence_that_grows(store):
    first = store.acquire("shop", "/jobs/shop.yaml")
    assert store.next_id() == 0
    store.release()
    second = store.acquire("shop", "/jobs/moved.yaml")
    assert (first.fence, second.fence) == (1, 2)
    assert first.incarnation == second.incarnation
    assert len(bytes.fromhex(first.incarnation)) == 4
    assert second.job_file == "/jobs/moved.yaml"


def test_the_fence_survives_a_process_that_died_right_after_acquire(tmp_path):
    fences = []
    for _ in range(2):
        store = SqliteStore(tmp_path)
        fences.append(store.acquire("shop", "/jobs/shop.yaml").fence)
        store.close()
    assert fences == [1, 2]


@pytest.mark.parametrize("state", list(CheckpointState))
def test_a_checkpoint_comes_back_as_it_was_saved(store, state):
    store.acquire("shop", "/jobs/shop.yaml")
    store.save(a_checkpoint(3, state))
    found = store.last_committed("shop") if state is CheckpointState.COMMITTED else store.unfinished()[0]
    assert found == a_checkpoint(3, state)


def test_saving_again_replaces_and_unfinished_ones_come_oldest_first(store):
    store.acquire("shop", "/jobs/shop.yaml")
    store.save(a_checkpoint(2, CheckpointState.OPEN))
    store.save(a_checkpoint(1, CheckpointState.OPEN))
    store.save(a_checkpoint(1, CheckpointState.PREPARED))
    assert [(one.id, one.state.value) for one in store.unfinished()] == [(1, "PREPARED"), (2, "OPEN")]
    store.save(a_checkpoint(1))
    assert [one.id for one in store.unfinished()] == [2]


def test_an_id_that_was_discarded_is_not_given_out_again(store):
    store.acquire("shop", "/jobs/shop.yaml")
    store.save(a_checkpoint(0))
    store.save(a_checkpoint(1, CheckpointState.OPEN))
    store.discard(1)
    assert store.unfinished() == ()
    assert store.next_id() == 2


def test_old_committed_checkpoints_go_and_unfinished_ones_stay(store):
    store.acquire("shop", "/jobs/shop.yaml")
    store.save(a_checkpoint(0, CheckpointState.PREPARED))
    for number in range(1, 50):
        store.save(a_checkpoint(number, schemas=(replace(SCHEMA, comment=f"version {number}"),)))
    store.close()
    with sqlite3.connect(store.path) as raw:
        kept = [number for (number,) in raw.execute("SELECT id FROM checkpoints ORDER BY id")]
        (schema_sets,) = raw.execute("SELECT count(*) FROM schemas").fetchone()
    raw.close()
    assert kept == [0, *range(50 - KEPT_COMMITTED, 50)]
    assert schema_sets == KEPT_COMMITTED + 1


def test_schemas_come_back_after_a_save_that_failed_in_the_middle(store, monkeypatch):
    store.acquire("shop", "/jobs/shop.yaml")
    with monkeypatch.context() as patch:
        patch.setattr(store, "_prune", lambda job: store._run("INSERT INTO nowhere VALUES (1)"))
        with pytest.raises(CheckpointError):
            store.save(a_checkpoint(1))
    store.save(a_checkpoint(1))
    assert store.last_committed("shop") == a_checkpoint(1)


def test_jobs_are_listed_and_their_records_kept_without_a_lock(store, tmp_path):
    record = store.acquire("shop", "/jobs/shop.yaml")
    saved = replace(record, state=JobState.PAUSED, reason="why", mend="do", resume="manual", identity={"source": "a"})
    store.save_job(saved)
    reader = SqliteStore(tmp_path / "home")
    assert reader.jobs() == (saved,)
    assert reader.job("shop") == saved
    assert reader.job("other") is None
    reader.close()


def test_a_record_of_another_version_is_read(store):
    record = store.acquire("shop", "/jobs/shop.yaml")
    told = record.to_json()
    assert JobRecord.from_json({**told, "of_a_later_version": 1}) == record
    assert JobRecord.from_json({key: value for key, value in told.items() if key != "passed"}) == record


def test_a_job_that_is_held_is_refused_with_the_pid_of_its_holder(store, tmp_path):
    store.acquire("shop", "/jobs/shop.yaml")
    second = SqliteStore(tmp_path / "home")
    with pytest.raises(LeaseLost, match=str(os.getpid())):
        second.acquire("shop", "/jobs/shop.yaml")
    with pytest.raises(LeaseLost):
        second.forget("shop")
    second.acquire("another", "/jobs/another.yaml")
    second.close()
    store.save(a_checkpoint(0))  # the attempt cost the holder nothing


def test_the_lock_goes_with_a_process_that_is_killed(tmp_path):
    code = (
        "import sys, pathlib, time; from cdc.checkpoint_sqlite import SqliteStore;"
        f"store = SqliteStore(pathlib.Path({str(tmp_path)!r})); store.acquire('shop', 'f');"
        "print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        store = SqliteStore(tmp_path)
        try:
            with pytest.raises(LeaseLost, match=str(holder.pid)):
                store.acquire("shop", "f")
        finally:
            holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert store.acquire("shop", "f").fence == 2
        store.close()


def test_the_older_run_loses_when_a_newer_fence_appears(store, tmp_path):
    record = store.acquire("shop", "/jobs/shop.yaml")
    store.save(a_checkpoint(0))
    (tmp_path / "home" / "locks" / "shop.lock").unlink()  # a lock file deleted by hand lets a second process in
    newer = SqliteStore(tmp_path / "home")
    newer.acquire("shop", "/jobs/shop.yaml")
    for write in (
        store.check_fence,
        lambda: store.save(a_checkpoint(1)),
        lambda: store.save_job(record),
        lambda: store.discard(0),
    ):
        with pytest.raises(LeaseLost):
            write()
    newer.save(a_checkpoint(1))
    newer.close()


def test_a_greater_fence_in_the_record_becomes_the_fence_of_the_run(store):
    record = store.acquire("shop", "/jobs/shop.yaml")
    store.save_job(replace(record, fence=40, incarnation="0badcafe"))
    store.check_fence()
    store.save(a_checkpoint(0))
    with pytest.raises(LeaseLost):
        store.save_job(replace(record, fence=39))
    store.release()
    assert store.acquire("shop", "f").fence == 41


def test_a_state_file_replaced_under_the_run_is_noticed(store):
    store.acquire("shop", "/jobs/shop.yaml")
    moved = store.path.with_suffix(".old")
    store.path.rename(moved)
    with pytest.raises(LeaseLost, match="--adopt"):
        store.save(a_checkpoint(0))
    moved.rename(store.path)
    store.save(a_checkpoint(0))


def test_state_file_rolled_back_in_place_under_run_raises(store, tmp_path):
    store.acquire("shop", "shop.yaml")
    store.save(a_checkpoint(1))
    with sqlite3.connect(store.path) as live, sqlite3.connect(tmp_path / "copy.db") as copy:
        live.backup(copy)
    store.save(a_checkpoint(2))
    store.check_fence()
    with sqlite3.connect(tmp_path / "copy.db") as copy, sqlite3.connect(store.path) as live:
        copy.backup(live)  # keeps the inode
    with pytest.raises(LeaseLost, match="replaced by an older copy"):
        store.check_fence()
    with pytest.raises(LeaseLost, match="replaced by an older copy"):
        store.save(a_checkpoint(2))


def test_a_forgotten_job_starts_from_nothing(store):
    first = store.acquire("shop", "f")
    store.save(a_checkpoint(0))
    store.release()
    store.forget("shop")
    assert store.jobs() == ()
    assert store.last_committed("shop") is None
    again = store.acquire("shop", "f")
    assert again.fence == 1
    assert again.incarnation != first.incarnation


def test_nothing_is_written_without_holding_the_job(store):
    with pytest.raises(LeaseLost):
        store.save(a_checkpoint(0))
    with pytest.raises(LeaseLost):
        store.unfinished()


def test_state_is_readable_by_its_owner_only(store):
    store.acquire("shop", "f")
    assert mode_of(store.path.parent) == mode_of(store.path.parent / "locks") == 0o700


def test_a_folder_of_others_stays_open_to_them_and_the_state_in_it_closed(tmp_path):
    home = tmp_path / "shared"
    home.mkdir()
    home.chmod(0o1777)
    (home / "state.db-wal").touch(0o666)  # left by a run that was killed
    before = os.umask(0)
    try:
        store = SqliteStore(home)
        store.acquire("shop", "f")
    finally:
        os.umask(before)
    assert mode_of(home) == 0o1777
    assert mode_of(home / "locks") == 0o700
    assert {mode_of(path) for path in home.glob("state.db*")} == {0o600}
    assert len(list(home.glob("state.db*"))) == 3
    store.close()


def test_saves_are_durable_by_the_files_settings(store):
    assert store._one("PRAGMA journal_mode") == ("wal",)
    assert store._one("PRAGMA synchronous") == (2,)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.write_bytes(b"not a database" * 1000), "damaged"),
        (lambda path: path.mkdir(), "cannot be opened"),
    ],
)
def test_a_damaged_file_is_refused_with_path_and_mend(tmp_path, spoil, says):
    spoil(tmp_path / "state.db")
    with pytest.raises(CheckpointError, match=says) as refused:
        SqliteStore(tmp_path)
    assert str(tmp_path / "state.db") in str(refused.value)
    assert refused.value.mend


def test_a_file_of_a_newer_format_is_refused(store, tmp_path):
    store._connection.execute("PRAGMA user_version = 99")
    with pytest.raises(CheckpointError, match="format 99"):
        SqliteStore(tmp_path / "home")


def test_a_full_disk_is_told_and_goes_on_once_there_is_room(store):
    store.acquire("shop", "f")
    store.save(a_checkpoint(0))
    (pages,) = store._one("PRAGMA page_count")
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(CheckpointError, match="disk of the state file is full") as full:
        for number in range(1, 100):
            store.save(a_checkpoint(number, CheckpointState.OPEN, closed_by="x" * 100_000))
    assert str(store.path) in str(full.value)
    store._connection.execute("PRAGMA max_page_count = 1000000")
    store.save(a_checkpoint(200))
    assert store.last_committed("shop").id == 200


def test_a_file_that_stays_locked_is_told(store, monkeypatch):
    store.acquire("shop", "f")
    other = sqlite3.connect(store.path, isolation_level=None)
    store._connection.execute("PRAGMA busy_timeout = 50")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(CheckpointError, match="locked"):
        store.save(a_checkpoint(0))
    other.execute("ROLLBACK")
    other.close()
    store.save(a_checkpoint(0))


def test_a_folder_that_cannot_be_made_is_told_with_its_path(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="CDC_HOME") as refused:
        SqliteStore(tmp_path / "file" / "home")
    assert "file" in str(refused.value)
