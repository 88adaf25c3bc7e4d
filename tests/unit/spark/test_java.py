"""A missing prerequisite of Spark is reported before a job starts, with its hint and exit code 3."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

import spark.java
from cdc.errors import PrerequisiteError
from spark.java import check_spark


def java(folder: Path, script: str) -> Path:
    (folder / "bin").mkdir()
    found = folder / "bin" / "java"
    found.write_text(script)
    found.chmod(0o755)
    return folder


def refused(message: str, hint: str, remote: str | None = None) -> None:
    with pytest.raises(PrerequisiteError) as caught:
        check_spark(remote)
    assert message in str(caught.value)
    assert hint in caught.value.hint
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("#!/bin/sh\necho 'java version \"1.8.0_402\"' >&2\n", "Java 8 is too old"),
        ("#!/bin/sh\necho 'openjdk version \"11.0.22\"' >&2\n", "Java 11 is too old"),
        ("#!/bin/sh\necho 'cannot allocate memory' >&2; exit 1\n", "Java does not run: cannot allocate memory"),
        ("#!/bin/sh\nkill -9 $$\n", "Java does not run: it exits with -9"),
        ("not a program", "Java does not run"),
    ],
)
def test_check_spark_unusable_java_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, script)))
    refused(message, "openjdk-17")


def test_check_spark_hanging_java_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, "#!/bin/sh\nexec sleep 600\n")))
    monkeypatch.setattr(spark.java, "_JAVA_LIMIT_S", 0.1)
    refused("did not end", "openjdk-17")


def test_check_spark_missing_java_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    refused("JAVA_HOME is a folder without bin/java", "Correct or unset it")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    refused("Java was not found", "openjdk-17")


def test_check_spark_new_java_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, "#!/bin/sh\necho 'openjdk version \"25\" 2025-09-16' >&2\n")))
    check_spark()


def test_check_spark_other_spark_home_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    refused("folder without Spark", "Unset SPARK_HOME")
    for name in ("bin", "jars"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin" / "spark-submit").touch()
    core = tmp_path / "jars" / "spark-core_2.13-3.5.1.jar"
    core.touch()
    refused(f"has Spark 3.5.1, but PySpark has version {pyspark.__version__}", "Unset SPARK_HOME")
    core.rename(core.with_name(f"spark-core_2.13-{pyspark.__version__}.jar"))
    check_spark()


def test_check_spark_connect_without_packages_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nonexistent")  # which Spark Connect does not need
    monkeypatch.setattr(spark.java, "_CONNECT_MODULES", ("json", "grpc_missing", "google_missing.rpc"))
    refused("not installed: grpc_missing, google_missing.rpc", "spark-binlog-load[connect]", "sc://127.0.0.1:1")
