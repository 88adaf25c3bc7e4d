"""The key ``alerts`` of a job file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.config.models import load_config
from tests.support.job_files import JOB, issues_of, write_job

URL = "https://hooks.example.com/T0/secret-part"


def test_alerts_are_off_by_default(tmp_path: Path) -> None:
    assert load_config(write_job(tmp_path, JOB)).alerts is None


def test_alerts_have_defaults_and_a_secret_url(tmp_path: Path) -> None:
    config = load_config(write_job(tmp_path, f"{JOB}alerts: {{webhook: '{URL}'}}\n"))
    assert config.alerts is not None and URL in config.secrets() and "secret-part" not in repr(config)
    assert (config.alerts.events, config.alerts.lag_threshold) == (("paused", "lag", "moved"), 60.0)
    text = f"{JOB}alerts: {{webhook: '{URL}', events: [lag], lag_threshold: 5m}}\n"
    config = load_config(write_job(tmp_path, text))
    assert config.alerts is not None and (config.alerts.events, config.alerts.lag_threshold) == (("lag",), 300.0)


@pytest.mark.parametrize(
    "url", ["ftp://h/secret-part", "file:///secret-part", "secret-part", "http://", "http:///secret-part",
            "http://[::1/secret-part", "http://h:0/secret-part", "http://h/secret-part a", "http://h/secret-part\\\\a"]
)  # fmt: skip
def test_alerts_url_that_is_not_http_is_refused_and_not_shown(tmp_path: Path, url: str) -> None:
    (issue,) = issues_of(tmp_path, f'{JOB}alerts: {{webhook: "{url}"}}\n')
    assert "http:// or https://" in issue and "secret-part" not in issue


def test_alerts_unknown_or_no_event_is_refused(tmp_path: Path) -> None:
    for events in ("[]", "[paused, moon]"):
        assert issues_of(tmp_path, f"{JOB}alerts: {{webhook: '{URL}', events: {events}}}\n")
