"""A job that is killed at random moments loses nothing and doubles nothing."""

from __future__ import annotations

import os
from pathlib import Path

from tests.recovery import kills
from tests.seeds import seed_of


def test_five_kills_at_random_moments_leave_source_and_target_equal(tmp_path: Path) -> None:
    kills.run(tmp_path, kills=5, seed=seed_of(), patience_s=30, power=os.geteuid() == 0)
