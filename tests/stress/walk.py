"""The walk: groups of rows step through 1, 2, 3, 4, deleted, 6, 7, 8, each step of a group in one transaction.

A row says by itself how far it is, so that a reader who knows nothing else can tell a lost step from a repeated one.
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
    begun: int = 0  # the step whose transaction was begun last; raised before its first statement
    done: int = 0  # the step that is committed

    @property
    def across_tables(self) -> bool:
        """Whether its transactions write more than one table."""
        return len({table for table, _ in self.rows}) > 1


@dataclass
class Walk:
    """All groups that ever set out."""

    groups: list[Group] = field(default_factory=list)
    by_row: dict[Row, Group] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def set_out(self, draw: random.Random) -> Group:
        """A new group: one row, two of a table, or one of each table."""
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
        """Every group there is now."""
        with self._lock:
            return list(self.groups)


class Walkers(threading.Thread):
    """One writer, with groups of its own: always the same number on their way, stepping in random order."""

    def __init__(self, connect: Callable[[], Any], walk: Walk, *, seed: int, live: int, steps_per_s: float) -> None:
        super().__init__(name=f"walkers-{seed}", daemon=True)
        self._connect, self._walk = connect, walk
        self._draw, self._live, self._pause_s = random.Random(seed), live, 1 / steps_per_s
        self._enough, self._no_more = threading.Event(), threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Walk until ``finish``; then let those who are on their way arrive."""
        try:
            connection = self._connect()
            with connection, connection.cursor() as cursor:
                groups = [self._walk.set_out(self._draw) for _ in range(self._live)]
                while groups and not self._no_more.is_set():
                    group = self._draw.choice(groups)
                    self._step(connection, cursor, group)
                    if group.done == LAST_STEP:
                        groups.remove(group)
                        if not self._enough.is_set():
                            groups.append(self._walk.set_out(self._draw))
                    time.sleep(0 if self._enough.is_set() else self._pause_s)
        except BaseException as error:
            self.failure = error

    def give_up(self) -> None:
        """Stop where it is; returns when it has. Harmless when it has finished."""
        self._no_more.set()
        self.join()

    def finish(self) -> None:
        """No new groups; returns when all have arrived. Raises: what the writer raised."""
        self._enough.set()
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
