"""The key ``verify`` of a job file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.config.models import load_config
from cdc.config.verify_models import Verify, share
from tests.support.job_files import JOB, issues_of, write_job


def test_verify_is_off_by_default(tmp_path: Path) -> None:
    assert load_config(write_job(tmp_path, JOB)).verify == Verify(every=None, sample="100%", repair=False, hide=())


def test_verify_reads_interval_and_share(tmp_path: Path) -> None:
    text = JOB + "verify: {every: 24h, sample: 1%, repair: true, hide: [email]}\n"
    found = load_config(write_job(tmp_path, text)).verify
    assert (found.every, found.sample, found.repair, found.hide) == (86400.0, 0.01, True, ("email",))


@pytest.mark.parametrize("text", ["0%", "101%", "-1%", "0.5", "half", "1"])
def test_verify_share_that_is_no_percentage_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="percentage"):
        share(text)
    assert "percentage" in issues_of(tmp_path, f"{JOB}verify: {{sample: {text}}}\n")[0]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('{type: canal, servers: ["127.0.0.1:11111"], destination: shop}', "needs `source.mysql`"),
        ('{type: kafka, brokers: ["127.0.0.1:9092"], format: canal-json, topics: [shop]}', "no tables"),
    ],
)
def test_schedule_without_tables_in_the_source_is_refused(tmp_path: Path, source: str, words: str) -> None:
    line = next(one for one in JOB.splitlines() if one.startswith("source"))
    text = JOB.replace(line, f"source: {source}")
    load_config(write_job(tmp_path, text))
    assert any(words in issue for issue in issues_of(tmp_path, text + "verify: {every: 24h}\n"))
