"""The loop of a host: when it looks again, how many drivers it starts at once, and a folder that cannot be written."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc.manager import host_loop, local_drivers
from cdc.manager.host_loop import TICK_S, WAITING_TICK_S, HostLoop, SpecCache, check_folder
from cdc.manager.jobs_folder import declare
from cdc.manager.local_drivers import STARTING_S, LocalDrivers
from cdc.manager.spec import read_spec
from cdc.state.base import JobState
from cdc.state.hosts import Host
from cdc.state.job_directory import JobDirectory
from cdc.state.sqlite import SqliteStore


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_HOME", str(tmp_path))


def test_tick_is_repeated_when_the_lease_of_a_host_ends(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        loop = HostLoop(store, Host("a", "run-a"), LocalDrivers(store), lease_s=6)
        assert loop.tick() == TICK_S
        store.hosts.lease_s = 0.4
        store.hosts.heartbeat(Host("b", "run-b"))
        store.hosts.lease_s = 6.0
        assert 0 < loop.tick() < 0.5  # the rest of the lease and a margin, after rounding
        store.hosts.leave("b", "run-b")
        assert loop.tick() == TICK_S


def test_leases_of_a_dead_host_end_in_time_after_the_clock_is_set_back(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        loop = HostLoop(store, Host("a", "run-a"), LocalDrivers(store), lease_s=6)
        store.hosts.lease_s = 30.0  # of host b
        store.hosts.heartbeat(Host("b", "run-b"))
        store.hosts.lease_s = 6.0
        store.acquire("shop", "shop.yaml")
        store.release()
        now = store.database.words.now
        sql = f"UPDATE cdc_jobs SET summary_at = {now}, lease_until = {now} + 30"
        store.database.transact(lambda transaction: transaction.run(sql))
        words = store.database.words
        for offset_s in (-0.5, -3600, -7200):
            store.database.words = replace(words, now=f"({words.now} + ({offset_s}))")
            loop.tick()
            _, host = store.hosts.all()
            job = store.deployments.get("shop")
            assert job is not None and 25 < host.lease_left_s <= 30.6 and 25 < job.lease_left_s <= 30.6


def test_host_whose_folder_cannot_be_written_accepts_no_jobs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        loop = HostLoop(store, Host("a", "run-a"), LocalDrivers(store), lease_s=6)
        (tmp_path / ".space").mkdir()  # even root cannot write it
        loop.tick()
        loop.tick()
        (host,) = store.hosts.all()
        assert host.is_alive and not host.schedulable and not host.drained
        assert [one.levelname for one in caplog.records] == ["ERROR"]
        (tmp_path / ".space").rmdir()
        loop.tick()
        (host,) = store.hosts.all()
        assert host.schedulable and not (tmp_path / ".space").exists()


def test_unexpected_error_of_a_saved_job_means_default_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_loop, "read_spec", lambda _: 1 // 0)
    with closing(SqliteStore(tmp_path)) as store:
        declare(store, read_spec("name: shop\nresources: {memory: 2GiB}\n"), actor=None)
        (job,) = store.deployments.all()
        assert SpecCache().spec(job).memory == 1 << 30


def test_host_takes_nothing_over_after_a_heartbeat_that_waited_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leases of all hosts and jobs have ended meanwhile: the first host that comes back would take all jobs."""
    now, wait_s = [0.0], [0.0]
    with closing(SqliteStore(tmp_path)) as store:
        loop = HostLoop(store, Host("a", "run-a", memory=8 << 30), LocalDrivers(store), lease_s=6, clock=lambda: now[0])
        loop.tick()
        now[0] += 7
        loop.tick()
        store.hosts.lease_s = 0.01
        store.hosts.heartbeat(Host("b", "run-b", memory=8 << 30))
        store.hosts.lease_s = 6.0
        _declare(store, "s")
        store.deployments.assign("s", "b", 0)
        time.sleep(0.02)
        heartbeat = store.hosts.heartbeat

        def waits(host: Host) -> None:
            now[0] += wait_s[0]
            heartbeat(host)

        monkeypatch.setattr(store.hosts, "heartbeat", waits)
        now[0], wait_s[0] = now[0] + 1, 8.0
        loop.tick()
        assert _hosts(store) == {"s": "b"}
        wait_s[0] = 0.0
        for _ in range(5):
            now[0] += 1
            loop.tick()
        assert _hosts(store) == {"s": "b"}
        now[0] += 1.1
        monkeypatch.setattr(local_drivers, "launch", lambda *_, **__: StartingSupervisor(1))
        loop.tick()
        assert _hosts(store) == {"s": "a"}


