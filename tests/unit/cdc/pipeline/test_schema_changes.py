"""A schema change as a checkpoint: a crash anywhere, and every step is taken exactly once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.api.models import ColumnDifference
from cdc.errors import CdcError, DdlStop, SinkUnavailable, TargetLost, TargetMismatch
from cdc.model.batch import TargetState
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, CopyStatement, Kind, ShadowCopy, TableSchema
from cdc.model.schema_change import (
    ChangeAction,
    ChangeKind,
    ChangeMode,
    ChangePlan,
    ChangePolicy,
    ColumnChange,
    Fill,
    FillKind,
    PlannedTable,
    SchemaChange,
    TableChange,
)
from cdc.model.snapshot import Chunk, SnapshotState, TableSnapshot
from cdc.pipeline.commit_cycle import Cancelled
from cdc.pipeline.recovery import Recovery
from cdc.pipeline.schema_changes import prepare_change, roll_forward, snapshots_after
from cdc.state.base import Checkpoint, CheckpointState, CloseReason
from cdc.state.sqlite import SqliteStore
from channels.mapping import Mapping
from channels.routes import Routes
from channels.sinks.base import AlterAction, AlterStep, SinkCheckpoint, TargetTable
from channels.task import RunIdentity

ID = Column("id", Kind.INT, "int", nullable=False)
A, B, C = (Column(name, Kind.INT, "int") for name in "abc")
HERE, THERE = BinlogPosition("bin.000001", 4), BinlogPosition("bin.000001", 90)


class Crash(BaseException):
    """The process is dead."""


class Faults:
    """Crashes at the given action."""

    def __init__(self) -> None:
        self.at = -1
        self.count = 0

    def point(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise Crash


class Columns:
    """A sink that has only the columns of its tables, with what each one contains, and is strict about steps."""

    def __init__(self, faults: Faults, tables: dict[str, list[str]], *, in_one_commit: bool) -> None:
        self.faults = faults
        # name -> content: a column that is renamed keeps its content, so a repeated exchange would show
        self.tables = {table: {name: name for name in names} for table, names in tables.items()}
        self.alters_in_one_commit = in_one_commit
        self.rows = {table: [1, 2, 3] for table in tables}
        self.commits: set[tuple[str, int]] = set()
        self.taken: list[str] = []

    def target_states(self, job: str, incarnation: str, targets: list[str]) -> dict[str, TargetState]:
        return {name: TargetState("1", self.checkpoint_of(name)) for name in targets if name in self.tables}

    def checkpoint_of(self, table: str) -> int | None:
        """Return what the table proves: the checkpoint of its last commit, or the job's newest one with rows."""
        return max((number for name, number in self.commits if name == table), default=0)

    def keys(self, *_: object) -> None:
        raise AssertionError("a change reads no keys")

    def check_steps(self, *_: object) -> tuple[()]:
        return ()

    def alter(self, table: TargetTable, steps: list[AlterStep], mark: SinkCheckpoint) -> None:
        self.faults.point()
        if self.alters_in_one_commit:
            if (table.name, mark.checkpoint) not in self.commits:
                for step in steps:
                    self._take(table.name, step)
                self.commits.add((table.name, mark.checkpoint))
        else:
            (step,) = steps
            if not self._is_done(table.name, step):
                self._take(table.name, step)
        self.faults.point()

    def _is_done(self, table: str, step: AlterStep) -> bool:
        if step.action is AlterAction.TRUNCATE:
            return False  # it is done again after a crash
        columns = self.tables[table]
        before = step.before is None or step.before.name in columns
        after = step.after is None or step.after.name in columns
        if step.action is AlterAction.DROP:
            return not before
        if step.action is AlterAction.ADD:
            return after
        if before == after:
            raise TargetMismatch("Neither before nor after the step.", hint="Correct it.", table=table)
        return after

    def _take(self, table: str, step: AlterStep) -> None:
        if step.action is AlterAction.TRUNCATE:
            self.rows[table] = []
            self.taken.append(f"{table} {step.action.value}")
            return
        columns = self.tables[table]
        content = columns.pop(step.before.name) if step.before is not None else f"fill {step.fill}"
        if step.after is not None:
            assert step.after.name not in columns, "two columns with one name"
            columns[step.after.name] = content
        self.taken.append(f"{table} {step.action.value}")


