"""Decide which running job moves to another host, so that the free memory of the hosts becomes similar.

A move costs a job some seconds, so jobs move only on request (``rebalance`` in ``serve.yaml``), one at a time, and
while nothing else happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from cdc.manager.placement import PlacedJob, free_memory, has_labels, rank
from cdc.state.hosts import Host

JOB_START_LIMIT_S = 60.0  # after this time, jobs that do not start do not prevent moves
_LATE_S = 10.0  # after such a pause, for example without the store, the time begins again


class JobMove(NamedTuple):
    """A job, and the host that is to run it."""

    job: str
    host: str


class Rebalancer:
    """Knows for how long hosts and jobs have not changed. Calls: one thread, at least every 10 s."""

    def __init__(self, after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``after_s``: a job moves when nothing has changed for so long."""
        self._after_s = after_s
        self._clock = clock
        self._last: object = None
        self._since = self._called_at = 0.0

    def next_move(
        self, jobs: Collection[PlacedJob], hosts: Collection[Host], running: Collection[str], stopped: Collection[str]
    ) -> JobMove | None:
        """Return the next move; None: not now. ``running``: names of the jobs that may move. ``stopped``: names of
        those that are to run, and do neither run nor wait for a user; also jobs that start.

        While a job starts, no other one moves. A host with a stopped job gets no other one: if that job cannot run
        there, others may not be able to either. Every host gets the same result but for a difference of seconds, and
        the host that has the job moves it.
        """
        now, accepting = self._clock(), {(one.name, one.run_id, one.memory) for one in hosts if _is_ready(one)}
        found = (accepting, {(job.name, job.host, job.memory) for job in jobs}, {*running})
        if found != self._last or now - self._called_at > _LATE_S:
            self._last, self._since = found, now
        self._called_at = now
        wait_s = max(self._after_s, JOB_START_LIMIT_S) if stopped else self._after_s
        if now - self._since < wait_s:
            return None
        failing = {job.host for job in jobs if job.name in stopped}
        return best_move(jobs, hosts, running, failing)


def best_move(
    jobs: Collection[PlacedJob], hosts: Collection[Host], running: Collection[str], failing: Collection[str | None] = ()
) -> JobMove | None:
    """Return, of the moves that help, one between the two hosts whose free memory differs most, of the largest job.

    The host that gets the job has at least as much free memory as the other one afterwards. So while hosts and memory
    do not change, no sequence of moves returns to where it was. Hosts that are starting give and get no jobs; those in
    ``failing`` get none.
    """
    ready = {host.name: host for host in hosts if _is_ready(host)}
    free = free_memory(jobs, ready)
    moves = [
        (free[name] - free[job.host], job.memory, rank(job.name, name), JobMove(job.name, name))
        for job in jobs
        if job.name in running and job.host in free and job.memory > 0
        for name, host in ready.items()
        if name not in failing and has_labels(host, job.selector)
        if free[name] - job.memory >= max(free[job.host] + job.memory, 0)
    ]
    return max(moves)[-1] if moves else None


def _is_ready(host: Host) -> bool:
    return host.accepts_jobs and not host.is_starting
