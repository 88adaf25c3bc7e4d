"""Jars of servers for tests: fetched by Maven once, and kept in the cache folder."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from cdc.errors import PrerequisiteError
from cdc.paths import cache_folder


def obtain_jars(name: str, pom: Path, prepare: Callable[[Path], None] = lambda jars: None) -> Path:
    """Return the folder with the jars of ``pom``. The first call downloads them, then calls ``prepare`` with the folder.

    Raises: PrerequisiteError - no Maven, no Java, or no network.
    """
    if not shutil.which("mvn") or not shutil.which("java"):
        raise PrerequisiteError(f"{name} needs Maven and Java.", hint="apt-get install maven openjdk-17-jdk-headless")
    folder = cache_folder() / "servers" / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _fetch(name, pom, folder, prepare)
    return folder


def _fetch(name: str, pom: Path, folder: Path, prepare: Callable[[Path], None]) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{name}-") as parent:
        shutil.copy(pom, parent)
        jars = Path(parent) / "jars"
        command = ["mvn", "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        done = subprocess.run([*command, f"-DoutputDirectory={jars}"], cwd=parent, capture_output=True, text=True)
        if done.returncode or not jars.exists():
            raise PrerequisiteError(f"Maven could not fetch {name}: {done.stdout[-500:]}", hint="Check the network.")
        prepare(jars)
        jars.rename(folder)
