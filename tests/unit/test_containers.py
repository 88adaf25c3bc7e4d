"""The files for containers cannot be run here; what can be checked of them is."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from cdc.config.kafka_models import KafkaSourceConfig
from cdc.config.models import Config, load_config
from cdc.config.source_models import CanalSourceConfig

ROOT = Path(__file__).parents[2]
PINNED = re.compile(r".+:([a-z]+-|v)?\d+\.\d+(\.\d+)?[-\w.]*$")


def loaded(name: str, folder: Path) -> Config:
    """The job file ``name``, with a file in place of the one that the MySQL container makes."""
    services = yaml.safe_load((ROOT / "compose/compose.yaml").read_text())["services"]
    assert "mysql:/mysql:ro" in services[name]["volumes"] and "mysql:/var/lib/mysql" in services["mysql"]["volumes"]
    (folder / "ca.pem").touch()
    file = folder / "job.yaml"
    text = (ROOT / f"compose/{name}.yaml").read_text()
    assert "/mysql/ca.pem" in text
    file.write_text(text.replace("/mysql/ca.pem", "ca.pem"))
    return load_config(file)


def test_every_image_has_a_fixed_version_and_every_service_a_health_check() -> None:
    services = yaml.safe_load((ROOT / "compose/compose.yaml").read_text())["services"]
    names = {"kafka", "canal-kafka", "job-kafka"}
    names |= {"mysql", "job", "canal", "job-canal", "starrocks", "job-starrocks", "doris-fe", "doris-be", "job-doris"}
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
            context = build if isinstance(build, str) else build["context"]
            assert (ROOT / "compose" / context / "Dockerfile").is_file()


def test_the_canal_job_fits_the_canal_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_PASSWORD", "secret")
    services = yaml.safe_load((ROOT / "compose/compose.yaml").read_text())["services"]
    canal = services["canal"]["environment"]
    source = loaded("job-canal", tmp_path).source
    assert isinstance(source, CanalSourceConfig)
    assert source.destination == canal["canal.destinations"] and source.servers == ("canal:11111",)
    assert source.buffer.entries == int(canal["canal.instance.memory.buffer.size"])
    # Canal takes the value as it stands, and matches whole names
    assert re.fullmatch(canal["canal.instance.filter.regex"], "shop.orders")
    assert not re.fullmatch(canal["canal.instance.filter.regex"], "shopping.orders")


def test_the_kafka_job_reads_the_topics_that_canal_beside_it_writes() -> None:
    services = yaml.safe_load((ROOT / "compose/compose.yaml").read_text())["services"]
    canal, broker = services["canal-kafka"]["environment"], services["kafka"]["environment"]
    source = load_config(ROOT / "compose/job-kafka.yaml").source
    assert isinstance(source, KafkaSourceConfig) and source.format == "canal-json"
    assert (canal["canal.serverMode"], canal["canal.mq.flatMessage"]) == ("kafka", "true")
    assert f"PLAINTEXT://{canal['kafka.bootstrap.servers']}" == broker["KAFKA_ADVERTISED_LISTENERS"]
    assert list(map(str, source.brokers)) == [canal["kafka.bootstrap.servers"]]
    # Canal names a topic DATABASE_TABLE; one partition keeps updates of keys in order
    assert re.fullmatch(canal["canal.mq.dynamicTopic"], "shop.orders") and source.topics == ("shop_*",)
    assert broker["KAFKA_NUM_PARTITIONS"] == 1
    package = services["job-kafka"]["build"]["args"]["PACKAGES"]
    assert package in (ROOT / "requirements-dev.lock").read_text()


@pytest.mark.parametrize("name", ["job", "job-starrocks", "job-doris"])
def test_the_job_files_are_valid_and_name_services_that_are_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDC_PASSWORD", "pw")
    config = loaded(name, tmp_path)
    services = yaml.safe_load((ROOT / "compose/compose.yaml").read_text())["services"]
    _, _, neighbour = services[name].get("network_mode", "").partition("service:")
    hosts = [str(address).partition(":")[0] for address in getattr(config.sink, "fe", ())]
    hosts = [neighbour if host == "127.0.0.1" else host for host in hosts]
    assert {config.source.host, *hosts} <= services.keys()
    for host in hosts:
        assert set(services[host]["profiles"]) == set(services[name]["profiles"])
        assert host in services[name]["depends_on"] or "doris-be" in services[name]["depends_on"]


def test_the_hosts_share_jobs_and_tables_but_no_state_folder() -> None:
    services = yaml.safe_load((ROOT / "compose/compose.yaml").read_text())["services"]
    hosts = [services["serve-1"], services["serve-2"]]
    keys = yaml.safe_load((ROOT / "compose/serve.yaml").read_text())
    for name in ("CDC_HOST", "CDC_HOME"):
        assert len({one["environment"][name] for one in hosts}) == 2
    for one in hosts:
        given = one["environment"]
        assert one["profiles"] == services["store"]["profiles"] == ["serve"]
        assert {"mysql", "store"} <= one["depends_on"].keys() and one["stop_grace_period"] == "60s"
        assert {value.strip("${}") for value in keys["tokens"].values()} <= given.keys()
        address = urlsplit(given["CDC_STORE"])
        assert (address.hostname, address.path) == ("store", f"/{services['store']['environment']['MYSQL_DATABASE']}")
        mounts = dict(mount.split(":")[1::-1] for mount in one["volumes"])
        assert mounts["/store"] == services["store"]["volumes"][0].split(":")[0] and "ca=/store/ca.pem" in address.query
        assert mounts[f"{keys['jobs']}/shop.yaml"] == "./job.yaml"
        assert mounts["/data"] == "data-serve" and given["CDC_HOME"].startswith("/data/")
        # without TLS no other machine may reach it
        assert keys["listen"]["insecure"] and all(port.startswith("127.0.0.1:") for port in one["ports"])
    assert len({port for one in hosts for port in one["ports"]}) == 2


def test_the_starrocks_job_is_where_its_cluster_says_that_it_is() -> None:
    """FE and BE of this image are at 127.0.0.1 to each other, and the FE sends whoever loads to that address."""
    services = yaml.safe_load((ROOT / "compose/compose.yaml").read_text())["services"]
    assert "starrocks/allin1" in services["starrocks"]["image"]
    assert services["job-starrocks"]["network_mode"] == "service:starrocks"
    assert yaml.safe_load((ROOT / "compose/job-starrocks.yaml").read_text())["sink"]["fe"] == ["127.0.0.1:8030"]


def test_a_cluster_keeps_its_tables_beside_their_rows() -> None:
    services = yaml.safe_load((ROOT / "compose/compose.yaml").read_text())["services"]
    kept = {mount.partition(":")[2] for name in ("starrocks", "doris-fe") for mount in services[name]["volumes"]}
    assert {"/data/deploy/starrocks/fe/meta", "/opt/apache-doris/fe/doris-meta"} <= kept


def test_a_doris_backend_starts_with_the_usual_settings_of_a_machine() -> None:
    services = yaml.safe_load((ROOT / "compose/compose.yaml").read_text())["services"]
    assert services["doris-be"]["environment"]["SKIP_CHECK_ULIMIT"] == "true"


def test_the_image_copies_only_what_is_there_and_starts_from_a_fixed_version() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    assert all(PINNED.match(line.split()[1]) for line in lines if line.startswith("FROM "))
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert copied and all((ROOT / name).exists() for name in copied), copied


def test_the_script_for_the_first_start_is_valid_shell() -> None:
    subprocess.run(["bash", "-n", str(ROOT / "compose/mysql-init.sh")], check=True)


@pytest.mark.parametrize("way", ["compose/mysql-init.sh", ". compose/mysql-init.sh"])
def test_the_script_for_the_first_start_leaves_the_shell_of_the_image_as_it_was(tmp_path: Path, way: str) -> None:
    """The image runs it where it is executable, and else reads it into its own script, which has unset variables."""
    (tmp_path / "mysql").write_text("#!/bin/bash\ncat\n")
    (tmp_path / "mysql").chmod(0o700)
    done = subprocess.run(
        ["bash", "-c", f'set -eo pipefail; {way}; echo "and on${{UNSET}}"'],
        cwd=ROOT,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "MYSQL_ROOT_PASSWORD": "root", "CDC_PASSWORD": "it's"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stdout.endswith("and on\n"), done.stderr
    assert "IDENTIFIED BY 'it''s';" in done.stdout


@pytest.mark.parametrize("password", ["plain", "a'b\\c", "it's\\", '$HOME`id`"\\n'])
def test_mysql_init_creates_the_user_with_any_password(password: str, tmp_path: Path) -> None:
    client = tmp_path / "mysql"
    client.write_text("#!/bin/sh\ncat\n")
    client.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MYSQL_ROOT_PASSWORD": "x", "CDC_PASSWORD": password}
    script = ["bash", str(ROOT / "compose/mysql-init.sh")]
    sql = subprocess.run(script, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout
    literal = re.search(r"IDENTIFIED BY '((?:[^'\\]|''|\\.)*)';", sql)
    assert literal is not None
    assert re.sub(r"''|\\(.)", lambda found: found[1] or "'", literal[1]) == password
