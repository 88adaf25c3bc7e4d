"""Commands with arguments, folders and outputs that cannot be used: an error with a hint, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]


def run(
    *words: str | bytes, home: str, cwd: Path | None = None, stdout: int = subprocess.PIPE, url: str = ""
) -> tuple[int, str, str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CDC_")}
    environment |= {"CDC_HOME": home, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"} | ({"CDC_URL": url} if url else {})
    program: list[str | bytes] = [sys.executable, "-m", "cdc.cli.main", *words]
    if cwd is not None:  # delete it when the command is in it
        program = ["/bin/sh", "-c", 'rmdir "$PWD" && exec "$@"', "sh", *program]
    done = subprocess.run(program, cwd=cwd or ROOT, env=environment, stdout=stdout, stderr=subprocess.PIPE, check=False)
    printed, errors = (done.stdout or b"").decode(), done.stderr.decode()
    assert "Traceback" not in errors and "Exception ignored" not in errors, errors
    return done.returncode, printed, errors


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:1"])
@pytest.mark.parametrize("words", [["status"], ["pause"], ["logs"]], ids=" ".join)
def test_name_without_utf8_is_no_job(words: list[str], url: str, tmp_path: Path) -> None:
    code, printed, errors = run(*words, b"\xff", "-o", "json", home=str(tmp_path), url=url)
    assert code == 2 and "There is no job" in errors and "hint:" in errors
    assert json.loads(printed)["class"] == "ConfigError"


def test_argument_without_utf8_is_refused(tmp_path: Path) -> None:
    code, _, errors = run("hosts", "--drain", b"\xff", home=str(tmp_path))
    assert code == 2 and "is not UTF-8 text" in errors


@pytest.mark.parametrize("words", [["list"], ["list", "-o", "json"], ["--help"], ["status", "--help"]], ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["1", ""])
def test_output_on_a_full_disk_is_one_error(
    words: list[str], unbuffered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with Path("/dev/full").open("w") as full:
        code, _, errors = run(*words, home=str(tmp_path), stdout=full.fileno())
    assert code == 1
    assert errors.splitlines() == [
        "error: The output or a file cannot be written: No space left on device.",
        "hint:  Free space on the disk, or write the output to another file.",
    ]


@pytest.mark.parametrize("unbuffered", ["1", ""])
@pytest.mark.parametrize(
    "words", [["list"], ["list", "-o", "json"], ["--help"], ["status", "--help"], ["status", "nope", "-o", "json"]],
    ids=" ".join,
)  # fmt: skip
def test_closed_pipe_ends_the_command_with_141(
    words: list[str], unbuffered: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        code, _, errors = run(*words, home=str(tmp_path), stdout=writer)
    finally:
        os.close(writer)
    assert code == 141 and ("nope" in words or errors == "")


@pytest.mark.parametrize(
    "words", [["check", "x.yaml"], ["start", "x.yaml"], ["serve", "x.yaml"], ["demo"]], ids=" ".join
)
def test_relative_file_in_a_deleted_folder_is_refused(words: list[str], tmp_path: Path) -> None:
    (gone := tmp_path / "gone").mkdir()
    code, _, errors = run(*words, home=str(tmp_path), cwd=gone)
    assert code == 2 and "The current folder was deleted." in errors and "hint:" in errors


def test_relative_state_folder_in_a_deleted_folder_is_refused(tmp_path: Path) -> None:
    (gone := tmp_path / "gone").mkdir()
    code, _, errors = run("list", home="home", cwd=gone)
    assert code == 2 and "The current folder was deleted." in errors


@pytest.mark.parametrize("command", ["serve", "check", "start"])
def test_file_of_an_unknown_user_is_refused(command: str, tmp_path: Path) -> None:
    code, _, errors = run(command, "~nouser/x.yaml", home=str(tmp_path))
    assert code == 2 and "home folder that does not exist" in errors
