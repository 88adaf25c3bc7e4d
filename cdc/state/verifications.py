"""The verifications in the store: requests, then results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cdc.model.timing import utc_now
from cdc.model.verify import Verification, VerifyRequest
from cdc.state.base import Checkpoint, CheckpointState
from cdc.state.codec import from_json, to_json
from cdc.state.database import Transaction, insert_once

Query = Callable[..., list[tuple[Any, ...]]]

KEPT = 100  # of each job


def verification_insert(job: str, request: VerifyRequest) -> Callable[[Transaction], int]:
    """Return work that saves a request and deletes the oldest verifications. It may be repeated."""
    body = to_json(Verification(0, request, utc_now()))  # a row has its number

    def insert(transaction: Transaction) -> int:
        sql = "INSERT INTO cdc_verifications (job, body) VALUES (:job, :body)"
        inserted = transaction.insert(sql, job=job, body=body)
        sql = f"SELECT number FROM cdc_verifications WHERE job = :job ORDER BY number DESC LIMIT 1 OFFSET {KEPT}"
        for (number,) in transaction.all(sql, job=job):
            old = "DELETE FROM cdc_verifications WHERE job = :job AND number <= :number"
            transaction.run(old, job=job, number=number)
        return inserted

    found = "SELECT 1 FROM cdc_verifications WHERE number = :number AND job = :job AND body = :body"
    return insert_once(insert, found, job=job, body=body)


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
