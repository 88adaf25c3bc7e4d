"""The history of schema changes in the store: every COMMITTED one, until the job is forgotten."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from cdc.model.change_record import ChangeCount, ChangeRecord, ChangeSummary
from cdc.model.schema_change import ChangeAction, ChangeKind
from cdc.state.base import Checkpoint, CheckpointState
from cdc.state.codec import from_json, to_json
from cdc.state.database import Transaction
from cdc.state.events import EventKind, add_event

Query = Callable[..., list[tuple[Any, ...]]]
NEWEST = 1 << 62  # above the number of every checkpoint


def record_change(transaction: Transaction, now: str, job: str, checkpoint: Checkpoint) -> None:
    """Save the change of a COMMITTED ``checkpoint``, if it has one. Calls: in the transaction that saves it."""
    plan, last = checkpoint.change, checkpoint.last
    if checkpoint.state is not CheckpointState.COMMITTED or plan is None or last is None:
        return
    seconds = checkpoint.seconds.get("commit", 0.0)
    record = ChangeRecord.of(checkpoint.id, last, checkpoint.committed_at, plan, seconds)
    actions = json.dumps([[one.kind.value, one.action.value] for table in record.tables for one in table.actions])
    values = {"job": job, "id": checkpoint.id, "actions": actions, "body": to_json(record)}
    if transaction.run(
        "UPDATE cdc_changes SET actions = :actions, body = :body WHERE job = :job AND id = :id", **values
    ):
        return
    transaction.run("INSERT INTO cdc_changes VALUES (:job, :id, :actions, :body)", **values)
    text = ", ".join(table.source for table in record.tables) or "no mapped table"
    add_event(transaction, now, job, EventKind.SCHEMA_CHANGE, text, None, {"checkpoint": checkpoint.id})


def read_changes(query: Query, job: str, limit: int, before: int = NEWEST) -> tuple[ChangeRecord, ...]:
    """Return the newest ``limit`` changes of ``job`` with a checkpoint below ``before``, newest first."""
    sql = f"SELECT body FROM cdc_changes WHERE job = :job AND id < :before ORDER BY id DESC LIMIT {int(limit)}"
    rows = query(sql, job=job, before=before)
    return tuple(from_json(ChangeRecord, body) for (body,) in rows)


def summarize_changes(query: Query, job: str) -> ChangeSummary:
    """Return the number of changes of ``job``, the newest one and the one whose steps are being taken."""
    counted = "SELECT actions, count(*) FROM cdc_changes WHERE job = :job GROUP BY actions"
    number, counts = 0, Counter[tuple[str, str]]()
    for actions, times in query(counted, job=job):
        number += times
        for kind, action in json.loads(actions):
            counts[kind, action] += times
    last = read_changes(query, job, 1) if number else ()
    sql = "SELECT body FROM cdc_checkpoints WHERE job = :job AND state = 'PREPARED'"
    prepared = (from_json(Checkpoint, body) for (body,) in query(sql, job=job))
    current = next((one.change for one in prepared if one.change is not None), None)
    found = tuple(
        ChangeCount(ChangeKind(kind), ChangeAction(action), times) for (kind, action), times in sorted(counts.items())
    )
    return ChangeSummary(number, last[0] if last else None, found, current)
