"""The history of schema changes in the state file: every COMMITTED one, until the job is forgotten."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from cdc.model.change_record import ChangeCount, ChangeRecord, ChangeSummary
from cdc.model.schema_change import ChangeAction, ChangeKind
from cdc.state.base import Checkpoint, CheckpointState
from cdc.state.codec import from_json, to_json

Query = Callable[..., list[tuple[Any, ...]]]

# ``actions``: [kind, action] of each change, without names, so that few texts differ and counting stays cheap
TABLE = """
CREATE TABLE changes (
    job TEXT NOT NULL, id INTEGER NOT NULL, actions TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY (job, id)
) STRICT;
"""


def record_change(run: Callable[..., None], job: str, checkpoint: Checkpoint) -> None:
    """Save the change of a COMMITTED ``checkpoint``, if it has one. Calls: in the transaction that saves it."""
    plan, last = checkpoint.change, checkpoint.last
    if checkpoint.state is not CheckpointState.COMMITTED or plan is None or last is None:
        return
    seconds = checkpoint.seconds.get("commit", 0.0)
    record = ChangeRecord.of(checkpoint.id, last, checkpoint.committed_at, plan, seconds)
    actions = json.dumps([[one.kind.value, one.action.value] for table in record.tables for one in table.actions])
    run("INSERT OR REPLACE INTO changes VALUES (?, ?, ?, ?)", job, checkpoint.id, actions, to_json(record))


def read_changes(query: Query, job: str, limit: int) -> tuple[ChangeRecord, ...]:
    """Return the newest ``limit`` changes of ``job``, newest first."""
    rows = query("SELECT body FROM changes WHERE job = ? ORDER BY id DESC LIMIT ?", job, limit)
    return tuple(from_json(ChangeRecord, body) for (body,) in rows)


def summarize_changes(query: Query, job: str) -> ChangeSummary:
    """Return the number of changes of ``job``, the newest one and the one whose steps are being taken."""
    number, counts = 0, Counter[tuple[str, str]]()
    for actions, times in query("SELECT actions, count(*) FROM changes WHERE job = ? GROUP BY actions", job):
        number += times
        for kind, action in json.loads(actions):
            counts[kind, action] += times
    last = read_changes(query, job, 1) if number else ()
    sql = "SELECT body FROM checkpoints WHERE job = ? AND state = 'PREPARED'"
    prepared = (from_json(Checkpoint, body) for (body,) in query(sql, job))
    current = next((one.change for one in prepared if one.change is not None), None)
    found = tuple(
        ChangeCount(ChangeKind(kind), ChangeAction(action), times) for (kind, action), times in sorted(counts.items())
    )
    return ChangeSummary(number, last[0] if last else None, found, current)
