"""The transaction manager of StarRocks: transactions of one or several tables."""

from __future__ import annotations

import pyarrow as pa

from tests.emulators.storage import StoredTable
from tests.emulators.transactions import Refused, Status, Transaction, TransactionManager

__all__ = ["LabelUsed", "Refused", "Status", "Transaction", "Transactions"]


class LabelUsed(Refused):
    def __init__(self, existing: Transaction) -> None:
        super().__init__(f"Label [{existing.label}] has already been used.", "LABEL_ALREADY_EXISTS")
        self.job = "RUNNING" if existing.status in (Status.PREPARE, Status.PREPARED) else "FINISHED"


class Transactions(TransactionManager):
    """See TransactionManager."""

    expiring = (Status.PREPARE, Status.PREPARED)
    label_pattern = r"[-\w]{1,128}"

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
        """Raises: Refused - bad label or time limit, label in use, too many running transactions."""
        with self._lock:
            if not 1 <= timeout_s <= 259200:
                raise Refused(
                    f"Invalid timeout: '{timeout_s:.0f}'. Expected values should be between 1 and 259200 seconds"
                )
            limit = self._settings.max_running_txn_num_per_db
            kind = {"timeout_s": timeout_s, "multi": multi, "shown": not multi, "backend": backend}
            return self._begin(database, table, label, limit, **kind)

    def _label_used(self, existing: Transaction) -> Refused:
        return LabelUsed(existing)

    def _limit_refused(self, database: str, running: int, limit: int) -> Refused:
        return Refused(f"current running txns on db {database} is {running}, larger than limit {limit}")

    def _time_limit(self, transaction: Transaction) -> float | None:
        return transaction.timeout_s if transaction.status in self.expiring else None

    def _label_limits(self) -> tuple[float, int]:
        return self._settings.label_keep_max_second, self._settings.label_keep_max_num

    def _by_age(self, final: list[Transaction]) -> list[Transaction]:
        return sorted(final, key=lambda each: each.changed_at)

    def prepare(
        self, transaction: Transaction, rows: list[tuple[StoredTable, list[pa.Table]]], row_count: int, life_s: float
    ) -> None:
        """Prepare a transaction whose rows are written. Raises: Refused - it has ended."""
        with self._lock:
            known = self._known.get(transaction.id) is transaction
            if not known or transaction.status is not Status.PREPARE:
                raise Refused(f"transaction {transaction.id} is {transaction.status.value}", "TXN_NOT_EXISTS")
            transaction.rows, transaction.row_count, transaction.timeout_s = rows, row_count, life_s
            self._set(transaction, Status.PREPARED)

    def commit(self, transaction: Transaction) -> None:
        """Raises: Refused - not prepared, or aborted."""
        with self._lock:
            if transaction.status is not Status.PREPARED:
                raise self._impossible("commit", transaction)
            self._commit(transaction)

    def abort(self, transaction: Transaction, reason: str = "User Aborted") -> None:
        """Raises: Refused - too late."""
        with self._lock:
            if transaction.status in (Status.COMMITTED, Status.VISIBLE):
                raise self._impossible("abort", transaction)
            transaction.reason, transaction.rows = reason, []
            self._set(transaction, Status.ABORTED)

    def _impossible(self, what: str, transaction: Transaction) -> Refused:
        number = f"{transaction.status.value} transaction {transaction.id}"
        return Refused(f"Can not {what} {number}, label is {transaction.label}")

    def state(self, database: str, label: str) -> tuple[str, str]:
        """Return state and reason; UNKNOWN if the label is not known."""
        found = self.find(database, label)
        hidden = found is not None and not found.shown and found.status is Status.PREPARE
        return ("UNKNOWN", "") if found is None or hidden else (found.status.value, found.reason)

    def running(self, database: str) -> list[Transaction]:
        """Return what SHOW PROC shows."""
        with self._lock:
            self.clean()
            return [each for each in self._of(database) if each.shown and not each.status.final]

    def _lose(self, transaction: Transaction) -> None:
        transaction.status = Status.ABORTED

    def _apply(self, transaction: Transaction) -> None:
        there = [(table, rows) for table, rows in transaction.rows
                 if (table.database, table.name) in self._storage.tables]  # fmt: skip
        self._storage.apply_together(there)
