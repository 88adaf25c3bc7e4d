"""One run of ``make verify-runs``: faults are found and repaired while the source is written and the job is killed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.soak.verify_runs import HOT, ROWS, draw_faults, run
from tests.support.seeds import seed_of


def test_faults_are_in_different_rows_that_nothing_changes() -> None:
    faults = draw_faults(random.Random(1), 500, ROWS)
    assert {fault.kind for fault in faults} == {"missing", "extra", "different"}
    assert len({fault.row for fault in faults}) == 500 and all(HOT < fault.row <= ROWS for fault in faults)


def test_verification_under_load_is_killed_and_repairs_each_row_once(tmp_path: Path) -> None:
    """The other sinks are in ``tests/integration/test_verify.py`` and ``test_verify_clusters.py``, without kills."""
    assert run(tmp_path, "doris", runs=1, seed=1, kills=1, per_s=200) > 0


@pytest.mark.stress  # takes hours: make verify-runs
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("sink", ["delta", "doris", "starrocks"])
def test_hundred_verifications_under_load_have_no_false_alarm(tmp_path: Path, sink: str) -> None:
    run(tmp_path, sink, runs=100, seed=seed_of())


@pytest.mark.stress
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("sink", ["delta", "doris", "starrocks"])
def test_verification_that_is_killed_repairs_each_row_once(tmp_path: Path, sink: str) -> None:
    run(tmp_path, sink, runs=20, seed=seed_of(), kills=3)
