"""The newest checkpoint in the log of a Delta table: its id as application transaction, all of it as commit metadata.

Source: the Delta protocol, "Transaction Identifiers" and "Commit Provenance Information".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deltalake import DeltaTable, Transaction

from cdc.errors import SinkOwnershipError
from cdc.model.batch import LoadName
from cdc.model.position import position_from_json
from channels.sinks.base import SinkCheckpoint
from channels.sinks.delta.entries import history
from channels.sinks.delta.log import COUNT, MARK
from channels.sinks.delta.table import expiring


def transaction(mark: SinkCheckpoint) -> Transaction:
    """Return the application transaction that a commit of ``mark`` writes."""
    return Transaction(_application(mark.job, mark.incarnation), mark.checkpoint)


def committed_checkpoint(table: DeltaTable, job: str, incarnation: str) -> int | None:
    """Return the newest checkpoint of that job and incarnation in ``table``; None if there is none."""
    version: int | None = table.transaction_version(_application(job, incarnation))
    return version


def has_committed(table: DeltaTable, name: LoadName) -> bool:
    """Return whether ``table`` has the checkpoint of the load ``name``."""
    committed = committed_checkpoint(table, name.job, name.incarnation)
    if committed is None or committed <= name.checkpoint:
        return committed == name.checkpoint
    marks = (json.loads(entry[MARK]) for entry in history(table) if MARK in entry)
    key = name.job, name.incarnation, name.checkpoint
    return any((one["job"], one["incarnation"], one["checkpoint"]) == key for one in marks)


def newest_mark(table: DeltaTable, job: str) -> SinkCheckpoint | None:
    """Return the newest mark of ``job``, of any incarnation. It usually is in the last five entries of the log.

    The log of a table that the job has never written is not read: other jobs under the same root may have thousands of
    entries.
    """
    if not has_traces(table, job) and not any(expiring(table)):
        return None
    for limit in (5, 100, None):
        for entry in history(table, limit):
            if MARK in entry:
                data = json.loads(entry[MARK])
                if data["job"] == job:
                    return mark_from_json(data)
    return None


def is_restored(table: DeltaTable, since: int | None = None) -> bool:
    """Return whether another writer has restored an earlier version of ``table`` after the version ``since``.

    None: after the newest commit of rows. RESTORE keeps the application transactions, but not the rows of the commits.
    """
    for entry in history(table, None if since is None else table.version() - since):
        if entry.get("operation") == "RESTORE":
            return True
        if since is None and MARK in entry and entry.get(COUNT) != "0":  # "0": the fence of a run
            return False
    return False


def has_traces(table: DeltaTable, job: str) -> bool:
    """Return whether a run of ``job`` has written to ``table``: this is known longer than its newest mark."""
    return table.transaction_version(fence_application(job)) is not None


def may_write(table: DeltaTable, job: str) -> bool:
    """Return whether a run of ``job`` may write to ``table``: it has written to it, or no job has."""
    is_target = "cdc.key" in table.metadata().configuration
    return is_target and (newest_mark(table, job) is not None or not any(MARK in one for one in history(table, 5)))


def refuse_foreign(found: DeltaTable, table: str, mark: SinkCheckpoint) -> None:
    """Raise SinkOwnershipError if another incarnation of the job has committed the checkpoint of ``mark`` or a later
    one.

    Such a job must start with ``--adopt``, and then continues after the old checkpoints.
    """
    other = newest_mark(found, mark.job)
    if other is not None and other.incarnation != mark.incarnation and other.checkpoint >= mark.checkpoint:
        raise SinkOwnershipError(
            f"The table has checkpoint {other.checkpoint} of another incarnation of job {mark.job}: "
            f"{other.incarnation}; this job is {mark.incarnation}.",
            hint="Start the job with `--adopt` to continue after this checkpoint.",
            table=table,
        )


def refuse_ahead(table: str, mark: SinkCheckpoint, committed: int) -> None:
    """Raise SinkOwnershipError if ``table`` has a later checkpoint of this incarnation than the one to commit."""
    if committed > mark.checkpoint:
        raise SinkOwnershipError(
            f"The table has checkpoint {committed} of job {mark.job}, but this run wants to commit checkpoint "
            f"{mark.checkpoint}: another process of the job has written the table, or the state is an older copy.",
            hint="End the other process. If the state was restored from a copy, run `cdc start JOB.yaml --adopt`, "
            f"which continues job {mark.job} after the newest commit in the sink.",
            table=table,
        )


def mark_to_json(mark: SinkCheckpoint) -> str:
    """Return ``mark`` as the text that a commit stores."""
    data = {
        "job": mark.job,
        "incarnation": mark.incarnation,
        "fence": mark.fence,
        "checkpoint": mark.checkpoint,
        "first": mark.first.to_json(),
        "position": mark.position.to_json(),
        "sequence": mark.sequence,
    }
    return json.dumps(data)


def mark_from_json(data: Mapping[str, Any]) -> SinkCheckpoint:
    """Return the mark that ``mark_to_json`` wrote, parsed as JSON."""
    return SinkCheckpoint(
        data["job"],
        data["incarnation"],
        data["fence"],
        data["checkpoint"],
        position_from_json(data["first"]),
        position_from_json(data["position"]),
        data["sequence"],
    )


def fence_application(job: str) -> str:
    """Return the name of the application transaction that has the fence of ``job`` in each table that it wrote."""
    return f"cdc-fence/{job}"


def _application(job: str, incarnation: str) -> str:
    return f"cdc/{job}/{incarnation}"
