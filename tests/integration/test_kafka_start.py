"""Start positions of a Kafka job on a real broker: each kind becomes numbers for every partition."""

import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from cdc.errors import ConfigError, SourceActionRequired, SourceUnavailable
from cdc.sources.kafka.cluster import Cluster, KafkaSettings
from cdc.sources.kafka.start import KafkaStart, resolve
from tests.emulators.kafka import PASSWORD, USER, KafkaBroker, create_certificate


@pytest.fixture
def ask(kafka):
    """Resolve a start in topics, as offsets by topic and partition."""

    def ask(start, *topics, **settings):
        with Cluster(KafkaSettings((kafka.address,), topics, "test", **settings)) as cluster:
            return resolve(cluster, start)

    return ask


def numbers(position):
    return {partition: one.next for partition, one in position.offsets.items()}


def test_start_words_give_numbers_also_for_empty_partitions(kafka, topic, ask):
    kafka.create(topic, 3)
    kafka.send(topic, "a", "b", "c", partition=0)
    kafka.send(topic, "d", partition=1)
    kafka.delete_records(topic, 0, 2)
    earliest, latest = ask(KafkaStart("earliest"), topic), ask(KafkaStart("latest"), topic)
    assert numbers(earliest) == {(topic, 0): 2, (topic, 1): 0, (topic, 2): 0}
    assert numbers(latest) == {(topic, 0): 3, (topic, 1): 1, (topic, 2): 0}
    assert earliest.cluster and earliest.ids[topic] and latest.reached(earliest)


def test_start_at_a_time_is_the_first_message_after_it_or_the_end(kafka, topic, ask):
    kafka.create(topic, 2, retention_ms="-1")  # else the broker deletes messages of 2001
    producer = kafka.producer()
    for at in (1_000_000_000_000, 1_000_000_001_000, 1_000_000_002_000):
        producer.produce(topic, "x", partition=0, timestamp=at)
    producer.flush()
    assert numbers(ask(KafkaStart(time_ms=1_000_000_000_001), topic)) == {(topic, 0): 1, (topic, 1): 0}
    assert numbers(ask(KafkaStart(time_ms=int(time.time() * 1000) + 10**6), topic)) == {(topic, 0): 3, (topic, 1): 0}


def test_start_at_offsets_must_name_every_partition_inside_its_log(kafka, topic, ask):
    kafka.create(topic, 2)
    kafka.send(topic, "a", "b")
    assert numbers(ask(KafkaStart(offsets={topic: {0: 1, 1: 0}}), topic)) == {(topic, 0): 1, (topic, 1): 0}
    for offsets, reason in (
        ({topic: {0: 1}}, r"\[1\] has none"),
        ({topic: {0: 1, 1: 0, 2: 0}}, r"\[2\] does not exist"),
        ({topic: {0: 3, 1: 0}}, "which has 0 to 2"),
    ):
        with pytest.raises(ConfigError, match=reason):
            ask(KafkaStart(offsets=offsets), topic)


def test_start_at_a_group_uses_its_offsets_and_needs_all(kafka, topic, ask):
    kafka.create(topic, 2)
    kafka.send(topic, "a", "b")
    group = Consumer({"bootstrap.servers": kafka.address, "group.id": topic})
    group.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    with pytest.raises(ConfigError, match=r"no committed offset in .*\[1\]"):
        ask(KafkaStart(group=topic), topic)
    group.commit(offsets=[TopicPartition(topic, 1, 0)], asynchronous=False)
    group.close()
    assert numbers(ask(KafkaStart(group=topic), topic)) == {(topic, 0): 1, (topic, 1): 0}


def test_start_at_an_unknown_topic_does_not_create_it(kafka_jars, tmp_path):
    with KafkaBroker(kafka_jars, tmp_path / "kafka", creates=True) as broker:
        with (
            pytest.raises(ConfigError, match=r"no topic shop\.order"),
            Cluster(KafkaSettings((broker.address,), ("shop.order",), "test")) as cluster,
        ):
            resolve(cluster, KafkaStart("earliest"))
        time.sleep(1.0)  # the broker creates a topic after its answer
        assert "shop.order" not in broker.admin.list_topics(timeout=30).topics


def test_start_with_patterns_finds_topics_and_names_missing_ones(kafka, topic, ask):
    for name in ("a", "b"):
        kafka.create(f"{topic}.{name}")
    assert {one[0] for one in numbers(ask(KafkaStart("earliest"), f"{topic}.*"))} == {f"{topic}.a", f"{topic}.b"}
    with pytest.raises(ConfigError, match=f"no topic {topic}.z"):
        ask(KafkaStart("earliest"), f"{topic}.a", f"{topic}.z")


def test_cluster_names_a_wrong_password_an_unknown_property_and_a_dead_broker(kafka, topic):
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER}
    kafka.create(topic)

    def ask(address, properties, timeout_s=60):
        settings = KafkaSettings((address,), (topic,), "test", properties=properties)
        with Cluster(settings, timeout_s=timeout_s) as cluster:
            return cluster.topics()

    assert topic in ask(kafka.sasl_address, {**login, "sasl.password": PASSWORD}).topics
    with pytest.raises(SourceActionRequired, match="Invalid username or password"):
        ask(kafka.sasl_address, {**login, "sasl.password": "wrong"})
    with pytest.raises(ConfigError, match=r"foo\.bar"):
        ask(kafka.address, {"foo.bar": "1"})
    with pytest.raises(SourceUnavailable, match="refused"):
        ask("127.0.0.1:1", {}, timeout_s=5)


def test_cluster_names_a_wrong_certificate_and_a_wrong_scram_password(kafka, topic, tmp_path):
    kafka.create(topic)
    kafka.add_scram_user()
    login = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": USER}
    right = {**login, "sasl.password": PASSWORD, "ssl.ca.location": str(kafka.certificate)}

    def ask(properties):
        with Cluster(KafkaSettings((kafka.tls_address,), (topic,), "test", properties=properties), timeout_s=60) as it:
            return it.topics()

    assert topic in ask(right).topics
    with pytest.raises(SourceActionRequired, match=r"(?i)authentication failed") as refused:
        ask({**right, "sasl.password": "wr0ng-one"})
    assert "wr0ng-one" not in str(refused.value)
    other = create_certificate(tmp_path, "other")
    with pytest.raises(SourceActionRequired, match="certificate verify failed"):
        ask({**right, "ssl.ca.location": str(other)})
