"""The supervisor ends after a refused start of its own driver, not after that of another process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc.errors import CheckpointError
from cdc.job import supervisor
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


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("fault", ["folder", "process"])
def test_supervisor_repeats_a_start_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The disk is read-only, or the machine has no memory, when a driver has died. The options of a resume are kept."""
    monkeypatch.setenv("CDC_HOME", str(tmp_path))
    monkeypatch.setattr(supervisor, "FIRST_WAIT_S", 0.01)
    with closing(SqliteStore(tmp_path)) as store:
        store.save_job(replace(store.acquire("shop", "shop.yaml"), state=JobState.PAUSED))
    folder, left = JobDirectory(tmp_path, "shop"), [2]
    folder.make()
    folder.log.touch()

    def fails(real: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        def call(*words: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] >= 0:
                raise error
            return real(*words, **options)

        return call

    if fault == "folder":
        error = CheckpointError("A file of the job's folder cannot be written: Read-only file system.", hint="Free it.")
        monkeypatch.setattr(folder, "set_failure", fails(folder.set_failure, error))
    else:
        monkeypatch.setattr(subprocess, "Popen", fails(subprocess.Popen, BlockingIOError("no memory")))
    program = "import sys; open(sys.argv[1], 'w').write(' '.join(sys.argv[2:]))"
    command = [sys.executable, "-c", program, str(tmp_path / "words")]
    assert Supervisor(folder, command, ["--resume", "past_ddl"]).run() == 0
    assert left[0] < 0 and (tmp_path / "words").read_text() == "--resume past_ddl"
