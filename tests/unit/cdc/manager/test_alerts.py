"""The webhook of ``serve.yaml`` over restarts of ``cdc serve`` and moves of a job."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.config.alert_models import HostAlerts
from cdc.errors import CheckpointError
from cdc.manager import alerts as module
from cdc.manager.alerts import HostWebhook
from cdc.state.base import JobState, ResumeKind
from cdc.state.sql import SqlStore
from cdc.state.sqlite import SqliteStore
from tests.support.manager import add_job

ALERTS = HostAlerts.model_validate({"webhook": "https://hooks.example/x", "lag_threshold": "10s"})


class Hosts:
    """Several hosts with one store. The receiver accepts messages while ``answers``."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.stores: dict[str, SqlStore] = {}
        self.posted: list[tuple[str, str, bool, str | None]] = []
        self.answers = True
        monkeypatch.setattr(module, "post", self.post)

    def post(self, alerts: HostAlerts, message: Mapping[str, Any], over: threading.Event) -> bool:
        if self.answers:
            self.posted.append(tuple(message[name] for name in ("host", "event", "resolved", "moved_from")))
        return self.answers

    def store(self, name: str) -> SqlStore:
        if name not in self.stores:
            store = SqliteStore(self.path)
            store.host = replace(store.host, name=name)
            self.stores[name] = store
        return self.stores[name]

    def look(self, host: str, lag_s: float | None = None) -> list[tuple[str, str, bool, str | None]]:
        """Return what a process that has just started on ``host`` posts."""
        self.posted.clear()
        self.webhook(host, lag_s)._look()
        return list(self.posted)

    def webhook(self, host: str, lag_s: float | None = None) -> HostWebhook:
        running = SimpleNamespace(state=JobState.RUNNING, lag_seconds=lag_s)
        sampler: Any = SimpleNamespace(status=lambda job: running)
        return HostWebhook(self.store(host), ALERTS, sampler)

    def move(self, host: str | None) -> None:
        job = self.store("a1").deployments.get("shop")
        assert job is not None and self.store("a1").deployments.assign("shop", host, job.fence)

    def save(self, state: JobState, resume: ResumeKind | None = None) -> None:
        store = self.store("a1")
        store.save_job(replace(store.acquire("shop", "/jobs/shop.yaml"), state=state, resume=resume))
        store.release()


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    found = Hosts(tmp_path, monkeypatch)
    add_job(found.store("a1"), "shop", JobState.RUNNING)
    found.move("a1")
    assert found.look("a1") == []
    yield found
    for store in found.stores.values():
        store.close()


def test_host_webhook_lag_ends_on_another_host(hosts: Hosts) -> None:
    assert hosts.look("a1", 20.0) == [("a1", "lag", False, None)]
    assert hosts.look("a1", 20.0) == [], "a restart does not repeat it"
    hosts.move("b2")
    assert hosts.look("a1", 20.0) == []
    assert hosts.look("b2", 20.0) == [("b2", "moved", False, "a1")]
    assert hosts.look("b2", 1.0) == [("b2", "lag", True, None)]
    assert hosts.look("b2", 1.0) == []


def test_host_webhook_pause_ends_on_another_host(hosts: Hosts) -> None:
    hosts.save(JobState.PAUSED, ResumeKind.AUTOMATIC)
    assert hosts.look("a1") == [("a1", "paused", False, None)]
    hosts.move("b2")
    assert hosts.look("b2") == [("b2", "moved", False, "a1")], "the pause was posted already"
    hosts.save(JobState.PENDING)
    assert hosts.look("b2") == [("b2", "paused", True, None)]


def test_host_webhook_pause_without_a_process_is_posted_at_its_start(hosts: Hosts) -> None:
    hosts.save(JobState.PAUSED, ResumeKind.MANUAL)
    hosts.answers = False
    assert hosts.look("a1") == []
    hosts.answers = True
    assert hosts.look("a1") == [("a1", "paused", False, None)]
    assert hosts.look("a1") == []


