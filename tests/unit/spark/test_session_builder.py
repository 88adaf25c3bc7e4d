"""The packages that a session sends to executors, and how long their file exists."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

import spark.session_builder
from spark.child_processes import start_child
from spark.gateway import Jvm, JvmFolder
from spark.session_builder import build_session


@pytest.mark.parametrize("is_killed", [False, True])
def test_packages_for_cluster_exist_as_long_as_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_killed: bool
) -> None:
    """Executors that start later fetch the file too."""
    added: list[str] = []
    context = SimpleNamespace(addPyFile=added.append, setLogLevel=lambda _: None)
    jvms: list[Jvm] = []

    def launch(_: object, __: object, folder: JvmFolder, *___: object) -> Jvm:
        process = start_child([sys.executable, "-c", "input()"], {}, stdin=subprocess.PIPE)
        jvms.append(Jvm(process, folder))
        return jvms[-1]

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("PYSPARK_PYTHON", "PYARROW_IGNORE_TIMEZONE"):
        monkeypatch.setenv(name, "")
    parts = {
        "check_spark": lambda _: None,
        "running_jvm": lambda: jvms[-1] if jvms else None,
        "_gateway": SimpleNamespace,
        "launch_jvm": launch,
        "_created_without_ml": lambda _: SimpleNamespace(sparkContext=context),
        "_configured": lambda *_: SimpleNamespace(sparkContext=context),
    }
    for name, part in parts.items():
        monkeypatch.setattr(spark.session_builder, name, part)
    for _ in range(2):  # the second session has the same JVM
        build_session("shop", "spark://elsewhere:7077")
    (jvm,) = jvms
    first, second = map(Path, added)
    assert first != second and first.parent.stat().st_mode & 0o077 == 0
    assert {"cdc/__init__.py", "spark/frames.pyc"} <= set(zipfile.ZipFile(first).namelist())
    assert first.is_file() and second.is_file()
    if is_killed:
        jvm.kill()
    else:
        assert jvm.process.stdin is not None
        jvm.process.stdin.close()
        jvm.end()
    assert not first.exists() and not second.exists() and not [*tmp_path.glob("cdc-*")]
    jvm.process.wait()
