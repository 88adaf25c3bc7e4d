"""Access that the brokers refuse, on a real broker with rules for topics and groups: each is named, with a hint."""

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from cdc.errors import SourceActionRequired
from cdc.sources.kafka.cluster import Cluster, KafkaSettings
from cdc.sources.kafka.receiver import KafkaReceiver
from tests.emulators.kafka import PASSWORD, USER
from tests.support.kafka_receivers import RowsOfTests, rows, start_at
from tests.support.receiving import Collector, Mapped, until

LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER}


def settings_of(broker, topic, **options):
    properties = {**LOGIN, "sasl.password": PASSWORD}
    return KafkaSettings((broker.sasl_address,), (topic,), topic, properties=properties, **options)


@pytest.fixture
def opened(kafka, topic):
    """Open a receiver that logs in, and close it afterwards."""
    receivers = []

    def open_(**options):
        receivers.append(KafkaReceiver(settings_of(kafka, topic, **options), RowsOfTests(), Mapped("shop")))
        receivers[0].open(start_at(kafka, topic), (), 0)
        return receivers[0]

    yield open_
    for receiver in receivers:
        receiver.close()


def is_named(error, topic):
    return error.context["topic"] == topic and "authorization failed" in error.message.lower() and "Read" in error.hint


def test_topic_without_describe_is_named(kafka, topic):
    kafka.create(topic)
    kafka.allow(topic, "another", AclOperation.READ)
    with Cluster(settings_of(kafka, topic)) as cluster, pytest.raises(SourceActionRequired) as refused:
        cluster.topics()
    assert is_named(refused.value, topic) and PASSWORD not in str(refused.value)


def test_topic_without_read_pauses_the_job_and_is_named(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(1))
    kafka.allow(topic, USER, AclOperation.DESCRIBE)
    receiver = opened()
    with pytest.raises(SourceActionRequired) as refused:
        Collector(receiver).collect(lambda _: False)
    assert is_named(refused.value, topic)
    kafka.allow(topic, USER, AclOperation.READ)
    receiver.rollback(start_at(kafka, topic))
    assert Collector(receiver).collect_rows(1).values() == [1]


def test_group_without_read_does_not_stop_the_job(kafka, topic, opened):
    kafka.create(topic)
    kafka.send(topic, *rows(1))
    kafka.allow(topic, "another", AclOperation.READ, kind=ResourceType.GROUP)
    receiver = opened(reports=True)
    receiver.ack(Collector(receiver).collect_rows(1).batches[-1].last)
    until(lambda: receiver.status().warning is not None)
    assert "authorization failed" in receiver.status().warning.message.lower()
    assert topic in receiver.status().warning.message
    kafka.send(topic, *rows(2))
    assert Collector(receiver).collect_rows(1).values() == [2]
