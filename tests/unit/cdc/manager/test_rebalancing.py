"""Which running job moves to another host, and when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from cdc.manager.host_loop import HostLoop
from cdc.manager.jobs_folder import declare
from cdc.manager.local_drivers import LocalDrivers
from cdc.manager.placement import PlacedJob, free_memory
from cdc.manager.rebalancing import STARTING_LIMIT_S, Move, Rebalancer, best_move
from cdc.manager.spec import read_spec
from cdc.state.base import JobState
from cdc.state.events import EventKind
from cdc.state.hosts import Host
from cdc.state.sqlite import SqliteStore
from tests.unit.cdc.manager.test_placement import GIB, unhurried
from tests.unit.cdc.manager.test_placement import hosts as any_hosts
from tests.unit.cdc.manager.test_placement import jobs as any_jobs


def host(name: str, gib: int = 8, **options: object) -> Host:
    return replace(Host(name, f"run-{name}", memory=gib * GIB, lease_left_s=5.0), **options)  # type: ignore[arg-type]


def jobs_on(**hosts: str) -> list[PlacedJob]:
    """Return jobs of a GiB each, named by the letters of a text per host."""
    return [PlacedJob(job, GIB, host=name, is_held=True) for name, some in hosts.items() for job in some]


def moved(jobs: list[PlacedJob], move: Move) -> list[PlacedJob]:
    return [replace(job, host=move.host) if job.name == move.job else job for job in jobs]


def test_host_without_jobs_gets_a_third() -> None:
    jobs, hosts = jobs_on(a="klmnop", b="qrstuv"), [host("a"), host("b"), host("c")]
    counts = []
    while (move := best_move(jobs, hosts, {job.name for job in jobs})) is not None:
        jobs = moved(jobs, move)
        counts.append(sorted(sum(job.host == one.name for job in jobs) for one in hosts))
    assert counts == [[1, 5, 6], [2, 5, 5], [3, 4, 5], [4, 4, 4]]


@unhurried
@given(any_jobs, any_hosts)
def test_moves_end_and_fit_and_make_free_memory_more_even(jobs: list[PlacedJob], hosts: list[Host]) -> None:
    hosts = [replace(one, is_starting=one.memory == 5 * GIB) for one in hosts]
    running = {job.name for job in jobs if job.is_held}
    by_name = {one.name: one for one in hosts}
    for _ in range(200):
        move = best_move(jobs, hosts, running)
        if move is None:
            break
        (job,) = (one for one in jobs if one.name == move.job)
        to = by_name[move.host]
        assert job.is_held and job.host in by_name and job.host != move.host
        assert to.is_alive and to.schedulable and not to.is_starting
        assert job.selector.items() <= to.labels.items()
        before, jobs = free_memory(jobs, by_name), moved(jobs, move)
        after = free_memory(jobs, by_name)
        assert after[move.host] >= 0
        assert sum(free**2 for free in after.values()) < sum(free**2 for free in before.values())
    else:
        raise AssertionError("no end of moves")


def test_largest_job_that_makes_hosts_more_even_moves() -> None:
    sizes = {"small": GIB, "middle": 2 * GIB, "large": 4 * GIB}
    jobs = [PlacedJob(name, size, host="a", is_held=True) for name, size in sizes.items()]
    hosts = [host("a"), host("b")]
    assert best_move(jobs, hosts, {*sizes}) == ("middle", "b"), "with the large one, b would have more than a"
    assert best_move(jobs, hosts, {"small"}) == ("small", "b")
    assert best_move(jobs, hosts, set()) is None


@pytest.mark.parametrize(
    "other",
    [
        host("b", schedulable=False, drained=True),
        host("b", lease_left_s=-1.0),
        host("b", is_starting=True),
        host("b", gib=2),  # has as much free memory as a
    ],
)
def test_no_job_moves_to_a_host_that_cannot_run_it_better(other: Host) -> None:
    jobs = jobs_on(a="klmnop")
    assert best_move(jobs, [host("a"), other], {job.name for job in jobs}) is None


def test_jobs_stay_on_hosts_with_their_labels_and_need_memory() -> None:
    hosts = [host("a"), host("b")]
    bound = [PlacedJob(name, GIB, {"zone": "x"}, "a", True) for name in "kl"]
    assert best_move(bound, hosts, {"k", "l"}) is None
    labelled = [hosts[0], replace(hosts[1], labels={"zone": "x"})]
    assert best_move(bound, labelled, {"k", "l"}) is not None
    free = [PlacedJob(name, 0, host="a", is_held=True) for name in "kl"]
    assert best_move(free, hosts, {"k", "l"}) is None


class Rounds:
    """Asks a Rebalancer second by second."""

    def __init__(self, after_s: float) -> None:
        self.now = 0.0
        self.rebalancer = Rebalancer(after_s, lambda: self.now)
        self.jobs, self.hosts, self.is_starting = jobs_on(a="klmn"), [host("a"), host("b")], False

    def ask(self, seconds: float) -> Move | None:
        self.now += seconds
        return self.rebalancer.next_move(self.jobs, self.hosts, set("klmn"), is_starting=self.is_starting)


def test_job_moves_when_nothing_has_changed_for_the_time() -> None:
    rounds = Rounds(30)
    assert rounds.ask(0) is None and rounds.ask(29) is None
    move = rounds.ask(1)
    assert move is not None and move.host == "b"
    assert rounds.ask(1) == move, "another host may compute it a little later"
    rounds.jobs = moved(rounds.jobs, move)
    assert rounds.ask(1) is None and rounds.ask(29) is None and rounds.ask(1) is not None


@pytest.mark.parametrize(
    "changed",
    [
        [host("a"), host("b", run_id="another")],
        [host("a"), host("b", gib=9)],
        [host("a"), host("b"), host("c", is_starting=True)],
    ],
)
def test_change_of_the_hosts_begins_the_time_again(changed: list[Host]) -> None:
    rounds = Rounds(30)
    rounds.ask(0)
    rounds.ask(29)
    rounds.hosts = changed
    assert rounds.ask(1) is None and rounds.ask(29) is None and rounds.ask(1) is not None


def test_jobs_that_start_are_waited_for_but_not_for_ever() -> None:
    rounds = Rounds(2)
    rounds.is_starting = True
    assert rounds.ask(0) is None and rounds.ask(3) is None
    rounds.is_starting = False
    assert rounds.ask(0) is not None
    rounds.is_starting = True  # one that never starts
    assert rounds.ask(0) is None and rounds.ask(STARTING_LIMIT_S) is not None


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    """A store with two running jobs on host ``first``."""
    monkeypatch.setenv("CDC_HOME", str(tmp_path))
    monkeypatch.setenv("CDC_HOST", "first")
    with closing(SqliteStore(tmp_path)) as store:
        for name in "kl":
            declare(store, read_spec(f"name: {name}\n"), actor=None)
            assert store.deployments.assign(name, "first", 0)
            with closing(SqliteStore(tmp_path)) as driver:
                record = driver.acquire(name, f"{name}.yaml")
                driver.save_job(replace(record, state=JobState.RUNNING))
        sql = f"UPDATE cdc_jobs SET lease_until = {store.database.words.now} + 600"  # runs with a file have no lease
        store.database.transact(lambda transaction: transaction.run(sql))
        yield store


def _loop(store: SqliteStore, name: str, now: list[float], rebalance_s: float | None) -> HostLoop:
    of_host, drivers = Host(name, f"run-{name}", memory=8 << 30), LocalDrivers(store)
    return HostLoop(store, of_host, drivers, lease_s=6, rebalance_s=rebalance_s, clock=lambda: now[0])


@pytest.mark.parametrize("rebalance_s", [None, 10.0])
def test_host_gives_a_running_job_to_another_one(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, rebalance_s: float | None
) -> None:
    monkeypatch.setattr(LocalDrivers, "ensure", lambda self, job: None)
    monkeypatch.setattr(LocalDrivers, "is_running", lambda self, job: True)
    now = [0.0]
    first, second = (_loop(store, name, now, rebalance_s) for name in ("first", "second"))
    for _ in range(40):
        first.tick()
        second.tick()
        now[0] += 1
    found = sorted(str(job.host) for job in store.deployments.all())
    assert found == (["first", "first"] if rebalance_s is None else ["first", "second"])
    if rebalance_s is not None:
        (job,) = (one for one in store.deployments.all() if one.host == "second")
        assert not job.is_held, "the earlier driver has lost its lease"
        event = next(one for one in store.events.newest(job.job) if one.kind is EventKind.ASSIGNED)
        assert (event.message, event.actor) == ("assigned to host second: it has more free memory", "first")
