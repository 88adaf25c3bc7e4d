"""The demonstration ends in its proof."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_the_demonstration_ends_with_source_and_target_in_agreement(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "cdc.cli", "demo", "--folder", str(tmp_path / "demo"), "--seconds", "16"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"}, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("demo: source and target agree: 4 tables, "), done.stdout
    assert int(last.split()[-2]) > 10_000
