"""``cdc serve``: hosts as processes on a real MySQL store, with drivers that only change their state."""

import json
import os
import signal
import time
from contextlib import suppress
from unittest.mock import ANY

import psutil
import pytest
import requests

from cdc.state.base import JobRecord, JobState
from cdc.state.deployments import DesiredState
from tests.support.mounting import mounted
from tests.support.serving import LIMIT_S, HostProcess, opened, wait_until
from tests.support.store_servers import create_database

JOB = """\
name: {name}
source: {{type: binlog, host: 127.0.0.1, username: cdc, password: '${{SHOP_PASSWORD}}', start: latest}}
sink: {{type: delta, path: /tmp/cdc-no-such-folder}}
channels: [{{source: shop.orders, target: ods.orders}}]
status: {{port: 0}}
"""


@pytest.fixture
def store(mysql):
    return create_database(mysql, "serve")


@pytest.fixture
def make_host(tmp_path, store):
    made = []

    def make(name, **keys):
        made.append(HostProcess(name, tmp_path, store, **keys))
        return made[-1]

    yield make
    for host in made:
        host.kill()


def job_file(folder, name="shop", keys=""):
    file = folder / f"{name}.yaml"
    file.write_text(JOB.format(name=name) + keys)
    return str(file)


def status(host, name="shop"):
    return json.loads(host.cdc("status", name, "--output", "json"))


def record(host, name="shop"):
    with opened(host) as store:
        return store.job(name)


def seen_at(store, name):
    """Return the time of the last heartbeat, by the clock of this process."""
    return time.monotonic() - next(one.seen_ago_s for one in store.hosts.all() if one.name == name)


def runs_on(host, name, other, fence=0):
    """Wait until ``other`` runs the job with a greater fence, as ``host`` sees it."""

    def is_running():
        with opened(host) as store:
            found = store.deployments.get(name)
        is_there = found is not None and (found.host, found.record.state) == (other, "RUNNING") and found.is_held
        return is_there and found.fence > fence

    wait_until(is_running, f"{name} RUNNING on {other}")
    wait_until(lambda: status(host, name)["state"] == "RUNNING", f"an answer of {name}")  # the record is saved first
    return record(host, name)


def test_start_on_two_hosts_runs_the_job_on_one_of_them(make_host, tmp_path):
    first, second = make_host("first").start(), make_host("second").start()
    printed = first.cdc("start", job_file(tmp_path))
    owner = record(first).host
    assert f"shop is RUNNING on host {owner}." in printed
    assert "runs already" in second.cdc("start", job_file(tmp_path), code=1)
    other = first if owner == "second" else second
    for host in (first, second):
        assert status(host)["state"] == "RUNNING"
    other.cdc("pause", "shop")
    assert status(first)["state"] == "PAUSED"
    other.cdc("resume", "shop")
    other.cdc("stop", "shop", "--yes")
    assert status(first)["state"] == "CANCELLED"
    assert "shop is CANCELLED" in first.cdc("start", job_file(tmp_path), code=2)


def test_killed_host_is_taken_over(make_host, tmp_path):
    first, second = make_host("first").start(), make_host("second").start()
    for name in ("a", "b", "c"):
        first.cdc("start", job_file(tmp_path, name))
    moved = [name for name in ("a", "b", "c") if record(first, name).host == "second"]
    assert moved, "equal hosts share the jobs"
    second.kill()
    for name in ("a", "b", "c"):
        runs_on(first, name, "first")
    with opened(first) as store:
        kinds = {event.kind for event in store.events.newest(limit=1000)}
    assert {"assigned", "spec"} <= kinds
    url = f"{first.row('address')}/metrics"
    wait_until(lambda: 'cdc_host_up{host="second"} 0.0' in requests.get(url, timeout=60).text, "the next sample")
    metrics = requests.get(url, timeout=60).text
    assert 'cdc_host_up{host="first"} 1.0' in metrics and "cdc_store_up 1.0" in metrics
    assert 'cdc_host_memory_free_bytes{host="first"} 5.36870912e+09' in metrics  # 8 GiB and three jobs
    assert all(f'cdc_job_takeovers_total{{job_name="{name}"}} 1.0' in metrics for name in moved)
    assert second.start().row("jobs") == []  # running jobs are not moved back


