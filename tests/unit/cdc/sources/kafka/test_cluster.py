"""Answers of brokers that are asked again, because a leader has just changed."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec

from cdc.errors import SourceUnavailable
from cdc.sources.kafka import cluster as module
from cdc.sources.kafka.cluster import Cluster, KafkaSettings


class Brokers:
    """An AdminClient whose first answer for offsets is an error."""

    def __init__(self, code):
        self.code, self.calls = code, 0

    def list_offsets(self, asked, **_):
        self.calls += 1
        answer = Future()
        if self.calls == 1:
            answer.set_exception(KafkaException(KafkaError(self.code)))
        else:
            answer.set_result(SimpleNamespace(offset=7))
        return dict.fromkeys(asked, answer)

    def poll(self, _):
        return 0


def cluster_of(brokers):
    cluster = Cluster(KafkaSettings(("localhost:1",), ("orders",), "test"))
    cluster._admin = brokers
    return cluster


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    ],
)
def test_ends_while_leader_changes_are_asked_again(monkeypatch, code):
    monkeypatch.setattr(module, "_RETRY_S", 0)
    brokers = Brokers(code)
    assert cluster_of(brokers).ends([("orders", 0)]) == {("orders", 0): 7}
    assert brokers.calls == 2


def test_ends_after_another_error_are_not_asked_again():
    brokers = Brokers(KafkaError.UNKNOWN)
    with pytest.raises(SourceUnavailable):
        cluster_of(brokers).ends([("orders", 0)])
    assert brokers.calls == 1


class GrowingLog:
    """An AdminClient. Between two requests a message arrives, which is older than the requested time."""

    def __init__(self):
        self.end = 5

    def list_offsets(self, asked, **_):
        ((partition, spec),) = asked.items()
        answer = Future()
        answer.set_result(SimpleNamespace(offset=self.end if spec._value == OffsetSpec.latest()._value else -1))
        self.end += 1
        return {partition: answer}


def test_offsets_at_message_written_meanwhile_is_not_skipped():
    assert cluster_of(GrowingLog()).offsets_at([("orders", 0)], 1_700_000_000_000) == {("orders", 0): 5}
