"""Jobs seen by other processes: offline status, detection of driver and supervisor, use of the token."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cdc.api.client import Driver
from cdc.errors import LeaseLost
from cdc.job.registry import offline_status, set_offline_state
from cdc.model.position import BinlogPosition
from cdc.model.snapshot import SnapshotRequest
from cdc.state.base import JobRecord, JobState, ResumeKind
from cdc.state.identity import ChannelIdentity, JobIdentity, SinkIdentity, SourceIdentity
from cdc.state.job_directory import JobDirectory
from cdc.state.processes import is_driver_alive, is_supervisor_alive
from cdc.state.sqlite import SqliteStore

SLEEP = "import sys; print(flush=True); sys.stdin.read()"


def test_offline_status_with_broken_job_file_is_shown(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(f"name: 2024-13-45\nsource: {{type: binlog, host: db, port: 0x{'f' * 5000}}}\n")
    identity = JobIdentity(
        SourceIdentity("binlog", "db:3306"),
        SinkIdentity("delta", "/w", "./w"),
        {"shop.orders": ChannelIdentity("ods.orders"), "crm.*": ChannelIdentity("ods.crm_*")},
    )
    store = SqliteStore(tmp_path)
    started = offline_status(store, replace(record(tmp_path, os.getpid()), identity=identity))
    new = offline_status(store, record(tmp_path, os.getpid()))
    store.close()
    assert (started.source.server, started.sink.target) == ("db:3306", "./w")
    assert [(one.source, one.target) for one in started.channels] == [("shop.orders", "ods.orders")]
    assert (new.job, new.source.type, new.source.server) == ("shop", "unknown", None)


def test_offline_status_of_unstarted_job_reads_job_file(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(
        "name: shop\nsource: {type: binlog, host: db, username: u}\nsink: {type: delta, path: ./w}\n"
        "channels: [{source: shop.orders, target: ods.orders}]\n"
    )
    store = SqliteStore(tmp_path)
    status = offline_status(store, record(tmp_path, os.getpid()))
    store.close()
    assert (status.source.server, status.channels[0].target) == ("db:3306", "ods.orders")


def test_offline_job_of_a_named_host_is_paused_from_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`host.name` of serve.yaml names the host for `cdc serve` only; the store in a file is the same."""
    monkeypatch.setenv("CDC_HOST", "a1")
    with closing(SqliteStore(tmp_path)) as store:
        acquired = store.acquire("shop", "shop.yaml")
        store.save_job(replace(acquired, state=JobState.RUNNING))
        store.release()
        assert store.deployments.assign("shop", "a1", acquired.fence)
    monkeypatch.delenv("CDC_HOST")
    with closing(SqliteStore(tmp_path)) as store:
        known = store.job("shop")
        assert known is not None and store.host.name != "a1"
        assert set_offline_state(store, known, JobState.PAUSED, "paused by its user", "").state is JobState.PAUSED
        found = store.deployments.get("shop")
        assert found is not None and (found.host, found.record.state) == ("a1", JobState.PAUSED)
        assert (found.record.host, found.record.home) == ("a1", known.home)


@pytest.mark.parametrize("state", [JobState.CANCELLED, JobState.DONE])
def test_offline_state_of_a_job_that_has_ended_is_kept(tmp_path: Path, state: JobState) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        known = store.acquire("shop", "shop.yaml")
        store.save_job(replace(known, state=state, reason="the first one"))  # after the caller has read the record
        store.release()
        assert set_offline_state(store, known, JobState.PAUSED, "the second one", "").state is state
        found = store.job("shop")
        assert found is not None and (found.state, found.reason) == (state, "the first one")


