"""The FE's transaction manager: labels, states, time-outs, what is remembered and what an FE restart loses."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa

from tests.servers.olap_storage import Storage, StoredTable
from tests.servers.starrocks.settings import StarrocksSettings


class Status(Enum):
    PREPARE = "PREPARE"
    PREPARED = "PREPARED"
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
    table: str  # "" of a multi-table one
    label: str
    timeout_s: float
    multi: bool = False
    shown: bool = True  # to get_load_state and SHOW PROC
    backend: int | None = None  # that coordinates it
    status: Status = Status.PREPARE
    rows: list[tuple[StoredTable, list[pa.Table]]] = field(default_factory=list)
    row_count: int = 0
    changed_at: float = 0.0
    reason: str = ""


class Refused(Exception):
    """The FE's refusal; ``status`` as the BE words it."""

    def __init__(self, message: str, status: str = "ANALYSIS_ERROR") -> None:
        super().__init__(message)
        self.status = status


class LabelUsed(Refused):
    def __init__(self, existing: Transaction) -> None:
        super().__init__(f"Label [{existing.label}] has already been used.", "LABEL_ALREADY_EXISTS")
        self.job = "RUNNING" if existing.status in (Status.PREPARE, Status.PREPARED) else "FINISHED"


class Transactions:
    """``history`` keeps everything that ever was, for tests to look at."""

    def __init__(self, settings: StarrocksSettings, storage: Storage, clock: Callable[[], float] = time.time) -> None:
        self._settings, self._storage, self._clock = settings, storage, clock
        self._lock = threading.RLock()
        self._known: dict[int, Transaction] = {}
        self._next = 1000
        self.history: list[Transaction] = []
        self.hold_publish = False  # commits stay COMMITTED until publish()

    def begin(
        self,
        database: str,
        table: str,
        label: str,
        *,
        timeout_s: float,
        multi: bool = False,
        backend: int | None = None,
    ) -> Transaction:
        """Raises: Refused - bad label or time-out, label used, too many running transactions."""
        with self._lock:
            self.clean()
            if not re.fullmatch(r"[-\w]{1,128}", label):
                raise Refused(f"Label format error. regex: ^[-\\w]{{1,128}}$, label: {label}", "INTERNAL_ERROR")
            if not 1 <= timeout_s <= 259200:
                raise Refused(
                    f"Invalid timeout: '{timeout_s:.0f}'. Expected values should be between 1 and 259200 seconds"
                )
            for transaction in self._of(database):
                if transaction.label == label and transaction.status is not Status.ABORTED:
                    raise LabelUsed(transaction)
            running = sum(not transaction.status.final for transaction in self._of(database))
            limit = self._settings.max_running_txn_num_per_db
            if running >= limit:
                raise Refused(f"current running txns on db {database} is {running}, larger than limit {limit}")
            self._next += 1
            new = Transaction(
                self._next, database, table, label, timeout_s, multi, not multi, backend, changed_at=self._clock()
            )
            self._known[new.id] = new
            self.history.append(new)
            return new

    def prepare(
        self, transaction: Transaction, rows: list[tuple[StoredTable, list[pa.Table]]], row_count: int, life_s: float
    ) -> None:
        """Everything is on the tablets. Raises: Refused - gone meanwhile."""
        with self._lock:
            self._expect_begun(transaction)
            transaction.rows, transaction.row_count, transaction.timeout_s = rows, row_count, life_s
            self._set(transaction, Status.PREPARED)

    def commit(self, transaction: Transaction) -> None:
        """Raises: Refused - not prepared, or aborted."""
        with self._lock:
            if transaction.status is not Status.PREPARED:
                raise Refused(f"Can not commit {transaction.status.value} transaction {transaction.id}, "
                              f"label is {transaction.label}")  # fmt: skip
            self._set(transaction, Status.COMMITTED)
            if not self.hold_publish:
                self._publish(transaction)

    def abort(self, transaction: Transaction, reason: str = "User Aborted") -> None:
        """Raises: Refused - too late."""
        with self._lock:
            if transaction.status in (Status.COMMITTED, Status.VISIBLE):
                raise Refused(f"Can not abort {transaction.status.value} transaction {transaction.id}, "
                              f"label is {transaction.label}")  # fmt: skip
            transaction.reason, transaction.rows = reason, []
            self._set(transaction, Status.ABORTED)

    def publish(self) -> None:
        """Make every COMMITTED transaction VISIBLE, in commit order."""
        with self._lock:
            for transaction in sorted(self._known.values(), key=lambda each: each.changed_at):
                if transaction.status is Status.COMMITTED:
                    self._publish(transaction)

    def find(self, database: str, label: str) -> Transaction | None:
        """The newest one of ``label`` that is remembered."""
        with self._lock:
            self.clean()
            found = [transaction for transaction in self._of(database) if transaction.label == label]
            return found[-1] if found else None

    def state(self, database: str, label: str) -> tuple[str, str]:
        """State and reason; UNKNOWN where nothing is known."""
        found = self.find(database, label)
        hidden = found is not None and not found.shown and found.status is Status.PREPARE
        return ("UNKNOWN", "") if found is None or hidden else (found.status.value, found.reason)

    def running(self, database: str) -> list[Transaction]:
        """What SHOW PROC shows."""
        with self._lock:
            self.clean()
            return [each for each in self._of(database) if each.shown and not each.status.final]

    def clean(self) -> None:
        """Time out and forget, as the FE's cleaners do."""
        with self._lock:
            now = self._clock()
            for transaction in list(self._known.values()):
                waits = transaction.status in (Status.PREPARE, Status.PREPARED)
                if waits and now - transaction.changed_at > transaction.timeout_s:
                    self.abort(transaction, "timeout by txn manager")
                if transaction.status.final and now - transaction.changed_at > self._settings.label_keep_max_second:
                    del self._known[transaction.id]
            for database in {transaction.database for transaction in self._known.values()}:
                final = [transaction for transaction in self._of(database) if transaction.status.final]
                final.sort(key=lambda each: each.changed_at)
                for transaction in final[: max(0, len(final) - self._settings.label_keep_max_num)]:
                    del self._known[transaction.id]

    def expire(self, match: str = "") -> None:
        """Let everything begun or prepared whose label has ``match`` time out."""
        with self._lock:
            for transaction in list(self._known.values()):
                if match in transaction.label and transaction.status in (Status.PREPARE, Status.PREPARED):
                    self.abort(transaction, "timeout by txn manager")

    def forget(self, match: str = "") -> None:
        """Forget every transaction whose label has ``match``: the count of finished labels ran over."""
        with self._lock:
            for transaction in list(self._known.values()):
                if match in transaction.label:
                    del self._known[transaction.id]

    def lose_unsaved(self) -> None:
        """What an FE restart does: PREPARE was never written to the journal."""
        with self._lock:
            for transaction in list(self._known.values()):
                if transaction.status is Status.PREPARE:
                    transaction.reason = "lost"
                    transaction.status = Status.ABORTED
                    del self._known[transaction.id]

    def _of(self, database: str) -> list[Transaction]:
        return [transaction for transaction in self._known.values() if transaction.database == database]

    def _expect_begun(self, transaction: Transaction) -> None:
        known = self._known.get(transaction.id) is transaction
        if not known or transaction.status is not Status.PREPARE:
            raise Refused(f"transaction {transaction.id} is {transaction.status.value}", "TXN_NOT_EXISTS")

    def _set(self, transaction: Transaction, status: Status) -> None:
        transaction.status, transaction.shown = status, True
        transaction.changed_at = self._clock()

    def _publish(self, transaction: Transaction) -> None:
        there = [(table, rows) for table, rows in transaction.rows
                 if (table.database, table.name) in self._storage.tables]  # fmt: skip
        self._storage.apply_together(there)
        transaction.rows = []
        self._set(transaction, Status.VISIBLE)
