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
    DifferenceStart,
    Fill,
    FillKind,
    PlannedTable,
    SchemaChange,
    TableChange,
)
from cdc.mysql.table_contents import replaced
from cdc.pipeline.schema_change_plan import plan_change
from cdc.pipeline.schema_change_steps import alter_steps, target_after, target_before
from channels.mapping import Mapping
from channels.routes import Routes
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

TEXT = replace(A, kind=Kind.VARCHAR, type="varchar(20)", length=20)
DIGITS_36 = replace(A, kind=Kind.DECIMAL, type="decimal(36,2)", precision=36, scale=2)
DIGITS_38 = replace(DIGITS_36, type="decimal(38,2)", precision=38)
LONGER = ColumnChange(ChangeKind.ALTER_TYPE, replace(TEXT, type="varchar(10)", length=10), TEXT)


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
    values_differ: bool = False,
    applies_all: bool = False,
) -> ChangePlan:
    policy = ChangePolicy(mode, kinds or {})
    routes = Routes([replace(mapping or Mapping("shop.orders", "ods.orders"), changes=policy)])
    routes.use_column_maps({"shop.orders": column_map} if column_map else {})
    run = RunIdentity("shop", "0badcafe", 1)
    context: Any = SimpleNamespace(run=run, routes=routes, sink=sink or AlteringSink(), snapshot=snapshot, types=None)
    change = TableChange(
        before, replace(before, columns=after), columns, rows, key_changed, values_differ=values_differ
    )
    stop = DdlStop("ALTER changes shop.orders.", hint="Resume.")
    plan = plan_change(context, SchemaChange("ALTER", HERE, THERE, (change,)), 7, stop, applies_all=applies_all)
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


def test_mapping_sends_kept_columns_to_the_target_as_such() -> None:
    mapping = Mapping("shop.orders", "ods.orders", column_map=ColumnMap({}, {"b": B, "A": A}))
    assert mapping.target_table(BEFORE).kept == ("b",)  # a column of the source has the name of the other one
    assert replace(mapping, columns={"id": "id"}).target_table(BEFORE).kept == ()


def test_plan_dates_new_differences_and_keeps_the_dates_of_old_ones() -> None:
    early = DifferenceStart(HERE, "2026-01-01T00:00:00Z")
    before = ColumnMap({"left": None}, {"b": B}, names_since={"left": early}, kept_since={"b": early})
    after = planned((DROPPED,), column_map=before, after=(ID,)).tables[0].columns_after
    assert after.names_since == {"left": early} and after.kept_since["b"] == early
    assert after.kept_since["a"].position == THERE and after.kept_since["a"].time > early.time


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


@pytest.mark.parametrize("name", ["a", "A"])
def test_plan_added_column_with_the_old_name_of_an_ignored_rename_gets_a_free_name(name: str) -> None:
    added, renamed = replace(A, name=name), ColumnMap({"b": "a"})
    before, after = replace(BEFORE, columns=(ID, B)), (ID, B, added)
    change = ColumnChange(ChangeKind.ADD_COLUMN, None, added)
    plan = planned((change,), column_map=renamed, before=before, after=after)
    assert texts(plan) == [f"add >{name}__7"]
    assert plan.tables[0].columns_after.names == {"b": "a", name: f"{name}__7"}
    dropped = ColumnChange(ChangeKind.DROP_COLUMN, B)
    plan = planned((dropped, change), mode=ChangeMode.EVOLVE, column_map=renamed, before=before, after=(ID, added))
    assert texts(plan)[-1] == f"add >{name}" and plan.tables[0].columns_after.names == {}


@pytest.mark.parametrize("target", ["c", None])
def test_plan_added_column_does_not_use_the_target_of_an_earlier_column_of_its_name(target: str | None) -> None:
    """The user has passed the statement that dropped the earlier ``b``, so its difference is still recorded."""
    plan = planned((ADDED,), column_map=ColumnMap({"b": target}), after=(ID, A, B))
    assert texts(plan) == ["add >b"]
    assert plan.tables[0].columns_after.names == {}


