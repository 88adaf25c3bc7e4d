"""A job that is killed at random moments, into Doris or StarRocks with their faults on, loses and doubles nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recovery import cluster_kills
from tests.seeds import seed_of
from tests.servers.doris import cases as doris
from tests.servers.starrocks import cases as starrocks

SINKS = {
    "doris": (doris.stand_in, "  type: doris\n  two_phase_commit: true\n"),
    "doris plain": (doris.stand_in, "  type: doris\n  two_phase_commit: false\n"),
    "starrocks": (starrocks.stand_in, "  type: starrocks\n  multi_table: off\n"),
    "starrocks multi": (starrocks.stand_in, "  type: starrocks\n  multi_table: on\n"),
}


@pytest.mark.stress  # an hour: make stress-long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("sink", SINKS)
def test_a_hundred_kills_with_faults_on_leave_source_and_target_equal(tmp_path: Path, sink: str) -> None:
    make, text = SINKS[sink]
    with make(backends=2) as cluster:
        cluster_kills.run(tmp_path, cluster, text, kills=100, seed=seed_of())
