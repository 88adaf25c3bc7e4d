"""The loop of a host: when it looks again, and what a folder that cannot be written means."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cdc.manager.host_loop import TICK_S, HostLoop, SpecCache, check_folder
from cdc.manager.jobs_folder import declare
from cdc.manager.local_drivers import LocalDrivers
from cdc.manager.spec import read_spec
from cdc.state.hosts import Host
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
