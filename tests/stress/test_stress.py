"""The checker finds what it is for, and a short walk finds nothing; long walks are ``make stress``."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.stress.checker import Checker, Promise
from tests.stress.pairs import SOURCES, TARGETS
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


@pytest.mark.timeout(420)
def test_a_short_walk(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    outcome = run(tmp_path, "binlog", "delta", seconds=25, seed=seed)
    assert outcome.faults == (), f"seed {seed}"
    assert outcome.kills >= 2 and outcome.groups > 60 and outcome.polls > 30


@pytest.mark.stress
@pytest.mark.timeout(900)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_long_walks(tmp_path: Path, source: str, target: str) -> None:
    seed = random.SystemRandom().randrange(10**6)
    outcome = run(tmp_path, source, target, seconds=120, seed=seed)
    assert outcome.faults == (), f"seed {seed}"
