"""Files of any size and kind: a small error soon, in little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.config.loader import FILE_BYTES_MOST, NODES_MOST
from cdc.config.models import load_config
from cdc.errors import ConfigError
from tests.support.job_files import JOB, issues_of, with_change, write_job

MEMORY = 2 << 30
SECONDS = 30  # each needs less than one; endless ones need hours
_PROGRAM = f"""
import resource, sys
from pathlib import Path
from cdc.config.models import load_config
from cdc.errors import ConfigError
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))
try:
    load_config(Path(sys.argv[1]))
except ConfigError as error:
    print(error)
"""


def error_of(file: Path | str, given: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(file)], input=given, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def merges(levels: int) -> str:
    text = "{k: 1, l: 2}"
    for level in range(levels):
        text = f"{{<<: [&a{level} {text}{f', *a{level}' * 9}]}}"
    return text


def test_merges_of_merges_are_counted_before_they_are_copied(tmp_path: Path) -> None:
    assert "aliases make it too large or endless" in error_of(write_job(tmp_path, f"x: {merges(8)}\n"))


def test_chain_of_merges_is_counted(tmp_path: Path) -> None:
    keys = ", ".join(f"k{number}: 1" for number in range(NODES_MOST // 3))
    chain = "".join(f"  - &m{number} {{<<: *m{number - 1}}}\n" for number in range(1, 300))
    (only,) = issues_of(tmp_path, f"x:\n  - &m0 {{{keys}}}\n{chain}y: {{<<: *m299}}\n")
    assert "aliases make it too large or endless" in only


@pytest.mark.parametrize("text", ["x: &a {<<: *a}\n", "x: &a {<<: [{k: 1}, *a]}\n", "x: &a {<<: {<<: *a}}\n"])
def test_merge_of_itself_is_refused(text: str, tmp_path: Path) -> None:
    (only,) = issues_of(tmp_path, text)
    assert "aliases make it too large or endless" in only


def test_merged_key_that_is_not_a_word_is_refused(tmp_path: Path) -> None:
    assert issues_of(tmp_path, "x: {<<: {[a]: 1}}\n") == ["shop.yaml:1 is not valid YAML: a key must be a word"]


def test_long_number_is_read_as_text(tmp_path: Path) -> None:
    assert "has 5 errors" in error_of(write_job(tmp_path, f"x: {'1:' * 200_000}1\n"))


def test_device_and_named_pipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for file in ("/dev/zero", tmp_path / "pipe.yaml"):
        assert "cannot be read: it is not a regular file" in error_of(file)


def test_secret_file_that_is_endless_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text("x" * (FILE_BYTES_MOST + 1))
    for name, reason in (
        ("/dev/zero", "it is not a regular file"),
        ("pipe", "it is not a regular file"),
        ("large", "it is larger than 1048576 bytes"),
    ):
        shown = error_of(write_job(tmp_path, with_change('"s3cret"', f"${{file:{name}}}")))
        assert f"source.password: the file of ${{file:{name}}} cannot be read: {reason}" in shown


def test_large_secret_file_that_is_named_often_is_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_text("x" * FILE_BYTES_MOST)
    shown = error_of(write_job(tmp_path, JOB + "x: '" + "${file:large}" * 4000 + "'\n"))
    assert "shop.yaml:6 is not valid YAML: the values of ${...} make it too large" in shown


def test_file_of_the_shell_is_read() -> None:
    assert "has 3 errors" in error_of("/dev/stdin", "name: shop\n")
    assert "larger than 1 MiB" in error_of("/dev/stdin", "#" * (FILE_BYTES_MOST + 1))


def test_file_above_the_limit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        load_config(write_job(tmp_path, JOB + "#" * FILE_BYTES_MOST))