def test_plan_rename_to_the_old_name_of_an_ignored_rename_keeps_both_targets() -> None:
    c = replace(A, name="c")
    change = ColumnChange(ChangeKind.RENAME_COLUMN, c, A)
    before = replace(BEFORE, columns=(ID, B, c))
    plan = planned((change,), column_map=ColumnMap({"b": "a"}), before=before, after=(ID, B, A))
    assert texts(plan) == []
    assert plan.tables[0].columns_after.names == {"b": "a", "a": "c"}


def test_plan_exchanged_names_use_a_free_name() -> None:
    back = ColumnChange(ChangeKind.RENAME_COLUMN, B, A)
    plan = planned((RENAMED, back), after=(ID, B, A))
    assert texts(plan) == ["rename a>b__7", "rename b>a", "rename b__7>b"]


def test_plan_literal_is_part_of_the_step() -> None:
    plan = planned((replace(ADDED, fill=Fill(FillKind.LITERAL, b"5")),), after=(ID, A, B))
    table = plan.tables[0]
    assert not table.is_reloaded
    assert alter_steps(table.steps, table)[0].fill == pa.scalar(5, pa.int32())


@pytest.mark.parametrize("kind", [FillKind.BY_ROW, FillKind.STATEMENT_TIME, FillKind.NULL_OR_TIME])
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
    assert texts(planned((LONGER,), mode=ChangeMode.PAUSE)) == []


class LengthSink(AlteringSink):
    """A sink whose types have a length, as those of Doris and StarRocks."""

    def check_steps(self, _: object, steps: list[Any]) -> tuple[Finding, ...]:
        return tuple(
            Finding("It rewrites rows.", "Expect it.", fatal=False) for one in steps if one.action.value == "widen"
        )


def test_plan_longer_text_widens_a_target_that_has_lengths() -> None:
    assert texts(planned((LONGER,), sink=LengthSink())) == ["widen a>a"]
    with pytest.raises(DdlStop, match="a becomes longer"):
        planned((LONGER,), sink=LengthSink(), mode=ChangeMode.PAUSE)


def test_plan_changed_values_load_the_table_again() -> None:
    plan = planned((replace(WIDENED, changes_values=True),), after=(ID, WIDER))
    assert plan.tables[0].is_reloaded
    assert texts(plan) == ["widen a>a"]


KEPT = ColumnMap(kept={"note": replace(TEXT, name="note")})
NARROWER = ColumnChange(ChangeKind.ALTER_TYPE, A, replace(A, kind=Kind.SMALLINT, type="smallint"), changes_values=True)


def test_plan_new_load_pauses_before_it_erases_kept_columns() -> None:
    for changes, column_map in (((NARROWER,), KEPT), ((replace(DROPPED, old=B), NARROWER), None)):
        before, after = replace(BEFORE, columns=(ID, A, B)), (ID, replace(A, kind=Kind.SMALLINT, type="smallint"))
        names = "note" if column_map else "b"
        with pytest.raises(DdlStop, match=f"no longer has: {names}") as caught:
            planned(changes, column_map=column_map, before=before, after=after)
        assert "`cdc resume NAME --apply-ddl` applies the statement" in caught.value.hint
        (table,) = planned(changes, column_map=column_map, before=before, after=after, applies_all=True).tables
        assert table.is_reloaded


def test_plan_of_fill_that_is_loaded_pauses_before_it_erases_kept_columns() -> None:
    change = replace(ADDED, fill=Fill(FillKind.LITERAL, b"5"))
    with pytest.raises(DdlStop, match="NULL instead of its old values"):
        planned((change,), column_map=KEPT, after=(ID, A, B), sink=AlteringSink("fill"))


def test_plan_of_created_table_is_loaded_with_kept_columns() -> None:
    (table,) = planned((), column_map=KEPT, rows=ChangeKind.DROP_TABLE, sink=ListingSink()).tables
    assert table.is_reloaded and table.columns_after.kept == KEPT.kept


