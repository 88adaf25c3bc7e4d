"""A compacted topic on a real broker: a job that was stopped finds tombstones without their delete events."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.emulators.kafka import until
from tests.support.kafka_jobs import PARTITIONS, Job, ends_of, is_caught_up
from tests.support.kafka_shop import DebeziumRows

COMPACTED = {"cleanup_policy": "compact", "segment_ms": "100", "min_cleanable_dirty_ratio": "0.01"}
ROW = {"note": "n", "amount": 1.5}


@pytest.fixture
def compacted(kafka, topic, tmp_path):
    """Return a function that creates the topic and a job, which is killed at the end."""
    jobs = []

    def start(source):
        kafka.create(topic, PARTITIONS, **COMPACTED)
        jobs.append(Job(tmp_path, kafka, topic, source))
        return jobs[0]

    yield start
    for job in jobs:
        job.process.__exit__()


def send(kafka, topic, form, messages):
    for key, value in messages:
        text = None if value is None else json.dumps(value)
        kafka.send(topic, text, key=json.dumps(form.key(key)).encode())


def values_of(kafka, topic, key):
    """Return the values of all messages with a key in partition 0."""
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "values"})
    end = consumer.get_watermark_offsets(TopicPartition(topic, 0))[1]
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found, at = [], 0
    while at < end:
        message = consumer.poll(30)
        assert message is not None and message.error() is None
        at = message.offset() + 1
        if message.key() == key:
            found.append(message.value())
    consumer.close()
    return found


@pytest.mark.parametrize("read", ["driver", "executors"])
def test_delete_whose_event_was_compacted_leaves_the_target(kafka, topic, compacted, read):
    form = DebeziumRows(True)
    job = compacted(f"format: debezium-json\nread: {read}")
    for key in (1, 2, 3):
        send(kafka, topic, form, form.upsert(key, None, ROW))
    found = job.cdc("check", job.file)
    assert "is compacted, and keeps deletes for 24.0 hours (`delete.retention.ms` is 86400000)" in found
    job.process.start()
    job.process.wait_for("a commit", is_caught_up(ends_of(kafka, topic)), 240)
    assert {*job.table("note")} == {1, 2, 3}
    job.process.kill()
    send(kafka, topic, form, form.delete(1, ROW))

    def is_compacted():
        send(kafka, topic, form, form.upsert(3, ROW, ROW))  # begins a segment; the newest one is never compacted
        return values_of(kafka, topic, json.dumps(form.key(1)).encode()) == [None]

    until(is_compacted, 120)
    job.process.start()
    job.process.wait_for("the end", is_caught_up(ends_of(kafka, topic)), 240)
    assert {*job.table("note")} == {2, 3}
