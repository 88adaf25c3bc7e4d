"""The verifications in the state file: requests, then results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cdc.model.timing import utc_now
from cdc.model.verify import Verification, VerifyRequest
from cdc.state.base import Checkpoint, CheckpointState
from cdc.state.codec import from_json, to_json

Query = Callable[..., list[tuple[Any, ...]]]

KEPT = 100  # of each job

# AUTOINCREMENT: a checkpoint has the number of its verification, so a number must not be used twice
TABLE = """
CREATE TABLE verifications (
    number INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, body TEXT NOT NULL
) STRICT;
"""


def add_request(run: Callable[..., None], job: str, request: VerifyRequest) -> None:
    """Save a request, and delete the oldest verifications."""
    body = to_json(Verification(0, request, utc_now()))  # a row has its number
    run("INSERT INTO verifications (job, body) VALUES (?, ?)", job, body)
    kept = "SELECT number FROM verifications WHERE job = ? ORDER BY number DESC LIMIT ?"
    run(f"DELETE FROM verifications WHERE job = ? AND number NOT IN ({kept})", job, job, KEPT)


def record_result(run: Callable[..., None], job: str, checkpoint: Checkpoint) -> None:
    """Save the verification that ends with a COMMITTED ``checkpoint``. Calls: in the transaction that saves it."""
    found = checkpoint.verify
    if checkpoint.state is CheckpointState.COMMITTED and found is not None and found.ended_at is not None:
        body = to_json(replace(found, tables={name: replace(one, open=()) for name, one in found.tables.items()}))
        run("INSERT OR REPLACE INTO verifications VALUES (?, ?, ?)", found.number, job, body)


def read_verifications(query: Query, job: str, limit: int) -> tuple[Verification, ...]:
    """Return the newest ``limit`` verifications of ``job``, newest first."""
    rows = query("SELECT number, body FROM verifications WHERE job = ? ORDER BY number DESC LIMIT ?", job, limit)
    return tuple(replace(from_json(Verification, body), number=number) for number, body in rows)
