"""The class archive: made once in the background, used by every later JVM, and never in anybody's way."""

from __future__ import annotations

import fcntl
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from spark import archive
from spark.archive import archive_options, ensure_archive

_SESSION = """
import sys
from spark.archive import archive_options
from spark.session import build_session
session = build_session("archived", "local[1]", java_options=archive_options() + " -Xlog:class+load:file=" + sys.argv[1])
print("rows", session.range(3).count())
session.stop()
"""


def test_later_jvms_take_their_classes_from_it(tmp_path: Path) -> None:
    """The one of this machine, as ``make warm`` leaves it, since it takes half a minute of CPU time."""
    ensure_archive()
    classes = tmp_path / "classes.log"
    done = subprocess.run([sys.executable, "-c", _SESSION, str(classes)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "rows 3"
    loaded = classes.read_text().splitlines()
    spark = [line for line in loaded if " org.apache.spark." in line]
    archived = [line for line in spark if "shared objects file (top)" in line]
    assert len(archived) > len(spark) // 2 > 500


def test_a_second_process_leaves_the_making_to_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_CACHE", str(tmp_path))
    assert archive_options() == ""
    path = archive._archive()
    assert path is not None
    with path.with_suffix(".lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        ensure_archive()
    assert list(path.parent.iterdir()) == [path.with_suffix(".lock")]
    assert archive_options() == ""


def test_a_damaged_archive_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDC_CACHE", str(tmp_path))
    damaged = archive._archive()
    assert damaged is not None
    damaged.write_bytes(b"half an archive")
    command = ["java", *shlex.split(archive_options()), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert str(damaged) in " ".join(command)
    assert "version" in done.stderr and "archive" not in done.stdout + done.stderr
