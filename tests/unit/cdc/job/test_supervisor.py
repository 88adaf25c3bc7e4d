"""The supervisor ends after a refused start of its own driver, not after that of another process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.job.supervisor import Supervisor
from cdc.state.base import JobState
from cdc.state.job_directory import JobDirectory
from cdc.state.sqlite import SqliteStore

# "its own": the driver is refused. "another's": it dies after another process was refused; the second one ends with 0.
DRIVER = """
import subprocess, sys
from pathlib import Path
from cdc.errors import LeaseLost
from cdc.state.job_directory import JobDirectory
home, whose = Path(sys.argv[1]), sys.argv[2]
if whose == "its own":
    JobDirectory(home, "shop").set_failure(LeaseLost("Another process runs it.", hint="None."))
elif (home / "ran").exists():
    sys.exit(0)
else:
    (home / "ran").touch()
    subprocess.run([sys.executable, "-c", sys.orig_argv[2], str(home), "its own"])
sys.exit(1)
"""


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(("whose", "code"), [("its own", 1), ("another's", 0)])
def test_supervisor_restarts_dead_driver_but_not_refused_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str, code: int
) -> None:
    monkeypatch.setenv("CDC_HOME", str(tmp_path))
    store = SqliteStore(tmp_path)
    store.save_job(replace(store.acquire("shop", "shop.yaml"), state=JobState.RUNNING))
    store.close()
    folder = JobDirectory(tmp_path, "shop")
    folder.make()
    folder.log.touch()
    assert Supervisor(folder, [sys.executable, "-c", DRIVER, str(tmp_path), whose]).run() == code
    failure = folder.failure()
    assert (failure is None) == (code == 0)
