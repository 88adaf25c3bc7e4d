"""The webhook of ``serve.yaml``: pauses, lag and moves of all jobs of a host, with a receiver that fails."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc.api.models import JobStatus, SinkStatus, SourceStatus
from cdc.config.alert_models import Alerts, HostAlerts
from cdc.config.serve_models import load_serve_config
from cdc.errors import ConfigError
from cdc.job import webhook as posting
from cdc.manager import alerts as module
from cdc.manager.alerts import HostWebhook
from cdc.manager.rest.history import Sampler
from cdc.state.base import JobState, ResumeKind
from cdc.state.hosts import Host
from cdc.state.sql import SqlStore
from cdc.state.sqlite import SqliteStore
from tests.support.manager import add_job, wait_for
from tests.support.webhook_receiver import WebhookReceiver


class Lags(Sampler):
    """The lag of running jobs, in seconds."""

    def __init__(self, store: SqlStore) -> None:
        super().__init__(store)
        self.lag_s: dict[str, float] = {}

    def status(self, job: str) -> JobStatus | None:
        source, sink = SourceStatus("binlog", "127.0.0.1:3306"), SinkStatus("delta", "/warehouse")
        if job not in self.lag_s:
            return None
        return JobStatus(job=job, state=JobState.RUNNING, source=source, sink=sink, lag_seconds=self.lag_s[job])


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    monkeypatch.setenv("CDC_HOST", "here")
    monkeypatch.delenv("CDC_STORE", raising=False)
    monkeypatch.setattr(module, "POLL_S", 0.01)
    monkeypatch.setattr(module, "AWAY_S", 0.01)
    monkeypatch.setattr(posting, "WAIT_S", 0.01)
    store = SqliteStore(tmp_path / "home")
    yield store
    store.close()


def saved_host(store: SqlStore, job: str) -> object:
    found = store.deployments.get(job)
    return found.alerts.get("host") if found is not None else None


class Watched:
    def __init__(self, store: SqlStore, *statuses: int | None, **keys: Any) -> None:
        self.receiver = WebhookReceiver(*statuses)
        self.lags = Lags(store)
        self.webhook = HostWebhook(store, HostAlerts.model_validate({"webhook": self.receiver.url, **keys}), self.lags)
        self.webhook.start()
        own = [one.job for one in store.deployments.all() if self.webhook._is_own(one)]
        wait_for(lambda: all(saved_host(store, job) for job in own), "the first look at the jobs")

    def next(self) -> tuple[str, str, bool]:
        message = self.receiver.message()
        return message["job"], message["event"], message["resolved"]

    def close(self) -> None:
        self.receiver.released.set()
        self.webhook.close()
        self.receiver.shutdown()
        self.receiver.server_close()


@pytest.fixture
def watch(store: SqlStore) -> Iterator[Any]:
    made: list[Watched] = []

    def start(*statuses: int | None, **keys: Any) -> Watched:
        made.append(Watched(store, *statuses, **keys))
        return made[-1]

    yield start
    for one in made:
        one.close()


def become(store: SqlStore, name: str, state: JobState, resume: ResumeKind | None = None) -> None:
    record = store.acquire(name, f"/jobs/{name}.yaml")
    store.save_job(replace(record, state=state, resume=resume, alert_reason="a reason"))
    store.release()


def test_pause_and_lag_of_every_job_are_posted(store: SqlStore, watch: Any) -> None:
    add_job(store, "old", JobState.PAUSED, "it began while no process ran", "", ResumeKind.MANUAL)
    add_job(store, "shop", JobState.RUNNING)
    found = watch(lag_threshold="10s")
    assert found.next() == ("old", "paused", False)
    become(store, "shop", JobState.PAUSED, ResumeKind.MANUAL)
    message = found.receiver.message()
    assert (message["job"], message["event"], message["reason"], message["host"]) == (
        "shop",
        "paused",
        "a reason",
        "here",
    )
    become(store, "shop", JobState.RUNNING)
    assert found.next() == ("shop", "paused", True)
    add_job(store, "crm", JobState.RUNNING)
    found.lags.lag_s["crm"] = 11.0
    assert found.next() == ("crm", "lag", False)
    found.lags.lag_s["crm"] = 1.0
    assert found.next() == ("crm", "lag", True)
    become(store, "old", JobState.RUNNING)
    assert found.next() == ("old", "paused", True)
    with pytest.raises(queue.Empty):
        found.receiver.requests.get(timeout=0.1)


def test_move_is_posted_by_the_host_that_takes_the_job(store: SqlStore, watch: Any) -> None:
    for name in ("a1", "here"):
        store.hosts.heartbeat(Host(name, f"run-{name}", None, 8 << 30))
    add_job(store, "shop", JobState.RUNNING)
    add_job(store, "new", JobState.RUNNING)
    assert store.deployments.assign("shop", "a1", 1)
    store.deployments.save_alerts("shop", {"host": "a1"}, {})
    found = watch()
    assert store.deployments.assign("new", "here", 1)  # its first host: this one
    assert store.deployments.assign("shop", "here", 2)
    message = found.receiver.message()
    assert (message["job"], message["event"], message["moved_from"], message["host"]) == ("shop", "moved", "a1", "here")
    assert store.deployments.assign("shop", "a1", 3)  # that host posts it
    wait_for(lambda: saved_host(store, "shop") == "here", "the message is saved")
    store.deployments.save_alerts("shop", {"host": "a1"}, store.deployments.get("shop").alerts)
    assert store.deployments.assign("shop", "here", 4)
    assert found.next() == ("shop", "moved", False)


def test_receiver_that_fails_gets_the_newest_state_later(store: SqlStore, watch: Any) -> None:
    for name in ("a", "b"):
        add_job(store, name, JobState.RUNNING)
    found = watch(*[500] * 9)
    for name in ("a", "b"):
        become(store, name, JobState.PAUSED, ResumeKind.MANUAL)
    codes = [found.next() for _ in range(9)]
    assert set(codes) == {("a", "paused", False)}, "one job is tried; the others wait"
    assert [found.next(), found.next()] == [("a", "paused", False), ("b", "paused", False)]


def test_message_that_is_refused_is_not_repeated(store: SqlStore, watch: Any) -> None:
    add_job(store, "shop", JobState.RUNNING)
    found = watch(404)
    become(store, "shop", JobState.PAUSED, ResumeKind.MANUAL)
    assert found.next() == ("shop", "paused", False)
    become(store, "shop", JobState.RUNNING)
    assert found.next() == ("shop", "paused", True)


def test_webhook_ends_while_its_receiver_hangs(store: SqlStore, watch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.01)
    add_job(store, "shop", JobState.RUNNING)
    found = watch(None)
    become(store, "shop", JobState.PAUSED, ResumeKind.MANUAL)
    found.next()
    found.webhook.close()
    assert any(thread.name == "webhook" and thread.daemon for thread in threading.enumerate())


def test_without_a_url_no_thread_runs(store: SqlStore) -> None:
    webhook = HostWebhook(store, HostAlerts(), Sampler(store))
    webhook.start()
    webhook.close()
    assert not webhook._thread.is_alive()


def test_alerts_of_serve_yaml_are_read(tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("alerts: {webhook: https://hooks.example/T0KEN, events: [moved]}\n")
    config = load_serve_config(file)
    assert config.alerts.events == ("moved",) and "https://hooks.example/T0KEN" in config.secrets()
    file.write_text("alerts: {webhook: ftp://x}\n")
    with pytest.raises(ConfigError, match="must be a URL"):
        load_serve_config(file)
    with pytest.raises(ValueError, match="only the file of `cdc serve`"):
        Alerts.model_validate({"events": ["moved"]})
