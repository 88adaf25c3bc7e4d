"""The transaction manager of Doris: two-phase commit."""

from __future__ import annotations

import pyarrow as pa

from tests.emulators.transactions import Refused, Status, Transaction, TransactionManager

__all__ = ["LabelUsed", "Refused", "Status", "Transaction", "Transactions"]


class LabelUsed(Refused):
    def __init__(self, existing: Transaction) -> None:
        super().__init__(f"Label [{existing.label}] has already been used, relate to txn [{existing.id}]")
        self.existing = existing


class Transactions(TransactionManager):
    """See TransactionManager. The text of ``Refused`` follows ``errCode = 2, detailMessage = ``."""

    expiring = (Status.PRECOMMITTED,)

    @property
    def label_pattern(self) -> str:
        return str(self._settings.label_pattern)

    def begin(self, database: str, table: str, label: str, *, two_phase: bool, timeout_s: float) -> Transaction:
        """Raises: Refused - bad label, label in use, too many running transactions."""
        with self._lock:
            return self._begin(database, table, label, self.quota(database), two_phase=two_phase, timeout_s=timeout_s)

    def _label_used(self, existing: Transaction) -> Refused:
        return LabelUsed(existing)

    def _limit_refused(self, database: str, running: int, limit: int) -> Refused:
        number = 10000 + len(database)
        return Refused(f"current running txns on db {number} is {running}, larger than limit {limit}")

    def _time_limit(self, transaction: Transaction) -> float | None:
        limits = {
            Status.PREPARE: transaction.timeout_s,
            Status.PRECOMMITTED: self._settings.precommit_timeout_s,
        }
        return limits.get(transaction.status)

    def _label_limits(self) -> tuple[float, int]:
        return self._settings.label_keep_s, self._settings.label_num_threshold

    def quota(self, database: str) -> int:
        """Return the number of running transactions that ``database`` allows."""
        return int(self._settings.quotas.get(database, self._settings.max_running_txn_num_per_db))

    def precommit(self, transaction: Transaction, rows: pa.Table | None, row_count: int) -> None:
        with self._lock:
            self._hold(transaction, rows, row_count)
            self._set(transaction, Status.PRECOMMITTED)

    def commit_at_once(self, transaction: Transaction, rows: pa.Table | None, row_count: int) -> None:
        """Commit a plain load."""
        with self._lock:
            self._hold(transaction, rows, row_count)
            self._commit(transaction)

    def commit(self, transaction: Transaction) -> None:
        """Run the second phase. Raises: Refused."""
        with self._lock:
            number = f"transaction [{transaction.id}]"
            match transaction.status:
                case Status.VISIBLE | Status.COMMITTED | Status.PREPARE:
                    done = "" if transaction.status is Status.PREPARE else "already "
                    raise Refused(f"{number} is {done}{transaction.status.value.lower()}, not pre-committed.")
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

    def by_id(self, number: int) -> Transaction:
        """Raises: Refused - unknown or cleaned."""
        with self._lock:
            self.clean()
            if number not in self._known:
                raise Refused(f"transaction [{number}] not found")
            return self._known[number]

    def by_label(self, database: str, label: str, states: tuple[Status, ...]) -> Transaction:
        """Return the newest transaction of ``label`` in one of ``states``. Raises: Refused."""
        with self._lock:
            self.clean()
            found = [transaction for transaction in self._of(database) if transaction.label == label]
            if not found:
                raise Refused(f"transaction not found, label={label}")
            running = [transaction for transaction in found if transaction.status in states]
            if not running:
                raise Refused(f"running transaction not found, label={label}")
            return running[-1]

    def state(self, database: str, label: str) -> str:
        """Return the state of the newest transaction of ``label``; UNKNOWN if there is none."""
        found = self.find(database, label)
        return found.status.value if found else "UNKNOWN"

    def listed(self, database: str) -> list[Transaction]:
        """Return what SHOW TRANSACTION can show."""
        with self._lock:
            self.clean()
            return self._of(database)

    def _hold(self, transaction: Transaction, rows: pa.Table | None, row_count: int) -> None:
        if self._known.get(transaction.id) is not transaction:
            raise Refused(f"transaction [{transaction.id}] not found")
        if transaction.status is not Status.PREPARE:
            raise Refused(f"transaction [{transaction.id}] is already {transaction.status.value.lower()}")
        transaction.rows = [] if rows is None else [rows]
        transaction.row_count = row_count

    def _apply(self, transaction: Transaction) -> None:
        table = self._storage.tables.get((transaction.database, transaction.table))
        if table is not None:
            self._storage.apply(table, transaction.rows)
