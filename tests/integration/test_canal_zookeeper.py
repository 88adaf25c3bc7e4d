"""Canal servers found through a real ZooKeeper; its jars are part of Canal."""

from __future__ import annotations

import json
import subprocess

import pytest
from kazoo.client import KazooClient

from cdc.demo.local_servers import free_port
from cdc.errors import PrerequisiteError, SourceUnavailable
from cdc.sources.canal import client as canal_client
from cdc.sources.canal.client import zookeeper_addresses
from tests.conftest import unavailable
from tests.emulators.canal import obtain_canal

pytestmark = pytest.mark.canal


@pytest.fixture
def zookeeper(tmp_path):
    try:
        jars = obtain_canal()
    except PrerequisiteError as error:
        unavailable(str(error))
    port = free_port()
    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    options = ["-Dzookeeper.admin.enableServer=false", "-XX:TieredStopAtLevel=1"]
    command = ["java", *options, "-cp", f"{jars}/*", main, str(port), str(tmp_path)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    yield f"127.0.0.1:{port}"
    process.kill()
    process.wait()


def test_zookeeper_running_server_is_listed_first(zookeeper):
    keeper = KazooClient(zookeeper)
    keeper.start(30)
    folder = "/otter/canal/destinations/shop"
    running = json.dumps({"active": True, "address": "10.0.0.2:11111"}).encode()
    keeper.create(f"{folder}/running", running, makepath=True)
    for address in ("10.0.0.1:11111", "10.0.0.2:11111"):
        keeper.create(f"{folder}/cluster/{address}", makepath=True)
    assert list(zookeeper_addresses(zookeeper, "shop")()) == ["10.0.0.2:11111", "10.0.0.1:11111"]
    keeper.delete(f"{folder}/running")
    assert list(zookeeper_addresses(zookeeper, "shop")()) == ["10.0.0.1:11111", "10.0.0.2:11111"]
    assert list(zookeeper_addresses(zookeeper, "unknown")()) == []
    keeper.stop()
    keeper.close()


def test_zookeeper_unreachable_error_names_the_setting(monkeypatch):
    monkeypatch.setattr(canal_client, "CONNECT_TIMEOUT_S", 0.5)
    with pytest.raises(SourceUnavailable, match="ZooKeeper cannot be asked") as caught:
        zookeeper_addresses(f"127.0.0.1:{free_port()}", "shop")()
    assert "source.zookeeper" in caught.value.hint