def test_host_webhook_move_over_a_host_that_released_the_job_is_posted(hosts: Hosts) -> None:
    for host in ("b2", None, "c3"):
        hosts.move(host)
    assert hosts.look("c3") == [("c3", "moved", False, "a1")]
    assert hosts.look("c3") == []


def test_host_webhook_end_of_job_ends_its_lag(hosts: Hosts) -> None:
    assert hosts.look("a1", 20.0) == [("a1", "lag", False, None)]
    hosts.save(JobState.CANCELLED)
    assert hosts.look("a1") == [("a1", "lag", True, None)]


def test_host_webhook_posts_once_while_the_store_cannot_be_written(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployments, left = hosts.store("a1").deployments, [1, 2, 3]
    add_job(hosts.store("a1"), "crm", JobState.PAUSED, resume=ResumeKind.MANUAL)
    crm = deployments.get("crm")
    assert crm is not None and deployments.assign("crm", "a1", crm.fence)
    real = deployments.save_alerts

    def save_alerts(job: str, alerts: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        if left:
            left.pop()
            raise CheckpointError("The state store is read-only.", hint="Make it writable.")
        real(job, alerts, before)

    monkeypatch.setattr(deployments, "save_alerts", save_alerts)
    hosts.save(JobState.PAUSED, ResumeKind.AUTOMATIC)
    webhook = hosts.webhook("a1")
    for look in range(4):
        webhook._look()
        assert len(left) == max(2 - look, 0), "one attempt for all jobs"
        assert hosts.posted == [("a1", "paused", False, None)] * 2
    assert hosts.look("a1") == [], "saved"


def test_host_webhook_end_is_posted_once_while_the_store_cannot_be_written(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_alerts(job: str, alerts: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        raise CheckpointError("The state store is read-only.", hint="Make it writable.")

    monkeypatch.setattr(hosts.store("a1").deployments, "save_alerts", save_alerts)
    webhook = hosts.webhook("a1")
    for state, resume, is_resolved in (
        (JobState.PAUSED, ResumeKind.MANUAL, False),
        (JobState.RUNNING, None, True),
    ):
        hosts.save(state, resume)
        hosts.posted.clear()
        for _ in range(3):
            webhook._look()
        assert hosts.posted == [("a1", "paused", is_resolved, None)]


@pytest.mark.parametrize("moves", ["before the message", "with the message"])
def test_host_webhook_saves_nothing_about_a_job_that_has_moved(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, moves: str
) -> None:
    """A host whose webhook is slow posts about other jobs first."""
    hosts.save(JobState.PAUSED, ResumeKind.AUTOMATIC)
    old = hosts.store("a1").deployments.get("shop")
    assert old is not None
    real = hosts.post

    def move() -> None:
        monkeypatch.setattr(module, "post", real)
        hosts.move("b2")
        assert hosts.look("b2") == [("b2", "moved", False, "a1"), ("b2", "paused", False, None)]
        hosts.save(JobState.RUNNING)
        assert hosts.look("b2") == [("b2", "paused", True, None)]
        hosts.posted.clear()

    def post(alerts: HostAlerts, message: Mapping[str, Any], over: threading.Event) -> bool:
        move()
        return True

    if moves == "before the message":
        move()
    else:
        monkeypatch.setattr(module, "post", post)
    hosts.webhook("a1")._post_changes(old)
    assert hosts.posted == []
    assert hosts.look("b2") == []


def test_host_webhook_end_of_a_pause_that_was_posted_during_a_move(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = hosts.post

    def post(alerts: HostAlerts, message: Mapping[str, Any], over: threading.Event) -> bool:
        hosts.move("b2")
        return real(alerts, message, over)

    monkeypatch.setattr(module, "post", post)
    hosts.save(JobState.PAUSED, ResumeKind.AUTOMATIC)
    assert hosts.look("a1") == [("a1", "paused", False, None)]
    monkeypatch.setattr(module, "post", real)
    hosts.save(JobState.RUNNING)
    assert hosts.look("b2") == [("b2", "moved", False, "a1"), ("b2", "paused", True, None)]
