"""Transactions whose COMMIT is lost and that run again: before the server got it, or with its answer."""

from __future__ import annotations

from contextlib import suppress

import pytest

from cdc.errors import ConfigError
from cdc.state.base import JobRecord, JobState
from cdc.state.deployments import Deployments, DesiredState
from cdc.state.events import EventKind, Events
from cdc.state.hosts import Host, HostIdentity, Hosts
from cdc.state.sqlite import SqliteDatabase


class _Lost(Exception):
    pass


class Lossy(SqliteDatabase):
    """Repeat each transaction, as the store in a server does. ``loses``: "request", "answer" or None."""

    loses = None
    between = staticmethod(lambda: None)  # what other clients do before the repetition

    def transact(self, work, *, repeats=True):
        loses, self.loses = self.loses, None

        def lost(transaction):
            work(transaction)
            if loses == "request":
                raise _Lost

        if loses:
            with suppress(_Lost):
                super().transact(lost)
            self.between()
        return super().transact(work)


@pytest.fixture
def database(tmp_path):
    database = Lossy(tmp_path / "state.db")
    new = JobRecord("shop", "id", 0, JobState.PENDING, "shop.yaml")
    Deployments(database).declare("shop", spec="a", desired=DesiredState.RUNNING, new=new)
    yield database
    database.close()


lost = pytest.mark.parametrize("loses", ["request", "answer"])


@lost
def test_declare_with_a_lost_commit_is_saved_once(database, loses):
    jobs = Deployments(database)
    database.loses = loses
    assert jobs.declare("shop", spec="b", generation=1) == 2
    found = jobs.get("shop")
    assert (found.spec, found.generation) == ("b", 2)
    assert [each.kind for each in Events(database).newest("shop")] == [EventKind.SPEC, EventKind.SPEC]


@lost
def test_declare_with_a_lost_commit_keeps_the_change_of_another_user(database, loses):
    jobs = Deployments(database)
    database.loses = loses
    database.between = lambda: jobs.declare("shop", spec="c")
    with pytest.raises(ConfigError, match="another user"):
        jobs.declare("shop", spec="b", generation=1)
    assert jobs.get("shop").spec == "c"


@lost
def test_withdraw_with_a_lost_commit_returns_true(database, loses):
    events = Events(database)
    number = events.request("shop", "pause", {})
    database.loses = loses
    assert events.withdraw(number)
    assert events.get(number) is None


def test_withdraw_of_a_request_taken_meanwhile_returns_false(database):
    events = Events(database)
    number = events.request("shop", "pause", {})
    database.loses = "request"
    database.between = lambda: events.take(number, "driver")
    assert not events.withdraw(number)


@lost
def test_forget_with_a_lost_commit_returns_true(database, loses, tmp_path):
    hosts = Hosts(database, HostIdentity("a", str(tmp_path)), lease_s=1.0)
    hosts.heartbeat(Host("a", "run1", "https://a:8480", 1 << 30))
    hosts.leave("a", "run1")
    database.loses = loses
    assert hosts.forget("a")
    assert not hosts.forget("a")