def test_plan_narrower_type_keeps_the_type_of_the_target_and_loads_again() -> None:
    narrower = replace(A, kind=Kind.SMALLINT, type="smallint")
    change = ColumnChange(ChangeKind.ALTER_TYPE, A, narrower, changes_values=True)
    plan = planned((change,), after=(ID, narrower))
    assert texts(plan) == [] and plan.tables[0].is_reloaded
    with pytest.raises(DdlStop, match="no tables to load them from"):
        planned((change,), after=(ID, narrower), snapshot=None)


def test_plan_narrower_type_that_allows_null_makes_the_target_nullable() -> None:
    required = replace(A, nullable=False)
    narrower = replace(A, kind=Kind.SMALLINT, type="smallint")
    plan = planned(
        (ColumnChange(ChangeKind.ALTER_TYPE, required, narrower, changes_values=True),), after=(ID, narrower)
    )
    assert texts(plan) == ["make nullable a>a"]
    (step,) = alter_steps(plan.tables[0].steps, plan.tables[0])
    assert step.after is not None and (step.after.arrow, step.after.nullable) == (pa.int32(), True)


@pytest.mark.parametrize("text", ["date", "varchar(9)", "json", "double", "timestamp", "bigint unsigned"])
@pytest.mark.parametrize("mode", [ChangeMode.EVOLVE, ChangeMode.LENIENT, ChangeMode.IGNORE, ChangeMode.PAUSE])
def test_plan_type_that_the_target_cannot_convert_pauses(text: str, mode: ChangeMode) -> None:
    new = replace(A, kind=Kind(text.split("(")[0].split(" ")[0]), type=text, unsigned="unsigned" in text)
    change = ColumnChange(ChangeKind.ALTER_TYPE, A, new, changes_values=True)
    converts = text == "bigint unsigned" and mode in (ChangeMode.EVOLVE, ChangeMode.LENIENT)
    if converts:  # each INT is one DECIMAL(20, 0); the rows are loaded again
        assert planned((change,), mode=mode, after=(ID, new)).tables[0].is_reloaded
        return
    with pytest.raises(DdlStop, match=r"cannot convert a from int|pause for alter\.column\.type"):
        planned((change,), mode=mode, after=(ID, new))


def test_plan_type_cannot_be_ignored() -> None:
    kinds = {"alter.column.type": ChangeAction.IGNORE}
    with pytest.raises(DdlStop, match="cannot be ignored"):
        planned((WIDENED,), kinds=kinds, after=(ID, WIDER))


def rekeyed(new: Column, *, changes_values: bool = False, **more: Any) -> ChangePlan:
    change = ColumnChange(ChangeKind.ALTER_TYPE, ID, new, changes_values=changes_values)
    return planned((change,), after=(new, A), **more)


def test_plan_key_that_becomes_a_wider_integer_is_one_step() -> None:
    wide = replace(ID, kind=Kind.BIGINT, type="bigint")
    plan = rekeyed(wide)
    assert texts(plan) == ["widen id>id"] and not plan.tables[0].is_reloaded
    (step,) = alter_steps(plan.tables[0].steps, plan.tables[0])
    assert step.after is not None and not step.after.nullable
    with pytest.raises(DdlStop, match="cannot be done"):
        rekeyed(wide, sink=AlteringSink("widen"))


@pytest.mark.parametrize(
    ("new", "changes_values", "why"),
    [
        (replace(ID, kind=Kind.BIGINT, type="bigint"), True, "values of the key column id"),
        (replace(ID, kind=Kind.SMALLINT, type="smallint"), True, "values of the key column id"),
        (replace(ID, kind=Kind.DECIMAL, type="decimal(12,0)", precision=12), False, "key column id changes its type"),
    ],
)
def test_plan_key_that_may_change_its_values_pauses(new: Column, changes_values: bool, why: str) -> None:
    with pytest.raises(DdlStop, match=why):
        rekeyed(new, changes_values=changes_values, mode=ChangeMode.EVOLVE)


