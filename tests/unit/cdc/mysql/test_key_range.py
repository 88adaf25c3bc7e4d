"""The range of the source's index in which keys of a target are compared."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from cdc.model.schema import Column, Kind
from cdc.model.snapshot import Bound, Chunk
from cdc.mysql import key_lookup
from cdc.mysql.key_lookup import key_range
from cdc.mysql.key_order import KeyColumn, KeyOrder

ID = Column("Id", Kind.BIGINT, "bigint", nullable=False)
PART = Column("part", Kind.VARCHAR, "varchar(10)", length=10, charset="utf8mb4")


def order_of(*columns: Column) -> KeyOrder:
    return KeyOrder("`shop`.`t`", "`PRIMARY`", tuple(KeyColumn(one, "") for one in columns))


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_lookup, "LEAST_RANGE", 2)


@pytest.mark.parametrize(
    ("keys", "above", "upto"),
    [
        ([7, 3, 5], ("2",), ("7",)),
        ([-7, 3], ("-8",), ("3",)),
        ([0, 3], ("-1",), ("3",)),
        ([-(1 << 63), (1 << 63) - 1], None, ("9223372036854775807",)),
    ],
)
def test_range_has_the_least_and_the_greatest_key(keys: list[int], above: Bound | None, upto: Bound) -> None:
    assert key_range(order_of(ID), [ID], pa.table({"id": pa.array(keys, pa.int64())})) == Chunk(0, above, upto)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ([-1, 3], Chunk(0, None, ("3",))),  # the server would read -2 as 2 to the 64th power - 2
        ([-5, -1], None),
        ([5, 3], Chunk(0, ("2",), ("5",))),
    ],
)
def test_unsigned_column_has_no_negative_bound(keys: list[int], found: Chunk | None) -> None:
    """Another program can have written a negative key into the target, whose type is signed."""
    column = replace(ID, unsigned=True, type="int unsigned", kind=Kind.INT)
    assert key_range(order_of(column), [column], pa.table({"id": pa.array(keys, pa.int64())})) == found


def test_range_of_several_columns_is_that_of_the_first_index_column() -> None:
    keys = pa.table({"part": ["b", "a"], "id": pa.array([4, 9], pa.int64())})
    found = key_range(order_of(ID, PART), [PART, ID], keys)
    assert found == Chunk(0, ("3",), ("9",))
    sql, bounds = order_of(ID, PART).rows_of(found)
    assert "`Id` > " in sql and "`Id` <= " in sql and bounds == ["3", "9"]


@pytest.mark.parametrize(
    ("columns", "keys"),
    [
        ((ID,), pa.table({"id": pa.array([4], pa.int64())})),  # too few
        ((PART,), pa.table({"part": ["a", "b"]})),
        ((PART, ID), pa.table({"part": ["a", "b"], "id": pa.array([4, 9], pa.int64())})),  # begins with a text
        ((ID,), pa.table({"id": pa.array([4, 9], pa.decimal128(20))})),
        ((), pa.table({"id": pa.array([4, 9], pa.int64())})),  # no index
    ],
)
def test_keys_without_a_range_are_looked_up(columns: tuple[Column, ...], keys: pa.Table) -> None:
    assert key_range(order_of(*columns), columns or [ID], keys) is None
