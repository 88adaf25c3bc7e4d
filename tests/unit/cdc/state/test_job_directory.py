"""The directory of a job: temporary files, permissions, the saved error, errors of the file system."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from cdc.errors import CdcError, CheckpointError
from cdc.job.supervisor import launch
from cdc.logging_setup import LineFormatter
from cdc.state.job_directory import JobDirectory


def test_use_temporary_makes_a_private_folder_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = JobDirectory(tmp_path, "shop")
    folder.use_temporary()
    own = Path(tempfile.gettempdir())
    assert os.environ["TMPDIR"] == str(own)
    assert own.parent == tmp_path / "jobs" / "shop" / "tmp" and own.name.startswith(f"{os.getpid()}-")
    assert own.stat().st_mode & 0o777 == 0o700
    (own / "block").write_bytes(b"x")
    folder.use_temporary()
    folder.delete_orphans()
    assert (own / "block").read_bytes() == b"x"


def test_delete_orphans_deletes_folders_of_ended_drivers(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as ended:
        ended.wait(120)
    reused = f"{os.getpid()}-1"  # the number of this process, and another start
    for name in (f"{ended.pid}-123", reused, "spark-1"):
        left = tmp_path / "jobs" / "shop" / "tmp" / name / "block"
        left.parent.mkdir(parents=True)
        left.write_bytes(b"x")
    JobDirectory(tmp_path, "shop").delete_orphans()
    assert list((tmp_path / "jobs" / "shop" / "tmp").iterdir()) == []


def test_make_creates_folder_and_parents_with_mode_0700(tmp_path: Path) -> None:
    JobDirectory(tmp_path / "home", "shop").make()
    for made in (tmp_path / "home", tmp_path / "home" / "jobs", tmp_path / "home" / "jobs" / "shop"):
        assert made.stat().st_mode & 0o777 == 0o700


def test_failure_is_saved_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("shop", ("hunter2",)))
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    folder = JobDirectory(tmp_path, "shop")
    for error in (CdcError("No hunter2.", hint="Not hunter2.", url="sc://h/;token=hunter2"), ValueError("hunter2")):
        folder.set_failure(error)
        assert "hunter2" not in (folder.path / "failure.json").read_text()
        failure = folder.failure()
        assert failure is not None and "[hidden]" in failure.error.message


def test_delete_orphans_kills_processes_of_ended_drivers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    JobDirectory(tmp_path, "shop").use_temporary()
    own = Path(tempfile.gettempdir())
    orphan = own.with_name(f"{os.getpid()}-1")
    orphan.mkdir()
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    of_orphan, of_this = (
        subprocess.Popen(command, stdout=subprocess.PIPE, env={"TMPDIR": str(folder)}, start_new_session=True)
        for folder in (orphan, own)
    )
    with of_orphan, of_this:
        try:
            for process in (of_orphan, of_this):
                assert process.stdout is not None and process.stdout.readline()
            JobDirectory(tmp_path, "shop").delete_orphans()
            assert of_orphan.wait(120) == -signal.SIGKILL
            assert of_this.poll() is None
            assert list(own.parent.iterdir()) == [own]
        finally:
            of_orphan.kill()
            of_this.kill()


def test_use_temporary_folder_not_creatable_raises(tmp_path: Path) -> None:
    existing = tmp_path / "jobs" / "shop" / "tmp"
    existing.parent.mkdir(parents=True)
    existing.write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be created: File exists"):
        JobDirectory(tmp_path, "shop").use_temporary()


def test_open_log_not_writable_raises(tmp_path: Path) -> None:
    folder = JobDirectory(tmp_path, "shop")
    folder.open_log().close()
    assert folder.log.stat().st_mode & 0o777 == 0o600
    folder.log.unlink()
    folder.log.mkdir()
    with pytest.raises(CheckpointError, match=r"cannot be written: Is a directory.*driver\.log"):
        launch(folder, ["true"])


def test_set_failure_not_deletable_raises(tmp_path: Path) -> None:
    folder = JobDirectory(tmp_path, "shop")
    (folder.path / "failure.json").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"failure\.json"):
        folder.set_failure(None)


def test_delete_orphans_after_a_step_of_the_clock_keeps_own_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    folder = JobDirectory(tmp_path, "shop")
    folder.use_temporary()
    own = Path(tempfile.gettempdir())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        booted = psutil.boot_time()
        monkeypatch.setattr(psutil._pslinux, "boot_time", lambda: booted + 3)
        folder.use_temporary()
        folder.delete_orphans()
        assert list(own.parent.iterdir()) == [own]
        assert child.poll() is None
