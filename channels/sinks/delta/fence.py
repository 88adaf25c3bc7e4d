"""The fence of a run in the log of each table: a run that was frozen commits nothing after another run took the job.

The first entry of a run in a table has an application transaction with the fence of the run. If an older run may still
be there, the newer one writes its fence into all tables when it takes the job, in entries of their own, before it
deletes any file. The number of the entry that the older run is about to write exists then. Its commit fails, it reads
the table again, and finds the greater fence.

Log clean-up can delete that entry, so that its number is free again. A newer checkpoint of the log exists then, and no
reader uses an entry with that number; ``DurableLogs`` deletes it. Neither a clock nor a lock is necessary.

Source: the Delta protocol, "Transaction Identifiers", "Checkpoints", "Metadata Cleanup".
"""

from __future__ import annotations

from collections.abc import Iterable

from deltalake import DeltaTable, Transaction

from cdc.errors import SinkOwnershipError
from channels.sinks.base import SinkCheckpoint
from channels.sinks.delta.sink_checkpoint import fence_application, transaction


def fence_transactions(found: DeltaTable, table: str, runs: Iterable[SinkCheckpoint]) -> list[Transaction]:
    """Return the application transactions with the fences of ``runs`` that the table does not have.

    Calls: after the version of the entry is fixed, because another thread can update ``found`` to the fence of a newer
    run. An entry never lowers a fence. Raises: SinkOwnershipError - a newer run has written its fence.
    """
    found_runs = list(runs)
    for run in found_runs:
        refuse_fenced(found, table, run)
    return [Transaction(fence_application(run.job), run.fence) for run in found_runs if not has_fence(found, run)]


def transactions(found: DeltaTable, table: str, mark: SinkCheckpoint) -> list[Transaction]:
    """Return the application transactions of an entry that commits ``mark``: its checkpoint, and once its fence.

    See ``fence_transactions``.
    """
    return [transaction(mark), *fence_transactions(found, table, [mark])]


def has_fence(found: DeltaTable, mark: SinkCheckpoint) -> bool:
    """Return whether the run of ``mark`` has written to the table."""
    return bool(found.transaction_version(fence_application(mark.job)) == mark.fence)


def refuse_fenced(found: DeltaTable, table: str, mark: SinkCheckpoint) -> None:
    """Raise SinkOwnershipError if a newer run than that of ``mark`` has written its fence into the table."""
    fence = found.transaction_version(fence_application(mark.job))
    if fence is not None and fence > mark.fence:
        raise SinkOwnershipError(
            f"A newer run of job {mark.job} has taken the table: it has the fence {fence}, and this run has the fence "
            f"{mark.fence}.",
            hint="No action is needed if the newer run continues the job. Otherwise end it, and run "
            "`cdc start JOB.yaml --adopt` here.",
            table=table,
        )
