"""The Spark session of a job: its settings, and its start before the other parts of a driver."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.config.models import Config, load_config
from cdc.job.spark_start import remote_of, sessions_of, started_early
from cdc.state.base import JobRecord, JobState, ResumeKind
from spark.connect_server import SPARK_CONNECT
from spark.session import SessionHolder
from tests.support.job_files import JOB, with_change, write_job

RECORD = JobRecord("shop", "0badcafe", 1, JobState.RUNNING, "/shop.yaml")
PAUSED = replace(RECORD, state=JobState.PAUSED, resume=ResumeKind.MANUAL)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setenv("CDC_HOME", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return load_config(write_job(tmp_path, JOB))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(SessionHolder, "warm_up", lambda _: found.append("start"))
    monkeypatch.setattr(SessionHolder, "close", lambda _: found.append("close"))
    return found


@pytest.mark.parametrize(
    ("record", "resumes"),
    [
        (None, False),
        (RECORD, False),
        (replace(PAUSED, resume=ResumeKind.AUTOMATIC), False),
        (PAUSED, True),
    ],
    ids=["new", "running", "retries", "resumed"],
)
def test_started_early_job_that_runs_starts_and_closes_session(
    config: Config, calls: list[str], record: JobRecord | None, resumes: bool
) -> None:
    with pytest.raises(KeyError), started_early(config, record, resumes=resumes) as sessions:
        assert sessions is not None and calls == ["start"]
        raise KeyError
    assert calls == ["start", "close"]


@pytest.mark.parametrize(
    "record",
    [PAUSED, replace(RECORD, state=JobState.CANCELLED), replace(RECORD, state=JobState.DONE)],
    ids=["paused", "cancelled", "done"],
)
def test_started_early_job_that_does_not_run_starts_nothing(
    config: Config, calls: list[str], record: JobRecord
) -> None:
    with started_early(config, record, resumes=False) as sessions:
        assert sessions is None
    assert calls == []


def test_started_early_without_a_folder_leaves_the_error_to_the_job(
    config: Config, calls: list[str], tmp_path: Path
) -> None:
    (tmp_path / "jobs").write_bytes(b"")
    with started_early(config, None, resumes=False) as sessions:
        assert sessions is None
    assert calls == []


@pytest.mark.parametrize("options", ["", ", columns: {id: id}", ", filter: id > 1"])
def test_sessions_of_generates_code_only_for_expressions(tmp_path: Path, options: str) -> None:
    job = with_change("target: ods.orders}", f"target: ods.orders{options}}}")
    conf = sessions_of(load_config(write_job(tmp_path, job)))._build[2]
    assert ("spark.sql.codegen.wholeStage" in conf) is not bool(options)


def test_is_same_other_settings_is_false(config: Config) -> None:
    slower = config.model_copy(update={"spark": config.spark.model_copy(update={"master": "local[1]"})})
    assert sessions_of(config).is_same(sessions_of(config))
    assert not sessions_of(config).is_same(sessions_of(slower))


def test_job_without_spark_of_its_own_uses_the_one_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"": "/home/spark", "spark: {master: 'local[2]'}": None, "spark: {remote: 'sc://b:1'}": "sc://b:1"}
    for text, expected in keys.items():
        config = load_config(write_job(tmp_path, f"{JOB}{text}\n"))
        monkeypatch.setenv(SPARK_CONNECT, "/home/spark")
        assert remote_of(config.spark) == expected and sessions_of(config).is_remote is (expected is not None)
        monkeypatch.delenv(SPARK_CONNECT)
        assert remote_of(config.spark) == config.spark.remote
