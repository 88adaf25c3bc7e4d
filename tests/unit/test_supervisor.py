"""The supervisor: whose failure ends it, and whose does not."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.checkpoint import JobState
from cdc.checkpoint_sqlite import SqliteStore
from cdc.folder import JobFolder
from cdc.supervisor import Supervisor

# the first driver is refused, or dies while another one is; the second ends in order
DRIVER = """
import subprocess, sys
from pathlib import Path
from cdc.errors import LeaseLost
from cdc.folder import JobFolder
home, whose = Path(sys.argv[1]), sys.argv[2]
if whose == "its own":
    JobFolder(home, "shop").set_failure(LeaseLost("Another process runs it.", mend="None."))
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
def test_a_driver_that_was_refused_is_not_started_again_and_one_that_died_meanwhile_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str, code: int
) -> None:
    monkeypatch.setenv("CDC_HOME", str(tmp_path))
    store = SqliteStore(tmp_path)
    store.save_job(replace(store.acquire("shop", "shop.yaml"), state=JobState.RUNNING))
    store.close()
    folder = JobFolder(tmp_path, "shop")
    folder.make()
    folder.log.touch()
    assert Supervisor(folder, [sys.executable, "-c", DRIVER, str(tmp_path), whose]).run() == code
    failure = folder.failure()
    assert (failure is None) == (code == 0)
