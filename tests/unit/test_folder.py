"""A job's folder: what is temporary lies in it, for this process and its children, and does not outlive them."""

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
from cdc.folder import JobFolder
from cdc.logs import LineFormatter
from cdc.supervisor import launch


def test_temporary_files_of_a_killed_driver_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    left = tmp_path / "jobs" / "shop" / "tmp" / "spark-1" / "block"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"x")
    JobFolder(tmp_path, "shop").use_temporary()
    assert os.environ["TMPDIR"] == tempfile.gettempdir() == str(tmp_path / "jobs" / "shop" / "tmp")
    assert list(Path(tempfile.gettempdir()).iterdir()) == []
    assert Path(tempfile.gettempdir()).stat().st_mode & 0o777 == 0o700


def test_a_folder_of_a_job_and_those_made_for_it_are_its_users_alone(tmp_path: Path) -> None:
    JobFolder(tmp_path / "home", "shop").make()
    for made in (tmp_path / "home", tmp_path / "home" / "jobs", tmp_path / "home" / "jobs" / "shop"):
        assert made.stat().st_mode & 0o777 == 0o700


def test_why_a_driver_ended_is_kept_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter("shop", ("hunter2",)))
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    folder = JobFolder(tmp_path, "shop")
    for error in (CdcError("No hunter2.", mend="Not hunter2.", url="sc://h/;token=hunter2"), ValueError("hunter2")):
        folder.set_failure(error)
        assert "hunter2" not in (folder.path / "failure.json").read_text()
        failure = folder.failure()
        assert failure is not None and "[hidden]" in failure.message


def test_processes_of_a_killed_driver_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            JobFolder(tmp_path, "shop").use_temporary()
            assert of_job.wait(120) == -signal.SIGKILL
            assert of_other.poll() is None
        finally:
            of_job.kill()
            of_other.kill()


def test_a_temporary_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    in_the_way = tmp_path / "jobs" / "shop" / "tmp"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be made: File exists"):
        JobFolder(tmp_path, "shop").use_temporary()


def test_a_log_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, "shop")
    folder.open_log().close()
    assert folder.log.stat().st_mode & 0o777 == 0o600
    folder.log.unlink()
    folder.log.mkdir()
    with pytest.raises(CheckpointError, match=r"cannot be written: Is a directory.*driver\.log"):
        launch(folder, ["true"])


def test_a_failure_that_cannot_be_taken_away_is_told(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path, "shop")
    (folder.path / "failure.json").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"failure\.json"):
        folder.set_failure(None)