def test_job_with_other_labels_is_not_started_on_its_host(
    tmp_path: Path, started: dict[str, StartingSupervisor]
) -> None:
    """It would create its tables on the disk of a host where they do not belong."""
    with closing(SqliteStore(tmp_path)) as store:
        declare(store, read_spec("name: a\nhost_selector: {zone: us}\n"), actor=None)
        store.deployments.assign("a", "first", 0)  # before its selector was changed
        first = _loop(store, "first")
        first.tick()
        assert not started and _hosts(store) == {"a": "first"}
        store.hosts.heartbeat(Host("second", "run-second", memory=8 << 30, labels={"zone": "us"}))
        second = HostLoop(
            store, Host("second", "run-second", memory=8 << 30, labels={"zone": "us"}), LocalDrivers(store), lease_s=0.0
        )
        second.tick()
        assert _hosts(store) == {"a": "second"} and [*started] == ["a"]


def test_drivers_may_run_until_a_host_has_looked_at_its_jobs(tmp_path: Path) -> None:
    """A ``cdc serve`` that fails at its start must not end the Spark of drivers that an earlier process started."""
    with closing(SqliteStore(tmp_path)) as store:
        drivers = LocalDrivers(store)
        assert drivers.may_run
        HostLoop(store, Host("a", "run-a"), drivers, lease_s=6).tick()
        assert not drivers.may_run


def test_check_folder_leaves_no_file(tmp_path: Path) -> None:
    check_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_specification_of_a_new_job_with_an_old_name_is_read(tmp_path: Path) -> None:
    """A host that places it by the labels of the forgotten job runs it where its folders do not exist."""
    specs = SpecCache()
    with closing(SqliteStore(tmp_path)) as store:
        for zone in ("eu", "us"):
            declare(store, read_spec(f"name: shop\nhost_selector: {{zone: {zone}}}\n"), actor=None)
            job = store.deployments.get("shop")
            assert job is not None and job.generation == 1
            assert specs.spec(job).selector == {"zone": zone}
            store.forget("shop")


def _declare(store: SqliteStore, names: str) -> None:
    """Declare jobs whose names have one letter."""
    for name in names:
        declare(store, read_spec(f"name: {name}\n"), actor=None)


