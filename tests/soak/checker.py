"""What a reader of the target may see of the walk, and what is a fault."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from tests.soak.random_walk import DELETED_STEP, LAST_STEP, Group, Row, Walk


class Promise(IntEnum):
    """The guarantee of a sink to a reader. Each one includes the earlier ones."""

    IN_THE_END = 0  # only that source and target are equal at rest
    IN_ORDER = 1  # no row ever returns to an earlier step
    TABLE_AT_ONCE = 2  # the changes of a transaction to one table are visible together
    ALL_AT_ONCE = 3  # also its changes to several tables


class Checker:
    """The memory of one reader. ``faults`` describes what went wrong."""

    def __init__(self, walk: Walk, promise: Promise) -> None:
        self._walk, self._promise = walk, promise
        self._last: dict[Row, int] = {}
        self.faults: list[str] = []
        self.polls = 0
        self.views = 0  # polls that showed something new
        self._shown: Mapping[Row, int] = {}

    def observe(self, found: Mapping[Row, int]) -> None:
        """Check the result of one read of all tables: row to step."""
        self.polls += 1
        self.views += found != self._shown
        self._shown = dict(found)
        for row in found.keys() - self._walk.by_row.keys():
            self.faults.append(f"{row} exists and was never written")
        for group in self._walk.seen():
            steps = {row: self._step(row, group, found) for row in group.rows}
            if self._promise >= Promise.TABLE_AT_ONCE:
                self._check_whole(group, steps, found)

    def _step(self, row: Row, group: Group, found: Mapping[Row, int]) -> int:
        last = self._last.get(row, 0)
        step = found.get(row)
        if step is None:
            step = DELETED_STEP if 0 < last <= DELETED_STEP else last if last == 0 else -1
        if step > group.begun:
            self.faults.append(f"{row} is at step {step}, the source has only started {group.begun}")
        if self._promise >= Promise.IN_ORDER:
            if step == -1:
                self.faults.append(f"{row} is gone, it was at step {last} before")
            elif step < last:
                self.faults.append(f"{row} went back from step {last} to {step}")
        self._last[row] = max(last, step)
        return step

    def _check_whole(self, group: Group, steps: Mapping[Row, int], found: Mapping[Row, int]) -> None:
        if group.across_tables and self._promise < Promise.ALL_AT_ONCE:
            return
        shown = {found.get(row) for row in group.rows}
        if len(shown) > 1:
            self.faults.append(f"half a transaction: { ({row: found.get(row) for row in steps}) }")

    def at_rest(self, found: Mapping[Row, int]) -> None:
        """Check the rows when the source is idle and the job has caught up."""
        self.observe(found)
        for row, group in self._walk.by_row.items():
            if group.done == LAST_STEP and found.get(row) != LAST_STEP:
                self.faults.append(f"{row} never reached step {LAST_STEP}: {found.get(row)}")
