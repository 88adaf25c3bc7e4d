"""``cdc check`` of a job file whose job exists already."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cdc.checks.saved_job import committed_job_findings, saved_job_findings
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


@pytest.mark.parametrize("is_known", [True, False])
def test_committed_job_findings_reports_commits_of_an_unknown_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    closed: list[bool] = []
    mark = SimpleNamespace(checkpoint=4) if is_known else None
    sink = SimpleNamespace(last_checkpoint=lambda job: mark if job == "shop" else None)
    components = SimpleNamespace(sink=sink, close=lambda: closed.append(True))
    monkeypatch.setattr("cdc.checks.saved_job.build", lambda config, limit: components)
    findings = committed_job_findings(load_config(write_job(tmp_path, JOB)))
    assert [one.fatal for one in findings] == [True] * is_known and closed == [True]
    assert all("checkpoint 4 of a job shop" in one.problem and "--adopt" in one.hint for one in findings)


def test_committed_job_findings_reports_a_position_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = SimpleNamespace(last_checkpoint=lambda job: None, has_written=lambda job: job == "shop")
    components = SimpleNamespace(sink=sink, close=lambda: None)
    monkeypatch.setattr("cdc.checks.saved_job.build", lambda config, limit: components)
    (finding,) = committed_job_findings(load_config(write_job(tmp_path, JOB)))
    assert finding.fatal and "so was the position" in finding.problem and "start: snapshot" in finding.hint
