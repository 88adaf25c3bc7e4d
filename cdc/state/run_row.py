"""The row of a job as one run of it holds it: fence, token, lease, and the compare-and-set before every write."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import IO, Any

from cdc.errors import CheckpointError, LeaseLost
from cdc.state.base import JobRecord, JobState
from cdc.state.codec import from_json
from cdc.state.database import Database, Transaction
from cdc.state.deployments import insert_job, locked_record, write_record
from cdc.state.events import EventKind, add_event
from cdc.state.hosts import HostIdentity
from cdc.state.job_lock import assigned_elsewhere, held_elsewhere, older_copy, other_run, replaced_job
from cdc.state.write_times import WriteTimes

_OWN = "WHERE name = :name AND fence = :fence AND token = :token"
_COMPARE_AND_SET = (
    "UPDATE cdc_jobs SET saves = saves + 1"
    " WHERE name = :name AND token = :token AND saves >= :saves AND fence IN (:fence, :new_fence)"
)


class RunRow:
    """The row that this process holds, if any. Calls: any thread. Raises: CheckpointError from every call."""

    def __init__(self, database: Database, host: HostIdentity, lease_s: float) -> None:
        self._database = database
        self._host = host
        self._lease_s = lease_s
        self._held: JobRecord | None = None
        self._lock_file: IO[str] | None = None
        self._token, self._saves = "", 0  # of this run; the row has ``saves`` or more
        self.write_times = WriteTimes()
        self._thread_lock = threading.RLock()

    def acquire(self, job: str, job_file: str, lock_file: IO[str], incarnation: str | None = None) -> JobRecord:
        """Take the row with a greater fence. Create it for a new job, if ``incarnation`` is None. Raises: LeaseLost."""
        token = secrets.token_hex(8)
        record = self._database.transact(
            lambda transaction: self._acquire(transaction, job, job_file, token, incarnation)
        )
        with self._thread_lock:
            self._held, self._lock_file, self._token, self._saves = record, lock_file, token, 0
        return record

    def release(self) -> None:
        """End the lease, then release the lock file."""
        with self._thread_lock:
            held, self._held = self._held, None
            lock_file, self._lock_file = self._lock_file, None
        if held is not None and self._lease_s:
            values = {"name": held.name, "fence": held.fence, "token": self._token}
            with suppress(CheckpointError):  # the lease ends by time
                sql = f"UPDATE cdc_jobs SET lease_until = 0 {_OWN}"
                self._database.transact(lambda transaction: transaction.run(sql, **values))
        if lock_file is not None:
            lock_file.close()

    @property
    def held(self) -> JobRecord:
        """The record of the job. Raises: LeaseLost - this process holds none."""
        if self._held is None:
            raise LeaseLost("This process does not have the lock of the job.", hint="Start the job again.")
        return self._held

    def renew(self, summary: Mapping[str, Any] | None) -> None:
        """Extend the lease, and save ``summary``. Raises: LeaseLost."""
        with self._thread_lock:
            held, now = self.held, self._database.words.now
            values = {"name": held.name, "fence": held.fence, "token": self._token, "lease_s": self._lease_s}
        also = ""
        if summary is not None:
            also, values["summary"] = f", summary = :summary, summary_at = {now}", json.dumps(dict(summary))
        sql = f"UPDATE cdc_jobs SET lease_until = {now} + :lease_s{also} {_OWN}"
        # the thread that renews must see the end of the lease, so it repeats the call itself
        if not self._database.transact(lambda transaction: transaction.run(sql, **values), repeats=False):
            self.check()  # not an error if an adoption has just increased the fence of this run

    def check(self) -> None:
        """Raise LeaseLost if another process runs the job now, or the store was replaced by an older copy."""
        with self._thread_lock:
            held, token, saves = self.held, self._token, self._saves
            self._database.check_file(held.name)
            sql = "SELECT fence, token, saves, record FROM cdc_jobs WHERE name = :name"
            rows = self._database.all(sql, name=held.name)
        if not rows or rows[0][0] != held.fence:
            raise other_run(held, record_of(rows[0][3]) if rows else None)
        if rows[0][1] != token or rows[0][2] < saves:
            raise older_copy(held, self._database.location, rows[0][2], saves)

    def write(self, work: Callable[[Transaction, JobRecord], object], after: JobRecord | None = None) -> None:
        """Run ``work`` in a transaction that first compares and sets the row of the job.

        ``after``: the record of the run from then on. Raises: LeaseLost - another run has the job.
        """
        with self._thread_lock:
            held = self.held
            self._database.check_file(held.name)
            # a commit whose answer was lost is repeated, and has set the fence of ``after`` already
            own = {"name": held.name, "token": self._token, "saves": self._saves, "fence": held.fence}
            own["new_fence"] = after.fence if after is not None else held.fence

            def guarded(transaction: Transaction) -> None:
                if not transaction.run(_COMPARE_AND_SET, **own):
                    raise _NotOwner
                work(transaction, held)

            began = time.monotonic()
            try:
                self._database.transact(guarded)
            except _NotOwner:
                self.check()
                raise other_run(held, None) from None
            finally:
                self.write_times = self.write_times.with_write(time.monotonic() - began)
            self._saves += 1
            self._held = after or held

    def refuse_other_host(self, transaction: Transaction, job: str) -> tuple[int, str | None, JobRecord] | None:
        """Return fence, last holder and record of a job that this host may run; None if it does not exist.

        Raises: LeaseLost - another host runs it, or it is assigned to another host.
        """
        now = self._database.words.now
        sql = f"SELECT fence, holder, home, lease_until - {now}, host, record FROM cdc_jobs WHERE name = :name"
        rows = transaction.all(sql, name=job)
        if not rows:
            return None
        fence, holder, home, left_s, assigned, record = rows[0]
        if left_s > 0 and home != self._host.home:
            raise held_elsewhere(job, holder, float(left_s))
        known = record_of(record)
        is_assigned_here = not self._lease_s or assigned in (None, self._host.name)  # a file has one host, by any name
        if not is_assigned_here and known.state not in (JobState.CANCELLED, JobState.DONE):
            raise assigned_elsewhere(job, assigned)
        return fence, holder, known

    def _acquire(
        self, transaction: Transaction, job: str, job_file: str, token: str, incarnation: str | None
    ) -> JobRecord:
        now, host = self._database.words.now, self._host
        row = self.refuse_other_host(transaction, job)
        if incarnation is not None and (row is None or row[2].incarnation != incarnation):
            raise replaced_job(job)
        if row is None:
            known = JobRecord(job, secrets.token_hex(4), 0, JobState.PENDING, job_file)
            insert_job(transaction, known)
            fence, before = 0, None
        else:
            fence, before, known = row
        lease, here = (f"{now} + :lease_s", "(host IS NULL OR host = :holder)") if self._lease_s else ("0", "1 = 1")
        done = transaction.run(
            "UPDATE cdc_jobs SET fence = fence + 1, token = :token, saves = 0, holder = :holder,"
            f" home = :home, lease_until = {lease} WHERE name = :name AND fence = :fence"
            f" AND (lease_until <= {now} OR home = :home) AND {here}",
            token=token,
            holder=host.name,
            home=host.home,
            name=job,
            **({"lease_s": self._lease_s} if self._lease_s else {}),
            fence=fence,
        )
        if not done:
            raise other_run(replace(known, fence=fence + 1), None)  # another host was faster
        record = locked_record(transaction, job)
        held = replace(record, job_file=job_file, fence=fence + 1, host=host.name, home=host.home)
        write_record(transaction, held)
        if before is not None and before != host.name:
            detail = {"from": before, "to": host.name, "fence": held.fence}
            text = f"host {host.name} took over from host {before}"
            add_event(transaction, now, job, EventKind.TAKE_OVER, text, host.name, detail)
        return held


class _NotOwner(Exception):
    """The row of the job has another fence or token."""


def record_of(text: str) -> JobRecord:
    """Return the record in a row. Raises: CheckpointError - it has another form."""
    return from_json(JobRecord, text)
