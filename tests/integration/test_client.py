"""The Python client of the REST API, with a real server and a driver process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cdc.cli.main import app
from cdc.client import Jobs
from cdc.errors import CdcError, ConfigError, DdlStop, PrerequisiteError
from cdc.manager.rest import Tokens
from cdc.model.position import BinlogPosition
from cdc.model.schema import Column, Kind, TableSchema
from cdc.model.schema_change import ChangeAction, ChangeKind, ChangePlan, PlannedStep, PlannedTable
from cdc.state.base import Checkpoint, CheckpointState, JobState, ResumeKind
from cdc.state.deployments import DesiredState
from cdc.state.hosts import Host
from cdc.state.sql import SqlStore
from cdc.state.sqlite import SqliteStore
from tests.support.manager import add_job, fake_driver, served, wait_for

ADMIN, VIEWER = "admin-token-4711", "viewer-token-0815"
SPEC = """\
name: crm
source: {type: binlog, host: 127.0.0.1, username: cdc, password: ${CDC_TEST_PASSWORD}, start: latest}
sink: {type: delta, path: /warehouse}
channels:
  - {source: crm.people, target: ods.people}
"""
POSITION = BinlogPosition("bin.000001", 90)
NOTE = Column("note", Kind.INT, "int")
TABLE = PlannedTable(
    "shop.orders",
    "ods.orders",
    TableSchema("shop", "orders", (Column("id", Kind.INT, "int", nullable=False),), ("id",)),
    steps=(PlannedStep("add", new_name="note", new=NOTE),),
    actions=((ChangeKind.ADD_COLUMN, "note", ChangeAction.APPLY),),
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlStore]:
    monkeypatch.setenv("CDC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CDC_STORE", raising=False)
    monkeypatch.setenv("CDC_TEST_PASSWORD", "v3ry-s3cret-value")
    store = SqliteStore(tmp_path / "home")
    yield store
    store.close()


@pytest.fixture
def url(store: SqlStore) -> Iterator[str]:
    with served(store, Tokens(ADMIN, VIEWER)) as address:
        yield address


def test_client_pauses_resumes_and_reads_history(url: str, store: SqlStore, tmp_path: Path) -> None:
    with fake_driver(store, tmp_path, tmp_path / "home"), Jobs(url, ADMIN) as jobs:
        assert jobs.wait("shop")["status"]["channels"][0]["target"] == "ods.orders"
        jobs.pause("shop")
        assert jobs.wait("shop", "PAUSED")["reason"] == "paused by its user"
        jobs.resume("shop")
        assert jobs.wait("shop", "RUNNING")["desired_state"] == "RUNNING"
        wait_for(lambda: len(jobs.history("shop")), "a sample is taken")
        history = jobs.history("shop", minutes=5)
        assert history["lag_seconds"].iloc[-1] == 0.4 and str(history.index.tz) == "UTC"
        assert list(history) == [
            "lag_seconds", "rows_per_second", "bytes_per_second", "window_bytes", "buffer", "prepare", "commit", "save"
        ]  # fmt: skip
        jobs.stop("shop")
        assert jobs.wait("shop", "CANCELLED")["desired_state"] == "CANCELLED"


def test_client_moves_a_job(url: str, store: SqlStore, tmp_path: Path) -> None:
    file = tmp_path / "crm.yaml"
    file.write_text(SPEC)
    for name in ("a1", "b2"):
        store.hosts.heartbeat(Host(name, f"run-{name}", None, 8 << 30))
    with Jobs(url, ADMIN) as jobs:
        jobs.start(file)
        assert store.deployments.assign("crm", "a1", 0)
        assert jobs.move("crm") == "b2" and jobs.move("crm", "a1") == "a1"
        with pytest.raises(CdcError, match="on host a1 already"):
            jobs.move("crm", "a1")


def test_hosts_command_prints_the_same_over_rest(url: str, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.hosts.heartbeat(Host("a1", "run-a1", "https://a1:8480", 8 << 30, {"zone": "eu"}))
    store.hosts.heartbeat(Host("b2", "run-b2", None, 4 << 30, schedulable=False))
    store.deployments.declare("crm", spec=SPEC, new=add_job(store, "crm"))
    assert store.deployments.assign("crm", "a1", 1)

    def hosts(*words: str) -> Any:
        done = CliRunner().invoke(app, ["hosts", *words], standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        if "json" not in words:
            return done.output
        found = json.loads(done.output)
        for host in found:
            assert host.pop("lease_left_s") > 0 and host.pop("seen_ago_s") >= 0
        return found

    local = hosts("--output", "json")
    assert [(host["name"], host["jobs"]) for host in local] == [("a1", ["crm"]), ("b2", [])]
    for name, message, hint in (
        ("a1", "The host a1 is alive.", "End its `cdc serve`"), ("c3", "There is no host c3.", "Known hosts: a1, b2."),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message) as refused:
            hosts("--forget", name)
        assert hint in refused.value.hint
    monkeypatch.setenv("CDC_URL", url)
    monkeypatch.setenv("CDC_TOKEN", ADMIN)
    assert hosts("--output", "json") == local
    lines = hosts().splitlines()
    assert "READY" in lines[1] and "crm" in lines[1] and "zone=eu" in lines[1] and "NO SPACE" in lines[2]
    assert [host["drained"] for host in hosts("--drain", "a1", "--output", "json")] == [True, False]
    assert [host["drained"] for host in hosts("--undrain", "a1", "--output", "json")] == [False, False]
    with pytest.raises(CdcError, match="There is no host c3"):
        hosts("--drain", "c3")
    with pytest.raises(ConfigError, match="--forget needs the state store"):
        hosts("--forget", "b2")
    monkeypatch.setenv("CDC_TOKEN", VIEWER)
    assert hosts("--output", "json") == local
    with pytest.raises(CdcError, match="cannot change anything"):
        hosts("--drain", "a1")


def test_changes_command_prints_the_same_over_rest(url: str, store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    add_job(store, "crm")
    store.acquire("shop", "/jobs/shop.yaml")
    for number in range(1, 6):
        plan = ChangePlan(f"ALTER TABLE shop.orders ADD note_{number} INT", (TABLE,))
        store.save(
            Checkpoint(
                number, 1, CheckpointState.COMMITTED, POSITION, POSITION,
                committed_at=f"2026-01-01T00:00:{number:02}Z", change=plan,
            )
        )  # fmt: skip
    store.release()

    def changes(*words: str) -> str:
        done = CliRunner().invoke(app, ["changes", *words], standalone_mode=False)
        if done.exception is not None:
            raise done.exception
        return done.output

    commands = (
        ("shop",), ("shop", "--output", "json"), ("shop", "--limit", "3", "--output", "json"), ("crm",),
        ("crm", "--output", "json"),
    )  # fmt: skip
    local = [changes(*words) for words in commands]
    assert [one["checkpoint"] for one in json.loads(local[2])] == [5, 4, 3]
    monkeypatch.setenv("CDC_URL", url)
    monkeypatch.setenv("CDC_TOKEN", VIEWER)
    assert [changes(*words) for words in commands] == local
    monkeypatch.setattr("cdc.client._PAGE", 2)
    assert [changes(*words) for words in commands] == local
    with pytest.raises(CdcError, match="There is no job nosuch"):
        changes("nosuch")
    with Jobs(url, VIEWER) as jobs:
        assert [one["checkpoint"] for one in jobs.changes("shop", 1)] == [5]


def test_client_start_saves_the_job_file(url: str, store: SqlStore, tmp_path: Path) -> None:
    file = tmp_path / "crm.yaml"
    file.write_text(SPEC)
    with Jobs(url, ADMIN) as jobs:
        assert jobs.start(file) == 1
        found = store.deployments.get("crm")
        assert found is not None and (found.spec, found.desired) == (SPEC, DesiredState.RUNNING)
        file.write_text(SPEC + "commit: {interval: 3s}\n")
        with pytest.raises(CdcError, match="changed by another user") as refused:
            jobs.start(file, generation=7)
        assert "generation 1" in str(refused.value)
        assert jobs.start(file, generation=1) == 2
        file.write_text("channels: []")
        with pytest.raises(ConfigError, match="has no name"):
            jobs.start(file)


def test_client_raises_the_error_of_the_driver(url: str, store: SqlStore, tmp_path: Path) -> None:
    (tmp_path / "ddl").write_text("")
    with fake_driver(store, tmp_path, tmp_path / "home"), Jobs(url, ADMIN) as jobs:
        with pytest.raises(DdlStop, match="A TRUNCATE follows") as refused:
            jobs.resume("shop")
        assert refused.value.hint == "Use --past-ddl."


def test_client_wait_reports_the_reason(url: str, store: SqlStore) -> None:
    add_job(store, "shop", JobState.PAUSED, "a DDL follows", "Run `cdc resume shop`.", ResumeKind.MANUAL)
    with Jobs(url, VIEWER) as jobs, pytest.raises(CdcError, match="is PAUSED, not RUNNING: a DDL follows") as late:
        jobs.wait("shop", timeout_s=0)
    assert late.value.hint == "Run `cdc resume shop`."


def test_client_without_permission_or_server_fails(url: str, store: SqlStore) -> None:
    add_job(store, "shop")
    with Jobs(url, VIEWER) as jobs, pytest.raises(CdcError, match="cannot change anything"):
        jobs.pause("shop")
    with Jobs(url) as jobs, pytest.raises(CdcError, match="A token is required"):
        jobs.list()
    with Jobs(url, ADMIN) as jobs, pytest.raises(CdcError, match="There is no job nosuch"):
        jobs.status("nosuch")
    with Jobs("http://127.0.0.1:1", ADMIN) as jobs, pytest.raises(PrerequisiteError, match="REST API does not answer"):
        jobs.list()


def test_notebook_shows_jobs_as_an_escaped_table(url: str, store: SqlStore) -> None:
    add_job(store, "shop", JobState.PAUSED, "<script>alert(1)</script>", "x", ResumeKind.MANUAL)
    with Jobs(url, VIEWER) as jobs:
        table = jobs._repr_html_()
    assert "<td>shop</td><td>PAUSED</td><td>&lt;script&gt;" in table and "<script>" not in table
