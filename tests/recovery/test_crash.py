"""A job that is killed at random moments keeps every row once."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import unavailable
from tests.recovery import crash as kills
from tests.support.mounting import no_disk
from tests.support.seeds import seed_of


def test_job_three_kills_with_power_cuts_equals_source(tmp_path: Path) -> None:
    refused = no_disk(tmp_path)
    kills.run(tmp_path, kills=3, seed=seed_of(), timeout_s=kills.LONGEST_S, power=not refused, transactions_per_s=30)
    if refused:
        unavailable(f"source and target agree after three kills, but none of them could cut the power: {refused}")
