"""The Python client of the REST API, with a real server and a driver process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.client import Jobs
from cdc.errors import CdcError, ConfigError, DdlStop, PrerequisiteError
from cdc.manager.rest import Tokens
from cdc.state.base import JobState, ResumeKind
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
