"""The metrics of `cdc serve`: of jobs that no driver runs, and while the store does not answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

from cdc.api.models import JobStatus, SinkStatus, SourceStatus
from cdc.errors import CheckpointError
from cdc.manager.jobs_folder import declare
from cdc.manager.rest import history
from cdc.manager.rest.history import Sampler
from cdc.manager.rest.host_metrics import HostMetrics
from cdc.manager.spec import JobSpec
from cdc.state.base import JobRecord, JobState, ResumeKind
from cdc.state.deployments import Deployment, DesiredState
from cdc.state.hosts import Host
from cdc.state.sqlite import SqliteStore

RULES = Path(__file__).parents[4] / "deploy/prometheus/rules.yaml"
RECORD = JobRecord("shop", "0badcafe", 1, JobState.RUNNING, "/job.yaml")
STATUS = JobStatus(
    job="shop", state=JobState.RUNNING, source=SourceStatus("binlog", "db"), sink=SinkStatus("delta", "/w"),
    lag_seconds=0.3,
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path)) as store:
        store.hosts.heartbeat(Host("a1", "run", memory=1 << 30))
        declare(store, JobSpec("shop", "name: shop\n"), actor=None)
        yield store


def lines(sampler: Sampler, takeovers: dict[str, int] | None = None) -> list[str]:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(HostMetrics(sampler, lambda: takeovers or {}))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def job(state: JobState, *, held: bool = False, home: str | None = None, **changes: Any) -> Deployment:
    """A job that a host is to run."""
    record = replace(RECORD, state=state, home=home, **changes)
    return Deployment("shop", 1, "a1", DesiredState.RUNNING, "name: shop\n", 1, "a1", 5.0 if held else 0.0, record)


def is_not_running(found: list[str]) -> bool:
    """Return whether the alert CdcNotRunning has begun, for the job "shop"."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    (rule,) = (rule for group in groups for rule in group["rules"] if rule["alert"] == "CdcNotRunning")
    desired, excluded = re.findall(r'(cdc_\w+)\{state=~?"([A-Z|]+)"\}', rule["expr"])

    def has(name: str, states: str) -> bool:
        return any(re.fullmatch(rf'{name}\{{job_name="shop",state="({states})"\}} 1\.0', line) for line in found)

    return has(*desired) and not has(*excluded)


def test_job_without_a_driver_has_what_its_alert_needs(store: SqliteStore) -> None:
    sampler = Sampler(store)
    sampler.sample()
    found = lines(sampler)
    assert 'cdc_job_desired_state{job_name="shop",state="RUNNING"} 1.0' in found
    assert 'cdc_job_state{job_name="shop",state="PENDING"} 1.0' in found
    assert 'cdc_job_takeovers_total{job_name="shop"} 0.0' in found
    assert is_not_running(found)


@pytest.mark.parametrize(
    ("one", "state"),
    [
        (job(JobState.RUNNING), "PENDING"),  # its host is gone
        (job(JobState.RUNNING, held=True), "PENDING"),  # of this host, and its driver does not answer
        (job(JobState.RUNNING, held=True, home="other"), "RUNNING"),
        (job(JobState.PAUSED, resume=ResumeKind.MANUAL), "PAUSED"),
    ],
)
def test_state_of_a_job_without_an_answer(store: SqliteStore, one: Deployment, state: str) -> None:
    sampler = Sampler(store)
    sampler.view = history.StoreView((one,))
    found = lines(sampler)
    states = [line for line in found if line.startswith("cdc_job_state{") and line.endswith(" 1.0")]
    assert is_not_running(found) is (state == "PENDING")
    assert states == [f'cdc_job_state{{job_name="shop",state="{state}"}} 1.0']


def test_paused_by_its_user_is_the_desired_state(store: SqliteStore) -> None:
    sampler = Sampler(store)
    sampler.view = history.StoreView((job(JobState.PAUSED, is_paused_by_user=True),))
    assert 'cdc_job_desired_state{job_name="shop",state="PAUSED"} 1.0' in lines(sampler)


def test_metrics_have_no_old_values_while_the_store_is_down(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "Driver", lambda record: SimpleNamespace(status=lambda: STATUS))
    monkeypatch.setattr(store.deployments, "all", lambda: (replace(job(JobState.RUNNING), record=_with_pid()),))
    sampler = Sampler(store)
    sampler.sample()
    found = lines(sampler)
    assert 'cdc_lag_seconds{job_name="shop"} 0.3' in found and "cdc_store_up 1.0" in found
    assert 'cdc_host_up{host="a1"} 1.0' in found
    assert len({line.split(" ")[0] for line in found}) == len(found), "each series once"

    def fail() -> Any:
        raise CheckpointError("The state store cannot be reached.", hint="Check its server.")

    monkeypatch.setattr(store.deployments, "all", fail)
    with pytest.raises(CheckpointError):
        sampler.sample()
    assert sampler.statuses() == []
    assert lines(sampler) == ["cdc_store_up 0.0"]


def _with_pid() -> JobRecord:
    return cast(JobRecord, replace(RECORD, driver_pid=1))
