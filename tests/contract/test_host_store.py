"""Hosts, specifications, assignments, events and leases in the store, on every database."""

import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cdc.errors import ConfigError, LeaseLost
from cdc.job.registry import set_offline_state
from cdc.state.base import CheckpointState, JobRecord, JobState, ResumeKind
from cdc.state.deployments import DesiredState
from cdc.state.events import EventKind
from cdc.state.hosts import Host
from cdc.state.opening import open_store
from cdc.state.server import _WORDS, _ServerTransaction
from cdc.state.sql import SqlStore
from cdc.state.store_url import store_url
from tests.contract.test_checkpoint_store import make_checkpoint
from tests.support.store_servers import create_database

SERVERS = ("mysql", "mariadb", "postgres")
NEW = JobRecord("shop", "0badcafe", 0, JobState.PENDING, "shop.yaml")


@dataclass
class Fleet:
    """Stores as hosts open them: each has its own ``$CDC_HOME``."""

    folder: Path
    environment: dict[str, str]
    opened: list[SqlStore] = field(default_factory=list)

    def host(self, name, lease="10"):
        home = self.folder if "CDC_STORE" not in self.environment else self.folder / name
        environment = {**self.environment, "CDC_LEASE": lease}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CDC_HOST", name)
            self.opened.append(open_store(environment=environment, folder=home))
        return self.opened[-1]


@pytest.fixture
def fleet(request, tmp_path):
    environment = {}
    if request.param != "sqlite":
        environment = create_database(request.getfixturevalue(request.param), "host_store")
    fleet = Fleet(tmp_path, environment)
    yield fleet
    for store in fleet.opened:
        store.close()


every_store = pytest.mark.parametrize("fleet", ("sqlite", *SERVERS), indirect=True)
servers = pytest.mark.parametrize("fleet", SERVERS, indirect=True)


def kinds_of(store, job="shop"):
    return [(event.kind.value, event.message) for event in store.events.newest(job)]


@every_store
def test_host_heartbeat_is_listed_with_its_values(fleet):
    store = fleet.host("a")
    store.hosts.heartbeat(Host("a", "run1", "https://a:8480", 20 << 30, {"zone": "eu"}))
    store.hosts.heartbeat(Host("a", "run1", "https://a:8480", 10 << 30, {"zone": "eu"}))
    (found,) = store.hosts.all()
    assert (found.name, found.run_id, found.address, found.memory) == ("a", "run1", "https://a:8480", 10 << 30)
    assert found.labels == {"zone": "eu"} and found.schedulable and not found.drained and found.is_alive
    assert 5 < found.lease_left_s <= 10.5
    store.hosts.leave("a", "run1")
    assert not store.hosts.all()[0].is_alive


@every_store
def test_host_drained_by_a_user_is_not_schedulable(fleet):
    store = fleet.host("a")
    store.hosts.heartbeat(Host("a", "run1"))
    assert store.hosts.set_drained("a", drained=True) and not store.hosts.set_drained("b", drained=True)
    store.hosts.heartbeat(Host("a", "run1"))
    (found,) = store.hosts.all()
    assert found.drained and not found.schedulable
    store.hosts.set_drained("a", drained=False)
    assert store.hosts.all()[0].schedulable
    assert not store.hosts.forget("a"), "it is alive"
    store.hosts.leave("a", "run1")
    assert store.hosts.forget("a") and store.hosts.all() == ()


@servers
def test_host_second_process_of_a_name_is_refused(fleet):
    first, second = fleet.host("a"), fleet.host("other")
    first.hosts.heartbeat(Host("a", "run1"))
    with pytest.raises(LeaseLost, match="Another process runs the host a"):
        second.hosts.heartbeat(Host("a", "run2"))
    first.hosts.heartbeat(Host("a", "run1"))
    first.hosts.leave("a", "run1")
    second.hosts.heartbeat(Host("a", "run2"))
    with pytest.raises(LeaseLost, match="run1"):
        first.hosts.heartbeat(Host("a", "run1"))


@every_store
def test_host_restarted_process_of_a_home_replaces_the_older_one(fleet):
    store = fleet.host("a")
    store.hosts.heartbeat(Host("a", "run1"))
    store.hosts.heartbeat(Host("a", "run2"))
    assert [one.run_id for one in store.hosts.all()] == ["run2"]
    with pytest.raises(LeaseLost):
        store.hosts.heartbeat(Host("a", "run1"))


