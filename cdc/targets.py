"""Targets: before a run writes anything, each target proves that it is the table that the job wrote.

A target that is missing, was created again, or was restored from an older copy would take new rows without an error,
and lack all earlier ones. The checkpoint keeps the identity of each target and the newest checkpoint that had rows for
it (``Checkpoint.targets``); ``verify_targets`` compares both with what the sink finds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from cdc.batch import TargetState
from cdc.checkpoint import Checkpoint, CheckpointState
from cdc.errors import SinkUnavailable, TargetLost
from cdc.names import table_of
from cdc.parts import Parts
from cdc.snapshot.chunks import TableSnapshot
from channels.mapping import Routes
from channels.sinks.base import Sink

_log = logging.getLogger(__name__)


class TargetFault(Enum):
    """Why a target is not the table that the job wrote."""

    MISSING = "is missing"
    REPLACED = "was created again, or is another table"
    OLDER = "is older than the state of the job"
    INCOMPLETE = "lacks data files that its log names"


@dataclass(frozen=True, slots=True)
class LostTarget:
    """A target that fails, or the root of the sink (``name`` is "")."""

    name: str
    fault: TargetFault
    detail: str

    def __str__(self) -> str:
        return f"{self.name or 'the root of the sink'} {self.fault.value} ({self.detail})"


def lost_targets_of(
    sink: Sink, job: str, incarnation: str, expected: Checkpoint, routed: Iterable[str]
) -> tuple[LostTarget, ...]:
    """Return every target of ``routed`` that is not what ``expected`` has saved of it. Changes nothing.

    Raises: SinkUnavailable.
    """
    lost = []
    if expected.sink is not None and (found := sink.identity(create=False)) != expected.sink:
        fault = TargetFault.MISSING if found is None else TargetFault.REPLACED
        lost.append(LostTarget("", fault, f"its marker is {found or 'not there'}, expected {expected.sink}"))
    names = sorted(expected.targets.keys() & set(routed))
    states = sink.target_states(job, incarnation, names) if names else {}
    return (*lost, *(one for name in names if (one := _compared(name, expected.targets[name], states.get(name)))))


def _compared(name: str, expected: TargetState, found: TargetState | None) -> LostTarget | None:
    if found is None:
        return LostTarget(name, TargetFault.MISSING, f"committed checkpoint {_number(expected)}")
    if found.identity != expected.identity:
        detail = f"its identity is {found.identity}, expected {expected.identity}"
        return LostTarget(name, TargetFault.REPLACED, detail)
    is_known = expected.checkpoint is not None and found.checkpoint is not None
    if is_known and (found.checkpoint or 0) < (expected.checkpoint or 0):
        detail = f"it holds checkpoint {_number(found)}, the job committed checkpoint {_number(expected)} into it"
        return LostTarget(name, TargetFault.OLDER, detail)
    if found.missing_files:
        return LostTarget(name, TargetFault.INCOMPLETE, f"{found.missing_files} files are missing")
    return None


def _number(state: TargetState) -> str:
    return "none" if state.checkpoint is None or state.checkpoint < 0 else str(state.checkpoint)


def verify_targets(parts: Parts, committed: Checkpoint) -> Checkpoint:
    """Return ``committed`` once every target has proved to be the one that the job wrote.

    With ``parts.reload_missing`` those that fail are loaded again: they are forgotten in every saved checkpoint, and
    their source tables are snapshots that wait to be read. A root that has no identity yet gets one.
    Calls: at the begin of each run, before anything is written into the sink.
    Raises: TargetLost; SinkUnavailable - a target that this process has verified earlier is missing by now.
    """
    store, sink, run = parts.store, parts.sink, parts.run
    prepared = [one for one in store.unfinished() if one.state is CheckpointState.PREPARED]
    sources = sources_by_target(parts.routes, [committed, *prepared])
    expected = prepared[-1] if prepared else committed
    lost = lost_targets_of(sink, run.job, run.incarnation, expected, sources)
    if lost:
        if not parts.reload_missing:
            raise _refusal(parts, lost)
        committed = _forget(parts, lost, sources, committed, prepared)
    if committed.sink is None:
        committed = replace(committed, sink=sink.identity(create=True))
        for checkpoint in prepared:
            store.save(replace(_saved(parts, checkpoint.id), sink=committed.sink))
        store.save(committed)
    return committed


def _saved(parts: Parts, checkpoint_id: int) -> Checkpoint:
    return next(one for one in parts.store.unfinished() if one.id == checkpoint_id)


def sources_by_target(routes: Routes, checkpoints: Iterable[Checkpoint]) -> Mapping[str, frozenset[str]]:
    """Return the source tables of every target that the job file maps, as far as ``checkpoints`` know tables."""
    names: set[str] = set()
    for one in checkpoints:
        names.update(one.counts, one.snapshots, (schema.name for schema in one.schemas))
    found: dict[str, set[str]] = {}
    for name in names:
        mapping = routes.mapping_for(*table_of(name))
        if mapping is not None:
            found.setdefault(mapping.target, set()).add(name)
    return {target: frozenset(sources) for target, sources in found.items()}


def _refusal(parts: Parts, lost: tuple[LostTarget, ...]) -> TargetLost | SinkUnavailable:
    job = parts.run.job
    what = "; ".join(map(str, lost))
    if parts.is_verified and all(one.fault is TargetFault.MISSING for one in lost):
        return SinkUnavailable(
            f"The sink is not complete any more: {what}.",
            mend=f"Bring it back (a file system that is not mounted?); the job then continues automatically. If it is "
            f"lost: `cdc pause {job}`, then `cdc resume {job} --reload-missing`.",
        )
    return TargetLost(
        f"The sink does not hold what the job has committed: {what}.",
        mend=f"Bring it back (a file system that is not mounted?), then `cdc resume {job}`. "
        + (
            f"If it is lost, `cdc resume {job} --reload-missing` loads exactly these tables again."
            if parts.snapshot is not None
            else "If it is lost: the source of this job has no tables to load again, so load them with a job of "
            "another name."
        ),
    )


def _forget(
    parts: Parts,
    lost: tuple[LostTarget, ...],
    sources: Mapping[str, frozenset[str]],
    committed: Checkpoint,
    prepared: list[Checkpoint],
) -> Checkpoint:
    """Save that the tables of ``lost`` are to be loaded again, durably and before anything is created."""
    tables = {one.name: one.fault for one in lost if one.name}
    if tables and parts.snapshot is None:
        raise _refusal(parts, lost)
    root_is_lost = any(not one.name for one in lost)

    def forgotten(checkpoint: Checkpoint) -> Checkpoint:
        waiting = {
            source: TableSnapshot(sweeps=fault is not TargetFault.MISSING and parts.sink.tells_keys)
            for target, fault in tables.items()
            for source in sources[target]
        }
        return replace(
            checkpoint,
            # its rows of these tables are read again by the snapshot, which begins after its end
            loads=tuple(load for load in checkpoint.loads if load.table not in tables),
            # an incomplete one stays the same table; until it is repaired, each start finds it
            targets={
                name: state
                for name, state in checkpoint.targets.items()
                if tables.get(name, TargetFault.INCOMPLETE) is TargetFault.INCOMPLETE
            },
            snapshots={**checkpoint.snapshots, **waiting},
            sink=None if root_is_lost else checkpoint.sink,
        )

    # PREPARED last: until it is saved, a start after a crash finds the same targets lost
    committed = forgotten(committed)
    for checkpoint in (committed, *map(forgotten, prepared)):
        parts.store.save(checkpoint)
    for name, fault in sorted(tables.items()):
        if fault is TargetFault.INCOMPLETE:
            parts.sink.repair(name)
        _log.warning("%s %s: its table %s is loaded again", name, fault.value, ", ".join(sorted(sources[name])))
        if fault is not TargetFault.MISSING and not parts.sink.tells_keys:
            _log.warning("rows of %s that the source has deleted since stay: this sink cannot list its keys", name)
    return committed
