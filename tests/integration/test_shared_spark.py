"""Jobs of one host that share the Spark Connect server of ``cdc serve``: rows, faults, protection, memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import grpc
import psutil
import pytest

from cdc.demo.local_servers import LocalServer
from cdc.process_start import start_of
from cdc.state.sqlite import SqliteStore
from spark.code_version import code_version
from spark.connect_server import ADDRESS_FILE, ConnectServer, known_server, save_server
from tests.support.delta_rows import rows_of
from tests.support.serving import HostProcess, wait_until

JOB = """\
name: {name}
source: {{type: binlog, host: 127.0.0.1, port: {port}, username: root, tls: {{mode: off}}, start: snapshot}}
sink: {{type: delta, path: {folder}/{name}}}
channels: [{{source: {database}.orders, target: ods.orders}}]
commit: {{interval: 1s}}
memory: {{window: 64MiB}}
status: {{port: 0}}
resources: {{memory: 300MiB}}
"""

START_S = 600.0  # twenty drivers start at once; it only finds hangs
Host = tuple[HostProcess, list[str]]
MakeHost = Callable[[int], Host]


@pytest.fixture
def make_host(mysql: LocalServer, database: str, tmp_path: Path) -> Iterator[MakeHost]:
    mysql.execute(
        f"CREATE TABLE `{database}`.orders (id INT PRIMARY KEY, name VARCHAR(20))",
        f"INSERT INTO `{database}`.orders VALUES (1, 'a'), (2, 'b')",
    )
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    keys = f"jobs: {jobs}\nspark: {{connect: shared, memory: 512MiB}}\n"
    host = HostProcess("a", tmp_path, {"PYTHONWARNINGS": "default"}, keys=keys, module="cdc.cli.main")

    def make(number: int) -> Host:
        names = [f"job{one}" for one in range(number)]
        for name in names:
            text = JOB.format(name=name, port=mysql.port, folder=tmp_path / "lake", database=database)
            (jobs / f"{name}.yaml").write_text(text)
        return host.start(), names

    yield make
    host.kill()


def folder_of(host: HostProcess) -> Path:
    return host.home / "spark" / code_version()


def server_of(host: HostProcess) -> ConnectServer:
    """Return the server as soon as it is ready."""
    found: list[ConnectServer] = []

    def is_ready() -> bool:
        server = known_server(folder_of(host))
        if server is not None and server.is_ready:
            found.append(server)
        return bool(found)

    wait_until(is_ready, "the shared Spark is ready", START_S)
    return found[0]


def have_rows(host: Host, tmp_path: Path, expected: dict[int, str]) -> None:
    """Wait until the target of each job has exactly these rows."""

    def is_equal(name: str) -> bool:
        with suppress(Exception):  # the table does not exist yet
            rows = rows_of(tmp_path / "lake" / name / "ods/orders")
            return sorted((row["id"], row["name"]) for row in rows) == sorted(expected.items())
        return False

    for name in host[1]:
        wait_until(lambda name=name: is_equal(name), f"the rows of {name}", START_S)  # type: ignore[misc]


def drivers(host: Host) -> dict[str, int | None]:
    with closing(SqliteStore(host[0].home)) as store:
        return {name: store.job(name).driver_pid for name in host[1]}  # type: ignore[union-attr]


def test_jobs_share_one_spark_and_continue_after_its_death(
    make_host: MakeHost, mysql: LocalServer, database: str, tmp_path: Path
) -> None:
    host = make_host(3)
    have_rows(host, tmp_path, {1: "a", 2: "b"})
    server, before = server_of(host[0]), drivers(host)
    everything = host[0].processes()
    assert [one.pid for one in everything if one.name() == "java"] == [server.pid]

    token = server.address.partition(";token=")[2]
    assert len(token) >= 32 and not [one for one in everything if token in " ".join(one.cmdline())]
    assert (folder_of(host[0]) / ADDRESS_FILE).stat().st_mode & 0o077 == 0
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        call = channel.unary_unary("/spark.connect.SparkConnectService/Config")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"", timeout=60)
    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED

    os.kill(server.pid, signal.SIGKILL)
    mysql.execute(f"INSERT INTO `{database}`.orders VALUES (3, 'c')", f"DELETE FROM `{database}`.orders WHERE id = 1")
    have_rows(host, tmp_path, {2: "b", 3: "c"})
    second = server_of(host[0])
    assert second.pid != server.pid and second.address != server.address
    assert drivers(host) == before, "the drivers have continued"

    # an upgrade: drivers and Spark continue, and the next process finds them; what an earlier version left is deleted
    assert host[0].end() == 0
    earlier = folder_of(host[0]).with_name("0123456789abcdef")
    earlier.mkdir()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"], start_new_session=True)
    save_server(earlier, replace(second, pid=child.pid, start=start_of(child.pid)))
    host[0].start()
    mysql.execute(f"UPDATE `{database}`.orders SET name = 'C' WHERE id = 3")
    have_rows(host, tmp_path, {2: "b", 3: "C"})
    assert server_of(host[0]) == second and drivers(host) == before
    assert child.wait(START_S) < 0 and not earlier.exists()

    for name in host[1]:
        host[0].cdc("stop", name, "--yes")
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in before.values() if pid), "the drivers have ended")
    assert host[0].end() == 0
    assert not second.is_alive and not (folder_of(host[0]) / ADDRESS_FILE).exists()
    assert token not in host[0].log.read_text()


@pytest.mark.stress  # takes minutes: make stress-long
def test_twenty_jobs_share_one_spark_and_use_little_memory(
    make_host: MakeHost, mysql: LocalServer, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = make_host(20)
    have_rows(host, tmp_path, {1: "a", 2: "b"})
    for number in range(3, 30):
        mysql.execute(f"INSERT INTO `{database}`.orders VALUES ({number}, 'x')")
        time.sleep(1)  # one row a second: at rest
    have_rows(host, tmp_path, {1: "a", 2: "b", **dict.fromkeys(range(3, 30), "x")})
    server, sums = (
        server_of(host[0]),
        {"drivers": 0, "supervisors": 0, "shared JVM": 0, "shared workers": 0, "serve": 0},
    )
    pids = set(drivers(host).values())
    for one in host[0].processes():
        words = " ".join(one.cmdline())
        kind = (
            "drivers" if one.pid in pids else "shared JVM" if one.pid == server.pid
            else "supervisors" if "cdc.job.supervisor" in words else "serve" if " serve " in words else "shared workers"
        )  # fmt: skip
        sums[kind] += one.memory_full_info().pss
    mib = {kind: round(value / (1 << 20)) for kind, value in sums.items()}
    total = sum(mib.values())
    with capsys.disabled():
        print(f"\n20 jobs, PSS in MiB: {json.dumps(mib)}, total {total}, per job {total / 20:.0f}")
    assert total / 20 < 400
