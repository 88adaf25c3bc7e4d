"""The start of Spark's JVM has a time limit, and its processes end with the process that started them."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import spark.gateway
import spark.session
import spark.session_builder
from cdc.errors import ErrorAction, PrerequisiteError, action_for
from cdc.marked_processes import processes_with
from spark.class_archive import ensure_archive
from spark.gateway import JvmFolder, _connection, launch_jvm
from spark.session import SessionHolder

_MARK = "CDC_TEST_MARK"
_JAVA = """#!/bin/sh
case "$*" in *-version*) echo 'openjdk version "17.0.1"' >&2; exit 0;; esac
echo $$ >> "$CDC_TEST_MARK/started"
{body}
"""
_HANG = "exec sleep 600"
_INFO = '"$_PYSPARK_DRIVER_CONN_INFO_PATH"'
_FAULTS = {  # what Java does, the message, and the time limit: short only where the limit must be reached
    "hangs": (_HANG, "did not start within", 1.5),
    "exits with 0": (r"printf '\000\ntrue\000'", "exited with code 0", 120),
    "exits with 7": ("exit 7", "exited with code", 120),
    "half a connection file": (f"printf abcd > {_INFO}; {_HANG}", "did not start within", 1.5),
    "its folder is deleted": (f'rm -r "$(dirname {_INFO})"; {_HANG}', "folder of Spark was deleted", 120),
}


@pytest.fixture
def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replace Java by a script; all its child processes have a mark in their environment."""
    monkeypatch.setenv(_MARK, str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    # another test of this process may have a session, which must stay
    monkeypatch.setattr(spark.session_builder, "running_jvm", lambda: None)
    for module in (spark.gateway, spark.session, spark.session_builder):
        monkeypatch.setattr(module, "forget_jvm", lambda: None)

    def write(body: str) -> None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir(exist_ok=True)
        java.write_text(_JAVA.format(body=body))
        java.chmod(0o755)

    return write


def marked(mark: Path) -> list[psutil.Process]:
    found = processes_with(_MARK, str(mark))
    return [process for process in found if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.mark.parametrize("fault", _FAULTS)
def test_launch_jvm_failing_start_is_killed_with_group(
    tmp_path: Path, fake_java: Callable[[str], None], fault: str
) -> None:
    body, message, limit_s = _FAULTS[fault]
    fake_java(body)
    folder = JvmFolder()
    with pytest.raises(PrerequisiteError, match=message) as caught:
        launch_jvm({}, "local[1]", folder, limit_s)
    assert action_for(caught.value) is ErrorAction.RETRY
    assert caught.value.exit_code == 3
    wait_for(lambda: not marked(tmp_path), "a process is left")
    assert not folder.path.exists()


def test_get_concurrent_callers_share_one_start_and_its_error(tmp_path: Path, fake_java: Callable[[str], None]) -> None:
    fake_java(_HANG)
    holder = SessionHolder("waits", "local[1]", start_limit_s=20)
    errors: list[BaseException] = []

    def get() -> None:
        try:
            holder.get()
        except PrerequisiteError as error:
            errors.append(error)

    threads = [threading.Thread(target=get) for _ in range(6)]
    threads[0].start()
    wait_for(lambda: holder.starting_s is not None, "no start")
    for thread in threads[1:]:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(errors) == 6
    assert all("did not start within 20 s" in str(error) for error in errors)
    assert len((tmp_path / "started").read_text().split()) == 1
    assert holder.starting_s is None
    holder.close()


def test_close_ends_start_and_prevents_later_ones(tmp_path: Path, fake_java: Callable[[str], None]) -> None:
    fake_java(_HANG)
    holder = SessionHolder("stops", "local[1]", start_limit_s=600)
    holder.warm_up()
    wait_for(lambda: (tmp_path / "started").exists(), "no start")
    holder.close()
    wait_for(lambda: not holder.is_warming, "the start does not end")
    with pytest.raises(PrerequisiteError, match="closed"):
        holder.get()
    wait_for(lambda: not marked(tmp_path), "a process is left")


_BUILDER = "from spark.class_archive import ensure_archive; ensure_archive()"
_DRIVER = """
import signal, sys, time
from pathlib import Path
from spark.session import SessionHolder
def hang(batches):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    Path(sys.argv[0] if len(sys.argv) > 1 else MARK, "busy").touch()
    time.sleep(600)
    yield from batches
MARK = sys.argv[1]
session = SessionHolder("killed", "local[1]").get()
session.range(1).mapInArrow(hang, "id long").collect()
"""


def test_warm_up_does_not_wait_for_the_class_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    building, is_built = threading.Event(), threading.Event()

    def build() -> None:
        building.set()
        assert is_built.wait(120)

    holder = SessionHolder("shop", "local[1]")
    for name in ("get", "transport"):
        monkeypatch.setattr(holder, name, lambda: None)
    monkeypatch.setattr(spark.session, "ensure_archive", build)
    try:
        holder.warm_up()
        assert building.wait(120)
        wait_for(lambda: not holder.is_warming, "the first snapshot step")
    finally:
        is_built.set()


def test_start_reports_no_log_levels() -> None:
    code = "from spark.session_builder import build_session; build_session('shop', 'local[1]').stop()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert "log level" not in done.stdout + done.stderr  # they are lines of `cdc logs`, and hide the others


def _killed(tmp_path: Path, code: str, is_ready: Callable[[], object]) -> None:
    driver = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: is_ready() or driver.poll() is not None, "the driver does not start")
        assert driver.poll() is None
        assert len(marked(tmp_path)) > 1
    finally:
        driver.kill()
        driver.wait()
    wait_for(lambda: not marked(tmp_path), f"left: {marked(tmp_path)}")


def test_archive_builder_ends_with_killed_driver(
    tmp_path: Path, fake_java: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(_HANG)
    monkeypatch.setenv("CDC_CACHE", str(tmp_path))
    _killed(tmp_path, _BUILDER, (tmp_path / "started").exists)


def test_archive_builder_ends_when_its_folder_is_deleted(
    tmp_path: Path, fake_java: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(_FAULTS["its folder is deleted"][0])
    monkeypatch.setenv("CDC_CACHE", str(tmp_path))
    ensure_archive()
    assert not list(tmp_path.glob("java/*.jsa"))
    wait_for(lambda: not marked(tmp_path), "a process is left")


def test_jvm_daemon_and_worker_end_with_killed_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_MARK, str(tmp_path))
    _killed(
        tmp_path,
        _DRIVER.replace("sys.argv[0] if len(sys.argv) > 1 else MARK", repr(str(tmp_path))),
        (tmp_path / "busy").exists,
    )


def test_connection_file_is_read_when_complete(tmp_path: Path) -> None:
    folder = JvmFolder()

    class Alive:
        process = type("Process", (), {"poll": staticmethod(lambda: None)})

    folder.connection.write_bytes((25333).to_bytes(4, "big") + (5).to_bytes(4, "big") + b"token")
    assert _connection(Alive, folder, 1) == (25333, "token")  # type: ignore[arg-type]
    assert folder.path.stat().st_mode & 0o077 == 0
    folder.delete()
