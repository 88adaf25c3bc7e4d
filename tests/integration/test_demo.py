"""The demonstration ends with its proof."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

import cdc.demo.run
from cdc.demo.run import MARK, run_demo
from cdc.errors import ConfigError, PrerequisiteError


def test_demo_ends_with_equal_source_and_target(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cdc.cli.main", "demo", "--folder", str(tmp_path / "demo"), "--seconds", "16"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("demo: source and target agree: 4 tables, "), done.stdout
    assert int(last.split()[-2]) > 10_000


def test_demo_of_hosts_takes_over_and_ends_with_equal_tables(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "cdc.cli.main",
        "demo",
        "--hosts",
        "--folder",
        str(tmp_path / "d"),
        "--seconds",
        "8",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "took over: commits again" in done.stdout
    assert done.stdout.strip().splitlines()[-1].startswith("demo: source and target agree: 4 tables, ")


def no_server(*_: object) -> NoReturn:
    raise PrerequisiteError("There is no MySQL here.", hint="Install one.")


def test_demo_keeps_a_folder_that_is_not_a_demonstration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdc.demo.run, "obtain", lambda *_: pytest.fail("the demonstration searched for a server"))
    (tmp_path / "slides.txt").write_text("mine")
    with pytest.raises(ConfigError, match="--folder"):
        run_demo(tmp_path)
    with pytest.raises(ConfigError, match="--folder"):
        run_demo(tmp_path / "slides.txt")
    assert (tmp_path / "slides.txt").read_text() == "mine"


def test_demo_deletes_an_earlier_one_when_a_server_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere = tmp_path / "demo", tmp_path / "mine.txt"
    elsewhere.write_text("mine")
    monkeypatch.setattr(cdc.demo.run, "start_server", no_server)
    monkeypatch.setattr(cdc.demo.run, "obtain", lambda *_: None)
    with pytest.raises(PrerequisiteError):
        run_demo(folder)
    assert [entry.name for entry in folder.iterdir()] == [MARK]
    (folder / "warehouse").mkdir()
    (folder / "link").symlink_to(elsewhere)

    monkeypatch.setattr(cdc.demo.run, "obtain", no_server)
    with pytest.raises(PrerequisiteError):
        run_demo(folder)
    assert (folder / "warehouse").exists()

    monkeypatch.setattr(cdc.demo.run, "obtain", lambda *_: None)
    with pytest.raises(PrerequisiteError):
        run_demo(folder)
    assert [entry.name for entry in folder.iterdir()] == [MARK]
    assert elsewhere.read_text() == "mine"


def test_demo_folder_that_cannot_be_created_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdc.demo.run, "obtain", lambda *_: None)
    (tmp_path / "file").touch()
    with pytest.raises(PrerequisiteError, match="Not a directory"):
        run_demo(tmp_path / "file" / "demo")
