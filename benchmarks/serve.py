"""Several hosts: how long a take-over takes and on what, and what jobs cost that have nothing to do."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.rig import orders
from benchmarks.rig.jobs import EVERY_SECOND, rig
from benchmarks.rig.measure import Usage, Watch, pss_bytes, report
from benchmarks.rig.suite import Case, Options
from cdc.state.events import EventKind
from cdc.state.sql import DEFAULT_LEASE_S
from tests.support.fleet import Fleet, FleetHost, Writer, running_fleet

ROUNDS = 3
JOBS = 2  # of the take-over: one on each host
REST_S = 60.0
TABLES = 1000
_CHECKED = "row by row"


def takeover(_: Options) -> None:
    """Measure from the end of all processes of a host until its jobs commit newer rows on another one."""
    with (
        tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder,
        running_fleet(Path(folder), hosts=2, jobs=JOBS, lease_s=DEFAULT_LEASE_S) as fleet,
    ):
        writer = Writer(fleet.source, fleet.jobs, seed=7, per_s=5)
        writer.start()
        parts: dict[str, list[float]] = {}
        cpu = []
        for number in range(ROUNDS):
            lost, left = fleet.hosts[number % 2], fleet.hosts[1 - number % 2]
            for job in fleet.jobs:
                if fleet.record(job).host != lost.name:
                    left.cdc("move", job, lost.name)
            fleet.wait_for_commits(fleet.end())
            before = _cpu_s(left)
            for name, seconds in _taken_over(fleet, lost).items():
                parts.setdefault(name, []).append(seconds)
            cpu.append((_cpu_s(left) - before) / JOBS)
            lost.start()
            time.sleep(DEFAULT_LEASE_S)  # a host that has just started takes no jobs over
        killed = [_restarted(fleet, job) for job in fleet.jobs]
        fleet.compare(writer, "at the end")
        writer.stop()
    totals = parts.pop("total_s")
    data = {"jobs": JOBS, "lease": DEFAULT_LEASE_S, "commit interval": "1s", "rounds": ROUNDS}
    report(
        "serve.takeover_seconds", statistics.median(totals), "s", goal="<= 20, target 12", data=data, checked=_CHECKED,
        parts={name: round(statistics.median(found), 2) for name, found in parts.items()},
        cpu_s_each=round(statistics.median(cpu), 2), each=[round(one, 2) for one in totals],
    )  # fmt: skip
    report(
        "serve.driver_killed_seconds", statistics.median(killed), "s", goal="<= 8, target 6", data=data,
        checked=_CHECKED, each=[round(one, 2) for one in killed],
    )  # fmt: skip


def _taken_over(fleet: Fleet, lost: FleetHost) -> dict[str, float]:
    """Kill a host. Return the seconds of each part of the take-over of its last job, and their sum."""
    newest = fleet.store.events.newest(limit=1)[0].id
    began, at = time.monotonic(), time.time()  # the store is on this machine, and has its clock
    lost.kill()
    fleet.wait_for_commits(fleet.end())
    total_s = time.monotonic() - began
    events = [one for one in fleet.store.events.newest(limit=1000) if one.id > newest]

    def last(kind: EventKind, state: str | None = None) -> float:
        return max(one.created_at for one in events if one.kind is kind and one.detail.get("state") == state)

    assigned, started = last(EventKind.ASSIGNED), last(EventKind.TAKE_OVER)
    running = last(EventKind.STATE, "RUNNING")
    return {
        "declared_dead_s": assigned - at,
        "driver_started_s": started - assigned,
        "recovered_s": running - started,
        "first_commit_s": at + total_s - running,
        "total_s": total_s,
    }


def _restarted(fleet: Fleet, job: str) -> float:
    """Kill the driver of a job. Return the seconds until all jobs commit newer rows."""
    pid, began = fleet.record(job).driver_pid, time.monotonic()
    psutil.Process(pid).kill()
    fleet.wait_for_commits(fleet.end())
    return time.monotonic() - began


def jobs_at_rest(options: Options) -> None:
    """Measure jobs on one host that share a Spark Connect server and whose tables do not change."""
    with (
        tempfile.TemporaryDirectory(prefix="cdc-bench-") as folder,
        running_fleet(Path(folder), hosts=1, jobs=options.rows, lease_s=DEFAULT_LEASE_S, shares_spark=True) as fleet,
    ):
        writer = Writer(fleet.source, fleet.jobs, seed=7)
        writer.change_all()
        fleet.wait_for_commits(fleet.end())
        time.sleep(REST_S)  # the session timeouts of the start are over
        (host,) = fleet.hosts
        before, began = _cpu_s(host), time.monotonic()
        time.sleep(REST_S)
        cpu_share = (_cpu_s(host) - before) / (time.monotonic() - began)
        total = sum(pss_bytes(process.pid) for process in host.processes())
        drivers = sum(pss_bytes(pid) for pids in fleet.drivers().values() for pid in pids)
        rows = fleet.compare(writer, "at rest")
    report(
        "serve.jobs_20_rest", total / 2**30, "GiB", goal="<= 8, target 5", checked=_CHECKED,
        data={"jobs": options.rows, "spark": "shared", "rows": rows},
        mib_each_driver=round(drivers / 2**20 / options.rows), other_mib=round((total - drivers) / 2**20),
        cpu_percent=round(100 * cpu_share, 1),
    )  # fmt: skip


def tables_at_rest(options: Options) -> None:
    """Measure one job with many tables of which none changes."""
    names = [f"t{number:04}" for number in range(options.rows)]
    with rig(Options(rows=options.rows)) as bench:
        orders.create(bench.server, *names)
        bench.begin()
        with bench.job(EVERY_SECOND) as job:
            bench.wait_running(job)
            orders.fill_together(bench.server, names, 1)
            bench.wait_caught_up(job, 900)
            time.sleep(REST_S)
            with Watch(job.pid) as watch:
                time.sleep(REST_S)
                usage = watch.usage()
        bench.prove()
    report(
        "serve.tables_1000", usage.peak_bytes / 2**30, "GiB", goal="<= 2", checked=bench.checked,
        data={"tables": options.rows, "rows_each": 1}, usage=Usage(usage.cpu_s, usage.peak_bytes),
        cpu_percent=round(100 * usage.cpu_s / REST_S, 1),
    )  # fmt: skip


def _cpu_s(host: FleetHost) -> float:
    """Return the CPU seconds of all processes of a host, and of those that have ended."""
    times = [process.cpu_times() for process in host.processes()]
    return sum(one.user + one.system + one.children_user + one.children_system for one in times)


CASES = (
    Case("serve.takeover_seconds", takeover, runs=1),
    Case("serve.jobs_20_rest", jobs_at_rest, Options(rows=20), quick_rows=3, runs=1),
    Case("serve.tables_1000", tables_at_rest, Options(rows=TABLES), quick_rows=20, runs=1),
)
