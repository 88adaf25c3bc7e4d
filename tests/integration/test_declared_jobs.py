"""Commands for a job that was declared to the hosts and that none of them has run, without a host."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import cdc.manager.waiting
from cdc.cli.main import app
from cdc.errors import CdcError, ConfigError, PrerequisiteError
from cdc.manager.rest import Tokens
from cdc.state.base import JobRecord, JobState
from cdc.state.deployments import DesiredState
from cdc.state.sql import SqlStore
from cdc.state.sqlite import SqliteStore
from tests.support.manager import SPEC, served


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    monkeypatch.setenv("CDC_HOME", str(tmp_path / "home"))
    for name in ("CDC_STORE", "CDC_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cdc.manager.waiting, "PLACE_S", 0.0)
    store = SqliteStore(tmp_path / "home")
    new = JobRecord("crm", secrets.token_hex(4), 0, JobState.PENDING, "")
    store.deployments.declare("crm", spec=SPEC, desired=DesiredState.RUNNING, new=new)
    yield store
    store.close()


@pytest.fixture(params=["store", "rest"])
def way(request: pytest.FixtureRequest, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How the commands reach the job."""
    if request.param == "store":
        yield "store"
        return
    with served(store, Tokens("admin-token-4711", None)) as url:
        monkeypatch.setenv("CDC_URL", url)
        monkeypatch.setenv("CDC_TOKEN", "admin-token-4711")
        yield "rest"


def run(*words: str) -> str:
    done = CliRunner().invoke(app, words, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.output


def status() -> dict[str, Any]:
    return dict(json.loads(run("status", "crm", "--output", "json")))


def test_declared_job_is_paused_and_waits_again_after_resume(way: str, store: SqlStore) -> None:
    assert json.loads(run("pause", "crm", "-o", "json")) == {"job": "crm", "state": "PAUSED"}
    assert "crm is PAUSED." in run("pause", "crm")
    assert (status()["state"], status()["hint"]) == ("PAUSED", "Run `cdc resume crm`.")
    with pytest.raises(PrerequisiteError, match="waits for a host") as waiting:
        run("resume", "crm")
    assert waiting.value.hint
    assert (status()["state"], status()["reason"]) == ("PENDING", "waits for a host")
    found = store.deployments.get("crm")
    assert found is not None and found.desired is DesiredState.RUNNING
    with pytest.raises(PrerequisiteError, match="waits for a host"):
        run("resume", "crm")
    assert "crm is CANCELLED" in run("stop", "crm", "--yes")
    stopped = json.loads(run("stop", "crm", "--forget", "--yes", "-o", "json"))
    assert stopped == {"job": "crm", "state": "CANCELLED", "is_forgotten": True}


def test_command_that_needs_a_run_says_that_there_was_none(way: str, store: SqlStore) -> None:
    commands = [["logs"], ["snapshot", "crm.people"]]
    if way == "store":
        commands += [["restart"], ["replay-bad"], ["ddl", "--pending"]]
    for name, *words in commands:
        with pytest.raises(CdcError) as refused:
            run(name, "crm", *words)
        assert "The job crm has not run yet: it waits for a host." in refused.value.message, name
        assert refused.value.hint == "See `cdc hosts`.", name
    run("pause", "crm")
    if way == "store":
        with pytest.raises(ConfigError, match="has not run yet: paused by its user") as paused:
            run("snapshot", "crm", "crm.people")
        assert paused.value.hint == "Run `cdc resume crm`."
