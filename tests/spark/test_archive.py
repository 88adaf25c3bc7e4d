"""The class archive: created once in the background, used by later JVMs, ignored if it is damaged."""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cdc.paths import cache_folder
from spark import class_archive as archive
from spark.class_archive import archive_options, ensure_archive

_SESSION = """
import sys
from spark.class_archive import archive_options
from spark.session_builder import build_session
session = build_session("archived", "local[1]", java_options=archive_options() + " -Xlog:class+load:file=" + sys.argv[1])
print("rows", session.range(3).count())
session.stop()
"""


def test_archive_is_used_by_later_jvms(tmp_path: Path) -> None:
    """Use the archive of this machine, which `make warm` creates, because it needs half a minute of CPU time."""
    ensure_archive()
    cache = tmp_path / "cache folder"  # a path with a space
    cache.mkdir(0o700)
    for file in cache_folder().iterdir():
        (cache / file.name).symlink_to(file)
    classes, environment = tmp_path / "classes.log", {**os.environ, "CDC_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", _SESSION, str(classes)], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.splitlines()[-1] == "rows 3"
    loaded = classes.read_text().splitlines()
    spark = [line for line in loaded if " org.apache.spark." in line]
    archived = [line for line in spark if "shared objects file (top)" in line]
    assert len(archived) > len(spark) // 2 > 500


def test_ensure_archive_second_process_creates_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_CACHE", str(tmp_path))
    assert archive_options() == ""
    path = archive.archive_path()
    assert path is not None
    with path.with_suffix(".lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        ensure_archive()
    assert list(path.parent.iterdir()) == [path.with_suffix(".lock")]
    assert archive_options() == ""


def test_archive_damaged_is_ignored_by_jvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_CACHE", str(tmp_path))
    damaged = archive.archive_path()
    assert damaged is not None
    damaged.write_bytes(b"half an archive")
    command = ["java", *shlex.split(archive_options()), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert str(damaged) in " ".join(command)
    assert "version" in done.stderr and "archive" not in done.stdout + done.stderr
