"""The axes, the cells that they make, and a sample in which every pair of values is met twice."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from tests.flow.faults import KINDS, SEAMS

RECEIVERS = ("memory", "binlog", "binlog_files", "canal")
SINKS = ("file", "delta", "doris", "doris-plain", "starrocks-single", "starrocks-multi")
FAULTS = {  # as people call the kinds of tests/flow/faults.py
    "reject": "error",
    "after": "lost answer",
    "hang": "hang",
    "slow": "slow",
    "kill": "SIGKILL before",
    "kill_after": "SIGKILL after",
}
assert tuple(FAULTS) == KINDS


@dataclass(frozen=True, order=True)
class Cell:
    """One fault at one seam, between one receiver and one sink."""

    seam: str
    kind: str
    receiver: str
    sink: str

    def __str__(self) -> str:
        return f"{self.receiver}-{self.sink}-{self.seam.replace(' ', '_')}-{self.kind}"

    @property
    def number(self) -> range:
        """Which call at the seam has the fault: Batches are many, cycles and rewinds few."""
        return range(1, 7) if self.seam in ("get", "decode") else range(1, 4)

    @property
    def impossible(self) -> str | None:
        """Why there is no such cell; None where there is one."""
        if self.seam == "decode" and self.receiver == "memory":
            return "the in-memory source hands out rows: nothing is decoded"
        if self.seam == "single commit" and self.sink == "doris-plain":
            return "without two phases rows are visible as they load: there is no commit of a load"
        return None


def all_cells() -> list[Cell]:
    """Every combination of the axes, impossible ones too."""
    return [Cell(*values) for values in product(SEAMS, KINDS, RECEIVERS, SINKS)]


def possible_cells() -> list[Cell]:
    """Those that can be run."""
    return [cell for cell in all_cells() if cell.impossible is None]


def sample(seed: int, cells: Sequence[Cell] | None = None) -> list[Cell]:
    """Cells in which every pair of values of two axes is met that is met in ``cells``, and met by two of them if it can be.

    Greedy: of some cells drawn, the one with most pairs that are still missing.
    """
    draw, cells, taken = random.Random(seed), list(possible_cells() if cells is None else cells), list[Cell]()
    for _ in range(2):
        missing = {pair for cell in cells for pair in pairs(cell)}
        while missing:
            draw.shuffle(cells)
            best = max(cells[:200], key=lambda cell: len(missing.intersection(pairs(cell))))
            if missing.isdisjoint(pairs(best)):
                best = next(cell for cell in cells if not missing.isdisjoint(pairs(cell)))
            missing.difference_update(pairs(best))
            cells.remove(best)
            taken.append(best)
    return sorted(taken)


def pairs(cell: Cell) -> Iterable[tuple[object, object]]:
    """What a sample has to meet."""
    axes = (("seam", cell.seam), ("kind", cell.kind), ("receiver", cell.receiver), ("sink", cell.sink))
    return combinations(axes, 2)