@every_store
def test_deployment_declared_job_has_spec_and_generations(fleet):
    store = fleet.host("a")
    with pytest.raises(ConfigError, match="no job shop"):
        store.deployments.declare("shop", spec="name: shop")
    spec = "name: shop\npassword: ${SECRET}\n# ü 数据\n"
    assert store.deployments.declare("shop", spec=spec, desired=DesiredState.RUNNING, new=NEW) == 1
    assert store.deployments.declare("shop", spec=spec) == 1, "the same values"
    assert store.deployments.declare("shop", desired=DesiredState.PAUSED, generation=1, actor="ann") == 2
    with pytest.raises(ConfigError, match="changed by another user"):
        store.deployments.declare("shop", spec="name: shop2", generation=1)
    (found,) = store.deployments.all()
    assert (found.job, found.spec, found.desired, found.generation) == ("shop", spec, DesiredState.PAUSED, 2)
    assert (found.host, found.is_held, found.record.incarnation) == (None, False, NEW.incarnation)
    assert kinds_of(store)[0] == ("spec", "desired state PAUSED")
    assert store.events.newest("shop")[0].actor == "ann"
    assert store.deployments.get("other") is None


@every_store
def test_deployment_cancelled_job_accepts_no_other_state(fleet):
    """Its hosts end it within seconds, and until then its record is not CANCELLED."""
    store = fleet.host("a")
    store.deployments.declare("shop", spec="name: shop", desired=DesiredState.RUNNING, new=NEW)
    store.deployments.declare("shop", desired=DesiredState.CANCELLED)
    for desired in (DesiredState.RUNNING, DesiredState.PAUSED):
        with pytest.raises(ConfigError, match="was stopped") as refused:
            store.deployments.declare("shop", spec="name: shop # 2", desired=desired, new=NEW)
    assert "--forget" in refused.value.hint
    found = store.deployments.get("shop")
    assert (found.desired, found.spec, found.generation) == (DesiredState.CANCELLED, "name: shop", 2)
    assert store.deployments.declare("shop", desired=DesiredState.CANCELLED) == 2


@every_store
def test_deployment_assigned_fence_ends_the_older_run(fleet):
    store = fleet.host("a")
    record = store.acquire("shop", "shop.yaml")
    assert not store.deployments.assign("shop", "a", record.fence + 5)
    assert store.deployments.assign("shop", "a", record.fence)
    assert store.deployments.assign("shop", "a", record.fence), "a repeated transaction finds its own result"
    with pytest.raises(LeaseLost):
        store.save_job(record)
    with pytest.raises(LeaseLost):
        store.renew()
    store.release()
    again = store.acquire("shop", "shop.yaml")
    assert (again.fence, again.incarnation) == (record.fence + 2, record.incarnation)
    assert store.deployments.get("shop").host == "a"
    assert ("assigned", "assigned to host a") in kinds_of(store)


@servers
def test_deployment_only_the_assigned_host_may_start(fleet):
    first, second = fleet.host("a"), fleet.host("b")
    first.deployments.declare("shop", spec="name: shop", new=NEW)
    assert first.deployments.assign("shop", "b", 0)
    with pytest.raises(LeaseLost, match="assigned to host b"):
        first.acquire("shop", "shop.yaml")
    assert second.acquire("shop", "shop.yaml").fence == 2
    assert first.deployments.assign("shop", None, 2)
    assert first.acquire("shop", "shop.yaml").fence == 4


@servers
@pytest.mark.parametrize("change", ["assign", "acquire"])
def test_record_saved_during_a_change_of_the_run_is_kept(fleet, monkeypatch, change):
    """Another connection saves a record after the change has read the row and before it writes it."""
    older, newer = fleet.host("a"), fleet.host("a", lease="20")
    record = older.acquire("shop", "shop.yaml")
    changes = [lambda: older.save_job(replace(record, state=JobState.CANCELLED, reason="stopped by its user"))]
    real = _ServerTransaction.run

    def run(transaction, sql, **values):
        if "fence = fence + 1" in sql and changes:
            changes.pop()()
        return real(transaction, sql, **values)

    with monkeypatch.context() as patch:
        patch.setattr(_ServerTransaction, "run", run)
        if change == "assign":
            assert newer.deployments.assign("shop", "b", record.fence)
        else:
            older._run._lock_file.close()  # as the process of an older run whose lock is free
            assert newer.acquire("shop", "shop.yaml").state is JobState.CANCELLED
    found = newer.job("shop")
    assert (found.state, found.reason, found.fence) == (JobState.CANCELLED, "stopped by its user", record.fence + 1)


@servers
def test_offline_state_for_an_earlier_job_changes_nothing(fleet):
    """A job was forgotten and started again on another host, after this host has read its record."""
    first, second = fleet.host("a"), fleet.host("b")
    known = first.acquire("shop", "shop.yaml")
    first.release()
    first.forget("shop")
    second.deployments.declare("shop", spec="name: shop", new=NEW)
    assert second.deployments.assign("shop", "b", 0)
    second.acquire("shop", "new.yaml")
    second.release()  # its run has ended, and `cdc serve` starts the next one
    before = second.job("shop"), second.deployments.get("shop").host
    with pytest.raises(LeaseLost, match="started again from nothing"):
        set_offline_state(first, known, JobState.CANCELLED, "stopped by its user", "")
    assert (second.job("shop"), second.deployments.get("shop").host) == before


