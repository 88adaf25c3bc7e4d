"""Random faults of several hosts with many jobs, while every table is written to.

A whole host is killed, a driver, a JVM or a ``cdc serve`` is killed or frozen, or a line to the store or to the source is
cut. After each fault the time is printed until every job has committed rows that are newer than the fault; after every
tenth one all tables are compared cell by cell. ``python -m tests.recovery.hosts_crash --jobs 20 --minutes 30 --seed 7``
(``make kills-hosts``); a short run is behind ``make stress-long``.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.support.fleet import LIMIT_S, End, Fleet, FleetHost, Writer, running_fleet
from tests.support.seeds import seed_of

COMPARE_EVERY = 10
JOBS_WITH_OWN_SPARK = 6  # more of them would not fit into the memory of a small machine
TOGETHER = 0.15  # share of faults that the next one follows before all jobs have recovered
POLL_S = 0.2

Action = Callable[[], None]


@dataclass
class Fault:
    """One fault, and what follows it."""

    kind: str
    what: str  # for people
    later: list[tuple[float, Action]] = field(default_factory=list)  # seconds after the fault; inf: after recovery
    began: float = 0.0
    mark: End = ("", 0)
    is_alone: bool = True  # all jobs had recovered from the fault before it
    seconds: float | None = None  # until every job has committed rows that are newer


class Chaos:
    """Draws faults and carries them out. Calls: one thread."""

    def __init__(self, fleet: Fleet, draw: random.Random, lease_s: float) -> None:
        self._fleet, self._draw, self._lease_s = fleet, draw, lease_s
        self._open: list[Fault] = []

    @property
    def is_over(self) -> bool:
        """Whether every job has recovered from all faults, and everything is connected and running again."""
        return not self._open

    def inject(self, *, kills_hosts: bool = False) -> Fault:
        """Carry out a random fault. ``kills_hosts``: kill a host."""
        kinds = [self._kill_host] if kills_hosts else [
            self._kill_host, self._kill_host, self._kill_host, self._kill_driver, self._kill_driver_and_supervisor,
            self._kill_spark, self._kill_serve, self._freeze_driver, self._freeze_serve, self._freeze_host,
            self._cut_store, self._cut_source, self._cut_store_of_all,
        ]  # fmt: skip
        began = time.monotonic()
        fault = self._draw.choice(kinds)()
        fault.began, fault.is_alone, fault.mark = began, self.is_over, self._fleet.end()
        self._open.append(fault)
        return fault

    def watch(self, seconds: float = math.inf) -> None:
        """Carry out what follows the faults, until all jobs have recovered, or for ``seconds``."""
        began = time.monotonic()
        while self._open and time.monotonic() < began + seconds:
            for fault in list(self._open):
                self._follow(fault)
            for host in self._fleet.hosts:
                host.restart_failed()
            time.sleep(POLL_S)

    def _follow(self, fault: Fault) -> None:
        passed = time.monotonic() - fault.began
        if fault.seconds is None:
            behind = self._fleet.behind(fault.mark)
            if not behind:
                fault.seconds = time.monotonic() - fault.began
            assert passed < LIMIT_S, f"{fault.what}: {self._fleet.describe(behind)}"
        due = [one for one in fault.later if one[0] <= passed or (fault.seconds is not None and one[0] == math.inf)]
        fault.later = [one for one in fault.later if one not in due]
        for _, action in due:
            action()
        if fault.seconds is not None and not fault.later:
            self._open.remove(fault)

    # the faults

    def _kill_host(self) -> Fault:
        host = self._host()
        host.kill()
        again_s = self._draw.choice([math.inf, self._draw.uniform(0, 2 * self._lease_s)])
        when = "after its jobs were taken over" if again_s == math.inf else f"{again_s:.1f} s later"
        return Fault("host killed", f"{host.name} killed, started {when}", [(again_s, lambda: _launch(host))])

    def _kill_serve(self) -> Fault:
        host = self._host()
        host.end(signal.SIGKILL)
        again_s = self._draw.uniform(0, 2 * self._lease_s)
        what = f"`cdc serve` of {host.name} killed, started {again_s:.1f} s later"
        return Fault("serve killed", what, [(again_s, lambda: _launch(host))])

    def _kill_driver(self) -> Fault:
        job, pid = self._driver()
        _signal(pid, signal.SIGKILL)
        return Fault("driver killed", f"driver of {job} killed")

    def _kill_driver_and_supervisor(self) -> Fault:
        job, pid = self._driver()
        _signal(self._fleet.record(job).supervisor_pid, signal.SIGKILL)
        _signal(pid, signal.SIGKILL)
        return Fault("driver and supervisor killed", f"driver and supervisor of {job} killed")

    def _kill_spark(self) -> Fault:
        if self._fleet.shares_spark:
            host = self._host()
            for process in host.spark_servers():
                _signal(process.pid, signal.SIGKILL)
            return Fault("Spark killed", f"shared Spark of {host.name} killed")
        job, pid = self._driver()
        with suppress(psutil.Error):
            for process in psutil.Process(pid).children(recursive=True) if pid else ():
                if process.name() == "java":
                    process.kill()
        return Fault("Spark killed", f"JVM of {job} killed")

    def _freeze_driver(self) -> Fault:
        job, pid = self._driver()
        seconds = self._draw.uniform(1, 2.5 * self._lease_s)
        _signal(pid, signal.SIGSTOP)
        thaw = (seconds, lambda: _signal(pid, signal.SIGCONT))
        return Fault("driver frozen", f"driver of {job} frozen for {seconds:.1f} s", [thaw])

    def _freeze_serve(self) -> Fault:
        host = self._host()
        seconds = self._draw.uniform(1, 2.5 * self._lease_s)
        assert host.process is not None
        pid = host.process.pid
        _signal(pid, signal.SIGSTOP)
        thaw = (seconds, lambda: _signal(pid, signal.SIGCONT))
        return Fault("serve frozen", f"`cdc serve` of {host.name} frozen for {seconds:.1f} s", [thaw])

    def _freeze_host(self) -> Fault:
        host = self._host()
        seconds = self._draw.uniform(0.5, 2.5) * self._lease_s
        host.signal_all(signal.SIGSTOP)
        thaw = (seconds, lambda: host.signal_all(signal.SIGCONT))
        return Fault("host frozen", f"{host.name} frozen for {seconds:.1f} s", [thaw])

    def _cut_store(self) -> Fault:
        host = self._host()
        seconds = self._draw.uniform(0.2, 2.5) * self._lease_s
        host.cut_store(off=True)
        back = (seconds, lambda: host.cut_store(off=False))
        return Fault("store cut", f"{host.name} cut off from the store for {seconds:.1f} s", [back])

    def _cut_store_of_all(self) -> Fault:
        hosts = self._fleet.hosts
        seconds = self._draw.uniform(0.2, 2) * self._lease_s
        for host in hosts:
            host.cut_store(off=True)
        back = [(seconds, lambda host=host: host.cut_store(off=False)) for host in hosts]
        return Fault("store down", f"all hosts cut off from the store for {seconds:.1f} s", back)

    def _cut_source(self) -> Fault:
        host, seconds, line = self._host(), self._draw.uniform(0, 8), self._fleet.line
        line.cut(host.home)
        back = (seconds, lambda: line.restore(host.home))
        return Fault("source cut", f"{host.name} cut off from the source for {seconds:.1f} s", [back])

    def _host(self) -> FleetHost:
        """Return a random host whose ``cdc serve`` runs; preferably one with jobs."""
        alive = [host for host in self._fleet.hosts if host.is_serving]
        used = {self._fleet.record(job).host for job in self._fleet.jobs}
        return self._draw.choice([host for host in alive if host.name in used] or alive or self._fleet.hosts)

    def _driver(self) -> tuple[str, int | None]:
        job = self._draw.choice(self._fleet.jobs)
        return job, self._fleet.record(job).driver_pid


def _launch(host: FleetHost) -> None:
    if not host.is_serving:
        host.launch()


def _signal(pid: int | None, number: int) -> None:
    if pid is not None:
        with suppress(psutil.Error):
            psutil.Process(pid).send_signal(number)


def run(
    folder: Path, *, hosts: int, jobs: int, kills: int, seed: int, minutes: float = math.inf, lease_s: float,
    shares_spark: bool | None = None, every_s: float | None = None, interval_s: float = 1.0,
    rebalance_s: float | None = None, say: Callable[[str], None] = print,
) -> int:  # fmt: skip
    """Inject ``kills`` faults, or until ``minutes`` are over. Return the number of rows compared at the end.

    ``shares_spark``: one Spark for all jobs of a host; default: if there are many. ``every_s``: kill a host this often,
    instead of random faults. ``interval_s``: of the jobs' commits. ``rebalance_s``: of the hosts.
    ``say`` prints a line.
    Raises: AssertionError - source and target differ, or a job does not recover.
    """
    draw = random.Random(seed)
    shares = shares_spark if shares_spark is not None else jobs > JOBS_WITH_OWN_SPARK
    began, faults, rows = time.monotonic(), [], 0
    with running_fleet(
        folder, hosts=hosts, jobs=jobs, lease_s=lease_s, shares_spark=shares, interval_s=interval_s,
        rebalance_s=rebalance_s,
    ) as fleet:  # fmt: skip
        say(f"{hosts} hosts with {jobs} jobs run after {time.monotonic() - began:.0f} s; {_memory()}")
        writer, chaos = Writer(fleet.source, fleet.jobs, seed), Chaos(fleet, draw, lease_s)
        writer.start()
        with writer.lock:
            writer.change_all()
        fleet.wait_for_commits(fleet.end())
        began = time.monotonic()
        while len(faults) < kills and time.monotonic() < began + 60 * minutes:
            faults.append(chaos.inject(kills_hosts=every_s is not None))
            chaos.watch(draw.uniform(0, lease_s) if every_s is None and draw.random() < TOGETHER else math.inf)
            if chaos.is_over:
                say(_line(len(faults), faults[-1]))
            if len(faults) % COMPARE_EVERY == 0 or len(faults) == kills:
                rows = _compare(fleet, chaos, writer, f"seed {seed}, fault {len(faults)}")
                say(f"{len(faults)} faults, {writer.transactions} transactions: {rows} rows agree; {_memory()}")
            if every_s is not None:
                time.sleep(max(0.0, faults[-1].began + every_s - time.monotonic()))
        rows = _compare(fleet, chaos, writer, f"seed {seed}, at the end")
        writer.stop()
    for line in summary(faults):
        say(line)
    return rows


def _compare(fleet: Fleet, chaos: Chaos, writer: Writer, where: str) -> int:
    chaos.watch()
    rows = fleet.compare(writer, where)
    fleet.wait_for_one_driver_each()
    return rows


def _line(number: int, fault: Fault) -> str:
    together = "" if fault.is_alone else ", during the one before"
    return f"{number}: {fault.what}{together}: every job commits again after {fault.seconds:.1f} s"


def summary(faults: list[Fault]) -> list[str]:
    """Return a line for each kind of fault, with the median and the maximum of seconds until all jobs commit again."""
    lines = []
    for kind in sorted({fault.kind for fault in faults}):
        found = [one.seconds for one in faults if one.kind == kind and one.is_alone and one.seconds is not None]
        if found:
            lines.append(f"{kind}: {len(found)}, median {statistics.median(found):.1f} s, at most {max(found):.1f} s")
    together = [fault.seconds for fault in faults if not fault.is_alone and fault.seconds is not None]
    if together:
        lines.append(f"during another fault: {len(together)}, at most {max(together):.1f} s")
    return lines


def _memory() -> str:
    memory = psutil.virtual_memory()
    return f"{(memory.total - memory.available) / 2**30:.1f} GiB of memory are in use"


def main() -> None:
    """Run the faults of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--kills", type=int, help="number of faults; default: 100, or without end with --minutes")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--lease", type=float, default=6.0, help="seconds")
    parser.add_argument("--every", type=float, help="kill a host every so many seconds, instead of random faults")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two commits of a job")
    parser.add_argument("--rebalance", type=float, help="seconds; default: running jobs stay where they are")
    parser.add_argument("--own-spark", action="store_true", help="one Spark for each job, whatever their number")
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    seed = seed_of(given.seed)
    kills = given.kills or (100 if given.minutes == math.inf else 10**9)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cdc-kills-") as folder:
        rows = run(
            Path(folder), hosts=given.hosts, jobs=given.jobs, kills=kills, seed=seed, minutes=given.minutes,
            lease_s=given.lease, shares_spark=False if given.own_spark else None, every_s=given.every,
            interval_s=given.interval, rebalance_s=given.rebalance,
        )  # fmt: skip
    print(f"{(time.monotonic() - began) / 60:.0f} minutes, seed {seed}: {rows} rows, source and target agree")


if __name__ == "__main__":
    main()
