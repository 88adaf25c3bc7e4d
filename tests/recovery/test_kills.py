"""A job that is killed at random moments loses nothing and doubles nothing."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import unavailable
from tests.mounting import no_disk
from tests.recovery import kills
from tests.seeds import seed_of


def test_three_kills_two_of_them_power_cuts_leave_source_and_target_equal(tmp_path: Path) -> None:
    refused = no_disk(tmp_path)
    kills.run(tmp_path, kills=3, seed=seed_of(), patience_s=30, power=not refused)
    if refused:
        unavailable(f"source and target agree after three kills, but none of them could cut the power: {refused}")
