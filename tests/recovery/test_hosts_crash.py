"""A short run of the random faults of several hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recovery import hosts_crash
from tests.support.seeds import seed_of


@pytest.mark.stress
def test_hosts_with_random_faults_equal_the_source(tmp_path: Path) -> None:
    rows = hosts_crash.run(tmp_path, hosts=2, jobs=4, kills=10, seed=seed_of(), lease_s=4, rebalance_s=2)
    assert rows > 100


def test_summary_of_faults_has_a_line_for_each_kind() -> None:
    faults = [
        hosts_crash.Fault("host killed", "a", seconds=8.0),
        hosts_crash.Fault("host killed", "b", seconds=12.0),
        hosts_crash.Fault("store cut", "c", seconds=30.0, is_alone=False),
    ]
    assert hosts_crash.summary(faults) == [
        "host killed: 2, median 10.0 s, at most 12.0 s",
        "during another fault: 1, at most 30.0 s",
    ]