def test_new_host_gets_running_jobs_if_rebalance_is_set(make_host, tmp_path):
    names, keys = ("a", "b", "c", "d"), "rebalance: 2s\n"
    first, second = make_host("first", keys=keys).start(), make_host("second", keys=keys)
    for name in names:
        first.cdc("start", job_file(tmp_path, name))
    before = {name: record(first, name) for name in names}
    second.start()

    def counts():
        found = [record(first, name) for name in names]
        return [sum(one.host == host and one.state == "RUNNING" for one in found) for host in ("first", "second")]

    wait_until(lambda: counts() == [2, 2], "two running jobs on each host")
    after = {name: record(first, name) for name in names}
    moved = [name for name in names if after[name].host == "second"]
    drivers = [before[name].driver_pid for name in moved]
    wait_until(lambda: not any(map(psutil.pid_exists, drivers)), "the end of the earlier drivers")
    for name in names:
        runs_on(second, name, after[name].host)
    with opened(first) as store:
        assigned = [one.message for one in store.events.newest(limit=1000) if one.kind == "assigned"]
    assert assigned.count("assigned to host second: it has more free memory") == 2


def test_killed_driver_is_started_again_on_its_host(make_host, tmp_path):
    host = make_host("first").start()
    host.cdc("start", job_file(tmp_path))
    before = record(host)
    os.kill(before.supervisor_pid, signal.SIGKILL)
    os.kill(before.driver_pid, signal.SIGKILL)
    wait_until(lambda: record(host).driver_pid not in (None, before.driver_pid), "another driver")
    assert runs_on(host, "shop", "first").fence > before.fence


def test_silent_driver_is_killed_and_started_again(make_host, tmp_path):
    host = make_host("first").start()
    host.cdc("start", job_file(tmp_path))
    before = record(host)
    supervisor = psutil.Process(before.supervisor_pid)
    assert "cdc.manager.fork_server" in supervisor.parent().cmdline(), "it was started without the fork server"
    assert psutil.Process(before.driver_pid).parent() == supervisor
    wait_until(lambda: "The job starts" in host.log.read_text(), "the log")
    os.kill(before.driver_pid, signal.SIGSTOP)
    wait_until(lambda: not psutil.pid_exists(before.driver_pid), "the end of the silent driver")
    assert runs_on(host, "shop", "first", before.fence).driver_pid != before.driver_pid


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_restarted_serve_finds_its_drivers(make_host, tmp_path, number):
    host = make_host("first").start()
    host.cdc("start", job_file(tmp_path))
    before = record(host)
    host.end(number)
    host.start()
    assert host.row("jobs") == ["shop"]
    after = record(host)
    assert (after.driver_pid, after.fence) == (before.driver_pid, before.fence)
    os.kill(before.driver_pid, signal.SIGKILL)
    runs_on(host, "shop", "first", before.fence)


def test_drained_host_gives_its_jobs_away(make_host, tmp_path):
    first = make_host("first").start()
    first.cdc("start", job_file(tmp_path))
    second = make_host("second").start()
    second.cdc("hosts", "--drain", "first")
    runs_on(second, "shop", "second")
    assert "DRAINED" in first.cdc("hosts")
    first.cdc("hosts", "--undrain", "first")
    printed = first.cdc("move", "shop")
    assert "shop is RUNNING on host first." in printed
    assert "first already" in first.cdc("move", "shop", "first", code=2)
    assert "no host third" in first.cdc("move", "shop", "third", code=2)


def test_drain_on_exit_ends_the_drivers(make_host, tmp_path):
    first = make_host("first", options=("--drain-on-exit",)).start()
    first.cdc("start", job_file(tmp_path))
    before = record(first)
    second = make_host("second").start()
    assert first.end() == 0
    assert not psutil.pid_exists(before.driver_pid)
    runs_on(second, "shop", "second")


def test_host_without_space_keeps_its_jobs_and_accepts_none(make_host, tmp_path):
    home = tmp_path / "second"
    home.mkdir()
    with mounted("-t", "tmpfs", "-o", "size=4m", "tmpfs", at=home):
        first, second = make_host("first").start(), make_host("second").start()
        second.cdc("start", job_file(tmp_path, "a"))
        if record(first, "a").host == "first":
            first.cdc("move", "a", "second")
        before = runs_on(first, "a", "second")  # a driver that starts needs space
        full = home / "rows"
        with suppress(OSError), full.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        wait_until(lambda: first.row("alive") and not second.row("schedulable"), "no space on the second host")
        assert "NO SPACE" in first.cdc("hosts") and "No space left" in second.log.read_text()
        first.cdc("start", job_file(tmp_path, "b"))
        assert record(first, "b").host == "first", "the other host has more memory, but no space"
        after = record(first, "a")
        assert (after.host, after.driver_pid) == ("second", before.driver_pid), "a job that runs stays"
        for pid in (before.supervisor_pid, before.driver_pid):  # a supervisor alone would start the driver again
            os.kill(pid, signal.SIGKILL)
        runs_on(first, "a", "first", before.fence)
        full.unlink()
        wait_until(lambda: second.row("schedulable"), "space on the second host")
        second.kill()


