"""The loop of ``cdc serve``: heartbeat, take-over of jobs without a live host, and the drivers of this host.

There is no leader. Each host computes the same placement from the rows of the store and takes only jobs that are placed
on it, each by a compare-and-set of the job's row. If two views differ, the row decides. A host may also give a running
job to another one (``rebalancing``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from cdc.errors import CheckpointError
from cdc.manager.jobs_folder import JobsFolder
from cdc.manager.local_drivers import LocalDrivers
from cdc.manager.placement import PlacedJob, Placement, assign_jobs, has_labels
from cdc.manager.rebalancing import Rebalancer
from cdc.manager.spec import JobSpec, read_spec
from cdc.paths import state_folder
from cdc.state.base import JobState
from cdc.state.deployments import Deployment, DesiredState
from cdc.state.hosts import CLOCK_STEP_S, Host
from cdc.state.sql import DEFAULT_LEASE_S, SqlStore

TICK_S = 1.0
WAITING_TICK_S = 0.2  # while drivers wait for the start of others
SPACE_BYTES = 1 << 16  # a driver needs some space for its log and its job file
LEASE_END_S = 0.05  # after the end of a lease that was not renewed, its job is taken
STARTING_LIMIT_S = 60.0  # after this time a host counts as ready, even if its Spark is not
PREPARE_S = 15.0  # longest time for which a host without jobs waits with its preparations
END_S = 60.0  # for the drivers, at the end of a host that is drained

_log = logging.getLogger(__name__)


class HostLoop:
    """Runs this host. Calls: ``run`` and ``drain`` on one thread, ``is_ready`` on any."""

    def __init__(
        self,
        store: SqlStore,
        host: Host,
        drivers: LocalDrivers,
        folder: JobsFolder | None = None,
        *,
        lease_s: float,
        rebalance_s: float | None = None,
        prepare: Callable[[], None] = lambda: None,
        is_starting: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``rebalance_s``: see ``Rebalancer``; None: running jobs stay. ``prepare`` starts what drivers need.
        ``is_starting``: whether drivers start more slowly than on other hosts, because that is not ready yet.
        """
        self._store = store
        self._host = host
        self._drivers = drivers
        self._folder = folder
        self._lease_s = lease_s
        self._clock = clock
        self._is_writable = True
        self._last_beat = float("-inf")
        self._takes_over_from = float("inf")  # monotonic time; jobs of other hosts are left alone before
        self._specs = SpecCache()
        self._rebalancer = Rebalancer(rebalance_s, clock) if rebalance_s is not None else None
        self._prepare = prepare
        self._is_prepared = False
        self._is_starting = is_starting
        self._began = clock()
        self._taken: set[str] = set()  # jobs that this process took; a user may have moved others here
        self.takeovers: Counter[str] = Counter()  # of jobs that were on another host, since this process started

    @property
    def is_ready(self) -> bool:
        """Whether the last heartbeat is younger than the lease."""
        return self._clock() - self._last_beat < self._lease_s

    def run(self, over: threading.Event) -> None:
        """Work until ``over``. The drivers continue then. Raises: LeaseLost - another process has this name."""
        is_connected = True
        while not over.is_set():
            wait_s = TICK_S
            try:
                wait_s = self.tick()
                is_connected = True
            except CheckpointError as error:
                if is_connected:
                    _log.error("The state store does not answer; the drivers continue. %s", error)
                is_connected = False
            over.wait(wait_s)

    def tick(self) -> float:
        """Do the work of one second. Return when to do it again: when a lease may end before. Raises: LeaseLost,
        CheckpointError.
        """
        self._store.hosts.heartbeat(replace(self._host, schedulable=self._can_write(), is_starting=self._starts()))
        now = self._clock()  # the heartbeat may have waited for the store
        if now - self._last_beat >= self._lease_s:
            # this host has just started or was cut off: the others, which may have been cut off too, come back first
            self._takes_over_from = now + self._lease_s
        self._last_beat = now
        if self._folder is not None:
            self._folder.read_changes()
        found, hosts = self._store.deployments.all(), self._store.hosts.all()
        if is_clock_set_back(found, hosts):
            self._store.hosts.shorten_leases()
            found, hosts = self._store.deployments.all(), self._store.hosts.all()
        jobs = [job for job in found if is_to_run(job)]
        self._drivers.begin_tick()
        is_drained = any(host.name == self._host.name and host.drained for host in hosts)
        placed = placed_jobs(jobs, self._specs)
        placements = assign_jobs(placed, hosts)
        if not self._is_prepared and not self._may_wait(jobs, hosts):
            self._is_prepared = True
            self._prepare()
        own = set()
        # those that were started last come last: jobs that fail again and again must not delay others
        for job in sorted(jobs, key=lambda job: self._drivers.started_at(job.job)):
            if job.host == self._host.name:
                own.add(job.job)
                selector = self._specs.spec(job).selector
                self._run_own(job, selector, placements[job.job], is_drained=is_drained)
            elif placements[job.job].host == self._host.name:
                own.add(job.job)
                self._take(job)
        alive = {host.name for host in hosts if host.is_alive}
        for job in found:
            if is_to_cancel(job) and (job.host == self._host.name or (job.host not in alive and not job.is_held)):
                own.add(job.job)
                self._drivers.cancel(job)
        self._taken &= own
        own -= self._release_waiting(jobs, hosts)
        if self._rebalancer is not None:
            self._rebalance(self._rebalancer, placed, jobs, hosts)
        self._drivers.keep_only(own)
        tick_s = WAITING_TICK_S if self._drivers.is_waiting else TICK_S
        leases = (*(host.lease_left_s for host in hosts), *(job.lease_left_s for job in jobs))
        return min(tick_s, min((left_s for left_s in leases if left_s > 0), default=tick_s) + LEASE_END_S)

    def drain(self) -> None:
        """End the drivers of this host, and let other hosts take its jobs over at once. Raises: CheckpointError."""
        self._host = Host(self._host.name, self._host.run_id, self._host.address, 0, self._host.labels, False)
        deadline = self._clock() + END_S
        while self._clock() < deadline:
            self._store.hosts.heartbeat(self._host)
            jobs = [job for job in self._store.deployments.all() if job.host == self._host.name]
            ended = [self._drivers.end(job) for job in jobs]  # all of them at once
            if all(ended):
                break
            time.sleep(0.2)
        self._store.hosts.leave(self._host.name, self._host.run_id)

    def _starts(self) -> bool:
        """Return whether this host is starting. Once it was ready, it stays so."""
        if self._clock() >= self._began + STARTING_LIMIT_S or not self._is_starting():
            self._began = float("-inf")
            return False
        return True

    def _may_wait(self, jobs: Sequence[Deployment], hosts: Sequence[Host]) -> bool:
        """Return whether the preparations may wait, because others that are ready start jobs, and this host none.

        Hosts may share a machine, and a new JVM needs seconds of its cores, for which those jobs would have to wait.
        """
        if self._clock() >= self._began + PREPARE_S:
            return False
        own = [job for job in jobs if job.host == self._host.name]
        # of an earlier process of this host; until their leases end, only this host can start them
        dead = {job.job for job in own if 0 < job.lease_left_s <= DEFAULT_LEASE_S and not self._drivers.is_running(job)}
        placements = place(jobs, hosts, self._specs, unplaced=dead)
        if any(placements[job.job].host == self._host.name for job in jobs):
            return False
        ready = {host.name for host in hosts if host.accepts_jobs and not host.is_starting}
        starting = (job for job in jobs if is_to_start(job) or job.job in dead)
        return any(placements[job.job].host in ready for job in starting)

    def _can_write(self) -> bool:
        """Return whether drivers can be started here. A host whose disk is full accepts no jobs, and keeps its own."""
        try:
            check_folder(state_folder())
        except OSError as error:
            if self._is_writable:
                _log.error("The folder of this host cannot be written; it accepts no jobs. %s", error)
            self._is_writable = False
        else:
            self._is_writable = True
        return self._is_writable

    def _run_own(self, job: Deployment, selector: Mapping[str, str], placement: Placement, *, is_drained: bool) -> None:
        if is_drained:
            if placement.host != self._host.name or self._drivers.is_running(job):
                self._drivers.end(job)
        elif placement.host is None and not (has_labels(self._host, selector) or self._drivers.is_running(job)):
            return  # its selector was changed, or the labels of this host: it waits for a host that has them
        elif placement.host in (None, self._host.name):
            self._drivers.ensure(job)
        elif not self._starts():  # no run of it is alive, and this host cannot start one: another host does
            self._drivers.end(job)

    def _take(self, job: Deployment) -> None:
        is_foreign = job.host is not None or job.holder not in (None, self._host.name)
        has_owner = job.host is not None or job.is_held
        if is_foreign and has_owner and self._clock() < self._takes_over_from:
            return
        if self._store.deployments.assign(job.job, self._host.name, job.fence, actor=self._host.name):
            self.takeovers[job.job] += is_foreign
            self._taken.add(job.job)
            _log.info("This host takes the job.", extra={"job": job.job, "before": job.host})
            taken = self._store.deployments.get(job.job)
            if taken is not None and taken.host == self._host.name:
                self._drivers.ensure(taken)

    def _release_waiting(self, jobs: Sequence[Deployment], hosts: Sequence[Host]) -> set[str]:
        """Assign jobs that wait here for the start of others to no host, if another one will start them sooner.

        The first one of several hosts that start takes all jobs. Return the names of the released ones. The host that
        takes them is the one with the most free memory, as for any job without a host; it takes no more than fit.
        """
        names = self._drivers.waiting & self._taken
        waiting = [job for job in jobs if job.job in names and job.host == self._host.name and not job.is_held]
        placements = place(jobs, hosts, self._specs, unplaced={job.job for job in waiting}) if waiting else {}
        # to be started, by host; a released job counts for the host that will take it
        pending = (
            Counter(job.host or placements[job.job].host for job in jobs if not job.is_held) if waiting else Counter()
        )
        released = set()
        for job in waiting:
            host = placements[job.job].host
            if host in (None, self._host.name) or pending[host] + 1 >= pending[self._host.name]:
                continue
            if self._store.deployments.assign(job.job, None, job.fence, actor=self._host.name):
                _log.info("The job waits for the start of others here; another host takes it.", extra={"job": job.job})
                pending.update({host: 1, self._host.name: -1})
                released.add(job.job)
        return released

    def _rebalance(
        self, rebalancer: Rebalancer, placed: Sequence[PlacedJob], jobs: Sequence[Deployment], hosts: Sequence[Host]
    ) -> None:
        """Give a running job to a host with more free memory. Its driver here loses the lease and ends."""
        by_name = {job.job: job for job in jobs}
        running = {name for name, job in by_name.items() if job.is_held and job.record.state is JobState.RUNNING}
        stopped = {name for name in by_name.keys() - running if not is_paused_by_user(by_name[name])}
        move = rebalancer.next_move(placed, hosts, running, stopped)
        if move is None or by_name[move.job].host != self._host.name:
            return
        job, actor = by_name[move.job], self._host.name
        if self._store.deployments.assign(job.job, move.host, job.fence, actor=actor, reason="it has more free memory"):
            _log.info("The job moves to a host with more free memory.", extra={"job": job.job, "host": move.host})


