"""A job that is killed at random moments loses nothing and doubles nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.recovery import kills


@pytest.mark.timeout(600)
def test_ten_kills_at_random_moments_leave_source_and_target_equal(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    kills.run(tmp_path, kills=10, seed=seed)
    left = list((tmp_path / "state" / "jobs").glob("*/tmp/*"))
    assert 0 < len(left) < 20, left  # of the last driver alone: each empties the folder
