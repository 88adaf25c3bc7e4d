"""The JSON forms of jobs, checkpoints, events and hosts. No answer contains a secret."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import yaml

from cdc.api.models import ChannelStatus, CheckpointStatus, JobStatus
from cdc.errors import CdcError, error_to_json
from cdc.job.registry import WAITS_FOR_HOST
from cdc.logging_setup import HIDDEN, SECRET_PARAMETER, SECRET_SETTING, masked
from cdc.manager.rest.history import Sampler
from cdc.model.change_record import ChangeRecord
from cdc.state.base import Checkpoint, JobState
from cdc.state.codec import to_json
from cdc.state.deployments import Deployment, DesiredState
from cdc.state.events import JobEvent
from cdc.state.hosts import Host

LIST_SAMPLES = 60  # of the small plot in the list: two minutes
_REFERENCE = re.compile(r"\$\{([^{}\n\"']*)\}")
_COMMENT = re.compile(r"(^|\s)#[^\n]*")
_ONLY_REFERENCE = re.compile("\ue000\ue001[^\ue002]*\ue002")


def job_document(deployment: Deployment, status: JobStatus, sampler: Sampler) -> dict[str, Any]:
    """Return one line of the list of jobs."""
    history, summary = sampler.history(deployment.job), deployment.summary
    is_live = sampler.status(deployment.job) is not None
    lag, rate = status.lag_seconds, history.newest("rows_per_second") if is_live else None
    committed = status.checkpoint.committed_at if status.checkpoint is not None else None
    if not is_live and deployment.is_held:  # the values of another host
        lag, rate = summary.get("lag_s", lag), summary.get("rows_per_s")
        committed = summary.get("last_committed_at") or committed
    reason, hint = status.reason, status.hint
    if reason in (None, WAITS_FOR_HOST) and deployment.spec is not None and status.state is JobState.PENDING:
        reason = f"starts on host {deployment.host}" if deployment.host else WAITS_FOR_HOST
        hint = f"See `cdc logs {deployment.job}`." if deployment.host else "See `cdc hosts`."
    return {
        "job": deployment.job,
        "state": status.state,
        "reason": reason,
        "hint": hint,
        "resume": status.resume,
        "pause": status.pause,
        "desired_state": deployment.desired,
        "is_paused_by_user": status.desired_state == DesiredState.PAUSED,  # also by a command
        "generation": deployment.generation,
        "is_managed": deployment.spec is not None,
        "host": deployment.host or deployment.holder or deployment.record.host,
        "source": asdict(status.source),
        "sink": asdict(status.sink),
        "lag_seconds": lag,
        "rows_per_second": rate,
        "rates": history.recent("rows_per_second", LIST_SAMPLES) if is_live or deployment.is_held else [],
        "last_committed_at": committed,
        "tables": len(status.channels),
        "left_out": len(status.left_out),
        "snapshot": asdict(status.snapshot),
        "summary_age_seconds": deployment.summary_age_s,
    }


def status_document(
    status: JobStatus, match: str, offset: int, limit: int, after: str | None = None, left_out_after: str = ""
) -> tuple[dict[str, Any], int]:
    """Return a status with a page of its tables, and the number of tables that match: names that contain ``match``.

    Tables with a snapshot that is not consistent are first, then those with the most changes. ``after``: by name, and
    only tables after this one. Counts change between two pages, but names do not: no table is repeated or missing.
    The page has also ``limit`` tables that are left out, by name, after ``left_out_after``.
    """
    words = match.casefold()
    found = [one for one in status.channels if words in one.source.casefold() or words in one.target.casefold()]
    found.sort(key=_urgency if after is None else _name)
    begin = offset + (0 if after is None else bisect_right(found, after, key=_name))
    omitted = sorted((one for one in status.left_out if one.table > left_out_after), key=lambda one: one.table)
    page = replace(status, channels=tuple(found[begin : begin + limit]), left_out=tuple(omitted[:limit]))
    return {**page.to_json(), "snapshot": asdict(status.snapshot)}, len(found)


def _urgency(channel: ChannelStatus) -> tuple[bool, int, str]:
    is_loaded = channel.snapshot is None or channel.snapshot.consistent
    return is_loaded, -channel.upserts - channel.deletes, channel.source


def _name(channel: ChannelStatus) -> str:
    return channel.source


def checkpoint_document(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return one checkpoint."""
    return {**asdict(CheckpointStatus.of(checkpoint)), "fence": checkpoint.fence}


