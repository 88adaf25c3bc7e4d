"""Schema changes of targets, each as a checkpoint of its own.

::

    DdlStop            the receiver stops before the statement; the cycle before it is COMMITTED
    prepare_change     plans the change and saves it as PREPARED, before the first target is changed
    the run ends       and the next one begins with the recovery, as after a crash, but still owns the sink
    roll_forward       takes the steps, saves COMMITTED; the receiver opens after the statement

So a change that a crash interrupts is finished in the same way as any other. A step is repeated until it is done: the
sink compares the target's columns with those before and after the step. The saved cursor says which step is next;
without it, an exchange of two names that is finished would look like one that has not begun.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from cdc.errors import STATEMENT_START, DdlStop
from cdc.model.schema import TableSchema
from cdc.model.schema_change import ChangeAction, ChangePlan, PlannedStep, PlannedTable, SchemaChange
from cdc.model.snapshot import TableSnapshot
from cdc.model.table_names import originals_of
from cdc.model.timing import utc_now
from cdc.pipeline.committer import last_of
from cdc.pipeline.schema_change_plan import plan_change
from cdc.pipeline.schema_change_steps import alter_steps, target_after, target_before
from cdc.pipeline.targets import verified_states
from cdc.run_context import RunContext
from cdc.state.base import Checkpoint, CheckpointState, CloseReason
from channels.sinks.base import SinkCheckpoint, TableAlterer, can_alter

_log = logging.getLogger(__name__)


def prepare_change(context: RunContext, committed: Checkpoint, stop: DdlStop) -> bool:
    """Save the change at which the source stopped as a PREPARED checkpoint. Return False if it was not read.

    ``committed``: the last checkpoint. Raises: DdlStop - the change cannot be followed; SinkUnavailable.
    """
    applied = _applied(context, stop)
    change = applied or stop.change
    if change is None or last_of(committed) != change.first:
        return False  # an open XA transaction keeps the position before the statement
    number = context.store.next_id()
    plan = plan_change(context, change, number, stop, applies_all=applied is not None)
    prepared = Checkpoint(
        number,
        context.run.fence,
        CheckpointState.PREPARED,
        first=change.first,
        last=change.last,
        schemas=_schemas_after(committed.schemas, change),
        sequence=committed.sequence,
        closed_by=CloseReason.SCHEMA_CHANGE,
        counts=committed.counts,
        snapshots=snapshots_after(_existing(committed, change), plan),
        targets=committed.targets,
        sink=committed.sink,
        left_out=context.routes.left_out,
        column_maps={
            **committed.column_maps,
            **{table.source: table.columns_after for table in plan.tables},
        },
        change=plan,
        verify=committed.verify,
    )
    context.store.save(prepared)
    for table in plan.tables:
        context.channels.pop(table.source, None)
    return True


def _applied(context: RunContext, stop: DdlStop) -> SchemaChange | None:
    """Return the change that the user applies, if the source stopped at its statement."""
    change = context.applies
    if change is None or stop.context.get("position") != change.first:
        return None
    return change if str(stop.context.get("statement")) == change.statement[:STATEMENT_START] else None


def _schemas_after(schemas: tuple[TableSchema, ...], change: SchemaChange) -> tuple[TableSchema, ...]:
    found = {schema.name: schema for schema in schemas}
    found |= {table.after.name: table.after for table in change.tables if table.after.columns or table.after.is_dropped}
    kept = tuple(schema for name, schema in found.items() if name not in change.forgets)
    return (*kept, *change.renamed)


def _existing(committed: Checkpoint, change: SchemaChange) -> dict[str, TableSnapshot]:
    """Return the snapshots of tables that exist after the change.

    A table with a recorded shadow table keeps its state: with drop_swap, the next statement renames the shadow table,
    which has the rows of the dropped one.
    """
    copied = {
        (schema.database, original)
        for schema in committed.schemas
        if schema.copy is not None
        for original in originals_of(schema.table)
    }
    ended = {
        table.after.name
        for table in change.tables
        if table.after.is_dropped and (table.after.database, table.after.table) not in copied
    }
    return {name: one for name, one in committed.snapshots.items() if name not in ended}


def snapshots_after(snapshots: Mapping[str, TableSnapshot], plan: ChangePlan) -> dict[str, TableSnapshot]:
    """Return the snapshots after the change: those that run, and those of tables that it loads again.

    If a new snapshot replaces one that has not yet deleted its orphan rows, the new one deletes them. It also carries
    out the request of the one that it replaces.
    """
    loads = {}
    for table in plan.tables:
        if table.is_reloaded:
            old = snapshots.get(table.source)
            is_open = old is not None and old.deletes_orphans and old.is_due
            loads[table.source] = TableSnapshot(
                deletes_orphans=table.deletes_orphans or is_open, request=old.request if old is not None else 0
            )
    return {**_continued(snapshots, plan), **loads}


def _continued(snapshots: Mapping[str, TableSnapshot], plan: ChangePlan) -> dict[str, TableSnapshot]:
    """Return running snapshots after the change. Bounds are texts, and stay valid for a key of a wider type.

    A compared key of the target has the types before the change, so the search for orphan rows begins again.
    """
    changed = {table.source for table in plan.tables if table.steps}
    return {name: replace(one, compared_key=None) if name in changed else one for name, one in snapshots.items()}


def roll_forward(context: RunContext, prepared: Checkpoint) -> Checkpoint:
    """Take the remaining steps of a PREPARED change, save it as COMMITTED and return it. It may be repeated.

    Raises: TargetMismatch - a target is neither as before nor as after a step; TargetLost; SinkError; LeaseLost.
    """
    assert prepared.change is not None
    began, plan = time.monotonic(), prepared.change
    context.routes.use_column_maps(prepared.column_maps)
    run, names = context.run, sorted(table.target for table in plan.tables if table.steps)
    # an older copy would get the checkpoint of the change, so no later run would notice the rows that it lacks
    there = verified_states(context, prepared, {table.target for table in plan.tables})
    number = 0
    for table, before, steps in _parts(context, plan):
        if number + len(steps) > plan.done and table.target in there:  # a removed target is created by its next rows
            prepared = _take(context, prepared, table, before, steps, number)
        number += len(steps)
    # a table that proves its checkpoint must have this one from now on, so a copy from before the change is noticed
    found = context.sink.target_states(run.job, run.incarnation, names) if names else {}
    proved = {name for name, state in found.items() if state.checkpoint == prepared.id}
    committed = replace(
        prepared,
        state=CheckpointState.COMMITTED,
        committed_at=utc_now(),
        seconds={"commit": time.monotonic() - began},
        targets={
            name: replace(state, checkpoint=prepared.id) if name in proved else state
            for name, state in prepared.targets.items()
        },
    )
    context.store.save(committed)
    for table in plan.tables:
        _log.warning("%s: %s", table.source, _summary(table), extra={"statement": plan.statement[:200]})
    return committed


def _parts(context: RunContext, plan: ChangePlan) -> Iterator[tuple[PlannedTable, int, tuple[PlannedStep, ...]]]:
    """Yield the steps that become visible together: table, number of its earlier steps, steps."""
    sink = context.sink
    for table in plan.tables:
        if not table.steps:
            continue
        size = len(table.steps) if can_alter(sink) and sink.alters_in_one_commit else 1
        for start in range(0, len(table.steps), size):
            yield table, start, table.steps[start : start + size]


def _take(
    context: RunContext,
    prepared: Checkpoint,
    table: PlannedTable,
    before: int,
    steps: tuple[PlannedStep, ...],
    number: int,
) -> Checkpoint:
    sink: TableAlterer = _alterer(context)
    assert prepared.change is not None
    if prepared.change.done != number:
        prepared = replace(prepared, change=replace(prepared.change, done=number))
        context.store.save(prepared)
    else:
        context.store.check_fence()
    run = context.run
    mark = SinkCheckpoint(
        run.job, run.incarnation, run.fence, prepared.id, prepared.first, last_of(prepared), prepared.sequence
    )
    target = target_after(target_before(context, table), alter_steps(table.steps[:before], table))
    sink.alter(target, alter_steps(steps, table), mark)
    return prepared


def _alterer(context: RunContext) -> TableAlterer:
    sink = context.sink
    if not can_alter(sink):
        raise RuntimeError("the plan has steps for a sink that cannot alter tables")
    return sink


def _summary(table: PlannedTable) -> str:
    done = [f"{kind.value} {column}".strip() for kind, column, action in table.actions if action is ChangeAction.APPLY]
    if table.deletes_orphans:  # nothing is done yet
        return f"{', '.join(done)}: a snapshot loads {table.target} again and deletes orphan rows"
    left = [f"{kind.value} {column}".strip() for kind, column, action in table.actions if action is ChangeAction.IGNORE]
    parts = [f"applied {', '.join(done)} to {table.target}"] * bool(done)
    parts += [f"{table.target} is left as it is: {', '.join(left)}"] * bool(left)
    parts += ["a snapshot loads the table again"] * table.is_reloaded
    return "; ".join(parts) or "nothing to change"
