"""Three brokers on one machine: the leader of a partition is killed while messages are read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import NewTopic

from cdc.model.kafka_position import KafkaPosition
from cdc.sources.kafka.range_planner import ExecutorReads
from cdc.sources.kafka.receiver import KafkaReceiver
from tests.emulators.kafka import KafkaBroker
from tests.support.kafka_ranges import Tables, next_range, read
from tests.support.kafka_receivers import RowsOfTests, receiver_of, row, start_at
from tests.support.limits import HANG_S
from tests.support.receiving import Collector, Mapped, until

SHOP = Mapped("shop")


@pytest.fixture
def nodes(kafka_jars: Path, tmp_path: Path) -> Iterator[list[KafkaBroker]]:
    """Three nodes; the first one has the controller."""
    with ExitStack() as stack:
        first = stack.enter_context(KafkaBroker(kafka_jars, tmp_path / "1"))
        others = [KafkaBroker(kafka_jars, tmp_path / str(node), first, node) for node in (2, 3)]
        yield [first, *(stack.enter_context(one) for one in others)]


@pytest.fixture(autouse=True)
def patient_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job opens its receiver again if no leader is elected in time, or if ``get`` reports that the brokers do not
    answer; these tests do not.
    """
    monkeypatch.setattr("cdc.sources.kafka.stream._ASK_S", HANG_S)


def patient_receiver(broker: KafkaBroker, **options: Any) -> KafkaReceiver:
    """Return a receiver of topic ``orders`` that waits for a leader, however slow the machine is."""
    return receiver_of(broker, SHOP, "orders", timeout_s=HANG_S, **options)


def leader_of(node: KafkaBroker, topic: str) -> int:
    """Return the node that leads partition 0; -1: none."""
    found = node.admin.list_topics(timeout=30).topics.get(topic)
    return found.partitions[0].leader if found is not None and found.partitions else -1


def offset_of(position: KafkaPosition) -> int:
    """Return the next offset of the only partition."""
    (offset,) = position.offsets.values()
    return offset.next


def rows_of_ranges(receiver: KafkaReceiver, count: int) -> list[int]:
    """Return the ids of the next ranges with ``count`` rows together; each range must be read to its end."""
    found: list[int] = []
    while len(found) < count:
        planned = next_range(receiver)
        rows, positions = read(receiver, planned)
        assert "ended" not in positions[0], positions
        assert len(rows) == planned.entries, "no message is missing in this topic"
        found += [one["key"] for one in rows]
        executed = receiver.complete(planned, positions)
        assert executed is not None
        receiver.ack(executed.batch.last)
    return found


def test_killed_leader_delays_readers_and_loses_no_message(nodes: list[KafkaBroker]) -> None:
    first, leader, _ = nodes
    topic = NewTopic("orders", 1, replica_assignment=[[2, 3, 1]], config={"min.insync.replicas": "2"})
    first.admin.create_topics([topic])["orders"].result(60)
    until(lambda: leader_of(first, "orders") == 2)
    producer = first.producer(acks="all", enable_idempotence=True)

    def send(begin: int, end: int) -> None:
        for number in range(begin, end):
            producer.produce("orders", row(number), partition=0)
        assert producer.flush(120) == 0

    send(0, 100)
    driver = patient_receiver(first)
    driver.open(start_at(first, "orders"), (), 0)
    executors = patient_receiver(first, executors=ExecutorReads(RowsOfTests, Tables("shop")))
    executors.open(start_at(first, "orders"), (), 0)
    try:
        collector = Collector(driver).collect_rows(100)
        assert rows_of_ranges(executors, 100) == list(range(100))
        sender = threading.Thread(target=send, args=(100, 200))
        leader.kill()
        sender.start()
        assert collector.collect_rows(200).values() == list(range(200))
        sender.join()
        assert rows_of_ranges(executors, 100) == list(range(100, 200))
    finally:
        driver.close()
        executors.close()


def test_later_leader_after_control_record_is_no_truncation(nodes: list[KafkaBroker]) -> None:
    first, second, _ = nodes
    topic = NewTopic("orders", 1, replica_assignment=[[2, 1]])
    first.admin.create_topics([topic])["orders"].result(60)
    until(lambda: leader_of(first, "orders") == 2)
    second.stop()
    second.launch()
    until(lambda: leader_of(first, "orders") == 1)
    producer = first.producer(transactional_id="t")
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("orders", row(1), partition=0)
    assert producer.flush(60) == 0
    partitions = [TopicPartition("orders", 0)]

    def is_elected() -> bool:  # as soon as the second node is in sync again
        first.admin.elect_leaders(ElectionType.PREFERRED, partitions).result(60)
        return leader_of(first, "orders") == 2

    until(is_elected)
    producer.commit_transaction(60)  # its control record is of the second leader, the message of the first one
    receiver = patient_receiver(first)
    receiver.open(start_at(first, "orders"), (), 0)
    try:
        collector = Collector(receiver)
        collector.collect(lambda one: one.batches and offset_of(one.batches[-1].last) == 2)
        assert collector.values() == [1]
    finally:
        receiver.close()
    receiver = patient_receiver(first)
    receiver.open(collector.batches[-1].last, (), 0)
    try:
        until(lambda: receiver.status().is_at_end)
        second.stop()
        until(lambda: leader_of(first, "orders") == 1)
        first.send("orders", row(2))
        assert Collector(receiver).collect_rows(1).values() == [2]
    finally:
        receiver.close()