@servers
def test_lease_of_another_host_refuses_a_start_until_it_ends(fleet):
    first, second = fleet.host("a", lease="15"), fleet.host("b", lease="15")
    record = first.acquire("shop", "shop.yaml")
    with pytest.raises(LeaseLost, match="runs on host a"):
        second.acquire("shop", "shop.yaml")
    with pytest.raises(LeaseLost, match="runs on host a"):
        second.forget("shop")
    first.renew({"lag_s": 0.5, "rows": 7})
    found = second.deployments.get("shop")
    assert found.is_held and found.holder == "a" and found.summary == {"lag_s": 0.5, "rows": 7}
    assert 0 <= found.summary_age_s < 60
    taken = acquired_within(second, 120)
    assert (taken.fence, taken.host) == (record.fence + 1, "b")
    with pytest.raises(LeaseLost) as lost:
        first.renew()
    assert "b" in str(lost.value)
    event = second.events.newest("shop")[0]
    assert (event.kind, event.detail) == (EventKind.TAKE_OVER, {"from": "a", "to": "b", "fence": 2})


def set_clock(fleet, offset_s):
    """Set the clock of the store to the real time plus ``offset_s``, for all hosts."""
    for store in fleet.opened:
        words = _WORDS[store_url(fleet.environment).kind]
        store.database.words = replace(words, now=f"({words.now} + ({offset_s}))")


def is_refused(call, *arguments):
    try:
        call(*arguments)
    except LeaseLost:
        return True
    return False


@servers
def test_lease_after_the_clock_is_set_back_ends_late_for_a_dead_host_only(fleet):
    first, second = fleet.host("a"), fleet.host("b")
    first.acquire("shop", "shop.yaml")
    set_clock(fleet, -3600)
    with pytest.raises(LeaseLost, match="runs on host a"):
        second.acquire("shop", "shop.yaml")
    assert 3600 < second.deployments.get("shop").lease_left_s < 3611, "a take-over is late by the step of the clock"
    first.save(make_checkpoint(1))
    first.renew()
    assert 0 < second.deployments.get("shop").lease_left_s < 11, "the next renewal of a live run corrects its lease"
    set_clock(fleet, -7200)  # and `cdc move` does not wait for the lease
    assert second.deployments.assign("shop", "b", 1)
    assert second.acquire("shop", "shop.yaml").fence == 3
    assert is_refused(first.save, make_checkpoint(2))


@servers
def test_leases_are_shortened_after_the_clock_is_set_back(fleet):
    first, second = fleet.host("a", lease="30"), fleet.host("b")
    first.hosts.heartbeat(Host("a", "run-a"))
    record = first.acquire("shop", "shop.yaml")
    first.renew({})
    second.hosts.shorten_leases()
    set_clock(fleet, -3600)
    second.hosts.shorten_leases()
    (host,), job = second.hosts.all(), second.deployments.get("shop")
    assert 0 < host.lease_left_s <= 31 and 0 < job.lease_left_s <= 31
    first.save_job(record)  # the run is alive and keeps the job


@servers
def test_run_that_lost_its_lease_by_a_step_of_the_clock_commits_nothing(fleet):
    """The clock is ahead for a moment: another host takes the job, and then both leases look valid."""
    first, second = fleet.host("a"), fleet.host("b")
    record = first.acquire("shop", "shop.yaml")
    first.save(make_checkpoint(1, CheckpointState.PREPARED))
    set_clock(fleet, 3600)
    assert second.acquire("shop", "shop.yaml").fence == record.fence + 1
    set_clock(fleet, 0)
    changes = [
        (first.save, make_checkpoint(1)), (first.save, make_checkpoint(2)), (first.save_job, record), (first.discard, 1),
        (first.drop_requests, [1]), (first.save_adoption, replace(record, fence=9), make_checkpoint(3)),
        (first.check_fence,), (first.renew,),
    ]  # fmt: skip
    assert all(is_refused(*change) for change in changes)
    assert [one.state for one in second.unfinished()] == [CheckpointState.PREPARED]
    second.save(make_checkpoint(1))
    first.release()  # must not end the lease of the other run
    assert [one.id for one in second.committed("shop")] == [1] and second.deployments.get("shop").is_held


def acquired_within(store, limit_s):
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return store.acquire("shop", "shop.yaml")
        except LeaseLost:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@servers
def test_lease_released_job_is_free_at_once(fleet):
    first, second = fleet.host("a", lease="600"), fleet.host("b", lease="600")
    first.acquire("shop", "shop.yaml")
    first.release()
    assert second.acquire("shop", "shop.yaml").fence == 2


