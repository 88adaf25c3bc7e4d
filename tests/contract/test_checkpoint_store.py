"""The contract of every CheckpointStore, on SQLite, MySQL, MariaDB and PostgreSQL."""

import json
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cdc.errors import CheckpointError, LeaseLost
from cdc.model.batch import LoadName, PreparedLoad, TargetState
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import SchemaChange, TableChange
from cdc.state.base import (
    AcknowledgedDdl,
    ChannelCounts,
    Checkpoint,
    CheckpointState,
    CloseReason,
    JobRecord,
    JobState,
    ResumeKind,
)
from cdc.state.codec import from_json, to_json
from cdc.state.identity import ChannelIdentity, JobIdentity, SinkIdentity, SourceIdentity
from cdc.state.opening import open_store
from cdc.state.sql import KEPT_COMMITTED, SqlStore
from cdc.state.sqlite import SqliteStore
from tests.support.store_servers import create_database

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


IDENTITY = JobIdentity(
    SourceIdentity("canal", "h:1,h:2", "shop"),
    SinkIdentity("delta", "/warehouse", "./warehouse"),
    {"shop.orders": ChannelIdentity("ods.orders", ("id",)), "crm.*": ChannelIdentity("crm.*")},
)


def position_at(offset):
    return BinlogPosition("mysql-bin.000001", offset, "3e11fa47-71ca-11e1-9e33-c80aa9429562", "")


def make_checkpoint(number, state=CheckpointState.COMMITTED, **fields):
    load = PreparedLoad(LoadName("shop", "0badcafe", 1, number, "ods.orders", 0), "ods.orders", 2, 20, {"files": ["a"]})
    defaults = {
        "id": number,
        "fence": 1,
        "state": state,
        "first": position_at(number * 100),
        "last": None if state is CheckpointState.OPEN else position_at(number * 100 + 100),
        "schemas": (SCHEMA,),
        "loads": () if state is not CheckpointState.PREPARED else (load,),
        "rows": 2,
        "bytes": 20,
        "sequence": (1 << 40) + number,
        "closed_by": CloseReason.INTERVAL,
        "seconds": {"buffer": 1.5},
        "counts": {"shop.orders": ChannelCounts(2, 1, 20, "2026-01-01T00:00:00Z")},
        "targets": {"ods.orders": TargetState("e6f8", 3), "ods.items": TargetState("77aa")},
        "sink": "3b1c",
    }
    return Checkpoint(**{**defaults, **fields})


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


KINDS = ("sqlite", "mysql", "mariadb", "postgres")


@dataclass
class Opener:
    """Opens one store, as this process and others with the same folder do."""

    folder: Path
    environment: dict[str, str]
    opened: list[SqlStore] = field(default_factory=list)

    def open(self, home=None):
        folder = home or self.folder
        self.opened.append(open_store(environment=self.environment, folder=folder))
        return self.opened[-1]


@pytest.fixture(params=KINDS)
def opener(request, tmp_path):
    environment = {}
    if request.param != "sqlite":
        environment = create_database(request.getfixturevalue(request.param), "contract_store")
    opener = Opener(tmp_path / "home", environment)
    yield opener
    for store in opener.opened:
        store.close()


@pytest.fixture
def store(opener):
    return opener.open()


@pytest.fixture
def file_store(tmp_path):
    store = SqliteStore(tmp_path / "home")
    yield store
    store.close()


def test_store_acquire_keeps_the_incarnation_and_raises_the_fence(store):
    first = store.acquire("shop", "/jobs/shop.yaml")
    assert store.next_id() == 0
    store.release()
    second = store.acquire("shop", "/jobs/moved.yaml")
    assert (first.fence, second.fence) == (1, 2)
    assert first.incarnation == second.incarnation
    assert len(bytes.fromhex(first.incarnation)) == 4
    assert second.job_file == "/jobs/moved.yaml"