def change_document(change: ChangeRecord) -> dict[str, Any]:
    """Return one schema change, as ``cdc changes --output json`` prints it."""
    return dict(json.loads(to_json(change)))


def event_document(event: JobEvent) -> dict[str, Any]:
    """Return one event."""
    return {
        "id": event.id,
        "job": event.job,
        "created_at": datetime.fromtimestamp(event.created_at, UTC).isoformat(timespec="milliseconds"),
        "kind": event.kind,
        "message": masked(event.message),
        "actor": event.actor,
        "detail": event.detail,
        "taken_by": event.taken_by,
        "result": event.result,
    }


def host_document(host: Host, deployments: tuple[Deployment, ...], this: str) -> dict[str, Any]:
    """Return one host with its jobs. ``this``: name of the host that answers."""
    return {
        "name": host.name,
        "run_id": host.run_id,
        "address": host.address,
        "memory_bytes": host.memory,
        "labels": dict(host.labels),
        "is_alive": host.is_alive,
        "is_drained": host.drained,
        "is_schedulable": host.schedulable,
        "is_starting": host.is_starting,
        "seen_seconds_ago": round(host.seen_ago_s, 1),
        "lease_left_seconds": host.lease_left_s,
        "is_this": host.name == this,
        "jobs": [one.job for one in deployments if (one.host or one.holder) == host.name and not _has_ended(one)],
    }


def _has_ended(deployment: Deployment) -> bool:
    return deployment.record.state in (JobState.CANCELLED, JobState.DONE)


def error_document(error: CdcError) -> dict[str, Any]:
    """Return an error: what failed, where, a hint, and the exit code of a command that fails so."""
    found = error_to_json(error, masked)
    return {
        "error": found["error"], "where": masked(error.location), "hint": found["hint"],
        "exit_code": found["exit_code"], "class": found["class"],
    }  # fmt: skip


def shown_spec(spec: str | None) -> str | None:
    """Return a specification without the values of secret settings. ``${NAME}`` stays."""
    if spec is None:
        return None
    # YAML would read the braces of ${NAME} as its own; characters of the same number keep the offsets
    marked = _REFERENCE.sub(lambda found: f"\ue000\ue001{found[1]}\ue002", spec)
    try:
        tree = yaml.compose(marked, yaml.SafeLoader)
        hidden = sorted(_secret_parts(tree)) if tree is not None else []
    except (yaml.YAMLError, RecursionError):
        return HIDDEN
    pieces, shown_to = [], 0
    for start, end in hidden:
        if start >= shown_to:  # not a part that an alias names again, or that is within a hidden one
            pieces += [spec[shown_to:start], HIDDEN]
            shown_to = end
    spec = "".join([*pieces, spec[shown_to:]])
    return masked(_COMMENT.sub(_without_secret, SECRET_PARAMETER.sub(lambda found: f"{found[1]}={HIDDEN}", spec)))


def _without_secret(comment: re.Match[str]) -> str:
    """Return a comment as it is, or hidden if it may be a setting that was commented out."""
    return f"{comment[1]}# {HIDDEN}" if SECRET_SETTING.search(comment[0]) else comment[0]


def _secret_parts(tree: yaml.Node) -> Iterator[tuple[int, int]]:
    """Yield start and end of the values of secret settings that are written as such."""
    if isinstance(tree, yaml.MappingNode):
        for key, value in tree.value:
            if SECRET_SETTING.search(str(key.value)):
                if not (isinstance(value, yaml.ScalarNode) and _ONLY_REFERENCE.fullmatch(value.value)):
                    yield value.start_mark.index, value.end_mark.index
            else:
                yield from _secret_parts(value)
    elif isinstance(tree, yaml.SequenceNode):
        for one in tree.value:
            yield from _secret_parts(one)


def schema_of(kind: Any) -> Mapping[str, Any]:
    """Return the JSON schema of a dataclass, for the description of a request body."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind).json_schema()
