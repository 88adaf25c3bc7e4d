"""Verify the targets: before a run writes, check that each target is the table that the job wrote.

A target that is missing, was created again, or was restored from an older copy would accept new rows without an error,
but lack all earlier rows. ``Checkpoint.targets`` has the identity of each target and the newest checkpoint that had
rows for it. ``verify_targets`` compares both with the sink.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from cdc.errors import SinkUnavailable, TargetLost
from cdc.model.batch import TargetState
from cdc.model.schema_change import ColumnMap
from cdc.model.snapshot import TableSnapshot
from cdc.model.table_names import table_of
from cdc.mysql.catalog import mapped_tables
from cdc.mysql.server import Server
from cdc.run_context import RunContext, SnapshotSettings
from cdc.state.base import Checkpoint, CheckpointState
from channels.routes import Routes
from channels.sinks.base import LoadState, Sink, can_check_targets, can_list_keys, can_repair

_log = logging.getLogger(__name__)


class TargetFault(Enum):
    """Why a target is not the table that the job wrote."""

    MISSING = "is missing"
    REPLACED = "was created again, or is another table"
    OLDER = "is older than the state of the job"
    INCOMPLETE = "lacks data files that its log names"
    LACKS_ROWS = "lacks rows: it did not exist while they were committed"


@dataclass(frozen=True, slots=True)
class LostTarget:
    """A target that is not the table that the job wrote, or the root of the sink if ``name`` is ""."""

    name: str
    fault: TargetFault
    detail: str

    def __str__(self) -> str:
        return f"{self.name or 'the root of the sink'} {self.fault.value} ({self.detail})"


def lost_targets_of(
    sink: Sink, job: str, incarnation: str, expected: Checkpoint, routed: Iterable[str]
) -> tuple[LostTarget, ...]:
    """Return every target of ``routed`` that differs from what ``expected`` has saved. Changes nothing.

    Raises: SinkUnavailable, TargetMismatch.
    """
    lost = []
    if expected.sink is not None and (found := sink.identity(create=False)) != expected.sink:
        fault = TargetFault.MISSING if found is None else TargetFault.REPLACED
        lost.append(LostTarget("", fault, f"its marker is {found or 'missing'}, expected {expected.sink}"))
    names = sorted(expected.targets.keys() & set(routed))
    states = sink.target_states(job, incarnation, names) if names else {}
    return (*lost, *_differences(names, expected, states))


def _differences(
    names: Iterable[str], expected: Checkpoint, states: Mapping[str, TargetState]
) -> tuple[LostTarget, ...]:
    return tuple(one for name in names if (one := _compared(name, expected.targets[name], states.get(name))))


def _compared(name: str, expected: TargetState, found: TargetState | None) -> LostTarget | None:
    if found is None:
        return LostTarget(name, TargetFault.MISSING, f"committed checkpoint {_number(expected)}")
    if found.identity != expected.identity:
        detail = f"its identity is {found.identity}, expected {expected.identity}"
        return LostTarget(name, TargetFault.REPLACED, detail)
    if expected.lacks_rows:
        return LostTarget(name, TargetFault.LACKS_ROWS, f"committed checkpoint {_number(expected)}")
    is_known = expected.checkpoint is not None and found.checkpoint is not None
    if is_known and (found.checkpoint or 0) < (expected.checkpoint or 0):
        detail = f"it has checkpoint {_number(found)}, the job committed checkpoint {_number(expected)} to it"
        return LostTarget(name, TargetFault.OLDER, detail)
    if found.missing_files:
        return LostTarget(name, TargetFault.INCOMPLETE, f"{found.missing_files} files are missing")
    return None


def _number(state: TargetState) -> str:
    return "none" if state.checkpoint is None or state.checkpoint < 0 else str(state.checkpoint)


def verify_targets(context: RunContext, committed: Checkpoint) -> Checkpoint:
    """Return ``committed`` after every target was verified.

    With ``context.reload_missing``, targets that fail are removed from every saved checkpoint, and snapshots of their
    source tables are saved as pending. A root of the sink that has no identity yet gets one.
    Calls: at the start of each run that is not continued, before anything is written to the sink.
    Raises: TargetLost, TargetMismatch; SinkUnavailable - a target that this process has verified before is missing now.
    """
    store, sink, run = context.store, context.sink, context.run
    prepared = [one for one in store.unfinished() if one.state is CheckpointState.PREPARED]
    sources = sources_by_target(context.routes, [committed, *prepared])
    expected = prepared[-1] if prepared else committed
    lost = lost_targets_of(sink, run.job, run.incarnation, expected, sources)
    if lost:
        if not context.reload_missing:
            _save_lost_rows(context, lost, prepared)
            raise _refusal(context, lost, is_verified=context.is_verified)
        committed = _forget(context, lost, sources, committed, prepared)
    if committed.sink is None:
        committed = replace(committed, sink=sink.identity(create=True))
        for checkpoint in prepared:
            store.save(replace(_saved(context, checkpoint.id), sink=committed.sink))
        store.save(committed)
    return committed


def verified_states(context: RunContext, expected: Checkpoint, names: Collection[str]) -> Mapping[str, TargetState]:
    """Return the states of those targets of ``names`` that exist.

    Calls: during a run, in which ``verify_targets`` has verified all targets at the start.
    Raises: TargetLost, TargetMismatch; SinkUnavailable - a target that the job has written is missing.
    """
    run = context.run
    states = context.sink.target_states(run.job, run.incarnation, sorted(names)) if names else {}
    if lost := _differences(sorted(expected.targets.keys() & set(names)), expected, states):
        raise _refusal(context, lost, is_verified=True)
    return states


def changed_targets(sink: Sink, prepared: Checkpoint) -> list[str]:
    """Return the tables of the loads of ``prepared`` that do not exist or have another identity.

    Empty for a sink that reports a missing table itself when it commits. Raises: SinkUnavailable.
    """
    if not can_check_targets(sink):
        return []
    names = sorted({load.table for load in prepared.loads} & prepared.targets.keys())
    found = sink.identities(names)
    return [name for name in names if found.get(name) != prepared.targets[name].identity]


def with_lost_rows(prepared: Checkpoint, names: Iterable[str]) -> Checkpoint:
    """Return ``prepared`` with the mark that ``names`` lack its rows, so that a restored table is not accepted."""
    marked = {name: replace(prepared.targets[name], lacks_rows=True) for name in names}
    return replace(prepared, targets={**prepared.targets, **marked})


def committed_tables(sink: Sink, prepared: Checkpoint, names: Collection[str]) -> set[str]:
    """Return those of ``names`` with a load of ``prepared`` that the sink has committed. Raises: SinkUnavailable."""
    loads = [load for load in prepared.loads if load.table in names]
    return {load.table for load in loads if sink.state(load) is LoadState.COMMITTED}


def _save_lost_rows(context: RunContext, lost: Iterable[LostTarget], prepared: Iterable[Checkpoint]) -> None:
    """Save which missing tables lack the rows of a PREPARED checkpoint: a run may have ended during its commit."""
    is_checked = can_check_targets(context.sink)
    if not is_checked:
        return
    missing = {one.name for one in lost if one.fault in (TargetFault.MISSING, TargetFault.REPLACED)}
    for checkpoint in prepared:
        if names := committed_tables(context.sink, checkpoint, missing & checkpoint.targets.keys()):
            context.store.save(with_lost_rows(checkpoint, names))


def _saved(context: RunContext, checkpoint_id: int) -> Checkpoint:
    return next(one for one in context.store.unfinished() if one.id == checkpoint_id)


def sources_by_target(routes: Routes, checkpoints: Iterable[Checkpoint]) -> Mapping[str, frozenset[str]]:
    """Return the source tables of each mapped target, of all tables that ``checkpoints`` contain."""
    names: set[str] = set()
    for one in checkpoints:
        names.update(one.counts, one.snapshots, (schema.name for schema in one.schemas))
    found: dict[str, set[str]] = {}
    for name in names:
        mapping = routes.mapping_for(*table_of(name))
        if mapping is not None:
            found.setdefault(mapping.target, set()).add(name)
    return {target: frozenset(sources) for target, sources in found.items()}


def mapped_targets(routes: Routes, snapshot: SnapshotSettings | None) -> dict[str, str]:
    """Return source table -> target: every table that the job file names, and the source's tables of its patterns.

    Without ``snapshot`` the source cannot list its tables, so those of patterns are unknown. Raises: SourceUnavailable.
    """
    found = {one.source: one.target for one in routes.mappings if not one.is_pattern}
    if snapshot is not None:
        with Server(snapshot.endpoint) as server:
            names = mapped_tables(server, routes.maps)
        mappings = [routes.mapping_for(*name) for name in names]
        found |= {one.source: one.target for one in mappings if one is not None}
    return found


def _refusal(context: RunContext, lost: tuple[LostTarget, ...], *, is_verified: bool) -> TargetLost | SinkUnavailable:
    job = context.run.job
    what = "; ".join(map(str, lost))
    if is_verified and all(one.fault is TargetFault.MISSING for one in lost):
        return SinkUnavailable(
            f"The sink is no longer complete: {what}.",
            hint=f"Restore it (is a file system not mounted?); the job then continues automatically. If it is lost: "
            f"`cdc pause {job}`, then `cdc resume {job} --reload-missing`.",
        )
    return TargetLost(
        f"The sink does not hold what the job has committed: {what}.",
        hint=f"Restore it (is a file system not mounted?), then `cdc resume {job}`. "
        + (
            f"If it is lost, `cdc resume {job} --reload-missing` loads exactly these tables again."
            if context.snapshot is not None
            else "If it is lost: the source of this job has no tables to load again, so load them with a job of "
            "another name."
        ),
    )


def _forget(
    context: RunContext,
    lost: tuple[LostTarget, ...],
    sources: Mapping[str, frozenset[str]],
    committed: Checkpoint,
    prepared: list[Checkpoint],
) -> Checkpoint:
    """Save that the tables of ``lost`` are loaded again. It is durable before a target is created or repaired."""
    tables = {one.name: one.fault for one in lost if one.name}
    if tables and context.snapshot is None:
        raise _refusal(context, lost, is_verified=context.is_verified)
    root_is_lost = any(not one.name for one in lost)
    new = {source for target, fault in tables.items() if fault is TargetFault.MISSING for source in sources[target]}

    def forgotten(checkpoint: Checkpoint) -> Checkpoint:
        waiting = {
            source: TableSnapshot(deletes_orphans=fault is not TargetFault.MISSING and can_list_keys(context.sink))
            for target, fault in tables.items()
            for source in sources[target]
        }
        return replace(
            checkpoint,
            # the snapshot begins after the end of this checkpoint, so it reads these rows too
            loads=tuple(load for load in checkpoint.loads if load.table not in tables),
            # an incomplete target keeps its identity, so that each start detects it until it is repaired
            targets={
                name: state
                for name, state in checkpoint.targets.items()
                if tables.get(name, TargetFault.INCOMPLETE) is TargetFault.INCOMPLETE
            },
            snapshots={**checkpoint.snapshots, **waiting},
            # a table that was dropped may exist again without a statement in the binlog
            schemas=tuple(one for one in checkpoint.schemas if not (one.is_dropped and one.name in waiting)),
            column_maps={
                source: _without_kept(one, is_new=source in new) if source in waiting else one
                for source, one in checkpoint.column_maps.items()
            },
            sink=None if root_is_lost else checkpoint.sink,
        )

    # save PREPARED last: after a crash before it, the next start finds the same targets lost
    committed = forgotten(committed)
    for checkpoint in (committed, *map(forgotten, prepared)):
        context.store.save(checkpoint)
    for name, fault in sorted(tables.items()):
        if fault is TargetFault.INCOMPLETE and can_repair(context.sink):
            context.sink.repair(name)
        _log.warning("%s %s: a snapshot loads %s again", name, fault.value, ", ".join(sorted(sources[name])))
        if fault is not TargetFault.MISSING and not can_list_keys(context.sink):
            _log.warning("rows that the source deleted remain in %s: this sink cannot list its keys", name)
    return committed


def _without_kept(differences: ColumnMap, *, is_new: bool) -> ColumnMap:
    """Return the differences of a target after its reload. ``is_new``: it is created with the source's columns only."""
    return replace(differences, kept_rows={}, **({"kept": {}, "kept_since": {}} if is_new else {}))