def test_store_counts_its_writes_with_those_that_fail(store, opener):
    store.acquire("shop", "/jobs/shop.yaml")
    store.save(make_checkpoint(0))
    assert (store.write_times.writes, store.write_times.seconds > 0) == (1, True)
    assert list(store.write_times.within.values()) == sorted(store.write_times.within.values())
    sql = "UPDATE cdc_jobs SET fence = fence + 1 WHERE name = 'shop'"
    opener.open().database.transact(lambda transaction: transaction.run(sql))
    with pytest.raises(LeaseLost):
        store.save(make_checkpoint(1))
    assert store.write_times.writes == 2


def test_store_fence_survives_a_death_right_after_acquire(opener):
    fences = []
    for _ in range(2):
        store = opener.open()
        fences.append(store.acquire("shop", "/jobs/shop.yaml").fence)
        store.close()
    assert fences == [1, 2]


@pytest.mark.parametrize("state", list(CheckpointState))
def test_store_checkpoint_is_read_as_it_was_saved(store, state):
    store.acquire("shop", "/jobs/shop.yaml")
    store.save(make_checkpoint(3, state))
    found = store.last_committed("shop") if state is CheckpointState.COMMITTED else store.unfinished()[0]
    assert found == make_checkpoint(3, state)


def test_store_save_replaces_and_unfinished_are_oldest_first(store):
    store.acquire("shop", "/jobs/shop.yaml")
    store.save(make_checkpoint(2, CheckpointState.OPEN))
    store.save(make_checkpoint(1, CheckpointState.OPEN))
    store.save(make_checkpoint(1, CheckpointState.PREPARED))
    assert [(one.id, one.state.value) for one in store.unfinished()] == [(1, "PREPARED"), (2, "OPEN")]
    store.save(make_checkpoint(1))
    assert [one.id for one in store.unfinished()] == [2]


def test_store_discarded_id_is_not_used_again(store):
    store.acquire("shop", "/jobs/shop.yaml")
    store.save(make_checkpoint(0))
    store.save(make_checkpoint(1, CheckpointState.OPEN))
    store.discard(1)
    assert store.unfinished() == ()
    assert store.next_id() == 2


def test_store_prunes_old_committed_checkpoints_only(opener, store, monkeypatch):
    monkeypatch.setattr("cdc.state.sql.KEPT_COMMITTED", 10)
    store.acquire("shop", "/jobs/shop.yaml")
    store.save(make_checkpoint(0, CheckpointState.PREPARED))
    for number in range(1, 30):
        store.save(make_checkpoint(number, schemas=(replace(SCHEMA, comment=f"version {number}"),)))
    store.close()
    raw = opener.open().database
    kept = [number for (number,) in raw.all("SELECT id FROM cdc_checkpoints ORDER BY id")]
    ((schema_sets,),) = raw.all("SELECT count(*) FROM cdc_schemas")
    assert kept == [0, *range(20, 30)]
    assert schema_sets == 11


def test_store_lists_committed_checkpoints_newest_first(store):
    assert KEPT_COMMITTED == 100
    store.acquire("shop", "/jobs/shop.yaml")
    for number in range(4):
        store.save(make_checkpoint(number))
    assert [one.id for one in store.committed("shop", limit=2)] == [3, 2]
    assert store.committed("shop", before=2) == (make_checkpoint(1), make_checkpoint(0))


def test_store_schemas_survive_a_failed_save(store, monkeypatch):
    store.acquire("shop", "/jobs/shop.yaml")
    with monkeypatch.context() as patch:
        patch.setattr(store, "_prune", lambda transaction, job: transaction.run("INSERT INTO nowhere VALUES (1)"))
        with pytest.raises(CheckpointError):
            store.save(make_checkpoint(1))
    store.save(make_checkpoint(1))
    assert store.last_committed("shop") == make_checkpoint(1)


def test_store_lists_jobs_without_a_lock(store, opener):
    record = store.acquire("shop", "/jobs/shop.yaml")
    saved = replace(record, state=JobState.PAUSED, reason="why", hint="do", resume=ResumeKind.MANUAL)
    saved = replace(
        saved,
        identity=IDENTITY,
        stopped_at_ddl=position_at(7),
        pending_change=SchemaChange("ALTER", position_at(7), position_at(8), (TableChange(SCHEMA, SCHEMA),)),
        acknowledged_ddl=(AcknowledgedDdl(position_at(4), past_ddl=True),),
    )
    store.save_job(saved)
    reader = opener.open()
    assert reader.jobs() == (saved,)
    assert reader.job("shop") == saved
    assert reader.job("other") is None