class StartingSupervisor:
    """A supervisor whose driver does not get ready."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self.returncode = 143


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, StartingSupervisor]:
    """The supervisors that were started, by job. A host starts one at a time."""
    found: dict[str, StartingSupervisor] = {}

    def launch(folder: JobDirectory, *_: object, **__: object) -> StartingSupervisor:
        found[folder.job] = StartingSupervisor(len(found) + 1)
        return found[folder.job]

    monkeypatch.setattr(local_drivers, "launch", launch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    return found


def test_host_starts_as_many_drivers_at_once_as_it_has_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: dict[str, StartingSupervisor]
) -> None:
    """On two cores, 20 starts at once took so long that hosts lost their leases, and jobs moved before they ran."""
    now = [0.0]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with closing(SqliteStore(tmp_path)) as store, closing(SqliteStore(tmp_path)) as driver:
        _declare(store, "abcdef")
        drivers = LocalDrivers(store, clock=lambda: now[0])
        loop = HostLoop(store, Host("host", "run", memory=8 << 30), drivers, lease_s=6)
        assert loop.tick() == WAITING_TICK_S and [*started] == ["a", "b"]
        assert loop.tick() == WAITING_TICK_S and [*started] == ["a", "b"]
        record = driver.acquire("a", "a.yaml")
        driver.save_job(replace(record, state=JobState.PENDING, supervisor_pid=1))
        assert loop.tick() == WAITING_TICK_S and [*started] == ["a", "b"]
        driver.save_job(replace(record, state=JobState.RUNNING, supervisor_pid=1))
        assert loop.tick() == WAITING_TICK_S and [*started] == ["a", "b", "c"]
        started["b"].returncode = 1
        assert loop.tick() == WAITING_TICK_S and [*started] == ["a", "b", "c", "d"]
        now[0] += STARTING_S + 1  # c and d wait for their sources: others do not wait for them
        assert loop.tick() == WAITING_TICK_S and {*started} == set("abcde")
        now[0] += STARTING_S + 1
        assert loop.tick() == TICK_S and {*started} == set("abcdef")


def _loop(store: SqliteStore, name: str, **options: Any) -> HostLoop:
    host = Host(name, f"run-{name}", memory=8 << 30)
    return HostLoop(store, host, LocalDrivers(store), lease_s=6, **options)


def _hosts(store: SqliteStore) -> dict[str, str | None]:
    return {job.job: job.host for job in store.deployments.all()}


def _counts(store: SqliteStore) -> Counter[str | None]:
    return Counter(_hosts(store).values())


def test_waiting_jobs_go_to_a_host_that_starts_later(tmp_path: Path, started: dict[str, StartingSupervisor]) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        _declare(store, "abcdef")
        first, second = _loop(store, "first"), _loop(store, "second")
        first.tick()
        assert _counts(store) == {"first": 6} and [*started] == ["a"]
        second.tick()
        assert _counts(store) == {"first": 6}, "a host does not take jobs of a live one"
        first.tick()
        assert _counts(store) == {"first": 3, None: 3} and _hosts(store)["a"] == "first", "it is starting there"
        second.tick()
        assert _counts(store) == {"first": 3, "second": 3} and len(started) == 2
        before = _hosts(store)
        for _ in range(3):
            first.tick()
            second.tick()
        assert _hosts(store) == before, "no job returns"


def test_job_does_not_leave_for_a_host_with_as_many_waiting_ones(
    tmp_path: Path, started: dict[str, StartingSupervisor]
) -> None:
    """Each host starts one job at a time: a host with more memory would start them later."""
    with closing(SqliteStore(tmp_path)) as store:
        _declare(store, "abcd")
        first = _loop(store, "first")
        first.tick()
        _declare(store, "wxyz")
        for name in "wxyz":
            job = store.deployments.get(name)
            assert job is not None and store.deployments.assign(name, "large", job.fence)
        store.hosts.heartbeat(Host("large", "run-large", memory=64 << 30))
        for _ in range(3):
            first.tick()
        assert _counts(store) == {"first": 4, "large": 4}


def test_waiting_job_that_a_user_has_moved_stays(tmp_path: Path, started: dict[str, StartingSupervisor]) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        _declare(store, "abc")
        first, second = _loop(store, "first"), _loop(store, "second")
        second.tick()
        first.tick()
        for job in store.deployments.all():
            store.deployments.assign(job.job, "first", job.fence)
        for _ in range(3):
            first.tick()
            second.tick()
        assert _counts(store) == {"first": 3}


def test_jobs_of_a_host_that_returns_go_to_one_that_is_ready(
    tmp_path: Path, started: dict[str, StartingSupervisor]
) -> None:
    is_starting, now = [True], [0.0]
    with closing(SqliteStore(tmp_path)) as store:
        _declare(store, "abc")
        _loop(store, "first").tick()
        second = _loop(store, "second", clock=lambda: now[0])
        second.tick()
        now[0] = 4.0
        second.tick()
        sql = "UPDATE cdc_jobs SET holder = 'first'"  # they have run there
        store.database.transact(lambda transaction: transaction.run(sql))
        started.clear()
        returned = _loop(store, "first", is_starting=lambda: is_starting[0])
        returned.tick()
        assert not started and store.hosts.all()[0].is_starting
        now[0] = 8.0  # a lease after its own start
        second.tick()
        assert _counts(store) == {"second": 3}
        is_starting[0] = False
        returned.tick()
        assert not store.hosts.all()[0].is_starting
        is_starting[0] = True
        returned.tick()
        assert not store.hosts.all()[0].is_starting, "it was ready"


def test_starting_host_runs_jobs_if_no_other_is_ready(tmp_path: Path, started: dict[str, StartingSupervisor]) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        _declare(store, "a")
        _loop(store, "first", is_starting=lambda: True).tick()
        assert [*started] == ["a"]


def test_job_that_a_user_moved_to_a_starting_host_stays(tmp_path: Path, started: dict[str, StartingSupervisor]) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        _declare(store, "a")
        ready, starting = _loop(store, "ready"), _loop(store, "starting", is_starting=lambda: True)
        ready.tick()
        starting.tick()
        job = store.deployments.get("a")
        assert job is not None and store.deployments.assign("a", "starting", job.fence)
        for _ in range(3):
            ready.tick()
            starting.tick()
        assert _hosts(store) == {"a": "starting"}


def test_released_jobs_count_for_the_host_that_will_take_them(
    tmp_path: Path, started: dict[str, StartingSupervisor]
) -> None:
    """The giver looks five times a second, the receiver once."""
    with closing(SqliteStore(tmp_path)) as store:
        _declare(store, "abcdefgh")
        first = _loop(store, "first")
        first.tick()
        store.hosts.heartbeat(Host("large", "run-large", memory=64 << 30))
        for _ in range(4):
            first.tick()
        assert _counts(store) == {"first": 4, None: 4}


def test_starting_host_does_not_end_its_starts_for_a_host_that_is_ready(
    tmp_path: Path, started: dict[str, StartingSupervisor]
) -> None:
    """The other host may not take the jobs before a lease has passed since its own start."""
    with closing(SqliteStore(tmp_path)) as store:
        _declare(store, "ab")
        starting = _loop(store, "starting", is_starting=lambda: True)
        starting.tick()
        sql = "UPDATE cdc_jobs SET holder = 'starting'"  # they have run there
        store.database.transact(lambda transaction: transaction.run(sql))
        _loop(store, "ready").tick()
        starting.tick()
        assert started["a"].returncode is None and _counts(store) == {"starting": 2}


def test_host_without_jobs_prepares_when_the_others_have_started_theirs(
    tmp_path: Path, started: dict[str, StartingSupervisor]
) -> None:
    """Hosts may share a machine: a killed host that returned made the take-over of its jobs a third slower."""
    prepared, now = list[str](), [0.0]

    def returned() -> HostLoop:
        def prepare() -> None:
            prepared.append("first")

        return _loop(store, "first", prepare=prepare, is_starting=lambda: not prepared, clock=lambda: now[0])

    with closing(SqliteStore(tmp_path)) as store, closing(SqliteStore(tmp_path)) as driver:
        _declare(store, "a")
        alone = returned()
        alone.tick()
        assert prepared == ["first"], "no other host is ready"
        prepared.clear()
        record = replace(driver.acquire("a", "a.yaml"), driver_pid=None, supervisor_pid=None)  # killed with the host
        driver.save_job(record)
        sql = f"UPDATE cdc_jobs SET holder = 'first', lease_until = {store.database.words.now} + :left"
        store.database.transact(lambda transaction: transaction.run(sql, left=5))
        _loop(store, "second").tick()
        started.clear()
        host = returned()
        host.tick()
        assert not prepared and store.hosts.all()[0].is_starting
        now[0] = 16.0
        host.tick()
        assert prepared == ["first"], "the others do not start the job"
        prepared.clear()
        driver.save_job(replace(record, state=JobState.RUNNING))
        store.database.transact(lambda transaction: transaction.run(sql, left=30))
        returned().tick()
        assert prepared == ["first"], "until the lease ends, no other host can start the job"
        prepared.clear()
        taken = "UPDATE cdc_jobs SET host = 'second', holder = 'second'"
        store.database.transact(lambda transaction: transaction.run(taken))
        returned().tick()
        assert prepared == ["first"], "the job runs"


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_running_job_is_not_restarted_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        text = end.join(("name: shop", "host_selector: {zone: eu}", ""))
        declare(store, read_spec(text), actor=None)
        job = store.deployments.get("shop")
        assert job is not None and job.spec == text
        local_drivers._save_spec(JobDirectory(tmp_path, "shop"), text)  # by the process that started its driver
        drivers, ended = LocalDrivers(store), list[str]()
        monkeypatch.setattr(drivers, "is_running", lambda _: True)
        monkeypatch.setattr(drivers, "end", lambda job: ended.append(job.job))
        monkeypatch.setattr(drivers, "_add_failure", lambda *_: ended.append("refused"))
        drivers.ensure(job)
        assert ended == []
