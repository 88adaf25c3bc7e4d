"""Errors of one partition stay visible while other partitions are read, and end when the partition answers again."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.errors import SourceUnavailable
from cdc.model.kafka_position import Partition, PartitionOffset
from cdc.sources.kafka.cluster import Topic, Topics
from cdc.sources.kafka.partition_health import PartitionHealth

ONE, OTHER = ("orders", 0), ("orders", 1)
BOTH = {ONE, OTHER}
READ = {ONE: PartitionOffset(5), OTHER: PartitionOffset(5)}
ERROR = SourceUnavailable("Kafka does not answer: no.", hint="Start the brokers.")


class Brokers:
    """A Cluster whose partitions end at 5, and are written up to ``written``, or have ``errors``."""

    def __init__(self) -> None:
        self.errors: dict[Partition, Any] = {}
        self.written: dict[Partition, int] = {}

    def answered_ends(self, partitions: Any, *, uncommitted: bool = False) -> Any:
        ends = {one: self.written.get(one, 5) if uncommitted else 5 for one in partitions if one not in self.errors}
        return ends, {one: self.errors[one] for one in partitions if one in self.errors}


def topics(*leaderless: int) -> Topics:
    return Topics("c", {"orders": Topic("id", (0, 1), frozenset(leaderless))})


def refresh(health: PartitionHealth, brokers: Brokers, *leaderless: int, read: Any = READ) -> Any:
    return health.refresh(brokers, topics(*leaderless), BOTH, read)  # type: ignore[arg-type]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as a list of one number."""
    now = [100.0]
    monkeypatch.setattr("cdc.sources.kafka.partition_health.time.monotonic", lambda: now[0])
    return now


def test_fetch_error_stays_while_it_is_repeated(clock: list[float]) -> None:
    health, brokers = PartitionHealth(), Brokers()
    for _ in range(3):  # the leader answers for its end, but not with messages
        clock[0] += 1
        health.note({OTHER: ERROR})
        clock[0] += 1
        refresh(health, brokers)
        warning = health.warning(READ, 2)
        assert warning is not None and "1 of 2 partitions cannot be read: Kafka does not answer: no." in warning.message
        assert warning.context == {"topic": "orders", "partition": 1} and health.failed == {OTHER}
    clock[0] += 2
    refresh(health, brokers)
    assert health.warning(READ, 2) is None and not health.failed


def test_partition_without_leader_is_not_asked(clock: list[float]) -> None:
    health, brokers = PartitionHealth(), Brokers()
    assert refresh(health, brokers, 1) == {ONE: 5}
    warning = health.warning(READ, 2)
    assert warning is not None and "orders[1] has no leader" in warning.message
    assert refresh(health, brokers) == {ONE: 5, OTHER: 5} and health.warning(READ, 2) is None


def test_no_partition_answers_is_an_error_of_the_brokers(clock: list[float]) -> None:
    brokers = Brokers()
    brokers.errors = {ONE: ERROR}
    with pytest.raises(SourceUnavailable, match="no leader"):
        refresh(PartitionHealth(), brokers, 1)


def test_open_transaction_is_reported_after_its_time(clock: list[float]) -> None:
    health, brokers = PartitionHealth(60.0), Brokers()
    brokers.written = {ONE: 9}
    refresh(health, brokers)
    clock[0] += 59
    refresh(health, brokers)
    assert health.held_s(READ) == 59 and health.warning(READ, 2) is None
    clock[0] += 1
    warning = health.warning(READ, 2)
    assert warning is not None and warning.context["offset"] == 5 and warning.context["messages"] == 4
    moved = {**READ, ONE: PartitionOffset(6)}  # the transaction has ended
    assert health.warning(moved, 2) is None and health.held_s(moved) == 0
    refresh(health, brokers, read=moved)  # the next transaction is open
    assert health.held_s(moved) == 0 and health.written == {ONE: 9, OTHER: 5}


def test_messages_that_can_be_read_are_not_held(clock: list[float]) -> None:
    health, brokers = PartitionHealth(0.0), Brokers()
    brokers.written = {ONE: 9}
    behind = {**READ, ONE: PartitionOffset(4)}
    refresh(health, brokers, read=behind)
    assert health.held_s(behind) == 0 and health.warning(behind, 2) is None