class Store:
    """The store of a process that can die before and after each save."""

    def __init__(self, inner: SqliteStore, faults: Faults) -> None:
        self.inner, self.faults = inner, faults

    def save(self, checkpoint: Checkpoint) -> None:
        self.faults.point()
        self.inner.save(checkpoint)
        self.faults.point()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


CHANGES = (
    ColumnChange(ChangeKind.DROP_COLUMN, C),
    ColumnChange(ChangeKind.RENAME_COLUMN, A, B),
    ColumnChange(ChangeKind.RENAME_COLUMN, B, A),
    ColumnChange(ChangeKind.ADD_COLUMN, None, replace(C, name="d"), Fill(FillKind.LITERAL, b"5")),
)
BEFORE = (ID, A, B, C)
AFTER = (ID, B, A, replace(C, name="d"))
EXPECTED = {"id": "id", "b": "a", "a": "b", "d": "fill 5"}


def table(name: str, columns: tuple[Column, ...]) -> TableSchema:
    return TableSchema("shop", name, columns, ("id",))


@pytest.mark.parametrize("in_one_commit", [True, False])
def test_change_crash_at_every_point_takes_each_step_once(tmp_path: Path, in_one_commit: bool) -> None:
    tables = [TableChange(table(name, BEFORE), table(name, AFTER), CHANGES) for name in ("orders", "items")]
    for sink, saved in crashed_everywhere(tmp_path, tables, in_one_commit=in_one_commit):
        assert sink.tables == {"ods.orders": EXPECTED, "ods.items": EXPECTED}
        assert len(sink.taken) == 2 * 5, sink.taken  # DROP, three renames, ADD
        assert {schema.name: schema.columns for schema in saved.schemas} == {
            "shop.orders": AFTER, "shop.items": AFTER, "shop.other": BEFORE,
        }  # fmt: skip


@pytest.mark.parametrize("in_one_commit", [True, False])
def test_truncate_crash_at_every_point_empties_only_its_table(tmp_path: Path, in_one_commit: bool) -> None:
    tables = [TableChange(table("orders", BEFORE), table("orders", BEFORE), rows=ChangeKind.TRUNCATE_TABLE)]
    for sink, saved in crashed_everywhere(tmp_path, tables, in_one_commit=in_one_commit):
        assert sink.rows == {"ods.orders": [], "ods.items": [1, 2, 3]}
        assert set(sink.taken) == {"ods.orders truncate"}
        assert len(sink.taken) == 1 or not in_one_commit
        assert saved.snapshots == {}


@pytest.mark.parametrize("in_one_commit", [True, False])
def test_dropped_partition_crash_at_every_point_loads_again(tmp_path: Path, in_one_commit: bool) -> None:
    """A snapshot that runs at that time starts again, because chunks that are read may have rows that are gone."""
    tables = [TableChange(table("orders", BEFORE), table("orders", BEFORE), rows=ChangeKind.DROP_PARTITION)]
    running = {name: TableSnapshot(SnapshotState.READING, chunks=4, done=3) for name in ("shop.orders", "shop.items")}
    for sink, saved in crashed_everywhere(tmp_path, tables, in_one_commit=in_one_commit, snapshots=running):
        assert sink.taken == []
        assert saved.snapshots == {**running, "shop.orders": TableSnapshot(deletes_orphans=True)}