def test_plan_column_of_the_key_of_a_channel_is_a_key_column() -> None:
    mapping = Mapping("shop.orders", "ods.orders", key=("id", "a"))
    narrower = replace(A, kind=Kind.SMALLINT, type="smallint")
    change = ColumnChange(ChangeKind.ALTER_TYPE, A, narrower, changes_values=True)
    with pytest.raises(DdlStop, match="values of the key column a"):
        planned((change,), mapping=mapping, after=(ID, narrower))


def test_plan_column_that_the_job_file_names_pauses_in_every_mode() -> None:
    mapping = Mapping("shop.orders", "ods.orders", columns={"id": "id", "double": "a * 2"})
    for change in (DROPPED, RENAMED):
        with pytest.raises(DdlStop, match="reads the column a"):
            planned((change,), mode=ChangeMode.EVOLVE, mapping=mapping)


class ListingSink(AlteringSink):
    """A sink that can list its keys; ``tables`` exist."""

    def __init__(self, *tables: str) -> None:
        super().__init__()
        self.tables = tables or ("ods.orders",)

    def target_states(self, job: str, incarnation: str, targets: list[str]) -> dict[str, TargetState]:
        return {name: TargetState("1") for name in targets if name in self.tables}

    def keys(self, *_: object) -> None:
        raise AssertionError("a plan reads nothing")


@pytest.mark.parametrize("kind", [ChangeKind.TRUNCATE_TABLE, ChangeKind.DROP_PARTITION])
@pytest.mark.parametrize("mode", [ChangeMode.LENIENT, ChangeMode.PAUSE])
def test_plan_of_removed_rows_pauses_and_names_both_options(kind: ChangeKind, mode: ChangeMode) -> None:
    with pytest.raises(DdlStop, match=f"pause for {kind.value}") as caught:
        planned((), rows=kind, mode=mode, sink=ListingSink())
    for action in ("apply", "ignore"):
        assert f"{{{kind.value}: {action}}}" in caught.value.hint


def test_plan_of_ignored_partition_work_loads_the_rows_that_it_brings() -> None:
    (table,) = planned((), rows=ChangeKind.DROP_PARTITION, mode=ChangeMode.IGNORE, values_differ=True).tables
    assert table.is_reloaded and not table.deletes_orphans
    assert table.columns_after == ColumnMap(kept_rows={"drop.partition": THERE})


@pytest.mark.parametrize("kind", [ChangeKind.TRUNCATE_TABLE, ChangeKind.DROP_PARTITION])
def test_plan_of_ignored_rows_keeps_the_difference(kind: ChangeKind) -> None:
    for arguments in ({"mode": ChangeMode.IGNORE}, {"kinds": {kind.value: ChangeAction.IGNORE}}):
        (table,) = planned((), rows=kind, **arguments).tables  # type: ignore[arg-type]
        assert table.steps == () and not table.is_reloaded and not table.deletes_orphans
        assert table.columns_after == ColumnMap(kept_rows={kind.value: THERE})
        assert table.actions == ((kind, "", ChangeAction.IGNORE),)


def test_plan_truncate_empties_the_target_without_a_load() -> None:
    kept = ColumnMap(kept_rows={"drop.partition": HERE})
    plan = planned((), rows=ChangeKind.TRUNCATE_TABLE, mode=ChangeMode.EVOLVE, snapshot=None, column_map=kept)
    assert texts(plan) == ["truncate >"]
    (table,) = plan.tables
    assert not table.is_reloaded and not table.deletes_orphans
    assert table.columns_after == ColumnMap(), "rows that were kept before are removed too"