def check_folder(folder: Path) -> None:
    """Write a small file in the folder and delete it. Raises: OSError - its disk is full or read-only."""
    file = folder / ".space"
    try:
        file.write_bytes(bytes(SPACE_BYTES))
    finally:
        file.unlink(missing_ok=True)


class SpecCache:
    """The parsed specifications of jobs. Calls: one thread."""

    def __init__(self) -> None:
        self._read: dict[str, JobSpec] = {}

    def spec(self, job: Deployment) -> JobSpec:
        """Return what placement needs to know of a job. A text that is not valid needs the default memory."""
        known, text = self._read.get(job.job), job.spec or ""
        # not the generation: it begins again when a job is forgotten and another one gets its name
        if known is None or known.text != text:
            try:
                known = read_spec(text)
            except Exception:  # noqa: BLE001 - the host that runs it reports the error; the other jobs must run
                known = JobSpec(job.job, text)
            self._read[job.job] = known
        return known


def is_clock_set_back(jobs: Sequence[Deployment], hosts: Sequence[Host]) -> bool:
    """Return whether a lease that has not ended was renewed later than now, by the clock of the store."""
    ages = [host.seen_ago_s for host in hosts if host.is_alive]
    ages += [job.summary_age_s for job in jobs if job.is_held and job.summary_age_s is not None]
    return any(age_s < -CLOCK_STEP_S for age_s in ages)


