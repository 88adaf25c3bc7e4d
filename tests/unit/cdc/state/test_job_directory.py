"""The directory of a job: temporary files, permissions, the saved error, errors of the file system."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cdc.errors import CdcError, CheckpointError
from cdc.job.supervisor import launch
from cdc.logging_setup import LineFormatter
from cdc.state.job_directory import JobDirectory


def test_use_temporary_deletes_files_of_killed_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    left = tmp_path / "jobs" / "shop" / "tmp" / "spark-1" / "block"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x")
    JobDirectory(tmp_path, "shop").use_temporary()
    assert os.environ["TMPDIR"] == tempfile.gettempdir() == str(tmp_path / "jobs" / "shop" / "tmp")
    assert list(Path(tempfile.gettempdir()).iterdir()) == []
    assert Path(tempfile.gettempdir()).stat().st_mode & 0o777 == 0o700


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


def test_use_temporary_kills_processes_of_killed_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"]
    of_job, of_other = (
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            env={"TMPDIR": str(tmp_path / "jobs" / name / "tmp")},
            start_new_session=True,
        )
        for name in ("shop", "shop2")
    )
    with of_job, of_other:
        try:
            for process in (of_job, of_other):
                assert process.stdout is not None and process.stdout.readline()
            JobDirectory(tmp_path, "shop").use_temporary()
            assert of_job.wait(120) == -signal.SIGKILL
            assert of_other.poll() is None
        finally:
            of_job.kill()
            of_other.kill()


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