def test_plan_dropped_partition_loads_again_and_deletes_orphans() -> None:
    rows, evolve = ChangeKind.DROP_PARTITION, ChangeMode.EVOLVE
    kept = ColumnMap(kept_rows={"truncate.table": HERE})
    (table,) = planned((), rows=rows, mode=evolve, sink=ListingSink(), column_map=kept).tables
    assert table.is_reloaded and table.deletes_orphans and table.steps == ()
    assert table.columns_after == ColumnMap()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({}, "cannot find the rows"),
        ({"sink": ListingSink(), "snapshot": None}, "no tables to load"),
        (
            {
                "sink": ListingSink(),
                "mapping": Mapping("shop.orders", "ods.orders", columns={"id": "id", "k": "id + 1"}, key=("id", "k")),
            },
            "a key column of ods.orders is an expression",
        ),
    ],
)
def test_plan_of_rows_that_cannot_be_found_pauses(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(DdlStop, match=why) as caught:
        planned((), rows=ChangeKind.DROP_PARTITION, mode=ChangeMode.EVOLVE, **arguments)
    if "tables" not in why:
        assert "{drop.partition: ignore}" in caught.value.hint


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
    with pytest.raises(DdlStop, match="it changes the key") as raised:
        planned((), kinds=kinds, mode=ChangeMode.EVOLVE, key_changed=True)
    assert "`cdc resume NAME --past-ddl --reload-missing`" in str(raised.value.hint)


def test_plan_changed_key_without_tables_to_load_names_another_job() -> None:
    with pytest.raises(DdlStop, match="it changes the key") as raised:
        planned((), key_changed=True, snapshot=None)
    assert "another job" in str(raised.value.hint) and "--reload-missing" not in str(raised.value.hint)


def table_plan(
    before: TableSchema, after: TableSchema, rows: ChangeKind, mode: ChangeMode = ChangeMode.LENIENT, **options: Any
) -> PlannedTable:
    column_map = options.pop("column_map", None)
    routes = Routes([Mapping("shop.*", "ods.*", filter=options.pop("filter", None), changes=ChangePolicy(mode))])
    routes.use_column_maps({"shop.orders": column_map} if column_map else {})
    context: Any = SimpleNamespace(
        run=RunIdentity("shop", "0badcafe", 1),
        routes=routes,
        sink=options.get("sink", ListingSink()),
        snapshot=options.get("snapshot", "tables"),
        types=None,
    )
    change = replaced(before, after, rows) if after.columns and before.columns else TableChange(before, after, (), rows)
    stop = DdlStop("RENAME changes shop.orders.", hint="Resume.")
    (plan,) = plan_change(context, SchemaChange("RENAME", HERE, THERE, (change,)), 7, stop).tables
    return plan


OTHER = replace(BEFORE, columns=(ID, A, B))
UNKNOWN = replace(BEFORE, columns=(), key=())
GONE = replace(BEFORE, is_dropped=True)


@pytest.mark.parametrize("mode", [ChangeMode.EVOLVE, ChangeMode.LENIENT])
def test_plan_of_another_table_loads_it_again_and_deletes_orphans(mode: ChangeMode) -> None:
    plan = table_plan(BEFORE, OTHER, ChangeKind.RENAME_TABLE, mode)
    assert (plan.is_reloaded, plan.deletes_orphans) == (True, True)
    assert [(one.action, one.new_name) for one in plan.steps] == [("add", "b")]
    assert plan.actions[0] == (ChangeKind.RENAME_TABLE, "", ChangeAction.APPLY)
    with pytest.raises(DdlStop, match="cannot find the rows"):
        table_plan(BEFORE, OTHER, ChangeKind.RENAME_TABLE, mode, sink=AlteringSink())
    with pytest.raises(DdlStop, match="no tables to load them from"):
        table_plan(BEFORE, OTHER, ChangeKind.RENAME_TABLE, mode, snapshot=None)


@pytest.mark.parametrize("mode", [ChangeMode.IGNORE, ChangeMode.PAUSE])
def test_plan_of_a_rename_pauses_in_other_modes(mode: ChangeMode) -> None:
    for before, after in ((BEFORE, OTHER), (BEFORE, GONE), (UNKNOWN, BEFORE)):
        with pytest.raises(DdlStop, match="pause for rename"):
            table_plan(before, after, ChangeKind.RENAME_TABLE, mode)


def test_plan_of_a_new_name_deletes_orphans_of_an_existing_target() -> None:
    plan = table_plan(UNKNOWN, BEFORE, ChangeKind.RENAME_TABLE)
    assert (plan.is_reloaded, plan.deletes_orphans, plan.steps) == (True, True, ())
    sink = AlteringSink()  # it cannot list its keys
    with pytest.raises(DdlStop, match="cannot find the rows"):
        table_plan(UNKNOWN, BEFORE, ChangeKind.RENAME_TABLE, sink=sink)
    sink.target_states = lambda *_: {}  # type: ignore[method-assign]
    plan = table_plan(UNKNOWN, BEFORE, ChangeKind.RENAME_TABLE, sink=sink)
    assert (plan.is_reloaded, plan.deletes_orphans) == (True, False)


@pytest.mark.parametrize("kind", [ChangeKind.DROP_TABLE, ChangeKind.DROP_DATABASE, ChangeKind.RENAME_TABLE])
def test_plan_of_a_table_that_ends_keeps_rows_and_never_says_applied(kind: ChangeKind) -> None:
    plan = table_plan(BEFORE, GONE, kind, ChangeMode.EVOLVE, sink=AlteringSink())
    assert (plan.steps, plan.is_reloaded, plan.deletes_orphans) == ((), False, False)
    assert plan.actions == ((kind, "", ChangeAction.IGNORE),)
    assert plan.columns_after.kept_rows.keys() == {kind.value}
    with pytest.raises(DdlStop, match=f"pause for {kind.value}"):
        table_plan(BEFORE, GONE, kind, ChangeMode.PAUSE)


@pytest.mark.parametrize("rows", [ChangeKind.CREATE_TABLE, ChangeKind.DROP_TABLE])
def test_plan_of_a_table_created_again_removes_the_difference(rows: ChangeKind) -> None:
    before = GONE if rows is ChangeKind.CREATE_TABLE else BEFORE  # DROP_TABLE: CREATE OR REPLACE
    plan = table_plan(before, OTHER, rows, column_map=ColumnMap(kept_rows={"drop.table": HERE}))
    assert (plan.is_reloaded, plan.deletes_orphans, plan.columns_after.kept_rows) == (True, True, {})
    assert plan.actions[0] == (ChangeKind.CREATE_TABLE, "", ChangeAction.APPLY)


@pytest.mark.parametrize("rows", [ChangeKind.CREATE_TABLE, ChangeKind.DROP_TABLE])
@pytest.mark.parametrize("options", [{"snapshot": None}, {"sink": AlteringSink()}], ids=["no tables", "no keys"])
def test_plan_of_a_created_table_that_cannot_be_loaded_empties_the_target(
    rows: ChangeKind, options: dict[str, Any]
) -> None:
    before = GONE if rows is ChangeKind.CREATE_TABLE else BEFORE
    plan = table_plan(before, OTHER, rows, column_map=ColumnMap(kept_rows={"drop.table": HERE}), **options)
    assert (plan.is_reloaded, plan.deletes_orphans, plan.columns_after.kept_rows) == (False, False, {})
    assert [(one.action, one.new_name) for one in plan.steps] == [("truncate", None), ("add", "b")]
    sink = AlteringSink("truncate")
    with pytest.raises(DdlStop, match="It cannot be done"):
        table_plan(before, OTHER, rows, sink=sink)
    sink.target_states = lambda *_: {}  # type: ignore[method-assign]
    plan = table_plan(before, OTHER, rows, sink=sink)
    assert (plan.steps, plan.is_reloaded) == ((), False)


@pytest.mark.parametrize("rows", [ChangeKind.CREATE_TABLE, ChangeKind.DROP_TABLE])
def test_plan_of_a_created_table_with_another_type_in_its_filter_empties_the_target(rows: ChangeKind) -> None:
    before = GONE if rows is ChangeKind.CREATE_TABLE else BEFORE
    plan = table_plan(before, replace(BEFORE, columns=(ID, WIDER)), rows, filter="a + 1 > 5", snapshot=None)
    assert ([one.action for one in plan.steps], plan.is_reloaded) == (["truncate", "widen"], False)


def test_plan_new_name_without_a_key_is_left_out_by_its_pattern() -> None:
    with pytest.raises(ValueError, match="not enough values"):
        table_plan(UNKNOWN, replace(BEFORE, key=()), ChangeKind.RENAME_TABLE)


def test_policy_group_never_empties_or_mixes_tables() -> None:
    policy = ChangePolicy(ChangeMode.LENIENT, {"drop": ChangeAction.APPLY, "rename": ChangeAction.IGNORE})
    assert policy.action(ChangeKind.DROP_COLUMN) is ChangeAction.APPLY
    assert policy.action(ChangeKind.DROP_TABLE) is policy.action(ChangeKind.DROP_DATABASE) is ChangeAction.IGNORE
    assert policy.action(ChangeKind.RENAME_TABLE) is ChangeAction.PAUSE


@pytest.mark.parametrize(
    ("condition", "old", "new", "is_reloaded"),
    [
        ("a <= 0.1", replace(A, kind=Kind.FLOAT, type="float"), replace(A, kind=Kind.DOUBLE, type="double"), True),
        ("id > 5", replace(A, kind=Kind.FLOAT, type="float"), replace(A, kind=Kind.DOUBLE, type="double"), False),
        ("a > 5", A, WIDER, False),
        ("A > 5 AND NOT coalesce((`a` = 7), false)", A, WIDER, False),  # `filter` and `delete_when`
        ("a > '3000000000'", A, WIDER, True),
        ("hash(a) > 5", A, WIDER, True),
        ("a > 5", A, replace(WIDER, unsigned=True), True),
        ("a > 5", replace(A, unsigned=True), replace(WIDER, unsigned=True), False),
        ("a > 5.25", DIGITS_36, DIGITS_38, False),
        ("a > 0.005", DIGITS_36, DIGITS_38, True),
        ("a > 5", DIGITS_36, replace(DIGITS_38, scale=3, type="decimal(38,3)"), True),
        ("a > 5", A, DIGITS_38, True),
        ("a != 'x'", LONGER.old, TEXT, False),
        (None, A, WIDER, False),
    ],
)
def test_plan_new_type_of_a_filtered_column_is_loaded_again(
    condition: str | None, old: Column, new: Column, is_reloaded: bool
) -> None:
    """Rows that the filter accepted with the old type can fail it with the new one, and the reverse."""
    found = planned(
        (ColumnChange(ChangeKind.ALTER_TYPE, old, new),),
        mapping=Mapping("shop.orders", "ods.orders", filter=condition),
        before=replace(BEFORE, columns=(ID, old)),
        after=(ID, new),
    )
    assert found.tables[0].is_reloaded is is_reloaded


def test_plan_filtered_column_without_tables_pauses_and_names_the_filter() -> None:
    mapping = Mapping("shop.orders", "ods.orders", filter="a > 5")
    assert texts(planned((WIDENED,), mapping=mapping, after=(ID, WIDER), snapshot=None)) == ["widen a>a"]
    mapping = replace(mapping, filter="a + 1 > 5")
    with pytest.raises(
        DdlStop, match=r"filter of the channel shop\.orders, a \+ 1 > 5, can accept .* column a, .*no tables"
    ):
        planned((WIDENED,), mapping=mapping, after=(ID, WIDER), snapshot=None)


@pytest.mark.parametrize("column_map", [None, ColumnMap(names={"a": None})], ids=["in the target", "ignored"])
@pytest.mark.parametrize(("condition", "is_filtered"), [("a != 'abc'", True), ("id > 5", False)])
def test_plan_changed_values_of_a_filtered_column_are_loaded_again(
    column_map: ColumnMap | None, condition: str, is_filtered: bool
) -> None:
    """VARCHAR(20) to VARCHAR(2) without an SQL mode that refuses longer values: 'abc' becomes 'ab'."""
    shorter = replace(TEXT, type="varchar(2)", length=2)
    found = planned(
        (ColumnChange(ChangeKind.ALTER_TYPE, TEXT, shorter, changes_values=True),),
        mapping=Mapping("shop.orders", "ods.orders", filter=condition),
        before=replace(BEFORE, columns=(ID, TEXT)),
        after=(ID, shorter),
        column_map=column_map,
    )
    assert found.tables[0].is_reloaded is (is_filtered or column_map is None)
