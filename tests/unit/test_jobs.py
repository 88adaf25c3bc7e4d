"""Jobs from outside: which process is a job's own, and who is told its token."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cdc.checkpoint import JobRecord, JobState
from cdc.checkpoint_sqlite import SqliteStore
from cdc.folder import JobFolder
from cdc.jobs import Driver, driver_lives, offline_status, supervisor_lives

SLEEP = "import sys; print(flush=True); sys.stdin.read()"


def test_a_broken_job_file_does_not_keep_its_job_from_being_shown(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(f"name: 2024-13-45\nsource: {{type: binlog, host: db, port: 0x{'f' * 5000}}}\n")
    store = SqliteStore(tmp_path)
    status = offline_status(store, record(tmp_path, os.getpid()))
    store.close()
    assert status.source.server is not None and status.source.server.startswith("db:0xf")


@contextmanager
def process(folder: Path, *words: str) -> Iterator[int]:
    """A process with these arguments, in this working folder."""
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
        (("-m", "cdc.supervisor", "shop", "--", "start", "{folder}/shop.yaml", "--", "--adopt"), False, True),
        (("-m", "cdc.supervisor", "shop-2", "--", "start", "{folder}/shop.yaml", "--"), False, False),
        (("/home/me/cdc/bin/something", "shop"), False, False),
    ],
)
def test_a_process_is_known_by_its_arguments(
    tmp_path: Path, words: tuple[str, ...], drives: bool, supervises: bool
) -> None:
    with process(tmp_path, *(word.format(folder=tmp_path) for word in words)) as pid:
        found = record(tmp_path, pid)
        assert (driver_lives(found), supervisor_lives(found)) == (drives, supervises)
    assert not driver_lives(found) and not supervisor_lives(found)
    assert not driver_lives(record(tmp_path, os.getpid()))


def test_the_token_goes_to_no_stranger_at_a_dead_drivers_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_HOME", str(tmp_path))
    JobFolder(tmp_path, "shop").set_token("the-token")
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
