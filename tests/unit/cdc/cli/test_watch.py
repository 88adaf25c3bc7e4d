"""``cdc status --watch`` without a terminal."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path

from tests.support.limits import HANG_S

ROOT = Path(__file__).parents[4]


def test_watch_prints_each_screen_into_a_pipe(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CDC_")}
    environment |= {"CDC_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "cdc.cli.main", "status", "--watch"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as watch:
        assert watch.stdout is not None
        try:
            printed, deadline = b"", time.monotonic() + HANG_S
            while printed.count(b"There are no jobs.") < 2:
                assert select.select([watch.stdout], [], [], deadline - time.monotonic())[0], "no output"
                data = os.read(watch.stdout.fileno(), 4096)
                assert data, printed
                printed += data
        finally:
            watch.kill()
