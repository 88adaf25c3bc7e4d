"""Decide which host runs which job: a pure function of the rows in the store, with the same result on every host."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from cdc.state.hosts import Host

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PlacedJob:
    """A job that is to run."""

    name: str
    memory: int  # bytes
    selector: Mapping[str, str] = field(default_factory=dict)  # labels that its host must have
    host: str | None = None  # to which it is assigned
    is_held: bool = False  # a run of it has a lease that has not expired, on ``host``
    avoids: str | None = None  # a host that it is moved away from
    was_there: bool = False  # its last run was on ``host``; otherwise a user or a placement chose that host since then


@dataclass(frozen=True, slots=True)
class Placement:
    """The host of a job, or the reason why no host can run it."""

    host: str | None
    reason: str | None = None
    hint: str | None = None


def assign_jobs(jobs: Collection[PlacedJob], hosts: Collection[Host]) -> dict[str, Placement]:
    """Return the placement of each job by name.

    A job stays on its host while that host lives, accepts jobs and has the labels, and while a run of it has a lease: a
    running job is never moved. The other jobs, largest first, get the host with the most free memory among those that
    are alive, accept jobs and have the labels; hosts with equal memory are ordered by a hash of job and host. A host
    that is starting gets a job only if no host that is ready has room for it, and loses jobs that had run there.
    """
    open_hosts = {host.name: host for host in hosts if host.accepts_jobs}
    staying, waiting = list[PlacedJob](), list[PlacedJob]()
    for job in jobs:
        own = open_hosts.get(job.host or "")
        may_stay = job.is_held or (has_labels(own, job.selector) and not _is_left(job, own, open_hosts))
        (staying if may_stay and job.host is not None and job.avoids != job.host else waiting).append(job)
    placements = {job.name: Placement(job.host) for job in staying}
    free = free_memory(staying, open_hosts)
    for job in sorted(waiting, key=lambda one: (-one.memory, one.name)):
        labelled = [name for name, host in open_hosts.items() if name != job.avoids and has_labels(host, job.selector)]
        fitting = [name for name in labelled if free[name] >= job.memory]
        fitting = [name for name in fitting if not open_hosts[name].is_starting] or fitting
        if fitting:
            chosen = min(fitting, key=lambda name: (-free[name], rank(job.name, name)))
            free[chosen] -= job.memory
            placements[job.name] = Placement(chosen)
        else:
            placements[job.name] = _unplaced(job, open_hosts, labelled, free)
    return placements


def free_memory(jobs: Collection[PlacedJob], hosts: Mapping[str, Host]) -> dict[str, int]:
    """Return the bytes of each host, by name, that its jobs leave free; negative: they need more than it has."""
    free = {name: host.memory for name, host in hosts.items()}
    for job in jobs:
        if job.host in free:
            free[job.host] -= job.memory
    return free


def has_labels(host: Host | None, selector: Mapping[str, str]) -> bool:
    """Return whether there is a host, with the labels that a job asks for."""
    return host is not None and selector.items() <= host.labels.items()


def _is_left(job: PlacedJob, own: Host | None, open_hosts: Mapping[str, Host]) -> bool:
    """Return whether the job leaves its host, which has just come back, because another one is ready."""
    if own is None or not own.is_starting or not job.was_there:
        return False
    return any(not host.is_starting and has_labels(host, job.selector) for host in open_hosts.values())


def rank(job: str, host: str) -> bytes:
    """Return what orders equally good hosts for a job."""
    return hashlib.blake2s(f"{job}\0{host}".encode()).digest()


def _unplaced(
    job: PlacedJob, open_hosts: Mapping[str, Host], labelled: Collection[str], free: Mapping[str, int]
) -> Placement:
    if not open_hosts:
        return Placement(
            None, "no host accepts jobs", "Start `cdc serve` on a host, or end its drain: see `cdc hosts`."
        )
    if not labelled:
        labels = ", ".join(f"{name}: {value}" for name, value in sorted(job.selector.items())) or "none"
        return Placement(
            None,
            f"no other host accepts jobs with the labels {{{labels}}}",
            "Correct `host_selector` of the job or `host.labels` of a host: see `cdc hosts`.",
        )
    most = max(free[name] for name in labelled)
    return Placement(
        None,
        f"no host has {job.memory // _MIB} MiB free; the most is {max(most, 0) // _MIB} MiB",
        "Start `cdc serve` on another host, increase `host.memory`, or decrease `resources.memory` of jobs.",
    )
