"""Findings of `cdc check` about topics, without a broker."""

from __future__ import annotations

import pytest

from cdc.checks.kafka import _retention
from cdc.sources.kafka.cluster import Retention, Topic, Topics

HOUR_MS = 3_600_000


class ClusterOfTests:
    def __init__(self, found):
        self._found = found

    def retention(self, topic):
        return self._found


@pytest.mark.parametrize(
    ("found", "texts"),
    [
        (Retention(None, None), []),
        (Retention(48 * HOUR_MS, None), []),
        (Retention(6 * HOUR_MS, None), ["keeps messages for 6.0 hours"]),
        (Retention(None, 24 * HOUR_MS), ["keeps deletes for 24.0 hours (`delete.retention.ms` is 86400000)"]),
        (Retention(HOUR_MS, 0), ["keeps messages for 1.0 hours", "keeps deletes for 0.0 hours"]),
    ],
)
def test_retention_of_a_topic_is_shown_if_it_can_lose_changes(found, texts):
    findings = [*_retention(ClusterOfTests(found), Topics("c", {"t": Topic("id", (0,))}))]
    assert [text in one.problem for one, text in zip(findings, texts, strict=True)] == [True] * len(texts)
    assert not any(one.fatal for one in findings)