@pytest.mark.parametrize("in_one_commit", [True, False])
def test_swapped_tables_crash_at_every_point_take_each_step_once_and_load_again(
    tmp_path: Path, in_one_commit: bool
) -> None:
    """RENAME TABLE orders TO old, new TO orders: the name means other columns and other rows."""
    tables = [
        TableChange(table(name, BEFORE), table(name, AFTER), CHANGES, rows=ChangeKind.RENAME_TABLE)
        for name in ("orders", "items")
    ]
    running = {name: TableSnapshot(SnapshotState.READING, chunks=4, done=3) for name in ("shop.orders", "shop.other")}
    for sink, saved in crashed_everywhere(tmp_path, tables, in_one_commit=in_one_commit, snapshots=running):
        assert sink.tables == {"ods.orders": EXPECTED, "ods.items": EXPECTED}
        assert len(sink.taken) == 2 * 5, sink.taken
        again = TableSnapshot(deletes_orphans=True)
        assert saved.snapshots == {**running, "shop.orders": again, "shop.items": again}


@pytest.mark.parametrize("in_one_commit", [True, False])
def test_copy_of_a_tool_crash_at_every_point_keeps_the_snapshot(tmp_path: Path, in_one_commit: bool) -> None:
    """The last RENAME of gh-ost is one ALTER TABLE. The record of its copy ends with the change, not before it."""
    tables = [TableChange(table("orders", BEFORE), table("orders", AFTER), CHANGES)]
    copy = ShadowCopy((CopyStatement("ALTER", "shop", False, False, 0),))
    ghost = replace(table("_orders_gho", AFTER), copy=copy)
    loaded = {"shop.orders": TableSnapshot(SnapshotState.CONSISTENT)}
    for sink, saved in crashed_everywhere(
        tmp_path, tables, in_one_commit=in_one_commit, snapshots=loaded, shadows=(ghost,)
    ):
        assert sink.tables["ods.orders"] == EXPECTED
        assert len(sink.taken) == 5, sink.taken
        assert saved.snapshots == loaded
        assert "shop._orders_gho" not in {schema.name for schema in saved.schemas}


@pytest.mark.parametrize("in_one_commit", [True, False])
def test_dropped_and_changed_tables_crash_at_every_point_keep_the_rows(tmp_path: Path, in_one_commit: bool) -> None:
    """RENAME TABLE orders TO x, new TO items: one name means no table any more, the other one another table."""
    orders, items = table("orders", BEFORE), table("items", BEFORE)
    tables = [
        TableChange(orders, replace(orders, is_dropped=True), rows=ChangeKind.RENAME_TABLE),
        TableChange(items, table("items", AFTER), CHANGES, rows=ChangeKind.RENAME_TABLE),
    ]
    running = {name: TableSnapshot(SnapshotState.READING, chunks=4, done=3) for name in ("shop.orders", "shop.items")}
    for sink, saved in crashed_everywhere(tmp_path, tables, in_one_commit=in_one_commit, snapshots=running):
        assert sink.rows["ods.orders"] == [1, 2, 3]
        assert sink.tables == {"ods.orders": {name: name for name in ("id", "a", "b", "c")}, "ods.items": EXPECTED}
        assert {one.split()[0] for one in sink.taken} == {"ods.items"} and len(sink.taken) == 5, sink.taken
        assert saved.snapshots == {"shop.items": TableSnapshot(deletes_orphans=True)}
        assert {schema.name: schema.is_dropped for schema in saved.schemas} == {
            "shop.orders": True, "shop.items": False, "shop.other": False,
        }  # fmt: skip
        assert saved.column_maps["shop.orders"].kept_rows == {ChangeKind.RENAME_TABLE.value: THERE}


