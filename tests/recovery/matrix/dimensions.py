"""The dimensions, their scenarios, and a sample that contains every pair of values."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations, product

from tests.model import faults
from tests.model.faults import FAULT_POINTS
from tests.recovery.matrix import environment

RECEIVERS = ("memory", "binlog", "binlog_files", "canal", "kafka")
SINKS = ("file", "delta", "delta-s3", "doris", "doris-plain", "starrocks-single", "starrocks-multi")
FAULTS = {  # names for people; the keys are the kinds of tests/model/faults.py and of environment.py
    "reject": "error",
    "after": "lost reply",
    "hang": "hang",
    "slow": "slow",
    "kill": "SIGKILL before",
    "kill_after": "SIGKILL after",
    "expired": "SIGSTOP, expired",
    "taken_over": "SIGSTOP, lease",
    "removed": "target removed",
    "older": "target older",
    "rolled_back": "state rolled back",
    "replaced": "state replaced",
}
KINDS = (*faults.KINDS, *environment.KINDS)
assert tuple(FAULTS) == KINDS

Pair = tuple[tuple[str, str], tuple[str, str]]  # one value of each of two dimensions


@dataclass(frozen=True, order=True)
class Cell:
    """One fault at one fault point, between one receiver and one sink."""

    fault_point: str
    kind: str
    receiver: str
    sink: str

    def __str__(self) -> str:
        return f"{self.receiver}-{self.sink}-{self.fault_point.replace(' ', '_')}-{self.kind}"

    @property
    def number(self) -> range:
        """Return which calls at the fault point can have the fault: Batches are many, cycles and rewinds few."""
        return range(1, 7) if self.fault_point in ("get", "decode") else range(1, 4)

    @property
    def impossible(self) -> str | None:
        """Return why this scenario is impossible, or None."""
        if self.fault_point == "decode" and self.receiver == "memory":
            return "the in-memory source delivers rows: nothing is decoded"
        if self.fault_point == "single commit" and self.sink == "doris-plain":
            return "without two phases rows are visible when they are loaded: there is no commit of a load"
        if self.kind in environment.KINDS and self.fault_point not in environment.FAULT_POINTS:
            return "faults of the environment are injected only where rows, sink and state are at different points"
        return None


def all_cells() -> list[Cell]:
    """Return every combination of the dimensions, also the impossible ones."""
    return [Cell(*values) for values in product(FAULT_POINTS, KINDS, RECEIVERS, SINKS)]


def possible_cells() -> list[Cell]:
    """Return the scenarios that can run."""
    return [cell for cell in all_cells() if cell.impossible is None]


def sample(seed: int) -> list[Cell]:
    """Return scenarios with every pair of values for faults inside a job, and with some pairs around it."""
    draw, possible = random.Random(seed), possible_cells()
    inside = [cell for cell in possible if cell.kind in faults.KINDS]
    around = [cell for cell in possible if cell.kind in environment.KINDS]
    return sorted([*chosen(draw, inside, pairs), *chosen(draw, around, pairs_around)])


def chosen(draw: random.Random, cells: list[Cell], pairs_of: Callable[[Cell], Iterable[Pair]]) -> Iterable[Cell]:
    """Return those of ``cells`` that together contain each of their pairs.

    Greedy: among some random scenarios, take the one with most missing pairs.
    """
    missing = {pair for cell in cells for pair in pairs_of(cell)}
    while missing:
        draw.shuffle(cells)
        best = max(cells[:200], key=lambda cell: len(missing.intersection(pairs_of(cell))))
        if missing.isdisjoint(pairs_of(best)):
            best = next(cell for cell in cells if not missing.isdisjoint(pairs_of(cell)))
        missing.difference_update(pairs_of(best))
        cells.remove(best)
        yield best


def pairs(cell: Cell) -> Iterable[Pair]:
    """Return the pairs that a sample must contain for faults inside a job."""
    dimensions = (
        ("fault point", cell.fault_point),
        ("kind", cell.kind),
        ("receiver", cell.receiver),
        ("sink", cell.sink),
    )
    return combinations(dimensions, 2)


def pairs_around(cell: Cell) -> Iterable[Pair]:
    """Return the pairs that a sample must contain for faults around a job, which need several processes each."""
    receiver = ("receiver", cell.receiver)
    return ((("kind", cell.kind), receiver), (("sink", cell.sink), receiver))
