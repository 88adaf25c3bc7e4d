"""Plans of steps: what they rewrite, which widenings are exact, and the memory of fills."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from cdc.errors import TargetMismatch
from channels.sinks.alter_plan import alter_plan, can_widen
from channels.sinks.base import AlterAction, AlterStep, TargetColumn

ID = TargetColumn("id", pa.int64(), False)
TEXT = TargetColumn("text", pa.string(), True)
COUNT = TargetColumn("count", pa.int32(), False)
COLUMNS = (ID, TEXT, COUNT)


def add(name: str, fill: pa.Scalar | None = None) -> AlterStep:
    return AlterStep(AlterAction.ADD, None, TargetColumn(name, pa.string(), True), fill)


@pytest.mark.parametrize(
    ("old", "new", "is_exact"),
    [
        (pa.int32(), pa.float32(), False),
        (pa.int16(), pa.float32(), True),
        (pa.int64(), pa.float64(), False),
        (pa.int64(), pa.decimal128(18, 0), False),
        (pa.decimal128(10, 2), pa.decimal128(11, 4), False),
        (pa.decimal128(10, 2), pa.decimal128(12, 1), False),
        (pa.float64(), pa.float32(), False),
        (pa.date32(), pa.timestamp("us"), True),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        (pa.string(), pa.int64(), False),
        (pa.int64(), pa.string(), False),
    ],
)
def test_can_widen_accepts_only_exact_conversions(old: pa.DataType, new: pa.DataType, is_exact: bool) -> None:
    assert can_widen(old, new) is is_exact


def test_plan_without_changes_rewrites_nothing() -> None:
    plan = alter_plan("ods.t", COLUMNS, ["id"], [AlterStep(AlterAction.DROP, replace(TEXT, name="gone"), None)])
    assert not plan.changed and not plan.rewrites


def test_plan_of_add_without_fill_rewrites_nothing() -> None:
    plan = alter_plan("ods.t", COLUMNS, ["id"], [add("note"), add("other", pa.scalar(None, pa.string()))])
    assert plan.changed and not plan.rewrites


def test_plan_of_a_long_fill_yields_small_slices() -> None:
    fill = pa.scalar("x" * (1 << 20))
    plan = alter_plan("ods.t", (ID,), ["id"], [add("note", fill)])
    schema = pa.schema([("id", pa.int64()), ("note", pa.string())])
    parts = list(plan.rows(pa.table({"id": range(100)}), schema))
    assert max(part.nbytes for part in parts) <= 17 << 20
    assert [value for part in parts for value in part.column("id").to_pylist()] == list(range(100))


def test_plan_of_rename_to_another_spelling_is_a_rename() -> None:
    step = AlterStep(AlterAction.RENAME, TEXT, replace(TEXT, name="Text"))
    plan = alter_plan("ods.t", COLUMNS, ["id"], [step])
    assert [one.column.name for one in plan.columns] == ["id", "Text", "count"] and plan.rewrites


def test_plan_names_table_and_column_in_its_error() -> None:
    with pytest.raises(TargetMismatch) as caught:
        alter_plan("ods.t", COLUMNS, ["id"], [add("TEXT")])
    assert caught.value.context == {"table": "ods.t", "column": "TEXT"}
