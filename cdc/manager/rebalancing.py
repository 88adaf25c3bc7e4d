"""Decide which running job moves to another host, so that the hosts have equal free memory. ``rebalance`` is opt-in.

A move costs a job some seconds, so jobs move one at a time, and only while nothing else happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from cdc.manager.placement import PlacedJob, free_memory, has_labels, rank
from cdc.state.hosts import Host

STARTING_LIMIT_S = 60.0  # jobs that do not start for longer do not keep others where they are


class Move(NamedTuple):
    """A job, and the host that is to run it."""

    job: str
    host: str


class Rebalancer:
    """Knows for how long the hosts and the distribution of the jobs have not changed. Calls: one thread."""

    def __init__(self, after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``after_s``: a job moves when nothing has changed for so long."""
        self._after_s = after_s
        self._clock = clock
        self._last: object = None
        self._since = clock()

    def next_move(
        self, jobs: Collection[PlacedJob], hosts: Collection[Host], running: Collection[str], *, is_starting: bool
    ) -> Move | None:
        """Return the next move; None: not now. ``running``: names of the jobs that may move. ``is_starting``: some jobs
        do not run yet.

        Every host gets the same result but for a difference of seconds, and the host that has the job moves it.
        """
        accepting = {(host.name, host.run_id, host.memory, host.is_starting) for host in hosts if is_open(host)}
        now, found = self._clock(), (accepting, {(job.name, job.host, job.memory) for job in jobs})
        if found != self._last:
            self._last, self._since = found, now
        wait_s = max(self._after_s, STARTING_LIMIT_S) if is_starting else self._after_s
        return best_move(jobs, hosts, running) if now - self._since >= wait_s else None


def best_move(jobs: Collection[PlacedJob], hosts: Collection[Host], running: Collection[str]) -> Move | None:
    """Return the move between the hosts whose free memory differs most, of the largest job for which it helps.

    The host that gets the job has at least as much free memory as the other one afterwards, so no sequence of moves
    returns to where it was. Hosts that are starting give and get no jobs.
    """
    ready = {host.name: host for host in hosts if is_open(host) and not host.is_starting}
    free = free_memory(jobs, ready)
    moves = [
        (free[name] - free[job.host], job.memory, rank(job.name, name), Move(job.name, name))
        for job in jobs
        if job.name in running and job.host in free and job.memory > 0
        for name, host in ready.items()
        if has_labels(host, job) and free[name] - job.memory >= max(free[job.host] + job.memory, 0)
    ]
    return max(moves)[-1] if moves else None


def is_open(host: Host) -> bool:
    """Return whether the host accepts jobs."""
    return host.is_alive and host.schedulable
