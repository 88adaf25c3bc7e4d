"""The rows of hosts: which process may have a name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.errors import LeaseLost
from cdc.state.hosts import Host, HostIdentity, Hosts
from cdc.state.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path)
    yield store
    store.close()


def test_heartbeat_of_a_forgotten_host_registers_it_again(store: SqliteStore) -> None:
    first, other = (Hosts(store.database, HostIdentity("c3", home), 60.0) for home in ("home-1", "home-2"))
    first.heartbeat(Host("c3", "run-1"))
    first.leave("c3", "run-1")  # as after a lease that has expired
    assert other.forget("c3")
    first.heartbeat(Host("c3", "run-1"))
    assert [one.run_id for one in first.all()] == ["run-1"]
    with pytest.raises(LeaseLost, match="Another process runs the host c3"):
        other.heartbeat(Host("c3", "run-2"))
    first.leave("c3", "run-1")
    other.heartbeat(Host("c3", "run-2"))
    with pytest.raises(LeaseLost, match="Another process"):
        first.heartbeat(Host("c3", "run-1"))
