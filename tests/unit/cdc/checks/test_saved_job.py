"""``cdc check`` of a job file whose job exists already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cdc.checks.saved_job import saved_job_findings
from cdc.config.models import load_config
from cdc.job.compatibility import build_identity
from cdc.state.base import JobRecord, JobState
from tests.support.job_files import JOB, with_change, write_job


def record_of(folder: Path) -> JobRecord:
    config = load_config(write_job(folder, JOB))
    return JobRecord(
        config.name, "0badcafe", 1, JobState.PENDING, str(folder / "shop.yaml"), identity=build_identity(config)
    )


def test_saved_job_findings_unchanged_file_has_none(tmp_path: Path) -> None:
    assert saved_job_findings(record_of(tmp_path), load_config(write_job(tmp_path, JOB))) == ()


@pytest.mark.parametrize(
    ("state", "expected"), [(JobState.CANCELLED, "was cancelled"), (JobState.DONE, "has read its source to the end")]
)
def test_saved_job_findings_ended_job_is_refused(tmp_path: Path, state: JobState, expected: str) -> None:
    ended = replace(record_of(tmp_path), state=state)
    (finding,) = saved_job_findings(ended, load_config(write_job(tmp_path, JOB)))
    assert finding.fatal and expected in finding.problem and "--forget" in finding.hint


def test_saved_job_findings_other_target_is_refused(tmp_path: Path) -> None:
    record = record_of(tmp_path)
    changed = load_config(write_job(tmp_path, with_change("target: ods.orders", "target: ods.other")))
    (finding,) = saved_job_findings(record, changed)
    assert finding.fatal and "was ods.orders, is ods.other" in finding.problem and finding.hint
