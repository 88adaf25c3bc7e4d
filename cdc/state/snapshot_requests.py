"""The requests to load tables again, in the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cdc.model.snapshot import SnapshotRequest
from cdc.state.database import Transaction, insert_once
from cdc.state.job_lock import replaced_job
from cdc.state.run_row import record_of

Query = Callable[..., list[tuple[Any, ...]]]


def request_insert(job: str, request: SnapshotRequest, incarnation: str | None) -> Callable[[Transaction], int]:
    """Return work that saves a request, unless the job has another ``incarnation``. It may be repeated.

    The work raises LeaseLost: the next job of this name would carry the request out.
    """
    sql = "INSERT INTO cdc_snapshot_requests (job, source, predicate) VALUES (:job, :source, :predicate)"
    found = (
        "SELECT 1 FROM cdc_snapshot_requests WHERE number = :number AND job = :job AND source = :source"
        " AND COALESCE(predicate, '') = :predicate"
    )
    key = {"job": job, "source": request.table}

    def insert(transaction: Transaction) -> int:
        if incarnation is not None:
            rows = transaction.all("SELECT record FROM cdc_jobs WHERE name = :job", job=job)
            if not rows or record_of(rows[0][0]).incarnation != incarnation:
                raise replaced_job(job)
        return transaction.insert(sql, predicate=request.where, **key)

    return insert_once(insert, found, predicate=request.where or "", **key)


def read_requests(query: Query, job: str) -> tuple[SnapshotRequest, ...]:
    """Return the saved requests of ``job``, oldest first."""
    sql = "SELECT source, predicate, number FROM cdc_snapshot_requests WHERE job = :job ORDER BY number"
    return tuple(SnapshotRequest(*row) for row in query(sql, job=job))
