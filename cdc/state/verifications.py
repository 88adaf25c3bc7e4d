"""The verifications in the store: requests, then results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cdc.model.timing import utc_now
from cdc.model.verify import Verification, VerifyRequest
from cdc.state.base import Checkpoint, CheckpointState
from cdc.state.codec import from_json, to_json
from cdc.state.database import Transaction

Query = Callable[..., list[tuple[Any, ...]]]

KEPT = 100  # of each job


def add_request(transaction: Transaction, job: str, request: VerifyRequest) -> None:
    """Save a request, and delete the oldest verifications."""
    body = to_json(Verification(0, request, utc_now()))  # a row has its number
    transaction.insert("INSERT INTO cdc_verifications (job, body) VALUES (:job, :body)", job=job, body=body)
    sql = f"SELECT number FROM cdc_verifications WHERE job = :job ORDER BY number DESC LIMIT 1 OFFSET {KEPT}"
    for (number,) in transaction.all(sql, job=job):
        transaction.run("DELETE FROM cdc_verifications WHERE job = :job AND number <= :number", job=job, number=number)


def record_result(transaction: Transaction, job: str, checkpoint: Checkpoint) -> None:
    """Save the verification that ends with a COMMITTED ``checkpoint``. Calls: in the transaction that saves it."""
    found = checkpoint.verify
    if checkpoint.state is CheckpointState.COMMITTED and found is not None and found.ended_at is not None:
        body = to_json(replace(found, tables={name: replace(one, open=()) for name, one in found.tables.items()}))
        update = "UPDATE cdc_verifications SET body = :body WHERE job = :job AND number = :number"
        transaction.run(update, job=job, number=found.number, body=body)


def read_verifications(query: Query, job: str, limit: int) -> tuple[Verification, ...]:
    """Return the newest ``limit`` verifications of ``job``, newest first."""
    sql = f"SELECT number, body FROM cdc_verifications WHERE job = :job ORDER BY number DESC LIMIT {int(limit)}"
    rows = query(sql, job=job)
    return tuple(replace(from_json(Verification, body), number=number) for number, body in rows)