def crashed_everywhere(
    tmp_path: Path,
    tables: list[TableChange],
    *,
    in_one_commit: bool,
    snapshots: dict[str, TableSnapshot] | None = None,
    shadows: tuple[TableSchema, ...] = (),
) -> Iterator[tuple[Columns, Checkpoint]]:
    """Yield the sink and the last checkpoint of a change that crashed at the first point, the second, and so on."""
    for at in count(1):
        faults = Faults()
        names = [column.name for column in BEFORE]
        sink = Columns(faults, {"ods.orders": [*names], "ods.items": [*names]}, in_one_commit=in_one_commit)
        store = SqliteStore(tmp_path / str(at))
        record = store.acquire("shop", "shop.yaml")
        start = Checkpoint(
            0, 1, CheckpointState.COMMITTED, HERE, HERE,
            schemas=(*(table(name, BEFORE) for name in ("orders", "items", "other")), *shadows),
            snapshots=snapshots or {},
        )  # fmt: skip
        store.save(start)
        stop = DdlStop("ALTER changes shop.orders.", hint="Resume.")
        stop.change = SchemaChange("ALTER", HERE, THERE, tuple(tables), forgets=tuple(one.name for one in shadows))
        faults.at, crashes = at, 0
        while True:  # each pass is a process
            policy = ChangePolicy(ChangeMode.EVOLVE)
            routes = Routes([Mapping("shop.*", "ods.*", changes=policy)])
            run = RunIdentity("shop", record.incarnation, record.fence)
            context: Any = SimpleNamespace(
                channels={},
                run=run,
                routes=routes,
                sink=sink,
                snapshot="tables",
                types=None,
                store=Store(store, faults),
                applies=None,
            )
            try:
                committed = store.last_committed("shop")
                assert committed is not None
                if committed.last == THERE:  # the crash was after the last save
                    break
                unfinished = store.unfinished()
                if not unfinished:
                    assert prepare_change(context, committed, stop)
                    unfinished = store.unfinished()
                roll_forward(context, unfinished[0])
                break
            except Crash:
                crashes += 1
                store.close()
                store = SqliteStore(tmp_path / str(at))
                record = store.acquire("shop", "shop.yaml")
        saved = store.last_committed("shop")
        assert saved is not None and saved.last == THERE and store.unfinished() == ()
        assert saved.closed_by is CloseReason.SCHEMA_CHANGE
        store.close()
        yield sink, saved
        if not crashes:
            assert at > 4
            return


def change_of_both(store: SqliteStore, sink: Columns, targets: dict[str, TargetState]) -> tuple[Any, Checkpoint]:
    """Return a context and the PREPARED change of orders and items."""
    record = store.acquire("shop", "shop.yaml")
    schemas = tuple(table(name, BEFORE) for name in ("orders", "items"))
    start = Checkpoint(0, 1, CheckpointState.COMMITTED, HERE, HERE, schemas=schemas, targets=targets)
    store.save(start)
    stop = DdlStop("ALTER changes shop.orders.", hint="Resume.")
    tables = tuple(TableChange(table(name, BEFORE), table(name, AFTER), CHANGES) for name in ("orders", "items"))
    stop.change = SchemaChange("ALTER", HERE, THERE, tables)
    policy = ChangePolicy(kinds={"drop": ChangeAction.APPLY})
    run = RunIdentity("shop", record.incarnation, record.fence)
    context: Any = SimpleNamespace(
            channels={},
        run=run, routes=Routes([Mapping("shop.*", "ods.*", changes=policy)]), sink=sink, snapshot=None, types=None, applies=None,
        store=store,
    )  # fmt: skip
    assert prepare_change(context, start, stop)
    return context, store.unfinished()[0]


def test_stop_before_a_change_keeps_it_prepared(tmp_path: Path) -> None:
    names = [column.name for column in BEFORE]
    sink = Columns(Faults(), {"ods.orders": [*names], "ods.items": [*names]}, in_one_commit=True)
    store = SqliteStore(tmp_path)
    context, prepared = change_of_both(store, sink, {})
    context.is_continued = True
    stopping = threading.Event()
    stopping.set()
    recovery: Any = Recovery(context, None, None, 0, stopping)  # type: ignore[arg-type]
    with pytest.raises(Cancelled):
        recovery.run(lambda: HERE)
    assert {target: list(columns) for target, columns in sink.tables.items()} == {
        "ods.orders": names,
        "ods.items": names,
    }
    assert store.unfinished() == (prepared,)
    store.close()


