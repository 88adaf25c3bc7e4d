"""What Spark needs on this machine: Java, its own distribution, or the packages of Spark Connect."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark

from cdc.errors import SurroundingsError

OLDEST_JAVA = 17  # Spark 4 starts on no older one
_JAVA_LIMIT_S = 60.0  # `java -version` takes 20 ms; a busy machine is many times slower
_VERSION = re.compile(r'version "(?:1\.)?(\d+)[^"]*"')
_CORE = re.compile(r"spark-core_[\d.]+-(\d+\.\d+\.\d+[^/]*)\.jar")
_INSTALL = "On Debian or Ubuntu: `apt-get install openjdk-17-jre-headless`; else set JAVA_HOME to Java 17 or newer."
_CONNECT_MODULES = ("grpc", "grpc_status", "google.rpc", "pandas", "zstandard")


def check_spark(remote: str | None = None) -> None:
    """Return if Spark can start here; with ``remote``, if a Spark Connect server can be used.

    Calls: any thread, takes 20 ms. Raises: SurroundingsError - the first thing that is missing.
    """
    if remote is not None:
        check_connect()
        return
    check_java()
    check_spark_home()


def check_connect() -> None:
    """Raises: SurroundingsError - a package of the extra ``connect`` is missing."""
    missing = [name for name in _CONNECT_MODULES if not _is_installed(name)]
    if missing:
        raise SurroundingsError(
            f"spark.remote needs Python packages that are not installed: {', '.join(missing)}.",
            mend="Run `pip install 'spark-binlog-load[connect]'` in this environment.",
            python=sys.executable,
        )


def check_java() -> None:
    """Raises: SurroundingsError - Java is missing, does not run or is older than 17."""
    java = java_binary()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        if home:
            raise SurroundingsError(
                "JAVA_HOME names a folder without bin/java.", mend=f"Correct or unset it. {_INSTALL}", java_home=home
            )
        raise SurroundingsError("Spark needs Java 17 or newer, and Java was not found.", mend=_INSTALL)
    try:
        answer = subprocess.run(
            [java, "-version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_JAVA_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SurroundingsError(
            f"`java -version` did not answer within {_JAVA_LIMIT_S:.0f} s.", mend=_INSTALL, java=java
        ) from error
    except OSError as error:
        raise SurroundingsError(f"Java does not run: {error.strerror}.", mend=_INSTALL, java=java) from error
    text = (answer.stderr + answer.stdout).decode("utf-8", "replace").strip()
    version = _VERSION.search(text)
    if answer.returncode or version is None:
        first = text.splitlines()[0][:200] if text else f"it exits with {answer.returncode}"
        raise SurroundingsError(f"Java does not run: {first}.", mend=_INSTALL, java=java)
    if int(version[1]) < OLDEST_JAVA:
        raise SurroundingsError(
            f"Java {version[1]} is too old: Spark needs Java {OLDEST_JAVA} or newer.", mend=_INSTALL, java=java
        )


def java_binary() -> Path | None:
    """The ``java`` that Spark runs: of JAVA_HOME if that is set, else of PATH; None if it does not exist."""
    home = os.environ.get("JAVA_HOME")
    found = Path(home, "bin", "java") if home else Path(shutil.which("java") or "/nonexistent")
    return found if found.is_file() else None


def check_spark_home() -> None:
    """Raises: SurroundingsError - SPARK_HOME names no Spark, or another version than PySpark's."""
    home = os.environ.get("SPARK_HOME")
    if home is None:
        return
    mend = "Unset SPARK_HOME: PySpark brings its own Spark."
    if not Path(home, "bin", "spark-submit").is_file():
        raise SurroundingsError("SPARK_HOME names a folder without Spark.", mend=mend, spark_home=home)
    versions = {found[1] for jar in Path(home, "jars").glob("spark-core_*.jar") if (found := _CORE.fullmatch(jar.name))}
    if pyspark.__version__ not in versions:
        other = f"Spark {', '.join(sorted(versions))}" if versions else "a Spark of an unknown version"
        raise SurroundingsError(
            f"SPARK_HOME names {other}, but PySpark is {pyspark.__version__}.", mend=mend, spark_home=home
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False