def test_host_that_was_frozen_loses_its_name_to_another_process(make_host, tmp_path):
    first = make_host("first").start()
    other = make_host("other")
    other.file.write_text(first.file.read_text())
    other.environment["CDC_HOST"] = "first"
    first.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: not first.row("alive"), "the end of the heartbeat")
    other.start()
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(LIMIT_S) == 1
    assert "Another process runs the host first" in first.log.read_text()
    assert other.is_serving and other.row("name") is None  # its name in the store is `first`


def test_second_process_with_the_name_of_a_host_is_refused(make_host, tmp_path):
    first = make_host("first").start()
    other = make_host("other", keys="")
    other.file.write_text(first.file.read_text())
    other.environment["CDC_HOST"] = "first"
    assert "Another process runs the host first" in other.cdc("serve", str(other.file), code=1)
    same = first.cdc("serve", str(first.file), code=1)
    assert "Another `cdc serve` runs with this CDC_HOME" in same


def test_stop_over_rest_is_kept_while_the_driver_does_not_answer(make_host, tmp_path):
    first = make_host("first").start()
    first.cdc("start", job_file(tmp_path))
    pid = runs_on(first, "shop", "first").driver_pid
    os.kill(pid, signal.SIGSTOP)
    assert requests.post(f"{first.row('address')}/v1/jobs/shop/stop", timeout=LIMIT_S).status_code == 202
    with opened(first) as store:  # once: the host kills a driver that is silent for 15 s
        for _ in range(3):  # the host has seen the stop, and leaves the driver alone
            before = seen_at(store, "first")
            wait_until(lambda before=before: seen_at(store, "first") > before + 0.1, "a heartbeat")
    assert psutil.pid_exists(pid) and record(first).state == "RUNNING"
    os.kill(pid, signal.SIGCONT)
    wait_until(lambda: record(first).state == "CANCELLED", "shop CANCELLED")
    assert "is forgotten" in first.cdc("stop", "shop", "--forget", "--yes")


def test_stop_that_a_dead_host_did_not_see_is_kept_by_another_host(make_host, tmp_path):
    first, second = make_host("first").start(), make_host("second").start()
    first.cdc("start", job_file(tmp_path))
    owner = record(first).host
    lost, other = (first, second) if owner == "first" else (second, first)
    with opened(other) as store:
        store.deployments.declare("shop", desired=DesiredState.CANCELLED)
        lost.kill()
    wait_until(lambda: record(other).state == "CANCELLED", "shop CANCELLED")
    assert status(other)["reason"] == "stopped by its user"


def test_job_of_a_host_that_is_gone_is_paused_and_stopped_from_another_one(make_host, tmp_path):
    first, second = make_host("first").start(), make_host("second")
    first.cdc("start", job_file(tmp_path))
    runs_on(first, "shop", "first")
    first.kill()

    def is_free():
        with opened(second) as store:
            return not store.deployments.get("shop").is_held

    wait_until(is_free, "the end of the lease")
    assert "shop is PAUSED" in second.cdc("pause", "shop")
    with opened(second) as store:
        assert store.deployments.get("shop").host == "first"  # which starts it again when it is back
    assert "shop is CANCELLED" in second.cdc("stop", "shop", "--yes")
    assert "is forgotten" in second.cdc("stop", "shop", "--forget", "--yes")


def test_jobs_folder_is_followed(make_host, tmp_path):
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    job_file(jobs, "a")
    (jobs / "broken.yaml").write_text("name: [")
    (jobs / "relative.yaml").write_text(JOB.format(name="relative").replace("/tmp/cdc-no", "./no"))
    host = make_host("first", keys=f"jobs: {jobs}\n").start()
    before = runs_on(host, "a", "first")
    assert "broken.yaml" in host.log.read_text() and "relative path './no" in host.log.read_text()
    job_file(jobs, "a", keys="commit: {interval: 9s}\n")
    wait_until(lambda: record(host, "a").fence > before.fence, "a restart with the new file")
    runs_on(host, "a", "first")
    job_file(jobs, "a", keys="commit: {interval: nonsense}\n")
    wait_until(lambda: "specification is refused" in host.log.read_text(), "the refusal")
    assert status(host, "a")["state"] == "RUNNING"
    job_file(jobs, "b")
    runs_on(host, "b", "first")


