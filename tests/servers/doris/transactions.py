"""Load transactions of the stand-in: labels, states, two-phase commit, time-outs and retention."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa

from tests.servers.doris.settings import DorisSettings
from tests.servers.olap_storage import Storage, StoredTable


class Status(Enum):
    PREPARE = "PREPARE"
    PRECOMMITTED = "PRECOMMITTED"
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
    table: str
    label: str
    two_phase: bool
    begun_at: float
    timeout_s: float
    status: Status = Status.PREPARE
    rows: list[pa.Table] = field(default_factory=list)
    row_count: int = 0
    changed_at: float = 0.0
    reason: str = ""


class Refused(Exception):
    """The FE's refusal; the text is what follows ``errCode = 2, detailMessage = ``."""


class LabelUsed(Refused):
    def __init__(self, existing: Transaction) -> None:
        super().__init__(f"Label [{existing.label}] has already been used, relate to txn [{existing.id}]")
        self.existing = existing


class Transactions:
    """The FE's transaction manager. ``history`` keeps everything that ever was, for tests to look at."""

    def __init__(self, settings: DorisSettings, storage: Storage, clock: Callable[[], float] = time.time) -> None:
        self._settings, self._storage, self._clock = settings, storage, clock
        self._lock = threading.RLock()
        self._known: dict[int, Transaction] = {}
        self._next = 1000
        self.history: list[Transaction] = []
        self.hold_publish = False  # commits stay COMMITTED until publish()

    def begin(self, database: str, table: str, label: str, *, two_phase: bool, timeout_s: float) -> Transaction:
        """Raises: Refused - bad label, label used, too many running transactions."""
        with self._lock:
            self.clean()
            if not re.fullmatch(self._settings.label_pattern, label):
                raise Refused(f"Label format error. regex: ^{self._settings.label_pattern}$, label: {label}")
            for transaction in self._of(database):
                if transaction.label == label and transaction.status is not Status.ABORTED:
                    raise LabelUsed(transaction)
            running = sum(not transaction.status.final for transaction in self._of(database))
            limit = self.quota(database)
            if running >= limit:
                number = 10000 + len(database)
                raise Refused(f"current running txns on db {number} is {running}, larger than limit {limit}")
            self._next += 1
            now = self._clock()
            new = Transaction(self._next, database, table, label, two_phase, now, timeout_s, changed_at=now)
            self._known[new.id] = new
            self.history.append(new)
            return new

    def quota(self, database: str) -> int:
        """Running transactions that ``database`` takes."""
        return self._settings.quotas.get(database, self._settings.max_running_txn_num_per_db)

    def precommit(self, transaction: Transaction, rows: pa.Table | None, row_count: int) -> None:
        with self._lock:
            self._hold(transaction, rows, row_count)
            self._set(transaction, Status.PRECOMMITTED)

    def commit_at_once(self, transaction: Transaction, rows: pa.Table | None, row_count: int) -> None:
        """A plain load."""
        with self._lock:
            self._hold(transaction, rows, row_count)
            self._commit(transaction)

    def commit(self, transaction: Transaction) -> None:
        """The second phase. Raises: Refused."""
        with self._lock:
            number = f"transaction [{transaction.id}]"
            match transaction.status:
                case Status.VISIBLE:
                    raise Refused(f"{number} is already visible, not pre-committed.")
                case Status.COMMITTED:
                    raise Refused(f"{number} is already committed, not pre-committed.")
                case Status.PREPARE:
                    raise Refused(f"{number} is prepare, not pre-committed.")
                case Status.ABORTED:
                    raise Refused(f"{number} is already aborted. abort reason: {transaction.reason}")
            if (transaction.database, transaction.table) not in self._storage.tables:
                raise Refused(f"unknown table, tableName={transaction.table}")
            self._commit(transaction)

    def abort(self, transaction: Transaction, reason: str = "User Abort") -> None:
        """Raises: Refused - too late."""
        with self._lock:
            if transaction.status is Status.ABORTED:
                raise Refused(f"transaction [{transaction.id}] is already aborted, abort reason: {transaction.reason}")
            if transaction.status in (Status.COMMITTED, Status.VISIBLE):
                raise Refused(f"transaction [{transaction.id}] is already {transaction.status.value}, could not abort.")
            transaction.reason = reason
            transaction.rows = []
            self._set(transaction, Status.ABORTED)

    def publish(self) -> None:
        """Make every COMMITTED transaction VISIBLE, in commit order."""
        with self._lock:
            for transaction in sorted(self._known.values(), key=lambda each: each.changed_at):
                if transaction.status is Status.COMMITTED:
                    self._publish(transaction)

    def by_id(self, number: int) -> Transaction:
        """Raises: Refused - unknown or cleaned."""
        with self._lock:
            self.clean()
            if number not in self._known:
                raise Refused(f"transaction [{number}] not found")
            return self._known[number]

    def by_label(self, database: str, label: str, wanted: tuple[Status, ...]) -> Transaction:
        """The newest one of ``label`` in a wanted state. Raises: Refused."""
        with self._lock:
            self.clean()
            found = [transaction for transaction in self._of(database) if transaction.label == label]
            if not found:
                raise Refused(f"transaction not found, label={label}")
            running = [transaction for transaction in found if transaction.status in wanted]
            if not running:
                raise Refused(f"running transaction not found, label={label}")
            return running[-1]

    def state(self, database: str, label: str) -> str:
        """The state of the newest transaction of ``label``; UNKNOWN if there is none."""
        with self._lock:
            self.clean()
            found = [transaction for transaction in self._of(database) if transaction.label == label]
            return found[-1].status.value if found else "UNKNOWN"

    def listed(self, database: str) -> list[Transaction]:
        """What SHOW TRANSACTION can see."""
        with self._lock:
            self.clean()
            return self._of(database)

    def clean(self) -> None:
        """Time out and forget, as the FE's cleaner does."""
        with self._lock:
            now = self._clock()
            for transaction in list(self._known.values()):
                limit = {
                    Status.PREPARE: transaction.timeout_s,
                    Status.PRECOMMITTED: self._settings.precommit_timeout_s,
                }.get(transaction.status)
                if limit is not None and now - transaction.changed_at > limit:
                    self.abort(transaction, "timeout by txn manager")
                if transaction.status.final and now - transaction.changed_at > self._settings.label_keep_s:
                    del self._known[transaction.id]
            for database in {transaction.database for transaction in self._known.values()}:
                final = [transaction for transaction in self._of(database) if transaction.status.final]
                for transaction in final[: max(0, len(final) - self._settings.label_num_threshold)]:
                    del self._known[transaction.id]

    def expire(self, match: str = "") -> None:
        """Let every pre-commit whose label has ``match`` time out."""
        with self._lock:
            for transaction in list(self._known.values()):
                if match in transaction.label and transaction.status is Status.PRECOMMITTED:
                    self.abort(transaction, "timeout by txn manager")

    def forget(self, match: str = "") -> None:
        """Forget every transaction whose label has ``match``, whatever its state: a fault, and CLEAN LABEL."""
        with self._lock:
            for transaction in list(self._known.values()):
                if match in transaction.label:
                    del self._known[transaction.id]

    def lose_unsaved(self) -> None:
        """What an FE restart does: PREPARE was never saved."""
        with self._lock:
            for transaction in list(self._known.values()):
                if transaction.status is Status.PREPARE:
                    transaction.reason = "lost"
                    del self._known[transaction.id]

    def _of(self, database: str) -> list[Transaction]:
        return [transaction for transaction in self._known.values() if transaction.database == database]

    def _expect_alive(self, transaction: Transaction) -> None:
        if self._known.get(transaction.id) is not transaction:
            raise Refused(f"transaction [{transaction.id}] not found")
        if transaction.status is not Status.PREPARE:
            raise Refused(f"transaction [{transaction.id}] is already {transaction.status.value.lower()}")

    def _hold(self, transaction: Transaction, rows: pa.Table | None, row_count: int) -> None:
        self._expect_alive(transaction)
        transaction.rows = [] if rows is None else [rows]
        transaction.row_count = row_count

    def _set(self, transaction: Transaction, status: Status) -> None:
        transaction.status = status
        transaction.changed_at = self._clock()

    def _commit(self, transaction: Transaction) -> None:
        self._set(transaction, Status.COMMITTED)
        if not self.hold_publish:
            self._publish(transaction)

    def _publish(self, transaction: Transaction) -> None:
        table: StoredTable | None = self._storage.tables.get((transaction.database, transaction.table))
        if table is not None:
            self._storage.apply(table, transaction.rows)
        transaction.rows = []
        self._set(transaction, Status.VISIBLE)
