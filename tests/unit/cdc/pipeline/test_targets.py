"""Verification of targets: a run that finds targets which are not the tables that the job wrote."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cdc.errors import CheckpointError, ErrorAction, SinkUnavailable, TargetLost, action_for
from cdc.model.batch import LoadName, PreparedLoad, TargetState
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import ColumnMap
from cdc.model.snapshot import SnapshotState, TableSnapshot
from cdc.pipeline.recovery import Recovery
from cdc.pipeline.targets import TargetFault, lost_targets_of, verify_targets
from cdc.run_context import RunContext
from cdc.state.base import ChannelCounts, Checkpoint, CheckpointState
from cdc.state.sqlite import SqliteStore
from channels.mapping import Mapping
from channels.routes import Routes
from channels.task import RunIdentity

TABLES = ("orders", "items")
DONE = TableSnapshot(SnapshotState.CONSISTENT, rows=7)


class FakeSink:
    def __init__(self):
        self.root = "root"
        self.states = {f"ods.{table}": TargetState(table, 5) for table in TABLES}
        self.repaired = []

    def identity(self, *, create):
        if create and self.root is None:
            self.root = "new root"
        return self.root

    def target_states(self, job, incarnation, targets):
        return {name: self.states[name] for name in targets if name in self.states}

    def repair(self, target):
        self.repaired.append(target)

    def keys(self, table, after, limit):
        raise NotImplementedError


def position(offset):
    return BinlogPosition("mysql-bin.000001", offset)


def a_checkpoint(number, state=CheckpointState.COMMITTED, loads=(), **fields):
    defaults = {
        "counts": {f"shop.{table}": ChannelCounts(1) for table in TABLES},
        "snapshots": {f"shop.{table}": DONE for table in TABLES},
        "targets": {f"ods.{table}": TargetState(table, 5) for table in TABLES},
        "sink": "root",
    }
    return Checkpoint(number, 1, state, position(number), position(number + 1), loads=loads, **{**defaults, **fields})


def a_load(checkpoint, table):
    return PreparedLoad(LoadName("shop", "0badcafe", 1, checkpoint, f"ods.{table}", 0), f"ods.{table}", 1, 10)


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(tmp_path / "home")
    store.acquire("shop", "shop.yaml")
    store.save(a_checkpoint(5))
    yield store
    store.close()


def parts_of(store, sink, *, snapshot=True, mapping="shop.*", **fields):
    run, routes = RunIdentity("shop", "0badcafe", 1), Routes([Mapping(mapping, mapping.replace("shop", "ods"))])
    return RunContext(run, None, routes, None, sink, store, None, object() if snapshot else None, **fields)


def verify(store, sink, **options):
    return verify_targets(parts_of(store, sink, **options), store.last_committed("shop"))


def test_verify_matching_targets_keeps_state(store):
    assert verify(store, FakeSink()) == store.last_committed("shop") == a_checkpoint(5)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "ods.orders is missing"),
        (TargetState("other", 5), "ods.orders was created again"),
        (TargetState("orders", 4), "ods.orders is older"),
        (TargetState("orders", -1), "ods.orders is older"),
        (TargetState("orders", 5, 2), "ods.orders lacks data files"),
    ],
)
def test_verify_failed_target_pauses_and_saves_nothing(store, state, words):
    sink = FakeSink()
    sink.states["ods.orders"] = state
    if state is None:
        del sink.states["ods.orders"]
    with pytest.raises(TargetLost, match=words) as raised:
        verify(store, sink)
    assert "ods.items" not in str(raised.value) and "--reload-missing" in raised.value.hint
    assert action_for(raised.value) is ErrorAction.PAUSE
    assert store.last_committed("shop") == a_checkpoint(5) and not sink.repaired


def test_verify_newer_or_unnumbered_target_is_accepted(store):
    sink = FakeSink()
    sink.states |= {"ods.orders": TargetState("orders", 6), "ods.items": TargetState("items")}
    assert verify(store, sink) == a_checkpoint(5)


def test_verify_root_without_marker_pauses_and_adds_none(store):
    sink = FakeSink()
    sink.root = None
    with pytest.raises(TargetLost, match="the root of the sink is missing"):
        verify(store, sink)
    assert sink.root is None
    assert verify(store, sink, reload_missing=True).sink == "new root"
    assert store.last_committed("shop").sink == "new root"


def test_verify_missing_target_of_running_job_waits(store):
    sink = FakeSink()
    del sink.states["ods.orders"]
    with pytest.raises(SinkUnavailable, match=r"ods\.orders is missing") as raised:
        verify(store, sink, is_verified=True)
    assert action_for(raised.value) is ErrorAction.RETRY
    sink.states["ods.orders"] = TargetState("other", 5)
    with pytest.raises(TargetLost):
        verify(store, sink, is_verified=True)


def test_verify_target_of_removed_channel_is_ignored(store):
    sink = FakeSink()
    del sink.states["ods.orders"]
    assert verify(store, sink, mapping="shop.items") == a_checkpoint(5)


def test_reload_missing_without_source_tables_is_refused(store):
    sink = FakeSink()
    del sink.states["ods.orders"]
    with pytest.raises(TargetLost, match=r"ods\.orders is missing") as raised:
        verify(store, sink, snapshot=False, reload_missing=True)
    assert "no tables to load again" in raised.value.hint
    assert store.last_committed("shop") == a_checkpoint(5)


@pytest.mark.parametrize(("state", "sweeps"), [(None, False), (TargetState("other", 5), True)])
def test_reload_missing_removes_only_the_lost_target(store, state, sweeps):
    sink = FakeSink()
    sink.states["ods.orders"] = state
    if state is None:
        del sink.states["ods.orders"]
    committed = verify(store, sink, reload_missing=True)
    assert committed == store.last_committed("shop")
    assert committed.targets.keys() == {"ods.items"}
    assert committed.snapshots == {"shop.orders": TableSnapshot(deletes_orphans=sweeps), "shop.items": DONE}


def test_reload_incomplete_target_is_saved_before_repair(store, monkeypatch):
    sink = FakeSink()
    sink.states["ods.orders"] = TargetState("orders", 5, 1)
    with monkeypatch.context() as crash:
        crash.setattr(sink, "repair", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            verify(store, sink, reload_missing=True)
    with pytest.raises(TargetLost, match="lacks data files"):
        verify(store, sink)  # after the crash the fault is detected again
    verify(store, sink, reload_missing=True)
    assert sink.repaired == ["ods.orders"]
    assert store.last_committed("shop").snapshots["shop.orders"].is_due


def test_reload_keeps_prepared_loads_of_other_targets(store):
    loads = (a_load(6, "orders"), a_load(6, "items"))
    store.save(a_checkpoint(6, CheckpointState.PREPARED, loads))
    sink = FakeSink()
    del sink.states["ods.orders"]
    with pytest.raises(TargetLost):
        verify(store, sink)
    verify(store, sink, reload_missing=True)
    (prepared,) = store.unfinished()
    assert prepared.loads == loads[1:] and prepared.targets.keys() == {"ods.items"}
    assert prepared.snapshots["shop.orders"].is_due, "it becomes the newest COMMITTED checkpoint"
    assert verify(store, sink).snapshots["shop.orders"].is_due


def test_verify_target_lost_before_first_commit_is_found(store):
    """PREPARED has the identity of the target, and no COMMITTED checkpoint has it."""
    new = {**a_checkpoint(5).targets, "ods.orders": TargetState("orders")}
    store.save(a_checkpoint(5, targets={"ods.items": TargetState("items", 5)}))
    store.save(a_checkpoint(6, CheckpointState.PREPARED, (a_load(6, "orders"),), targets=new))
    sink = FakeSink()
    sink.states["ods.orders"] = TargetState("orders", -1)
    verify(store, sink)
    sink.states["ods.orders"] = TargetState("another", -1)
    with pytest.raises(TargetLost, match=r"ods\.orders was created again"):
        verify(store, sink)


def test_reload_crash_between_its_saves_pauses_again(store, monkeypatch):
    store.save(a_checkpoint(6, CheckpointState.PREPARED, (a_load(6, "orders"), a_load(6, "items"))))
    sink, save = FakeSink(), store.save
    del sink.states["ods.orders"]

    def first_save_alone(checkpoint):
        if checkpoint.state is CheckpointState.PREPARED:
            raise CheckpointError("The disk of the state file is full.", hint="Free some space.")
        save(checkpoint)

    with monkeypatch.context() as crash:
        crash.setattr(store, "save", first_save_alone)
        with pytest.raises(CheckpointError):
            verify(store, sink, reload_missing=True)
    with pytest.raises(TargetLost, match=r"ods\.orders is missing"):
        verify(store, sink)
    assert verify(store, sink, reload_missing=True).snapshots["shop.orders"].is_due
    (prepared,) = store.unfinished()
    assert prepared.snapshots["shop.orders"].is_due and [load.table for load in prepared.loads] == ["ods.items"]


def test_verify_state_of_older_version_saves_sink_identity(store):
    sink = FakeSink()
    store.save(a_checkpoint(5, sink=None, targets={}))
    assert verify(store, sink).sink == "root"
    assert store.last_committed("shop").sink == "root"


def test_lost_target_text_names_fault_and_checkpoints():
    sink = FakeSink()
    sink.root, sink.states["ods.items"] = "another", TargetState("items", 3)
    root, items = lost_targets_of(sink, "shop", "0badcafe", a_checkpoint(5), {"ods.items": ()})
    assert (root.fault, items.fault) == (TargetFault.REPLACED, TargetFault.OLDER)
    assert "another" in str(root) and "checkpoint 3" in str(items) and "checkpoint 5" in str(items)


def test_reload_missing_ends_the_difference_of_a_dropped_table(store):
    sink, dropped = FakeSink(), TableSchema("shop", "orders", (), (), is_dropped=True)
    kept = {f"shop.{table}": ColumnMap(kept_rows={"drop.table": position(100)}) for table in TABLES}
    del sink.states["ods.orders"]
    store.save(a_checkpoint(5, schemas=(dropped, replace(dropped, table="items")), column_maps=kept))
    committed = verify(store, sink, reload_missing=True)
    assert [schema.table for schema in committed.schemas] == ["items"], "rows of orders are read again"
    assert [name for name, one in committed.column_maps.items() if one.kept_rows] == ["shop.items"]
    assert committed.snapshots["shop.orders"].is_due


def test_reload_of_missing_target_ends_its_kept_columns(store):
    """The new table has no column that the source dropped, so loads must not name one, nor a later change rename it."""
    kept = {f"shop.{table}": ColumnMap(kept={"old": Column("old", Kind.INT, "int")}) for table in TABLES}
    store.save(a_checkpoint(5, column_maps=kept))
    sink = FakeSink()
    sink.states.pop("ods.orders")
    sink.states["ods.items"] = TargetState("other", 5)
    sink.acquire_ownership = lambda mark, targets: None
    context = replace(
        parts_of(store, sink, reload_missing=True),
        receiver=SimpleNamespace(note_loaded=lambda tables: None, open=lambda *arguments: None),
    )
    committed = Recovery(context, None, None, 0, threading.Event()).run(lambda: position(0))
    assert [name for name, one in committed.column_maps.items() if one.kept] == ["shop.items"]
    assert context.routes.column_maps == committed.column_maps
