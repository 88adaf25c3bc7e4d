"""The checker finds what it is for, and short walks find nothing; ``make stress`` walks long, between all pairs."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.errors import SurroundingsError
from tests.conftest import unavailable
from tests.servers.canal import obtain_canal
from tests.stress.checker import Checker, Promise
from tests.stress.run import run
from tests.stress.walk import Group, Row, Walk

A, B, C = ("left_feet", 1), ("left_feet", 2), ("right_feet", 1)


def faults(reads: list[dict[Row, int]], promise: Promise, rows: tuple[Row, ...] = (A,), begun: int = 8) -> list[str]:
    walk = Walk()
    group = Group(rows, begun=begun, done=begun)
    walk.groups.append(group)
    walk.by_row |= dict.fromkeys(rows, group)
    checker = Checker(walk, promise)
    for read in reads[:-1]:
        checker.observe(read)
    checker.at_rest(reads[-1])
    return checker.faults


@pytest.mark.parametrize(
    ("reads", "promise", "rows", "expected"),
    [
        ([{}, {A: 1}, {A: 3}, {}, {A: 6}, {A: 8}], Promise.IN_ORDER, (A,), ""),
        ([{}, {A: 6}, {A: 8}], Promise.IN_ORDER, (A,), ""),
        ([{A: 4}, {A: 3}, {A: 8}], Promise.IN_ORDER, (A,), "went back from step 4 to 3"),
        ([{A: 4}, {A: 3}, {A: 8}], Promise.IN_THE_END, (A,), ""),
        ([{A: 4}, {}, {A: 4}, {A: 8}], Promise.IN_ORDER, (A,), "went back from step 5 to 4"),
        ([{A: 7}, {}, {A: 8}], Promise.IN_ORDER, (A,), "is gone"),
        ([{A: 7}], Promise.IN_THE_END, (A,), "never came to step 8: 7"),
        ([{}], Promise.IN_THE_END, (A,), "never came to step 8: None"),
        ([{A: 1, B: 1}, {A: 8, B: 8}], Promise.IN_THE_END, (A,), "never written"),
        ([{A: 1, B: 2}, {A: 8, B: 8}], Promise.TABLE_AT_ONCE, (A, B), "half a transaction"),
        ([{A: 4}, {A: 8, B: 8}], Promise.TABLE_AT_ONCE, (A, B), "half a transaction"),
        ([{A: 1, B: 2}, {A: 8, B: 8}], Promise.IN_ORDER, (A, B), ""),
        ([{A: 1, C: 2}, {A: 8, C: 8}], Promise.TABLE_AT_ONCE, (A, C), ""),
        ([{A: 1, C: 2}, {A: 8, C: 8}], Promise.ALL_AT_ONCE, (A, C), "half a transaction"),
    ],
)
def test_the_checker_finds(reads: list[dict[Row, int]], promise: Promise, rows: tuple[Row, ...], expected: str) -> None:
    found = faults(reads, promise, rows)
    assert any(expected in fault for fault in found) if expected else found == []


def test_the_checker_finds_rows_from_the_future() -> None:
    assert "the source has only begun 2" in faults([{A: 3}], Promise.IN_THE_END, begun=2)[0]


@pytest.mark.parametrize(
    ("source", "target", "seed"),
    [("binlog", "delta", 16), pytest.param("canal", "starrocks-multi", 27, marks=pytest.mark.canal)],
)
def test_a_short_walk(tmp_path: Path, source: str, target: str, seed: int) -> None:
    if source == "canal":
        try:
            obtain_canal()
        except SurroundingsError as error:
            unavailable(str(error))
    outcome = run(tmp_path, source, target, seconds=25, seed=seed)
    assert outcome.faults == ()
    assert outcome.groups > 60 and outcome.views > 3