@pytest.mark.parametrize("in_one_commit", [True, False])
def test_change_of_a_removed_target_is_skipped(tmp_path: Path, in_one_commit: bool) -> None:
    names = [column.name for column in BEFORE]
    sink = Columns(Faults(), {"ods.orders": [*names], "ods.items": [*names]}, in_one_commit=in_one_commit)
    store = SqliteStore(tmp_path)
    context, prepared = change_of_both(store, sink, {})
    del sink.tables["ods.orders"]  # its next rows create it, with the new columns
    committed = roll_forward(context, prepared)
    assert committed.state is CheckpointState.COMMITTED
    assert sink.tables == {"ods.items": EXPECTED}
    store.close()


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        (TargetState("another", 0), TargetLost),  # it was created again
        (TargetState("1", 7), TargetLost),  # an older copy was restored
        (TargetState("gone", 0), SinkUnavailable),
    ],
)
@pytest.mark.parametrize("in_one_commit", [True, False])
def test_change_of_a_lost_target_is_refused(
    tmp_path: Path, in_one_commit: bool, expected: TargetState, error: type[CdcError]
) -> None:
    """The alter would give an older copy the checkpoint of the change, and no later run would notice the lost rows."""
    names = [column.name for column in BEFORE]
    sink = Columns(Faults(), {"ods.orders": [*names], "ods.items": [*names]}, in_one_commit=in_one_commit)
    store = SqliteStore(tmp_path)
    context, prepared = change_of_both(store, sink, {"ods.orders": TargetState("1", 0), "ods.items": expected})
    if expected.identity == "gone":
        del sink.tables["ods.items"]
    with pytest.raises(error, match=r"ods\.items"):
        roll_forward(context, prepared)
    assert sink.taken == [] and store.unfinished() == (prepared,)
    store.close()


@pytest.mark.parametrize("in_one_commit", [True, False])
def test_changed_target_is_expected_to_have_the_checkpoint(tmp_path: Path, in_one_commit: bool) -> None:
    names = [column.name for column in BEFORE]
    sink = Columns(Faults(), {"ods.orders": [*names], "ods.items": [*names]}, in_one_commit=in_one_commit)
    store = SqliteStore(tmp_path)
    targets = {"ods.orders": TargetState("1", 0), "ods.items": TargetState("1", 0), "ods.other": TargetState("1", 0)}
    context, prepared = change_of_both(store, sink, targets)
    committed = roll_forward(context, prepared)
    found = {name: state.checkpoint for name, state in committed.targets.items()}
    # an older copy of a target must be noticed, but a cluster has only the checkpoints of loads
    number = prepared.id if in_one_commit else 0
    assert found == {"ods.orders": number, "ods.items": number, "ods.other": 0}
    store.close()


def test_prepare_change_at_another_position_is_refused(tmp_path: Path) -> None:
    stop = DdlStop("ALTER changes shop.orders.", hint="Resume.")
    committed = Checkpoint(0, 1, CheckpointState.COMMITTED, HERE, HERE)
    context: Any = SimpleNamespace(applies=None, channels={})
    assert not prepare_change(context, committed, stop)
    stop.change = SchemaChange("ALTER", THERE, THERE, ())
    assert not prepare_change(context, committed, stop), "an XA transaction is open before the statement"


