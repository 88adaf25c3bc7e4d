"""Which running job moves to another host, and when."""

from __future__ import annotations

from collections import Counter
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
from cdc.manager.rebalancing import JOB_START_LIMIT_S, JobMove, Rebalancer, best_move
from cdc.manager.spec import read_spec
from cdc.paths import state_folder
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


def moved(jobs: list[PlacedJob], move: JobMove) -> list[PlacedJob]:
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


def test_host_with_a_stopped_job_gets_no_other_one() -> None:
    jobs, hosts = jobs_on(a="klmn", b="o"), [host("a"), host("b"), host("c")]
    assert best_move(jobs, hosts, set("klmn"), {"c"}) is not None
    assert best_move(jobs, hosts, set("klmn"), {"c", "b"}) is None


class Rounds:
    """Asks a Rebalancer second by second."""

    def __init__(self, after_s: float) -> None:
        self.now = 1000.0
        self.rebalancer = Rebalancer(after_s, lambda: self.now)
        self.jobs, self.hosts = jobs_on(a="klmn", b="s"), [host("a"), host("b"), host("c")]
        self.running, self.stopped = set("klmns"), set[str]()
        self.ask()

    def ask(self) -> JobMove | None:
        return self.rebalancer.next_move(self.jobs, self.hosts, self.running, self.stopped)

    def seconds_until_a_move(self) -> int | None:
        """Ask each second. Return after how many there is a move; None: not within two minutes."""
        for second in range(120):
            if self.ask() is not None:
                return second
            self.now += 1
        return None


def test_job_moves_when_nothing_has_changed_for_the_time() -> None:
    rounds = Rounds(30)
    assert rounds.seconds_until_a_move() == 30
    move = rounds.ask()
    assert move is not None and move.host == "c"
    rounds.now += 1
    assert rounds.ask() == move, "another host may compute it a little later"
    rounds.jobs = moved(rounds.jobs, move)
    assert rounds.seconds_until_a_move() == 30


@pytest.mark.parametrize(
    "changed",
    [
        {"hosts": [host("a"), host("b"), host("c", run_id="another")]},
        {"hosts": [host("a"), host("b"), host("c", gib=9)]},
        {"hosts": [host("a"), host("b"), host("c"), host("d")]},
        {"jobs": jobs_on(a="klmn", b="st")},
        {"running": set("klmn")},
    ],
)
def test_change_begins_the_time_again(changed: dict[str, object]) -> None:
    rounds = Rounds(30)
    for _ in range(29):
        rounds.now += 1
        assert rounds.ask() is None
    vars(rounds).update(changed)
    assert rounds.seconds_until_a_move() == 30


def test_time_without_the_store_does_not_count() -> None:
    rounds = Rounds(30)
    rounds.now += 300
    assert rounds.seconds_until_a_move() == 30


def test_jobs_that_start_are_waited_for() -> None:
    rounds = Rounds(2)
    rounds.running, rounds.stopped = set("klmn"), {"s"}
    rounds.ask()
    for _ in range(30):
        rounds.now += 1
        assert rounds.ask() is None
    rounds.running, rounds.stopped = set("klmns"), set()
    assert rounds.seconds_until_a_move() == 2


def test_job_that_does_not_start_delays_moves_and_its_host_gets_none() -> None:
    rounds = Rounds(2)
    rounds.running, rounds.stopped = set("klmn"), {"s"}
    assert rounds.seconds_until_a_move() == JOB_START_LIMIT_S
    rounds.hosts = [host("a"), host("b")]
    assert rounds.seconds_until_a_move() is None


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    """A store with two running jobs and two others on host ``first``."""
    monkeypatch.setenv("CDC_HOME", str(tmp_path))
    monkeypatch.setenv("CDC_HOST", "first")
    states = {"k": JobState.RUNNING, "l": JobState.PAUSED, "m": JobState.RUNNING, "n": JobState.PAUSED}
    with closing(SqliteStore(tmp_path)) as store:
        for name, state in states.items():
            declare(store, read_spec(f"name: {name}\n"), actor=None)
            assert store.deployments.assign(name, "first", 0)
            with closing(SqliteStore(tmp_path)) as driver:
                record = driver.acquire(name, f"{name}.yaml")
                driver.save_job(replace(record, state=state, is_paused_by_user=state is JobState.PAUSED))
        sql = f"UPDATE cdc_jobs SET lease_until = {store.database.words.now} + 600"  # runs with a file have no lease
        store.database.transact(lambda transaction: transaction.run(sql))
        yield store


class Hosts:
    """Two hosts that look each second; the one without jobs first."""

    def __init__(self, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, rebalance_s: float | None) -> None:
        monkeypatch.setattr(LocalDrivers, "ensure", lambda self, job: None)
        monkeypatch.setattr(LocalDrivers, "is_running", lambda self, job: True)
        self.store, self.now = store, 0.0
        self.loops = [
            HostLoop(
                store, Host(name, f"run-{name}", memory=8 << 30), LocalDrivers(store),
                lease_s=6, rebalance_s=rebalance_s, clock=lambda: self.now,
            )
            for name in ("second", "first")
        ]  # fmt: skip

    def wait(self, seconds: int) -> dict[str, str | None]:
        """Let them look for so long. Return the host of each job."""
        for _ in range(seconds):
            for loop in self.loops:
                loop.tick()
            self.now += 1
        return {job.job: job.host for job in self.store.deployments.all()}

    def save(self, sql: str) -> None:
        self.store.database.transact(lambda transaction: transaction.run(sql))


def test_host_gives_running_jobs_one_by_one_to_another_host(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = Hosts(store, monkeypatch, 10.0)
    assert set(hosts.wait(10).values()) == {"first"}
    found = hosts.wait(5)
    (name,) = (job for job, host in found.items() if host == "second")
    assert name in "km", "a paused job stays"
    job = store.deployments.get(name)
    assert job is not None and not job.is_held, "the earlier driver has lost its lease"
    event = next(one for one in store.events.newest(name) if one.kind is EventKind.ASSIGNED)
    assert (event.message, event.actor) == ("assigned to host second: it has more free memory", "first")
    assert hosts.wait(100) == found, "no job follows to a host on which the first one does not run"
    hosts.save(f"UPDATE cdc_jobs SET lease_until = {store.database.words.now} + 600, holder = host")
    assert Counter(hosts.wait(15).values()) == {"first": 2, "second": 2}


def test_job_that_starts_delays_the_first_move(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(SqliteStore(state_folder())) as driver:
        driver.save_job(replace(driver.acquire("k", "k.yaml"), state=JobState.PENDING))
    hosts = Hosts(store, monkeypatch, 10.0)
    hosts.save(f"UPDATE cdc_jobs SET lease_until = {store.database.words.now} + 600")
    assert set(hosts.wait(int(JOB_START_LIMIT_S)).values()) == {"first"}
    assert hosts.wait(5)["m"] == "second"


def test_running_jobs_stay_without_the_setting(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(Hosts(store, monkeypatch, None).wait(200).values()) == {"first"}
