"""The contract between the SQL of the store and a database: statements, transactions, and the few words that differ.

One SQL text serves every database: ``:name`` for values, an UPDATE and then an INSERT in place of an upsert.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")
Row = tuple[Any, ...]

KEY_CHARACTERS = 190  # of a column of the type ``SqlWords.key``; an index of MySQL has 3072 bytes


@dataclass(frozen=True, slots=True)
class SqlWords:
    """The words in which the databases differ."""

    now: str  # expression: the clock of the store, in seconds since 1970
    key: str  # type of names and digests; letter case is significant
    text: str  # type of JSON and YAML, 16 MB or more
    serial: str  # type of a primary key whose numbers are assigned and are not used again
    suffix: str = ""  # after CREATE TABLE (...)
    last_serial: str = ""  # statement that returns the number that the last INSERT was assigned


class Transaction(Protocol):
    """An open transaction. Calls: only inside ``Database.transact``, on its thread."""

    def run(self, sql: str, **values: Any) -> int:
        """Run a statement and return the number of rows that its WHERE matched, changed or not."""

    def all(self, sql: str, **values: Any) -> list[Row]:
        """Return all rows of a SELECT."""

    def insert(self, sql: str, **values: Any) -> int:
        """Run an INSERT into a table with a serial key. Return the key."""


class Database(Protocol):
    """A database with the tables of the store. Calls: any thread.

    Raises: CheckpointError from every call - the database cannot be read or written; the hint says what to do.
    """

    words: SqlWords

    @property
    def location(self) -> str:
        """The file or server of the store, without secrets."""

    def transact(self, work: Callable[[Transaction], Result], *, repeats: bool = True) -> Result:
        """Run ``work`` in a transaction, commit it and return its result. The commit is durable.

        ``repeats``: repeat it for some seconds after an error that may pass.

        A server may lose the answer of a COMMIT, so ``work`` may run again although it was committed: it must give the
        same result twice.
        """

    def all(self, sql: str, **values: Any) -> list[Row]:
        """Return all rows of a SELECT that needs no transaction."""

    def check_file(self, job: str) -> None:
        """Raise LeaseLost if the database is no longer the one that the run of ``job`` has opened."""

    def close(self) -> None:
        """Close all connections. May be repeated."""


def insert_once(insert: Callable[[Transaction], int], found: str, **values: Any) -> Callable[[Transaction], int]:
    """Return work that inserts a row with a serial key and returns the key, and that ``transact`` may repeat.

    If the first COMMIT was carried out and its answer was lost, a second row would be a second request. ``found``: a
    SELECT with ``:number`` that returns the row of an earlier attempt. It must compare the content too, because after a
    failover that lost the first transaction, the row of another client can have its number.
    """
    numbers: list[int] = []

    def work(transaction: Transaction) -> int:
        for number in numbers:
            if transaction.all(found, number=number, **values):
                return number
        numbers.append(insert(transaction))
        return numbers[-1]

    return work


def delete_once(delete: str, found: str, **values: Any) -> Callable[[Transaction], bool]:
    """Return work that deletes a row and returns whether it did, and that ``transact`` may repeat.

    ``found``: a SELECT of the row without the condition of ``delete``. An earlier attempt has deleted it if it is gone.
    """
    is_deleted = False

    def work(transaction: Transaction) -> bool:
        nonlocal is_deleted
        if transaction.run(delete, **values):
            is_deleted = True
            return True
        return is_deleted and not transaction.all(found, **values)

    return work