def is_to_cancel(job: Deployment) -> bool:
    """Return whether a user has stopped a job of the hosts that is not CANCELLED yet."""
    is_ended = job.record.state in (JobState.CANCELLED, JobState.DONE)
    return job.spec is not None and not is_ended and job.desired is DesiredState.CANCELLED


def is_to_start(job: Deployment) -> bool:
    """Return whether a job that is to run has no run yet, or one that is not ready."""
    return not job.is_held or job.record.state is JobState.PENDING


def is_paused_by_user(job: Deployment) -> bool:
    """Return whether the job waits because a user has paused it, and not because of an error."""
    return job.record.state is JobState.PAUSED and job.record.is_paused_by_user


def is_to_run(job: Deployment) -> bool:
    """Return whether hosts run the job: it has a specification, and was not stopped."""
    is_ended = job.record.state in (JobState.CANCELLED, JobState.DONE)
    return job.spec is not None and not is_ended and job.desired is not DesiredState.CANCELLED


def place(
    jobs: Sequence[Deployment],
    hosts: Sequence[Host],
    specs: SpecCache,
    *,
    avoids: str | None = None,
    moved: str = "",
    unplaced: Collection[str] = (),
) -> dict[str, Placement]:
    """Return the placement of each job. ``moved``: a job that is to leave the host ``avoids``; ``unplaced``: jobs that
    may leave theirs.
    """
    return assign_jobs(placed_jobs(jobs, specs, avoids=avoids, moved=moved, unplaced=unplaced), hosts)


def placed_jobs(
    jobs: Sequence[Deployment],
    specs: SpecCache,
    *,
    avoids: str | None = None,
    moved: str = "",
    unplaced: Collection[str] = (),
) -> list[PlacedJob]:
    """Return the jobs as ``assign_jobs`` needs them. Options: see ``place``."""
    placed = []
    for job in jobs:
        spec = specs.spec(job)
        host = job.host or (job.holder if job.is_held else None)
        if job.job in unplaced:
            host = None
        away = avoids if job.job == moved else None
        was_there = job.holder == job.host
        placed.append(PlacedJob(job.job, spec.memory, spec.selector, host, job.is_held, away, was_there))
    return placed
