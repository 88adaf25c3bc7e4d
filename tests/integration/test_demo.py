"""The demonstration ends in its proof."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

import cdc.demo.run
from cdc.demo.run import MARK, run_demo
from cdc.errors import ConfigError, SurroundingsError


def test_the_demonstration_ends_with_source_and_target_in_agreement(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cdc.cli", "demo", "--folder", str(tmp_path / "demo"), "--seconds", "16"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("demo: source and target agree: 4 tables, "), done.stdout
    assert int(last.split()[-2]) > 10_000


def no_server(*_: object) -> NoReturn:
    raise SurroundingsError("There is no MySQL here.", mend="Install one.")


def test_a_folder_that_is_no_demonstration_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdc.demo.run, "obtain", lambda *_: pytest.fail("a server was looked for"))
    (tmp_path / "slides.txt").write_text("mine")
    with pytest.raises(ConfigError, match="--folder"):
        run_demo(tmp_path)
    with pytest.raises(ConfigError, match="--folder"):
        run_demo(tmp_path / "slides.txt")
    assert (tmp_path / "slides.txt").read_text() == "mine"


def test_an_earlier_demonstration_goes_once_there_is_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, elsewhere = tmp_path / "demo", tmp_path / "mine.txt"
    elsewhere.write_text("mine")
    monkeypatch.setattr(cdc.demo.run, "_server", no_server)
    monkeypatch.setattr(cdc.demo.run, "obtain", lambda *_: None)
    with pytest.raises(SurroundingsError):
        run_demo(folder)
    assert [entry.name for entry in folder.iterdir()] == [MARK]
    (folder / "warehouse").mkdir()
    (folder / "link").symlink_to(elsewhere)

    monkeypatch.setattr(cdc.demo.run, "obtain", no_server)
    with pytest.raises(SurroundingsError):
        run_demo(folder)
    assert (folder / "warehouse").exists()

    monkeypatch.setattr(cdc.demo.run, "obtain", lambda *_: None)
    with pytest.raises(SurroundingsError):
        run_demo(folder)
    assert [entry.name for entry in folder.iterdir()] == [MARK]
    assert elsewhere.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdc.demo.run, "obtain", lambda *_: None)
    (tmp_path / "file").touch()
    with pytest.raises(SurroundingsError, match="Not a directory"):
        run_demo(tmp_path / "file" / "demo")
