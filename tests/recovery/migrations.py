"""Schema changes at random moments: a thread that adds, renames, widens and drops columns of the shop's tables."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pymysql

from cdc.demo import shop
from cdc.demo.local_servers import LocalServer

PAUSE_S = 3.0
# type and default of a new column -> its wider type
TYPES = {
    "INT": "BIGINT",
    "SMALLINT NOT NULL DEFAULT '007'": "INT NOT NULL DEFAULT 8",
    "TINYINT UNSIGNED NOT NULL DEFAULT 3": "",
    "VARCHAR(9) NOT NULL DEFAULT 'it''s'": "VARCHAR(90) NOT NULL DEFAULT 'new'",
    "DECIMAL(5,2) DEFAULT 1.005": "DECIMAL(12,2)",
    "DATETIME(3) DEFAULT '2024-02-29 10:20:30.4'": "",
    "DATE": "",
    "TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP": "",
    "ENUM('a', 'b') NOT NULL": "ENUM('b', 'a', 'c') NOT NULL",
    "INT AS (1 + 1) STORED": "",
}

# each of them can have the values 10 to 99
_NUMBERS = ("BIGINT", "SMALLINT", "TINYINT", "VARCHAR", "DECIMAL")


class Migrator(threading.Thread):
    """Change a random table every ``PAUSE_S`` seconds. Only columns that it has added are changed."""

    def __init__(self, server: LocalServer, seed: int) -> None:
        super().__init__(daemon=True)
        self._server, self._draw, self._ending = server, random.Random(seed), threading.Event()
        self._columns: dict[str, dict[str, str]] = {name: {} for name in shop.KEYS}  # name -> definition
        self._number = 0
        self.statements: list[str] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        """Change tables until ``stop``."""
        try:
            while not self._ending.wait(PAUSE_S):
                self.step()
        except BaseException as error:
            self.error = error

    def step(self) -> None:
        """Make one change."""
        table = self._draw.choice(sorted(self._columns))
        columns = self._columns[table]
        choices: list[Callable[[str, dict[str, str]], str]] = [self._add]
        if columns:
            choices += [self._rename, self._widen, self._drop, self._drop]
        if len(columns) > 1:
            choices.append(self._exchange)
        clause = self._draw.choice(choices)(table, columns)
        self._server.execute(f"ALTER TABLE {shop.DATABASE}.{table} {clause}")
        self.statements.append(f"{table}: {clause}")
        self._fill(table, columns)

    def _fill(self, table: str, columns: dict[str, str]) -> None:
        """Give some rows other values than the defaults, so that values in a wrong column are noticed."""
        plain = [name for name, definition in columns.items() if definition.startswith(_NUMBERS)]
        if not plain:
            return
        values = ", ".join(f"{name} = {self._draw.randrange(10, 100)}" for name in plain)
        try:
            self._server.execute(f"UPDATE {shop.DATABASE}.{table} SET {values} LIMIT {self._draw.randrange(1, 30)}")
        except pymysql.err.OperationalError as error:
            if error.args[0] not in (1205, 1213):  # the shoppers lock rows, too
                raise

    def stop(self) -> None:
        """End the thread. Raises: the error that ended it."""
        self._ending.set()
        self.join()
        if self.error is not None:
            raise self.error

    def next(self) -> Migrator:
        """Return a started thread that continues where this one ended."""
        following = Migrator(self._server, self._draw.randrange(1 << 30))
        following._columns, following._number, following.statements = self._columns, self._number, self.statements
        following.start()
        return following

    def _add(self, table: str, columns: dict[str, str]) -> str:
        # a name that was dropped may come again
        free = [name for name in (f"c{number}" for number in range(self._number + 2)) if name not in columns]
        name, definition = self._draw.choice(free), self._draw.choice(sorted(TYPES))
        self._number += 1
        columns[name] = definition
        return f"ADD COLUMN {name} {definition}"

    def _rename(self, table: str, columns: dict[str, str]) -> str:
        old = self._draw.choice(sorted(columns))
        self._number += 1
        new = f"r{self._number}"
        columns[new] = columns.pop(old)
        return f"RENAME COLUMN {old} TO {new}"

    def _exchange(self, table: str, columns: dict[str, str]) -> str:
        one, other = self._draw.sample(sorted(columns), 2)
        columns[one], columns[other] = columns[other], columns[one]
        return f"RENAME COLUMN {one} TO {other}, RENAME COLUMN {other} TO {one}"

    def _widen(self, table: str, columns: dict[str, str]) -> str:
        name = self._draw.choice(sorted(columns))
        wider = TYPES.get(columns[name])
        if not wider:
            return self._add(table, columns)
        columns[name] = wider
        return f"MODIFY COLUMN {name} {wider}"

    def _drop(self, table: str, columns: dict[str, str]) -> str:
        name = self._draw.choice(sorted(columns))
        del columns[name]
        return f"DROP COLUMN {name}"
