"""A short run of the kills of a job with a Kafka source."""

from __future__ import annotations

from tests.recovery import kafka_crash
from tests.support.seeds import seed_of


def test_kafka_job_two_kills_equals_the_sent_rows(kafka, tmp_path):
    assert kafka_crash.run(tmp_path, kafka, kills=2, seed=seed_of(), source_format="canal") > 50