def test_store_record_of_another_version_is_readable(store):
    record = store.acquire("shop", "/jobs/shop.yaml")
    data = json.loads(to_json(record))
    assert from_json(JobRecord, json.dumps({**data, "of_a_later_version": 1})) == record
    with pytest.raises(CheckpointError, match=r"JobRecord.*fence"):
        from_json(JobRecord, json.dumps({key: value for key, value in data.items() if key != "fence"}))


def test_codec_lone_surrogates_are_kept(store):
    record = replace(store.acquire("shop", "/jobs/\udcff.yaml"), reason="value \ud800 of a column")
    store.save_job(record)
    assert store.job("shop") == record


def test_store_acquired_job_raises_lease_lost_with_its_pid(store, opener):
    store.acquire("shop", "/jobs/shop.yaml")
    second = opener.open()
    with pytest.raises(LeaseLost, match=str(os.getpid())):
        second.acquire("shop", "/jobs/shop.yaml")
    with pytest.raises(LeaseLost):
        second.forget("shop")
    second.acquire("another", "/jobs/another.yaml")
    second.close()
    store.save(make_checkpoint(0))  # the attempt does not affect the owner


def test_store_lock_is_released_when_its_process_is_killed(opener):
    code = (
        "import pathlib, time; from cdc.state.opening import open_store;"
        f"store = open_store(folder=pathlib.Path({str(opener.folder)!r})); store.acquire('shop', 'f');"
        "print('held', flush=True); time.sleep(60)"
    )
    command, environment = [sys.executable, "-c", code], {**os.environ, **opener.environment}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        store = opener.open()
        try:
            with pytest.raises(LeaseLost, match=str(holder.pid)):
                store.acquire("shop", "f")
        finally:
            holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert store.acquire("shop", "f").fence == 2  # at once: its lock file is free, although its lease has not ended


def test_store_older_run_raises_after_a_newer_fence(store, opener):
    record = store.acquire("shop", "/jobs/shop.yaml")
    store.save(make_checkpoint(0))
    (opener.folder / "locks" / "shop.lock").unlink()  # a lock file deleted by hand allows a second process
    newer = opener.open()
    newer.acquire("shop", "/jobs/shop.yaml")
    for write in (
        store.check_fence,
        lambda: store.save(make_checkpoint(1)),
        lambda: store.save_job(record),
        lambda: store.discard(0),
        store.renew,
    ):
        with pytest.raises(LeaseLost):
            write()
    newer.save(make_checkpoint(1))


def test_store_greater_fence_of_the_record_is_used_by_the_run(store):
    record = store.acquire("shop", "/jobs/shop.yaml")
    store.save_job(replace(record, fence=40, incarnation="0badcafe"))
    store.check_fence()
    store.save(make_checkpoint(0))
    with pytest.raises(LeaseLost):
        store.save_job(replace(record, fence=39))
    store.release()
    assert store.acquire("shop", "f").fence == 41


def test_store_adoption_saves_record_and_checkpoint_or_neither(store, monkeypatch):
    record = store.acquire("shop", "/jobs/shop.yaml")
    adopted = replace(record, fence=40, incarnation="0badcafe", adopted="feedbeef:7")
    with monkeypatch.context() as patch:
        patch.setattr(store, "_prune", lambda *_: 1 / 0)  # the last step of the transaction
        with pytest.raises(ZeroDivisionError):
            store.save_adoption(adopted, make_checkpoint(8, fence=40))
    assert (store.job("shop"), store.last_committed("shop"), store.next_id()) == (record, None, 0)
    store.save_adoption(adopted, make_checkpoint(8, fence=40))
    assert (store.job("shop"), store.last_committed("shop")) == (adopted, make_checkpoint(8, fence=40))
    store.check_fence()
    store.save(make_checkpoint(9, fence=40))


