"""A job that is killed at random moments loses nothing and doubles nothing."""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.recovery import kills


def test_five_kills_at_random_moments_leave_source_and_target_equal(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    kills.run(tmp_path, kills=5, seed=seed, patience_s=30, power=os.geteuid() == 0)
