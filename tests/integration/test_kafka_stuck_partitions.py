"""Partitions that make no progress while others do are in the status: open transactions, and a lost leader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from cdc.model.kafka_position import KafkaPosition, PartitionOffset
from cdc.sources.kafka.cluster import Cluster
from cdc.sources.kafka.range_planner import ExecutorReads
from cdc.sources.kafka.receiver import KafkaReceiver
from tests.emulators.kafka import KafkaBroker
from tests.support.kafka_ranges import Tables, next_range, read
from tests.support.kafka_receivers import RowsOfTests, receiver_of, row, rows, settings, start_at
from tests.support.limits import HANG_S
from tests.support.receiving import Collector, Mapped, until

SHOP = Mapped("shop")
Open = Callable[..., KafkaReceiver]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Open receivers, and close them afterwards."""
    receivers = []

    def open_(broker: KafkaBroker, topic: str, start: KafkaPosition | None = None, **options: Any) -> KafkaReceiver:
        receiver = receiver_of(broker, SHOP, topic, **options)
        receivers.append(receiver)
        receiver.open(start or start_at(broker, topic), (), 0)
        return receiver

    yield open_
    for receiver in receivers:
        receiver.close()


def open_transaction(kafka: KafkaBroker, topic: str, *values: str) -> Producer:
    """Return a producer with an open transaction, whose messages the broker has."""
    producer = kafka.producer(transactional_id=topic)
    producer.init_transactions()
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(60) == 0
    return producer


@pytest.mark.parametrize("is_planned", [False, True])
def test_open_transaction_is_lag_and_a_warning(kafka: KafkaBroker, topic: str, opened: Open, is_planned: bool) -> None:
    kafka.create(topic)
    kafka.send(topic, *rows(1, 2))
    producer = open_transaction(kafka, topic, *rows(3))
    kafka.send(topic, *rows(4, 5))  # these wait too
    with Cluster(settings(kafka, topic)) as cluster:
        assert cluster.ends([(topic, 0)]) == {(topic, 0): 2} and cluster.written([(topic, 0)]) == {(topic, 0): 5}
    executors = ExecutorReads(RowsOfTests, Tables("shop")) if is_planned else None
    receiver = opened(kafka, topic, transaction_s=0.0, executors=executors)
    if is_planned:
        planned = next_range(receiver)
        executed = receiver.complete(planned, read(receiver, planned)[1])
        assert executed is not None
        receiver.ack(executed.batch.last)
    else:
        collected = Collector(receiver, acks=True).collect_rows(2)
        assert collected.values() == [1, 2]
    warning = until(lambda: receiver.status().warning, HANG_S)
    assert warning.context["partition"] == 0 and warning.context["offset"] == 2 and warning.context["messages"] == 3
    assert "a transaction of a producer is open" in warning.message and "find-hanging" in warning.hint
    status = receiver.status()
    assert [(one.next, one.end) for one in status.partitions] == [(2, 5)]
    assert until(lambda: receiver.status().held_s, HANG_S) > 0
    if is_planned:
        producer.abort_transaction()
        planned = next_range(receiver)
        assert [one["key"] for one in read(receiver, planned)[0]] == [4, 5]
    else:
        producer.commit_transaction()
        assert Collector(receiver, acks=True).collect_rows(3).values() == [3, 4, 5]
    until(lambda: receiver.status().warning is None and not receiver.status().held_s, HANG_S)


def test_short_transaction_is_no_warning(kafka: KafkaBroker, topic: str, opened: Open) -> None:
    kafka.create(topic)
    open_transaction(kafka, topic, *rows(1))
    receiver = opened(kafka, topic, transaction_s=HANG_S)
    until(lambda: receiver.status().held_s, HANG_S)
    assert receiver.status().warning is None and receiver.status().is_connected


def test_position_after_an_open_transaction_is_not_lost(kafka: KafkaBroker, topic: str, opened: Open) -> None:
    kafka.create(topic)
    producer = open_transaction(kafka, topic, *rows(1, 2))
    start = start_at(kafka, topic)
    # the job has read the uncommitted messages before its `isolation` was changed
    saved = KafkaPosition.of(start.cluster, start.ids, {(topic, 0): PartitionOffset(2)})
    receiver = opened(kafka, topic, saved)
    producer.commit_transaction()
    kafka.send(topic, *rows(3))
    assert Collector(receiver).collect_rows(1).values() == [3]


@pytest.fixture
def nodes(kafka_jars: Path, tmp_path: Path) -> Iterator[list[KafkaBroker]]:
    """Two nodes; the first one has the controller."""
    with KafkaBroker(kafka_jars, tmp_path / "1") as first, KafkaBroker(kafka_jars, tmp_path / "2", first, 2) as second:
        yield [first, second]


def test_partition_without_leader_is_a_warning_and_others_are_read(nodes: list[KafkaBroker], opened: Open) -> None:
    first, second = nodes
    first.admin.create_topics([NewTopic("orders", 2, replica_assignment=[[1], [2]])])["orders"].result(60)
    until(lambda: first.partitions("orders") == [0, 1], HANG_S)
    first.send("orders", *rows(1))
    second.send("orders", *rows(2), partition=1)
    driver = opened(first, "orders")
    planning = opened(first, "orders", executors=ExecutorReads(RowsOfTests, Tables("shop")))
    collector = Collector(driver, acks=True).collect_rows(2).collect_to_end()
    second.stop()
    for receiver in (driver, planning):
        warning = until(lambda receiver=receiver: receiver.status().warning, HANG_S)
        assert "1 of 2 partitions cannot be read: orders[1] has no leader" in warning.message
        assert not receiver.status().is_connected
    number = 10

    def is_stable() -> bool:
        """Send and read the other partition. Return whether the warning remained meanwhile."""
        nonlocal number
        number += 1
        first.send("orders", row(number))
        collector.collect(lambda one: number in one.values())
        assert not driver.status().is_at_end
        return driver.status().warning is not None

    assert all(is_stable() for _ in range(5))
    planned = next_range(planning)
    assert {one for one, end in planned.last.offsets.items() if end.next > 0} == {("orders", 0)}
    second.launch()
    until(lambda: driver.status().warning is None and planning.status().warning is None, HANG_S)
    second.send("orders", *rows(3), partition=1)
    collector.collect(lambda one: 3 in one.values())
    until(lambda: driver.status().is_at_end and driver.status().is_connected, HANG_S)