def test_store_state_file_replaced_during_a_run_raises(file_store):
    store = file_store
    store.acquire("shop", "/jobs/shop.yaml")
    moved = store.path.with_suffix(".old")
    store.path.rename(moved)
    with pytest.raises(LeaseLost, match="--adopt"):
        store.save(make_checkpoint(0))
    moved.rename(store.path)
    store.save(make_checkpoint(0))


def test_store_state_file_rolled_back_in_place_raises(file_store, tmp_path):
    store = file_store
    store.acquire("shop", "shop.yaml")
    store.save(make_checkpoint(1))
    with sqlite3.connect(store.path) as live, sqlite3.connect(tmp_path / "copy.db") as copy:
        live.backup(copy)
    store.save(make_checkpoint(2))
    store.check_fence()
    with sqlite3.connect(tmp_path / "copy.db") as copy, sqlite3.connect(store.path) as live:
        copy.backup(live)  # keeps the inode
    with pytest.raises(LeaseLost, match="replaced by an older copy"):
        store.check_fence()
    with pytest.raises(LeaseLost, match="replaced by an older copy"):
        store.save(make_checkpoint(2))


def test_store_forgotten_job_starts_from_nothing(store):
    first = store.acquire("shop", "f")
    store.save(make_checkpoint(0))
    store.release()
    store.forget("shop")
    assert store.jobs() == ()
    assert store.last_committed("shop") is None
    again = store.acquire("shop", "f")
    assert again.fence == 1
    assert again.incarnation != first.incarnation


def test_store_without_acquire_raises_lease_lost(store):
    with pytest.raises(LeaseLost):
        store.save(make_checkpoint(0))
    with pytest.raises(LeaseLost):
        store.unfinished()


def test_store_folders_are_owner_only(file_store):
    store = file_store
    store.acquire("shop", "f")
    assert mode_of(store.path.parent) == mode_of(store.path.parent / "locks") == 0o700


def test_store_in_a_shared_folder_keeps_its_files_owner_only(tmp_path):
    home = tmp_path / "shared"
    home.mkdir()
    home.chmod(0o1777)
    (home / "state.db-wal").touch(0o666)  # from a run that was killed
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


def test_store_saves_are_durable_by_sqlite_settings(file_store):
    assert file_store.database.all("PRAGMA journal_mode") == [("wal",)]
    assert file_store.database.all("PRAGMA synchronous") == [(2,)]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.write_bytes(b"not a database" * 1000), "damaged"),
        (lambda path: path.mkdir(), "cannot be opened"),
    ],
)
def test_store_damaged_file_raises_with_path_and_hint(tmp_path, spoil, says):
    spoil(tmp_path / "state.db")
    with pytest.raises(CheckpointError, match=says) as refused:
        SqliteStore(tmp_path)
    assert str(tmp_path / "state.db") in str(refused.value)
    assert refused.value.hint


def test_store_file_of_a_newer_format_raises(file_store, tmp_path):
    file_store.file.connection.execute("PRAGMA user_version = 99")
    with pytest.raises(CheckpointError, match="format 99"):
        SqliteStore(tmp_path / "home")


def test_store_full_disk_raises_and_continues_with_free_space(file_store):
    store = file_store
    store.acquire("shop", "f")
    store.save(make_checkpoint(0))
    ((pages,),) = store.database.all("PRAGMA page_count")
    store.file.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(CheckpointError, match="disk of the state file is full") as full:
        for number in range(1, 100):
            store.save(make_checkpoint(number, CheckpointState.OPEN, sink="x" * 100_000))
    assert str(store.path) in str(full.value)
    store.file.connection.execute("PRAGMA max_page_count = 1000000")
    store.save(make_checkpoint(200))
    assert store.last_committed("shop").id == 200


def test_store_locked_file_raises(file_store):
    store = file_store
    store.acquire("shop", "f")
    other = sqlite3.connect(store.path, isolation_level=None)
    store.file.connection.execute("PRAGMA busy_timeout = 50")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(CheckpointError, match="locked"):
        store.save(make_checkpoint(0))
    other.execute("ROLLBACK")
    other.close()
    store.save(make_checkpoint(0))


def test_store_folder_that_cannot_be_created_raises_with_path(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="CDC_HOME") as refused:
        SqliteStore(tmp_path / "file" / "home")
    assert "file" in str(refused.value)