def test_job_that_cannot_start_says_why(make_host, tmp_path):
    host = make_host("first").start()
    file = job_file(tmp_path, keys="nonsense: 1\n")
    printed = host.cdc("start", file, code=2)
    assert "nonsense" in printed and "is not a known key" in printed
    assert "nonsense" in status(host)["reason"]
    host.cdc("start", job_file(tmp_path))
    big = job_file(tmp_path, "big", keys="resources: {memory: 100GiB}\n")
    assert "no host has 102400 MiB free" in host.cdc("start", big, code=3)
    assert status(host, "big")["reason"] == "waits for a host"
    there = job_file(tmp_path, "there", keys="host_selector: {zone: eu}\n")
    assert "labels {zone: eu}" in host.cdc("start", there, code=3)


def test_store_away_leaves_the_drivers_running(make_host, tmp_path, store, mysql):
    from tests.support.receiving import TcpProxy

    with TcpProxy(mysql.port) as proxy:
        store["CDC_STORE"] = store["CDC_STORE"].replace(f":{mysql.port}/", f":{proxy.port}/")
        host = make_host("first").start()
        host.cdc("start", job_file(tmp_path))
        before = record(host)
        proxy.refusing = True
        proxy.cut_all()
        wait_until(lambda: "does not answer; the drivers continue" in host.log.read_text(), "the log")
        proxy.refusing = False
        with opened(host) as reader:
            wait_until(lambda: reader.hosts.all()[0].is_alive, "the heartbeat")
        assert record(host).driver_pid == before.driver_pid
        assert status(host)["state"] == "RUNNING"


def test_commands_over_rest_need_no_store(make_host, tmp_path):
    host = make_host("first").start()
    file = job_file(tmp_path)
    assert "shop is RUNNING." in host.over_rest("start", file)
    assert "runs already" in host.over_rest("start", file, code=1)
    assert json.loads(host.over_rest("status", "shop", "--output", "json")) == {**status(host), "lag_seconds": ANY}
    assert [one["job"] for one in json.loads(host.over_rest("list", "--output", "json"))] == ["shop"]
    assert "RUNNING" in host.over_rest("list") and "ods.orders" in host.over_rest("status")
    assert "The driver starts" in host.over_rest("logs", "shop", "--lines", "5000")
    assert "shop is PAUSED." in host.over_rest("pause", "shop")
    assert "paused by its user" in host.over_rest("status", "shop")
    assert "shop is RUNNING." in host.over_rest("resume", "shop")
    assert "will be loaded again" in host.over_rest("snapshot", "shop", "shop.orders")
    assert json.loads(host.over_rest("check", file, "--output", "json"))["can_start"]
    assert [(one["name"], one["jobs"]) for one in json.loads(host.over_rest("hosts", "-o", "json"))] == [
        ("first", ["shop"])
    ]
    assert "has followed no schema change" in host.over_rest("changes", "shop")
    assert "`cdc verify` needs the state store." in host.over_rest("verify", file, code=2)
    assert "Usage: cdc" in host.over_rest("--help")
    assert "Cancel a job permanently" in host.over_rest("stop", "--help")
    assert "is forgotten" in host.over_rest("stop", "shop", "--forget", "--yes")
    unknown = host.over_rest("status", "shop", code=2)
    assert unknown == "error: There is no job shop.\nhint:  `cdc list` shows the jobs.\n"


def test_job_that_cannot_start_over_rest_says_why(make_host, tmp_path):
    host = make_host("first").start()
    assert "is not a known key" in host.over_rest("start", job_file(tmp_path, keys="nonsense: 1\n"), code=2)
    unset = job_file(tmp_path, "unset", keys="spark: {app.name: '${NOT_SET_HERE}'}\n")
    assert "NOT_SET_HERE" in host.over_rest("start", unset, code=2)
    big = job_file(tmp_path, "big", keys="resources: {memory: 100GiB}\n")
    assert "waits for a host" in host.over_rest("start", big, code=3)


def test_new_job_file_over_rest_restarts_the_job(make_host, tmp_path):
    host = make_host("first").start()
    host.over_rest("start", job_file(tmp_path))
    fence = record(host).fence
    assert "shop is RUNNING." in host.over_rest("start", job_file(tmp_path, keys="commit: {interval: 3s}\n"))
    assert record(host).fence > fence


def test_job_that_was_resumed_before_its_first_run_runs_on_the_next_host(make_host, tmp_path):
    host = make_host("first")
    new = JobRecord("shop", "a1b2c3d4", 0, JobState.PENDING, "")
    with opened(host) as store:
        store.deployments.declare("shop", spec=JOB.format(name="shop"), desired=DesiredState.RUNNING, new=new)
    host.cdc("pause", "shop")
    assert "waits for a host" in host.cdc("resume", "shop", code=3)
    host.start()
    runs_on(host, "shop", "first")
