"""The walk: groups of rows step through 1, 2, 3, 4, deleted, 6, 7, 8, each step of a group in one transaction.

A row contains its own step, so a reader without other knowledge can distinguish a lost step from a repeated one.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

DATABASE = "walk"
TABLES = ("left_feet", "right_feet")
DELETED_STEP, LAST_STEP = 5, 8
CREATE = "CREATE TABLE {table} (id BIGINT NOT NULL PRIMARY KEY, step INT NOT NULL, note VARCHAR(40))"

Row = tuple[str, int]  # table and id


@dataclass
class Group:
    """Rows that always step together."""

    rows: tuple[Row, ...]
    begun: int = 0  # the step of the newest transaction; raised before its first statement
    done: int = 0  # the committed step

    @property
    def across_tables(self) -> bool:
        """Return whether its transactions write more than one table."""
        return len({table for table, _ in self.rows}) > 1


@dataclass
class Walk:
    """All groups that ever started."""

    groups: list[Group] = field(default_factory=list)
    by_row: dict[Row, Group] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start_group(self, draw: random.Random) -> Group:
        """Start a new group: one row, two of a table, or one of each table."""
        with self._lock:
            number = 10 * len(self.groups)
            table = draw.choice(TABLES)
            rows: Iterable[Row] = draw.choice(
                [[(table, number)], [(table, number), (table, number + 1)], [(each, number) for each in TABLES]]
            )
            group = Group(tuple(rows))
            self.groups.append(group)
            self.by_row |= dict.fromkeys(group.rows, group)
            return group

    def seen(self) -> list[Group]:
        """Return every group that exists now."""
        with self._lock:
            return list(self.groups)


class Walkers(threading.Thread):
    """One writer with its own groups: always the same number of them, stepping in random order."""

    def __init__(self, connect: Callable[[], Any], walk: Walk, *, seed: int, live: int, steps_per_s: float) -> None:
        super().__init__(name=f"walkers-{seed}", daemon=True)
        self._connect, self._walk = connect, walk
        self._draw, self._live, self._pause_s = random.Random(seed), live, 1 / steps_per_s
        self._is_finishing, self._must_stop = threading.Event(), threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Walk until ``finish`` is called, then let the running groups reach their last step."""
        try:
            connection = self._connect()
            with connection, connection.cursor() as cursor:
                groups = [self._walk.start_group(self._draw) for _ in range(self._live)]
                while groups and not self._must_stop.is_set():
                    group = self._draw.choice(groups)
                    self._step(connection, cursor, group)
                    if group.done == LAST_STEP:
                        groups.remove(group)
                        if not self._is_finishing.is_set():
                            groups.append(self._walk.start_group(self._draw))
                    time.sleep(0 if self._is_finishing.is_set() else self._pause_s)
        except BaseException as error:
            self.failure = error

    def give_up(self) -> None:
        """Stop immediately and wait for the end. It has no effect if the writer has finished."""
        self._must_stop.set()
        self.join()

    def finish(self) -> None:
        """Start no new groups, and wait until all have reached their last step. Raise the error of the writer."""
        self._is_finishing.set()
        self.join()
        if self.failure is not None:
            raise self.failure

    def _step(self, connection: Any, cursor: Any, group: Group) -> None:
        step = group.begun + 1
        group.begun = step
        connection.begin()
        for table, number in group.rows:
            note = "x" * self._draw.randrange(40)
            if step in (1, DELETED_STEP + 1):
                cursor.execute(f"INSERT INTO {table} VALUES (%s, %s, %s)", (number, step, note))
            elif step == DELETED_STEP:
                cursor.execute(f"DELETE FROM {table} WHERE id = %s", (number,))
            else:
                cursor.execute(f"UPDATE {table} SET step = %s, note = %s WHERE id = %s", (step, note, number))
        connection.commit()
        group.done = step
