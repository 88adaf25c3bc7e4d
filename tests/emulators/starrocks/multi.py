"""Multi-table transactions: the FE holds them in memory, and commits all of their tables at one moment."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tests.emulators.starrocks.bodies import Plan
from tests.emulators.starrocks.sql import makes_partitions
from tests.emulators.starrocks.transactions import Refused, Status, Transaction
from tests.emulators.storage import SIGN

if TYPE_CHECKING:
    from tests.emulators.starrocks.emulator import StarrocksEmulator


@dataclass(slots=True)
class Share:
    """What was loaded for one table."""

    plan: Plan
    backend: int
    generation: int  # of that backend, when it began
    bodies: list[bytes] = field(default_factory=list)
    rest: bytes = b""  # of a body that was cut; the next one is taken for its end
    is_busy: bool = False


@dataclass(slots=True)
class Task:
    transaction: Transaction
    state: str = "BEGIN"
    reason: str = ""
    shares: dict[str, Share] = field(default_factory=dict)


class MultiTasks:
    """All of them, by label alone."""

    def __init__(self, cluster: StarrocksEmulator) -> None:
        self._cluster = cluster
        self._tasks: dict[str, Task] = {}
        self.hold_commits = False  # they stay under way
        self.hold_aborts = False  # they are answered OK before they are done
        self._lock = threading.RLock()

    def begin(self, database: str, label: str, timeout_s: float) -> Task | None:
        """The task that is there already, whatever became of it, if any. Raises: Refused."""
        with self._lock:
            task = self._tasks.get(label)
            if task is not None:
                return task
            transaction = self._cluster.transactions.begin(database, "", label, timeout_s=timeout_s, multi=True)
            self._tasks[label] = Task(transaction)
            return None

    def share(self, label: str, database: str, table: str, headers: dict[str, str]) -> tuple[Task, Share]:
        """Return task and share for the next load of ``table``. Raises: Refused."""
        with self._lock:
            task = self._open(label)
            if task.state == "COMMITING":  # versions that do not refuse it at once
                text = f"channel state should be BEFORE_LOAD, label is {label}"
                self.abort(task, text)
                raise Refused(text)
            if database != task.transaction.database:
                text = f"Request database {database} not equal transaction database {task.transaction.database}"
                self.abort(task, text)
                raise Refused(text)
            if table not in task.shares:
                found = self._cluster.storage.tables.get((database, table))
                if found is None:
                    text = f"Failed to find table {table} in db {database}"
                    self.abort(task, text)
                    raise Refused(text)
                backend = self._cluster.next_backend()
                if backend is None:
                    raise Refused("no alive backend")
                try:
                    plan = Plan(headers, found)
                except Refused as error:
                    self.abort(task, str(error))
                    raise
                task.shares[table] = Share(plan, backend.number, backend.generation)
                task.transaction.shown = not self._cluster.settings.unknown_before_commit
            return task, task.shares[table]

    def _open(self, label: str) -> Task:
        self._cluster.transactions.clean()
        task = self._tasks.get(label)
        if task is None:
            raise Refused(f"stream load task {label} does not exist")
        if task.state == "BEGIN" and task.transaction.status is Status.ABORTED:
            task.state, task.reason = "CANCELLED", task.transaction.reason  # its time was over
        if task.state == "CANCELLED":
            raise Refused(f"stream load task {label} has already been cancelled: {task.reason}")
        if task.state == "ABORTING":
            raise Refused(f"stream load task {label} is aborting: {task.reason}")
        if task.state == "COMMITED":
            raise Refused(f"stream load task {label} has already been commited")
        return task

    def abort(self, task: Task, reason: str) -> None:
        with self._lock:
            if task.state in ("BEGIN", "COMMITING", "ABORTING"):
                task.state, task.reason, task.shares = "CANCELLED", reason, {}
                self._cluster.transactions.abort(task.transaction, reason)

    def commit(self, label: str) -> tuple[Transaction, bool]:
        """Return the transaction, and True if it was committed before. Raises: Refused."""
        with self._lock:
            task = self._tasks.get(label)
            if task is not None and task.state == "COMMITED":
                return task.transaction, True
            task = self._open(label)
            if task.state == "COMMITING":
                raise Refused(f"Transaction {task.transaction.id} is already committing, label is {label}")
            task.state = "COMMITING"
        while self.hold_commits:
            time.sleep(0.01)
        with self._lock:
            self._open(label)
            try:
                self._commit(task)
            except Refused as error:
                self.abort(task, str(error))
                raise
            task.state, task.shares = "COMMITED", {}
            return task.transaction, False

    def _commit(self, task: Task) -> None:
        cluster, rows, count = self._cluster, [], 0
        for table, share in task.shares.items():
            if cluster.backends[share.backend].generation != share.generation:
                raise Refused(f"load of {table} was lost with its backend")
            if cluster.settings.null and table != "cdc_checkpoints":
                count += sum(map(len, share.bodies))
                continue
            if not share.bodies:
                raise Refused("No rows were imported from upstream")
            checked = share.plan.check(share.bodies, cluster.storage, cluster.settings)
            bad = len(checked.bad)
            if checked.total == bad:  # looked at before the share of bad ones is
                raise _cancelled(task, "No rows were imported from upstream")
            if bad > share.plan.max_filter_ratio * checked.total:
                name = f"error_log_{task.transaction.id}_{table}"
                url = cluster.backends[share.backend].keep_error_log(name, checked.bad)
                raise _cancelled(task, f"abnormal data more than max filter rate, tracking_url: {url}")
            if makes_partitions(share.plan.table):
                text = f"automatic create partition failed. error: txn {task.transaction.id} not exist"
                raise _cancelled(task, text)
            rows.append((share.plan.table, self._in_order(checked.rows)))
            count += 0 if cluster.settings.null else checked.total - bad
        cluster.transactions.prepare(task.transaction, rows, count, 60)
        cluster.transactions.commit(task.transaction)

    def _in_order(self, rows: pa.Table) -> list[pa.Table]:
        """Return the rows in the order of their effect: in shared storage all deletes of a transaction are last."""
        if not self._cluster.settings.shared_data:
            return [rows]
        is_delete = pc.equal(rows[SIGN], 1)
        return [rows.filter(pc.invert(is_delete)), rows.filter(is_delete)]

    def rollback(self, label: str) -> str:
        """What it is answered. Raises: Refused."""
        with self._lock:
            task = self._tasks.get(label)
            if task is None:
                raise Refused(f"stream load task {label} does not exist")
            number = task.transaction.id
            if task.state == "COMMITED":
                raise Refused(f"Can not abort {task.transaction.status.value} transaction {number}, label is {label}")
            if task.state == "COMMITING":
                raise Refused(f"Can not abort transaction {number} during committing, label is {label}")
            if task.state == "CANCELLED":
                return f"stream load {label} has already aborted"
            if self.hold_aborts:
                task.state, task.reason = "ABORTING", "manual abort"
                return f"stream load {label} abort initiated, rollback pending (background retry will continue)"
            self.abort(task, "User Aborted")
            return f"stream load {label} abort"

    def forget(self) -> None:
        """Forget every task: more than a thousand came, or three days went by. What they had begun is aborted."""
        with self._lock:
            for task in self._tasks.values():
                self.abort(task, "forgotten")
            self._tasks.clear()

    def restart(self) -> None:
        """An FE restart cancels all of them."""
        with self._lock:
            for task in self._tasks.values():
                if task.state in ("BEGIN", "COMMITING"):
                    task.state, task.reason, task.shares = "CANCELLED", "cancelled after restart", {}


def _cancelled(task: Task, reason: str) -> Refused:
    """What the FE answers to a commit whose rows it looked at. It has no field for the address of their log."""
    transaction = task.transaction
    return Refused(
        f"stream_load_task:{transaction.id}, label:{transaction.label}, "
        f"error_msg:cancel stream task for exception: {reason}"
    )