def test_offline_pause_is_shown_as_the_desired_state(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        known = store.acquire("shop", "shop.yaml")
        store.save_job(replace(known, state=JobState.RUNNING))
        store.release()
        paused = set_offline_state(store, known, JobState.PAUSED, "paused by its user", "")
        assert offline_status(store, paused).desired_state == "PAUSED"


@pytest.mark.parametrize("state", [JobState.PAUSED, JobState.PENDING, JobState.CANCELLED])
def test_offline_state_after_a_manual_pause_keeps_it_unless_stopped(tmp_path: Path, state: JobState) -> None:
    """`cdc serve` reports a failed start, or a user pauses the job again, after the record was read."""
    statement = BinlogPosition("mysql-bin.000001", 4)
    with closing(SqliteStore(tmp_path)) as store:
        known = store.acquire("shop", "shop.yaml")
        paused = replace(known, state=JobState.PAUSED, resume=ResumeKind.MANUAL, reason="a TRUNCATE follows")
        store.save_job(replace(paused, stopped_at_ddl=statement, driver_pid=7))
        store.release()
        set_offline_state(store, known, state, "the later one", "")
        found = store.job("shop")
        assert found is not None and found.stopped_at_ddl == statement
        is_stopped = state is JobState.CANCELLED
        expected = (state, None, "the later one") if is_stopped else (JobState.PAUSED, paused.resume, paused.reason)
        assert (found.state, found.resume, found.reason) == expected


@pytest.mark.parametrize("change", [JobState.PAUSED, JobState.CANCELLED, JobState.PENDING, "forget", "snapshot"])
@pytest.mark.parametrize("is_new", [True, False])
def test_offline_change_of_a_replaced_job_is_refused(tmp_path: Path, change: JobState | str, is_new: bool) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        known = store.acquire("shop", "shop.yaml")
        store.release()
        store.forget("shop")  # after the caller has read the record
        if is_new:
            store.acquire("shop", "new.yaml")
            store.release()
        before = store.job("shop")
        is_refused = is_new or change != "forget"
        with pytest.raises(LeaseLost, match="started again from nothing") if is_refused else nullcontext():
            if change == "forget":
                store.forget("shop", known.incarnation)
            elif change == "snapshot":
                store.add_request("shop", SnapshotRequest("shop.orders"), known.incarnation)
            else:
                set_offline_state(store, known, JobState(change), "by a late command", "")
        assert store.job("shop") == before and (before is not None) is is_new
        assert store.requests("shop") == (), "the next job of this name would carry it out"


@contextmanager
def process(folder: Path, *words: str) -> Iterator[int]:
    """Start a process with these arguments and this working folder."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", SLEEP, *words]
    with subprocess.Popen(command, cwd=folder, stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
        child.kill()


def record(folder: Path, pid: int, url: str | None = None) -> JobRecord:
    job_file = str(folder / "shop.yaml")
    return JobRecord("shop", "", 1, JobState.RUNNING, job_file, driver_pid=pid, supervisor_pid=pid, status_url=url)


@pytest.mark.parametrize(
    ("words", "drives", "supervises"),
    [
        (("start", "{folder}/shop.yaml", "--foreground"), True, False),
        (("--debug", "start", "--foreground", "shop.yaml", "--adopt"), True, False),
        (("start", "{folder}/other.yaml", "--foreground"), False, False),
        (("start", "{folder}/shop.yaml"), False, False),
        (("-m", "cdc.job.supervisor", "shop", "--", "start", "{folder}/shop.yaml", "--", "--adopt"), False, True),
        (("-m", "cdc.job.supervisor", "shop-2", "--", "start", "{folder}/shop.yaml", "--"), False, False),
        (("/home/me/cdc/bin/something", "shop"), False, False),
    ],
)
def test_driver_and_supervisor_are_detected_by_arguments(
    tmp_path: Path, words: tuple[str, ...], drives: bool, supervises: bool
) -> None:
    with process(tmp_path, *(word.format(folder=tmp_path) for word in words)) as pid:
        found = record(tmp_path, pid)
        assert (is_driver_alive(found), is_supervisor_alive(found)) == (drives, supervises)
    assert not is_driver_alive(found) and not is_supervisor_alive(found)
    assert not is_driver_alive(record(tmp_path, os.getpid()))


def test_driver_status_of_dead_driver_sends_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_HOME", str(tmp_path))
    JobDirectory(tmp_path, "shop").set_token("the-token")
    heard = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(self.headers["Authorization"])
            self.send_error(404)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with process(tmp_path, "start", "shop.yaml", "--foreground") as pid:
            assert Driver(record(tmp_path, pid, url)).status() is None
            assert heard == ["Bearer the-token"]
        assert Driver(record(tmp_path, pid, url)).status() is None
        assert Driver(record(tmp_path, os.getpid(), url)).status() is None
        server.shutdown()
    assert len(heard) == 1
