"""A schema change as a checkpoint: a crash anywhere, and every step is taken exactly once."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.errors import DdlStop, TargetMismatch
from cdc.model.batch import TargetState
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import (
    ChangeAction,
    ChangeKind,
    ChangePolicy,
    ColumnChange,
    Fill,
    FillKind,
    SchemaChange,
    TableChange,
)
from cdc.pipeline.schema_changes import prepare_change, roll_forward
from cdc.state.base import Checkpoint, CheckpointState, CloseReason
from cdc.state.sqlite import SqliteStore
from channels.mapping import Mapping, Routes
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
        self.commits: set[tuple[str, int]] = set()
        self.taken: list[str] = []

    def target_states(self, job: str, incarnation: str, targets: list[str]) -> dict[str, TargetState]:
        return {name: TargetState("1", self.checkpoint_of(name)) for name in targets if name in self.tables}

    def checkpoint_of(self, table: str) -> int | None:
        """Return what the table proves: the checkpoint of its last commit, or the job's newest one with rows."""
        return max((number for name, number in self.commits if name == table), default=0)

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
    for at in count(1):
        faults = Faults()
        names = [column.name for column in BEFORE]
        sink = Columns(faults, {"ods.orders": [*names], "ods.items": [*names]}, in_one_commit=in_one_commit)
        store = SqliteStore(tmp_path / str(at))
        record = store.acquire("shop", "shop.yaml")
        start = Checkpoint(
            0, 1, CheckpointState.COMMITTED, HERE, HERE,
            schemas=tuple(table(name, BEFORE) for name in ("orders", "items", "other")),
        )  # fmt: skip
        store.save(start)
        tables = [TableChange(table(name, BEFORE), table(name, AFTER), CHANGES) for name in ("orders", "items")]
        stop = DdlStop("ALTER changes shop.orders.", hint="Resume.")
        stop.change = SchemaChange("ALTER", HERE, THERE, tuple(tables))
        faults.at, crashes = at, 0
        while True:  # each pass is a process
            policy = ChangePolicy(kinds={"drop": ChangeAction.APPLY})
            routes = Routes([Mapping("shop.*", "ods.*", changes=policy)])
            run = RunIdentity("shop", record.incarnation, record.fence)
            context: Any = SimpleNamespace(
                run=run, routes=routes, sink=sink, snapshot=None, types=None, store=Store(store, faults)
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
        assert sink.tables == {"ods.orders": EXPECTED, "ods.items": EXPECTED}
        assert len(sink.taken) == 2 * 5, sink.taken  # DROP, three renames, ADD
        saved = store.last_committed("shop")
        assert saved is not None and saved.last == THERE and store.unfinished() == ()
        assert {schema.name: schema.columns for schema in saved.schemas} == {
            "shop.orders": AFTER, "shop.items": AFTER, "shop.other": BEFORE,
        }  # fmt: skip
        assert saved.closed_by is CloseReason.SCHEMA_CHANGE
        store.close()
        if not crashes:
            assert at > 8
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
        run=run, routes=Routes([Mapping("shop.*", "ods.*", changes=policy)]), sink=sink, snapshot=None, types=None,
        store=store,
    )  # fmt: skip
    assert prepare_change(context, start, stop)
    return context, store.unfinished()[0]


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
    context: Any = SimpleNamespace()
    assert not prepare_change(context, committed, stop)
    stop.change = SchemaChange("ALTER", THERE, THERE, ())
    assert not prepare_change(context, committed, stop), "an XA transaction is open before the statement"
