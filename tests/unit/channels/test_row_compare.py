"""Comparison of source and target rows, against a comparison row by row in Python."""

from __future__ import annotations

import datetime
import decimal
import random

import pyarrow as pa
import pytest

from channels.row_compare import DIFFERENT, EXTRA, MISSING, compare_rows, unequal_columns

SCHEMA = pa.schema([
    pa.field("a", pa.int64()), pa.field("b", pa.string()), pa.field("n", pa.int32()), pa.field("t", pa.string()),
    pa.field("d", pa.decimal128(12, 2)), pa.field("at", pa.timestamp("us")), pa.field("raw", pa.binary()),
    pa.field("f", pa.float64()), pa.field("v", pa.list_(pa.float32())),
])  # fmt: skip


def row_of(draw: random.Random, number: int) -> dict[str, object]:
    def maybe(value: object) -> object:
        return None if draw.random() < 0.2 else value

    return {
        "a": number // 3, "b": f"k{number % 3}", "n": maybe(draw.randrange(5)), "t": maybe(draw.choice("abc")),
        "d": maybe(decimal.Decimal(draw.randrange(9)) / 4), "at": maybe(datetime.datetime(2024, 1, draw.randrange(1, 9))),
        "raw": maybe(bytes([draw.randrange(3)])), "f": maybe(draw.random()),
        "v": maybe([float(draw.randrange(3)) for _ in range(2)]),
    }  # fmt: skip


@pytest.mark.parametrize("key", [["a"], ["a", "b"], ["b", "a"]])
@pytest.mark.parametrize("seed", range(20))
def test_compare_rows_equals_a_comparison_by_row(seed: int, key: list[str]) -> None:
    draw = random.Random(seed)
    numbers = range(0, 60, 3) if key == ["a"] else range(60)
    source = [row_of(draw, number) for number in numbers if draw.random() < 0.9]
    target = [dict(row) for row in source if draw.random() < 0.8]
    for row in target:
        if draw.random() < 0.2:
            name = draw.choice([name for name in SCHEMA.names if name not in ("a", "b")])
            row[name] = row_of(draw, 0)[name]
    target += [row_of(draw, number) for number in range(900, 900 + draw.randrange(4) * 3, 3)]
    if draw.random() < 0.7:
        draw.shuffle(target)
    found = compare_rows(pa.Table.from_pylist(source, SCHEMA), pa.Table.from_pylist(target, SCHEMA), key)
    there = {tuple(row[name] for name in key): row for row in target}
    here = {tuple(row[name] for name in key): row for row in source}
    expected = {
        one: MISSING if one not in there else DIFFERENT for one, row in here.items() if there.get(one) != row
    } | {one: EXTRA for one in there if one not in here}  # fmt: skip
    keys = [tuple(row[name] for name in key) for row in found.keys.to_pylist()]
    assert dict(zip(keys, found.kinds.tolist(), strict=True)) == expected and len(keys) == len(expected)
    assert found.counts() == tuple(list(expected.values()).count(kind) for kind in (MISSING, EXTRA, DIFFERENT))
    for one, kind, left, right in zip(keys, found.kinds, found.source_rows, found.target_rows, strict=True):
        assert (left < 0) == (kind == EXTRA) and (right < 0) == (kind == MISSING)
        assert left < 0 or source[left] == here[one]
        assert right < 0 or target[right] == there[one]


def test_compare_rows_counts_a_key_that_the_target_has_twice() -> None:
    source, target = pa.table({"id": [1, 2], "n": [1, 2]}), pa.table({"id": [1, 2, 2], "n": [1, 2, 2]})
    assert compare_rows(source, target, ["id"]).counts() == (0, 1, 0)


def test_compare_rows_converts_to_the_types_of_the_target() -> None:
    source = pa.table({"id": pa.array([1, 2], pa.int32()), "n": pa.array([1, 2], pa.int32())})
    target = pa.table({"id": pa.array([1, 2], pa.int32()), "n": pa.array([1, 3], pa.int64())})
    assert compare_rows(source, target, ["id"]).keys.to_pylist() == [{"id": 2}]


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        ('{"a": 1, "b": [true, null]}', '{"b":[true,null],"a":1.0}', True),
        ('{"a": 1}', '{"a": true}', False),
        ('{"a": 12345678901234567890}', '{"a": 12345678901234567891}', False),
        ('{"a": "1"}', '{"a": 1}', False),
        ("[1, 2]", "[2, 1]", False),
        ("no document", "no document ", False),
    ],
)
def test_documents_are_compared_by_content(one: str, other: str, is_equal: bool) -> None:
    source, target = pa.table({"id": [1], "doc": [one]}), pa.table({"id": [1], "doc": [other]})
    found = compare_rows(source, target, ["id"], json_columns={"doc"})
    assert (found.keys.num_rows == 0) == is_equal
    assert unequal_columns(source, target, json_columns={"doc"}) == ([] if is_equal else ["doc"])
    assert compare_rows(source, target, ["id"]).keys.num_rows == 1, "as text they differ"


def test_rounded_floats_are_equal_in_their_digits() -> None:
    source = pa.table({"id": [1, 2, 3], "f": pa.array([1.2345678, 1e20, None], pa.float32())})
    target = pa.table({"id": [1, 2, 3], "f": pa.array([1.234568, 1e20 * (1 + 1e-5), 0.0], pa.float32())})
    assert compare_rows(source, target, ["id"], rounds_floats=True).keys.column("id").to_pylist() == [2, 3]
    assert compare_rows(source, target, ["id"]).keys.num_rows == 3


@pytest.mark.parametrize("empty", ["source", "target"])
def test_compare_rows_of_an_empty_side(empty: str) -> None:
    rows = pa.table({"id": [1, 2], "n": [1, 2]})
    tables = {"source": rows, "target": rows, empty: rows.slice(0, 0)}
    found = compare_rows(tables["source"], tables["target"], ["id"])
    assert found.counts() == ((0, 2, 0) if empty == "source" else (2, 0, 0))
