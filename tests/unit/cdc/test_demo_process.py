"""The job of a demonstration as a child process."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.demo.process import JobProcess


def test_job_of_a_demonstration_uses_no_store_and_no_host_of_its_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDC_STORE", "mysql://cdc@db.example/cdc_state")
    monkeypatch.setenv("CDC_URL", "https://cdc.example:8480")
    with JobProcess(tmp_path / "job.yaml", home=tmp_path, port=1) as job:
        assert not {"CDC_STORE", "CDC_URL"} & job.environment.keys()
        assert job.environment["CDC_HOME"] == str(tmp_path)
