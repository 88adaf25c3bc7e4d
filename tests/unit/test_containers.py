"""The files for containers cannot be run here; what can be checked of them is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from cdc.config import CanalSource, load_config

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r".+:([a-z]+-|v)?\d+\.\d+(\.\d+)?[-\w.]*$")


def test_every_image_has_a_fixed_version_and_every_service_a_health_check() -> None:
    services = yaml.safe_load((ROOT / "compose/compose.yaml").read_text())["services"]
    names = {"mysql", "job", "canal", "job-canal", "starrocks", "job-starrocks", "doris-fe", "doris-be", "job-doris"}
    assert names <= services.keys()
    for name, service in services.items():
        assert "build" in service or PINNED.match(service["image"]), name
        assert service["healthcheck"]["test"], name


def test_every_mounted_file_is_there_and_every_volume_declared() -> None:
    compose = yaml.safe_load((ROOT / "compose/compose.yaml").read_text())
    for service in compose["services"].values():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (ROOT / "compose" / source).is_file(), source
            else:
                assert source in compose["volumes"], source
        if build := service.get("build"):
            assert (ROOT / "compose" / build / "Dockerfile").is_file()


def test_the_canal_job_fits_the_canal_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_PASSWORD", "secret")
    services = yaml.safe_load((ROOT / "compose/compose.yaml").read_text())["services"]
    canal = services["canal"]["environment"]
    source = load_config(ROOT / "compose/job-canal.yaml").source
    assert isinstance(source, CanalSource)
    assert source.destination == canal["canal.destinations"] and source.servers == ("canal:11111",)
    assert source.buffer.entries == int(canal["canal.instance.memory.buffer.size"])


@pytest.mark.parametrize("name", ["job", "job-starrocks", "job-doris"])
def test_the_job_files_are_valid_and_name_services_that_are_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_PASSWORD", "pw")
    config = load_config(ROOT / f"compose/{name}.yaml")
    services = yaml.safe_load((ROOT / "compose/compose.yaml").read_text())["services"]
    hosts = [str(address).partition(":")[0] for address in getattr(config.sink, "fe", ())]
    assert {config.source.host, *hosts} <= services.keys()
    for host in hosts:
        assert set(services[host]["profiles"]) == set(services[name]["profiles"])
        assert host in services[name]["depends_on"] or "doris-be" in services[name]["depends_on"]


def test_the_image_copies_only_what_is_there_and_starts_from_a_fixed_version() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert all(PINNED.match(line.split()[1]) for line in lines if line.startswith("FROM "))
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert copied and all((ROOT / name).exists() for name in copied), copied


def test_the_script_for_the_first_start_is_valid_shell() -> None:
    subprocess.run(["bash", "-n", str(ROOT / "compose/mysql-init.sh")], check=True)