@servers
def test_lease_two_hosts_at_once_one_gets_the_job(fleet):
    stores = [fleet.host(name) for name in "abcd"]
    barrier, won, lost = threading.Barrier(4), [], []

    def start(store):
        barrier.wait(120)
        try:
            won.append(store.acquire("shop", "shop.yaml").host)
        except LeaseLost as error:
            lost.append(error)

    threads = [threading.Thread(target=start, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (len(won), len(lost)) == (1, 3)
    assert stores[0].job("shop").host == won[0]


@every_store
def test_posted_alerts_of_another_host_are_not_replaced(fleet):
    store = fleet.host("a")
    store.deployments.declare("shop", desired=DesiredState.RUNNING, new=NEW)
    first, second = {"paused": "manual", "host": "a"}, {"paused": None, "host": "b"}
    for alerts, before, saved in (
        (first, {}, first),
        (second, {}, first),
        (second, first, second),
        (first, {}, second),
    ):
        store.deployments.save_alerts("shop", alerts, before)
        assert store.deployments.get("shop").alerts == saved


@every_store
def test_events_of_states_are_saved_with_hint_once(fleet):
    store = fleet.host("a")
    record = store.acquire("shop", "shop.yaml")
    paused = replace(record, state=JobState.PAUSED, reason="no \ud800 server", hint="fix it", resume=ResumeKind.MANUAL)
    for saved in (replace(record, state=JobState.RUNNING), paused, replace(paused, driver_pid=7)):
        store.save_job(saved)
    newest, older = store.events.newest("shop")
    assert (newest.kind, newest.message) == (EventKind.STATE, "PAUSED: no \ud800 server")
    assert newest.detail == {"state": "PAUSED", "hint": "fix it", "resume": "manual", "fence": 1}
    assert (older.message, older.actor) == ("RUNNING", "a")
    assert store.events.newest(limit=1) == (newest,) and store.events.newest(before=newest.id) == (older,)
    assert abs(newest.created_at - time.time()) < 600


@every_store
def test_events_beyond_the_limit_are_deleted(fleet, monkeypatch):
    monkeypatch.setattr("cdc.state.events.KEPT_EVENTS", 5)
    store = fleet.host("a")
    for number in range(8):
        store.events.add("shop", EventKind.STATE, str(number))
    store.events.add("other", EventKind.STATE, "kept")
    assert [event.message for event in store.events.newest("shop")] == ["7", "6", "5", "4", "3"]
    assert len(store.events.newest("other")) == 1
    for number in range(8):
        store.events.add("shop", EventKind.SPEC, f"of user {number}")
    for number in range(8):
        store.events.add("shop", EventKind.STATE, f"the job does not start {number}")
    texts = [event.message for event in store.events.newest("shop")]
    assert texts == [f"the job does not start {number}" for number in (7, 6, 5, 4, 3)] + [
        f"of user {number}" for number in (7, 6, 5, 4, 3)
    ]


@every_store
def test_event_of_a_long_name_is_saved_with_its_first_characters(fleet):
    """A file of the folder of jobs may have 255 characters, and a driver is named by its host and a random part."""
    store = fleet.host("a")
    number = store.events.add("shop", EventKind.SPEC, "text", actor="ü" * 255)
    assert store.events.get(number).actor == "ü" * 190
    number = store.events.request("shop", "pause", {})
    one, other = (f"{'h' * 190}:4711:{end}" for end in ("abcdef12", "abcdef13"))
    assert store.events.take(number, one) and store.events.take(number, one) and not store.events.take(number, other)
    assert [event.id for event in store.events.open_requests("shop", one)] == [number]
    assert store.events.open_requests("shop", other) == ()


@every_store
def test_request_is_taken_once_and_answered(fleet):
    store = fleet.host("a")
    number = store.events.request("shop", "pause", {"a": 1}, actor="ann@b")
    (event,) = store.events.open_requests("shop")
    assert (event.id, event.actor, event.detail) == (number, "ann@b", {"verb": "pause", "body": {"a": 1}})
    assert store.events.open_requests("other") == ()
    assert store.events.take(number, "driver1") and not store.events.take(number, "driver2")
    assert store.events.take(number, "driver1"), "a repeated transaction finds its own name"
    assert store.events.open_requests("shop") == () and not store.events.withdraw(number)
    store.events.answer(number, {"ok": True})
    assert store.events.get(number).result == {"ok": True}
    store.events.delete(number)
    assert store.events.get(number) is None


@every_store
def test_request_expired_or_withdrawn_is_not_carried_out(fleet):
    store = fleet.host("a")
    store.events.request("shop", "stop", {}, valid_s=-1)
    number = store.events.request("shop", "pause", {})
    assert store.events.withdraw(number)
    assert store.events.open_requests("shop") == ()