def test_prepare_change_of_tables_keeps_what_a_restart_needs(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    record = store.acquire("shop", "shop.yaml")
    ghost = replace(table("_items_gho", AFTER), copy=ShadowCopy((CopyStatement("ALTER", "shop", False, False, 0),)))
    start = Checkpoint(
        0, 1, CheckpointState.COMMITTED, HERE, HERE,
        schemas=(table("orders", BEFORE), table("items", BEFORE), ghost),
        snapshots={f"shop.{name}": TableSnapshot(SnapshotState.CONSISTENT) for name in ("orders", "items")},
    )  # fmt: skip
    store.save(start)
    reread = store.last_committed("shop")
    assert reread is not None and reread.schemas == start.schemas, "the record of the copy is saved"
    orders, items = (table(name, BEFORE) for name in ("orders", "items"))
    tables = (
        TableChange(orders, replace(orders, is_dropped=True), rows=ChangeKind.DROP_TABLE),
        TableChange(items, table("items", AFTER), CHANGES, values_differ=True),
    )
    stop = DdlStop("DROP changes shop.orders.", hint="Resume.")
    stop.change = SchemaChange("DROP", HERE, THERE, tables, forgets=("shop._items_gho",))
    mapping = Mapping("shop.*", "ods.*", changes=ChangePolicy(ChangeMode.EVOLVE))
    context: Any = SimpleNamespace(
            channels={},
        run=RunIdentity("shop", record.incarnation, record.fence), routes=Routes([mapping]),
        sink=Columns(Faults(), {}, in_one_commit=True), snapshot="tables", types=None, store=store, applies=None,
    )  # fmt: skip
    assert prepare_change(context, reread, stop)
    saved = roll_forward(context, store.unfinished()[0])
    assert {schema.name: schema.is_dropped for schema in saved.schemas} == {"shop.orders": True, "shop.items": False}
    assert saved.snapshots == {"shop.items": TableSnapshot()}, "a dropped table has no snapshot, the other is loaded"
    assert saved.column_maps["shop.orders"].kept_rows.keys() == {"drop.table"}
    (difference,) = ColumnDifference.of(saved.column_maps["shop.orders"], None)
    assert (difference.kind, difference.column, difference.target) == (ChangeKind.DROP_TABLE, "", None)
    store.close()


@pytest.mark.parametrize("shadow", ["_orders_new", "_items_new"])
def test_prepare_drop_keeps_the_snapshot_only_for_drop_swap(tmp_path: Path, shadow: str) -> None:
    store, orders = SqliteStore(tmp_path), table("orders", BEFORE)
    record = store.acquire("shop", "shop.yaml")
    start = Checkpoint(
        0, 1, CheckpointState.COMMITTED, HERE, HERE,
        schemas=(orders, replace(table(shadow, AFTER), copy=ShadowCopy(has_triggers=True))),
        snapshots={"shop.orders": TableSnapshot(SnapshotState.CONSISTENT)},
    )  # fmt: skip
    store.save(start)
    stop = DdlStop("DROP changes shop.orders.", hint="Resume.")
    dropped = TableChange(orders, replace(orders, is_dropped=True), rows=ChangeKind.DROP_TABLE)
    stop.change = SchemaChange("DROP", HERE, THERE, (dropped,))
    context: Any = SimpleNamespace(
            channels={},
        run=RunIdentity("shop", record.incarnation, record.fence), routes=Routes([Mapping("shop.*", "ods.*")]),
        sink=Columns(Faults(), {}, in_one_commit=True), snapshot="tables", types=None, store=store, applies=None,
    )  # fmt: skip
    assert prepare_change(context, start, stop)
    assert bool(store.unfinished()[0].snapshots) is (shadow == "_orders_new")
    store.close()


def test_change_of_a_key_type_keeps_bounds_and_compares_keys_again(tmp_path: Path) -> None:
    """Bounds are texts. The key that orphan rows were compared up to is a value of the old type."""
    wide = replace(ID, kind=Kind.BIGINT, type="bigint")
    columns = (ColumnChange(ChangeKind.ALTER_TYPE, ID, wide),)
    changes = [TableChange(table("orders", BEFORE), table("orders", (wide, A, B, C)), columns)]
    reading = TableSnapshot(SnapshotState.READING, open=(Chunk(3, ("300",), ("400",)),), chunks=5, done=3)
    deleting = TableSnapshot(SnapshotState.DELETING_ORPHANS, deletes_orphans=True, compared_key="old")
    sink = Columns(
        Faults(), {name: [one.name for one in BEFORE] for name in ("ods.orders", "ods.items")}, in_one_commit=True
    )
    store = SqliteStore(tmp_path)
    record = store.acquire("shop", "shop.yaml")
    routes, run = Routes([Mapping("shop.*", "ods.*")]), RunIdentity("shop", record.incarnation, record.fence)
    context: Any = SimpleNamespace(
        channels={}, run=run, routes=routes, sink=sink, snapshot=None, types=None, store=store, applies=None
    )
    for found, expected in ((reading, reading), (deleting, replace(deleting, compared_key=None))):
        snapshots = {"shop.orders": found, "shop.items": deleting}
        committed = Checkpoint(0, 1, CheckpointState.COMMITTED, HERE, HERE, snapshots=snapshots)
        stop = DdlStop("ALTER changes shop.orders.", hint="Resume.")
        stop.change = SchemaChange("ALTER", HERE, THERE, tuple(changes))
        assert prepare_change(context, committed, stop)
        prepared = store.unfinished()[-1]
        assert prepared.snapshots == {"shop.orders": expected, "shop.items": deleting}
        assert roll_forward(context, prepared).snapshots == prepared.snapshots
    store.close()


@pytest.mark.parametrize("policy", [ChangePolicy(ChangeMode.PAUSE), ChangePolicy(kinds={"drop": ChangeAction.PAUSE})])
def test_change_that_the_user_applies_is_planned_in_every_mode(tmp_path: Path, policy: ChangePolicy) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        record = store.acquire("shop", "shop.yaml")
        committed = Checkpoint(0, 1, CheckpointState.COMMITTED, HERE, HERE, schemas=(table("orders", BEFORE),))
        store.save(committed)
        sink = Columns(Faults(), {"ods.orders": [column.name for column in BEFORE]}, in_one_commit=True)
        run = RunIdentity("shop", record.incarnation, record.fence)
        routes = Routes([Mapping("shop.*", "ods.*", changes=policy)])
        context: Any = SimpleNamespace(
            channels={}, run=run, routes=routes, sink=sink, snapshot=None, types=None, store=store
        )
        stop = DdlStop("ALTER changes shop.orders.", hint="Resume.", position=HERE, statement="ALTER")
        stop.change = SchemaChange(
            "ALTER", HERE, THERE, (TableChange(table("orders", BEFORE), table("orders", AFTER), CHANGES),)
        )
        other = replace(stop.change, statement="ALTER of another position", first=THERE)
        for applies in (None, other):  # no resume with --apply-ddl, and one at another statement
            context.applies = applies
            with pytest.raises(DdlStop, match="has the action pause for"):
                prepare_change(context, committed, stop)
        assert "--apply-ddl" in stop.hint
        # the statement is read again, when the columns before it are not known any more
        context.applies, stop.change = stop.change, None
        assert prepare_change(context, committed, stop)
        roll_forward(context, store.unfinished()[0])
        assert sink.tables == {"ods.orders": EXPECTED}


@pytest.mark.parametrize("state", SnapshotState)
def test_new_snapshot_deletes_the_orphans_that_the_replaced_one_has_not_deleted(state: SnapshotState) -> None:
    """A table is renamed away and back, and copied by pt-online-schema-change before its snapshot has ended."""
    old = {"shop.orders": TableSnapshot(state, deletes_orphans=True, request=3), "shop.items": TableSnapshot(state)}
    tables = tuple(
        PlannedTable(name, name, TableSchema("shop", name, (), ()), is_reloaded=True) for name in (*old, "shop.new")
    )
    found = snapshots_after(old, ChangePlan("RENAME TABLE ...", tables))
    assert {name: one.deletes_orphans for name, one in found.items()} == {
        "shop.orders": state not in (SnapshotState.CATCHING_UP, SnapshotState.CONSISTENT),
        "shop.items": False,
        "shop.new": False,
    }
    assert all(one.state is SnapshotState.WAITING for one in found.values())
    # else the saved request 3, which is deleted after a COMMITTED checkpoint, would load the table a second time
    assert {name: one.request for name, one in found.items()} == {"shop.orders": 3, "shop.items": 0, "shop.new": 0}
