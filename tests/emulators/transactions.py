"""The transaction manager of an emulated FE: labels, states, time limits, and what it forgets."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, ClassVar

from tests.emulators.storage import Storage, StoredTable


class Status(Enum):
    PREPARE = "PREPARE"
    PRECOMMITTED = "PRECOMMITTED"  # Doris
    PREPARED = "PREPARED"  # StarRocks
    COMMITTED = "COMMITTED"
    VISIBLE = "VISIBLE"
    ABORTED = "ABORTED"

    @property
    def final(self) -> bool:
        return self in (Status.VISIBLE, Status.ABORTED)


@dataclass(slots=True)
class Transaction:
    id: int
    database: str
    table: str  # "" for a multi-table one
    label: str
    timeout_s: float
    two_phase: bool = True
    multi: bool = False
    shown: bool = True  # to get_load_state and SHOW PROC
    backend: int | None = None  # its coordinator
    status: Status = Status.PREPARE
    rows: list[Any] = field(default_factory=list)
    row_count: int = 0
    changed_at: float = 0.0
    reason: str = ""


class Refused(Exception):
    """The FE's refusal. ``status``: as the BE of StarRocks words it."""

    def __init__(self, message: str, status: str = "ANALYSIS_ERROR") -> None:
        super().__init__(message)
        self.status = status


class TransactionManager:
    """What both products share. ``history`` keeps every transaction for tests."""

    # the rules of a product
    expiring: ClassVar[tuple[Status, ...]]  # states that ``expire`` times out
    label_pattern: Any
    abort: Any  # (transaction, reason)
    _time_limit: Any  # (transaction): how long its state may last, or None
    _label_limits: Any  # (): for how long, and how many final labels of a database are kept
    _label_used: Any  # (transaction): the refusal
    _limit_refused: Any  # (database, running, limit): the refusal
    _apply: Any  # (transaction): make its rows visible

    def __init__(self, settings: Any, storage: Storage, clock: Callable[[], float] = time.time) -> None:
        self._settings, self._storage, self._clock = settings, storage, clock
        self._lock = threading.RLock()
        self._known: dict[int, Transaction] = {}
        self._next = 1000
        self.history: list[Transaction] = []
        self.hold_publish = False  # commits and INSERT statements stay COMMITTED until publish()
        self._inserts: list[Callable[[], None]] = []  # that are COMMITTED

    def _begin(self, database: str, table: str, label: str, limit: int, **kind: Any) -> Transaction:
        """Raises: Refused - bad label, label in use, too many running transactions."""
        self.clean()
        if not re.fullmatch(self.label_pattern, label):
            raise Refused(f"Label format error. regex: ^{self.label_pattern}$, label: {label}", "INTERNAL_ERROR")
        for transaction in self._of(database):
            if transaction.label == label and transaction.status is not Status.ABORTED:
                raise self._label_used(transaction)
        running = sum(not transaction.status.final for transaction in self._of(database))
        if running >= limit:
            raise self._limit_refused(database, running, limit)
        self._next += 1
        new = Transaction(self._next, database, table, label, changed_at=self._clock(), **kind)
        self._known[new.id] = new
        self.history.append(new)
        return new

    def publish(self) -> None:
        """Make every COMMITTED transaction VISIBLE, in commit order, and later ones at once."""
        with self._lock:
            self.hold_publish = False
            while self._inserts:
                self._inserts.pop(0)()
            for transaction in sorted(self._known.values(), key=lambda each: each.changed_at):
                if transaction.status is Status.COMMITTED:
                    self._publish(transaction)

    def insert(self, table: StoredTable, rows: Any) -> Status:
        """Commit the rows of an INSERT statement and return its state."""
        with self._lock:
            if self.hold_publish:
                self._inserts.append(partial(self._storage.apply, table, [rows]))
                return Status.COMMITTED
            self._storage.apply(table, [rows])
            return Status.VISIBLE

    def find(self, database: str, label: str) -> Transaction | None:
        """Return the newest known transaction of ``label``."""
        with self._lock:
            self.clean()
            found = [transaction for transaction in self._of(database) if transaction.label == label]
            return found[-1] if found else None

    def clean(self) -> None:
        """Time out and forget, as the FE's cleaners do."""
        with self._lock:
            now, (kept_s, kept_count) = self._clock(), self._label_limits()
            for transaction in list(self._known.values()):
                limit = self._time_limit(transaction)
                if limit is not None and now - transaction.changed_at > limit:
                    self.abort(transaction, "timeout by txn manager")
                if transaction.status.final and now - transaction.changed_at > kept_s:
                    del self._known[transaction.id]
            for database in {transaction.database for transaction in self._known.values()}:
                final = self._by_age([each for each in self._of(database) if each.status.final])
                for transaction in final[: max(0, len(final) - kept_count)]:
                    del self._known[transaction.id]

    def _by_age(self, final: list[Transaction]) -> list[Transaction]:
        return final

    def expire(self, match: str = "") -> None:
        """Time out every waiting transaction whose label has ``match``."""
        with self._lock:
            for transaction in list(self._known.values()):
                if match in transaction.label and transaction.status in self.expiring:
                    self.abort(transaction, "timeout by txn manager")

    def forget(self, match: str = "") -> None:
        """Forget every transaction whose label has ``match``, in any state: CLEAN LABEL, or too many final labels."""
        with self._lock:
            for transaction in list(self._known.values()):
                if match in transaction.label:
                    del self._known[transaction.id]

    def lose_unsaved(self) -> None:
        """Restart the FE: a PREPARE was never written to its journal."""
        with self._lock:
            for transaction in list(self._known.values()):
                if transaction.status is Status.PREPARE:
                    transaction.reason = "lost"
                    self._lose(transaction)
                    del self._known[transaction.id]

    def _lose(self, transaction: Transaction) -> None:
        return

    def _of(self, database: str) -> list[Transaction]:
        return [transaction for transaction in self._known.values() if transaction.database == database]

    def _set(self, transaction: Transaction, status: Status) -> None:
        transaction.status, transaction.shown = status, True
        transaction.changed_at = self._clock()

    def _commit(self, transaction: Transaction) -> None:
        self._set(transaction, Status.COMMITTED)
        if not self.hold_publish:
            self._publish(transaction)

    def _publish(self, transaction: Transaction) -> None:
        self._apply(transaction)
        transaction.rows = []
        self._set(transaction, Status.VISIBLE)
