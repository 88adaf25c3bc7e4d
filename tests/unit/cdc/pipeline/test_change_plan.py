"""Plans of schema changes: the steps of each kind and mode, and what refuses a change."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import DdlStop
from cdc.model.batch import TargetState
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import (
    ChangeAction,
    ChangeKind,
    ChangeMode,
    ChangePlan,
    ChangePolicy,
    ColumnChange,
    ColumnMap,
    Fill,
    FillKind,
    SchemaChange,
    TableChange,
)
from cdc.pipeline.change_plan import alter_steps, plan_change, target_after, target_before
from channels.mapping import Mapping, Routes
from channels.sinks.base import AlterAction, Finding
from channels.task import RunIdentity

ID = Column("id", Kind.INT, "int", nullable=False)
A = Column("a", Kind.INT, "int")
B = Column("b", Kind.INT, "int")
BEFORE = TableSchema("shop", "orders", (ID, A), ("id",))
HERE, THERE = BinlogPosition("bin.000001", 4), BinlogPosition("bin.000001", 90)
ADDED = ColumnChange(ChangeKind.ADD_COLUMN, None, B)
DROPPED = ColumnChange(ChangeKind.DROP_COLUMN, A)
RENAMED = ColumnChange(ChangeKind.RENAME_COLUMN, A, replace(A, name="b"))
WIDER = replace(A, kind=Kind.BIGINT, type="bigint")
WIDENED = ColumnChange(ChangeKind.ALTER_TYPE, A, WIDER)


class AlteringSink:
    """A sink with one table, which accepts every step unless ``refuses`` has its action."""

    alters_in_one_commit = True

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses

    def target_states(self, *_: object) -> dict[str, TargetState]:
        return {"ods.orders": TargetState("1")}

    def check_steps(self, _: object, steps: list[Any]) -> tuple[Finding, ...]:
        filled = any(step.fill is not None for step in steps)
        refused = self.refuses == "fill" if filled else False
        refused = refused or any(step.action.value == self.refuses for step in steps)
        return (Finding("It cannot be done.", "Do it by hand."),) if refused else ()

    def alter(self, *_: object) -> None:
        raise AssertionError("a plan changes nothing")


def planned(
    columns: tuple[ColumnChange, ...],
    *,
    mode: ChangeMode = ChangeMode.LENIENT,
    kinds: dict[str, ChangeAction] | None = None,
    sink: Any = None,
    snapshot: Any = "tables",
    mapping: Mapping | None = None,
    column_map: ColumnMap | None = None,
    before: TableSchema = BEFORE,
    after: tuple[Column, ...] = (ID, A),
    rows: ChangeKind | None = None,
    key_changed: bool = False,
) -> ChangePlan:
    policy = ChangePolicy(mode, kinds or {})
    routes = Routes([replace(mapping or Mapping("shop.orders", "ods.orders"), changes=policy)])
    routes.use_column_maps({"shop.orders": column_map} if column_map else {})
    run = RunIdentity("shop", "0badcafe", 1)
    context: Any = SimpleNamespace(run=run, routes=routes, sink=sink or AlteringSink(), snapshot=snapshot, types=None)
    change = TableChange(before, replace(before, columns=after), columns, rows, key_changed)
    stop = DdlStop("ALTER changes shop.orders.", hint="Resume.")
    plan = plan_change(context, SchemaChange("ALTER", HERE, THERE, (change,)), 7, stop)
    for table in plan.tables:  # the steps fit the target
        steps = alter_steps(table.steps, table)
        target_after(target_before(context, table), steps)
    return plan


def texts(plan: ChangePlan) -> list[str]:
    return [f"{one.action} {one.old_name or ''}>{one.new_name or ''}" for one in plan.tables[0].steps]


@pytest.mark.parametrize(
    ("change", "after", "expected"),
    [
        (ADDED, (ID, A, B), {"evolve": ["add >b"], "lenient": ["add >b"], "ignore": []}),
        (DROPPED, (ID,), {"evolve": ["drop a>"], "lenient": [], "ignore": []}),
        (RENAMED, (ID, B), {"evolve": ["rename a>b"], "lenient": ["rename a>b"], "ignore": []}),
        (WIDENED, (ID, WIDER), {"evolve": ["widen a>a"], "lenient": ["widen a>a"]}),
    ],
)
@pytest.mark.parametrize("mode", ChangeMode)
def test_plan_of_one_column_follows_the_mode(change, after, expected, mode) -> None:  # type: ignore[no-untyped-def]
    if mode.value not in expected:
        with pytest.raises(DdlStop, match=f"pause for {change.kind.value}"):
            planned((change,), mode=mode, after=after)
        return
    assert texts(planned((change,), mode=mode, after=after)) == expected[mode.value]


def test_plan_kind_overrides_the_mode() -> None:
    plan = planned((DROPPED,), kinds={"drop": ChangeAction.APPLY}, after=(ID,))
    assert texts(plan) == ["drop a>"]
    assert plan.tables[0].columns_after == ColumnMap()


def test_plan_ignored_drop_keeps_the_target_column_and_makes_it_nullable() -> None:
    required = replace(A, nullable=False)
    plan = planned((replace(DROPPED, old=required),), after=(ID,))
    assert texts(plan) == ["make nullable a>a"]
    assert plan.tables[0].columns_after.kept == {"a": A}


def test_plan_added_column_with_the_name_of_a_kept_one_moves_that_away() -> None:
    kept = ColumnMap(kept={"b": B})
    plan = planned((ADDED,), column_map=kept, after=(ID, A, B))
    assert texts(plan) == ["rename b>b__7", "add >b"]
    assert plan.tables[0].columns_after.kept == {"b__7": B}


EXCHANGED = (
    ColumnChange(ChangeKind.RENAME_COLUMN, A, replace(A, name="b")),
    ColumnChange(ChangeKind.RENAME_COLUMN, B, replace(B, name="a")),
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"a": "b", "b": "a"}),
        ({"a": None, "b": None}, {"a": None, "b": None}),
        ({"a": None}, {"b": None, "a": "b"}),
        ({"a": "x"}, {"b": "x", "a": "b"}),
    ],
)
def test_plan_ignored_exchange_continues_to_fill_the_old_names(before, after) -> None:  # type: ignore[no-untyped-def]
    table = replace(BEFORE, columns=(ID, A, B))
    (one,) = planned(
        EXCHANGED, mode=ChangeMode.IGNORE, before=table, column_map=ColumnMap(before), after=(ID, B, A)
    ).tables
    assert {name: one.columns_after.target_of(name) for name in "ab"} == after and one.steps == ()


def test_plan_rename_moves_a_column_away_that_an_ignored_drop_has_left() -> None:
    kept = ColumnMap({}, {"b": B})
    plan = planned((RENAMED,), column_map=kept, after=(ID, B))
    assert texts(plan) == ["rename b>b__7", "rename a>b"]
    assert plan.tables[0].columns_after == ColumnMap({}, {"b__7": B})


def test_plan_ignored_rename_continues_to_fill_the_old_name() -> None:
    plan = planned((RENAMED,), mode=ChangeMode.IGNORE, after=(ID, B))
    assert plan.tables[0].columns_after.names == {"b": "a"}
    again = ColumnChange(ChangeKind.RENAME_COLUMN, replace(A, name="b"), replace(A, name="c"))
    plan = planned((again,), column_map=plan.tables[0].columns_after, after=(ID, replace(A, name="c")))
    assert texts(plan) == []
    assert plan.tables[0].columns_after.names == {"c": "a"}


def test_plan_exchanged_names_use_a_free_name() -> None:
    back = ColumnChange(ChangeKind.RENAME_COLUMN, B, A)
    plan = planned((RENAMED, back), after=(ID, B, A))
    assert texts(plan) == ["rename a>b__7", "rename b>a", "rename b__7>b"]


def test_plan_literal_is_part_of_the_step() -> None:
    plan = planned((replace(ADDED, fill=Fill(FillKind.LITERAL, b"5")),), after=(ID, A, B))
    table = plan.tables[0]
    assert not table.is_reloaded
    assert alter_steps(table.steps, table)[0].fill == pa.scalar(5, pa.int32())


@pytest.mark.parametrize("kind", [FillKind.BY_ROW, FillKind.STATEMENT_TIME])
def test_plan_value_that_differs_by_row_loads_the_table_again(kind: FillKind) -> None:
    plan = planned((replace(ADDED, fill=Fill(kind)),), after=(ID, A, B))
    assert plan.tables[0].is_reloaded
    with pytest.raises(DdlStop, match="no tables to load them from"):
        planned((replace(ADDED, fill=Fill(kind)),), after=(ID, A, B), snapshot=None)


def test_plan_fill_that_the_sink_refuses_is_loaded_again() -> None:
    change = replace(ADDED, fill=Fill(FillKind.LITERAL, b"5"))
    plan = planned((change,), after=(ID, A, B), sink=AlteringSink("fill"))
    assert plan.tables[0].is_reloaded and plan.tables[0].steps[0].fill is None
    with pytest.raises(DdlStop, match="It cannot be done"):
        planned((change,), after=(ID, A, B), sink=AlteringSink("fill"), snapshot=None)


def test_plan_step_that_the_sink_refuses_pauses() -> None:
    with pytest.raises(DdlStop, match="It cannot be done") as caught:
        planned((RENAMED,), after=(ID, B), sink=AlteringSink("rename"))
    assert "Do it by hand" in caught.value.hint


def test_plan_type_with_the_same_values_has_no_step() -> None:
    longer = replace(A, kind=Kind.VARCHAR, type="varchar(20)", length=20)
    change = ColumnChange(ChangeKind.ALTER_TYPE, replace(longer, length=10), longer)
    assert texts(planned((change,), mode=ChangeMode.PAUSE)) == []


def test_plan_changed_values_load_the_table_again() -> None:
    plan = planned((replace(WIDENED, changes_values=True),), after=(ID, WIDER))
    assert plan.tables[0].is_reloaded
    assert texts(plan) == ["widen a>a"]


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (replace(A, kind=Kind.SMALLINT, type="smallint"), "becomes narrower"),
        (replace(A, kind=Kind.DATE, type="date"), "cannot convert"),
    ],
)
def test_plan_type_that_does_not_fit_pauses(new: Column, why: str) -> None:
    change = ColumnChange(ChangeKind.ALTER_TYPE, A, new, changes_values=True)
    with pytest.raises(DdlStop, match=why):
        planned((change,), mode=ChangeMode.EVOLVE, after=(ID, new))


def test_plan_column_that_the_job_file_names_pauses_in_every_mode() -> None:
    mapping = Mapping("shop.orders", "ods.orders", columns={"id": "id", "double": "a * 2"})
    for change in (DROPPED, RENAMED):
        with pytest.raises(DdlStop, match="reads the column a"):
            planned((change,), mode=ChangeMode.EVOLVE, mapping=mapping)


def test_plan_truncate_loads_again_or_pauses_by_mode() -> None:
    rows = ChangeKind.TRUNCATE_TABLE
    with pytest.raises(DdlStop, match="pause for truncate"):
        planned((), rows=rows)
    assert not planned((), rows=rows, mode=ChangeMode.IGNORE).tables[0].is_reloaded
    with pytest.raises(DdlStop, match="cannot find the rows"):
        planned((), rows=rows, mode=ChangeMode.EVOLVE)


def test_plan_target_that_does_not_exist_has_no_steps() -> None:
    sink = AlteringSink()
    sink.target_states = lambda *_: {}  # type: ignore[method-assign]
    assert texts(planned((ADDED,), after=(ID, A, B), sink=sink)) == []


def test_actions_cover_every_kind() -> None:
    for mode in ChangeMode:
        for kind in ChangeKind:
            assert ChangePolicy(mode).action(kind) in ChangeAction
    assert AlterAction("add") is AlterAction.ADD


@pytest.mark.parametrize("kinds", [{}, {"alter.key": ChangeAction.APPLY}, {"alter.key": ChangeAction.IGNORE}])
def test_plan_changed_key_pauses_whatever_the_job_file_says(kinds: dict[str, ChangeAction]) -> None:
    with pytest.raises(DdlStop, match="it changes the key"):
        planned((), kinds=kinds, mode=ChangeMode.EVOLVE, key_changed=True)
