"""Schema changes at random moments: a thread that changes columns and tables of the shop.

Columns are added, renamed, exchanged, widened, narrowed and dropped by ALTER TABLE, and by the statements of gh-ost and
pt-online-schema-change. Tables are emptied, and renamed away and back.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import pymysql

from cdc.demo import shop
from cdc.demo.local_servers import LocalServer
from tests.support.answers import schema_now
from tests.support.online_changes import Writers, gh_ost, pt_osc_begin, pt_osc_end

ELSEWHERE = "elsewhere"  # a database that no channel reads
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
# type -> a narrower one, which the rows below fit into, and a session in strict mode accepts
NARROWER = {
    "BIGINT": "SMALLINT",
    "INT": "TINYINT",
    "INT NOT NULL DEFAULT 8": "SMALLINT NOT NULL DEFAULT '007'",
    "VARCHAR(90) NOT NULL DEFAULT 'new'": "VARCHAR(9) NOT NULL DEFAULT 'it''s'",
    "DECIMAL(12,2)": "DECIMAL(5,1)",
    "DECIMAL(5,2) DEFAULT 1.005": "DECIMAL(4,1)",
    "DATETIME(3) DEFAULT '2024-02-29 10:20:30.4'": "DATETIME",
}
TRUNCATED = ("customers", "order_items")  # the others have enough rows for a comparison, and the shop finds its orders

# each of them can have the values 10 to 99
_NUMBERS = ("BIGINT", "SMALLINT", "TINYINT", "VARCHAR", "DECIMAL")


@dataclass(frozen=True)
class Own:
    """A column that was added here. ``kept``: the type of the target, if the column was narrowed since."""

    definition: str
    kept: str = ""


class Migrator(threading.Thread):
    """Make a random change every ``PAUSE_S`` seconds. Only columns that it has added are changed.

    ``statements``: those that a job follows, as the binlog has them. ``writers``: they wait during a copy of gh-ost.
    """

    def __init__(self, server: LocalServer, seed: int, writers: Writers) -> None:
        super().__init__(daemon=True)
        self._server, self._draw, self._ending = server, random.Random(seed), threading.Event()
        self._columns: dict[str, dict[str, Own]] = {name: {} for name in shop.KEYS}
        self._number = 0
        self._writers = writers
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
        choices: list[Callable[[str], str]] = [self._alter] * 6 + [self._gh_ost, self._pt_osc, self._away_and_back]
        if table in TRUNCATED:
            choices.append(self._truncate)
        self.statements.append(self._draw.choice(choices)(table))
        self._fill(table, columns)

    def kept_types(self, table: str) -> dict[str, str]:
        """Return the Arrow types of narrowed columns in the target, which keeps the wider type."""
        return {name: own.kept for name, own in self._columns[table].items() if own.kept}

    def stop(self) -> None:
        """End the thread. Raises: the error that ended it."""
        self._ending.set()
        self.join()
        if self.error is not None:
            raise self.error

    def next(self, writers: Writers) -> Migrator:
        """Return a started thread that continues where this one ended."""
        following = Migrator(self._server, self._draw.randrange(1 << 30), writers)
        following._columns, following._number, following.statements = self._columns, self._number, self.statements
        following.start()
        return following

    # --- statements

    def _alter(self, table: str) -> str:
        columns = self._columns[table]
        choices = [self._add]
        if columns:
            choices += [self._rename, self._widen, self._narrow, self._drop, self._drop]
        if len(columns) > 1:
            choices.append(self._exchange)
        statement = f"ALTER TABLE {shop.DATABASE}.{table} {self._draw.choice(choices)(table, columns)}"
        self._server.execute(statement)
        return statement

    def _clauses(self, table: str) -> str:
        """Return changes of different columns. The tools copy columns by name, so none is renamed."""
        columns = self._columns[table]
        before = sorted(columns)
        clauses = [self._add(table, columns)]
        if before and self._draw.random() < 0.5:
            name = self._draw.choice(before)
            del columns[name]
            clauses.append(f"DROP COLUMN {name}")
        return ", ".join(clauses)

    def _gh_ost(self, table: str) -> str:
        if self._draw.random() < 0.3:
            gh_ost(self._server, shop.DATABASE, "ADD COLUMN never INT", self._writers, table=table, end=False)
        return gh_ost(self._server, shop.DATABASE, self._clauses(table), self._writers, table=table)

    def _pt_osc(self, table: str) -> str:
        pt_osc_begin(self._server, shop.DATABASE, self._clauses(table), table=table)
        self._ending.wait(self._draw.uniform(0, 1))  # the triggers write to both tables
        return pt_osc_end(self._server, shop.DATABASE, table=table)

    def _truncate(self, table: str) -> str:
        statement = f"TRUNCATE TABLE {shop.DATABASE}.{table}"
        self._server.execute(statement)
        return statement

    def _away_and_back(self, table: str) -> str:
        """Rename a table, change a row, and rename it back. Writers find no table meanwhile."""
        self._number += 1
        there = f"{shop.DATABASE}.{table}"
        away = f"{self._draw.choice([shop.DATABASE, ELSEWHERE])}.{table}_{self._number}"
        self._server.execute(f"CREATE DATABASE IF NOT EXISTS {ELSEWHERE}", f"RENAME TABLE {there} TO {away}")
        self.statements.append(f"RENAME TABLE {there} TO {away}")
        self._ending.wait(self._draw.uniform(0, 1))
        self._server.execute(f"DELETE FROM {away} LIMIT 1")
        self._server.execute(f"RENAME TABLE {away} TO {there}")
        return f"RENAME TABLE {away} TO {there}"

    def _fill(self, table: str, columns: dict[str, Own]) -> None:
        """Give some rows other values than the defaults, so that values in a wrong column are noticed."""
        plain = [name for name, own in columns.items() if own.definition.startswith(_NUMBERS)]
        if not plain:
            return
        values = ", ".join(f"{name} = {self._draw.randrange(10, 100)}" for name in plain)
        try:
            self._server.execute(f"UPDATE {shop.DATABASE}.{table} SET {values} LIMIT {self._draw.randrange(1, 30)}")
        except pymysql.err.OperationalError as error:
            if error.args[0] not in (1205, 1213):  # the shoppers lock rows, too
                raise

    # --- clauses of ALTER TABLE

    def _add(self, table: str, columns: dict[str, Own]) -> str:
        # a name that was dropped may come again
        free = [name for name in (f"c{number}" for number in range(self._number + 2)) if name not in columns]
        name, definition = self._draw.choice(free), self._draw.choice(sorted(TYPES))
        self._number += 1
        columns[name] = Own(definition)
        return f"ADD COLUMN {name} {definition}"

    def _rename(self, table: str, columns: dict[str, Own]) -> str:
        old = self._draw.choice(sorted(columns))
        self._number += 1
        new = f"r{self._number}"
        columns[new] = columns.pop(old)
        return f"RENAME COLUMN {old} TO {new}"

    def _exchange(self, table: str, columns: dict[str, Own]) -> str:
        one, other = self._draw.sample(sorted(columns), 2)
        columns[one], columns[other] = columns[other], columns[one]
        return f"RENAME COLUMN {one} TO {other}, RENAME COLUMN {other} TO {one}"

    def _widen(self, table: str, columns: dict[str, Own]) -> str:
        name = self._draw.choice(sorted(columns))
        wider = TYPES.get(columns[name].definition)
        if not wider:
            return self._add(table, columns)
        columns[name] = replace(columns[name], definition=wider)
        return f"MODIFY COLUMN {name} {wider}"

    def _narrow(self, table: str, columns: dict[str, Own]) -> str:
        name = self._draw.choice(sorted(columns))
        own = columns[name]
        narrower = NARROWER.get(own.definition)
        if narrower is None:
            return self._add(table, columns)
        schema = schema_now(self._server, shop.DATABASE, table)
        kept = own.kept or str(next(one.arrow for one in schema.columns if one.name == name))
        columns[name] = Own(narrower, kept)
        return f"MODIFY COLUMN {name} {narrower}"

    def _drop(self, table: str, columns: dict[str, Own]) -> str:
        name = self._draw.choice(sorted(columns))
        del columns[name]
        return f"DROP COLUMN {name}"
