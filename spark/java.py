"""Prerequisites of Spark on this machine: Java, SPARK_HOME, or the packages of Spark Connect."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

from cdc.errors import PrerequisiteError

OLDEST_JAVA = 17  # Spark 4 requires it
_JAVA_LIMIT_S = 60.0  # `java -version` takes 20 ms; a busy machine is many times slower
_VERSION = re.compile(r'version "(?:1\.)?(\d+)[^"]*"')
_CORE = re.compile(r"spark-core_[\d.]+-(\d+\.\d+\.\d+[^/]*)\.jar")
_INSTALL = (
    "On Debian or Ubuntu, run `apt-get install openjdk-17-jre-headless`; otherwise set JAVA_HOME to Java 17 or newer."
)
_CONNECT_MODULES = ("grpc", "grpc_status", "google.rpc", "pandas", "zstandard")


def check_spark(remote: str | None = None) -> None:
    """Check that Spark can start here or, with ``remote``, that a Spark Connect server can be used.

    Calls: any thread; takes 20 ms. Raises: PrerequisiteError - the first prerequisite that is missing.
    """
    if remote is not None:
        check_connect()
        return
    check_java()
    check_spark_home()


def check_connect() -> None:
    """Check the packages of the extra ``connect``. Raises: PrerequisiteError - one is missing."""
    missing = [name for name in _CONNECT_MODULES if not _is_installed(name)]
    if missing:
        raise PrerequisiteError(
            f"spark.remote needs Python packages that are not installed: {', '.join(missing)}.",
            hint="Run `pip install 'spark-binlog-load[connect]'` in this environment.",
            python=sys.executable,
        )


def check_java() -> None:
    """Check Java. Raises: PrerequisiteError - it is missing, does not run or is older than 17."""
    java = java_binary()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        if home:
            raise PrerequisiteError(
                "JAVA_HOME is a folder without bin/java.", hint=f"Correct or unset it. {_INSTALL}", java_home=home
            )
        raise PrerequisiteError("Spark needs Java 17 or newer, but Java was not found.", hint=_INSTALL)
    try:
        answer = subprocess.run(
            [java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_JAVA_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PrerequisiteError(
            f"`java -version` did not end within {_JAVA_LIMIT_S:.0f} s.", hint=_INSTALL, java=java
        ) from error
    except OSError as error:
        raise PrerequisiteError(f"Java does not run: {error.strerror}.", hint=_INSTALL, java=java) from error
    text = (answer.stderr + answer.stdout).decode("utf-8", "replace").strip()
    version = _VERSION.search(text)
    if answer.returncode or version is None:
        first = text.splitlines()[0][:200] if text else f"it exits with {answer.returncode}"
        raise PrerequisiteError(f"Java does not run: {first}.", hint=_INSTALL, java=java)
    if int(version[1]) < OLDEST_JAVA:
        raise PrerequisiteError(
            f"Java {version[1]} is too old: Spark needs Java {OLDEST_JAVA} or newer.", hint=_INSTALL, java=java
        )


def java_binary() -> Path | None:
    """Return the ``java`` that Spark runs, from JAVA_HOME if it is set, otherwise from PATH; None if it is missing."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else Path(shutil.which("java") or "/nonexistent")
    return found if found.is_file() else None


def check_spark_home() -> None:
    """Check SPARK_HOME. Raises: PrerequisiteError - it has no Spark, or another version than PySpark."""
    home = os.environ.get("SPARK_HOME")
    if home is None:
        return
    hint = "Unset SPARK_HOME: PySpark contains Spark."
    if not Path(home, "bin", "spark-submit").is_file():
        raise PrerequisiteError("SPARK_HOME is a folder without Spark.", hint=hint, spark_home=home)
    versions = {found[1] for jar in Path(home, "jars").glob("spark-core_*.jar") if (found := _CORE.fullmatch(jar.name))}
    if pyspark.__version__ not in versions:
        other = f"Spark {', '.join(sorted(versions))}" if versions else "a Spark of an unknown version"
        raise PrerequisiteError(
            f"SPARK_HOME has {other}, but PySpark has version {pyspark.__version__}.", hint=hint, spark_home=home
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False
