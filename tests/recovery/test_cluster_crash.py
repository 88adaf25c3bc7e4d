"""A job into Doris or StarRocks with faults, killed at random moments, keeps every row once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulators.doris import cases as doris
from tests.emulators.starrocks import cases as starrocks
from tests.recovery import cluster_crash
from tests.support.seeds import seed_of

SINKS = {
    "doris": (doris.emulator, "  type: doris\n  two_phase_commit: true\n"),
    "doris plain": (doris.emulator, "  type: doris\n  two_phase_commit: false\n"),
    "starrocks": (starrocks.emulator, "  type: starrocks\n  multi_table: off\n"),
    "starrocks multi": (starrocks.emulator, "  type: starrocks\n  multi_table: on\n"),
}


@pytest.mark.stress  # takes an hour: make stress-long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("sink", SINKS)
def test_cluster_job_hundred_kills_with_faults_equals_source(tmp_path: Path, sink: str) -> None:
    make, text = SINKS[sink]
    with make(backends=2) as cluster:
        cluster_crash.run(tmp_path, cluster, text, kills=100, seed=seed_of())
